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
from workflows.kernel.log import LEFT_OUT, EffectSummary, Record

__all__ = ["Call", "Reader", "Reading", "is_call"]

NO_CALLS = {"ask_model", "ask_person", "together"}
"""Kinds of effect whose answers the log has elsewhere: as messages, as decisions."""
PLAN = re.compile(r"\s*-> (?=[\w.-]+\(|finish\Z)")
"""Between thought and calls in the reason of a machine that reads calls from a reply's text."""


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
class Reading:
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


def is_call(one: EffectSummary) -> bool:
    """It is shown with what came of it."""
    return one.kind not in NO_CALLS or one.error is not None


class Reader:
    """Reads a run's records in order: what a model asks for in one comes back in another."""

    def __init__(self) -> None:
        self._asked: dict[str, ToolCall] = {}
        """Native calls of models, by id."""
        self._ended: set[str] = set()
        """Ids of the calls since the newest reply."""
        self._outputs: list[str] = []
        """What the calls since the newest reply returned."""
        self._newest: Reading | None = None
        """What the newest reply said, until calls come back."""

    def read(self, record: Record) -> Reading:
        """The next record."""
        calls = tuple(self._calls(record))
        reply = next((m for m in (*record.messages, *record.beside) if m.role == "assistant"), None)
        if reply is not None or any(one.kind == "ask_model" for one in record.answered):
            self._newest = self._reply(record, reply, calls)
            return self._newest
        # a tool may return what looks like a plan: a plan is believed right behind its reply only
        thought, plan = _split(record.reason)
        newest, self._newest = self._newest, None if calls else self._newest
        if newest is None or calls or not plan:
            return Reading(False, calls=calls, words="" if _repeats(record) else record.reason)
        if newest.thought or newest.wants:
            is_known = thought.strip() in newest.thought and all(title in plan for title in newest.wants)
            return Reading(False, words="" if is_known else record.reason)
        return Reading(False, thought, (plan,))

    def _reply(self, record: Record, reply: Message | None, calls: tuple[Call, ...]) -> Reading:
        """What a record with a model's reply says."""
        thought, plan = _split(record.reason)
        wants: tuple[str, ...] = (plan,) if plan else ()
        if reply is None:
            return (
                Reading(False, thought, wants, calls) if plan else Reading(False, calls=calls, words=thought)
            )
        self._asked |= {call.id: call for call in reply.tool_calls}
        self._ended, self._outputs = set(), []
        if not reply.tool_calls and isinstance(_json(reply.content), dict):  # the reason has it in words
            return Reading(True, thought, wants, calls)
        said = reply.content.strip()
        is_known = bool(reply.tool_calls) or thought.strip() in said
        wants = tuple(_title(call) for call in reply.tool_calls) or wants
        return Reading(True, said, wants, calls, "" if is_known else record.reason)

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
            if name not in self._ended and not any(_is(text, output) for output in self._outputs):
                wrote = self._asked.get(name or "")
                title, given = (_title(wrote), _arguments(wrote)) if wrote else ("tool", None)
                yield Call(title, given, text, error)


def _whole(one: EffectSummary, message: Message | None, reason: str) -> str:
    """A call's result, as much of it as the record has."""
    if message is not None and (one.error is None or one.output == LEFT_OUT):
        return _result(message)[0]
    if one.output.endswith("…") and _is(reason, one.output):
        return reason
    return one.output or ("(nothing)" if one.kind == "call_tools" else "")


def _is(text: str, output: str) -> bool:
    """Whether the text is what a call returned. The log may hold only the beginning of an output."""
    return bool(text) and (text == output or (output.endswith("…") and text.startswith(output[:-1])))


def _repeats(record: Record) -> bool:
    """The reason is what a call returned."""
    return any(_is(record.reason, one.output) for one in record.answered if is_call(one))


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
