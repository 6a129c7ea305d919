"""The planner without a plan: one proposal `{action, params, confidence}` at a time, as JSON, until it is
`finish` (spec 4.10).

Reading order: the table, then the states in its order. A proposal is read in `reply.py`; `policy.py` says
what may be done and when enough is done, `proposed_calls.py` runs a tool; `loop.py` has what both planners
share.
"""

from __future__ import annotations

from typing import Any

from workflows.machines.authoring import (
    AgentError,
    Append,
    AskModel,
    CallTools,
    Exit,
    Message,
    Run,
    RunInput,
    Say,
    Visit,
    VisitEnd,
    do,
    state,
)
from workflows.machines.common.json_text import NotJson, as_text, merged, shown_value, unread
from workflows.machines.planner import prompt
from workflows.machines.planner.context import Planner
from workflows.machines.planner.loop import (
    ENDS,
    MAX_ITERATIONS,
    SHARED,
    Continued,
    Finished,
    Halted,
    Observed,
    Proposed,
    S,
    Stopped,
    Table,
    ask,
    exit_of,
    first_state,
    halt,
    halted,
    loop_end,
    recorded,
    with_summary,
)
from workflows.machines.planner.policy import Proposal, cause, text_from
from workflows.machines.planner.prompt import FINISH
from workflows.machines.planner.proposed_calls import CallFailure, forbidden, marked, ran
from workflows.machines.planner.reply import proposal_schema, read_proposal

TABLE: Table = {
    S.INTAKE: {Continued: S.EXECUTE},
    S.EXECUTE: {Proposed: S.OBSERVE, Halted: S.HALT},
    S.OBSERVE: {Observed: S.LOOP_CHECK},
    S.LOOP_CHECK: {Continued: S.EXECUTE, Stopped: S.FINALIZE, Halted: S.HALT},
    S.FINALIZE: {Finished: S.END},
}


def begin(input: RunInput) -> tuple[Planner, list[Message]]:
    """The conversation that decides on one action after the other."""
    return Planner(given=input.goal), prompt.action_prompt(input)


# -- INTAKE, EXECUTE: the model decides on an action ----------------------------------------------


@state(S.INTAKE, writes={"state"})
def take_in(c: Planner, run: Run) -> VisitEnd:
    """Put the goal into the shared state."""
    return first_state(run), Continued("Input normalized", quiet=True)


@state(
    S.EXECUTE,
    asks={AskModel},
    counts="iterations",
    reads={"observations", "given"},
    writes={*ENDS, "iteration", "observations"},
)
def execute(c: Planner, run: Run) -> Visit:
    """Ask with the whole conversation; count the iteration, whatever comes of it. What cannot be read is
    audited, too."""
    if c.iteration >= run.options.max_iterations:
        return halted("max_iterations", MAX_ITERATIONS)
    number = c.iteration + 1
    try:
        reply = yield from do(ask(run, f"execute #{number}", proposal_schema(run.input.tool_names)))
    except AgentError as error:
        text = f"Execution failed: {cause(error)}"
        return halted("execution_failed", text, iteration=number, **audited(c, None, {"error": text}))
    read = read_proposal(reply.text)
    if isinstance(read, NotJson):
        text = f"Execution failed: the decision cannot be read: {unread(reply, read.problem)}"
        return halted("invalid_decision", text, iteration=number, **audited(c, None, {"error": text}))
    return {"iteration": number}, Proposed(f"Decided: {read.title}", thought="", quiet=True)


def audited(c: Planner, proposal: Proposal | None, result: Any) -> dict[str, Any]:
    """The patch with the record of a step."""
    record = {"input": c.given, "decision": proposal.to_json() if proposal else None, "result": result}
    return {"observations": Append(record)}


# -- OBSERVE: code judges and does ----------------------------------------------------------------


@state(
    S.OBSERVE,
    asks={CallTools},
    reads={*SHARED, "marks", "given"},
    writes={*ENDS, *SHARED, "marks", "answer"},
)
def observe(c: Planner, run: Run) -> Visit:
    """Do the one action of the step. A halt is only asked for here; LOOP_CHECK decides it (R-003-4). What a
    tool returns is merged into the shared state (4.9)."""
    assert run.reply is not None
    proposal = read_proposal(run.reply.content)
    assert isinstance(proposal, Proposal)  # else EXECUTE would have halted
    failure = forbidden(c, run, proposal)
    if failure is None and proposal.action == FINISH:
        return _finished(c, proposal), Observed(FINISH, quiet=True)
    outcome = failure or (yield from ran(run, proposal, str(c.iteration), 1))
    if isinstance(outcome, CallFailure):
        patch = audited(c, proposal, {"error": outcome.error})
        if outcome.halts:
            return halted(outcome.reason, outcome.halts, Observed, **patch)
        return patch, Observed(outcome.error)
    value = shown_value(outcome.output)
    patch = {**audited(c, proposal, value), "marks": marked(c, outcome), "answer": outcome.output}
    if isinstance(value, dict):
        patch["state"] = merged(c.state, value)
        if value.get("done") is True:
            patch["exit_reason"] = "done"
    return patch, Observed("Tools executed: 1", quiet=True)


def _finished(c: Planner, proposal: Proposal) -> dict[str, Any]:
    """The action `finish`. Without an answer of its own, the newest result is the answer."""
    patch = {
        **audited(c, proposal, {"done": True}),
        "state": {**c.state, "done": True},
        "exit_reason": "finished",
    }
    if (answer := proposal.params.get("answer")) is not None:
        patch["answer"] = as_text(answer)
    return patch


# -- LOOP_CHECK, FINALIZE -------------------------------------------------------------------------


@state(S.LOOP_CHECK, reads={*SHARED, *ENDS, "marks"}, writes={*ENDS, "given"})
def loop_check(c: Planner, run: Run) -> Visit:
    """Go on, end or halt: in exactly this order (spec 4.5). Only EXECUTE looks at the iterations (4.10)."""
    if c.error:
        return {}, Halted(c.error)
    if c.exit_reason:  # the action `finish`, or a result with `done`
        return {}, Stopped(c.exit_reason)
    if ended := loop_end(c, run):
        return ended
    try:
        given = _next_input(c, run)
    except AgentError as error:
        return halted("hook_failed", cause(error))
    yield Say(say=(Message(role="user", content=given),), keep={"given": given})
    return {}, Continued("Continuing", quiet=True)


def _next_input(c: Planner, run: Run) -> str:
    """The input of the step after the newest one. Raises AgentError when the hook fails."""
    newest: Any = c.observations[-1]
    if builder := run.prepared.input_builder:
        return text_from("input builder", builder, newest["result"], c.iteration)
    return prompt.next_input(str(newest["decision"]["action"]), newest["result"])


@state(S.FINALIZE, asks={AskModel}, reads={"answer"}, writes={"answer", "summary_error"})
def finalize(c: Planner, run: Run) -> Visit:
    """The answer of `finish`, or else the newest result, is the answer."""
    return (yield from with_summary(run, c.answer))


STATES = (*recorded(TABLE, take_in, execute, observe, loop_check), finalize, halt)


def result(c: Planner, run: Run) -> Exit:
    """How a run ended, with an audit record of each step. A policy violation leaves the run as such."""
    newest = c.observations[-1]["result"] if c.observations else None
    raises = "PolicyViolation" if c.exit_reason == "policy_violation" else "ExecutionError"
    return exit_of(c, raises, state=dict(c.state), result=newest, audit=list(c.observations))
