"""Declaration = code: what a state of a machine can do, read off its source."""
