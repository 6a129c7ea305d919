"""OBSERVE: the only place where tools run, one call at a time, in order (spec 4.3, 4.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from activities.contracts import CallTools, EffectFailed, JsonObject, ToolCall, ToolRun, ToolsReturned
from workflows.kernel.machine import At, Said
from workflows.machines.decisions import STEP_COMPLETED, TOOL_CALLED, Decision, Policy
from workflows.machines.declined import declined
from workflows.machines.json_text import CUT, NotJson, read_arguments, shown_value
from workflows.machines.planner_context import Context, Options
from workflows.machines.planner_events import Observed
from workflows.machines.planner_prompt import tool_message

__all__ = ["Observer"]

Changes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Problem:
    """A call that was not run, or failed."""

    kind: str
    """The exit reason, where it halts the run."""
    halts: str
    """Why the run halts, where it does."""
    error: str
    """What is recorded where it does not."""


def _failure(name: str, text: str, kind: str = "tool_failure") -> _Problem:
    return _Problem(kind, f"Tool failure: {name}: {text}", text)


@dataclass(frozen=True, slots=True)
class Observer:
    """The state OBSERVE, with the knobs and the policy that it goes by."""

    options: Options
    policy: Policy

    def observe(self, c: Context, at: At) -> Said:
        """Begin with the first call that is not done yet."""
        return self._from(c, [])

    def observed(self, c: Context, answer: ToolsReturned, at: At) -> Said:
        """Record what the tool returned; go on with the next call, or halt."""
        result, call = answer.results[0], c.pending[c.handled]
        if result.ok:
            marks = (TOOL_CALLED, STEP_COMPLETED, *result.marks)
            return self._from(c, [_record(call, result=shown_value(result.output))], marks)
        if declined(result):
            # Neither the tool failed nor a policy forbids it: the model is told, whatever the knobs say.
            return self._from(c, [_record(call, error=result.output)])
        kind = "unknown_outcome" if result.error == "unknown_outcome" else "tool_failure"
        return self._met(c, call, _failure(call.name, result.output or result.error or "", kind))

    def failed(self, c: Context, failure: EffectFailed, at: At) -> Said:
        """The tool could not be run at all: the same as a tool that raises."""
        call = c.pending[c.handled]
        kind = "unknown_outcome" if failure.error == "unknown_outcome" else "tool_failure"
        return self._met(c, call, _failure(call.name, failure.message or failure.type, kind))

    def _met(self, c: Context, call: ToolCall, problem: _Problem) -> Said:
        if self._halts(problem):
            return _halted(c, [], problem)
        return self._from(c, [_record(call, error=problem.error)])

    def _from(self, c: Context, records: list[JsonObject], marks: tuple[str, ...] = ()) -> Said:
        """The next call that may be run, behind the records that were just made; or the way out."""
        marked: Changes = {"marks": marks} if marks else {}
        for call in c.pending[c.handled + len(records) :]:
            looked = self._look(c, call, records)
            if isinstance(looked, ToolRun):
                return {**_kept(records), **marked}, CallTools(runs=(looked,), attempts=1)
            if self._halts(looked):
                patch, event = _halted(c, records, looked)
                return {**patch, **marked}, event
            records.append(_record(call, error=looked.error))
        done = Observed(f"Tools executed: {len(c.pending)}")
        return {**_kept(records, c), **marked}, done

    def _look(self, c: Context, call: ToolCall, records: Sequence[JsonObject]) -> ToolRun | _Problem:
        """Parse the arguments, ask the policy, find the tool: in this order (spec 4.3)."""
        arguments = read_arguments(call.arguments)
        if isinstance(arguments, NotJson):
            came = f"{call.arguments[:200]!r} for {call.name}: {arguments.problem}"
            text = f"Invalid tool call arguments {came}{f'; {CUT}' if c.reply_cut else ''}"
            return _Problem("invalid_arguments", text, text)
        state = {**c.shared, "observations": [*c.observations, *records]}
        if violation := self.policy.violation(Decision(call.name, arguments), state):
            text = f"Policy violation: {violation}"
            return _Problem("policy_violation", text, text)
        if call.name not in c.tools:
            return _failure(call.name, f"Unknown tool: {call.name}")
        return ToolRun(id=call.id, tool=call.name, arguments=arguments)

    def _halts(self, problem: _Problem) -> bool:
        """Unreadable arguments and a tool whose outcome nobody knows always do (4.4)."""
        modes = {
            "tool_failure": self.options.on_tool_error,
            "policy_violation": self.options.on_policy_violation,
        }
        return modes.get(problem.kind, "halt") == "halt"


def _record(call: ToolCall, **outcome: Any) -> JsonObject:
    return {"tool_call_id": call.id, "name": call.name, **outcome}


def _kept(records: Sequence[JsonObject], done: Context | None = None) -> Changes:
    """The patch that keeps records; with `done`, what a person said meanwhile comes behind them."""
    said = (*map(tool_message, records), *(done.steered if done else ()))
    changes: Changes = {"observations": tuple(records), "transcript": said, "handled": len(records)}
    return {name: delta for name, delta in changes.items() if delta}


def _halted(c: Context, records: Sequence[JsonObject], problem: _Problem) -> tuple[Changes, Observed]:
    """The halt is asked for here and decided in LOOP_CHECK (R-003-4); earlier results are kept."""
    asked = {"exit_reason": problem.kind, "error": problem.halts}
    return {**_kept(records, c), **asked}, Observed(problem.halts)
