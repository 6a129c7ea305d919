"""What happens in each state of the tools machine (spec 2.5, 2.6). Everything here is pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from activities.contracts import (
    CallModel,
    CallTools,
    EffectFailed,
    ModelReplied,
    ToolResult,
    ToolsReturned,
)
from activities.transcript import Message, Transcript
from workflows.kernel.errors import AgentError
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import At, Said
from workflows.machines.native_calls import with_own_ids
from workflows.machines.stopping import Call, Policies, PolicyContext
from workflows.machines.tools_calls import Calls
from workflows.machines.tools_context import Context, Options, brought
from workflows.machines.tools_events import (
    Failed,
    LLMResponseReceived,
    MaxIterationsReached,
    NoToolCalls,
    PolicyStop,
    ToolCallsFound,
    ToolsExecuted,
)

__all__ = ["Nodes"]

Changes = dict[str, Any]


def _failed(raises: str, text: str) -> tuple[Changes, Failed]:
    return {"finish": "failed", "raises": raises, "error": text}, Failed(text)


def _raised(error: AgentError) -> tuple[Changes, Failed]:
    """What a policy raises leaves the run (R-001-9)."""
    return _failed(type(error).__name__, str(error))


def _stopped(policy: str) -> tuple[Changes, PolicyStop]:
    return {"finish": "policy_stop", "policy": policy}, PolicyStop(f"the policy {policy} stops the run")


@dataclass(frozen=True, slots=True)
class Nodes:
    """The states, with the knobs and the policies they go by."""

    options: Options
    policies: Policies

    @property
    def _calls(self) -> Calls:
        return Calls(self.options)

    # -- INIT --------------------

    def begin(self, c: Context, at: At) -> CallModel:
        """The first model call; no policy is asked before it (2.6)."""
        return self._ask(c, c.transcript, 0)

    def begun(self, c: Context, reply: ModelReplied, at: At) -> Said:
        """The first reply."""
        return _replied(c, reply), LLMResponseReceived(reply.text)

    def _ask(self, c: Context, transcript: Transcript, iteration: int) -> CallModel:
        """The next model call; after the last iteration the model may not use tools any more."""
        forced = iteration >= self.options.max_iterations
        return CallModel(
            transcript=transcript,
            offer=c.tools,
            tool_choice="none" if forced else "auto",
            attempts=self.options.max_model_attempts,
            label="ask for the answer" if forced else f"ask #{iteration + 1}",
        )

    # -- PROMPTING: policies, then tool calls, then the answer --------------------

    def look(self, c: Context, at: At) -> Said:
        """Look at the newest reply. A policy that stops also discards an answer that is there."""
        view = self._view(c, at.ledger, self._calls.wanted(c))
        try:
            policy = self.policies.ask(view)
            if policy is not None:
                return _stopped(policy)
            if c.open_calls:
                return ToolCallsFound(self._calls.in_words(c))
            memory = self.policies.notify(view, c.reply)
        except AgentError as error:
            return _raised(error)
        return {**memory, "finish": "cut_off" if c.cut else "stop"}, NoToolCalls(c.reply)

    def _view(self, c: Context, ledger: Ledger, calls: Sequence[Call]) -> PolicyContext:
        return PolicyContext(
            mode="tools",
            iteration=c.iteration,
            max_iterations=self.options.max_iterations,
            depth=c.depth,
            history=c.transcript.messages,
            last_result=c.last_result,
            calls=calls,
            ledger=ledger,
            memory=c.policy_memory,
        )

    # -- EXECUTING_TOOLS: the calls in order, then the next model call --------------------

    def execute(self, c: Context, at: At) -> Said:
        """Run what can be run. When the results are there (a person spoke after that), go on to ask."""
        if not c.open_calls:
            return self._ask(c, c.transcript, c.iteration)
        runs = self._calls.runs(c)
        if not runs:
            return self._took(c, (), at)
        return CallTools(
            runs=runs, parallel=self.options.parallel_tools, attempts=self.options.max_tool_attempts
        )

    def executed(self, c: Context, answer: ToolsReturned | ModelReplied, at: At) -> Said:
        """Take the results, or the reply that came after them."""
        if isinstance(answer, ToolsReturned):
            return self._took(c, answer.results, at)
        patch = _replied(c, answer)
        if c.iteration < self.options.max_iterations:
            return patch, ToolsExecuted(answer.text)
        ignored = f"; {len(answer.tool_calls)} tool calls in it are ignored" if answer.tool_calls else ""
        cut = "; the answer was cut off" if patch["cut"] else ""
        finish = "cut_off" if cut else "max_iterations"
        ended = {"transcript": patch["transcript"], "finish": finish}
        return ended, MaxIterationsReached(f"{c.iteration} tool turns were used{ignored}{cut}")

    def _took(self, c: Context, results: Sequence[ToolResult], at: At) -> Said:
        """Append one message per call, count the iteration, ask the policies, then the limit."""
        done = self._calls.done(c, results)
        said = tuple(one.message for one in done) + tuple(
            Message(role="user", content=text) for text in c.held
        )
        kept: Changes = {"transcript": said, "open_calls": False, "held": ()}
        fatal = next((one.fatal for one in done if one.fatal), None)
        if fatal:
            patch, failed = _failed(*fatal)
            return {**kept, **patch}, failed
        transcript = c.transcript.add(*said)
        view = replace(
            self._view(c, at.ledger, [one.seen for one in done]),
            history=transcript.messages,
            last_result=brought(transcript.messages),
        )
        kept["iteration"] = 1
        try:
            memory = self.policies.notify(view, view.last_result)
            kept.update(memory)
            after = replace(view.remembering(memory), iteration=c.iteration + 1)
            policy = self.policies.ask(after)
        except AgentError as error:
            patch, failed = _raised(error)
            return {**kept, **patch}, failed
        if policy is not None:
            patch, stop = _stopped(policy)
            return {**kept, **patch}, stop
        return kept, self._ask(c, transcript, c.iteration + 1)

    # -- failures --------------------

    def fail(self, c: Context, failure: EffectFailed, at: At) -> tuple[Changes, Failed]:
        """An effect that could not be performed leaves the run (2.7); nothing is tried again."""
        raises = "ExecutionError" if c.open_calls else "ModelError"
        return _failed(raises, f"{failure.type}: {failure.message}")


def _replied(c: Context, reply: ModelReplied) -> Changes:
    message = with_own_ids(reply.message, len(c.transcript))
    cut = reply.finish_reason == "length"
    return {"transcript": (message,), "open_calls": bool(message.tool_calls), "cut": cut}
