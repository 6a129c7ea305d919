"""What can happen is known before it runs: declaration and code compared, machines explored,
approval policies asked for what passes. Pure."""
