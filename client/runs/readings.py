"""What a run's records say, for people: what a model thought, what was called, what came of it.

Every view of a log reads it here, so that each call is shown once, with its result, whatever the machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from activities.contracts.conversation import Message, NativeCall
from activities.contracts.titles import call_title, edited_title
from workflows.kernel.log import EDITED, NO_CALLS, STEERED, LoggedCall, Record

__all__ = ["ShownCall", "RecordReader", "Reading", "is_call", "is_said_by_its_call", "plan_of", "title_of"]


@dataclass(frozen=True, slots=True)
class ShownCall:
    """A call that has ended, or was not made."""

    title: str
    tool: str = ""
    """Its name, of a tool's call."""
    id: str = ""
    """Of its activity, as where it was asked for."""
    arguments: Any = None
    """Of a tool's call."""
    result: str = ""
    error: str | None = None
    """How it failed, in a word."""
    edited_by: str = ""
    """Who gave these arguments in place of the model's."""

    @property
    def heading(self) -> str:
        """The title, and who edited the call."""
        return edited_title(self.title, self.edited_by)

    @property
    def text(self) -> str:
        """What came of it; an error is named."""
        return f"{self.error.replace('_', ' ')}: {self.result}" if self.error else self.result


@dataclass(frozen=True, slots=True)
class Reading:
    """What one record says."""

    thought: str = ""
    """What the model says."""
    asked: tuple[LoggedCall, ...] = ()
    """The calls that come next."""
    calls: tuple[ShownCall, ...] = ()
    words: str = ""
    """What the machine adds."""

    @property
    def plan(self) -> str:
        """The calls that come next, as a person would write them."""
        return plan_of(self.asked)


def plan_of(calls: Sequence[LoggedCall]) -> str:
    """Calls that come next, as a person would write them."""
    return "; ".join(one.title for one in calls)


def is_call(one: LoggedCall) -> bool:
    """It is shown with what came of it."""
    return one.kind not in NO_CALLS or one.error is not None


def is_said_by_its_call(record: Record) -> bool:
    """It tells the model of a call that a person has edited, which the call itself says to people."""
    return record.event == STEERED and EDITED in record.about


class RecordReader:
    """Reads a run's records in order: that a call was not made is said in a later one than the reply that
    asked for it."""

    def __init__(self) -> None:
        self._open: dict[str, NativeCall] = {}
        """Calls of the newest reply that have no result yet, by their id in it."""

    def read(self, record: Record) -> Reading:
        """The next record."""
        calls = tuple(self._calls(record))
        for message in record.messages:
            if message.role == "assistant":
                self._open = {call.id: call for call in message.tool_calls}
        return Reading(record.thought, record.asked, calls, record.why)

    def _calls(self, record: Record) -> Iterator[ShownCall]:
        """The calls that have ended, and those that only a message to the model tells of."""
        messages = {m.tool_call_id: m for m in record.messages if m.role == "tool"}
        for one in filter(is_call, record.answered):
            self._open.pop(one.call, None)
            message = messages.pop(one.call, None) if one.call else None
            whole = _message_text(message)[0] if message is not None and one.is_cut else one.output
            none = "(nothing)" if one.kind == "call_tools" else ""
            yield ShownCall(
                one.title, one.tool, one.id, one.arguments or None, whole or none, one.error, one.edited_by
            )
        for name, message in messages.items():
            if (wrote := self._open.pop(name or "", None)) is not None:
                given = _json(wrote.arguments, wrote.arguments)
                yield ShownCall(title_of(wrote), wrote.name, "", given, *_message_text(message))


def title_of(wrote: NativeCall) -> str:
    """A call as the model wrote it, for people."""
    given = _json(wrote.arguments, wrote.arguments)
    return call_title(wrote.name, given if isinstance(given, dict) else {"arguments": given})


def _message_text(message: Message) -> tuple[str, str | None]:
    """What a message tells the model of a call, in words, and whether that is an error."""
    found = _json(message.content, message.content)
    if isinstance(found, dict) and found.keys() == {"name", "result"}:
        found = found["result"]
    if isinstance(found, dict) and found.keys() - {"name"} == {"error"}:
        return _words(found["error"]), "error"
    if isinstance(found, dict) and found:
        return "\n".join(f"{name}: {_words(value)}" for name, value in found.items()), None
    return _words(found), None


def _words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _json(text: str, otherwise: Any) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    return otherwise
