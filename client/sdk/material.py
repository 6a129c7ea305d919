"""The material and images that a run is about: read from files, and put where the workers find them."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Sequence
from pathlib import Path

from activities.contracts import MaterialRef
from activities.images import MAX_IMAGE_BYTES, MAX_IMAGES, Images, checked
from activities.store.blobs import BlobStore, StoreError
from client.errors import RatchetError, UsageError

__all__ = ["MAX_BYTES", "SHORT_BYTES", "checked_image", "goal_with_images", "material_for"]

SHORT_BYTES = 100_000
"""A longer text goes to the store, and its reference into the task."""
MAX_BYTES = 2**28


async def material_for(source: str | bytes | Path, blobs: BlobStore) -> str | MaterialRef:
    """What goes into a task: a short text itself, a long one by reference to the store.

    Args:
        source: a text, its UTF-8, or the file that holds it. A byte order mark is left out.
        blobs: the store that the workers share.

    Raises:
        UsageError: there is no such file, or its content is not UTF-8 text, is empty or too large.
        RatchetError: the store cannot be used.
    """
    name = str(source) if isinstance(source, Path) else "the material"
    try:
        data = await asyncio.to_thread(_content, source, name)
        text = data.decode()
        if len(data) <= SHORT_BYTES:
            return text
        digest = await asyncio.to_thread(blobs.put, data)
        return MaterialRef(digest=digest, chars=len(text), bytes=len(data))
    except OSError as error:
        raise UsageError(f"{name} cannot be read as material: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(
            f"{name} is not UTF-8 text ({error}); convert it, for example with `iconv -t UTF-8`"
        ) from error
    except StoreError as error:
        raise RatchetError(f"the material cannot be stored, so nothing was started: {error}") from error


async def goal_with_images(goal: str, sources: Sequence[bytes | Path], images: Images) -> str:
    """The goal, followed by a mark for each image; the images are in the store then.

    Raises:
        UsageError: there is no such file, it is too large, or it is no PNG, JPEG, GIF or WebP.
        RatchetError: the store cannot be used.
    """
    if len(sources) > MAX_IMAGES:
        raise UsageError(f"{len(sources)} images are too many for one question; at most {MAX_IMAGES}")
    marks = []
    for number, source in enumerate(sources, 1):
        short = source.name if isinstance(source, Path) else f"image-{number}"
        data = await asyncio.to_thread(checked_image, source) if isinstance(source, Path) else source
        try:
            marks.append(await asyncio.to_thread(images.keep, data, short))
        except ValueError as error:
            raise UsageError(f"{short} cannot be shown to a model: {error}") from error
        except StoreError as error:
            raise RatchetError(f"{short} cannot be stored, so nothing was started: {error}") from error
    return "\n\n".join((goal, *marks))


def checked_image(path: Path) -> bytes:
    """The image in a file. Raises `UsageError` for what is no image, or of a kind that no model takes."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ValueError("it is a pipe, a socket or a device")
        with path.open("rb") as file:
            data = file.read(MAX_IMAGE_BYTES + 1)
        checked(data)
    except OSError as error:
        raise UsageError(f"{path} cannot be read as an image: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{path} cannot be shown to a model: {error}") from error
    return data


def _content(source: str | bytes | Path, name: str) -> bytes:
    if isinstance(source, Path):
        if source.exists() and not (source.is_file() or source.is_dir()):
            raise UsageError(
                f"{name} cannot be read as material: it is a pipe, a socket or a device; put its content "
                "into a file, and name that"
            )
        with source.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    else:
        data = source.encode() if isinstance(source, str) else source
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name} is larger than {MAX_BYTES:,} bytes, the most that a run takes as material")
    if not (data := data.removeprefix(codecs.BOM_UTF8)):
        raise UsageError(f"{name} is empty; leave it out, or give the text that the run is about")
    return data
