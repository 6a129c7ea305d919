"""What is known of the calls of the pending effect until the machine has its answer: one record per call.

Carried to a new execution. So performing an effect can be stopped anywhere and begun again: a call that has
ended is never made again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field

from activities.contracts import (
    Effect,
    JsonObject,
    LabelSource,
    Message,
    SingleAnswer,
    ToolResult,
    added,
    cost_of_tools,
)
from workflows.gate.approvals import RequiredApproval
from workflows.gate.texts import edit_note
from workflows.kernel.activity_ids import tool_calls
from workflows.kernel.labels import NOT_MADE

__all__ = ["NOT_MADE", "AnswerRecord", "PendingEffect", "StoppedRun", "ToolCallRecord"]

R = TypeVar("R", bound=BaseModel)


class AnswerRecord(BaseModel):
    """Of all but tool calls: questions to models and people, inner runs, code, texts that are read."""

    kind: Literal["answer"] = "answer"
    answer: SingleAnswer | None = None
    again: int = 0
    """How often it is made again: a person said so or changed it, it is sent otherwise, or time was over."""


class ToolCallRecord(BaseModel):
    """Of a tool call."""

    kind: Literal["tool_call"] = "tool_call"
    answer: ToolResult | None = None
    """It has ended, or is not to be made."""
    request: str = ""
    """The request for its approval."""
    passed: bool = False
    """An earlier approval lets it pass."""
    policy: RequiredApproval | None = None
    """Whom the policy would ask, of a call that passes by an earlier approval or within a bound."""
    arguments: JsonObject | None = None
    """Those that a person gave instead of the model's."""
    edited_by: str = ""
    """Who gave them."""
    void: list[float] = Field(default_factory=list)
    """When workers tried to note the beginning of a call that was not begun (`NotBegun.at`)."""
    not_before: float | None = None
    """When a lost call is surely over, in seconds since 1970: before, it is not made again."""
    reconciled: bool = False
    """Its tool has looked for the outcome."""
    again: int = 0
    """How often it is made again, because it did not take effect."""


class StoppedRun(BaseModel):
    """An inner run that a command stopped."""

    text: str
    """What it said."""
    brought: tuple[LabelSource, ...] = ()
    """Its labels."""


class PendingEffect(BaseModel):
    """The calls of the pending effect."""

    calls: dict[str, Annotated[AnswerRecord | ToolCallRecord, Field(discriminator="kind")]] = Field(
        default_factory=dict
    )
    """By activity id; those that have ended in the order of their ends."""
    children_stopped: list[StoppedRun] = Field(default_factory=list)
    """Inner runs that a command stopped."""

    def record(self, name: str, kind: type[R]) -> R:
        """Of the call with this activity id."""
        found: Any = self.calls.setdefault(name, kind())  # type: ignore[arg-type]  # one of the two
        assert isinstance(found, kind), name
        return found

    def end(self, name: str, answer: Any) -> None:
        """A call has ended with this answer."""
        record = self.calls.pop(name)
        record.answer = answer
        self.calls[name] = record

    @property
    def results(self) -> dict[str, ToolResult]:
        """Of tool calls that have ended, or are not to be made, by activity id. An activity's thread may look
        at them, too."""
        return {
            name: one.answer for name, one in tuple(self.calls.items()) if isinstance(one.answer, ToolResult)
        }

    @property
    def made(self) -> dict[str, ToolResult]:
        """Of tool calls that were made."""
        return {name: result for name, result in self.results.items() if result.error not in NOT_MADE}

    @property
    def spent(self) -> dict[str, float]:
        """What the calls have spent that have ended; the ledger gets it with the answer."""
        tools = cost_of_tools(*((result.tool, result.cost_usd) for result in self.results.values()))
        others = [one.answer for one in self.calls.values() if not isinstance(one, ToolCallRecord)]
        return added(tools, *(answer.cost for answer in others if answer is not None))

    @property
    def unknown_outcomes(self) -> list[str]:
        """Tool calls whose outcome is unknown, in words."""
        return [f"{r.tool} at {name}" for name, r in self.results.items() if r.error == "unknown_outcome"]

    def edit_notes(self, effect: Effect[Any], place: str, results: Mapping[str, ToolResult]) -> list[Message]:
        """What the model hears beside these results: which calls a person has changed. `effect` has the
        calls as they were made."""
        edited = {
            name
            for name, one in tuple(self.calls.items())
            if isinstance(one, ToolCallRecord) and one.arguments is not None
        }
        return [
            Message(role="user", content=edit_note(call), from_run=True)
            for name, call in tool_calls(effect, place).items()
            if name in edited and name in results and results[name].error not in NOT_MADE
        ]
