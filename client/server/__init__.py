"""Servers: how a Temporal server is reached, the embedded one of a directory, and what stands beside it."""
