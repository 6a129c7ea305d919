"""How a message names an image: a mark in its text. The bytes are in the durable store.

A mark such as `[image chart.png: <digest>.<signature>]` goes wherever its text goes, so every machine, log
and cassette can carry one. Only what the store has signed counts (`activities/images.py`): a page that a tool
reads cannot show the model an image by writing a mark.
"""

from __future__ import annotations

import re

__all__ = ["IMAGE_BYTES", "IMAGE_MARK", "bytes_of_images", "without_digests"]

IMAGE_MARK = re.compile(r"\[image ([\w.-]{1,80}): ([0-9a-f]{64})\.([0-9a-f]{32})\]", re.ASCII)
"""Name, digest, signature."""
LONG_MARK = re.compile(r"\[image ([\w.-]{1,80}): [0-9a-f]{8,64}(?:\.[0-9a-f]{0,32})?\]?", re.ASCII)
"""A mark, also where its text was cut in the middle of it."""
IMAGE_BYTES = 6000
"""What an image counts for where bytes of text stand for tokens: 1,500 tokens."""
MOST_COUNTED = 20
"""Images of one text; a text may be full of marks that nobody has signed, and here none can be checked."""


def bytes_of_images(text: str) -> int:
    """What the images of a text add to its size."""
    return IMAGE_BYTES * min(len(IMAGE_MARK.findall(text)), MOST_COUNTED) if "[image " in text else 0


def without_digests(text: str) -> str:
    """The text with short marks, `[image chart.png]`, for people and models; also for marks that were cut."""
    return LONG_MARK.sub(r"[image \1]", text) if "[image " in text else text
