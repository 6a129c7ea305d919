"""The tool calls of one reply: which are run, and what became of each (spec 2.5). Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from activities.contracts import JsonObject, Message, NativeCall, ToolCall, ToolResult, call_title
from workflows.machines.common.json_text import NotJson, call_arguments, clean, is_json, shown_name
from workflows.machines.common.stopping import SeenCall

__all__ = ["NOT_RUN", "Done", "ReplyCalls"]

CUT_OFF = "the reply was cut off at the limit of the model's output (`max_output_tokens`); write less at once"
NOT_RUN = (
    "not run: a call before it failed in a way that stops the rest; ask for it again if it is still wanted"
)


@dataclass(frozen=True, slots=True)
class Done:
    """A call and what became of it."""

    call: NativeCall
    content: str
    """For the model: JSON."""
    fatal: tuple[str, str] | None = None
    """Name and text of the error that ends the run."""

    @property
    def message(self) -> Message:
        """The tool message that answers the call."""
        return Message(role="tool", content=self.content, tool_call_id=self.call.id)

    @property
    def seen(self) -> SeenCall:
        """As policies see it."""
        return SeenCall(self.call.name, _given(self.call), self.content)


class _NoTool(NotJson):
    """A call is not run, because the run has no such tool."""


@dataclass(frozen=True, slots=True)
class ReplyCalls:
    """The calls of one reply."""

    reply: Message
    cut: bool
    """The reply ended at the limit of the model's output."""
    tools: tuple[str, ...]
    """Names of the run's tools."""
    most: int
    """Calls that may run."""
    unknown_tool: Literal["raise", "report"]

    def wanted(self) -> list[SeenCall]:
        """The calls before anything is run, as policies see them."""
        return [SeenCall(call.name, _given(call)) for call in self.reply.tool_calls]

    def runs(self) -> tuple[ToolCall, ...]:
        """The calls that can be run, in order."""
        return tuple(
            ToolCall(id=call.id, tool=call.name, arguments=given)
            for call, given in self._read()
            if not isinstance(given, NotJson)
        )

    def done(self, results: Sequence[ToolResult]) -> list[Done]:
        """Each call with its outcome, in order, up to one that ends the run before anything is run.

        There are fewer results than runs when the calls behind one were not run any more.
        """
        waiting, done = iter(results), []
        for call, given in self._read():
            if isinstance(given, NotJson):
                fatal = self._unknown(given.problem) if isinstance(given, _NoTool) else None
                done.append(Done(call, _error_json(given.problem), fatal))
            elif result := next(waiting, None):
                done.append(self._returned(call, result))
            else:
                done.append(Done(call, _error_json(NOT_RUN)))
        return done

    def _read(self) -> Iterator[tuple[NativeCall, JsonObject | NotJson]]:
        """Each call with its arguments, or why it is not run; up to the first unknown tool, where that ends
        the run (R-001-7)."""
        calls = self.reply.tool_calls
        for number, call in enumerate(calls, start=1):
            if number > self.most:
                problem = f"not run: a reply may ask for {self.most} tools at most (`max_calls_per_reply`)"
                yield call, NotJson(f"{problem}; ask again for what is still wanted")
            elif call.name not in self.tools:
                there = ", ".join(self.tools)
                yield call, _NoTool(f"there is no tool {shown_name(call.name)}; there are {there}")
                if self.unknown_tool == "raise":
                    return
            else:
                yield call, _arguments(call, cut=self.cut, last=number == len(calls))

    def _returned(self, call: NativeCall, result: ToolResult) -> Done:
        fatal = None
        if result.error == "unknown_outcome":
            fatal = ("ExecutionError", result.output)
        elif result.error == "unknown_tool":
            fatal = self._unknown(result.output)
        return Done(call, _json(result.output) if result.ok else _error_json(result.output), fatal)

    def _unknown(self, problem: str) -> tuple[str, str] | None:
        if self.unknown_tool == "report":
            return None
        return "ToolNotFound", f"{problem}. With `unknown_tool: report` the model would be told instead"


def _arguments(call: NativeCall, *, cut: bool, last: bool) -> JsonObject | NotJson:
    """The arguments. Where the reply was cut off, its last call has none because they did not come."""
    read = call_arguments(call)
    if cut and last and not call.arguments.strip():
        return NotJson(f"the arguments are missing: {CUT_OFF}")
    if cut and isinstance(read, NotJson):
        return NotJson(f"{read.problem}; {CUT_OFF}")
    return read


def _given(call: NativeCall) -> Any:
    """A call's arguments for policies: as read, or the text that cannot be read."""
    arguments = call_arguments(call)
    return call.arguments if isinstance(arguments, NotJson) else arguments


def _title(call: NativeCall) -> str:
    given = _given(call)
    named = given if isinstance(given, dict) else {"arguments": given}
    return call_title(shown_name(call.name), named)


def _json(output: str) -> str:
    """A tool's output as JSON: as it is when it is JSON already, else as a JSON string."""
    return output if is_json(output) else json.dumps(output, ensure_ascii=False)


def _error_json(problem: str) -> str:
    return json.dumps({"error": clean(problem)}, ensure_ascii=False)
