"""What happens in the two states of the simple machine (spec 4.10). Everything here is pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from activities.contracts import (
    CallModel,
    CallTools,
    EffectFailed,
    JsonObject,
    Message,
    ModelReplied,
    ToolRun,
    ToolsReturned,
)
from workflows.kernel.errors import FatalError, failure_words, kind_words
from workflows.kernel.fields import MERGE, freeze
from workflows.kernel.machine import At, Said
from workflows.machines.decisions import STEP_COMPLETED, TOOL_CALLED, Hook, Policy, Progress
from workflows.machines.declined import declined
from workflows.machines.json_text import NotJson, clean, shown_value, unread
from workflows.machines.simple_context import Context, Options
from workflows.machines.simple_events import Decided, Finished, Forbidden, GoesOn, LimitReached, StepFailed
from workflows.machines.simple_prompt import next_input
from workflows.machines.simple_reply import DECISION_SCHEMA, FINISH, read_decision

__all__ = ["Nodes"]

Changes = dict[str, Any]


def _ended(exit_reason: str, error: str) -> Changes:
    return {"exit_reason": exit_reason, "error": error}


def _audited(given: str, decision: JsonObject | None, result: JsonValue) -> Changes:
    return {"audit": ({"input": given, "decision": decision, "result": result},)}


def _failed(given: str, decision: JsonObject | None, text: str, kind: str) -> tuple[Changes, StepFailed]:
    audited = _audited(given, decision, {"error": text})
    return {**audited, **_ended(kind, text)}, StepFailed(text)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The states, with the knobs, the policy and the hook that they go by."""

    options: Options
    policy: Policy
    input_builder: Hook | None = None

    # -- decide --------------------

    def decide(self, c: Context, at: At) -> Said:
        """One call for one decision; never repeated."""
        if c.iteration >= self.options.max_iterations:
            text = f"Max iterations exceeded: {self.options.max_iterations} are allowed"
            return _ended("max_iterations", text), LimitReached(text)
        held = self.options.reply_format == "json_schema"
        return CallModel(
            transcript=c.transcript,
            response_schema=DECISION_SCHEMA if held else None,
            attempts=1,
            label=f"decide #{c.iteration + 1}",
        )

    def decided(self, c: Context, reply: ModelReplied, at: At) -> Said:
        """Read the decision and ask the policy; a violation leaves the loop."""
        said: Changes = {"transcript": (reply.message,), "iteration": 1}
        read = read_decision(reply.text)
        if isinstance(read, NotJson):
            text = f"the decision cannot be read: {unread(reply, read.problem)}"
            patch, event = _failed(c.given, None, text, "bad_decision")
            return {**said, **patch}, event
        decision = read.to_json()
        if violation := self.policy.violation(read, c.state):
            audited = _audited(c.given, decision, {"error": violation})
            return {**said, **audited, **_ended("policy_violation", violation)}, Forbidden(violation)
        run = ToolRun(id="", tool=read.action or "", arguments=dict(read.params))
        return {**said, "decision": decision}, Decided(run.title)

    def not_asked(self, c: Context, failure: EffectFailed, at: At) -> Said:
        """The model could not be asked; the step counts all the same."""
        patch, event = _failed(c.given, None, failure.message or failure.type, "model_failed")
        return {**patch, "iteration": 1}, event

    # -- act --------------------

    def act(self, c: Context, at: At) -> Said:
        """End the run, or run the one tool."""
        decision: Any = c.decision
        action, params = decision["action"], decision["params"]
        if action == FINISH:
            answer = params.get("answer")
            text = answer if isinstance(answer, str | None) else json.dumps(answer, ensure_ascii=False)
            return self._done(c, {"done": True}, {"answer": text} if text is not None else {}, "finished")
        if action not in c.tools:
            there = ", ".join(c.tools) or "none"
            return _failed(c.given, c.decision, f"Tool not found: {action}; there is {there}", "tool_failure")
        return CallTools(runs=(ToolRun(id=str(c.iteration), tool=action, arguments=params),), attempts=1)

    def acted(self, c: Context, answer: ToolsReturned, at: At) -> Said:
        """Merge what the tool returned into the state; end, or go on with the next input."""
        result = answer.results[0]
        if declined(result):
            return self._without(c, {"error": result.output})
        if not result.ok:
            kind = "unknown_outcome" if result.error == "unknown_outcome" else "tool_failure"
            return _failed(
                c.given, c.decision, result.output or f"{result.tool} failed: {result.error}", kind
            )
        value, marks = shown_value(result.output), (TOOL_CALLED, STEP_COMPLETED, *result.marks)
        kept: Changes = {"marks": marks, "answer": result.output}
        if isinstance(value, dict) and value.get("done") is True:
            return self._done(c, value, kept, "done")
        try:
            return self._next(c, value, kept)
        except FatalError as error:
            # The tool has run: what it returned is kept, whatever a hook of the user's does.
            patch, event = _failed(c.given, c.decision, str(error), "hook_failed")
            return {**kept, "result": value, **patch}, event

    def _without(self, c: Context, value: JsonObject) -> Said:
        """A person did not let the tool run. That is no failure: the step ends without it, the model is
        told, and state, marks and answer stay as they were."""
        try:
            text = self._built_input(c, value)
        except FatalError as error:
            return _failed(c.given, c.decision, str(error), "hook_failed")
        audited = {"result": value, **_audited(c.given, c.decision, value)}
        return {**audited, "given": text, "transcript": (Message(role="user", content=text),)}, GoesOn(text)

    def _next(self, c: Context, value: JsonValue, kept: Changes) -> Said:
        merged = MERGE.fold(c.state, value) if isinstance(value, dict) else c.state
        if self.policy.has_converged(merged, Progress(c.marks).mark(*kept["marks"])):
            return self._done(c, value, kept, "converged")
        text = self._built_input(c, value)
        patch = {**self._step(c, value), **kept, "given": text}
        said = (Message(role="user", content=text),)
        return {**patch, "transcript": said}, GoesOn(kept["answer"])

    def _built_input(self, c: Context, value: JsonValue) -> str:
        if self.input_builder is None:
            return next_input(str((c.decision or {}).get("action")), value)
        try:
            text = self.input_builder(freeze(value), c.iteration)
        except Exception as error:
            raise FatalError(f"the input builder failed: {failure_words(error)}") from error
        if not isinstance(text, str):
            raise FatalError(f"the input builder answered {kind_words(text)}; expected a text")
        return clean(text)

    def _step(self, c: Context, value: JsonValue) -> Changes:
        """The result, the state with it (what is no mapping is left out, spec 4.9), the audit record."""
        merged: Changes = {"state": value} if isinstance(value, dict) else {}
        return {**merged, "result": value, **_audited(c.given, c.decision, value)}

    def _done(self, c: Context, value: JsonValue, more: Changes, reason: str) -> Said:
        return {**self._step(c, value), **more, "exit_reason": reason}, Finished(reason)

    def not_run(self, c: Context, failure: EffectFailed, at: At) -> Said:
        """The tool could not be run at all."""
        kind = "unknown_outcome" if failure.error == "unknown_outcome" else "tool_failure"
        return _failed(c.given, c.decision, failure.message or failure.type, kind)
