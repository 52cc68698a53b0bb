"""CloudEvents over HTTP: events in, webhooks and pull out."""
