"""LOOP_CHECK's order (spec 4.5), the policy (4.8), state and progress (4.9)."""

from __future__ import annotations

import itertools
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.contracts import Frozen, JsonObject
from tests.machines.answers import tool_failed, tool_said
from tests.machines.driver import run_script
from tests.machines.plannerkit import path, planner, returned
from tests.machines.scripts_planner import ANSWER, PLAN, calls, plan
from workflows.kernel.errors import FatalError, PolicyViolation
from workflows.kernel.fields import MERGE, freeze
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import At
from workflows.machines.decisions import Decision, Policy, Progress, confidence_of, hook_named
from workflows.machines.planner_context import Context, Options
from workflows.machines.planner_events import GoesOn, Halted, Stopped
from workflows.machines.planner_fsm import S
from workflows.machines.planner_nodes import Nodes
from workflows.machines.planner_schema import plan_schema

LOOK = calls(("look", "{}"))
CONDITIONS = ("halt", "iterations", "time", "budget", "converged", "observations")
"""In the order of spec 4.5."""
OUTCOMES: dict[str, object] = {
    "halt": Halted("Tool failure: look: broken"),
    "iterations": Halted("Max iterations exceeded"),
    "time": Halted("Time limit exceeded"),
    "budget": Halted("Budget exceeded: tokens"),
    "converged": Stopped("Policy indicates convergence"),
    "observations": GoesOn(),
}


def checked(*holding: str) -> object:
    """What LOOP_CHECK says when these conditions hold."""
    knobs = Options(max_iterations=3, time_limit=60, budgets={"tokens": 100})
    nodes = Nodes(knobs, Policy(marks=("done",)), plan_schema(None))
    record: JsonObject = {"tool_call_id": "1", "name": "look", "result": "x"}
    c = Context(
        goal="g",
        error="Tool failure: look: broken" if "halt" in holding else None,
        iteration=3 if "iterations" in holding else 2,
        marks=("done",) if "converged" in holding else (),
        observations=(record,) if "observations" in holding else (),
    )
    spent = {"seconds": 60.0 if "time" in holding else 59, "tokens": 100.0 if "budget" in holding else 99}
    at = At(
        now=0,
        state=S.LOOP_CHECK,
        visit=1,
        call=0,
        step=1,
        transitions=5,
        last=None,
        ledger=Ledger(spent=spent),
    )
    said: Any = nodes.loop_check(c, at)
    return said[1] if isinstance(said, tuple) else said


@pytest.mark.parametrize("condition", CONDITIONS)
def test_each_condition_of_loop_check_leads_to_its_outcome(condition: str) -> None:
    assert checked(condition) == OUTCOMES[condition]


@pytest.mark.parametrize(("first", "second"), list(itertools.pairwise(CONDITIONS)))
def test_of_two_conditions_that_hold_the_first_wins(first: str, second: str) -> None:
    assert checked(first, second) == OUTCOMES[first]


@given(st.sets(st.sampled_from(CONDITIONS)))
def test_of_any_conditions_that_hold_the_first_wins(holding: set[str]) -> None:
    first = next((condition for condition in CONDITIONS if condition in holding), None)
    assert checked(*holding) == (OUTCOMES[first] if first else Stopped("No observations"))


# -- the same in whole runs --------------------


def test_the_limit_wins_over_convergence() -> None:
    run = planner(PLAN, LOOK, tool_said(), max_iterations=1, converged=["tool_called"])
    assert run.exit.reason == "max_iterations"


def test_a_halt_that_was_asked_for_wins_over_the_limit() -> None:
    run = planner(PLAN, LOOK, tool_failed("failed"), max_iterations=1)
    assert run.exit.reason == "tool_failure"


def test_r_003_6_a_run_that_took_too_long_is_halted() -> None:
    """R-003-6: `Time limit exceeded`, looked at in LOOP_CHECK; a second passes with every answer."""
    assert planner(PLAN, LOOK, tool_said(), ANSWER, time_limit=3.5).exit.ok
    run = planner(PLAN, LOOK, tool_said(), time_limit=3)
    assert (run.exit.reason, run.exit.error) == ("time_limit", "Agent halted: Time limit exceeded")
    assert path(run) == "I P D E O L H"


@pytest.mark.parametrize(("counter", "most"), [("model_calls", 2), ("tool_calls", 1), ("cost_usd", 0.5)])
def test_r_003_6_a_budget_that_is_used_up_halts_by_its_name(counter: str, most: float) -> None:
    """R-003-6: any counter of the ledger may have a budget."""
    run = planner(PLAN, LOOK, returned("x", cost=0.5), budgets={counter: most})
    assert (run.exit.reason, run.exit.error) == ("budget", f"Agent halted: Budget exceeded: {counter}")
    assert planner(PLAN, LOOK, returned("x", cost=0.5), ANSWER, budgets={counter: most + 1}).exit.ok


