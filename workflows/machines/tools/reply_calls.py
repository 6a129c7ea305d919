"""The tool calls of one reply: which are run, and what became of each (spec 2.5). Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workflows.machines.authoring import JsonObject, Message, NativeCall, ToolCall, ToolResult
from workflows.machines.common.json_text import NotJson, call_arguments, clean, is_json, shown_name
from workflows.machines.common.stopping import SeenCall

__all__ = ["NOT_RUN", "CallOutcome", "ReplyCall", "call_outcomes", "reply_calls", "runnable", "until_unknown"]

CUT_OFF = "the reply was cut off at the limit of the model's output (`max_output_tokens`); write less at once"
NOT_RUN = (
    "not run: a call before it failed in a way that stops the rest; ask for it again if it is still wanted"
)


@dataclass(frozen=True, slots=True)
class ReplyCall:
    """One call of a reply, before it is run."""

    native: NativeCall
    arguments: Any
    """As read; the text itself where it cannot be read."""
    refusal: str = ""
    """Why it is not run, for the model; empty: it is."""
    unknown: bool = False
    """It is not run because the run has no such tool."""

    @property
    def seen(self) -> SeenCall:
        """As policies see it."""
        return SeenCall(self.native.name, self.arguments)


def reply_calls(reply: Message, tools: Sequence[str], most: int, *, cut: bool) -> list[ReplyCall]:
    """The calls of a reply, with their arguments read. `tools`: names of the run's tools; `most`: how many of
    them may run; `cut`: the reply ended at the limit of the model's output."""
    found, last = [], len(reply.tool_calls)
    for number, call in enumerate(reply.tool_calls, start=1):
        read = call_arguments(call)
        unknown = number <= most and call.name not in tools
        if number > most:
            refusal = f"not run: a reply may ask for {most} tools at most (`max_calls_per_reply`)"
            refusal += "; ask again for what is still wanted"
        elif unknown:
            refusal = f"there is no tool {shown_name(call.name)}; there are {', '.join(tools)}"
        else:
            refusal = _unread(call, read, cut=cut, last=number == last)
        arguments = call.arguments if isinstance(read, NotJson) else read
        found.append(ReplyCall(call, arguments, refusal, unknown))
    return found


def _unread(call: NativeCall, read: JsonObject | NotJson, *, cut: bool, last: bool) -> str:
    """Why the arguments cannot be used. Where the reply was cut off, its last call has none because they did
    not come."""
    if cut and last and not call.arguments.strip():
        return f"the arguments are missing: {CUT_OFF}"
    if not isinstance(read, NotJson):
        return ""
    return f"{read.problem}; {CUT_OFF}" if cut else read.problem


def until_unknown(calls: Sequence[ReplyCall]) -> Sequence[ReplyCall]:
    """The calls up to the first one of an unknown tool, where that ends the run (R-001-7)."""
    end = next((number for number, call in enumerate(calls, start=1) if call.unknown), len(calls))
    return calls[:end]


def runnable(calls: Sequence[ReplyCall]) -> tuple[ToolCall, ...]:
    """The calls that are run, in order."""
    return tuple(
        ToolCall(id=call.native.id, tool=call.native.name, arguments=call.arguments)
        for call in calls
        if not call.refusal
    )


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """A call and what became of it."""

    call: ReplyCall
    content: str
    """For the model: JSON."""
    fatal: tuple[str, str] | None = None
    """Name and text of the error that ends the run."""

    @property
    def message(self) -> Message:
        """The tool message that answers the call."""
        return Message(role="tool", content=self.content, tool_call_id=self.call.native.id)

    @property
    def seen(self) -> SeenCall:
        """As policies see it."""
        return SeenCall(self.call.native.name, self.call.arguments, self.content)


def call_outcomes(
    calls: Sequence[ReplyCall], results: Sequence[ToolResult], *, unknown_ends: bool
) -> list[CallOutcome]:
    """Each call with its outcome, in order. There are fewer results than runnable calls when the calls behind
    one were not run any more."""
    waiting, done = iter(results), []
    for call in calls:
        if call.refusal:
            fatal = _unknown(call.refusal) if call.unknown and unknown_ends else None
            done.append(CallOutcome(call, _error_json(call.refusal), fatal))
        elif result := next(waiting, None):
            done.append(_returned(call, result, unknown_ends=unknown_ends))
        else:
            done.append(CallOutcome(call, _error_json(NOT_RUN)))
    return done


def _returned(call: ReplyCall, result: ToolResult, *, unknown_ends: bool) -> CallOutcome:
    fatal = None
    if result.error == "unknown_outcome":
        fatal = ("ExecutionError", result.output)
    elif result.error == "unknown_tool" and unknown_ends:
        fatal = _unknown(result.output)
    return CallOutcome(call, _json(result.output) if result.ok else _error_json(result.output), fatal)


def _unknown(problem: str) -> tuple[str, str]:
    return "ToolNotFound", f"{problem}. With `unknown_tool: report` the model would be told instead"


def _json(output: str) -> str:
    """A tool's output as JSON: as it is when it is JSON already, else as a JSON string."""
    return output if is_json(output) else json.dumps(output, ensure_ascii=False)


def _error_json(problem: str) -> str:
    return json.dumps({"error": clean(problem)}, ensure_ascii=False)
