"""Sessions as text: small ones inline, large ones in the store, and nothing forged is loaded."""

from __future__ import annotations

import base64
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.code.session import BadSession, SavedSession, load_session, save_session
from activities.contracts import CodeAnswer
from activities.store.blobs import BlobStore
from tests.activities.codekit import LARGE_STATE, Sandbox, sandbox_in


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with sandbox_in(tmp_path) as sandbox:
        yield sandbox


async def test_small_session_is_inline_and_large_one_a_digest(sandbox: Sandbox) -> None:
    await sandbox.run("x = 1")
    assert sandbox.session.startswith("inline:")
    assert len(sandbox.session) < 4200
    assert not sandbox.files.folder.exists()
    await sandbox.run(LARGE_STATE)
    assert sandbox.session.startswith("digest:")
    assert len(sandbox.session) == 7 + 64
    assert (await sandbox.run("print(x, len(y))")).printed == "1 5000\n"


def packed(content: bytes) -> str:
    """A session with this content."""
    return f"inline:{base64.b64encode(zlib.compress(content)).decode()}"


HEAD = b'{"format": 1, "waiting": false, "calls": 0}\n'
FORGED = {
    "no kind": "abc",
    "another kind": "file:///etc/passwd",
    "no base64": "inline:!!!!",
    "not ascii": "inline:ééé",
    "not packed": "inline:AAAA",
    "cut off": packed(HEAD + b"x" * 5000)[:40],
    "empty": "inline:",
    "no head": packed(b"MONTY"),
    "head is a list": packed(b"[1]\ndump"),
    "head of deep lists": packed(b"[" * 100_000 + b"\ndump"),
    "head with wrong types": packed(HEAD.replace(b"false", b"3") + b"dump"),
    "another format": packed(HEAD.replace(b"1", b"2", 1) + b"dump"),
    "no dump": packed(HEAD),
    "dump of garbage": packed(HEAD + b"garbage"),
    "dump of another version": packed(HEAD + b"MONTY\0\xff\xff" + b"x" * 200),
    "unknown digest": "digest:" + "0" * 64,
    "path as digest": "digest:../blobs",
}


@pytest.mark.parametrize("kind", FORGED)
async def test_forged_session_is_refused_for_good(sandbox: Sandbox, kind: str) -> None:
    with pytest.raises(ApplicationError, match="session") as raised:
        await sandbox.step(block="print(1)", session=FORGED[kind])
    assert (raised.value.type, raised.value.non_retryable) == ("Fatal", True)


async def test_session_with_changed_bytes_is_never_loaded(sandbox: Sandbox) -> None:
    await sandbox.run(LARGE_STATE)
    sandbox.file.write_bytes(sandbox.file.read_bytes()[:-1] + b"x")
    with pytest.raises(ApplicationError, match="have changed") as raised:
        await sandbox.step(block="print(1)", session=sandbox.session)
    assert raised.value.type == "Fatal"


async def test_waiting_state_under_wrong_head_is_refused(sandbox: Sandbox) -> None:
    waiting = load_session((await sandbox.step(block="ask()")).session, sandbox.blobs)
    ended = load_session((await sandbox.step(block="x = 1")).session, sandbox.blobs)
    lies = [SavedSession(dump=waiting.dump, waiting=False), SavedSession(dump=ended.dump, waiting=True)]
    effects: tuple[dict[str, Any], ...] = ({"block": "1"}, {"answer": CodeAnswer()})
    for lie, effect in zip(lies, effects, strict=True):
        with pytest.raises(ApplicationError, match="cannot read the session") as raised:
            await sandbox.step(session=save_session(lie, sandbox.blobs), **effect)
        assert raised.value.type == "Fatal"


async def test_unusable_store_is_tried_again(sandbox: Sandbox) -> None:
    sandbox.files.folder.write_text("a file in the place of the folder")
    with pytest.raises(ApplicationError) as raised:
        await sandbox.step(block=LARGE_STATE)
    assert (raised.value.type, raised.value.non_retryable) == ("Transient", False)


def test_session_unpacks_to_no_more_than_allowed(tmp_path: Path) -> None:
    bomb = packed(HEAD + bytes(100_000))
    assert len(load_session(bomb, BlobStore(tmp_path)).dump) == 100_000
    with pytest.raises(BadSession, match="too large"):
        load_session(bomb, BlobStore(tmp_path), most=100_000)
