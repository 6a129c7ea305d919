"""Agent machines: one file each, with a constant `DESIGN`."""
