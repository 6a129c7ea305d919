"""`python -m ratchet`: the command `ratchet`."""

from __future__ import annotations

from client.start import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
