"""Tools: one file each, with a constant `TOOL`."""
