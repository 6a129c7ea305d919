"""Planner: plan once, decide, then let the model propose while code judges and runs the tools (spec 4).

The model proposes, code decides: the loop, the tools, validation and stopping are never left to it. With
`mode: simple` there is no plan: the model decides on one action at a time, as JSON, until it says `finish`
(spec 4.10).

Reading order: the two tables, options and context, then the states in the table's order. Plans are read in
`plan.py`; `decisions.py` says what may be done and when enough is done, `calls.py` runs a tool, and
`simple.py` has what is different without a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from functools import partial, wraps
from typing import Any

from workflows.machines.authoring import (
    AgentError,
    AskModel,
    CallTools,
    Event,
    Exit,
    JsonObject,
    Machine,
    Message,
    ModelReplied,
    Run,
    RunInput,
    Say,
    State,
    Visit,
    VisitEnd,
    do,
    state,
)
from workflows.machines.common.ends import end_forgotten
from workflows.machines.common.json_text import (
    CUT,
    NotJson,
    cut,
    read_arguments,
    read_object,
    shown_name,
    shown_value,
    unread,
    was_cut,
)
from workflows.machines.common.named import called
from workflows.machines.planner import prompt, simple
from workflows.machines.planner.calls import CallFailure, forbidden, marked, ran
from workflows.machines.planner.context import Options, Planner, prepare, shared
from workflows.machines.planner.decisions import Decision, Progress, cause, confidence_of, text_from
from workflows.machines.planner.plan import CONTINUE_SCHEMA, continue_of, plan_of

__all__ = ["MACHINE", "S", "build_machine"]


class S(Enum):
    """The numbered states of spec 4.2, and the end behind FINALIZE."""

    INTAKE = 0
    PLAN = 1
    DECIDE = 2
    EXECUTE = 3
    OBSERVE = 4
    LOOP_CHECK = 5
    FINALIZE = 6
    HALT = 7
    END = 8


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

LOOP: Table = {
    S.EXECUTE: {Proposed: S.OBSERVE, Halted: S.HALT},
    S.OBSERVE: {Observed: S.LOOP_CHECK},
    S.LOOP_CHECK: {Continued: S.EXECUTE, Stopped: S.FINALIZE, Halted: S.HALT},
    S.FINALIZE: {Finished: S.END},
}
TABLES: Mapping[str, Table] = {
    "plan": {
        S.INTAKE: {TakenIn: S.PLAN},
        S.PLAN: {Planned: S.DECIDE, Halted: S.HALT},
        S.DECIDE: {Continued: S.EXECUTE, Stopped: S.FINALIZE, Halted: S.HALT},
        **LOOP,
        S.EXECUTE: {Proposed: S.OBSERVE, Stopped: S.FINALIZE, Halted: S.HALT},
    },
    "simple": {S.INTAKE: {Continued: S.EXECUTE}, **LOOP},
}
"""Mode -> table."""


def begin(mode: str, input: RunInput, options: Options) -> tuple[Planner, list[Message]]:
    """The conversation that carries out the plan, or decides on one action after the other. Raises
    ValueError for options of the other mode."""
    if options.mode != mode:
        raise ValueError(f"this machine is made for `mode: {mode}`; make one with `build_machine(options)`")
    if mode == "simple":
        return Planner(given=input.goal), prompt.action_prompt(input)
    return Planner(), prompt.opening(input)


# -- what the states share ------------------------------------------------------------------------

Handler = Callable[[Any, Run], VisitEnd | Visit]
ENDS = {"exit_reason", "error"}
SHARED = {"state", "observations"}


def recorded(
    name: S, *, reads: Iterable[str] = (), writes: Iterable[str] = (), **more: Any
) -> Callable[[Handler], State]:
    """Declare a state whose moves are written into the history, too (spec 4.2)."""

    def declare(handler: Handler) -> State:
        @wraps(handler)
        def visit(c: Planner, run: Run) -> Visit:
            outcome = handler(c, run)
            patch, event = (yield from outcome) if isinstance(outcome, Generator) else outcome
            target = TABLES[run.options.mode][name].get(type(event))
            if target is None:
                return patch, event  # the kernel refuses it, and the state stays
            entry = {
                "from": name.value,
                "to": target.value,
                "reason": event.reason,
                "iteration": patch.get("iteration", c.iteration),
            }
            told = replace(event, reason="") if isinstance(event, QuietEvent) and event.quiet else event
            return {**patch, "history": (*c.history, entry)}, told

        seen, changed = {*reads, "iteration", "history"}, {*writes, "history"}
        return state(name, reads=seen, writes=changed, **more)(visit)

    return declare


def halted(reason: str, text: str, event: type[Event] = Halted, **patch: Any) -> VisitEnd:
    """The way to HALT, at once or through LOOP_CHECK; `reason` is the exit reason."""
    return {**patch, "exit_reason": reason, "error": text}, event(text)


def ask(run: Run, label: str, schema: JsonObject | None = None, **more: Any) -> AskModel:
    """A question to a model; `schema` is the reply's, for providers that enforce one. Only transient failures
    are tried again: a reply that came is never asked for twice (R-003-2)."""
    enforced = schema if run.options.reply_format == "json_schema" else None
    return AskModel(label=label, attempts=run.options.max_model_attempts, response_schema=enforced, **more)


# -- INTAKE, PLAN, DECIDE -------------------------------------------------------------------------


@recorded(S.INTAKE, writes={"state"})
def take_in(c: Planner, run: Run) -> VisitEnd:
    """Put the goal into the shared state. No model."""
    began = datetime.fromtimestamp(run.now, UTC).isoformat()
    event = TakenIn if run.options.mode == "plan" else Continued
    return {"state": {"goal": run.input.goal or None, "started_at": began}}, event(
        "Input normalized", quiet=True
    )


@recorded(S.PLAN, asks={AskModel}, reads=SHARED, writes={"state", *ENDS})
def plan(c: Planner, run: Run) -> Visit:
    """Ask for the plan, once; check it against its schema and the policy (R-003-11)."""
    prepared, goal, schema = run.prepared, run.input.goal or None, run.prepared.schema
    try:
        builder = prepared.prompt_builder
        request = text_from("prompt builder", builder, goal, shared(c)) if builder else run.input.goal
        say = prompt.plan_prompt(run.input, schema.text, request, run.notes)
        reply = yield from do(ask(run, "plan", schema.plain, role="planner", beside=True, say=say))
        made = plan_of(reply, schema, goal)
    except AgentError as error:
        return halted("plan_failed", f"Plan failed: {cause(error)}")
    if violation := prepared.policy.violation(Decision("plan", made, confidence_of(made)), shared(c)):
        return halted("policy_violation", f"Plan failed: Policy violation: {violation}")
    yield Say(say=(Message(role="assistant", content=reply.text),))
    return {"state": {**c.state, "plan": made}}, Planned("Plan created")


@recorded(S.DECIDE, asks={AskModel}, reads=SHARED, writes={"state", *ENDS})
def decide(c: Planner, run: Run) -> Visit:
    """Shall the plan be carried out? By the default rule, a hook or a model (R-003-1)."""
    made: Any = c.state["plan"]
    if made["goal"] is None:
        return halted("invalid_plan", "Invalid plan")
    try:
        answer = yield from _answer(c, run, made)
        decision = continue_of(answer)
    except AgentError as error:
        return halted("invalid_decision", f"Invalid decision: {cause(error)}")
    patch = {"state": {**c.state, "decision": decision}}
    if not decision["continue"]:
        why = str(decision["reason"])
        return {**patch, "exit_reason": "stopped"}, Stopped(why or "Decision: stop", thought=why, quiet=True)
    proposal = Decision("execute", made, confidence_of(answer))
    if violation := run.prepared.policy.violation(proposal, shared(c)):
        return halted("policy_violation", f"Policy violation: {violation}")
    yield Say(say=(prompt.CARRY_OUT,))
    why = str(decision["reason"])
    return patch, Continued(why or "Decision: continue", thought=why, quiet=True)


def _answer(c: Planner, run: Run, made: JsonObject) -> Generator[Any, Any, Any]:
    """What the hook or the model decides. Raises AgentError."""
    if run.options.decide == "model":
        say = prompt.decision_prompt(run.input, made, run.notes)
        reply = yield from do(ask(run, "decide", CONTINUE_SCHEMA, role="decide", beside=True, say=say))
        given = read_object(reply.text)
        return NotJson(unread(reply, given.problem)) if isinstance(given, NotJson) else given
    if run.prepared.decider:
        answer = called("hook", run.prepared.decider, made, shared(c))
        return dict(answer) if isinstance(answer, Mapping) else answer
    return {"continue": True}


# -- EXECUTE: the model proposes ------------------------------------------------------------------

MAX_ITERATIONS = "Max iterations exceeded"


@recorded(
    S.EXECUTE,
    asks={AskModel},
    counts="iterations",
    reads={"observations", "given"},
    writes={*ENDS, "iteration", "cut", "observations"},
)
def execute(c: Planner, run: Run) -> Visit:
    """Ask with the whole conversation; count the iteration, whatever comes of it."""
    if c.iteration >= run.options.max_iterations:
        return halted("max_iterations", MAX_ITERATIONS)
    number, planned = c.iteration + 1, run.options.mode == "plan"
    tools = run.input.tool_names
    offer, schema = (tools, None) if planned else ((), simple.decision_schema(tools))
    try:
        reply = yield from do(ask(run, f"execute #{number}", schema, offer=offer))
    except AgentError as error:
        text = f"Execution failed: {cause(error)}"
        step = {} if planned else simple.audited(c, None, {"error": text})
        return halted("execution_failed", text, iteration=number, **step)
    patch, event = _requested(reply) if planned else _decided(c, reply)
    return {**patch, "iteration": number}, event


def _requested(reply: ModelReplied) -> VisitEnd:
    """The native tool calls of a reply; without any it is the answer."""
    if calls := reply.tool_calls:
        names = "; ".join(f"{shown_name(call.name)}({call.arguments})" for call in calls)
        return {"cut": was_cut(reply)}, Proposed(f"Tool calls requested: {names[:300]}", quiet=True)
    if was_cut(reply):
        return halted("execution_failed", f"Execution failed: {CUT}")
    return {"exit_reason": "answered"}, Stopped("No tool calls requested", quiet=True)


def _decided(c: Planner, reply: ModelReplied) -> VisitEnd:
    """The one action that a reply decides on (4.10)."""
    read = simple.read_decision(reply.text)
    if isinstance(read, NotJson):
        text = f"Execution failed: the decision cannot be read: {unread(reply, read.problem)}"
        return halted("invalid_decision", text, **simple.audited(c, None, {"error": text}))
    return {}, Proposed(f"Decided: {read.title}", thought="", quiet=True)


# -- OBSERVE: code judges and does ----------------------------------------------------------------


@recorded(
    S.OBSERVE,
    asks={CallTools},
    reads={*SHARED, "marks", "cut", "given"},
    writes={*ENDS, *SHARED, "marks", "answer"},
)
def observe(c: Planner, run: Run) -> Visit:
    """The only place where tools run. A halt is only asked for here; LOOP_CHECK decides it, and what was
    observed before it is kept (R-003-4)."""
    if run.options.mode == "simple":
        patch, text, was_called = yield from simple.act(c, run)
        return patch, Observed(text, quiet=was_called)
    assert run.reply is not None
    calls = run.reply.tool_calls
    for number, call in enumerate(calls, start=1):
        arguments = read_arguments(call.arguments)
        if isinstance(arguments, NotJson):
            wrong = f"{call.arguments[:200]!r} for {shown_name(call.name)}: {arguments.problem}"
            text = f"Invalid tool call arguments {wrong}{f'; {CUT}' if c.cut else ''}"
            return halted("invalid_arguments", text, Observed)
        decision = Decision(call.name, arguments)
        outcome = forbidden(c, run, decision, calls) or (yield from ran(run, decision, call.id, number))
        if isinstance(outcome, CallFailure) and outcome.halts:
            return halted(outcome.reason, outcome.halts, Observed)
        record: JsonObject = {"tool_call_id": call.id, "name": cut(call.name)}
        if isinstance(outcome, CallFailure):
            record["error"], marks = outcome.error, c.marks
        else:
            record["result"], marks = shown_value(outcome.output), marked(c, outcome)
        kept = {"observations": (*c.observations, record), "marks": marks}
        yield Say(say=(prompt.tool_message(record),), keep=kept)
    return {}, Observed(f"Tools executed: {len(calls)}", quiet=True)


# -- LOOP_CHECK, FINALIZE -------------------------------------------------------------------------


@recorded(
    S.LOOP_CHECK,
    reads={*SHARED, *ENDS, "marks"},
    writes={*ENDS, "given"},
)
def loop_check(c: Planner, run: Run) -> Visit:
    """Go on, end or halt: in exactly this order (spec 4.5)."""
    if c.error:
        return {}, Halted(c.error)
    if c.exit_reason:  # the action `finish`, or a result with `done`
        return {}, Stopped(c.exit_reason)
    try:
        if ended := _ended(c, run):
            return ended
        if run.options.mode == "simple":
            text = simple.input_after(c, run)
            yield Say(say=(Message(role="user", content=text),), keep={"given": text})
    except AgentError as error:
        return halted("hook_failed", cause(error))
    return {}, Continued("Continuing", quiet=True)


def _ended(c: Planner, run: Run) -> VisitEnd | None:
    """Why the loop ends here. Without a plan only EXECUTE looks at the iterations (4.10)."""
    options, used = run.options, run.ledger.used
    if options.mode == "plan" and c.iteration >= options.max_iterations:
        return halted("max_iterations", MAX_ITERATIONS)
    if options.time_limit is not None and used("seconds") >= options.time_limit:
        return halted("time_limit", "Time limit exceeded")
    for counter, most in options.budgets.items():
        if used(counter) >= most:
            return halted("budget", f"Budget exceeded: {counter}")
    if run.prepared.policy.has_converged(shared(c), Progress(c.marks)):
        return {"exit_reason": "converged"}, Stopped("Policy indicates convergence")
    if not c.observations:
        return {"exit_reason": "no_observations"}, Stopped("No observations")
    return None


@state(S.FINALIZE, asks={AskModel}, reads={"answer"}, writes={"answer", "summary_error"})
def finalize(c: Planner, run: Run) -> Visit:
    """The final message is the answer, or a summary of the run: no tools, and only if a limit leaves room for
    it. The work is done: a summary that fails takes nothing away from it."""
    answer = run.conversation.messages[-1].content if run.options.mode == "plan" else c.answer
    if not run.options.finalize_summary:
        return {"answer": answer}, Finished()
    yield Say(keep={"answer": answer})
    question = ask(run, "summary", role="summary", say=(prompt.SUM_UP,))
    if breach := run.ledger.breach(question.price):
        return {"summary_error": f"the limit is reached, {breach}"}, Finished()
    try:
        reply = yield from do(question)
    except AgentError as error:
        return {"summary_error": cause(error)}, Finished()
    return {"summary_error": CUT} if was_cut(reply) else {"answer": reply.text}, Finished()


halt = State(S.HALT, holds=lambda c, came_from: "" if c.error else "no reason was given")


# -- the result (4.7) -----------------------------------------------------------------------------

EXITS: Mapping[str, str] = {
    "answered": "the model answered without asking for a tool",
    "finished": "simple mode: the model decided on the action `finish`",
    "done": "simple mode: a tool returned an object with `done: true`",
    "converged": "the policy says that enough is done",
    "stopped": "the decision on the plan was to stop; nothing was carried out",
    "no_observations": "the loop had nothing to look at",
    "plan_failed": "there is no plan: the model could not be asked, or its plan does not fit `plan_schema`",
    "invalid_plan": "the plan has no goal, and neither has the run",
    "invalid_decision": "what the hook or the model decided cannot be used",
    "policy_violation": "the policy forbids the plan, carrying it out, or a call",
    "hook_failed": "the hook `converged` or `input_builder` failed",
    "execution_failed": "the model could not be asked for the next proposal, or its answer was cut off",
    "tool_failure": "a tool failed, and `on_tool_error` is `halt`",
    "unknown_outcome": "the outcome of an unsafe tool is unknown",
    "invalid_arguments": "the arguments of a tool call are not JSON",
    "max_iterations": "`max_iterations` iterations were made without an answer",
    "time_limit": "the run took longer than `time_limit`",
    "budget": "one of `budgets` is used up; the error names it",
}
DONE = ("answered", "finished", "done", "converged", "stopped", "no_observations")


def result(c: Planner, run: Run) -> Exit:
    """How a run ended, with its audit records. HALT raises (R-003-9)."""
    done, planned = c.exit_reason in DONE, run.options.mode == "plan"
    reason = c.exit_reason or "running"
    ended: JsonObject = {"done": done, "iterations": c.iteration}
    ended |= {"final_message": c.answer or ""} if done else {"error": c.error or reason}
    outcome: JsonObject = {**ended, "fsm_history": list(c.history)}
    if c.summary_error:
        outcome["summary_error"] = c.summary_error
    if planned:
        made = c.state.get("plan")
        decision: JsonObject | None = {"action": "plan", "params": made} if made else None
        audit: JsonObject = {"input": run.input.goal or None, "decision": decision, "result": ended}
        outcome |= {"state": shared(c), "audit": [audit]}
    else:
        newest = c.observations[-1]["result"] if c.observations else None
        outcome |= {"state": dict(c.state), "result": newest, "audit": list(c.observations)}
    return Exit(
        reason=reason,
        ok=done,
        answer=c.answer if done else None,
        error=f"Agent halted: {c.error}" if c.error else None,
        outcome=outcome,
        raises=_raised(reason, planned) if c.error else None,
    )


def _raised(reason: str, planned: bool) -> str:
    if reason == "max_iterations":
        return "MaxIterationsExceeded"
    return "PolicyViolation" if reason == "policy_violation" and not planned else "ExecutionError"


STATES = (take_in, plan, decide, execute, observe, loop_check, finalize, halt)


def build_machine(options: Options) -> Machine:
    """The machine of the mode: without a plan there are no states to make one and decide on it."""
    table = TABLES[options.mode]
    return Machine(
        name="planner",
        description="Plan once, decide, then propose and observe in a loop; `mode: simple` has no plan.",
        options=Options,
        context=Planner,
        begin=partial(begin, options.mode),
        initial=S.INTAKE,
        table=table,
        states=[one for one in STATES if one.name in table or one is halt],
        step=S.EXECUTE,
        on_close=lambda c, reason: {"exit_reason": reason},
        on_reopen=lambda c: (S.EXECUTE, end_forgotten(Planner, {*ENDS, "answer", "summary_error"})),
        result=result,
        prepare=prepare,
        # Three moves an iteration and some around: the limit is `max_iterations` alone (R-003-8).
        max_transitions=lambda options: 3 * options.max_iterations + 10,
        caps=lambda options: {"iterations": options.max_iterations + 1},
        max_effects=10_000,
        roles=("default", "planner", "decide", "summary"),
        plain_replies=False,
        exits=EXITS,
    )


MACHINE = build_machine(Options())
