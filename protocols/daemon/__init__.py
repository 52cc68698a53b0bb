"""Common plumbing of the daemons: configuration, logs, lifecycle, command options."""
