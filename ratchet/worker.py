"""`python -m ratchet.worker`: the worker of the checkout's top. In the wheel that file stands here."""

from __future__ import annotations

from worker import build_worker, main

__all__ = ["build_worker", "main"]

if __name__ == "__main__":
    main()
