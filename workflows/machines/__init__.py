"""The shipped machines, one package each."""
