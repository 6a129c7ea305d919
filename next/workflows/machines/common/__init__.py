"""What several machines use."""
