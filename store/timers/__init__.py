"""Messages that are stored and not visible yet: timers and half messages."""
