"""Sessions as text: small ones inline, large ones in the store, and nothing else goes in."""

from __future__ import annotations

import base64
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from temporalio.exceptions import ApplicationError

from activities.code_session import BadSession, SavedSession, load_session, save_session
from activities.contracts_code import CodeAnswer
from activities.store import BlobStore
from tests.activities.codekit import Sandbox, sandbox_in


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with sandbox_in(tmp_path) as sandbox:
        yield sandbox


async def test_a_small_session_travels_itself_and_a_large_one_by_digest(sandbox: Sandbox) -> None:
    await sandbox.run("x = 1")
    assert sandbox.session.startswith("inline:")
    assert len(sandbox.session) < 4200
    assert sandbox.store.database.rows("SELECT count(*) FROM blobs") == [(0,)]
    await sandbox.run("import random\ny = [random.random() for _ in range(5000)]")
    assert sandbox.session.startswith("digest:")
    assert len(sandbox.session) == 7 + 64
    assert (await sandbox.run("print(x, len(y))")).printed == "1 5000\n"


@pytest.mark.parametrize("waiting", [True, False])
@pytest.mark.parametrize("size", [0, 10, 200_000])
async def test_a_session_comes_back_as_it_was_saved(tmp_path: Path, size: int, waiting: bool) -> None:
    store = BlobStore(tmp_path / "blobs.db", durable=True)
    saved = SavedSession(bytes(range(256)) * (size // 256) + b"\n" * (size % 256), waiting, calls=size)
    assert await load_session(await save_session(saved, store), store) == saved
    store.close()


def packed(content: bytes) -> str:
    """A session with this content."""
    return f"inline:{base64.b64encode(zlib.compress(content)).decode()}"


HEAD = b'{"format": 1, "waiting": false, "calls": 0}\n'
FORGED = {
    "no kind": "abc",
    "another kind": "file:///etc/passwd",
    "no base 64": "inline:!!!!",
    "not ascii": "inline:ééé",
    "not packed": "inline:AAAA",
    "cut off": packed(HEAD + b"x" * 5000)[:40],
    "empty": "inline:",
    "no head": packed(b"MONTY"),
    "a head that is none": packed(b"[1]\ndump"),
    "a head of deep lists": packed(b"[" * 100_000 + b"\ndump"),
    "a head with wrong types": packed(HEAD.replace(b"false", b"3") + b"dump"),
    "another format": packed(HEAD.replace(b"1", b"2", 1) + b"dump"),
    "no dump": packed(HEAD),
    "a dump of garbage": packed(HEAD + b"garbage"),
    "a dump of another version": packed(HEAD + b"MONTY\0\xff\xff" + b"x" * 200),
    "an unknown digest": "digest:" + "0" * 64,
    "a digest that is none": "digest:../blobs",
}


@pytest.mark.parametrize("kind", FORGED)
async def test_a_forged_session_is_refused_for_good(sandbox: Sandbox, kind: str) -> None:
    with pytest.raises(ApplicationError, match="session") as raised:
        await sandbox.step(block="print(1)", session=FORGED[kind])
    assert (raised.value.type, raised.value.non_retryable) == ("Fatal", True)


async def test_a_session_whose_bytes_have_changed_is_never_loaded(sandbox: Sandbox) -> None:
    await sandbox.run("import random\ny = [random.random() for _ in range(5000)]")
    digest = sandbox.session.removeprefix("digest:")
    with sandbox.store.database.transaction() as connection:
        (content,) = connection.execute("SELECT content FROM blobs WHERE digest=?", (digest,)).fetchone()
        changed = content[:-1] + bytes([content[-1] ^ 1])
        connection.execute("UPDATE blobs SET content=? WHERE digest=?", (changed, digest))
    with pytest.raises(ApplicationError, match="have changed") as raised:
        await sandbox.step(block="print(1)", session=sandbox.session)
    assert raised.value.type == "Fatal"


async def test_a_waiting_state_under_a_head_that_denies_it_is_refused(sandbox: Sandbox) -> None:
    waiting = await load_session((await sandbox.step(block="ask()")).session, sandbox.store)
    ended = await load_session((await sandbox.step(block="x = 1")).session, sandbox.store)
    lies = [SavedSession(waiting.dump, waiting=False), SavedSession(ended.dump, waiting=True)]
    wanted: tuple[dict[str, Any], ...] = ({"block": "1"}, {"answer": CodeAnswer()})
    for lie, effect in zip(lies, wanted, strict=True):
        text = await save_session(lie, sandbox.store)
        with pytest.raises(ApplicationError, match="cannot read the session") as raised:
            await sandbox.step(session=text, **effect)
        assert raised.value.type == "Fatal"


async def test_a_store_that_cannot_be_used_is_tried_again(sandbox: Sandbox) -> None:
    await sandbox.run("import random\ny = [random.random() for _ in range(5000)]")
    sandbox.store.path.unlink()
    for block in ("print(1)", "z = [random.random() for _ in range(5000)]"):
        with pytest.raises(ApplicationError, match="was removed") as raised:
            await sandbox.step(block=block, session=sandbox.session)
        assert (raised.value.type, raised.value.non_retryable) == ("Transient", False)


async def test_a_missing_output_of_a_tool_is_refused_for_good(sandbox: Sandbox) -> None:
    waiting = await sandbox.step(block="ask()")
    with pytest.raises(ApplicationError, match="has no blob") as raised:
        await sandbox.step(session=waiting.session, answer=CodeAnswer(whole="0" * 64))
    assert raised.value.type == "Fatal"


async def test_an_output_of_a_tool_whose_bytes_have_changed_is_refused_for_good(sandbox: Sandbox) -> None:
    waiting = await sandbox.step(block="ask()")
    digest = await sandbox.store.put(b"output")
    with sandbox.store.database.transaction() as connection:
        connection.execute("UPDATE blobs SET content=? WHERE digest=?", (b"forged", digest))
    with pytest.raises(ApplicationError, match="have changed") as raised:
        await sandbox.step(session=waiting.session, answer=CodeAnswer(whole=digest))
    assert (raised.value.type, raised.value.non_retryable) == ("Fatal", True)


async def test_a_session_unpacks_to_no_more_than_a_state_may_have(sandbox: Sandbox) -> None:
    bomb = packed(HEAD + bytes(100_000))
    assert len((await load_session(bomb, sandbox.store)).dump) == 100_000
    with pytest.raises(BadSession, match="too large"):
        await load_session(bomb, sandbox.store, most=100_000)


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(max_size=60)
    | st.binary(max_size=200).map(lambda b: f"inline:{base64.b64encode(b).decode()}")
    | st.binary(max_size=200).map(packed)
)
async def test_no_text_makes_loading_raise_anything_else(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = BlobStore(tmp_path_factory.getbasetemp() / "texts.db", durable=True)
    try:
        await load_session(text, store)
    except BadSession as error:
        assert len(str(error)) < 500  # noqa: PT017  # most texts are refused, a few may be sessions
    finally:
        store.close()
