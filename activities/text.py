"""Text that can always be written as UTF-8."""

from __future__ import annotations

__all__ = ["readable"]


def readable(text: str) -> str:
    """The text with lone surrogates spelt out: they cannot be written as UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
