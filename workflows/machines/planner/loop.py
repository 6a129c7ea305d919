"""What both planners share: states, events, the history, and how their loop and their runs end (spec 4)."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from functools import wraps
from typing import Any

from workflows.machines.authoring import (
    AgentError,
    Append,
    AskModel,
    Event,
    Exit,
    JsonObject,
    Run,
    Say,
    State,
    Visit,
    VisitEnd,
    do,
)
from workflows.machines.common.json_text import REPLY_CUT, was_cut
from workflows.machines.planner.context import Planner, shared
from workflows.machines.planner.policy import Progress, cause
from workflows.machines.planner.prompt import ANSWER, SUM_UP


class S(Enum):
    """The numbered states of spec 4.2, and the end after FINALIZE."""

    INTAKE = 0
    PLAN = 1
    DECIDE = 2
    EXECUTE = 3
    OBSERVE = 4
    LOOP_CHECK = 5
    FINALIZE = 6
    HALT = 7
    END = 8


# -- what happens ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class QuietEvent(Event):
    """The reason of one that is `quiet` is for the history alone: the log has thought and calls by itself."""

    quiet: bool = False


class TakenIn(QuietEvent):
    """The shared state has the goal, and a plan is to be made."""


class Planned(Event):
    """The plan fits its schema, and the policy allows it."""


class Continued(QuietEvent):
    """The model is to propose: for the first time, or again."""


class Proposed(QuietEvent):
    """The model asked for tools, or decided on an action."""


class Observed(QuietEvent):
    """What was proposed is done, or asks for the halt."""


class Stopped(QuietEvent):
    """The run ends well; the context's `exit_reason` says why."""


class Halted(Event):
    """The run ends with an error; `exit_reason` and `error` say why."""


class Finished(Event):
    """The answer is there."""


Table = Mapping[Enum, Mapping[type[Event], Enum]]


def recorded(table: Table, *states: State) -> tuple[State, ...]:
    """The states, each of whose moves along the table is written into the history, too (spec 4.2)."""
    return tuple(_recorded(one, table[one.name]) for one in states)


def _recorded(one: State, row: Mapping[type[Event], Enum]) -> State:
    handler = one.visit
    assert handler is not None

    @wraps(handler)
    def visit(c: Planner, run: Run) -> Visit:
        outcome = handler(c, run)
        patch, event = (yield from outcome) if isinstance(outcome, Generator) else outcome
        target = row.get(type(event))
        if target is None:
            return patch, event  # the kernel refuses it, and the state stays
        entry = {
            "from": one.name.value,
            "to": target.value,
            "reason": event.reason,
            "iteration": patch.get("iteration", c.iteration),
        }
        told = replace(event, reason="") if isinstance(event, QuietEvent) and event.quiet else event
        return {**patch, "history": Append(entry)}, told

    reads, writes = one.reads | {"iteration"}, one.writes | {"history"}
    return replace(one, visit=visit, reads=reads, writes=writes)


# -- parts of states ------------------------------------------------------------------------------

ENDS = {"exit_reason", "error"}
SHARED = {"state", "observations"}
MAX_ITERATIONS = "Max iterations exceeded"


def first_state(run: Run) -> dict[str, Any]:
    """The patch of INTAKE: the shared state with the goal. No model."""
    began = datetime.fromtimestamp(run.now, UTC).isoformat()
    return {"state": {"goal": run.input.goal or None, "started_at": began}}


def ask(run: Run, label: str, schema: JsonObject | None = None, **more: Any) -> AskModel:
    """A question to a model; `schema` is the reply's, which some providers enforce. Only transient failures
    are tried again: a reply that came is never asked for twice (R-003-2), but for an answer that does not fit
    the agent's `output`."""
    enforced = schema if run.options.reply_format == "json_schema" or run.refused else None
    attempts = run.options.max_model_attempts
    return AskModel(label=label, attempts=attempts, response_schema=enforced, form=schema, **more)


def halted(reason: str, text: str, event: type[Event] = Halted, **patch: Any) -> VisitEnd:
    """The way to HALT, at once or through LOOP_CHECK; `reason` is the exit reason."""
    return {**patch, "exit_reason": reason, "error": text}, event(text)


def loop_end(c: Planner, run: Run) -> VisitEnd | None:
    """Why the loop ends in LOOP_CHECK, in the order of spec 4.5, but for what the modes have of their own."""
    options, used = run.options, run.ledger.used
    if options.time_limit is not None and used("seconds") >= options.time_limit:
        return halted("time_limit", "Time limit exceeded")
    for counter, most in options.budgets.items():
        if used(counter) >= most:
            return halted("budget", f"Budget exceeded: {counter}")
    try:
        converged = run.prepared.policy.has_converged(lambda: shared(c), Progress(c.marks))
    except AgentError as error:
        return halted("hook_failed", cause(error))
    if converged:
        return {"exit_reason": "converged"}, Stopped("Policy indicates convergence")
    if not c.observations:
        return {"exit_reason": "no_observations"}, Stopped("No observations")
    return None


def with_summary(run: Run, answer: str | None) -> Visit:
    """The end of FINALIZE: the answer, or a summary of the run: no tools, and only if a limit leaves room for
    it. The work is done: a summary that fails takes nothing away from it."""
    if not run.options.finalize_summary:
        return {"answer": answer}, Finished()
    yield Say(keep={"answer": answer})
    form = run.input.output
    say = SUM_UP if form is None else ANSWER
    question = ask(run, "summary", form, role="summary", say=(say,), refusal="raises")
    if breach := run.ledger.breach(question.price):
        return {"summary_error": f"the limit is reached, {breach}"}, Finished()
    try:
        reply = yield from do(question)
    except AgentError as error:
        return {"summary_error": cause(error)}, Finished()
    return {"summary_error": REPLY_CUT} if was_cut(reply) else {"answer": reply.text}, Finished()


halt = State(S.HALT, holds=lambda c, came_from: "" if c.error else "no reason was given")


# -- the result (4.7) -----------------------------------------------------------------------------

DONE = ("answered", "finished", "done", "converged", "stopped", "no_observations")
"""Exit reasons of a run that ended well."""


def end_of(c: Planner) -> JsonObject:
    """How a run ended, as result and audit say it."""
    done = c.exit_reason in DONE
    last = {"final_message": c.answer or ""} if done else {"error": c.error or c.exit_reason or "running"}
    return {"done": done, "iterations": c.iteration, **last}


def exit_of(c: Planner, raises: str = "ExecutionError", **outcome: Any) -> Exit:
    """How a run ended; HALT raises (R-003-9)."""
    done = c.exit_reason in DONE
    if c.summary_error:
        outcome["summary_error"] = c.summary_error
    if c.exit_reason == "max_iterations":
        raises = "MaxIterationsExceeded"
    return Exit(
        reason=c.exit_reason or "running",
        ok=done,
        answer=c.answer if done else None,
        error=f"Agent halted: {c.error}" if c.error else None,
        outcome={**end_of(c), "fsm_history": list(c.history), **outcome},
        raises=raises if c.error else None,
    )
