"""The subcommands of ``tidegate`` that are the gateway's own; one module for each subject."""
