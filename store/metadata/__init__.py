"""Configuration, offsets, the directory and leases: keyed state, kept in the log."""
