"""Broker clusters: routes, links to stores, frames; what is particular to a kind of broker."""
