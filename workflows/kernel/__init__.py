"""The pure kernel: machines that are declared, verified, and advanced one answer at a time."""
