"""Images that people and tools give to models: kept in the durable store, named by signed marks."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from activities.contracts import IMAGE_MARK, Message

if TYPE_CHECKING:
    from activities.store.blobs import BlobStore
    from activities.store.secret import StoreSecret

__all__ = ["MAX_IMAGES", "MAX_IMAGE_BYTES", "Image", "Images", "checked"]

MAX_IMAGE_BYTES = 5 * 2**20
"""Of one image; Anthropic takes no larger one."""
MAX_IMAGES = 20
"""That one question brings: the newest. The marks of others stay text."""
MAX_BYTES = 20 * 2**20
"""Of all images of one question."""
KINDS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


@dataclass(frozen=True, slots=True)
class Image:
    """One image of a question."""

    name: str
    media_type: str
    data: bytes

    @property
    def url(self) -> str:
        """As a data URL."""
        return f"data:{self.media_type};base64,{b64encode(self.data).decode()}"


def checked(data: bytes) -> str:
    """The media type of what models take, by its first bytes. Raises `ValueError` for anything else."""
    if len(data) > MAX_IMAGE_BYTES:
        raise ValueError(f"it has more than the {MAX_IMAGE_BYTES:,} bytes that are allowed")
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    for start, kind in KINDS.items():
        if data.startswith(start):
            return kind
    raise ValueError("it is no PNG, JPEG, GIF or WebP")


class Images:
    """Those of a store. Reading and keeping block: call them in a thread."""

    def __init__(self, blobs: BlobStore, secret: StoreSecret) -> None:
        self._blobs, self._secret = blobs, secret
        self._read = lru_cache(8)(blobs.get)

    def keep(self, data: bytes, name: str = "image") -> str:
        """Keep an image; its mark. Raises `ValueError` for what no model takes, and `StoreError`."""
        kind = checked(data)
        name = re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)[-80:] or kind.replace("/", ".")
        digest = self._blobs.put(data)
        return f"[image {name}: {digest}.{self._secret.signature(f'image {digest}')}]"

    def of(self, messages: Iterable[Message]) -> dict[str, Image]:
        """The images of a question by mark: the newest, as many as a question may bring.

        Raises `StoreError`.
        """
        found: dict[str, Image] = {}
        room = MAX_BYTES
        for message in reversed(tuple(messages)):
            if message.role == "assistant" or "[image " not in message.content:
                continue
            for mark in reversed(list(IMAGE_MARK.finditer(message.content))):
                name, digest, signature = mark.groups()
                if mark[0] in found or not self._secret.signed(f"image {digest}", signature):
                    continue
                data = self._read(digest)
                room -= len(data)
                if room < 0 or len(found) == MAX_IMAGES:
                    return found
                found[mark[0]] = Image(name, checked(data), data)
        return found
