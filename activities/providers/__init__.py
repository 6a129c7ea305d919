"""Model providers: one file each, with a constant `PROVIDER`."""
