"""Deleting what no run needs any more: blobs by age and by what refers to them, old runs of the archive.

A blob is needed if its digest is written in the history, the memo or a pending call of any run that Temporal
still knows (open, or closed and not past its retention), in a schedule, in the archive, or in a blob that is
needed itself. Everything that looks like a digest counts as one: that keeps too much rather than too little.

A blob that is put, and whose digest is not in any history yet, is protected by its age: a blob that is put
again counts as new (`BlobStore.put`). So the least age is a day.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError, Message
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import History
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.converter import PayloadCodec
from temporalio.service import RPCError, RPCStatusCode

from activities.store.blobs import KeptBlob, StoreError
from activities.store.encryption import KeyMissing, NotDecrypted
from activities.store.stores import Stores
from client.errors import RatchetError, clear_errors
from client.history.recorded import payloads_in

if TYPE_CHECKING:
    from activities.store.archive import Run

__all__ = ["LEAST_AGE", "Garbage", "delete_garbage", "find_garbage"]

LEAST_AGE = timedelta(days=1)
HEX = bytes(byte if byte in b"0123456789abcdef" else 32 for byte in range(256))
"""Makes spaces of what is in no digest."""
DIGEST_CHARS = 64
AT_ONCE = 16
"""Histories and blobs that are read at a time."""

T = TypeVar("T")


@dataclass(frozen=True)
class Garbage:
    """What nothing needs any more, and what was looked at."""

    before: float
    """Seconds since 1970: what was written later is kept."""
    blobs: tuple[KeptBlob, ...]
    archived: tuple[Run, ...]
    """Runs of the archive."""
    calls: tuple[str, ...]
    """Keys of calls that were written down, of runs that Temporal no longer knows."""
    kept: int
    """Other blobs."""
    kept_bytes: int
    executions: int
    """Of runs that Temporal knows."""
    forgotten: tuple[str, ...]
    """Ids of namespaces that are gone."""


async def find_garbage(
    temporal: Client,
    stores: Stores,
    older_than: timedelta,
    *,
    archive: bool = False,
    forget: Collection[str] = (),
) -> Garbage:
    """What nothing needs and is older than this; deletes nothing.

    Args:
        archive: runs of the archive count as garbage, too, if they ended before and Temporal knows none of
            their workflow id.
        forget: ids of namespaces, and workflow ids of runs, that need nothing any more.

    Raises:
        RatchetError: the server or a store cannot be used, a blob is damaged, a run cannot be decrypted, or
            the stores hold what runs of another server may need.
    """
    before = time.time() - older_than.total_seconds()
    async with _clear_errors(temporal):
        # in this order: what is put after the list was made is not in the list
        blobs = {one.digest: one for one in await asyncio.to_thread(lambda: list(stores.blobs.list()))}
        is_old = any(one.at < before for one in blobs.values())
        search = _Search(stores, blobs if is_old else (), temporal.data_converter.payload_codec)
        marks = await asyncio.to_thread(stores.namespaces)
        known: set[str] = set()
        for client in await _namespaces(temporal, stores, marks, forget):
            known |= await search.read_namespace(client, forget)
        ended = await asyncio.to_thread(stores.archive.ended_before, before) if archive else ()
        archived = tuple(run for run in ended if run[0] not in known)
        calls = await search.read_databases(archived, known, before)
        await search.read_blobs()
    unused = tuple(one for one in blobs.values() if one.at < before and one.digest not in search.needed)
    return Garbage(
        before=before,
        blobs=tuple(sorted(unused, key=lambda one: one.at)),
        archived=archived,
        calls=calls,
        kept=len(blobs) - len(unused),
        kept_bytes=sum(one.size for one in blobs.values()) - sum(one.size for one in unused),
        executions=search.executions,
        forgotten=tuple(marks.keys() & set(forget)),
    )


async def delete_garbage(stores: Stores, garbage: Garbage) -> int:
    """Delete garbage; returns how many bytes of blobs that freed. What was put again meanwhile is kept.

    Raises `RatchetError`: a store cannot be used. What was deleted until then stays deleted.
    """

    def delete() -> int:
        for namespace_id in garbage.forgotten:
            stores.forget_namespace(namespace_id)
        for key in garbage.calls:
            stores.calls.forget(key)
        for run in garbage.archived:
            stores.archive.delete(*run)
        size = sum(one.size for one in garbage.blobs if stores.blobs.delete(one.digest, garbage.before))
        if garbage.archived:
            stores.archive.database.shrink()  # needs space: last
        return size

    try:
        return await asyncio.to_thread(delete)
    except StoreError as error:
        raise RatchetError(f"stopped before the end: {error}") from error


@asynccontextmanager
async def _clear_errors(temporal: Client) -> AsyncIterator[None]:
    async with clear_errors(temporal.service_client.config.target_host):
        try:
            yield
        except StoreError as error:
            raise RatchetError(f"nothing was deleted: {error}") from error


async def _namespaces(
    temporal: Client, stores: Stores, marks: Mapping[str, str], forget: Collection[str]
) -> list[Client]:
    """A client for each namespace whose workers used the stores, and for that of `temporal`."""
    found = {temporal.namespace: temporal}
    for namespace_id, name in marks.items():
        if namespace_id in forget:
            continue
        try:
            described = await temporal.workflow_service.describe_namespace(
                DescribeNamespaceRequest(id=namespace_id)
            )
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            raise RatchetError(
                f"nothing was deleted: workers of another Temporal server used {stores.blobs.objects.where} "
                f"(namespace {name}, {namespace_id}), and their runs may need what is there. If that server "
                f"is gone, say so with --forget {namespace_id}"
            ) from error
        own = described.namespace_info.name
        other = Client(temporal.service_client, namespace=own, data_converter=temporal.data_converter)
        found.setdefault(own, other)
    return list(found.values())


class _Search:
    """What is needed, as far as it was found."""

    def __init__(self, stores: Stores, blobs: Collection[str], codec: PayloadCodec | None) -> None:
        self.needed: set[str] = set()
        self.executions = 0
        self._read: set[str] = set()
        """Run ids of executions whose history was read."""
        self._unread: list[str] = []
        self._stores, self._blobs, self._codec = stores, frozenset(blobs), codec

    async def read_namespace(self, client: Client, forget: Collection[str]) -> set[str]:
        """Note every blob that the namespace needs, leaving out runs to forget; returns the ids of its runs.
        Where no blob can be deleted, only the list of runs is read."""
        runs = [run async for run in client.list_workflows()]
        self.executions += len(runs)
        if not self._blobs:
            return {run.id for run in runs}
        schedules = [one.id async for one in await client.list_schedules()]
        needing = [run for run in runs if run.id not in forget]
        await _in_batches(needing, lambda run: self._read_run(client, run))
        await _in_batches(schedules, lambda name: self._read_schedule(client, name))
        return {run.id for run in runs}

    async def read_databases(
        self, left_out: Collection[Run], known: set[str], before: float
    ) -> tuple[str, ...]:
        """Note the blobs that the archive needs, leaving out these runs, and those with the outcomes of
        calls: a run that was reset reads them. Returns keys of calls that unknown runs began before then."""
        archive = self._stores.archive
        for run in await asyncio.to_thread(archive.runs) if self._blobs else ():
            if (run[0], run[1].partition("~")[0]) not in left_out:  # ~: a chain of it that was replaced
                for text in await asyncio.to_thread(archive.texts, *run):
                    self._need(text.encode())
                # what Temporal still has of an execution was read there, and is longer
                kept = await asyncio.to_thread(archive.histories, *run, without=self._read)
                for events in kept.values():
                    await self._read_message(History.FromString(events))
        forgotten = []
        for key, begun, text in await asyncio.to_thread(lambda: list(self._stores.calls.all())):
            if begun < before and known.isdisjoint(accumulate(key.split("/"), "{}/{}".format)):
                forgotten.append(key)
            else:
                self._need(text.encode())
        return tuple(forgotten)

    async def read_blobs(self) -> None:
        """What needed blobs refer to, and so on."""
        while self._unread:
            batch, self._unread = self._unread, []
            await _in_batches(batch, self._read_blob)

    async def _read_run(self, client: Client, run: WorkflowExecution) -> None:
        handle = client.get_workflow_handle(run.id, run_id=run.run_id)
        with _may_be_gone(), _named(run.id):
            if run.status is WorkflowExecutionStatus.RUNNING:  # the memo, calls that are tried again
                await self._read_message((await handle.describe()).raw_description)
            history = await handle.fetch_history()
            await self._read_message(History(events=history.events))
            self._read.add(run.run_id)

    async def _read_schedule(self, client: Client, name: str) -> None:
        with _may_be_gone():
            await self._read_message((await client.get_schedule_handle(name).describe()).raw_description)

    async def _read_blob(self, digest: str) -> None:
        data = await asyncio.to_thread(self._stores.blobs.get, digest)
        self._need(data)
        if self._codec is not None:
            with suppress(DecodeError):  # no payload
                await self._read_message(Payload.FromString(data))

    async def _read_message(self, message: Message) -> None:
        self._need(message.SerializeToString())
        if self._codec is not None:
            for payload in await self._codec.decode(list(payloads_in(message))):
                self._need(payload.data)

    def _need(self, text: bytes) -> None:
        found = _digests(text) & self._blobs
        self._unread += found - self.needed
        self.needed |= found


def _digests(text: bytes) -> set[str]:
    """What looks like a digest, at every place: it may follow other hexadecimal digits."""
    words = [word for word in text.translate(HEX).split() if len(word) >= DIGEST_CHARS]
    last = DIGEST_CHARS - 1
    return {word[at : at + DIGEST_CHARS].decode() for word in words for at in range(len(word) - last)}


@contextmanager
def _may_be_gone() -> Iterator[None]:
    try:
        yield
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:  # its retention is over
            raise


@contextmanager
def _named(run: str) -> Iterator[None]:
    try:
        yield
    except (KeyMissing, NotDecrypted) as error:
        raise RatchetError(
            f"nothing was deleted: what run {run} needs cannot be seen: {error}. If it was started with a "
            f"wrong key by mistake, end it (`ratchet cancel {run} --force`), and say that it needs nothing "
            f"with --forget {run}"
        ) from error


async def _in_batches(items: Sequence[T], work: Callable[[T], Awaitable[None]]) -> None:
    for start in range(0, len(items), AT_ONCE):
        await asyncio.gather(*map(work, items[start : start + AT_ONCE]))
