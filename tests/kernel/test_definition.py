"""A machine that is declared wrongly cannot be made, and the message names the culprit."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError, create_model

from activities.contracts import AskModel, Say
from workflows.kernel.context import Context
from workflows.kernel.diagram import mermaid, rights, table
from workflows.kernel.errors import DefinitionError
from workflows.kernel.machine import Event, Exit, Machine, State, state, state_name


class S(Enum):
    """States."""

    A = "a"
    B = "b"
    END = "end"
    FAILED = "failed"
    LOST = "lost"


class Options(BaseModel, frozen=True):
    """None."""


class Values(Context):
    """Two fields."""

    seen: str = ""
    count: int = 0


class Changing(BaseModel):
    """A model that is not frozen."""


class Went(Event):
    """Go on."""


class Ended(Event):
    """Stop."""


def visit(c: Any, run: Any) -> Any:
    """Never called."""


def holding(kind: Any) -> type[Context]:
    """A context with one more field, of this type."""
    return create_model("Holding", __base__=Values, inner=(kind, ...))


def declared(name: Enum, **more: Any) -> State:
    """A state."""
    return State(name, visit, **more)


GOOD: dict[str, Any] = {
    "name": "m",
    "options": Options,
    "context": Values,
    "begin": lambda given, options: Values(),
    "initial": S.A,
    "table": {S.A: {Went: S.B, Ended: S.END}, S.B: {Went: S.A}},
    "states": [declared(S.A, counts="rounds"), declared(S.B, reads=frozenset({"seen"}))],
    "result": lambda c, run: Exit(reason="done"),
    "step": S.A,
}
A, B = GOOD["states"]
STUCK = {S.A: {Went: S.B, Ended: S.END}, S.B: {Went: S.B}}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"states": [A]}, "state b has no function"),
        ({"table": {S.A: {Ended: S.END}}, "states": []}, "no function is declared for state a"),
        ({"states": [A, B, A]}, "two functions for state a"),
        ({"initial": S.LOST}, "no function is declared for state lost"),
        (
            {"table": {S.A: {Went: S.B, Ended: "edn"}, S.B: {Went: S.A}}},
            "S has no state edn; did you mean end?",
        ),
        ({"states": [A, B, declared(S.LOST)]}, "unreachable from a: lost"),
        ({"table": {S.A: {Went: S.B}, S.B: {Went: S.A}}}, "every state has a row"),
        ({"table": STUCK, "states": [A, replace(B, counts="b")]}, "no path to a final state from: b"),
        ({"states": [replace(A, counts=""), B]}, "a cycle through a passes no state with `counts`"),
        ({"step": S.END}, "`step` names end"),
        ({"states": [A, replace(B, reads=frozenset({"sene"}))]}, "state b declares the unknown field sene"),
        ({"states": [A, replace(B, writes=frozenset({"cuont"}))]}, "state b declares the unknown field"),
        ({"writes": frozenset({"cuont"})}, "`writes` names the unknown field cuont"),
        ({"states": [A, replace(B, asks=frozenset({Say}))]}, "state b: `asks` takes classes of effects"),
        ({"states": [A, replace(B, asks=frozenset({Event}))]}, "state b: `asks` takes classes of effects"),
        (
            {"context": holding(dict[str, list[Changing]])},
            "field inner of the context holds the model `Changing`",
        ),
        ({"context": holding(tuple[set[str], ...])}, "field inner of the context holds a set"),
        ({"options": Changing}, "the options `Changing` is not frozen"),
    ],
)
def test_fault_names_machine_and_culprit(changes: dict[str, Any], problem: str) -> None:
    Machine(**GOOD)
    with pytest.raises(DefinitionError) as raised:
        Machine(**{**GOOD, **changes})
    assert str(raised.value).startswith("machine m: ")
    assert problem in str(raised.value)


@pytest.mark.parametrize("names", [("Decided",), ("Paused", "ToolsReturned", "NoTransition")])
def test_event_named_as_a_record_of_ratchet_is_refused(names: tuple[str, ...]) -> None:
    """All at once: a view would take the machine's records for those of requests, commands, calls, rules."""
    events = [type(name, (Event,), {}) for name in names]
    table = {**GOOD["table"], S.A: {**dict.fromkeys(events, S.B), Ended: S.END}}
    with pytest.raises(DefinitionError) as raised:
        Machine(**{**GOOD, "table": table, "writes": frozenset({"cuont"})})
    for name in names:
        assert f"the event `{name}` has the name of a record that Ratchet writes by itself" in str(
            raised.value
        )
    assert "`writes` names the unknown field cuont" in str(raised.value)


