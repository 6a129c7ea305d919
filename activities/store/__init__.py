"""Blobs, the conversation cache, payload conversion and the archive of logs."""
