"""The planner with a plan: make one, decide on it, then let the model propose while code judges and runs the
tools (spec 4.2).

Reading order: the table, then the states in its order. Plans are read in `plan.py`; `policy.py` says what
may be done and when enough is done, `proposed_calls.py` runs a tool; `loop.py` has what both planners share.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from workflows.machines.authoring import (
    AgentError,
    Append,
    AskModel,
    CallTools,
    Exit,
    JsonObject,
    Message,
    Run,
    RunInput,
    Say,
    Visit,
    VisitEnd,
    do,
    state,
)
from workflows.machines.common.json_text import (
    REPLY_CUT,
    NotJson,
    cut,
    read_arguments,
    read_object,
    shown_name,
    shown_value,
    unread,
    was_cut,
)
from workflows.machines.common.named_parts import call_user_function
from workflows.machines.planner import prompt
from workflows.machines.planner.context import Planner, shared
from workflows.machines.planner.loop import (
    ENDS,
    MAX_ITERATIONS,
    SHARED,
    Continued,
    Finished,
    Halted,
    Observed,
    Planned,
    Proposed,
    S,
    Stopped,
    Table,
    TakenIn,
    ask,
    end_of,
    exit_of,
    first_state,
    halt,
    halted,
    loop_end,
    recorded,
    with_summary,
)
from workflows.machines.planner.plan import CONTINUE_SCHEMA, continue_of, plan_of
from workflows.machines.planner.policy import Proposal, cause, confidence_of, text_from
from workflows.machines.planner.proposed_calls import CallFailure, forbidden, marked, ran

TABLE: Table = {
    S.INTAKE: {TakenIn: S.PLAN},
    S.PLAN: {Planned: S.DECIDE, Halted: S.HALT},
    S.DECIDE: {Continued: S.EXECUTE, Stopped: S.FINALIZE, Halted: S.HALT},
    S.EXECUTE: {Proposed: S.OBSERVE, Stopped: S.FINALIZE, Halted: S.HALT},
    S.OBSERVE: {Observed: S.LOOP_CHECK},
    S.LOOP_CHECK: {Continued: S.EXECUTE, Stopped: S.FINALIZE, Halted: S.HALT},
    S.FINALIZE: {Finished: S.END},
}


def begin(input: RunInput) -> tuple[Planner, list[Message]]:
    """The conversation that carries out the plan."""
    return Planner(), prompt.opening(input)


# -- INTAKE, PLAN, DECIDE -------------------------------------------------------------------------


@state(S.INTAKE, writes={"state"})
def take_in(c: Planner, run: Run) -> VisitEnd:
    """Put the goal into the shared state."""
    return first_state(run), TakenIn("Input normalized", quiet=True)


@state(S.PLAN, asks={AskModel}, reads=SHARED, writes={"state", *ENDS})
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
    if violation := prepared.policy.violation(Proposal("plan", made, confidence_of(made)), lambda: shared(c)):
        return halted("policy_violation", f"Plan failed: Policy violation: {violation}")
    yield Say(say=(Message(role="assistant", content=reply.text),))
    return {"state": {**c.state, "plan": made}}, Planned("Plan created")


@state(S.DECIDE, asks={AskModel}, reads=SHARED, writes={"state", *ENDS})
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
    why = str(decision["reason"])
    if not decision["continue"]:
        return {**patch, "exit_reason": "stopped"}, Stopped(why or "Decision: stop", thought=why, quiet=True)
    proposal = Proposal("execute", made, confidence_of(answer))
    if violation := run.prepared.policy.violation(proposal, lambda: shared(c)):
        return halted("policy_violation", f"Policy violation: {violation}")
    yield Say(say=(prompt.CARRY_OUT,))
    return patch, Continued(why or "Decision: continue", thought=why, quiet=True)


def _answer(c: Planner, run: Run, made: JsonObject) -> Generator[Any, Any, Any]:
    """What the hook or the model decides. Raises AgentError."""
    if run.options.decide == "model":
        say = prompt.decision_prompt(run.input, made, run.notes)
        reply = yield from do(ask(run, "decide", CONTINUE_SCHEMA, role="decide", beside=True, say=say))
        given = read_object(reply.text)
        return NotJson(unread(reply, given.problem)) if isinstance(given, NotJson) else given
    if run.prepared.decider:
        answer = call_user_function("hook", run.prepared.decider, made, shared(c))
        return dict(answer) if isinstance(answer, Mapping) else answer
    return {"continue": True}


# -- EXECUTE: the model proposes ------------------------------------------------------------------


@state(S.EXECUTE, asks={AskModel}, counts="iterations", writes={*ENDS, "iteration", "cut"})
def execute(c: Planner, run: Run) -> Visit:
    """Ask with the whole conversation; count the iteration, whatever comes of it. A reply without native tool
    calls is the answer."""
    if c.iteration >= run.options.max_iterations:
        return halted("max_iterations", MAX_ITERATIONS)
    number = c.iteration + 1
    try:
        reply = yield from do(ask(run, f"execute #{number}", run.input.output, offer=run.input.tool_names))
    except AgentError as error:
        return halted("execution_failed", f"Execution failed: {cause(error)}", iteration=number)
    if calls := reply.tool_calls:
        names = "; ".join(f"{shown_name(call.name)}({call.arguments})" for call in calls)
        event = Proposed(f"Tool calls requested: {names[:300]}", quiet=True)
        return {"cut": was_cut(reply), "iteration": number}, event
    if was_cut(reply):
        return halted("execution_failed", f"Execution failed: {REPLY_CUT}", iteration=number)
    return {"exit_reason": "answered", "iteration": number}, Stopped("No tool calls requested", quiet=True)


# -- OBSERVE: code judges and does ----------------------------------------------------------------


@state(
    S.OBSERVE,
    asks={CallTools},
    reads={*SHARED, "marks", "cut"},
    writes={*ENDS, "observations", "marks"},
)
def observe(c: Planner, run: Run) -> Visit:
    """The only place where tools run. A halt is only asked for here; LOOP_CHECK decides it, and what was
    observed before it is kept (R-003-4)."""
    assert run.reply is not None
    calls = run.reply.tool_calls
    for number, call in enumerate(calls, start=1):
        arguments = read_arguments(call.arguments)
        if isinstance(arguments, NotJson):
            wrong = f"{call.arguments[:200]!r} for {shown_name(call.name)}: {arguments.problem}"
            text = f"Invalid tool call arguments {wrong}{f'; {REPLY_CUT}' if c.cut else ''}"
            return halted("invalid_arguments", text, Observed)
        proposal = Proposal(call.name, arguments)
        outcome = forbidden(c, run, proposal, calls) or (yield from ran(run, proposal, call.id, number))
        if isinstance(outcome, CallFailure) and outcome.halts:
            return halted(outcome.reason, outcome.halts, Observed)
        record: JsonObject = {"tool_call_id": call.id, "name": cut(call.name)}
        if isinstance(outcome, CallFailure):
            record["error"], marks = outcome.error, c.marks
        else:
            record["result"], marks = shown_value(outcome.output), marked(c, outcome)
        kept = {"observations": Append(record), "marks": marks}
        yield Say(say=(prompt.tool_message(record),), keep=kept)
    return {}, Observed(f"Tools executed: {len(calls)}", quiet=True)


# -- LOOP_CHECK, FINALIZE -------------------------------------------------------------------------


@state(S.LOOP_CHECK, reads={*SHARED, "error", "marks"}, writes=ENDS)
def loop_check(c: Planner, run: Run) -> VisitEnd:
    """Go on, end or halt: in exactly this order (spec 4.5)."""
    if c.error:
        return {}, Halted(c.error)
    if c.iteration >= run.options.max_iterations:
        return halted("max_iterations", MAX_ITERATIONS)
    return loop_end(c, run) or ({}, Continued("Continuing", quiet=True))


@state(S.FINALIZE, asks={AskModel}, writes={"answer", "summary_error"})
def finalize(c: Planner, run: Run) -> Visit:
    """The final message is the answer, whatever its role (4.7)."""
    return (yield from with_summary(run, run.tail[-1].content))


STATES = (*recorded(TABLE, take_in, plan, decide, execute, observe, loop_check), finalize, halt)


def result(c: Planner, run: Run) -> Exit:
    """How a run ended, with one audit record of the whole run."""
    made = c.state.get("plan")
    decision: JsonObject | None = {"action": "plan", "params": made} if made else None
    audit: JsonObject = {"input": run.input.goal or None, "decision": decision, "result": end_of(c)}
    return exit_of(c, state=shared(c), audit=[audit])