@pytest.mark.parametrize("names", ["no_guess", ("no_guess", 3), {"no_guess"}, None])
def test_event_is_refused_by_names_alone(names: Any) -> None:
    with pytest.raises(TypeError, match="refused_by: expected a tuple of names, got"):
        Went("", refused_by=names)


def test_all_faults_are_named_at_once() -> None:
    """A row without a function and fields that do not exist: one error has them all, paths are left out."""
    table = {**GOOD["table"], S.LOST: {Went: S.END}}
    states = [A, replace(B, reads=frozenset({"sene"}))]
    with pytest.raises(DefinitionError) as raised:
        Machine(**{**GOOD, "table": table, "states": states, "writes": frozenset({"cuont"})})
    assert str(raised.value).splitlines() == [
        "machine m: 3 faults",
        "  no function is declared for state lost",
        "  `writes` names the unknown field cuont",
        "  state b declares the unknown field sene",
    ]


def test_each_cycle_that_counts_nothing_is_named_once() -> None:
    with pytest.raises(DefinitionError) as raised:
        Machine(**{**GOOD, "states": [replace(A, counts=""), B]})
    assert str(raised.value) == (
        "machine m: a cycle through a passes no state with `counts`: it might never end"
    )


def test_field_that_a_view_would_hide_is_refused() -> None:
    class Hidden(Context):
        fields_read: str = ""

    with pytest.raises(DefinitionError, match="fields_read"):
        Machine(**{**GOOD, "context": Hidden, "states": [A, declared(S.B)]})


def test_decorator_declares_a_state() -> None:
    made = state(S.A, asks={AskModel}, reads={"seen"}, writes=["count"], tools=["look"], counts="rounds")(
        visit
    )
    assert made == State(
        S.A, visit, frozenset({"seen"}), frozenset({"count"}), frozenset({AskModel}), frozenset({"look"}),
        counts="rounds",
    )  # fmt: skip


def test_final_states_are_those_without_a_row() -> None:
    machine = Machine(**{**GOOD, "fail": S.FAILED})
    assert machine.final == {"end", "failed"}
    assert machine.rows["a"] == {Went: "b", Ended: "end"}


def test_state_is_named_by_its_text_or_its_member() -> None:
    numbers = Enum("numbers", {"ZERO": 0})
    assert [state_name(one) for one in (S.A, numbers["ZERO"], "plain")] == ["a", "ZERO", "plain"]


# -- pictures --------------------


def test_diagram_shows_each_row_and_the_current_state() -> None:
    drawn = mermaid(Machine(**{**GOOD, "fail": S.FAILED}), "b").splitlines()
    assert drawn[0] == "stateDiagram-v2"
    for line in (
        "[*] --> a", "a --> b: Went", "a --> state_end: Ended", "b --> a: Went", "a --> failed: broken rule",
        'state "end" as state_end', "state_end --> [*]", "class b current",
    ):  # fmt: skip
        assert f"    {line}" in drawn


def test_names_that_mermaid_refuses_are_replaced() -> None:
    odd = Enum("odd", {"A": "a b", "B": "a-b", "END": "end"})
    machine = Machine(**{
        **GOOD, "initial": odd["A"], "step": None,
        "table": {odd["A"]: {Went: odd["B"]}, odd["B"]: {Went: odd["END"]}},
        "states": [declared(odd["A"]), declared(odd["B"])],
    })  # fmt: skip
    drawn = mermaid(machine)
    assert 'state "a b" as state_a_b' in drawn
    assert 'state "a-b" as state_a_b_2' in drawn


def test_tables_list_rows_and_rights() -> None:
    machine = Machine(**GOOD)
    assert table(machine).splitlines()[2:] == [
        "| a | `Went` | b |",
        "| a | `Ended` | end |",
        "| b | `Went` | a |",
    ]
    assert "| a | - | - | - | begins a step, counts rounds |" in rights(machine).splitlines()
    assert "| b | seen | - | - |  |" in rights(machine).splitlines()


def test_misspelt_option_is_refused_by_name() -> None:
    class Words(BaseModel, frozen=True):
        words: int = 20

    machine = Machine(**{**GOOD, "options": Words})
    assert machine.read_options({"words": 3}).words == 3
    with pytest.raises(ValidationError) as refused:
        machine.read_options({"wordz": 3})
    assert [(one["type"], one["loc"]) for one in refused.value.errors()] == [("extra_forbidden", ("wordz",))]
