"""The agent loop as a Temporal workflow, over a pure kernel and pure machines."""
