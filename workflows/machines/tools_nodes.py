"""What happens in each state of the tools machine (spec 2.5, 2.6). Everything here is pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from activities.contracts import (
    CallModel,
    CallTools,
    EffectFailed,
    ModelReplied,
    ToolResult,
    ToolRun,
    ToolsReturned,
)
from activities.transcript import Message, ToolCall, Transcript
from workflows.kernel.errors import AgentError
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import At, Said
from workflows.machines.stopping import Call, Policies, PolicyContext
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
from workflows.machines.tools_reply import BadArguments, as_json, error_json, read_arguments

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
class _Done:
    """A call and what became of it."""

    call: ToolCall
    content: str
    """For the model: JSON."""
    fatal: tuple[str, str] | None = None
    """Name and text of the error with which the run ends here."""

    @property
    def message(self) -> Message:
        return Message(role="tool", content=self.content, tool_call_id=self.call.id)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The states, with the knobs and the policies they go by."""

    options: Options
    policies: Policies

    # -- INIT --------------------

    def begin(self, c: Context, at: At) -> CallModel:
        """The first model call; no policy is asked before it (2.6)."""
        return self._ask(c, c.transcript, 0)

    def begun(self, c: Context, reply: ModelReplied, at: At) -> Said:
        """The first reply."""
        return _replied(reply), LLMResponseReceived(reply.text)

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
        view = self._view(c, at.ledger, [Call(call.name, _given(call)) for call in c.calls])
        try:
            policy = self.policies.ask(view)
            if policy is not None:
                return _stopped(policy)
            if c.open_calls:
                return ToolCallsFound(_wanted(c))
            memory = self.policies.notify(view, c.reply)
        except AgentError as error:
            return _raised(error)
        return {**memory, "finish": "stop"}, NoToolCalls(c.reply)

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
        runs = tuple(
            ToolRun(id=call.id, tool=call.name, arguments=arguments)
            for call in self._before_unknown(c)
            if call.name in c.tools and isinstance(arguments := read_arguments(call.arguments), dict)
        )
        if not runs:
            return self._took(c, (), at)
        return CallTools(
            runs=runs, parallel=self.options.parallel_tools, attempts=self.options.max_tool_attempts
        )

    def executed(self, c: Context, answer: ToolsReturned | ModelReplied, at: At) -> Said:
        """Take the results, or the reply that came after them."""
        if isinstance(answer, ToolsReturned):
            return self._took(c, answer.results, at)
        patch = _replied(answer)
        if c.iteration < self.options.max_iterations:
            return patch, ToolsExecuted(answer.text)
        ignored = f"; {len(answer.tool_calls)} tool calls in it are ignored" if answer.tool_calls else ""
        ended = {"transcript": patch["transcript"], "finish": "max_iterations"}
        return ended, MaxIterationsReached(f"{c.iteration} tool turns were used{ignored}")

    def _before_unknown(self, c: Context) -> Iterator[ToolCall]:
        """The calls of the reply; those before the first unknown tool when that ends the run (R-001-7)."""
        for call in c.calls:
            if call.name not in c.tools and self.options.unknown_tool == "raise":
                return
            yield call

    def _took(self, c: Context, results: Sequence[ToolResult], at: At) -> Said:
        """Append one message per call, count the iteration, ask the policies, then the limit."""
        done = list(self._done(c, iter(results)))
        said = tuple(one.message for one in done) + tuple(
            Message(role="user", content=text) for text in c.held
        )
        kept: Changes = {"transcript": said, "open_calls": False, "held": ()}
        fatal = next((one.fatal for one in done if one.fatal), None)
        if fatal:
            patch, failed = _failed(*fatal)
            return {**kept, **patch}, failed
        transcript = c.transcript.add(*said)
        calls = [Call(one.call.name, _given(one.call), one.content) for one in done]
        view = replace(
            self._view(c, at.ledger, calls),
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

    def _done(self, c: Context, results: Iterator[ToolResult]) -> Iterator[_Done]:
        """Each call with its outcome, in order, as far as they were dealt with."""
        for call in c.calls:
            if call.name not in c.tools:
                problem = f"there is no tool {call.name}; there are {', '.join(c.tools)}"
                yield _Done(call, error_json(problem), self._unknown(problem))
                if self.options.unknown_tool == "raise":
                    return
                continue
            arguments = read_arguments(call.arguments)
            if isinstance(arguments, BadArguments):
                yield _Done(call, error_json(arguments.problem))
                continue
            result = next(results, None)
            # There are fewer results than calls when one was cut off and nobody knows what it did.
            yield self._ran(call, result) if result else _Done(call, error_json("it was not run"))

    def _ran(self, call: ToolCall, result: ToolResult) -> _Done:
        fatal = None
        if result.error == "unknown_outcome":
            fatal = ("ExecutionError", result.output)
        elif result.error == "unknown_tool":
            fatal = self._unknown(result.output)
        return _Done(call, as_json(result.output) if result.ok else error_json(result.output), fatal)

    def _unknown(self, problem: str) -> tuple[str, str] | None:
        """The error of an unknown tool, unless the model is told instead (R-001-7)."""
        if self.options.unknown_tool == "report":
            return None
        return "ToolNotFound", f"{problem}. With `unknown_tool: report` the model would be told instead"

    # -- failures --------------------

    def fail(self, c: Context, failure: EffectFailed, at: At) -> tuple[Changes, Failed]:
        """An effect that could not be performed leaves the run (2.7); nothing is tried again."""
        raises = "ExecutionError" if c.open_calls else "ModelError"
        return _failed(raises, f"{failure.type}: {failure.message}")


def _replied(reply: ModelReplied) -> Changes:
    return {"transcript": (reply.message,), "open_calls": bool(reply.tool_calls)}


def _wanted(c: Context) -> str:
    """The reply in one line, for people: what it says, and the calls as they would be written."""
    runs = (ToolRun(id=call.id, tool=call.name, arguments=_named(_given(call))) for call in c.calls)
    titles = "; ".join(run.title for run in runs)
    return f"{c.reply} -> {titles}" if c.reply else titles


def _named(given: Any) -> dict[str, Any]:
    return given if isinstance(given, dict) else {"arguments": given}


def _given(call: ToolCall) -> Any:
    """A call's arguments for policies: as read, or the text that cannot be read."""
    arguments = read_arguments(call.arguments)
    return call.arguments if isinstance(arguments, BadArguments) else arguments
