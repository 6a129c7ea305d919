"""The stores: content addressing, damage, deletion, several processes."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.contracts import ModelSpec, Setup
from activities.store import (
    BlobCorrupt,
    BlobMissing,
    BlobStore,
    NotCached,
    StoreUnavailable,
    TranscriptCache,
)
from activities.transcript import EMPTY_DIGEST, Message, ToolCall, Transcript

HELLO = Message(role="user", content="hello")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlobStore]:
    store = BlobStore(tmp_path / "sub" / "blobs.db", durable=True)
    yield store
    store.close()


@pytest.fixture
def cache_store(tmp_path: Path) -> Iterator[BlobStore]:
    store = BlobStore(tmp_path / "cache.db", durable=False)
    yield store
    store.close()


def change(path: Path, sql: str, *values: object) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(sql, values)
    connection.close()


async def test_put_answers_the_sha256_and_get_the_same_bytes(store: BlobStore) -> None:
    content = bytes(range(256)) * 40
    digest = await store.put(content)
    assert digest == hashlib.sha256(content).hexdigest()
    assert await store.get(digest) == content
    assert await store.put(content) == digest


async def test_blobs_outlive_the_store_object(store: BlobStore) -> None:
    digest = await store.put(b"kept")
    store.close()
    other = BlobStore(store.path, durable=True)
    assert await other.get(digest) == b"kept"
    other.close()


async def test_a_durable_store_syncs_each_commit_and_is_private_to_its_owner(store: BlobStore) -> None:
    await store.put(b"x")
    assert store.database.rows("PRAGMA synchronous") == [(2,)]
    assert store.database.rows("PRAGMA journal_mode") == [("wal",)]
    assert store.path.stat().st_mode & 0o077 == 0


async def test_a_missing_blob_says_what_to_do(store: BlobStore) -> None:
    with pytest.raises(BlobMissing, match=r"blobs.db has no blob 0{64}.*restore the file from a backup"):
        await store.get("0" * 64)


async def test_a_changed_blob_is_never_returned_and_can_be_put_again(store: BlobStore) -> None:
    digest = await store.put(b"right")
    change(store.path, "UPDATE blobs SET content=? WHERE digest=?", b"wrong", digest)
    with pytest.raises(BlobCorrupt, match=f"corrupt:{digest}.*backup"):
        await store.get(digest)
    await store.put(b"right")
    assert await store.get(digest) == b"right"
    assert store.database.rows("SELECT content FROM blobs WHERE digest=?", [f"corrupt:{digest}"]) == [
        (b"wrong",)
    ]


WRITER = """
import asyncio, sys
from pathlib import Path
from activities.store import BlobStore
async def main():
    store = BlobStore(Path(sys.argv[1]), durable=True)
    for n in range(60):
        await store.put(f"shared {n}".encode() * 50)
        await store.put(f"{sys.argv[2]} {n}".encode() * 50)
    store.close()
