"""The FSM of spec 4.2: states, moves, history, counter."""

from __future__ import annotations

import pytest

from workflows.kernel.design import Parts
from workflows.kernel.errors import ExecutionError, MaxIterationsExceeded
from workflows.machines.planner_fsm import MOVES, TERMINAL, Fsm, S
from workflows.registry import design

ALLOWED = {
    ("INTAKE", "PLAN"),
    ("PLAN", "DECIDE"),
    ("PLAN", "HALT"),
    ("DECIDE", "EXECUTE"),
    ("DECIDE", "FINALIZE"),
    ("DECIDE", "HALT"),
    ("EXECUTE", "OBSERVE"),
    ("EXECUTE", "FINALIZE"),
    ("EXECUTE", "HALT"),
    ("OBSERVE", "LOOP_CHECK"),
    ("LOOP_CHECK", "HALT"),
    ("LOOP_CHECK", "FINALIZE"),
    ("LOOP_CHECK", "EXECUTE"),
}
PAIRS = [(source, target) for source in S for target in S]


def test_the_states_have_the_numbers_of_the_spec() -> None:
    names = ["INTAKE", "PLAN", "DECIDE", "EXECUTE", "OBSERVE", "LOOP_CHECK", "FINALIZE", "HALT"]
    assert [(state.value, state.name) for state in S] == list(enumerate(names))


def test_the_moves_are_those_of_the_table() -> None:
    assert {(a.name, b.name) for a, targets in MOVES.items() for b in targets} == ALLOWED


def test_the_machine_has_the_moves_of_the_table_and_no_other() -> None:
    made = design("planner")
    rows = made.build(made.options(), Parts()).rows
    assert {(row.source.name, row.target.name) for row in rows} == ALLOWED


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda state: state.name)
def test_any_other_move_raises_with_both_names_and_the_state_stays(source: S, target: S) -> None:
    fsm = Fsm(source.value)
    if (source.name, target.name) in ALLOWED:
        assert fsm.transition_to(target.value).state == target.value
        return
    with pytest.raises(ExecutionError) as refused:
        fsm.transition_to(target.value)
    assert str(refused.value) == f"Invalid transition from {source.name} to {target.name}"
    assert (fsm.state, fsm.history) == (source.value, ())


def test_a_number_that_is_no_state_is_unknown_and_leads_nowhere() -> None:
    assert (Fsm(99).state_name, Fsm(99).terminal) == ("UNKNOWN", False)
    with pytest.raises(ExecutionError, match="from UNKNOWN to PLAN"):
        Fsm(99).transition_to(S.PLAN.value)
    with pytest.raises(ExecutionError, match="from INTAKE to UNKNOWN"):
        Fsm().transition_to(-1)


def test_two_states_are_terminal() -> None:
    assert {state for state in S if Fsm(state.value).terminal} == {S.FINALIZE, S.HALT} == TERMINAL


def test_the_history_has_the_numbers_the_reason_and_the_iteration() -> None:
    fsm = Fsm().transition_to(1, "in").transition_to(2, "planned").transition_to(3)
    fsm = fsm.increment_iteration().transition_to(4, "tools")
    assert fsm.state_name == "OBSERVE"
    assert fsm.history == (
        {"from": 0, "to": 1, "reason": "in", "iteration": 0},
        {"from": 1, "to": 2, "reason": "planned", "iteration": 0},
        {"from": 2, "to": 3, "reason": "", "iteration": 0},
        {"from": 3, "to": 4, "reason": "tools", "iteration": 1},
    )


def test_exactly_as_many_iterations_as_allowed_can_be_counted() -> None:
    fsm = Fsm(max_iterations=2).increment_iteration().increment_iteration()
    assert fsm.iteration_count == 2
    with pytest.raises(MaxIterationsExceeded, match="Max iterations exceeded"):
        fsm.increment_iteration()
    assert fsm.iteration_count == 2


def test_with_a_maximum_of_0_the_first_iteration_raises() -> None:
    with pytest.raises(MaxIterationsExceeded):
        Fsm(max_iterations=0).increment_iteration()


def test_reset_leads_back_to_intake_and_empties_history_and_counter() -> None:
    fsm = Fsm(max_iterations=7).transition_to(1).increment_iteration()
    assert fsm.reset() == Fsm(max_iterations=7)
