"""A machine that is declared wrongly cannot be made, and the message names the culprit."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, JsonValue, SecretStr

from activities.contracts import Frozen
from tests.kernel.puppet import ROWS, TALKS, Context, Ended, Looped, S, Stray, Went, ended, hear, puppet
from workflows.kernel.errors import DefinitionError
from workflows.kernel.fields import APPEND, COUNT, MERGE, PUT
from workflows.kernel.machine import Exit, Machine, Row, State
from workflows.kernel.verify import definition_hash


class Other(Enum):
    """States of another machine, one with the name of ours."""

    A = "a"
    X = "x"


class Needs(Frozen):
    """A context with a required field."""

    goal: str


TO_END = Row(S.A, Ended, S.END)
FAULTS: list[Any] = [
    pytest.param({"initial": Other.X}, "`initial` names the unknown state x", id="initial"),
    pytest.param({"final": {S.END, Other.X}}, "`final` names the unknown state x", id="final"),
    pytest.param({"final": set()}, "has no final state", id="no final"),
    pytest.param({"step_state": Other.X}, "`step_state` names the unknown state x", id="step state"),
    pytest.param({"fail_state": Other.X}, "`fail_state` names the unknown state x", id="fail state"),
    pytest.param({"fail_state": S.B, "states": {S.FAILED: {}}}, "the fail state b is not final", id="fail"),
    pytest.param({"on_unmatched": "fail"}, "there is no `fail_state`", id="fail without state"),
    pytest.param({"on_error": {"transiant": hear}}, "unknown class 'transiant'", id="error class"),
    pytest.param({"rows": [*ROWS, Row(Other.X, Went, S.A)]}, "(x, Went, a) names the unknown", id="source"),
    pytest.param({"rows": [*ROWS, Row(S.B, Stray, Other.X)]}, "(b, Stray, x) names the unk", id="target"),
    pytest.param({"rows": [*ROWS, (S.A, Went)]}, "row 5 is (<S.A: 'a'>", id="short row"),
    pytest.param(
        {"rows": [*ROWS, (S.B, "Stray", S.A)]}, "row 5 has 'Stray' where an event class", id="event"
    ),
    pytest.param({"states": {S.FAILED: {}}, "final": {S.END}}, "state failed is a dead end", id="dead end"),
    pytest.param({"states": {S.FAILED: {}}}, "unreachable from a: failed", id="unreachable"),
    pytest.param(
        {"rows": [*ROWS, Row(S.END, Went, S.A)]}, "final state end has the row (end, W", id="final row"
    ),
    pytest.param({"rows": [*ROWS, Row(S.B, Ended, S.A)]}, "(b, Ended, end) and (b, Ended, a)", id="two rows"),
    pytest.param(
        {"rows": [*ROWS, Row(S.B, Looped, S.A)]}, "(b, Looped, a) is never reached", id="hidden row"
    ),
    pytest.param(
        {"rows": [TO_END, Row(S.A, Went, S.B), Row(S.B, Went, S.B)], "states": {S.B: {"spends": "n"}}},
        "no path to a final state from: b",
        id="no way out",
    ),
    pytest.param(
        {"states": {S.B: {"reads": {"goal", "gaol"}}}},
        "state b declares the unknown field 'gaol' in reads",
        id="reads",
    ),
    pytest.param({"states": {S.B: {"writes": {"gaol"}}}}, "'gaol' in writes", id="writes"),
    pytest.param(
        {"rows": [*ROWS, Row(S.B, Stray, S.A, reset=("gaol",))]},
        "'gaol' in reset of (b, Stray, a)",
        id="reset",
    ),
    pytest.param(
        {"rows": [*ROWS, Row(S.B, Stray, S.A, writes={"gaol"})]}, "'gaol' in writes of (b, S", id="row writes"
    ),
    pytest.param(
        {"states": {S.A: {"spends": None}}},
        "a cycle without a counting state (`spends=...`): a -> a",
        id="cycle",
    ),
    pytest.param({"states": {S.B: {"enter": None}}}, "state b has no `enter`", id="enter"),
    pytest.param(
        {"states": {S.B: {"resume": None}}}, "state b may ask for effects but has no `resume`", id="resume"
    ),
    pytest.param({"states": {S.B: {"grants": ()}}}, "state b has a `resume` but grants no", id="grants"),
    pytest.param(
        {"states": {s: {"enforce": False} for s in (S.A, S.B, S.END)}},
        "for one named state, not for all",
        id="enforce",
    ),
]


@pytest.mark.parametrize(("changes", "message"), FAULTS)
def test_a_fault_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        puppet(**changes)
    assert message in str(raised.value)
    assert str(raised.value).startswith("machine puppet: ")


def test_a_cycle_is_shown_as_the_way_round_it() -> None:
    """A counts, but B and a third state turn without it."""
    rows = [*ROWS, Row(S.B, Stray, S.FAILED), Row(S.FAILED, Went, S.B)]
    with pytest.raises(DefinitionError, match=r"b -> failed -> b|failed -> b -> failed"):
        puppet(rows=rows, states={S.FAILED: TALKS}, final={S.END})


def test_a_required_field_cannot_be_reset() -> None:
    rows = [Row(S.A, Ended, S.END), Row(S.A, Went, S.A, reset=("goal",))]
    with pytest.raises(DefinitionError, match=r"\(a, Went, a\) resets 'goal', which has no default"):
        _machine(Needs, rows)


def _machine(context: type[BaseModel], rows: Any = ((S.A, Ended, S.END),)) -> Machine[Any]:
    states = {S.A: State(enter=lambda c, at: Ended(), spends="n"), S.END: State()}
    return Machine(
        name="m", context=context, initial=S.A, final={S.END}, states=states, table=rows, result=ended
    )


def test_two_states_of_one_name_are_refused() -> None:
    """The log knows states by name."""
    states = {S.A: State(enter=lambda c, at: Ended()), Other.A: State(), S.END: State()}
    with pytest.raises(DefinitionError, match=r"<S.A: 'a'> and <Other.A: 'a'> have the same name 'a'"):
        Machine(
            name="m", context=Context, initial=S.A, final={S.END}, states=states,
            table=[(S.A, Ended, S.END)], result=ended,
        )  # fmt: skip


def test_a_state_is_a_member_of_an_enum() -> None:
    states: Any = {"a": State(enter=lambda c, at: Ended()), S.END: State()}
    initial: Any = "a"
    with pytest.raises(DefinitionError, match="the state 'a' is not a member of an Enum"):
        Machine(
            name="m", context=Context, initial=initial, final={S.END}, states=states,
            table=[("a", Ended, S.END)], result=ended,
        )  # fmt: skip


class Number(IntEnum):
    """States with numbers for values, the first of which counts as false."""

    ZERO = 0
    ONE = 1


def test_states_may_have_numbers_for_values_also_zero() -> None:
    states = {Number.ZERO: State(), Number.ONE: State(enter=lambda c, at: Ended())}
    made = Machine(
        name="m", context=Context, initial=Number.ONE, final={Number.ZERO}, states=states,
        table=[(Number.ONE, Ended, Number.ZERO)], fail_state=Number.ZERO, step_state=Number.ONE,
        result=lambda c, s: Exit(reason="end"),
    )  # fmt: skip
    assert made.state_named("ZERO") is Number.ZERO
    with pytest.raises(ValueError, match=r"m has no state 'TWO'; it has \['ZERO', 'ONE'\]"):
        made.state_named("TWO")


class Loose(BaseModel):
    """A model that can be changed in place."""

    x: int = 0


class HoldsLoose(Frozen):
    """A frozen model with such a one inside."""

    inner: tuple[Loose, ...] = ()


@dataclass
class Draft:
    """A dataclass that can be changed in place."""

    x: int = 0


class Excludes(Frozen):
    """A model whose JSON lacks a field."""

    x: int = Field(default=0, exclude=True)


UNFIT: list[Any] = [
    pytest.param(Any, "Any says nothing of what it holds", id="any"),
    pytest.param(dict, "dict says nothing", id="dict"),
    pytest.param(dict[str, Any], "Any says nothing", id="nested any"),
    pytest.param(set[str], "a set has no stable order; use a tuple with the reducer ADD", id="set"),
    pytest.param(tuple[frozenset[int], ...], "a frozenset has no stable order", id="frozenset"),
    pytest.param(Sequence[int], "may come back as another type; say tuple or list", id="sequence"),
    pytest.param(deque[int], "a deque can be changed in place", id="deque"),
    pytest.param(Loose | None, "Loose can be changed in place; declare it `frozen=True`", id="model"),
    pytest.param(dict[str, HoldsLoose], "HoldsLoose.inner: Loose can be changed", id="nested model"),
    pytest.param(Draft, "Draft can be changed in place", id="dataclass"),
    pytest.param(Excludes, "Excludes.x is excluded from JSON", id="excluded"),
    pytest.param(SecretStr, "a SecretStr would have to be in the log", id="secret"),
    pytest.param(Annotated[str, APPEND], "the reducer append does not work on str", id="append"),
    pytest.param(Annotated[str, COUNT], "the reducer count does not work on str", id="count"),
    pytest.param(Annotated[tuple[int, ...], MERGE], "merge does not work on tuple", id="merge"),
    pytest.param(Annotated[dict[str, int], PUT], "put does not work on dict", id="put"),
    pytest.param(Annotated[list[int] | None, APPEND], "append does not work on", id="optional"),
]


@pytest.mark.parametrize(("kind", "message"), UNFIT)
def test_a_field_that_the_log_cannot_give_back_is_refused(kind: Any, message: str) -> None:
    unfit = type("Unfit", (Frozen,), {"__annotations__": {"f": kind}, "__module__": __name__})
    with pytest.raises(DefinitionError, match=r"machine m: Unfit\.f: ") as raised:
        _machine(unfit)
    assert message in str(raised.value)


class Arbitrary(Frozen, arbitrary_types_allowed=True):
    """A context with a class that pydantic does not know."""

    f: Looped | Number | type[Enum] | BaseException | None = None


def test_a_type_that_pydantic_cannot_write_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"Arbitrary\.f: Unable to generate pydantic-core schema"):
        _machine(Arbitrary)


def test_a_context_that_can_be_changed_in_place_is_refused() -> None:
    with pytest.raises(DefinitionError, match="Loose can be changed in place; declare it `frozen=True`"):
        _machine(Loose)


class Tree(Frozen):
    """A model that holds itself."""

    name: str
    below: tuple[Tree, ...] = ()
    more: dict[str, JsonValue] = {}


class Holder(Frozen):
    """A context with a recursive model."""

    tree: Tree | None = None


def test_a_recursive_model_can_be_in_a_context() -> None:
    assert _machine(Holder).name == "m"


def test_the_fingerprint_follows_what_is_declared() -> None:
    same, other = puppet(), puppet(states={S.B: {"writes": {"goal"}}})
    assert definition_hash(puppet()) == definition_hash(same) != definition_hash(other)


def test_another_limit_makes_another_machine_and_keeps_this_one() -> None:
    machine = puppet()
    assert (machine.with_limit(3).max_transitions, machine.max_transitions) == (3, 10_000)


@pytest.mark.parametrize("name", ["Forked", "HeldBack", "RolledBack", "Started"])
def test_an_event_that_the_log_has_a_meaning_for_cannot_be_a_machine_s(name: str) -> None:
    event = type(name, (), {})
    with pytest.raises(DefinitionError, match=rf"\(a, {name}, end\): {name} is the kernel's own"):
        puppet([Row(S.A, event, S.END), *puppet().rows])
