"""The contract's decision round with budgets and wrap-up, and a machine made from data."""

from __future__ import annotations

from dataclasses import make_dataclass
from enum import Enum
from typing import Annotated, Any

import pytest

from activities.contracts import (
    CallModel,
    CallTools,
    Frozen,
    JsonObject,
    Message,
    ModelReplied,
    ToolRun,
    ToolsReturned,
    Transcript,
)
from tests.kernel.test_hard_visits import RESULTS, _event, play
from workflows.kernel.errors import DefinitionError, MachineError
from workflows.kernel.fields import APPEND, COUNT, FIRST, MERGE
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import At, Exit, Machine, Move, Row, State

# -- the contract: one decision round -------------------------------------------------------------------

COUNTERS = ("decisions", "tools", "explore")
CAPS = {"decisions": 2, "tools": 2, "explore": 2, "answer/explore": 1}


class K(Enum):
    """The nodes of spec 5.2, the tool node left out."""

    DECISION = "decision"
    EXIT = "exit"


class Contract(Frozen):
    """What the contract machine remembers; its budgets roll back with it."""

    budget: Ledger = Ledger(caps=CAPS, advice=("answer/explore",))
    pending_reason: Annotated[str | None, FIRST] = None
    exit_reason: str | None = None
    wrapup_trigger: str | None = None
    is_wrapup: bool = False
    decision: str = ""
    slots: Annotated[JsonObject, MERGE] = {}
    round: Annotated[int, COUNT] = 0


Rerun, Granted, WrappedUp = _event("Rerun"), _event("Granted"), _event("WrappedUp")
FINDS = CallTools(runs=(ToolRun(id="1", tool="read_artifact"),))


def _line(c: Any) -> str:
    stage = c.budget.line(["explore"], "answer")
    return f"BUDGET_STATE: global({c.budget.line(COUNTERS)})\n        stage[answer]({stage})"


def _decide(c: Any, at: At) -> Any:
    if not c.is_wrapup and c.budget.left("decisions") == 0:
        return {"pending_reason": "max_iterations", "exit_reason": "max_iterations"}, Granted()
    return CallModel(transcript=_prompt(_line(c)), label=f"decide #{c.round + 1}")


def _prompt(text: str) -> Any:
    return Transcript([Message(role="user", content=text)])


def _decided(c: Any, answer: Any, at: At) -> Any:
    """First the model, then the artifacts that its mapping names, then the mapping; one round."""
    if isinstance(answer, ModelReplied):
        return {"decision": answer.text, "round": 1}, FINDS
    charged = c.budget if c.is_wrapup else c.budget.charge({"decisions": 1, "explore": 1}, "", "answer")
    patch: dict[str, Any] = {"slots": {"answer": answer.results[0].output}, "budget": charged}
    if c.decision == "rerun":
        return patch, Rerun()
    # Two reasons in one round: the first that was written stays (R-004-3).
    reason = c.pending_reason or ("clarify" if c.decision == "clarify" else "complete")
    return {**patch, "pending_reason": reason, "exit_reason": reason}, Granted(reason)


def _wrap_up(c: Contract, move: Move, at: At) -> Any:
    if c.is_wrapup or "answer" in c.slots:
        return None
    return {"wrapup_trigger": c.exit_reason, "exit_reason": None, "is_wrapup": True}, WrappedUp()


def _contract() -> Machine[Any]:
    fields = set(Contract.model_fields)
    return Machine(
        name="contract", context=Contract, initial=K.DECISION, final={K.EXIT}, hold_back=_wrap_up,
        table=[
            Row(K.DECISION, Rerun, K.DECISION, reset=("pending_reason", "decision")),
            Row(K.DECISION, WrappedUp, K.DECISION, reset=("pending_reason", "decision")),
            Row(K.DECISION, Granted, K.EXIT),
        ],
        states={
            K.DECISION: State(
                enter=_decide, resume=_decided, grants={"call_model", "call_tools"}, spends="rounds",
                tools=frozenset({"read_artifact"}),
                reads=fields, writes=fields - {"is_wrapup", "wrapup_trigger"},
            ),
            K.EXIT: State(holds=lambda c, last: c.exit_reason is not None),
        },
        result=lambda c, s: Exit(
            reason=c.exit_reason or "", ok="answer" in c.slots, outcome={"trigger": c.wrapup_trigger}
        ),
    )  # fmt: skip


RERUN, DONE = ModelReplied(text="rerun"), ModelReplied(text="complete")
FOUND: ToolsReturned = RESULTS


