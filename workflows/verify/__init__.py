"""What can happen is known before it runs: declaration and code compared, machines explored. Pure."""
