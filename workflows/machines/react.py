"""ReAct: think, check the thought, act, observe, commit (spec 1).

The node's name is the state; all else is the context. Reasoning steps form a log that only grows:
the newest step is completed in place until it is committed or failed, then it never changes.
"""

from __future__ import annotations

from typing import Any

from activities.contracts import (
    AskPerson,
    CallModel,
    CallTools,
    EffectFailed,
    ModelReplied,
    PersonDecided,
    ToolResult,
    ToolRun,
    ToolsReturned,
)
from activities.transcript import Message
from workflows.kernel.design import Brief, Design, Parts
from workflows.kernel.errors import FatalError
from workflows.kernel.fields import Patch
from workflows.kernel.log import Record
from workflows.kernel.machine import At, Exit, Machine, Row, Said, State
from workflows.kernel.rules import Rule, build_rules, judge
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
from workflows.machines.react_prompt import (
    format_reminder,
    observed,
    opening,
    reply_schema,
    retry_reminder,
)
from workflows.machines.react_reply import FINISH, BadReply, final_answer, read_reply
from workflows.machines.react_rules import RULE_TYPES

__all__ = ["DESIGN"]

TABLE = (
    Row(S.THOUGHT, Drafted, S.VALIDATE),
    Row(S.THOUGHT, NodeFailed, S.END),
    Row(S.VALIDATE, Accepted, S.ACTION),
    Row(S.VALIDATE, RuleBroken, S.END),
    Row(S.VALIDATE, RetriesExhausted, S.HUMAN_APPROVAL),
    Row(S.VALIDATE, Rejected, S.THOUGHT),
    Row(S.VALIDATE, NodeFailed, S.END),
    Row(S.ACTION, Acted, S.OBSERVATION),
    Row(S.ACTION, NodeFailed, S.END),
    Row(S.OBSERVATION, Observed, S.COMMIT),
    Row(S.COMMIT, GoalAchieved, S.END),
    Row(S.COMMIT, StepLimitReached, S.END),
    Row(S.COMMIT, Flagged, S.END),
    Row(S.COMMIT, CostLimitExceeded, S.END),
    Row(S.COMMIT, RetriesExhausted, S.HUMAN_APPROVAL),
    Row(S.COMMIT, StepTaken, S.THOUGHT),
    Row(S.HUMAN_APPROVAL, Resumed, S.THOUGHT),
    Row(S.HUMAN_APPROVAL, Aborted, S.END),
    Row(S.HUMAN_APPROVAL, NobodyToAsk, S.END),
)


def _newest(c: Context, **changes: Any) -> dict[int, ReasoningStep]:
    """The delta that completes the newest step."""
    step = c.steps[-1]
    return {step.id: step.model_copy(update=changes)}


def _ends(reason: str, **more: Any) -> dict[str, Any]:
    return {"exit_reason": reason, **more}


def _failed(text: str) -> tuple[Patch, NodeFailed]:
    patch = {"metadata": _ends("fatal_error", fatal_error=text), "terminated": True}
    return patch, NodeFailed(reason=text)


