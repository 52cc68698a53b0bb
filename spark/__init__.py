"""
Structured Streaming over Tidegate: a Data Source that reads message queues by offset, and the
jobs that aggregate telemetry with it. Works against Tidegate stores and Apache brokers alike.
"""
