"""The tool calls of a reply: which are run, and what became of each (spec 2.5). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from activities.contracts import JsonObject, ToolResult, ToolRun
from activities.transcript import Message, ToolCall
from workflows.machines.json_text import NotJson
from workflows.machines.native_calls import arguments_of, shown_name
from workflows.machines.stopping import Call
from workflows.machines.tools_context import Context, Options
from workflows.machines.tools_reply import as_json, error_json

__all__ = ["Calls", "Done"]

CUT_OFF = "the reply was cut off at the limit of the model's output (`max_output_tokens`); write less at once"
NOT_RUN = (
    "not run: a call before it failed in a way that stops the rest; ask for it again if it is still wanted"
)


@dataclass(frozen=True, slots=True)
class Done:
    """A call and what became of it."""

    call: ToolCall
    content: str
    """For the model: JSON."""
    fatal: tuple[str, str] | None = None
    """Name and text of the error with which the run ends here."""

    @property
    def message(self) -> Message:
        """The tool message that answers the call."""
        return Message(role="tool", content=self.content, tool_call_id=self.call.id)

    @property
    def seen(self) -> Call:
        """As policies see it."""
        return Call(self.call.name, _given(self.call), self.content)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to become of a call: it is run with these arguments, or it has this problem."""

    call: ToolCall
    arguments: JsonObject | None = None
    problem: str = ""
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Calls:
    """How the knobs say that calls are dealt with."""

    options: Options

    def wanted(self, c: Context) -> list[Call]:
        """The calls before anything is run, as policies see them."""
        return [Call(call.name, _given(call)) for call in c.calls]

    def in_words(self, c: Context) -> str:
        """The reply in one line, for people: what it says, and the calls as they would be written."""
        most = self.options.max_calls_per_reply
        runs = (
            ToolRun(id=call.id, tool=shown_name(call.name), arguments=_named(_given(call)))
            for call in c.calls[:most]
        )
        more = (f"and {len(c.calls) - most} more",) if len(c.calls) > most else ()
        titles = "; ".join([*(run.title for run in runs), *more])
        return f"{c.reply} -> {titles}" if c.reply else titles

    def runs(self, c: Context) -> tuple[ToolRun, ...]:
        """The calls that can be run, in order."""
        return tuple(
            ToolRun(id=one.call.id, tool=one.call.name, arguments=one.arguments)
            for one in self._plans(c)
            if one.arguments is not None
        )

    def done(self, c: Context, results: Sequence[ToolResult]) -> list[Done]:
        """Each call with its outcome, in order, as far as they were dealt with.

        There are fewer results than runs when the calls behind one were not run any more.
        """
        waiting = iter(results)
        done = []
        for one in self._plans(c):
            if one.arguments is None:
                fatal = self._unknown(one.problem) if one.unknown else None
                done.append(Done(one.call, error_json(one.problem), fatal))
            else:
                result = next(waiting, None)
                done.append(self._ran(one.call, result) if result else Done(one.call, error_json(NOT_RUN)))
        return done

    def _plans(self, c: Context) -> Iterator[_Plan]:
        """The calls of the reply; those up to the first unknown tool when that ends the run (R-001-7)."""
        most = self.options.max_calls_per_reply
        for number, call in enumerate(c.calls, start=1):
            if number > most:
                problem = f"not run: a reply may ask for {most} tools at most (`max_calls_per_reply`)"
                yield _Plan(call, problem=f"{problem}; ask again for what is still wanted")
            elif call.name not in c.tools:
                problem = f"there is no tool {shown_name(call.name)}; there are {', '.join(c.tools)}"
                yield _Plan(call, problem=problem, unknown=True)
                if self.options.unknown_tool == "raise":
                    return
            else:
                read = _read(call, cut=c.cut, last=number == len(c.calls))
                if isinstance(read, NotJson):
                    yield _Plan(call, problem=read.problem)
                else:
                    yield _Plan(call, read)

    def _ran(self, call: ToolCall, result: ToolResult) -> Done:
        fatal = None
        if result.error == "unknown_outcome":
            fatal = ("ExecutionError", result.output)
        elif result.error == "unknown_tool":
            fatal = self._unknown(result.output)
        return Done(call, as_json(result.output) if result.ok else error_json(result.output), fatal)

    def _unknown(self, problem: str) -> tuple[str, str] | None:
        """The error of an unknown tool, unless the model is told instead (R-001-7)."""
        if self.options.unknown_tool == "report":
            return None
        return "ToolNotFound", f"{problem}. With `unknown_tool: report` the model would be told instead"


def _read(call: ToolCall, *, cut: bool, last: bool) -> JsonObject | NotJson:
    """The arguments. Where the reply was cut off, its last call has none because they did not come."""
    read = arguments_of(call)
    if cut and last and not call.arguments.strip():
        return NotJson(f"the arguments are missing: {CUT_OFF}")
    if cut and isinstance(read, NotJson):
        return NotJson(f"{read.problem}; {CUT_OFF}")
    return read


def _named(given: Any) -> dict[str, Any]:
    return given if isinstance(given, dict) else {"arguments": given}


def _given(call: ToolCall) -> Any:
    """A call's arguments for policies: as read, or the text that cannot be read."""
    arguments = arguments_of(call)
    return call.arguments if isinstance(arguments, NotJson) else arguments
