"""Queues in memory: which entries they hold, and where those are in the log."""
