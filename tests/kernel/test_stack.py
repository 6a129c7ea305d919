"""Machines inside machines: order, one log, merged outcome, limits, depth, broken inner machines."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from activities.contracts import (
    CallModel,
    EffectFailed,
    Frozen,
    InnerLimits,
    JsonObject,
    Message,
    ModelReplied,
    RunMachine,
    Transcript,
    Usage,
)
from workflows.kernel.errors import DefinitionError, TransitionLimitExceeded
from workflows.kernel.fields import APPEND, MERGE
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import STARTED
from workflows.kernel.machine import At, Exit, Machine, Row, State
from workflows.kernel.rebuild import rebuild
from workflows.kernel.stack import Nesting, Stack, answered, began, closed, noted
from workflows.kernel.step import Cause
from workflows.kernel.subgraph import Ended, Merge, Subgraph, merge_answer, merge_metadata, preceded


class S(Enum):
    """Before, inside, after."""

    BEFORE = "before"
    INSIDE = "inside"
    AFTER = "after"
    END = "end"


class Said:
    """The model has spoken."""

    reason = ""


class Notes(Frozen):
    """What both machines of these tests remember."""

    goal: str = ""
    said: Annotated[tuple[str, ...], APPEND] = ()
    metadata: Annotated[JsonObject, MERGE] = {}
    answer: str = ""
    result: JsonObject = {}


FIELDS = frozenset(Notes.model_fields)


def _speak(role: str = "default") -> State:
    def ask(c: Any, at: At) -> CallModel:
        return CallModel(transcript=Transcript([Message(role="user", content=c.goal)]), role=role)

    def heard(c: Any, reply: ModelReplied, at: At) -> Any:
        return {"said": (reply.text,)}, Said()

    return State(enter=ask, resume=heard, grants={"call_model"}, reads=FIELDS, writes=FIELDS, spends="rounds")


def inner_machine(name: str = "inner", role: str = "default") -> Machine[Notes]:
    """One model call; its outcome has keys that must not be merged."""
    return Machine(
        name=name,
        context=Notes,
        initial=S.BEFORE,
        final={S.END},
        table=[Row(S.BEFORE, Said, S.END)],
        states={S.BEFORE: _speak(role), S.END: State()},
        step_state=S.BEFORE,
        result=lambda c, state: Exit(
            reason="done",
            ok=True,
            answer=c.said[-1] if c.said else None,
            outcome={**c.metadata, "shared": "inner", "exit_reason": "done", "terminated": True},
        ),
    )


def outer_machine(inner: Subgraph) -> Machine[Notes]:
    """A call before, the inner machine, a call after."""
    return Machine(
        name="outer",
        context=Notes,
        initial=S.BEFORE,
        final={S.END},
        table=[
            Row(S.BEFORE, Said, S.INSIDE),
            Row(S.INSIDE, Ended, S.AFTER),
            Row(S.AFTER, Said, S.END),
        ],
        states={
            S.BEFORE: _speak(),
            S.INSIDE: inner.state(reads=FIELDS, writes=FIELDS),
            S.AFTER: _speak(),
            S.END: State(),
        },
        step_state=S.BEFORE,
        result=lambda c, state: Exit(reason="done", ok=True, answer=" ".join(c.said), outcome=c.metadata),
    )


def subgraph(merge: Merge = merge_metadata(), **more: Any) -> Subgraph:  # noqa: B008  # a pure function made once
    """The inner machine as a state."""
    return Subgraph(machine="inner", goal=lambda c: f"about {c.goal}", merge=merge, **more)


def nest(depth: int = 0, limit: int = 5, **machines: Machine[Any]) -> Nesting:
    """Inner machines by name."""
    known = {"inner": inner_machine(), **machines}

    def make(call: RunMachine, depth: int) -> tuple[Machine[Any], BaseModel]:
        if call.machine not in known:
            raise ValueError(f"unknown machine {call.machine}")
        return known[call.machine], Notes(goal=call.goal, metadata=call.values)

    return Nesting(make, depth, limit)


def said(text: str, tokens: int = 0) -> ModelReplied:
    """A reply."""
    return ModelReplied(text=text, usage=Usage(input_tokens=tokens), cost_usd=tokens / 100)


def played(stack: Stack, nesting: Nesting, answers: Iterable[Any]) -> tuple[list[Stack], list[Any]]:
    """Every stack on the way, and the whole log."""
    clock = itertools.count(1.0)
    stacks = [stack]
    for answer in answers:
        stacks.append(answered(stacks[-1], answer, nesting, now=next(clock)))
    return stacks, [record for one in stacks for record in one.records]


def run(machine: Machine[Any], *answers: Any, nesting: Nesting | None = None, **caps: float) -> Any:
    """Stacks and log of a run of this machine."""
    nesting = nesting or nest()
    first = began(machine, Notes(goal="x", metadata={"kept": 1}), nesting, now=0.0, ledger=Ledger(caps=caps))
    return played(first, nesting, answers)


def test_states_before_inside_and_after_the_inner_machine_run_in_that_order_in_one_log() -> None:
    stacks, log = run(outer_machine(subgraph()), said("a"), said("b"), said("c"))
    assert [(r.machine, r.within, r.state, r.event) for r in log] == [
        ("outer", "", "before", STARTED),
        ("outer", "", "before", "Said"),
        ("inner", "inside#2:1", "before", STARTED),
        ("inner", "inside#2:1", "before", "Said"),
        ("outer", "", "inside", "Ended"),
        ("outer", "", "after", "Said"),
    ]
    assert [r.seq for r in log] == list(range(6))
    assert stacks[-1].exit == Exit(
        reason="done", ok=True, answer="a c", outcome={"kept": 1, "shared": "inner"}
    )


def test_both_states_are_rebuilt_from_the_one_log() -> None:
    machine = outer_machine(subgraph())
    stacks, log = run(machine, said("a"), said("b"), said("c"))
    assert rebuild(machine, log)[1] == stacks[-1].first.step.snapshot.context
    assert rebuild(inner_machine(), log, "inside#2:1")[1].said == ("b",)


def test_only_metadata_is_merged_and_the_inner_machine_wins_on_equal_keys() -> None:
    """R-000-15: `terminated` and `exit_reason` of the inner machine are not merged."""
    sub = subgraph(values=lambda c: {"from": "outer", "shared": "outer"})
    stacks, _ = run(outer_machine(sub), said("a"), said("b"), said("c"))
    metadata = stacks[-1].first.step.snapshot.context.metadata
    assert metadata == {"kept": 1, "from": "outer", "shared": "inner"}


def test_the_answer_can_be_what_is_merged() -> None:
    stacks, _ = run(outer_machine(subgraph(merge_answer("answer"))), said("a"), said("b"), said("c"))
    assert stacks[-1].first.step.snapshot.context.answer == "b"


def test_what_an_inner_machine_spends_is_added_once() -> None:
    stacks, log = run(outer_machine(subgraph()), said("a", 1), said("b", 2), said("c", 4))
    ledger = stacks[-1].first.step.ledger
    assert (ledger.used("model_calls"), ledger.used("tokens"), ledger.used("cost_usd")) == (3, 7, 0.07)
    assert stacks[2].ledger.used("tokens") == 3
    assert log[-1].counters["rounds"] == 2  # its own counters stay its own


def test_the_run_s_ledger_counts_machines_that_are_still_at_work() -> None:
    stacks, _ = run(outer_machine(subgraph()), said("a", 1))
    assert stacks[-1].ledger.used("model_calls") == 2  # one answered, one reserved inside
    assert stacks[-1].first.step.ledger.used("model_calls") == 1


def test_the_run_s_seconds_are_those_since_it_began_also_while_a_machine_inside_is_at_work() -> None:
    first = began(outer_machine(subgraph()), Notes(goal="x"), nest(), now=1000.0)
    inside = answered(first, said("a"), nest(), now=1007.0)
    assert len(inside.frames) == 2
    assert inside.ledger.used("seconds") == 7


def test_an_inner_machine_has_its_own_limits_and_never_more_than_is_left() -> None:
    stacks, log = run(outer_machine(subgraph(limits=InnerLimits(model_calls=0))), said("a"), said("c"))
    assert stacks[-1].exit is not None
    assert [r.reason for r in log if r.event == "Closed"] == [
        "limit: the limit is reached, model_calls: 0 of 0 spent"
    ]
    stacks, log = run(outer_machine(subgraph(limits=InnerLimits(model_calls=9))), said("a"), model_calls=1)
    assert [r.within for r in log if r.event == "Closed"] == ["inside#2:1", ""]


def test_nesting_has_a_depth_limit_that_counts_from_the_outermost_run() -> None:
    """R-000-15: nesting has a depth limit; what is nested too deep is answered as an error."""
    for depth, ended in ((4, "b"), (5, "Error: depth_limit: inner would be nested deeper than 5")):
        answers = [said("a"), said("b"), said("c")] if depth == 4 else [said("a"), said("c")]
        machine = outer_machine(subgraph(merge_answer("answer")))
        stacks, _ = run(machine, *answers, nesting=nest(depth))
        assert stacks[-1].first.step.snapshot.context.answer.startswith(ended)


def test_machines_may_be_nested_in_machines_that_are_nested() -> None:
    middle = outer_machine(subgraph(merge_answer("answer")))
    machine = outer_machine(Subgraph(machine="middle", goal="deeper", merge=merge_answer("answer")))
    stacks, log = run(machine, *map(said, "abcde"), nesting=nest(middle=middle))
    assert stacks[-1].exit is not None
    assert [r.within for r in log if r.event == STARTED] == ["", "inside#2:1", "inside#2:1/inside#2:1"]
    assert stacks[-1].first.step.snapshot.context.answer == "b d"


def test_tools_that_the_outer_machine_has_not_cannot_be_given_to_an_inner_one() -> None:
    machine = outer_machine(subgraph(merge_answer("answer"), tools=("knife",)))
    for tools, answer in (((), "Error: inner_machine: inner cannot be run"), (("knife",), "b")):
        stack = began(machine, Notes(goal="x"), nest(), now=0.0, tools=tools)
        stacks, _ = played(stack, nest(), [said("a"), said("b"), said("c")][: 3 if tools else 2])
        assert stacks[-1].first.step.snapshot.context.answer.startswith(answer)
        assert [sorted(one.top.tools) for one in stacks[:2]] == [sorted(tools)] * 2


@pytest.mark.parametrize("mode", ["inline", "child"])
@pytest.mark.parametrize(
    ("goal", "problem"), [(" ", "the goal is blank"), ("x" * 200_001, "is 200,001 bytes")]
)
def test_a_goal_that_no_run_may_have_is_refused_in_both_ways(mode: Any, goal: str, problem: str) -> None:
    sub = Subgraph(machine="inner", goal=goal, merge=merge_answer("answer"), mode=mode)
    stacks, _ = run(outer_machine(sub), said("a"), said("c"))
    assert problem in stacks[-1].first.step.snapshot.context.answer


def test_what_an_inner_machine_had_spent_is_not_lost_when_the_run_is_closed() -> None:
    stacks, _ = run(outer_machine(subgraph()), said("a", 1))
    end = closed(stacks[-1], "cancelled", now=9.0)
    assert end.first.step.ledger.used("model_calls") == stacks[-1].ledger.used("model_calls") == 2
    assert end.records[-1].counters["model_calls"] == 2


def test_an_on_close_that_breaks_a_rule_does_not_keep_a_run_from_closing() -> None:
    broken = replace(inner_machine(), on_close=lambda c, reason: {"nosuch": 1})
    stacks, _ = run(outer_machine(subgraph()), said("a"), nesting=nest(inner=broken))
    end = closed(stacks[-1], "cancelled", now=9.0)
    assert [(r.within, r.event) for r in end.records] == [
        ("inside#2:1", "PermissionViolation"), ("inside#2:1", "Closed"), ("", "Closed"),
    ]  # fmt: skip
    assert end.exit is not None
    assert [r.seq for r in end.records] == [3, 4, 5]


def test_machines_that_end_at_once_are_not_opened_for_ever() -> None:
    again = Machine(
        name="again",
        context=Notes,
        initial=S.BEFORE,
        final={S.END},
        table=[Row(S.BEFORE, Said, S.END)],
        states={
            S.BEFORE: State(
                enter=lambda c, at: RunMachine(machine="inner", goal="x"),
                resume=lambda c, ended, at: RunMachine(machine="inner", goal="x"),
                grants={"run_machine"},
                spends="rounds",
            ),
            S.END: State(),
        },
        result=lambda c, state: Exit(reason="done"),
    )
    instant = replace(inner_machine(), initial=S.END, step_state=None, states={S.END: State()}, table=())
    with pytest.raises(TransitionLimitExceeded, match="100 machines were opened without a call") as raised:
        run(again, nesting=nest(inner=instant))
    assert raised.value.step.records[-1].event == "Endless"
    assert [r.seq for r in raised.value.step.records] == list(range(len(raised.value.step.records)))


def test_a_bug_in_an_inner_machine_stays_a_bug() -> None:
    def bug(c: Any, at: At) -> Any:
        raise KeyError("a bug of ours")

    states = {**inner_machine().states, S.BEFORE: State(enter=bug, spends="n")}
    with pytest.raises(KeyError, match="a bug of ours"):
        run(outer_machine(subgraph()), said("a"), nesting=nest(inner=replace(inner_machine(), states=states)))


def test_a_definition_that_cannot_be_made_is_told_to_the_outer_machine() -> None:
    def make(call: RunMachine, depth: int) -> tuple[Machine[Any], BaseModel]:
        raise DefinitionError("machine inner: unreachable from before: after")

    stacks, _ = run(
        outer_machine(subgraph(merge_answer("answer"))), said("a"), said("c"), nesting=Nesting(make)
    )
    assert "unreachable from before" in stacks[-1].first.step.snapshot.context.answer


def test_roles_are_composed_over_every_level_also_for_a_child_run() -> None:
    deep = outer_machine(subgraph(mode="child", roles={"critic": "default"}))
    machine = outer_machine(
        Subgraph(machine="deep", goal="x", merge=merge_answer("answer"), roles={"default": "cheap"})
    )
    stacks, _ = run(machine, said("a"), said("b"), nesting=nest(deep=deep))
    effect = stacks[-1].effect
    assert isinstance(effect, RunMachine)
    assert effect.roles == {"critic": "cheap", "default": "cheap"}


def test_an_unknown_inner_machine_is_an_end_with_an_error_in_words() -> None:
    sub = Subgraph(machine="nobody", goal="x", merge=merge_answer("answer"))
    stacks, _ = run(outer_machine(sub), said("a"), said("c"))
    assert stacks[-1].first.step.snapshot.context.answer == "Error: ValueError: unknown machine nobody"


def _broken_machine() -> Machine[Notes]:
    broken = inner_machine()
    states = {**broken.states, S.BEFORE: State(enter=lambda c, at: ({"nosuch": 1}, Said()), spends="n")}
    return Machine(
        name="broken",
        context=Notes,
        initial=S.BEFORE,
        final={S.END},
        table=broken.rows,
        states=states,
        result=broken.result,
    )


def test_an_inner_machine_that_breaks_a_rule_is_told_to_the_outer_one_and_stays_in_the_log() -> None:
    sub = Subgraph(machine="broken", goal="x", merge=merge_answer("answer"))
    stacks, log = run(outer_machine(sub), said("a"), said("c"), nesting=nest(broken=_broken_machine()))
    assert "the undeclared field 'nosuch' was written" in stacks[-1].first.step.snapshot.context.answer
    assert [r.event for r in log if r.within] == [STARTED, "PermissionViolation"]
    assert [r.seq for r in log] == list(range(len(log)))


def test_model_roles_of_the_inner_machine_are_given_in_the_run_s_terms() -> None:
    sub = subgraph(roles={"critic": "cheap"})
    stacks, _ = run(outer_machine(sub), said("a"), nesting=nest(inner=inner_machine(role="critic")))
    effect = stacks[-1].effect
    assert isinstance(effect, CallModel)
    assert effect.role == "cheap"


def test_a_child_run_is_handed_out_and_its_end_is_merged_alike() -> None:
    machine = outer_machine(subgraph(mode="child"))
    stacks, _ = run(machine, said("a"))
    assert isinstance(stacks[-1].effect, RunMachine)
    failed = EffectFailed(error="fatal", type="TimeoutError", message="gone")
    stacks, _ = run(machine, said("a"), failed, said("c"))
    assert stacks[-1].exit is not None


def test_a_close_ends_the_innermost_machine_first_and_the_run_with_it() -> None:
    nesting = nest()
    stacks, _ = run(outer_machine(subgraph()), said("a"))
    end = closed(stacks[-1], "cancelled", now=9.0, error="stopped", by="person")
    assert [(r.within, r.event, r.seq) for r in end.records] == [
        ("inside#2:1", "Closed", 3),
        ("", "Closed", 4),
    ]
    assert end.exit is not None
    assert (end.exit.reason, end.effect, nesting.limit) == ("cancelled", None, 5)


def test_a_note_changes_nothing_but_the_log() -> None:
    stacks, _ = run(outer_machine(subgraph()), said("a"))
    after = noted(stacks[-1], Cause("UnusableSignal", by="signal"), now=9.0)
    assert after.effect == stacks[-1].effect
    assert [(r.event, r.within, r.seq) for r in after.records] == [("UnusableSignal", "inside#2:1", 3)]


@pytest.mark.parametrize("fold", [None, lambda c, text: {"said": (f"told {text}",)}])
def test_any_machine_can_have_another_in_front_of_it(fold: Any) -> None:
    plain = inner_machine("plain")
    machine = preceded(
        Machine(
            name="plain",
            context=Notes,
            initial=S.BEFORE,
            final={S.END},
            table=plain.rows,
            states=plain.states,
            result=plain.result,
            fold_steer=fold,
        ),
        subgraph(lambda c, ended: {}),
    )
    stacks, log = run(machine, said("first"), said("second"))
    assert stacks[-1].exit is not None
    assert stacks[-1].first.step.snapshot.context.said == (("told first",) if fold else ()) + ("second",)
    assert [r.machine for r in log] == ["plain", "inner", "inner", "plain", "plain"]
