"""Every wire language Tidegate speaks, and the protocol-free words they are translated into."""