def test_r_003_6_an_answer_after_the_time_is_still_an_answer() -> None:
    """R-003-6: the check is LOOP_CHECK's, so an answer that comes late counts."""
    assert planner(PLAN, ANSWER, time_limit=0.5).exit.ok


def test_convergence_by_marks_needs_all_of_them() -> None:
    run = planner(PLAN, LOOK, returned("x", "a"), LOOK, returned("y", "b"), converged=["a", "b"])
    assert (run.exit.reason, run.exit.ok, run.exit.outcome["iterations"]) == ("converged", True, 2)


def test_convergence_by_a_hook_sees_state_and_progress() -> None:
    hooks = {"enough": lambda state, progress: len(state["observations"]) > 1 and progress.includes("a")}
    run = planner(PLAN, LOOK, returned("x", "a"), LOOK, tool_said(), converged="enough", hooks=hooks)
    assert run.exit.reason == "converged"


def _nothing(state: Any, progress: Any) -> Any:
    return state["nothing"]


@pytest.mark.parametrize(("hook", "words"), [
    (_nothing, "the hook `converged` failed: KeyError: 'nothing'"),
    (lambda state, progress: "yes", "answered a value of type str; expected True or False"),
    (lambda state, progress: state["observations"].append(1), "read-only"),
])  # fmt: skip
def test_a_convergence_hook_that_fails_halts_the_run(hook: Any, words: str) -> None:
    run = planner(PLAN, LOOK, tool_said(), converged="hook", hooks={"hook": hook})
    assert (run.exit.reason, path(run)) == ("policy_failed", "I P D E O L H")
    assert words in str(run.exit.error)


# -- the policy (4.8) --------------------


@pytest.mark.parametrize(("decision", "words"), [
    (Decision(None), "no action"),
    (Decision(""), "no action"),
    (Decision("look", confidence=0.49), "Low confidence"),
    (Decision("look", confidence=0.5), ""),
    (Decision("look", confidence=1), ""),
    (Decision("look"), ""),
])  # fmt: skip
def test_the_shipped_checks(decision: Decision, words: str) -> None:
    found = Policy().violation(decision, {})
    assert words in found
    assert bool(found) is bool(words)


def test_the_confidence_that_is_needed_is_a_knob() -> None:
    assert Policy(min_confidence=0).violation(Decision("look", confidence=0), {}) == ""
    assert Policy(min_confidence=0.9).violation(Decision("look", confidence=0.8), {})


def _raise(error: Exception) -> Any:
    def hook(decision: Any, state: Any) -> None:
        raise error

    return hook


@pytest.mark.parametrize(("hook", "found"), [
    (lambda decision, state: None, ""),
    (lambda decision, state: "", ""),
    (lambda decision, state: "not that", "not that"),
    (_raise(PolicyViolation("not so")), "not so"),
    (_raise(PolicyViolation()), "the policy forbids it"),
    (_raise(ValueError("oops")), "the policy failed: ValueError: oops"),
    (lambda decision, state: True, "the policy answered a value of type bool; expected None or what"),
    (lambda decision, state: False, "the policy answered a value of type bool; expected None or what"),
    (lambda decision, state: state.update(a=1), "the policy failed: TypeError: a context is read-only"),
])  # fmt: skip
def test_a_users_policy_is_asked_behind_the_shipped_checks(hook: Any, found: str) -> None:
    policy = Policy(validate=hook)
    assert policy.violation(Decision("look"), {}).startswith(found)
    assert bool(policy.violation(Decision("look"), {})) is bool(found)
    assert policy.violation(Decision(None), {}) == "the decision has no action"


@pytest.mark.parametrize("confidence", [30, 1.01, -0.1, float("nan"), float("inf"), 10**400, -(10**400)])
def test_a_confidence_outside_its_range_is_a_violation(confidence: Any) -> None:
    policy = Policy(min_confidence=0)
    found = policy.violation(Decision("look", confidence=confidence), {})
    assert found == "the confidence is outside its range; expected a number from 0 to 1"
    for edge in (0, 1, 0.0, 1.0):
        assert policy.violation(Decision("look", confidence=edge), {}) == ""


