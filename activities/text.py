"""Texts that can be shown to people and models, and always be written as UTF-8."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_core import ErrorDetails

__all__ = ["problem_of", "problems_text", "readable"]


def readable(text: str) -> str:
    """The text with lone surrogates spelt out: they cannot be written as UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def problems_text(error: ValidationError, most: int = 20, under: str = "") -> str:
    """Each wrong field with its problem: `price.input: Field required; ...`. No value is repeated: it may be
    a secret. `under`: a key that all fields stand under."""
    details = error.errors(include_url=False, include_input=False, include_context=False)
    lines = [
        f"{_path((under, *one['loc']) if under else one['loc'])}: {problem_of(one)[:300]}"
        for one in details[:most]
    ]
    more = [f"and {len(details) - most} more"] if len(details) > most else []
    return readable("; ".join([*lines, *more]))


def problem_of(detail: ErrorDetails) -> str:
    """The message of one error without the name of its exception's class."""
    return detail["msg"].removeprefix("Value error, ")


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part)[:80] for part in location) or "the whole"
