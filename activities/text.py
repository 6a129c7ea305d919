"""Texts that can be shown to people and models, and always be written as UTF-8."""

from __future__ import annotations

from pydantic import ValidationError

__all__ = ["problems_text", "readable"]


def readable(text: str) -> str:
    """The text with lone surrogates spelt out: they cannot be written as UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def problems_text(error: ValidationError, most: int = 20) -> str:
    """Each wrong field with its problem: `price.input: Field required; ...`. No value is repeated: it may be
    a secret."""
    details = error.errors(include_url=False, include_input=False, include_context=False)
    lines = [f"{_path(one['loc'])}: {one['msg'][:300]}" for one in details[:most]]
    more = [f"and {len(details) - most} more"] if len(details) > most else []
    return readable("; ".join([*lines, *more]))


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part)[:80] for part in location) or "the whole"
