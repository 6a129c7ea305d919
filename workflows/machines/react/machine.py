"""ReAct: think, check the thought against rules, act with one tool, observe, commit (spec 1).

Reading order: `table.py`, then the states in its order. What a run remembers and its options are in
`context.py`, prompts in `prompt.py`, the reading of replies in `reply.py`, the rules in `rules.py`, and what
must hold of every run in `proof.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workflows.kernel.errors import error_text
from workflows.kernel.ledger import plain_number
from workflows.machines.authoring import (
    AgentError,
    Append,
    AskModel,
    AskPerson,
    CallTools,
    EffectError,
    Exit,
    Extensions,
    FatalError,
    Machine,
    Message,
    Patch,
    RecoverableError,
    Run,
    RunInput,
    Say,
    State,
    ToolCall,
    TransientError,
    Visit,
    VisitEnd,
    do,
    state,
)
from workflows.machines.common.json_text import unread
from workflows.machines.common.named_parts import call_user_function
from workflows.machines.react import prompt
from workflows.machines.react.context import CachedReply, Options, React, ReasoningStep
from workflows.machines.react.prompt import JSON_OR_LABELS, ReplyFormat
from workflows.machines.react.proof import PROPERTIES, SCENARIOS
from workflows.machines.react.reply import (
    FINISH,
    BadReply,
    Thought,
    cut_arguments,
    final_answer,
)
from workflows.machines.react.rules import Rule, build_rules, judge
from workflows.machines.react.table import (
    TABLE,
    Accepted,
    Acted,
    Continued,
    Drafted,
    Ended,
    Observed,
    PersonNeeded,
    Rejected,
    S,
    StepTaken,
)

__all__ = ["MACHINE", "S", "react_machine"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is made once from the options and what the worker has loaded."""

    rules: tuple[Rule, ...]
    format: ReplyFormat


STEPS = {"past", "newest", "count"}
ENDS = {"terminated", "exit_reason", "error"}
METADATA = {
    "goal", "given", "total_cost", "tool_history", "retry_count", "retry_reason", "rolled_back", *ENDS
}  # fmt: skip


def between_steps(c: React, came_from: str) -> str:
    """A thought begins with every step closed, so that only the newest is ever open (R-000-3)."""
    return "" if c.newest is None else f"step {c.newest.id} is still open"


def has_step(c: React, came_from: str) -> str:
    """There is a step."""
    return "there is no step" if c.newest is None else ""


def end_is_marked(c: React, came_from: str) -> str:
    """The end and the flag agree (R-000-2)."""
    return "" if c.terminated and c.exit_reason else "`terminated` or `exit_reason` is not set"


# -- thought: prompt, cache, call, parse, check, append -------------------------------------------


@state(
    S.THOUGHT,
    asks={AskModel},
    counts="steps",
    holds=between_steps,
    reads={"count", "retry_reason", "again"},
    writes={"newest", "count", *ENDS, "total_cost", "cache", "model_failure"},
)
def think(c: React, run: Run) -> Visit:
    """Ask for a thought, again while its format is wrong. A prompt that was answered before a rollback is
    answered from the cache, unless a person has said something."""
    number, options = c.count, run.options
    say = (prompt.rejected(c.retry_reason),) if c.retry_reason else ()
    cached = None if run.inbox else c.again.get(run.conversation.add(*say).digest)
    if cached is not None and isinstance(read := _read(run, cached.text), Thought):
        yield Say(say=(*say, Message(role="assistant", content=cached.text)))
        return _drafted(c, run, read)

    key, by_schema, schema = "", options.reply_format == "json_schema", run.prepared.format.schema
    for attempt in range(1, options.max_format_attempts + 1):
        # a model that missed the format once may be held to it by its server
        enforced = schema if by_schema or attempt > 1 else None
        again = f", format attempt {attempt}" if attempt > 1 else ""
        question = AskModel(
            say=say,
            response_schema=enforced(run.input.tool_names) if enforced else None,
            form=schema(run.input.tool_names) if schema else None,
            attempts=options.max_model_attempts,
            label=f"think #{number + 1}{again}",
        )
        reply = yield from do(question)
        # The prompt without reminders of the format, and with whatever a person said (R-000-5).
        key = key or run.conversation.digests[-2]
        read = _read(run, reply.text)
        if isinstance(read, Thought):
            patch, event = _drafted(c, run, read)
            return {**patch, "cache": Append(CachedReply(prompt=key, step=number, text=reply.text))}, event
        problem = unread(reply, read.problem)
        say = (prompt.bad_format(problem, run.prepared.format.text(run.input.tool_names)),)
    return _end("fatal_error", f"invalid format: {problem}", **_cost(run))


