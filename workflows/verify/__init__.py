"""What a machine can do, known before it runs."""
