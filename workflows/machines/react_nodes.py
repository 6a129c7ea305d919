"""The nodes of the ReAct machine (spec 1.5): what happens in each state. Everything here is pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from activities.contracts import (
    AskPerson,
    CallModel,
    CallTools,
    EffectFailed,
    ErrorClass,
    ModelReplied,
    PersonDecided,
    ToolResult,
    ToolRun,
    ToolsReturned,
)
from activities.transcript import Message, Transcript
from workflows.kernel.errors import AgentError, FatalError
from workflows.kernel.machine import At, Said
from workflows.kernel.rules import Rule, judge
from workflows.kernel.stops import Stop, first_stop
from workflows.machines.react_context import Context, Options, ReasoningStep, S
from workflows.machines.react_events import (
    Aborted,
    Accepted,
    Acted,
    CostLimitExceeded,
    Drafted,
    Flagged,
    GoalAchieved,
    NobodyToAsk,
    NodeFailed,
    Observed,
    Rejected,
    Resumed,
    RetriesExhausted,
    RuleBroken,
    StepLimitReached,
    StepTaken,
)
from workflows.machines.react_prompt import ReplyFormat, format_reminder, observed, retry_reminder
from workflows.machines.react_reply import FINISH, BadReply, Thought

__all__ = ["Nodes"]

Changes = dict[str, Any]


def _newest(c: Context, **changes: Any) -> Changes:
    """The delta that completes the newest step."""
    step = c.steps[-1]
    return {"steps": {step.id: step.model_copy(update=changes)}}


def _noted(**metadata: Any) -> Changes:
    """A delta of the metadata; nothing at all where there is nothing to note."""
    return {"metadata": metadata} if metadata else {}


def _ended(reason: str, **metadata: Any) -> Changes:
    return {"metadata": {"exit_reason": reason, **metadata}, "terminated": True}


def _failed(text: str, **metadata: Any) -> tuple[Changes, NodeFailed]:
    return _ended("fatal_error", fatal_error=text, **metadata), NodeFailed(reason=text)


def _nobody(why: str) -> tuple[Changes, NobodyToAsk]:
    return _ended("retries_exhausted"), NobodyToAsk(reason=why)


def _spent(c: Context, usd: float) -> Changes:
    """Metadata with a cost added (R-000-12); rounded, so that sums do not differ by a hair."""
    return {"total_cost": round(c.total_cost + usd, 9)} if usd else {}


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes, with the knobs, rules and reply format they go by."""

    options: Options
    rules: tuple[Rule, ...]
    format: ReplyFormat

    # -- thought: prompt, cache, call, parse, check, append --------------------

    def think(self, c: Context, at: At) -> Said:
        """Build the prompt; answer from the run's cache, or ask the model."""
        reminder = self._reminder(c)
        transcript = c.transcript.add(*reminder)
        known = c.cache.get(transcript.digest)
        read = None if known is None else self._read(known)
        if known is not None and isinstance(read, Thought):
            patch, event = self._draft(c, at, read, len(transcript))
            reply = Message(role="assistant", content=known)
            return {**patch, "transcript": (*reminder, reply)}, event
        asked = self._call(c, transcript)
        return ({"transcript": reminder}, asked) if reminder else asked

    def _reminder(self, c: Context) -> tuple[Message, ...]:
        """The retry reason (R-000-6), once, also when the state is entered again."""
        reason = c.metadata.get("retry_reason")
        if not reason:
            return ()
        reminder = retry_reminder(str(reason))
        unanswered = takewhile(lambda message: not self._is_thought(message), reversed(c.transcript.messages))
        return () if reminder in unanswered else (reminder,)

    def _is_thought(self, message: Message) -> bool:
        """Said by the model, and not in a bad format, which is asked for again."""
        if message.role != "assistant":
            return False
        try:
            return isinstance(self._read(message.content), Thought)
        except AgentError:
            return True

    def _call(self, c: Context, transcript: Transcript) -> CallModel:
        wanted = self.options.reply_format == "json_schema" and self.format.schema
        return CallModel(
            transcript=transcript,
            response_schema=wanted(c.tools) if wanted else None,
            attempts=self.options.max_model_attempts,
            label=f"think #{len(c.steps) + 1}",
        )

    def _read(self, text: str) -> Thought | BadReply:
        """The parser's verdict; whatever a parser of users' raises goes through the error wrapper."""
        try:
            return self.format.read(text)
        except AgentError:
            raise
        except Exception as error:
            raise FatalError(f"the reply parser failed: {type(error).__name__}: {error}") from error

    def thought(self, c: Context, reply: ModelReplied, at: At) -> Said:
        """Read the reply; a bad format is asked for again, a good one becomes a draft."""
        said: tuple[Message, ...] = (reply.message,)
        cost = _spent(c, reply.cost_usd)
        try:
            read = self._read(reply.text)
        except AgentError as error:
            patch, event = self._raised(c, error, at)
            metadata = {**patch.get("metadata", {}), **cost}
            return {**patch, **_noted(**metadata), "transcript": said}, event
        if isinstance(read, Thought):
            patch, event = self._draft(c, at, read, len(c.transcript))
            cached = {c.transcript.digest: reply.text}
            return {**patch, **_noted(**cost), "transcript": said, "cache": cached}, event
        cut = reply.finish_reason == "length"
        problem = (
            f"{read.problem} (it was cut at its length limit, `max_output_tokens`)" if cut else read.problem
        )
        if at.call >= self.options.max_format_attempts:
            failed, ended = _failed(f"invalid format: {problem}", **cost)
            return {**failed, "transcript": said}, ended
        said = (*said, format_reminder(problem, self.format.text(c.tools)))
        return {**_noted(**cost), "transcript": said}, self._call(c, c.transcript.add(*said))

    def _raised(self, c: Context, error: AgentError, at: At) -> tuple[Changes, object]:
        kind: ErrorClass = "fatal" if isinstance(error, FatalError) else "recoverable"
        failure = EffectFailed(error=kind, type=type(error).__name__, message=str(error))
        if kind == "fatal":
            return self.halt(c, failure, at)
        return _unthought(c, failure, at, len(c.transcript) + 1)

    def _draft(self, c: Context, at: At, read: Thought, before: int) -> tuple[Changes, Drafted]:
        """The step that a reply makes; `before`: so many messages were said before the reply."""
        step = ReasoningStep(
            id=len(c.steps),
            thought=read.text,
            action=read.action,
            action_input=read.action_input,
            timestamp=at.now,
            messages=before + 1,
        )
        run = ToolRun(id="", tool=read.action, arguments=read.action_input) if read.action else None
        title = f" -> {run.title}" if run else ""
        return {"steps": {step.id: step}}, Drafted(reason=read.text + title)

    # -- validate --------------------

    def validate(self, c: Context, at: At) -> Said:
        """Run the rule engine over the newest step."""
        cleared: Changes = {"retry_reason": None} if c.metadata.get("retry_reason") else {}
        if c.steps[-1].closed:
            return _noted(**cleared), Accepted(reason="the step had failed; there is nothing to check")
        verdict = judge(self.rules, c.steps[-1], c)
        if verdict.ok:
            return {**_newest(c, status="validated"), **_noted(**cleared)}, Accepted()
        failed, text = _newest(c, status="failed"), verdict.text
        if verdict.terminal:
            return {**failed, **_ended("rule_violation", rule_violation=text)}, RuleBroken(text)
        count = c.retry_count + 1
        exhausted = count > self.options.max_retries_before_human
        event = RetriesExhausted(text) if exhausted else Rejected(text)
        return {**failed, **_noted(retry_count=count, retry_reason=text)}, event

    # -- action: find the tool, run it --------------------

    def act(self, c: Context, at: At) -> Said:
        """Run the tool that the step asks for, if it asks for one."""
        step = c.steps[-1]
        if step.closed or step.action is None:
            return Acted(reason="no action")
        if step.action in c.tools:
            run = ToolRun(id=str(step.id), tool=step.action, arguments=step.action_input)
            return CallTools(runs=(run,), attempts=self.options.max_tool_attempts)
        if step.action == FINISH:
            return Acted(reason="no action")
        text = f"Unknown tool: {step.action}"
        return _newest(c, observation=text, status="failed"), Acted(reason=text)

    def acted(self, c: Context, answer: ToolsReturned, at: At) -> Said:
        """Record what the tool returned, or its error in words."""
        result: ToolResult = answer.results[0]
        metadata = _spent(c, result.cost_usd)
        if result.error == "unknown_outcome":
            return _failed(result.output, **metadata)
        if result.ok:
            metadata["tool_history"] = [result.tool]
        status = "executed" if result.ok else "failed"
        newest = _newest(c, observation=result.output, whole=result.whole, status=status)
        return {**newest, **_noted(**metadata)}, Acted(reason=result.output)

    # -- observation, commit --------------------

    def observe(self, c: Context, at: At) -> Said:
        """Put the outcome where the next thought will see it. No model, no tool."""
        step = c.steps[-1]
        if step.observation is None and c.answer is not None:
            return Observed()
        return {"transcript": (observed(step.observation),)}, Observed()

    def commit(self, c: Context, at: At) -> Said:
        """Close the step and decide whether the run ends (1.3, in this order)."""
        closed: Changes = {} if c.steps[-1].closed else _newest(c, status="committed")
        reason = first_stop(self._stops(), c, at)
        if reason is None:
            return closed, StepTaken(reason=f"step {len(c.steps)} is done")
        if reason == "retries_exhausted":
            return closed, RetriesExhausted(reason=f"{c.retry_count} thoughts were rejected")
        return {**closed, **_ended(reason)}, _end(c, reason)

    def _stops(self) -> tuple[Stop, ...]:
        knobs = self.options
        return (
            Stop("goal_achieved", lambda c, at: c.answer is not None),
            Stop("max_steps", lambda c, at: len(c.steps) >= knobs.max_steps),
            Stop("flagged", lambda c, at: c.terminated),
            Stop("cost_limit", lambda c, at: c.total_cost > knobs.cost_limit),
            Stop("retries_exhausted", lambda c, at: c.retry_count > knobs.max_retries_before_human),
        )

    # -- human approval --------------------

    def ask(self, c: Context, at: At) -> Said:
        """Ask a person what to do about thoughts that were rejected again and again."""
        reason = c.metadata.get("retry_reason") or "no reason was recorded"
        return AskPerson(about="escalation", text=f"{c.retry_count} thoughts were rejected: {reason}")

    def decided(self, c: Context, answer: PersonDecided, at: At) -> Said:
        """Resume clears the count; abort ends; nobody to ask ends too."""
        said = answer.text or answer.decision
        if answer.decision in {"resume", "answer"}:
            words = (Message(role="user", content=answer.text),) if answer.text else ()
            return {**_noted(retry_count=0), "transcript": words}, Resumed(reason=said)
        if answer.decision == "abort":
            return _ended("aborted"), Aborted(reason=said)
        return _nobody(said)

    # -- the error wrapper around every node (1.5) --------------------

    def recover(self, c: Context, failure: EffectFailed, at: At) -> tuple[Changes, object]:
        """The text becomes the newest step's observation; on to the node's normal successor.

        The step fails with it, so that a thought whose rules could not be checked is not acted upon.
        """
        if at.state is S.HUMAN_APPROVAL:
            return _nobody(failure.message)
        if at.state is S.THOUGHT:
            return _unthought(c, failure, at, len(c.transcript))
        text = f"{failure.type}: {failure.message}"
        event = Accepted(reason=text) if at.state is S.VALIDATE else Acted(reason=text)
        return _newest(c, observation=text, status="failed"), event

    def halt(self, c: Context, failure: EffectFailed, at: At) -> tuple[Changes, object]:
        """The run ends; nothing is raised."""
        if at.state is S.HUMAN_APPROVAL:
            return _nobody(failure.message)
        return _failed(f"{failure.type}: {failure.message}")


def _unthought(c: Context, failure: EffectFailed, at: At, messages: int) -> tuple[Changes, Drafted]:
    """A step without a thought, because of a failure; so many messages were said by then."""
    text = f"{failure.type}: {failure.message}"
    step = ReasoningStep(
        id=len(c.steps), thought="", observation=text, status="failed", timestamp=at.now, messages=messages
    )
    return {"steps": {step.id: step}}, Drafted(reason=text)


def _end(c: Context, reason: str) -> object:
    if reason == "goal_achieved":
        return GoalAchieved(reason=c.answer or "")
    if reason == "max_steps":
        return StepLimitReached(reason=f"max_steps_reached: {len(c.steps)} steps")
    if reason == "flagged":
        return Flagged(reason="`terminated` was set")
    return CostLimitExceeded(reason=f"{c.total_cost:g} USD were spent")
