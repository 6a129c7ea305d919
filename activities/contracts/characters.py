"""Characters that show nothing, or turn the text around them: one list for all that people read. Pure."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

__all__ = ["all_visible", "is_visible", "visible"]

UNSEEN = frozenset(map(chr, chain(
    (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0x16FE4, 0x1D159), range(0x180B, 0x1810),
    range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0),
)))  # fmt: skip
"""Python counts them as printable: fillers, blanks and variation selectors."""


def is_visible(character: str) -> bool:
    """A person sees that it is there; a blank (U+0020) counts as seen."""
    return character.isprintable() and character not in UNSEEN


def all_visible(text: str) -> bool:
    """No character of the text is hidden."""
    return text.isprintable() and UNSEEN.isdisjoint(text)


def visible(text: str, instead: Callable[[str], str], kept: str = "") -> str:
    """The text with something in the place of each hidden character, but for those of `kept`."""
    if all_visible(text):
        return text
    return "".join(c if c in kept or is_visible(c) else instead(c) for c in text)