class _Nodes:
    """The nodes, with the knobs and rules they go by. Every method is pure."""

    def __init__(self, options: Options, rules: tuple[Rule, ...]) -> None:
        self.options, self.rules = options, rules
        self.stops = (
            Stop("goal_achieved", lambda c, at: _answer_of(c) is not None),
            Stop("max_steps", lambda c, at: len(c.steps) >= options.max_steps),
            Stop("flagged", lambda c, at: c.terminated),
            Stop("cost_limit", lambda c, at: c.metadata.get("total_cost", 0) > options.cost_limit),
            Stop("retries_exhausted", lambda c, at: self._spent_retries(c)),
        )

    def _spent_retries(self, c: Context) -> bool:
        retries: Any = c.metadata.get("retry_count", 0)
        return bool(retries > self.options.max_retries_before_human)

    # -- thought: prompt, cache, call, parse, check, append --------------------

    def think(self, c: Context, at: At) -> Said:
        """Build the prompt; answer from the run's cache, or ask the model."""
        reason = c.metadata.get("retry_reason")
        more = (retry_reminder(str(reason)),) if reason else ()
        transcript = c.transcript.add(*more)
        known = c.cache.get(transcript.digest)
        if known is not None:
            patch, event = self._draft(c, at, known)
            reply = Message(role="assistant", content=known)
            return {**patch, "transcript": (*more, reply)}, event
        asked = self._call(c, transcript)
        return ({"transcript": more}, asked) if more else asked

    def _call(self, c: Context, transcript: Any) -> CallModel:
        schema = reply_schema(c.tools) if self.options.reply_format == "json_schema" else None
        return CallModel(
            transcript=transcript,
            response_schema=schema,
            attempts=self.options.max_model_attempts,
            label=f"think #{len(c.steps) + 1}",
        )

    def thought(self, c: Context, reply: ModelReplied, at: At) -> Said:
        """Read the reply; a bad format is asked for again, a good one becomes a draft."""
        cost = {"total_cost": round(float(c.metadata.get("total_cost", 0)) + reply.cost_usd, 9)}  # type: ignore[arg-type]  # metadata is JSON; this key is ours
        read = read_reply(reply.text)
        if isinstance(read, BadReply):
            if at.call >= self.options.max_format_attempts:
                failed, ended = _failed(f"invalid format: {read.problem}")
                return {**failed, "metadata": {**failed["metadata"], **cost}}, ended
            asked = (reply.message, format_reminder(read.problem))
            again = self._call(c, c.transcript.add(*asked))
            return {"transcript": asked, "metadata": cost}, again
        patch, event = self._draft(c, at, reply.text)
        cached = {c.transcript.digest: reply.text}
        return {**patch, "transcript": (reply.message,), "metadata": cost, "cache": cached}, event

    def _draft(self, c: Context, at: At, text: str) -> tuple[dict[str, Any], Drafted]:
        read = read_reply(text)
        if isinstance(read, BadReply):
            raise FatalError(f"the cached reply has an invalid format: {read.problem}")
        step = ReasoningStep(
            id=len(c.steps),
            thought=read.text,
            action=read.action,
            action_input=read.action_input,
            timestamp=at.now,
        )
        title = (
            f" -> {ToolRun(id='', tool=read.action, arguments=read.action_input).title}"
            if read.action
            else ""
        )
        return {"steps": {step.id: step}}, Drafted(reason=read.text + title)

    # -- validate --------------------

    def validate(self, c: Context, at: At) -> Said:
        """Run the rule engine over the newest step."""
        step = c.steps[-1]
        if step.closed:
            return Accepted(reason="the step had failed; there is nothing to check")
        try:
            verdict = judge(self.rules, step, c)
        except Exception as error:  # noqa: BLE001  # a rule is users' code; whatever it raises ends the run readably (R-000-9)
            return _failed(f"a rule failed: {type(error).__name__}: {error}")
        if verdict.ok:
            patch: Patch = {"steps": _newest(c, status="validated"), "metadata": {"retry_reason": None}}
            return patch, Accepted()
        failed = {"steps": _newest(c, status="failed")}
        if verdict.terminal:
            broken = _ends("rule_violation", rule_violation=verdict.text)
            return {**failed, "metadata": broken, "terminated": True}, RuleBroken(verdict.text)
        count: Any = c.metadata.get("retry_count", 0)
        counted = {"retry_count": count + 1, "retry_reason": verdict.text}
        exhausted = count + 1 > self.options.max_retries_before_human
        event = RetriesExhausted(verdict.text) if exhausted else Rejected(verdict.text)
        return {**failed, "metadata": counted}, event

    # -- action: find the tool, harden the arguments, run --------------------

    def act(self, c: Context, at: At) -> Said:
        """Run the tool that the step asks for, if it asks for one."""
        step = c.steps[-1]
        if step.closed or step.action is None or step.action == FINISH:
            return Acted(reason="no action")
        if step.action not in c.tools:
            text = f"Unknown tool: {step.action}"
            return {"steps": _newest(c, observation=text, status="failed")}, Acted(reason=text)
        run = ToolRun(id=str(step.id), tool=step.action, arguments=step.action_input)
        return CallTools(runs=(run,), attempts=self.options.max_tool_attempts)

    def acted(self, c: Context, answer: ToolsReturned, at: At) -> Said:
        """Record what the tool returned, or its error in words."""
        result: ToolResult = answer.results[0]
        if result.error == "unknown_outcome":
            return _failed(result.output)
        cost: dict[str, Any] = {}
        if result.cost_usd:
            spent: Any = c.metadata.get("total_cost", 0)
            cost["total_cost"] = round(spent + result.cost_usd, 9)
        if not result.ok:
            newest = _newest(c, observation=result.output, status="failed")
            return {"steps": newest, "metadata": cost}, Acted(reason=result.output)
        ran: Any = c.metadata.get("tool_history", [])
        metadata = {**cost, "tool_history": [*ran, result.tool]}
        newest = _newest(c, observation=result.output, status="executed")
        return {"steps": newest, "metadata": metadata}, Acted(reason=result.output)

    # -- observation, commit --------------------

    def observe(self, c: Context, at: At) -> Said:
        """Put the outcome where the next thought will see it. No model, no tool."""
        step = c.steps[-1]
        if step.observation is None and _answer_of(c) is not None:
            return Observed()
        return {"transcript": (observed(step.observation),)}, Observed()

    def commit(self, c: Context, at: At) -> Said:
        """Close the step and decide whether the run ends (1.3, in this order)."""
        step = c.steps[-1]
        closed: Patch = {} if step.closed else {"steps": _newest(c, status="committed")}
        reason = first_stop(self.stops, c, at)
        if reason is None:
            return closed, StepTaken(reason=f"step {len(c.steps)} is done")
        if reason == "retries_exhausted":
            count = c.metadata.get("retry_count")
            return closed, RetriesExhausted(reason=f"{count} thoughts were rejected")
        return {**closed, "metadata": _ends(reason), "terminated": True}, self._end(c, reason)

    def _end(self, c: Context, reason: str) -> object:
        if reason == "goal_achieved":
            return GoalAchieved(reason=_answer_of(c) or "")
        if reason == "max_steps":
            return StepLimitReached(reason=f"max_steps_reached: {len(c.steps)} steps")
        if reason == "flagged":
            return Flagged(reason="`terminated` was set")
        return CostLimitExceeded(reason=f"{c.metadata.get('total_cost')} USD were spent")

    # -- human approval --------------------

    def ask(self, c: Context, at: At) -> Said:
        """Ask a person what to do about thoughts that were rejected again and again."""
        reason = c.metadata.get("retry_reason") or "no reason was recorded"
        count = c.metadata.get("retry_count", 0)
        return AskPerson(about="escalation", text=f"{count} thoughts were rejected: {reason}")

    def decided(self, c: Context, answer: PersonDecided, at: At) -> Said:
        """Resume clears the count; abort ends; nobody to ask ends too."""
        said = answer.text or answer.decision
        if answer.decision in {"resume", "answer"}:
            words = (Message(role="user", content=answer.text),) if answer.text else ()
            return {"metadata": {"retry_count": 0}, "transcript": words}, Resumed(reason=said)
        if answer.decision == "abort":
            return {"metadata": _ends("aborted"), "terminated": True}, Aborted(reason=said)
        return {"metadata": _ends("retries_exhausted"), "terminated": True}, NobodyToAsk(reason=said)

    # -- the error wrapper around every node (1.5) --------------------

    def recover(self, c: Context, failure: EffectFailed, at: At) -> Said:
        """The text becomes the newest step's observation; on to the node's normal successor."""
        text = f"{failure.type}: {failure.message}"
        if at.state is S.THOUGHT:
            step = ReasoningStep(
                id=len(c.steps), thought="", observation=text, status="failed", timestamp=at.now
            )
            return {"steps": {step.id: step}}, Drafted(reason=text)
        if at.state is S.ACTION:
            return {"steps": _newest(c, observation=text, status="failed")}, Acted(reason=text)
        return _failed(text)

    def halt(self, c: Context, failure: EffectFailed, at: At) -> Said:
        """The run ends; nothing is raised."""
        if at.state is S.HUMAN_APPROVAL:
            return {"metadata": _ends("retries_exhausted"), "terminated": True}, NobodyToAsk(failure.message)
        return _failed(f"{failure.type}: {failure.message}")


