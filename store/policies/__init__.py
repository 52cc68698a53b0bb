"""What a queue's policy means: length limits, expiry, priorities, dead letters, idle ends."""
