"""What may be deleted, and when the log counts as full."""
