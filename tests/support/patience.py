"""How long tests wait for what will come: only a failure ever waits so long."""

PATIENCE_S = 120.0
"""A loaded machine may stop a process for seconds at a time; what it does still counts as right."""