def test_a_round_asks_the_model_reads_artifacts_and_maps_in_one_visit() -> None:
    step, effects, log = play(_contract(), Contract(), RERUN, FOUND, DONE, FOUND)
    assert [e.kind for e in effects if e] == ["call_model", "call_tools"] * 2
    lines = [e.transcript.messages[0].content for e in effects if isinstance(e, CallModel)]
    assert lines[0].endswith("explore left 2/2)\n        stage[answer](explore left 1/1)")
    assert lines[1] == (
        "BUDGET_STATE: global(decisions left 1/2, tools left 2/2, explore left 1/2)\n"
        "        stage[answer](explore left 0/1)"
    )
    assert step.exit == Exit(reason="complete", ok=True, outcome={"trigger": None})
    assert log == ["decision: call_tools", "decision: Rerun", "decision: call_tools", "decision: Granted"]
    assert step.snapshot.context.budget.used("answer/explore") == 2


def test_the_first_pending_reason_of_a_round_wins_and_the_next_round_starts_without() -> None:
    step, _, _ = play(_contract(), Contract(pending_reason="decision_no_progress"), DONE, FOUND)
    assert step.exit is not None
    assert step.exit.reason == "decision_no_progress"
    step, _, _ = play(_contract(), Contract(pending_reason="decision_no_progress"), RERUN, FOUND, DONE, FOUND)
    assert step.exit is not None
    assert step.exit.reason == "complete"


def test_an_exit_with_open_slots_is_held_back_for_one_round_that_is_charged_to_nothing() -> None:
    spent = Contract(budget=Contract().budget.charge({"decisions": 2}))
    step, _, log = play(_contract(), spent, DONE, FOUND)
    assert log == ["decision: HeldBack", "decision: WrappedUp", "decision: call_tools", "decision: Granted"]
    assert step.exit == Exit(reason="complete", ok=True, outcome={"trigger": "max_iterations"})
    assert step.snapshot.context.budget == spent.budget


# -- a machine made from data ---------------------------------------------------------------------------


class L(Enum):
    """The lifecycle of spec 3.2."""

    INITIALIZED = "Initialized"
    THINKING = "Thinking"
    ACTING = "Acting"
    OBSERVING = "Observing"
    FINISHED = "Finished"
    FAILED = "Failed"


class Shared(Frozen):
    """The state of spec 3.3, in short."""

    user_input: str | None = None
    iteration: Annotated[int, COUNT] = 0
    thought: str | None = None
    action: str | None = None
    observation: str | None = None
    final_answer: str | None = None
    last_error: JsonObject | None = None
    trace: Annotated[tuple[str, ...], APPEND] = ()


STAGES: list[dict[str, Any]] = [
    {"name": "load", "enters": "Initialized", "exits": ["Thinking"], "reads": ["user_input"], "writes": []},
    {
        "name": "think", "enters": "Thinking", "exits": ["Acting", "Observing"],
        "reads": ["user_input", "iteration", "observation"], "writes": ["thought"],
    },
    {"name": "act", "enters": "Acting", "exits": ["Observing"], "reads": ["thought"], "writes": ["action"]},
    {
        "name": "observe", "enters": "Observing", "exits": ["Thinking", "Finished"],
        "reads": ["thought", "action", "iteration"], "writes": ["observation", "final_answer"],
    },
]  # fmt: skip
INVARIANTS: dict[L, Any] = {
    L.INITIALIZED: lambda c, last: "" if c.user_input else "no user input",
    L.ACTING: lambda c, last: c.thought is not None,
    L.OBSERVING: lambda c, last: "action not set" if last and last.state == "Acting" and not c.action else "",
    L.FINISHED: lambda c, last: bool(c.final_answer),
    L.FAILED: lambda c, last: c.last_error is not None,
}
To = {state: make_dataclass(f"To{state.value}", [("reason", str, "")], frozen=True) for state in L}


def _staged(stages: list[dict[str, Any]], **executes: Any) -> Machine[Any]:
    """A row for each exit of each stage; the way back to Thinking counts and clears (R-002-6)."""

    def row(source: L, target: L) -> Row:
        if (source, target) != (L.OBSERVING, L.THINKING):
            return Row(source, To[target], target)
        count: Any = lambda event, c: {"iteration": 1}  # noqa: E731  # an action of one line
        return Row(source, To[target], target, None, count, ("thought", "action"), {"iteration"})

    rows = [row(L(s["enters"]), L(target)) for s in stages for target in s["exits"]]
    states = {
        L(s["enters"]): State(
            enter=executes[s["name"]], reads=set(s["reads"]), writes=set(s["writes"]),
            enforce=s.get("enforce", True), holds=INVARIANTS.get(L(s["enters"])), spends="stages",
        )
        for s in stages
    }  # fmt: skip
    states |= {state: State(holds=INVARIANTS[state]) for state in (L.FINISHED, L.FAILED)}
    return Machine(
        name="staged", context=Shared, initial=L.INITIALIZED, final={L.FINISHED, L.FAILED}, states=states,
        table=rows, fail_state=L.FAILED, on_violation=_last_error,
        result=lambda c, s: Exit(reason=s.value, ok=s is L.FINISHED, answer=c.final_answer),
    )  # fmt: skip


