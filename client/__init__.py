"""What people hold: the SDK, agent files and the command line. Programs import it from `ratchet`."""
