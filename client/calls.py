"""What a run's records say, for people: what a model thought, what was called, what came of it.

Every view of a log reads it here, so that each call is shown once, with its result, whatever the machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from activities.contracts import Message, ToolCall, call_title
from workflows.kernel.log import Answered, Record

__all__ = ["Call", "Reader", "Told", "is_call"]

NO_CALLS = {"ask_model", "ask_person", "together"}
"""Kinds of effect whose answers the log has elsewhere: as messages, as decisions."""
PLAN = re.compile(r"\s*-> (?=[\w.-]+\()")
"""Between thought and calls in the reason of a machine that reads calls from a reply's text."""
ALIKE = 100
"""Characters of a result; a reason that has them, too, repeats it."""
SHORT = 20
"""Characters of a result that a reason may have by chance."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that has ended, or was not made."""

    title: str
    arguments: Any = None
    """As a model wrote them, where just they were used; None: the title has them."""
    result: str = ""
    error: str | None = None
    """How it failed, in a word."""

    @property
    def name(self) -> str:
        """The tool."""
        return self.title.partition("(")[0]

    @property
    def text(self) -> str:
        """What came of it; an error is named."""
        return f"{self.error.replace('_', ' ')}: {self.result}" if self.error else self.result


@dataclass(frozen=True, slots=True)
class Told:
    """What one record says."""

    replied: bool
    """A model's reply is in it."""
    thought: str = ""
    """What the model says."""
    wants: tuple[str, ...] = ()
    """Titles of the calls that it asks for."""
    calls: tuple[Call, ...] = ()
    words: str = ""
    """What the machine says of it; empty where that is a call's result or the thought."""


def is_call(one: Answered) -> bool:
    """It is shown with what came of it."""
    return one.kind not in NO_CALLS or one.error is not None


class Reader:
    """Reads a run's records in order: what a model asks for in one comes back in another."""

    def __init__(self) -> None:
        self._asked: dict[str, ToolCall] = {}
        """Native calls of models, by id."""
        self._ended: set[str] = set()
        """Ids of calls that were told."""
        self._outputs: list[str] = []
        """What the calls since the newest reply returned."""

    def read(self, record: Record) -> Told:
        """The next record."""
        calls = tuple(self._calls(record))
        reply = next((m for m in (*record.messages, *record.beside) if m.role == "assistant"), None)
        thought, plan = _split(record.reason)
        if reply is None:
            if plan:
                return Told(False, thought, (plan,), calls)
            return Told(False, calls=calls, words="" if _repeats(record) else record.reason)
        self._asked |= {call.id: call for call in reply.tool_calls}
        self._outputs = []
        if not reply.tool_calls and isinstance(_json(reply.content), dict):  # the reason has it in words
            return Told(True, thought, (plan,) if plan else (), calls)
        said = reply.content.strip()
        wants = tuple(_title(call) for call in reply.tool_calls) or ((plan,) if plan else ())
        is_known = bool(reply.tool_calls) or thought.strip() in said
        return Told(True, said, wants, calls, "" if is_known else record.reason)

    def _calls(self, record: Record) -> Iterator[Call]:
        """The calls that have ended, and those that only a message to the model tells of."""
        messages = {m.tool_call_id: m for m in record.messages if m.role == "tool"}
        for one in filter(is_call, record.answered):
            self._ended.add(one.call)
            self._outputs.append(one.output)
            wrote = self._asked.get(one.call)
            given = _arguments(wrote) if wrote and _title(wrote) == one.title else None
            yield Call(one.title, given, _whole(one, messages.get(one.call), record.reason), one.error)
        for name, message in messages.items():
            text, error = _result(message)
            if name not in self._ended and not any(_begins(text, output) for output in self._outputs):
                wrote = self._asked.get(name or "")
                title, given = (_title(wrote), _arguments(wrote)) if wrote else ("tool", None)
                yield Call(title, given, text, error)


def _whole(one: Answered, message: Message | None, reason: str) -> str:
    """A call's result, as much of it as the record has."""
    if message is not None and one.error is None:
        return _result(message)[0]
    if one.output.endswith("…") and _begins(reason, one.output):
        return reason
    return one.output or ("(nothing)" if one.kind == "call_tools" else "")


def _begins(text: str, output: str) -> bool:
    return bool(output) and text.startswith(output.removesuffix("…"))


def _repeats(record: Record) -> bool:
    """The reason is what a call returned."""
    outputs = [one.output for one in record.answered if is_call(one)]
    return any(
        record.reason == output
        or (len(output) >= SHORT and output[:ALIKE].removesuffix("…") in record.reason)
        for output in outputs
    )


def _split(reason: str) -> tuple[str, str]:
    found = PLAN.search(f" {reason}")
    return (reason, "") if found is None else (reason[: max(found.start() - 1, 0)], reason[found.end() - 1 :])


def _json(text: str) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    return None


def _arguments(call: ToolCall) -> Any:
    found = _json(call.arguments)
    return call.arguments if found is None and call.arguments.strip() else found or {}


def _title(call: ToolCall) -> str:
    """A call that a model wrote, as a person would write it."""
    given = _arguments(call)
    return call_title(call.name, given if isinstance(given, Mapping) else {"arguments": given})


def _result(message: Message) -> tuple[str, str | None]:
    """What a message tells the model of a call, and whether that is an error."""
    found = _json(message.content)
    if isinstance(found, dict) and found.keys() == {"name", "result"}:
        found = found["result"]
    if isinstance(found, dict) and found.keys() - {"name"} == {"error"}:
        return _word(found["error"]), "error"
    if isinstance(found, dict) and found:
        return "\n".join(f"{name}: {_word(value)}" for name, value in found.items()), None
    return (message.content if found is None else _word(found)), None


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