class Nonsense:
    """What a hook may answer, or raise inside an error: nothing of it can be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __bool__ = __len__ = __repr__


def _raise_nonsense(*_: Any) -> None:
    raise ValueError(Nonsense())


@pytest.mark.parametrize("hook", [lambda *_: Nonsense(), _raise_nonsense])
@pytest.mark.parametrize("knob", ["policy", "converged", "decide", "prompt_builder"])
def test_what_cannot_be_shown_ends_the_run_in_words(knob: str, hook: Any) -> None:
    run = planner(PLAN, LOOK, tool_said(), **{knob: "hook"}, hooks={"hook": hook})
    assert "Nonsense" in str(run.exit.error) or "ValueError" in str(run.exit.error)
    assert run.visited.endswith("HALT")


@pytest.mark.parametrize("knob", ["policy", "decide"])
def test_a_reason_that_quotes_a_megabyte_is_cut(knob: str) -> None:
    much = "x" * 1_000_000
    answers: dict[str, Any] = {"policy": much, "decide": {"continue": False, "reason": much}}
    run = planner(PLAN, **{knob: "hook"}, hooks={"hook": lambda *_: answers[knob]})
    assert run.last.exit is not None
    assert sum(len(record.model_dump_json()) for record in run.records) < 50_000


@pytest.mark.parametrize("knob", ["policy", "prompt_builder", "decide"])
def test_halves_of_character_pairs_from_a_hook_do_no_harm(knob: str) -> None:
    answers: dict[str, Any] = {"decide": {"continue": True, "reason": "a\ud800"}}
    hook = {"hook": lambda *_: answers.get(knob, "a\ud800")}
    run = planner(PLAN, ANSWER, **{knob: "hook"}, hooks=hook)
    assert run.last.exit is not None


@pytest.mark.parametrize("point", ["plan", "execute", "look"])
def test_a_policy_cannot_change_what_it_is_asked_about(point: str) -> None:
    asked: list[str] = []

    def rule(decision: Any, state: Any) -> None:
        if decision.action == point:
            asked.append(point)
            for mapping in (decision.params, *(v for v in decision.params.values() if isinstance(v, dict))):
                with pytest.raises(TypeError, match="read-only"):
                    mapping["q"] = "mine"

    call = calls(("look", '{"q": "a", "more": {"q": "b"}}'))
    run = planner(plan(more={"q": "b"}), call, policy="rule", hooks={"rule": rule}, plan_schema={})
    effect: Any = run.last.effect
    assert asked == [point]
    assert effect.runs[0].arguments == {"q": "a", "more": {"q": "b"}}
    assert (run.context.state["plan"]["more"], run.context.state["plan"]["goal"]) == ({"q": "b"}, "know it")


def test_nothing_has_converged_unless_the_user_says_so() -> None:
    assert not Policy().has_converged({}, Progress(("done",)))
    assert Policy(converged=lambda state, progress: state["n"] == 1).has_converged({"n": 1}, Progress())
    with pytest.raises(FatalError):
        Policy(converged=lambda state, progress: None).has_converged({}, Progress())


@pytest.mark.parametrize(("given", "found"), [
    ({}, None), ({"confidence": 1}, 1.0), ({"confidence": 0.3}, 0.3), ({"confidence": True}, None),
    ({"confidence": "high"}, None), ({"confidence": 10**400}, 10**400),
])  # fmt: skip
def test_a_confidence_is_a_number(given: Any, found: float | None) -> None:
    assert confidence_of(given) == found


def test_an_unknown_hook_is_refused_with_what_there_is() -> None:
    assert hook_named(None, {}, "policy") is None
    with pytest.raises(ValueError, match="policy: unknown hook 'forbd'; did you mean forbid"):
        hook_named("forbd", {"forbid": print}, "policy")
    with pytest.raises(ValueError, match="HOOKS"):
        hook_named("x", {}, "decide")


@pytest.mark.parametrize("knob", ["policy", "converged", "decide", "prompt_builder"])
def test_a_machine_with_an_unknown_hook_is_not_built(knob: str) -> None:
    with pytest.raises(ValueError, match=f"{knob}: unknown hook 'nosuch'"):
        run_script("planner", (), options={knob: "nosuch"})


# -- progress and state (4.9) --------------------


def test_progress_is_a_set_of_marks_that_only_a_new_one_changes() -> None:
    empty = Progress()
    marked = empty.mark("a", "b").mark("a")
    assert marked.marks == ("a", "b")
    assert marked.includes("a", "b")
    assert not marked.includes("a", "c")
    assert marked.includes()
    assert (marked.clear(), empty) == (Progress(), Progress())


class Bag(Frozen):
    """A context with a state."""

    state: Annotated[JsonObject, MERGE] = {}


def test_a_patch_of_the_state_merges_mappings_deeply_and_replaces_all_else() -> None:
    old = freeze({"a": {"b": 1, "c": {"d": 2}}, "list": [1, 2], "n": 1})
    patch = {"a": {"c": {"e": 3}, "f": 4}, "list": [3], "n": {"x": 1}, "new": None}
    assert MERGE.fold(old, patch) == {
        "a": {"b": 1, "c": {"d": 2, "e": 3}, "f": 4}, "list": [3], "n": {"x": 1}, "new": None,
    }  # fmt: skip
    assert old == {"a": {"b": 1, "c": {"d": 2}}, "list": [1, 2], "n": 1}


def test_the_state_that_a_hook_sees_cannot_change_the_runs() -> None:
    def greedy(plan: Any, state: Any) -> Any:
        with pytest.raises(TypeError, match="read-only"):
            state["goal"] = "mine"
        with pytest.raises(TypeError, match="read-only"):
            state["plan"]["goal"] = "mine"
        return {"continue": True}

    run = planner(PLAN, decide="greedy", hooks={"greedy": greedy})
    assert path(run) == "I P D E"
    assert (run.context.state["goal"], run.context.state["plan"]["goal"]) == ("find out", "know it")
