"""The admin listener: health, metrics, clients."""