def _read(run: Run, text: str) -> Thought | BadReply:
    """The parser's verdict. Any error of a user's parser that is no AgentError is fatal (R-000-9)."""
    read = call_user_function("reply parser", run.prepared.format.read, text)
    if not isinstance(read, Thought | BadReply):
        raise FatalError(f"the reply parser returned a {type(read).__name__}; expected Thought or BadReply")
    return read


def _drafted(c: React, run: Run, read: Thought) -> VisitEnd:
    step = ReasoningStep(
        id=c.count,
        thought=read.text,
        action=read.action,
        action_input=read.action_input,
        timestamp=run.now,
    )
    patch = {"newest": step, "count": c.count + 1, **_cost(run), "model_failure": ""}
    return patch, Drafted(thought=read.text)


def _cost(run: Run) -> dict[str, Any]:
    """What the run has spent (R-000-12): of the ledger, which survives a rollback."""
    return {"total_cost": round(run.ledger.used("cost_usd"), 9)}


def _update(c: React, **changes: Any) -> dict[str, Any]:
    """The patch that changes the newest step."""
    assert c.newest is not None
    return {"newest": c.newest.model_copy(update=changes)}


def _close_step(c: React, status: str) -> dict[str, Any]:
    """The patch that closes the newest step and puts it to the others."""
    assert c.newest is not None
    step = c.newest if c.newest.closed else c.newest.model_copy(update={"status": status})
    return {"newest": None, "past": Append(step)}


def _end(
    reason: str, error: str = "", why: str = "", refused_by: tuple[str, ...] = (), **more: Any
) -> VisitEnd:
    """The run ends; `why` is for the log, where it differs from the error."""
    patch = {**more, "terminated": True, "exit_reason": reason, "error": error}
    return patch, Ended(why or error or reason, refused_by=refused_by)


# -- validate -------------------------------------------------------------------------------------


@state(
    S.VALIDATE,
    holds=has_step,
    reads={"trace_id", *STEPS, *METADATA},
    writes={"newest", "past", "retry_count", "retry_reason", "last_retry_reason", *ENDS},
)
def validate(c: React, run: Run) -> VisitEnd:
    """Run the rules over the newest step (spec 1.6)."""
    assert c.newest is not None
    if c.newest.closed:
        return {}, Accepted("the step has failed; there is nothing to check")
    violations = judge(run.prepared.rules, c.newest, c)
    if not violations.text:
        return {**_update(c, status="validated"), "retry_reason": ""}, Accepted()
    text = violations.text
    if violations.terminal:
        failed = _update(c, status="failed")
        return _end("rule_violation", text, refused_by=violations.rules, **failed)
    count = c.retry_count + 1
    event = PersonNeeded if count > run.options.max_retries_before_human else Rejected
    counted = {"retry_count": count, "retry_reason": text, "last_retry_reason": text}
    return {**_close_step(c, "failed"), **counted}, event(text, refused_by=violations.rules)


# -- action: find the tool, run it ----------------------------------------------------------------


@state(
    S.ACTION,
    asks={CallTools},
    holds=has_step,
    reads={"newest"},
    writes={"newest", "total_cost", "tool_history", *ENDS},
)
def act(c: React, run: Run) -> Visit:
    """Run the tool that the step asks for, if it asks for one."""
    step, tools = c.newest, run.input.tool_names
    assert step is not None
    if step.closed or step.action is None or (step.action == FINISH and FINISH not in tools):
        return {}, Acted()
    if step.action not in tools:
        text = f"Unknown tool: {step.action}"
        return _update(c, observation=text, status="failed"), Acted(text)
    call = ToolCall(id=str(step.id), tool=step.action, arguments=cut_arguments(step.action_input))
    returned = yield from do(CallTools(calls=(call,), attempts=run.options.max_tool_attempts))
    result = returned.results[0]
    if result.error == "unknown_outcome":
        unknown = result.output or f"the outcome of the tool {result.tool} is unknown"
        return _end("fatal_error", unknown, **_cost(run))
    status = "executed" if result.ok else "failed"
    done = _update(c, observation=result.output, whole=result.whole, status=status)
    ran = Append(*([result.tool] if result.ok else []))
    return {**done, **_cost(run), "tool_history": ran}, Acted()


