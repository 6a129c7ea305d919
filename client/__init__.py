"""What people hold: the SDK, the CLI and the embedded server."""
