"""What a tool returned, as text for a model and as bytes to keep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic_core import to_json, to_jsonable_python

__all__ = ["MAX_KEPT_BYTES", "Output", "encode", "readable"]

MAX_KEPT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Output:
    """One output: `text` can always be written as UTF-8; `whole` is what is kept if it is cut."""

    text: str
    whole: bytes
    is_text: bool = True

    def capped(self, limit: int, fate: str) -> str:
        """The text, at most `limit` characters of it; `fate` says what became of the rest."""
        if len(self.text) <= limit:
            return self.text
        left = len(self.text) - limit
        total = len(self.text)
        return f"{self.text[:limit]}\n[{left:,} of {total:,} characters left out; {fate}]"


def encode(value: object) -> Output:
    """Text as it is, bytes as text if they are UTF-8, all else as JSON.

    Raises `TypeError` for an iterator (it may have no end) and `ValueError` for what refers to
    itself. Objects that have no JSON form are shown by their `str`.
    """
    if isinstance(value, str):
        text = readable(value)
        return Output(text, text.encode())
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _from_bytes(bytes(value))
    if isinstance(value, Iterator):
        raise TypeError(f"it is a {type(value).__name__}; return a list")
    return _from_bytes(_json(value))


def readable(text: str) -> str:
    """The text with lone surrogates spelt out: they cannot be written as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _json(value: object) -> bytes:
    try:
        return to_json(value, fallback=_as_text, inf_nan_mode="constants", bytes_mode="utf8")
    except ValueError:
        # Bytes inside that are no text go out in base 64; lone surrogates are spelt out.
        return json.dumps(value, default=_plain, separators=(",", ":")).encode()


def _plain(value: object) -> object:
    return to_jsonable_python(value, fallback=_as_text, bytes_mode="base64")


def _as_text(value: object) -> str:
    return readable(str(value))


def _from_bytes(raw: bytes) -> Output:
    try:
        return Output(raw.decode(), raw)
    except UnicodeDecodeError:
        start = raw[:16].hex(" ")
        words = f"{len(raw):,} bytes that are no UTF-8 text; they start with {start}"
        return Output(words, raw, is_text=False)
