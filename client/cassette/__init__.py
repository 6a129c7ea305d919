"""Cassettes: a run as one file, and that run again from the file, offline."""
