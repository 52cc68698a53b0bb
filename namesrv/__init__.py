"""The name server: which brokers there are and which message queues each keeps."""