# -- observation, commit --------------------------------------------------------------------------


@state(S.OBSERVATION, holds=has_step, reads={"newest"})
def observe(c: React, run: Run) -> Visit:
    """Put the outcome where the next thought will see it. No model, no tool."""
    assert c.newest is not None
    if c.newest.observation is not None or answer(c, run) is None:
        yield Say(say=(prompt.observed(c.newest.observation),))
    return {}, Observed()


@state(
    S.COMMIT,
    holds=has_step,
    reads={"newest", "count", "terminated", "retry_count"},
    writes={"newest", "past", *ENDS},
)
def commit(c: React, run: Run) -> VisitEnd:
    """Close the step and decide whether the run ends."""
    assert c.newest is not None
    reason, error, why = next(_stops(c, run), ("", "", ""))
    if reason:
        return _end(reason, error, why, **({} if c.newest.closed else _update(c, status="committed")))
    closed = _close_step(c, "committed")
    if c.retry_count > run.options.max_retries_before_human:
        return closed, PersonNeeded(f"{c.retry_count} thoughts were rejected")
    return closed, StepTaken()


def _stops(c: React, run: Run) -> Iterator[tuple[str, str, str]]:
    """Why the run ends here, in the order of spec 1.3: exit reason, error, and words for the log."""
    options, count, step = run.options, c.count, c.newest
    if (found := answer(c, run)) is not None:
        is_told = step is not None and step.action != FINISH  # the thought has it
        yield "goal_achieved", "", "" if is_told else found
    if count >= options.max_steps:
        error = f"no final answer within {count} steps; `max_steps` is {options.max_steps}"
        if step and not step.thought and step.observation:
            error += f"; the last step failed: {step.observation[:300]}"
        yield "max_steps", error, f"max_steps_reached: {count} steps"
    if c.terminated:
        yield "flagged", "the run ended because its state was marked `terminated`", ""
    spent = run.ledger.used("cost_usd")
    if spent > options.cost_limit:
        error = f"{plain_number(spent)} USD were spent; `cost_limit` is {plain_number(options.cost_limit)}"
        yield "cost_limit", error, ""


def answer(c: React, run: Run) -> str | None:
    """The final answer, when the newest step gives one."""
    if c.newest is None:
        return None
    action = c.newest.action
    if action in run.input.tool_names:  # a tool may be named `finish`
        action = None
    return final_answer(c.newest.thought, action, c.newest.action_input)


# -- human approval -------------------------------------------------------------------------------


@state(
    S.HUMAN_APPROVAL,
    asks={AskPerson},
    reads={"retry_count", "last_retry_reason"},
    writes={"retry_count", *ENDS},
)
def ask_person(c: React, run: Run) -> Visit:
    """Ask a person what to do about thoughts that were rejected again and again."""
    decided = yield from do(AskPerson(about="escalation", text=_rejections(c)))
    if decided.decision in {"resume", "answer"}:
        if decided.text:
            yield Say(say=(Message(role="user", content=decided.text),))
        return {"retry_count": 0}, Continued(decided.text or decided.decision)
    if decided.decision == "abort":
        return _end("aborted", "a person ended the run", decided.text)
    return _end_unanswered(c)


def _rejections(c: React) -> str:
    why = c.last_retry_reason or "no reason was recorded"
    return f"{c.retry_count} thoughts were rejected: {why}"


def _end_unanswered(c: React) -> VisitEnd:
    return _end("retries_exhausted", f"no person could be asked; {_rejections(c)}")


# -- errors and the end ---------------------------------------------------------------------------


