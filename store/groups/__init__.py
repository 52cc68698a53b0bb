"""Groups: read sets, cursors, deliveries in flight."""
