"""What the tests of the sandbox share: blocks that are run step by step, as Temporal would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.testing import ActivityEnvironment

from activities.code import CodeActivities, Pool
from activities.contracts import CodeAnswer, CodeCall, CodeLimits, CodeStepped, MaterialRef, RunCode
from activities.material import Materials
from activities.store.blobs import BlobStore, Files

SHORT = CodeLimits(seconds=1, memory_bytes=64 * 2**20)
"""Limits for tests that reach them."""
LARGE_STATE = "import random\ny = [random.random() for _ in range(5000)]"
"""A block after which the session is kept in the store."""
Reply = Callable[[CodeCall], CodeAnswer]


def echo(call: CodeCall) -> CodeAnswer:
    """Answers a call with its first argument in angle brackets."""
    return CodeAnswer(value=f"<{call.args[0] if call.args else ''}>")


@dataclass
class Sandbox:
    """The activity over a store of its own; keeps the session and the calls of the last block."""

    activities: CodeActivities
    files: Files
    limits: CodeLimits = SHORT
    session: str = ""
    calls: tuple[CodeCall, ...] = ()

    @property
    def blobs(self) -> BlobStore:
        """The store of its sessions."""
        return BlobStore(self.files)

    @property
    def file(self) -> Path:
        """Where its session is."""
        digest = self.session.removeprefix("digest:")
        return self.files.path(f"{digest[:2]}/{digest[2:]}")

    @property
    def pool(self) -> Pool:
        """Its interpreters."""
        return self.activities.pool

    async def step(self, **effect: Any) -> CodeStepped:
        """One activity; the block may call `ask`."""
        given = {"names": ("ask",), "limits": self.limits, **effect}
        return await ActivityEnvironment().run(self.activities.run_code, RunCode(**given))

    async def run(self, block: str, reply: Reply = echo, **effect: Any) -> CodeStepped:
        """A whole block, its calls answered; the answer has all that it printed."""
        before = self.session
        stepped = await self.step(block=block, session=before, before=before, **effect)
        printed, left_out = stepped.printed, stepped.left_out
        self.calls = ()
        while stepped.call is not None:
            self.calls += (stepped.call,)
            answer = reply(stepped.call)
            stepped = await self.step(session=stepped.session, before=before, answer=answer, **effect)
            printed, left_out = printed + stepped.printed, left_out + stepped.left_out
        self.session = stepped.session
        return stepped.model_copy(update={"printed": printed, "left_out": left_out})


@asynccontextmanager
async def sandbox_in(
    folder: Path, limits: CodeLimits = SHORT, pool: Pool | None = None
) -> AsyncIterator[Sandbox]:
    """A sandbox with its store and its fence in the folder."""
    files = Files(folder / "blobs")
    activities = CodeActivities(Materials(BlobStore(files)), pool or Pool())
    yield Sandbox(activities, files, limits)
    await activities.pool.close()


def kept(text: str, blobs: BlobStore) -> MaterialRef:
    """The reference to a material in the store."""
    data = text.encode()
    return MaterialRef(digest=blobs.put(data), chars=len(text), bytes=len(data))
