"""Large texts as UTF-8 bytes, looked at piece by piece, so that they are in memory once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Utf8"]

PIECE_BYTES = 2**20
"""Decoded at a time."""
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Utf8:
    """The bytes of a text that are known to be UTF-8, and its length in characters."""

    data: bytes
    chars: int

    @classmethod
    def of(cls, text: str) -> Utf8:
        """A text's bytes. Raises UnicodeEncodeError for lone surrogates."""
        return cls(text.encode(), len(text))

    @classmethod
    def checked(cls, data: bytes) -> Utf8:
        """Bytes, without the mark that some programs put first. Raises UnicodeError with the place."""
        skipped = len(BOM) if data.startswith(BOM) else 0
        data = data.removeprefix(BOM)
        chars = at = 0
        for piece in _pieces(data):
            try:
                chars += len(piece.decode())
            except UnicodeDecodeError as error:
                raise UnicodeError(f"position {skipped + at + error.start}: {error.reason}") from None
            at += len(piece)
        return cls(data, chars)

    def parts(self, chars: int) -> Iterator[bytes]:
        """The text in parts of so many characters, the last one of fewer."""
        text = ""
        for piece in _pieces(self.data):
            text += piece.decode()
            whole = len(text) - len(text) % chars
            for at in range(0, whole, chars):
                yield text[at : at + chars].encode()
            text = text[whole:]
        if text:
            yield text.encode()


def _pieces(data: bytes) -> Iterator[bytes]:
    """The bytes in pieces; each begins with a whole character if they are UTF-8."""
    at = 0
    while at < len(data):
        end = at + PIECE_BYTES
        for _ in range(3):
            if end < len(data) and 0x80 <= data[end] < 0xC0:
                end -= 1
        yield data[at:end]
        at = end
