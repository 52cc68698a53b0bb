"""Example configurations; README.md here is generated from the configuration classes."""
