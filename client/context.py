"""The material that a run is about: read from a file, and put where the workers find it."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from activities.contracts import ContextRef
from activities.store import BlobStore, StoreError
from activities.utf8 import Utf8
from client.errors import RatchetError, UsageError
from workflows.api import AgentTask

if TYPE_CHECKING:
    from temporalio.client import Client

    from activities.settings import Settings

__all__ = ["Material", "check_takes_context", "context_for", "read_context", "store_of", "with_context"]

SHORT_BYTES = 100_000
"""A longer text goes to the store, and its reference into the task."""
MOST_BYTES = 2**28
Material = str | bytes | Path | Utf8
"""A text, its UTF-8, the file that holds it, or what `read_context` made of one of these."""


async def read_context(material: Material) -> Utf8:
    """The text, without a byte order mark; what was read before is given as it is.

    Raises:
        UsageError: there is no such file, or what is in it is no UTF-8 text, is empty or too large.
    """
    return material if isinstance(material, Utf8) else await asyncio.to_thread(_read, material)


def _read(material: str | bytes | Path) -> Utf8:
    what = str(material) if isinstance(material, Path) else "the context"
    try:
        raw = _bytes(material)
        if len(raw) > MOST_BYTES:
            raise UsageError(f"{what} is {len(raw):,} bytes; at most {MOST_BYTES:,} are taken as context")
        text = Utf8.checked(raw)
    except OSError as error:
        raise UsageError(f"{what} cannot be read as context: {error.strerror or error}") from error
    except UnicodeError as error:
        raise UsageError(
            f"{what} is no UTF-8 text ({error}); convert it, for example with `iconv -t UTF-8`"
        ) from error
    if not text.chars:
        raise UsageError(f"{what} is empty; leave it out, or give the text that the run is about")
    return text


def _bytes(material: str | bytes | Path) -> bytes:
    if isinstance(material, Path):
        return _content(material)
    return material.encode() if isinstance(material, str) else material


def _content(path: Path) -> bytes:
    """What a file holds, and at most one byte more than is taken: it may grow while it is read."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise UsageError(
            f"{path} cannot be read as context: it is a pipe, a socket or a device; put its content "
            "into a file, and give that"
        )
    if found.st_size > MOST_BYTES:
        raise UsageError(f"{path} is {found.st_size:,} bytes; at most {MOST_BYTES:,} are taken as context")
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1)


async def context_for(material: Material, store: BlobStore) -> str | ContextRef:
    """What goes into the task: a short text itself, a long one by reference to the store.

    Raises:
        UsageError: as `read_context`.
        RatchetError: the store cannot be used.
    """
    from activities.context import keep_context

    text = await read_context(material)
    if len(text.data) <= SHORT_BYTES:
        return text.data.decode()
    try:
        return await keep_context(text, store)
    except StoreError as error:
        raise RatchetError(f"the context cannot be kept, so nothing was started: {error}") from error


async def with_context(task: AgentTask, material: Material, settings: Settings) -> AgentTask:
    """The task with its context, which is kept in the store of the data directory if it is long.

    Raises:
        UsageError: the machine takes no context, or what is given is no text.
    """
    check_takes_context(task)
    text = await read_context(material)
    store = BlobStore(settings.data_dir / "blobs.db", durable=True)
    try:
        return task.model_copy(update={"context": await context_for(text, store)})
    finally:
        store.close()


def store_of(client: Client) -> BlobStore:
    """The durable store that a client shares with its workers.

    Raises:
        RatchetError: the client was made without the plugin.
    """
    from client.plugin import RatchetPlugin

    for plugin in client.config()["plugins"]:
        if isinstance(plugin, RatchetPlugin):
            return plugin.blobs
    raise RatchetError(
        "a context needs the store that workers read; make the Temporal client with "
        "`plugins=[RatchetPlugin(settings)]`, or by `AgentClient.connect`"
    )


def check_takes_context(task: AgentTask) -> None:
    """Raise a UsageError when the task's machine is known and takes no context."""
    try:
        from workflows import registry

        design = registry.design(task.machine, task.machine_version)
    except ValueError:
        return  # a worker elsewhere may have it
    if not design.takes_context:
        raise UsageError(_no_context(task.machine))


def _no_context(machine: str) -> str:
    """The message for a machine that takes none."""
    from workflows import registry

    takers = [design.name for design in registry.designs() if design.takes_context]
    instead = f"machines that do: {', '.join(dict.fromkeys(takers))}; or " if takers else ""
    return (
        f"the machine {machine} takes no context ({instead}put it into the goal, or let a tool read the file)"
    )