def on_error(c: React, error: AgentError, run: Run) -> VisitEnd:
    """The error wrapper around every state (1.5). What is recoverable becomes an observation and fails the
    step, so that a thought whose rules could not be checked is not acted upon; the rest ends the run. So does
    the same failure of the model twice in a row: no step is spent on each attempt."""
    if run.state is S.HUMAN_APPROVAL:
        return _end_unanswered(c)
    text, recoverable, failure = error_text(error), isinstance(error, TransientError | RecoverableError), ""
    if isinstance(error, EffectError):
        text, recoverable = str(error), error.error in {"transient", "recoverable"}
        failure = error.type
    if not recoverable:  # whatever is not known to be recoverable is fatal (R-000-9)
        return _end("fatal_error", text, **_cost(run))
    if run.state is not S.THOUGHT:
        event = Accepted if run.state is S.VALIDATE else Acted
        return {**_update(c, observation=text, status="failed"), **_cost(run)}, event(text)
    if failure and failure == c.model_failure:
        return _end("fatal_error", f"{text} (the model call failed twice in a row)", **_cost(run))
    step = ReasoningStep(id=c.count, thought="", observation=text, status="failed", timestamp=run.now)
    return {"newest": step, "count": c.count + 1, **_cost(run), "model_failure": failure}, Drafted(text)


def on_rollback(restored: React, before: React) -> Patch:
    """What a rollback writes: the two keys of R-000-14, and the replies that the run has had meanwhile. The
    thought that it goes back to is thought again; what then follows as before is answered from the cache."""
    number = restored.count
    kept = tuple(reply for reply in before.cache if reply.step != number)
    again = {reply.prompt: reply for reply in kept}
    return {"rolled_back": (before.count, number - 1), "cache": kept, "again": again}


def on_reopen(c: React) -> tuple[S, Patch]:
    """The run continues after its last step, which nothing changes any more (R-000-14)."""
    closed = _close_step(c, "failed") if c.newest else {}
    return S.THOUGHT, {**closed, "terminated": False, "exit_reason": "", "error": ""}


EXITS: Mapping[str, str] = {
    "goal_achieved": "the model gave its final answer",
    "max_steps": "`max_steps` steps were taken, the last one without a final answer",
    "cost_limit": "the run spent more than the option `cost_limit`; the agent's limit `cost_usd` ends it as "
    "`limit`",
    "rule_violation": "a thought broke a terminal rule",
    "retries_exhausted": "more thoughts were rejected than allowed, and no person could be asked",
    "fatal_error": "a model, a rule or a parser failed for good, or the outcome of an unsafe tool is unknown",
    "flagged": "something set `terminated` in the run's state, and the step was closed after that",
}


def result(c: React, run: Run) -> Exit:
    """How a run ended. The outcome is the metadata, with the last reason of a retry in any case."""
    ok = c.exit_reason == "goal_achieved"
    latest = {"retry_reason": c.last_retry_reason or None, **_cost(run)}
    return Exit(
        reason=c.exit_reason or "running",
        ok=ok,
        answer=answer(c, run) if ok else None,
        error=c.error or None,
        outcome={**c.metadata, **latest},
    )


def react_machine(name: str = "react", reply_format: ReplyFormat = JSON_OR_LABELS) -> Machine:
    """A ReAct machine; with a reply format of one's own it needs a name of its own (R-000-7)."""

    def begin(input: RunInput, options: Options) -> tuple[React, list[Message]]:
        context = React(trace_id=input.trace_id, goal=input.goal, given=input.values)
        return context, prompt.opening(input, reply_format)

    def prepare(options: Options, extensions: Extensions) -> Prepared:
        if options.reply_format == "json_schema" and reply_format.schema is None:
            raise ValueError("the machine's reply format has no JSON schema; set `reply_format: text`")
        return Prepared(build_rules(options.rule_specs(), extensions.rules), reply_format)

    return Machine(
        name=name,
        description="Think, check the thought against rules, act with one tool, observe, commit.",
        options=Options,
        context=React,
        begin=begin,
        initial=S.THOUGHT,
        table=TABLE,
        states=[think, validate, act, observe, commit, ask_person, State(S.END, holds=end_is_marked)],
        step=S.THOUGHT,
        on_error=on_error,
        on_close=lambda c, reason: {"exit_reason": reason, "terminated": True},
        on_rollback=on_rollback,
        on_reopen=on_reopen,
        result=result,
        prepare=prepare,
        # The option counts visits (R-000-11); the first visit needs no transition.
        max_transitions=lambda options: (options.max_transitions or 10 * options.max_steps) - 1,
        # A thought makes one call at most, and COMMIT, which comes after it, counts all thoughts.
        most_calls=lambda options, replies: min(options.max_steps, replies),
        answer_attempts=lambda options: options.max_format_attempts,
        exits=EXITS,
        properties=PROPERTIES,
        scenarios=SCENARIOS,
    )


MACHINE = react_machine()
