"""Runs of the planner machine: one list of answers is one run (spec 4)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from activities.contracts import CallTools, ModelReplied, NativeCall
from tests.machines.answers import cut, failed, ran, replied
from tests.machines.play import Played, Reaction, play, program_of, tool
from workflows.kernel.errors import PolicyViolation
from workflows.kernel.machine import Extensions
from workflows.machines.planner import Options, Proposal, build_machine

TOOLS = (tool("look"), tool("write"))


def plan(goal: Any = "know it", **more: Any) -> ModelReplied:
    """A plan."""
    return replied(json.dumps({"goal": goal, **more}))


def verdict(go_on: Any, **more: Any) -> ModelReplied:
    """What a model decides on the plan."""
    return replied(json.dumps({"continue": go_on, **more}))


def calls(*wanted: str | tuple[str, str], text: str = "") -> ModelReplied:
    """A reply with native calls: a name, or a name and the text of its arguments."""
    pairs = [(one, "{}") if isinstance(one, str) else one for one in wanted]
    made = [NativeCall(id=f"c{n}", name=name, arguments=given) for n, (name, given) in enumerate(pairs)]
    return ModelReplied(text=text, tool_calls=tuple(made), finish_reason="tool_calls")


def act(action: Any, confidence: Any = None, **params: Any) -> ModelReplied:
    """A decision in simple mode."""
    sure = {} if confidence is None else {"confidence": confidence}
    return replied(json.dumps({"action": action, "params": params, **sure}))


def fails(*_: Any) -> Any:
    """A hook that fails."""
    raise ValueError("oops")


def no_plan(decision: Proposal, state: Any) -> None:
    """A policy against plans."""
    if decision.action == "plan":
        raise PolicyViolation("no plans")


HOOKS: dict[str, Any] = {
    "fails": fails,
    "three": lambda *_: 3,
    "stop": lambda plan, state: MappingProxyType({"continue": False, "reason": "enough"}),
    "no_plan": no_plan,
    "no_execute": lambda decision, state: "not today" if decision.action == "execute" else None,
    "no_bad": lambda decision, state: "bad" if decision.params.get("q") == "bad" else None,
    "two": lambda state, progress: len(state["observations"]) > 1 and progress.includes("tool_called"),
    "seven": lambda state, progress: state.get("n") == 7,
    "builds": lambda goal, state: f"Plan for {goal}, begun {state['started_at'][:4]}",
    "counts": lambda result, iteration: f"{iteration}: {result}",
}


def planner(*answers: Reaction, **more: Any) -> Played:
    """A run with two tools; keywords are options, or fields of the run's input, hooks, ledger, both_ways."""
    known = {"goal", "instructions", "tools"}
    given = {"tools": TOOLS, **{name: more.pop(name) for name in list(more) if name in known}}
    hooks, ledger, both_ways = more.pop("hooks", HOOKS), more.pop("ledger", None), more.pop("both_ways", True)
    machine = build_machine(Options.model_validate(more))
    program = program_of(machine, more, extensions=Extensions(hooks=hooks), **given)
    return play(program, answers, ledger=ledger, both_ways=both_ways)


def simple(*answers: Reaction, **more: Any) -> Played:
    """A run without a plan."""
    return planner(*answers, mode="simple", **more)


def observed(run: Played) -> list[Any]:
    """The results and errors of the run's calls."""
    return [record.get("result", record.get("error")) for record in run.context.observations]


def used(run: Played) -> list[tuple[str, Any]]:
    """Tools that were run, with their arguments."""
    return [(e.calls[0].tool, e.calls[0].arguments) for e in run.effects if isinstance(e, CallTools)]


# -- the scripts ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Script:
    """A list of answers is one run."""

    name: str
    answers: tuple[Reaction, ...]
    path: str
    """The states by their first letters; E is EXECUTE, F is FINALIZE, `.` is the end behind it."""
    reason: str
    answer: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    """A part of it."""
    raises: str = "ExecutionError"
    """When there is an error."""


