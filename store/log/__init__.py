"""The log: segments of blocks, written in order, verified, recovered."""