asyncio.run(main())
"""


async def test_several_processes_write_one_store_from_its_first_moment(tmp_path: Path) -> None:
    path = tmp_path / "blobs.db"
    start = asyncio.create_subprocess_exec
    writers = [await start(sys.executable, "-c", WRITER, str(path), name) for name in "abc"]
    assert [await writer.wait() for writer in writers] == [0, 0, 0]
    store = BlobStore(path, durable=True)
    for who in ("shared", "a", "b", "c"):
        for n in range(60):
            content = f"{who} {n}".encode() * 50
            assert await store.get(hashlib.sha256(content).hexdigest()) == content
    assert store.database.rows("SELECT count(*) FROM blobs") == [(240,)]
    store.close()


async def test_many_tasks_share_one_store(store: BlobStore) -> None:
    digests = await asyncio.gather(*(store.put(bytes([n % 20]) * 100) for n in range(100)))
    assert len(set(digests)) == 20
    assert all(await asyncio.gather(*(store.get(digest) for digest in digests)))


async def test_a_durable_file_that_vanishes_is_an_error_and_not_a_new_empty_store(store: BlobStore) -> None:
    await store.put(b"x")
    store.path.unlink()
    with pytest.raises(StoreUnavailable, match="removed or replaced while it was in use"):
        await store.put(b"y")


async def test_a_durable_log_without_its_file_is_not_thrown_away(tmp_path: Path) -> None:
    (tmp_path / "blobs.db-wal").write_bytes(b"what was written last")
    store = BlobStore(tmp_path / "blobs.db", durable=True)
    with pytest.raises(StoreUnavailable, match=r"blobs.db is missing, but its log blobs.db-wal is here"):
        await store.put(b"x")
    assert (tmp_path / "blobs.db-wal").read_bytes() == b"what was written last"


async def test_a_file_that_is_no_database_is_left_alone_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "blobs.db"
    path.write_text("these are my notes, not a database " * 40)
    store = BlobStore(path, durable=True)
    with pytest.raises(StoreUnavailable, match="no SQLite file"):
        await store.put(b"x")
    assert path.read_text().startswith("these are my notes")


async def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = BlobStore(tmp_path / "file" / "blobs.db", durable=True)
    with pytest.raises(StoreUnavailable, match="RATCHET_DATA_DIR"):
        await store.put(b"x")


# -- transcripts -----------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
calls = st.builds(ToolCall, id=texts, name=texts, arguments=texts)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=texts,
    tool_calls=st.lists(calls, max_size=2).map(tuple),
    tool_call_id=st.none() | texts,
)


@settings(max_examples=40, deadline=None)
@given(parts=st.lists(st.lists(messages, max_size=4), max_size=8))
def test_a_transcript_saved_in_parts_is_loaded_whole_from_the_file(
    parts: list[list[Message]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cache") / "cache.db"

    async def round_trip() -> None:
        store = BlobStore(path, durable=False)
        cache, grown = TranscriptCache(store), Transcript()
        for part in parts:
            longer = grown.add(*part)
            await cache.save(grown.digest, longer)
            grown = longer
        loaded = await TranscriptCache(store).load(grown.digest)
        store.close()
        assert loaded.messages == grown.messages
        assert loaded.digests == grown.digests

    asyncio.run(round_trip())


async def test_branches_share_what_they_have_in_common(cache_store: BlobStore) -> None:
    cache, trunk = TranscriptCache(cache_store), Transcript([HELLO])
    await cache.save(EMPTY_DIGEST, trunk)
    for word in ("left", "right"):
        branch = trunk.add(Message(role="assistant", content=word))
        await cache.save(trunk.digest, branch)
        assert (await TranscriptCache(cache_store).load(branch.digest)).messages == branch.messages
    assert cache_store.database.rows("SELECT count(*) FROM nodes") == [(3,)]


async def test_loading_from_memory_does_not_touch_the_file(cache_store: BlobStore) -> None:
    cache, transcript = TranscriptCache(cache_store), Transcript([HELLO])
    await cache.save(EMPTY_DIGEST, transcript)
    change(cache_store.path, "DELETE FROM nodes")
    assert await cache.load(transcript.digest) == transcript


async def test_memory_is_bounded_and_the_file_serves_the_rest(cache_store: BlobStore) -> None:
    cache = TranscriptCache(cache_store, keep=2)
    many = [Transcript([Message(role="user", content=str(n))]) for n in range(6)]
    for one in many:
        await cache.save(EMPTY_DIGEST, one)
    assert [(await cache.load(one.digest)).messages for one in many] == [one.messages for one in many]


async def test_an_unknown_digest_is_not_cached(cache_store: BlobStore) -> None:
    with pytest.raises(NotCached, match="send it whole"):
        await TranscriptCache(cache_store).load("f" * 32)


async def test_a_prefix_that_is_none_is_refused(cache_store: BlobStore) -> None:
    with pytest.raises(ValueError, match="no prefix"):
        await TranscriptCache(cache_store).save("f" * 32, Transcript([HELLO]))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param("UPDATE nodes SET messages=replace(messages,'hello','hullo')", id="other words"),
        pytest.param("UPDATE nodes SET messages='nonsense'", id="no JSON"),
        pytest.param("UPDATE nodes SET messages='[]'", id="no messages"),
        pytest.param("UPDATE nodes SET parent=digest", id="a circle"),
        pytest.param("DELETE FROM nodes WHERE parent LIKE '000%'", id="no beginning"),
    ],
)
async def test_damaged_parts_count_as_not_cached_and_are_mended_by_sending_all(
    cache_store: BlobStore, damage: str
) -> None:
    cache, first = TranscriptCache(cache_store), Transcript([HELLO])
    second = first.add(Message(role="assistant", content="hello you"))
    await cache.save(EMPTY_DIGEST, first)
    await cache.save(first.digest, second)
    change(cache_store.path, damage)
    with pytest.raises(NotCached):
        await TranscriptCache(cache_store).load(second.digest)
    await TranscriptCache(cache_store).save(EMPTY_DIGEST, second)
    assert (await TranscriptCache(cache_store).load(second.digest)).messages == second.messages


@pytest.mark.parametrize("ends", [("",), ("", "-wal", "-shm")], ids=["the file", "file and logs"])
async def test_a_cache_deleted_under_a_running_worker_starts_anew(
    cache_store: BlobStore, ends: tuple[str, ...]
) -> None:
    cache, first = TranscriptCache(cache_store), Transcript([HELLO])
    await cache.save(EMPTY_DIGEST, first)
    for end in ends:
        cache_store.path.with_name(cache_store.path.name + end).unlink()
    second = first.add(Message(role="assistant", content="you"))
    await cache.save(first.digest, second)  # its parent is gone: the whole is kept
    assert (await TranscriptCache(cache_store).load(second.digest)).messages == second.messages
    with pytest.raises(NotCached):
        await TranscriptCache(cache_store).load(first.digest)


async def test_a_cache_file_that_is_garbage_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    path.write_bytes(b"garbage " * 2000)
    store = BlobStore(path, durable=False)
    cache, transcript = TranscriptCache(store), Transcript([HELLO])
    with pytest.raises(StoreUnavailable):
        await cache.load(transcript.digest)
    await cache.save(EMPTY_DIGEST, transcript)
    assert (await TranscriptCache(store).load(transcript.digest)) == transcript
    store.close()


async def test_setups_are_kept_by_digest_and_checked(cache_store: BlobStore) -> None:
    cache = TranscriptCache(cache_store)
    setup = Setup(model=ModelSpec(name="m", temperature=0.1), response_schema={"type": "object"})
    with pytest.raises(NotCached):
        await cache.setup(setup.digest)
    await cache.save_setup(setup)
    await cache.save_setup(setup)
    assert await cache.setup(setup.digest) == setup
    change(cache_store.path, "UPDATE setups SET setup=replace(setup,'\"m\"','\"other\"')")
    with pytest.raises(NotCached):
        await cache.setup(setup.digest)
