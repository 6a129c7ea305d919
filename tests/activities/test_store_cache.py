"""The cache of conversations: linear, checked, and never a reason to fail."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.contracts import (
    EMPTY_DIGEST,
    Conversation,
    Message,
    ModelSpec,
    NativeCall,
    Setup,
    text_digest,
)
from activities.store.cache import ConversationCache
from tests.forked import Forked

HELLO = Message(role="user", content="hello")
FIRST = Conversation([HELLO])
SECOND = FIRST.add(Message(role="assistant", content="hello you"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sub" / "cache.db"


@pytest.fixture
def cache(path: Path) -> Iterator[ConversationCache]:
    cache = ConversationCache(path)
    yield cache
    cache.close()


def loaded(path: Path, digest: str) -> Conversation | None:
    """What another worker finds in the file."""
    other = ConversationCache(path)
    found = other.load(digest)
    other.close()
    return found


def execute(path: Path, sql: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path, isolation_level=None)
    rows = connection.execute(sql).fetchall()
    connection.close()
    return rows


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=texts,
    tool_calls=st.lists(st.builds(NativeCall, id=texts, name=texts, arguments=texts), max_size=2).map(tuple),
    tool_call_id=st.none() | texts,
)


@given(parts=st.lists(st.lists(messages, max_size=4), max_size=8))
def test_conversation_saved_in_parts_is_loaded_whole(
    parts: list[list[Message]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cache") / "cache.db"
    cache, grown = ConversationCache(path), Conversation()
    for part in parts:
        longer = grown.add(*part)
        cache.save(longer, grown.digest)
        grown = longer
    cache.close()
    found = loaded(path, grown.digest)
    assert found is not None
    assert (found.messages, found.digests) == (grown.messages, grown.digests)


def test_file_grows_by_new_messages_alone(cache: ConversationCache, path: Path) -> None:
    grown = Conversation()
    for n in range(50):
        longer = grown.add(Message(role="user", content=f"{n:03}" + "x" * 1000))
        cache.save(longer, grown.digest)
        grown = longer
    assert execute(path, "SELECT count(*), sum(length(messages)) < 60000 FROM additions") == [(50, 1)]
    assert loaded(path, grown.digest) == grown


def test_wrong_base_is_refused(cache: ConversationCache) -> None:
    with pytest.raises(ValueError, match="prefix"):
        cache.save(FIRST, "f" * 32)


DAMAGE = {
    "other words": "UPDATE additions SET messages=replace(messages,'hello','hullo')",
    "no JSON": "UPDATE additions SET messages='nonsense'",
    "no text": "UPDATE additions SET messages=5",
    "no messages": "UPDATE additions SET messages='[]'",
    "a circle": "UPDATE additions SET base=digest",
    "no beginning": "DELETE FROM additions WHERE base LIKE '000%'",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_part_is_mended_by_sending_all(cache: ConversationCache, path: Path, damage: str) -> None:
    cache.save(FIRST, EMPTY_DIGEST)
    cache.save(SECOND, FIRST.digest)
    execute(path, DAMAGE[damage])
    assert loaded(path, SECOND.digest) is None
    other = ConversationCache(path)
    other.save(SECOND, EMPTY_DIGEST)
    other.close()
    assert loaded(path, SECOND.digest) == SECOND


@pytest.mark.parametrize("ends", [("",), ("", "-wal", "-shm")], ids=["the file", "file and logs"])
def test_cache_deleted_under_a_worker_starts_empty(
    cache: ConversationCache, path: Path, ends: tuple[str, ...]
) -> None:
    cache.save(FIRST, EMPTY_DIGEST)
    for end in ends:
        path.with_name(path.name + end).unlink()
    cache.save(SECOND, FIRST.digest)  # its base is gone, so the whole is kept
    assert loaded(path, SECOND.digest) == SECOND
    assert loaded(path, FIRST.digest) is None


def test_garbage_file_is_replaced(cache: ConversationCache, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"garbage " * 2000)
    assert cache.load(FIRST.digest) is None
    cache.save(FIRST, EMPTY_DIGEST)
    assert loaded(path, FIRST.digest) == FIRST


def test_unusable_file_costs_only_the_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = ConversationCache(tmp_path / "file" / "cache.db")
    setup = Setup(model=ModelSpec())
    cache.save(FIRST, EMPTY_DIGEST)
    cache.save_setup(setup)
    assert (cache.load(FIRST.digest), cache.setup(setup.digest)) == (FIRST, setup)
    assert cache.load(SECOND.digest) is None


def test_setups_are_kept_by_digest_and_checked(cache: ConversationCache, path: Path) -> None:
    setup = Setup(model=ModelSpec(name="m", temperature=0.1), response_schema={"type": "object"})
    cache.save_setup(setup)
    cache.save_setup(setup)
    assert cache.setup(setup.digest) is setup
    other = ConversationCache(path)
    assert other.setup(setup.digest) == setup
    other.close()
    execute(path, "UPDATE setups SET setup=replace(setup,'\"m\"','\"other\"')")
    assert ConversationCache(path).setup(setup.digest) is None


WORKER = """
import sys
from pathlib import Path
from activities.contracts import EMPTY_DIGEST, Conversation, Message
from activities.store.cache import ConversationCache
cache = ConversationCache(Path(sys.argv[1]))
for run in ("shared", sys.argv[2]):
    grown = Conversation()
    for n in range(40):
        longer = grown.add(Message(role="user", content=f"{run} {n}"))
        cache.save(longer, grown.digest)
        grown = longer
"""


def test_several_workers_share_one_cache_from_the_first_moment(path: Path) -> None:
    workers = [Forked(WORKER, str(path), name, env=os.environ) for name in "abc"]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    for run in ("shared", "a", "b", "c"):
        said = Conversation([Message(role="user", content=f"{run} {n}") for n in range(40)])
        assert loaded(path, said.digest) in (said, None), "what the file was too busy for is sent again"
    assert execute(path, "SELECT count(*) FROM additions") > [(0,)]
    assert execute(path, "PRAGMA integrity_check") == [("ok",)]


def test_old_tool_outputs_are_forgotten(tmp_path: Path) -> None:
    cache = ConversationCache(tmp_path / "cache.db")
    cache.save_output("long ago")
    cache.trim(600)
    assert ConversationCache(tmp_path / "cache.db").output(text_digest("long ago")) == "long ago"
    cache.trim(-600)
    assert ConversationCache(tmp_path / "cache.db").output(text_digest("long ago")) is None
