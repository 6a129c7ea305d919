"""What programs hold: `AgentClient` and `Local`, decisions and commands. They import it from `ratchet`."""
