"""The deterministic side: how a run goes."""