PLAN, ANSWER, LOOK, FINISH = plan(), replied("forty-two"), calls("look"), act("finish", answer="42")
TWO = calls(("look", '{"q": "a"}'), ("write", '{"q": "b"}'))
BAD = calls("look", ("look", '{"q": "bad"}'), "write")
SIMPLE, RECORD = {"mode": "simple"}, {"on_tool_error": "record", "on_policy_violation": "record"}
LOST = ran("nobody knows", "unknown_outcome")
MODEL: dict[str, Any] = {"decide": "model"}
TURN = "OLE"

SCRIPTS = [
    Script("answers at once", (PLAN, ANSWER), "IPDEF.", "answered", "forty-two"),
    Script("looks with tools first", (PLAN, TWO, ran(), ran(), LOOK, ran(), ANSWER),
           f"IPDE{TURN}{TURN}F.", "answered", "forty-two"),
    Script("an empty answer is an answer", (PLAN, replied("")), "IPDEF.", "answered", ""),
    Script("sums up", (PLAN, ANSWER, replied("in short: 42")), "IPDEF.", "answered", "in short: 42",
           {"finalize_summary": True}),
    # PLAN: whatever goes wrong leads to HALT
    Script("planner cannot be reached", (failed("transient", "down"),), "IPH", "plan_failed",
           error="Agent halted: Plan failed: down"),
    Script("plan is not JSON", (replied("I would look first"),), "IPH", "plan_failed", error="not JSON"),
    Script("plan does not fit", (plan(3),), "IPH", "plan_failed", error="goal: 3 is not of type"),
    Script("plan was cut off", (cut(replied('{"goal": "a')),), "IPH", "plan_failed", error="max_output"),
    Script("prompt builder fails", (), "IPH", "plan_failed", None, {"prompt_builder": "fails"},
           "the prompt builder failed: ValueError: oops"),
    Script("prompt builder returns no text", (), "IPH", "plan_failed", None, {"prompt_builder": "three"},
           "type int"),
    Script("R-003-11 policy forbids the plan", (PLAN,), "IPH", "policy_violation", None,
           {"policy": "no_plan"}, "Plan failed: Policy violation: no plans"),
    Script("R-003-11 plan is not sure of itself", (plan(confidence=0.4),), "IPH", "policy_violation", None,
           {"plan_schema": {}}, "Low confidence"),
    Script("a confidence of exactly a half passes", (plan(confidence=0.5), ANSWER), "IPDEF.", "answered",
           "forty-two", {"plan_schema": {}}),
    # DECIDE
    Script("a model decides to go on", (PLAN, verdict(True), ANSWER), "IPDEF.", "answered", "forty-two",
           MODEL),
    Script("a model decides to stop", (PLAN, verdict(False)), "IPDF.", "stopped", PLAN.text, MODEL),
    Script("a hook decides to stop", (PLAN,), "IPDF.", "stopped", PLAN.text, {"decide": "stop"}),
    Script("a decision to stop is not judged", (PLAN,), "IPDF.", "stopped", PLAN.text,
           {"decide": "stop", "policy": "no_execute"}),
    Script("R-003-11 policy forbids to go on", (PLAN,), "IPDH", "policy_violation", None,
           {"policy": "no_execute"}, "Agent halted: Policy violation: not today"),
    Script("model is not sure of its decision", (PLAN, verdict(True, confidence=0.1)), "IPDH",
           "policy_violation", None, MODEL, "Low confidence"),
    Script("R-003-1 hook returns no mapping", (PLAN,), "IPDH", "invalid_decision", None, {"decide": "three"},
           "expected a mapping"),
    Script("R-003-1 hook fails", (PLAN,), "IPDH", "invalid_decision", None, {"decide": "fails"},
           "the hook failed: ValueError: oops"),
    Script("R-003-1 decision is not boolean", (PLAN, verdict("yes")), "IPDH", "invalid_decision", None, MODEL,
           "expected a mapping"),
    Script("R-003-1 decision is not JSON", (PLAN, replied("go")), "IPDH", "invalid_decision", None, MODEL,
           "not JSON"),
    Script("R-003-1 model that decides fails", (PLAN, failed("fatal", "bad key")), "IPDH", "invalid_decision",
           None, MODEL, "bad key"),
    # EXECUTE
    Script("model fails", (PLAN, failed("fatal", "no luck")), "IPDEH", "execution_failed",
           error="Agent halted: Execution failed: no luck"),
    Script("an answer that was cut off is no answer", (PLAN, cut(ANSWER)), "IPDEH", "execution_failed",
           error="max_output_tokens"),
    Script("no iterations are allowed", (PLAN,), "IPDEH", "max_iterations", None, {"max_iterations": 0},
           "Max iterations exceeded", "MaxIterationsExceeded"),
    # OBSERVE: what goes wrong halts through LOOP_CHECK, unless it is to be recorded (R-003-4, R-003-5)
    Script("R-003-5 tool fails", (PLAN, TWO, ran("broken", "failed")), "IPDEOLH", "tool_failure",
           error="Agent halted: Tool failure: look: broken"),
    Script("R-003-5 tool cannot be run", (PLAN, LOOK, failed("fatal", "lost")), "IPDEOLH", "tool_failure",
           error="lost"),
    Script("R-003-5 failures are recorded",
           (PLAN, calls("look", "nosuch", "look"), ran("broken", "timeout"), failed("fatal"), ANSWER),
           f"IPDE{TURN}F.", "answered", "forty-two", RECORD),
    Script("unknown tool", (PLAN, calls("nosuch")), "IPDEOLH", "tool_failure",
           error="Tool failure: nosuch: Unknown tool: nosuch"),
    Script("R-003-5 policy forbids a call", (PLAN, BAD, ran()), "IPDEOLH", "policy_violation", None,
           {"policy": "no_bad"}, "Agent halted: Policy violation: bad"),
    Script("R-003-5 violations are recorded", (PLAN, BAD, ran(), ran(), ANSWER), f"IPDE{TURN}F.",
           "answered", "forty-two", {"policy": "no_bad", **RECORD}),
    Script("arguments are not JSON", (PLAN, calls(("look", "{oops"), "look")), "IPDEOLH",
           "invalid_arguments", None, RECORD, "Invalid tool call arguments '{oops' for look"),
    Script("arguments were cut off", (PLAN, cut(calls(("look", '{"q": "b')))), "IPDEOLH",
           "invalid_arguments", error="max_output_tokens"),
    Script("outcome is unknown", (PLAN, TWO, LOST), "IPDEOLH", "unknown_outcome", None, RECORD,
           "nobody knows"),
    Script("outcome of a call is unknown", (PLAN, TWO, failed("unknown_outcome")), "IPDEOLH",
           "unknown_outcome", None, RECORD, "server is down"),
    Script("a person rejects a call", (PLAN, LOOK, ran("too dear", "rejected"), ANSWER), f"IPDE{TURN}F.",
           "answered", "forty-two"),
    # LOOP_CHECK
    Script("takes all its iterations", (PLAN, LOOK, ran(), LOOK, ran()), f"IPDE{TURN}OLH",
           "max_iterations", None, {"max_iterations": 2}, "Max iterations exceeded", "MaxIterationsExceeded"),
    Script("answers in the last iteration", (PLAN, LOOK, ran(), ANSWER), f"IPDE{TURN}F.", "answered",
           "forty-two", {"max_iterations": 2}),
    Script("R-003-6 takes too long", (PLAN, LOOK, ran()), "IPDEOLH", "time_limit", None,
           {"time_limit": 3}, "Time limit exceeded"),
    Script("R-003-6 an answer that comes late counts", (PLAN, ANSWER), "IPDEF.", "answered", "forty-two",
           {"time_limit": 0.5}),
    Script("R-003-6 budget is used up", (PLAN, LOOK, ran(cost=0.5)), "IPDEOLH", "budget", None,
           {"budgets": {"cost_usd": 0.5}}, "Budget exceeded: cost_usd"),
    Script("converges by marks", (PLAN, LOOK, ran(marks=("a",)), LOOK, ran("y", marks=("b",))),
           f"IPDE{TURN}OLF.", "converged", '{"name": "look", "result": "y"}', {"converged": ["a", "b"]}),
    Script("converges by a hook", (PLAN, LOOK, ran(), LOOK, ran("y")), f"IPDE{TURN}OLF.", "converged",
           '{"name": "look", "result": "y"}', {"converged": "two"}),
    Script("hook `converged` fails", (PLAN, LOOK, ran()), "IPDEOLH", "hook_failed", None,
           {"converged": "fails"}, "the hook `converged` failed: ValueError: oops"),
    Script("hook `converged` returns no boolean", (PLAN, LOOK, ran()), "IPDEOLH", "hook_failed", None,
           {"converged": "three"}, "type int"),
    # without a plan (4.10)
    Script("simple: finishes at once", (FINISH,), "IEOLF.", "finished", "42", SIMPLE),
    Script("simple: acts first", (act("look", q="x"), ran(), FINISH), f"IE{TURN}OLF.", "finished", "42",
           SIMPLE),
    Script("simple: the last result is the answer", (act("look"), ran("seven"), act("finish")),
           f"IE{TURN}OLF.", "finished", "seven", SIMPLE),
    Script("simple: an answer of any kind is a text", (act("finish", answer={"a": [1]}),), "IEOLF.",
           "finished", '{"a": [1]}', SIMPLE),
    Script("simple: a result says done", (act("look"), ran('{"done": true}')), "IEOLF.", "done",
           '{"done": true}', SIMPLE),
    Script("simple: converges", (act("look"), ran('{"n": 7}')), "IEOLF.", "converged", '{"n": 7}',
           {**SIMPLE, "converged": "seven"}),
    Script("simple: convergence comes before the limit", (act("look"), ran("x")), "IEOLF.", "converged",
           "x", {**SIMPLE, "converged": ["tool_called"], "max_iterations": 1}),
    Script("simple: sums up", (FINISH, replied("in short")), "IEOLF.", "finished", "in short",
           {**SIMPLE, "finalize_summary": True}),
    Script("simple: takes all its steps", (act("look"), ran()), f"IE{TURN}H", "max_iterations", None,
           {**SIMPLE, "max_iterations": 1}, "Max iterations", "MaxIterationsExceeded"),
    Script("simple: is not sure", (act("look", 0.4),), "IEOLH", "policy_violation", None, SIMPLE,
           "Low confidence", "PolicyViolation"),
    Script("simple: no action", (act(None),), "IEOLH", "policy_violation", None, SIMPLE, "no action",
           "PolicyViolation"),
    Script("simple: finish is judged, too", (act("finish", 0.4),), "IEOLH", "policy_violation", None, SIMPLE,
           "Low confidence", "PolicyViolation"),
    Script("simple: reply is not a decision", (replied("hello"),), "IEH", "invalid_decision", None, SIMPLE,
           "not JSON"),
    Script("simple: model fails", (failed("fatal", "bad key"),), "IEH", "execution_failed", None, SIMPLE,
           "bad key"),
    Script("simple: tool fails", (act("look"), ran("broken", "failed")), "IEOLH", "tool_failure", None,
           SIMPLE, "broken"),
    Script("simple: unknown tool", (act("nosuch"),), "IEOLH", "tool_failure", None, SIMPLE, "nosuch"),
    Script("simple: outcome is unknown", (act("look"), LOST), "IEOLH", "unknown_outcome", None,
           {**SIMPLE, **RECORD}, "nobody knows"),
    Script("simple: failures are recorded", (act("nosuch"), act("look"), ran("broken", "failed"), FINISH),
           f"IE{TURN}{TURN}OLF.", "finished", "42", {**SIMPLE, **RECORD}),
    Script("simple: a person rejects a call", (act("look"), ran("too dear", "rejected"), FINISH),
           f"IE{TURN}OLF.", "finished", "42", SIMPLE),
    Script("simple: input builder fails", (act("look"), ran("found")), "IEOLH", "hook_failed", None,
           {**SIMPLE, "input_builder": "fails"}, "the input builder failed"),
    Script("simple: takes too long", (act("look"), ran()), "IEOLH", "time_limit", None,
           {**SIMPLE, "time_limit": 1}, "Time limit exceeded"),
]  # fmt: skip
