"""A store: keeps messages and knows where they are. One log, everything else derived from it."""
