"""Reading a run's past: replay, checkpoints, fork, compare."""