def _answer_of(c: Context) -> str | None:
    if not c.steps:
        return None
    step = c.steps[-1]
    return final_answer(step.thought, step.action, step.action_input)


def _closed_before(c: Context, last: Record | None) -> str:
    """Only the newest step may be open (R-000-3)."""
    if not c.steps:
        return "there is no step"
    is_open = [step.id for step in c.steps[-2:-1] if not step.closed]
    return f"step {is_open[0]} is still open" if is_open else ""


def _is_terminated(c: Context, last: Record | None) -> str:
    return "" if c.terminated else "`terminated` is not set"


def _result(c: Context, state: Any) -> Exit:
    metadata = c.metadata
    reason = str(metadata.get("exit_reason") or "running")
    ok = reason == "goal_achieved"
    why = metadata.get("fatal_error") or metadata.get("rule_violation")
    if reason == "retries_exhausted":
        why = metadata.get("retry_reason")
    answer = _answer_of(c) if ok else None
    error = None if ok else str(why or reason)
    return Exit(reason=reason, ok=ok, answer=answer, error=error, outcome=dict(metadata))


def _build(options: Options, parts: Parts) -> Machine[Context]:
    rules = build_rules(options.rule_specs(), {**RULE_TYPES, **parts.rules})
    nodes = _Nodes(options, rules)
    known = {"steps", "metadata"}
    return Machine(
        name="react",
        context=Context,
        initial=S.THOUGHT,
        final={S.END},
        table=TABLE,
        result=_result,
        step_state=S.THOUGHT,
        on_error={
            "transient": nodes.recover,
            "recoverable": nodes.recover,
            "fatal": nodes.halt,
            "unknown_outcome": nodes.halt,
        },
        on_unmatched="end",
        max_transitions=options.max_transitions or 10 * options.max_steps,
        limit_reasons={"cost_usd": "cost_limit"},
        fold_steer=lambda c, text: {"transcript": (Message(role="user", content=text),)},
        states={
            S.THOUGHT: State(
                enter=nodes.think,
                resume=nodes.thought,
                grants={"call_model"},
                spends="steps",
                reads={*known, "transcript", "cache", "tools"},
                writes={*known, "transcript", "cache", "terminated"},
            ),
            S.VALIDATE: State(
                enter=nodes.validate,
                holds=_closed_before,
                reads=known,
                writes={*known, "terminated"},
            ),
            S.ACTION: State(
                enter=nodes.act,
                resume=nodes.acted,
                grants={"call_tools"},
                holds=_closed_before,
                reads={*known, "tools"},
                writes={*known, "terminated"},
            ),
            S.OBSERVATION: State(
                enter=nodes.observe,
                holds=_closed_before,
                reads={"steps"},
                writes={"transcript"},
            ),
            S.COMMIT: State(
                enter=nodes.commit,
                holds=_closed_before,
                reads={*known, "terminated"},
                writes={*known, "terminated"},
            ),
            S.HUMAN_APPROVAL: State(
                enter=nodes.ask,
                resume=nodes.decided,
                grants={"ask_person"},
                reads={"metadata"},
                writes={"metadata", "transcript", "terminated"},
            ),
            S.END: State(holds=_is_terminated),
        },
    )


def _begin(brief: Brief, options: Options) -> Context:
    return Context(
        trace_id=brief.trace_id,
        tools=tuple(spec.name for spec in brief.tools),
        metadata={"goal": brief.goal, "retry_count": 0, "total_cost": 0, "tool_history": []},
        transcript=opening(brief),
    )


DESIGN = Design(
    name="react",
    description="Think, check the thought against rules, act with one tool, observe, commit.",
    options=Options,
    build=_build,
    begin=_begin,
)
