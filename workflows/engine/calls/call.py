"""One call of the pending effect: asked about, made once, and made again where that is right.

Its kinds: `model_call.py`, `tool_call.py`, `inner_run.py`, and the two below. `effect_calls.py` has those
of one effect together.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from activities.contracts import ToolResult
from workflows.engine.calls.call_site import repeated_id
from workflows.engine.calls.records import AnswerRecord, ToolCallRecord
from workflows.engine.calls.run_calls import RunCalls

__all__ = ["Call", "PersonsAnswer", "SandboxCall"]

R = TypeVar("R", AnswerRecord, ToolCallRecord)


class Call(Generic[R]):
    """What all kinds have in common."""

    kind: type[R]
    """Of its record."""

    def __init__(self, calls: RunCalls, name: str, wanted: Any) -> None:
        """`name`: its activity id when it is made for the first time; `wanted`: what the machine wants."""
        self.calls, self.run, self.name, self.wanted = calls, calls.run, name, wanted
        self.record: R = calls.pending.record(name, self.kind)

    @property
    def effect(self) -> Any:
        """What is performed."""
        return self.wanted

    async def perform(self) -> Any:
        """Make it: its answer."""
        raise NotImplementedError

    async def make(self) -> Any:
        """Its answer; it is made unless it has ended."""
        if self.record.answer is None:
            self.calls.pending.end(self.name, await self.calls.under_way.when_free(self.perform()))
        return self.record.answer

    def make_again(self) -> None:
        """Forget what it brought, not what it cost; it gets an activity id and a key of its own."""
        answer = self.record.answer
        if answer is not None and not isinstance(answer, ToolResult):
            self.run.charge(answer.cost)
        self.record.answer = None
        self.record.again += 1

    @property
    def activity_id(self) -> str:
        """Of the newest time that it is made."""
        return repeated_id(self.name, self.record.again)


class SandboxCall(Call[AnswerRecord]):
    """A block of code, or texts that are read."""

    kind = AnswerRecord

    async def perform(self) -> Any:
        """Make it."""
        site = self.calls.site(self.activity_id, self.effect.title)
        words = "running code" if self.effect.kind == "run_code" else "reading artifacts"
        with self.calls.under_way.shown(words):
            return await self.run.host.perform(self.effect, site)


class PersonsAnswer(Call[AnswerRecord]):
    """A question to people beside other calls: it comes before those."""

    kind = AnswerRecord

    async def ask(self) -> None:
        """Ask, unless it is answered. Raises Preempted and RunEnds."""
        if self.record.answer is None:
            self.calls.pending.end(self.name, await self.calls.ask_people(self.wanted, self.name))