def _last_error(error: MachineError, c: Shared) -> dict[str, Any]:
    return {"last_error": {"code": type(error).__name__, "stage": error.state, "message": error.problem}}


def _observe(c: Any, at: At) -> Any:
    if c.iteration < 2:
        return {"observation": c.action}, To[L.THINKING]()
    return {"final_answer": "42"}, To[L.FINISHED]()


GOOD: dict[str, Any] = {
    "load": lambda c, at: To[L.THINKING](),
    "think": lambda c, at: ({"thought": f"pass {c.iteration}"}, To[L.ACTING]()),
    "act": lambda c, at: ({"action": f"did {c.thought}"}, To[L.OBSERVING]()),
    "observe": _observe,
}


def test_stages_from_data_pass_round_by_round_and_the_way_back_clears() -> None:
    step, _, log = play(_staged(STAGES, **GOOD), Shared(user_input="why?"))
    assert step.exit == Exit(reason="Finished", ok=True, answer="42")
    assert (step.snapshot.context.iteration, step.snapshot.context.observation) == (2, "did pass 1")
    assert log[3:5] == ["Observing: ToThinking", "Thinking: ToActing"]
    assert len(log) == 1 + 3 * 3


def _says(*said: Any) -> Any:
    return lambda c, at: said if len(said) > 1 else said[0]


DONE_NOW = To[L.FINISHED]()
PEEK: Any = lambda c, at: ({"observation": c.user_input}, DONE_NOW)  # noqa: E731  # a stage of one line
NO_INPUT = _says(To[L.THINKING]())
BROKEN: list[Any] = [
    ("load", NO_INPUT, "InvariantViolation", "Initialized", "no user input"),
    ("act", _says(To[L.OBSERVING]()), "InvariantViolation", "Acting", "action not set"),
    (
        "observe",
        _says({"thought": "x"}, DONE_NOW),
        "PermissionViolation",
        "Observing",
        "'thought' was written",
    ),
    ("observe", PEEK, "PermissionViolation", "Observing", "'user_input' was read"),
    ("think", _says(DONE_NOW), "NoTransitionError", "Thinking", "came; expected ToActing or ToObserving"),
    ("think", _says(None), "EmptyPatch", "Thinking", "the state said nothing"),
    ("observe", _says(DONE_NOW), "InvariantViolation", "Observing", "the invariant of Finished"),
]


@pytest.mark.parametrize(("name", "executes", "code", "stage", "message"), BROKEN)
def test_a_stage_that_breaks_its_declaration_leads_to_failed_with_last_error(
    name: str, executes: Any, code: str, stage: str, message: str
) -> None:
    machine = _staged(STAGES, **{**GOOD, name: executes})
    step, _, log = play(machine, Shared(user_input=None if executes is NO_INPUT else "why?"))
    error = step.snapshot.context.last_error
    assert (error["code"], error["stage"]) == (code, stage)
    assert message in error["message"]
    assert step.exit is not None
    assert (step.exit.reason, log[-1]) == ("Failed", f"{stage}: {code}")


def test_enforcement_off_for_one_stage_lets_its_write_through() -> None:
    open_stages = [{**s, "enforce": s["name"] != "observe"} for s in STAGES]
    wild = {"observe": lambda c, at: ({"trace": ("wild",), "final_answer": "42"}, To[L.FINISHED]())}
    step, _, _ = play(_staged(open_stages, **{**GOOD, **wild}), Shared(user_input="why?"))
    assert step.snapshot.context.trace == ("wild",)


def test_bad_data_is_named_when_the_machine_is_made() -> None:
    bad = [{**s, "reads": [*s["reads"], "usr_input"]} if s["name"] == "act" else s for s in STAGES]
    with pytest.raises(DefinitionError, match="state Acting declares the unknown field 'usr_input' in reads"):
        _staged(bad, **GOOD)
    lost = [{**s, "exits": ["Finished"]} if s["name"] == "observe" else s for s in STAGES[:2] + STAGES[3:]]
    with pytest.raises(DefinitionError, match=r"\(Thinking, ToActing, Acting\) names the unknown state"):
        _staged(lost, **GOOD)
