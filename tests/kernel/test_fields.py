"""Fields, reducers and deltas: what a patch means, and that the log can hold it."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Annotated, Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    computed_field,
    field_validator,
    model_validator,
)

from activities.contracts import Frozen, JsonObject, Message, Transcript
from tests.kernel.puppet import CALM, Ask, Context, Ended, Item, Play, S, Went, puppet
from workflows.kernel.errors import BadPatch
from workflows.kernel.fields import ADD, APPEND, COUNT, FIRST, MERGE, PUT, Fields, Reducer
from workflows.kernel.frozen import FrozenDict, FrozenList, freeze
from workflows.kernel.machine import Machine, Row, State
from workflows.kernel.rebuild import rebuild
from workflows.kernel.snapshot import dump, load

FIELDS = Fields.of(Context)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
NAMES = st.sampled_from(["a", "b", "c"])
LEAVES = st.none() | st.booleans() | st.integers() | TEXT | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    LEAVES, lambda v: st.lists(v, max_size=2) | st.dictionaries(NAMES, v, max_size=3), max_leaves=8
)
TREES = st.dictionaries(NAMES, JSON, max_size=3)
DELTAS: dict[str, st.SearchStrategy[Any]] = {
    "goal": TEXT,
    "items": st.lists(
        st.builds(Item, name=TEXT, tags=st.lists(TEXT, max_size=2), more=TREES), max_size=3
    ).map(tuple),
    "names": st.lists(TEXT, max_size=4),
    "total": st.integers(),
    "tree": TREES,
    "why": st.none() | TEXT,
}
OLD: dict[str, st.SearchStrategy[Any]] = {**DELTAS, "slots": st.lists(TEXT, max_size=3).map(tuple)}


@st.composite
def puts(draw: Any, length: int) -> dict[int, str]:
    """A delta for PUT on so many items: some replaced, some appended without a gap."""
    replaced = draw(st.dictionaries(st.integers(0, max(0, length - 1)), TEXT, max_size=2)) if length else {}
    appended = draw(st.lists(TEXT, max_size=2))
    return {**replaced, **{length + n: item for n, item in enumerate(appended)}}


def _written(name: str, delta: Any) -> Any:
    return FIELDS.from_json(name, json.loads(json.dumps(FIELDS.to_json({name: delta})[name])))


@pytest.mark.parametrize("name", [*DELTAS, "slots"])
@settings(CALM)
@given(st.data())
def test_deltas_folded_one_by_one_are_the_composed_delta_folded(name: str, data: st.DataObject) -> None:
    """Also when each delta has been through the log's JSON."""
    old = FIELDS.checked(name, data.draw(OLD[name])) if name != "slots" else data.draw(OLD[name])
    folded, composed = old, None
    for number in range(3):
        raw = data.draw(puts(len(folded)) if name == "slots" else DELTAS[name])
        delta = FIELDS.checked(name, raw)
        assert _written(name, delta) == delta
        folded = FIELDS.fold(name, folded, delta)
        composed = delta if number == 0 else FIELDS.compose(name, composed, delta)
    assert FIELDS.fold(name, old, composed) == folded
    assert FIELDS.fold(name, old, _written(name, composed)) == folded


def test_a_merge_that_replaces_and_then_merges_is_a_chain() -> None:
    """One mapping could not say that what was there before is gone."""
    first, later = {"k": 5}, {"k": {"b": 2}}
    composed = FIELDS.compose("tree", first, later)
    assert composed == (first, later)
    assert FIELDS.fold("tree", {"k": {"a": 1}}, composed) == {"k": {"b": 2}}
    assert FIELDS.compose("tree", composed, {"k": {"c": 3}}) == (first, {"k": {"b": 2, "c": 3}})


@pytest.mark.parametrize(
    ("name", "old", "delta", "value"),
    [
        ("goal", "old", "new", "new"),
        ("items", (), [{"name": "x"}], (Item(name="x"),)),
        ("names", ["b"], ["a", "b", "a"], ["b", "a"]),
        ("total", 2, -5, -3),
        ("tree", {"a": {"x": 1}, "l": [1]}, {"a": {"y": 2}, "l": [2]}, {"a": {"x": 1, "y": 2}, "l": [2]}),
        ("tree", {"a": {"x": 1}}, {"a": None}, {"a": None}),
        ("slots", ("a", "b"), {0: "x", 2: "c", 3: "d"}, ("x", "b", "c", "d")),
        ("why", None, "first", "first"),
        ("why", "first", "second", "first"),
    ],
)
def test_what_a_delta_means(name: str, old: Any, delta: Any, value: Any) -> None:
    found = FIELDS.fold(name, freeze(old), FIELDS.checked(name, delta))
    assert found == value
    assert type(found) is type(freeze(value))


def test_a_reset_lets_the_first_writer_win_again() -> None:
    assert FIELDS.fold("why", FIELDS.default("why"), "second") == "second"


def test_a_transcript_goes_back_to_its_default_and_is_its_own_copy() -> None:
    class Talk(Frozen):
        transcript: Annotated[Transcript, APPEND] = Transcript()

    assert Fields.of(Talk).default("transcript") == Transcript()
    said = Transcript([Message(role="user", content="a")])
    assert copy.deepcopy(said) is said
    assert copy.copy(said) is said


def test_a_transcript_grows_by_messages() -> None:
    class Talk(Frozen):
        """A context with a conversation."""

        transcript: Annotated[Transcript, APPEND] = Transcript()

    fields = Fields.of(Talk)
    one, two = Message(role="user", content="1"), Message(role="user", content="2")
    delta = fields.compose(
        "transcript", fields.checked("transcript", [one]), fields.checked("transcript", (two,))
    )
    assert fields.fold("transcript", Transcript([one]), delta) == Transcript([one, one, two])
    assert fields.from_json("transcript", fields.to_json({"transcript": delta})["transcript"]) == delta


# -- frozen values --------------------------------------------------------------------------------------


@settings(CALM)
@given(JSON)
def test_a_frozen_value_is_equal_and_its_copies_are_ordinary(value: Any) -> None:
    frozen = freeze(value)
    assert frozen == value
    assert freeze(frozen) == frozen
    assert json.loads(json.dumps(frozen)) == json.loads(json.dumps(value))
    assert pickle.loads(pickle.dumps(frozen)) == frozen  # our own bytes
    copied = copy.deepcopy(frozen)
    assert copied == value
    assert type(copied) in (dict, list) or not isinstance(value, dict | list)


def test_a_frozen_collection_refuses_every_method_that_changes_it() -> None:
    """Compared with what its base has, so that a new Python version is noticed."""
    unchanging = {"copy", "count", "index", "fromkeys", "get", "items", "keys", "values"}
    for kind in (FrozenDict, FrozenList):
        public = {name for name in dir(kind.__base__) if not name.startswith("_")}
        refused = {name for name in public if getattr(kind, name) is kind.clear}
        assert public - refused <= unchanging


def test_what_is_frozen_already_is_not_copied() -> None:
    item = freeze(Item(name="x", tags=["a"]))
    assert freeze((item, item))[0] is item
    pair = (item, "x")
    assert freeze(pair) is pair


# -- context classes of all kinds -----------------------------------------------------------------------


class Colour(Enum):
    """An enum with numbers."""

    RED = 1


class Strictly(Frozen):
    """A nested model that refuses what it does not know, with a computed field and an alias."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    width: int = Field(default=1, alias="w")
    pair: tuple[int, int] = (1, 2)

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def double(self) -> int:
        """Twice the width."""
        return 2 * self.width


class Rich(Frozen):
    """Aliases, constraints, a computed field, and every type that JSON has not."""

    goal: str = Field(alias="theGoal")
    colour: Colour = Colour.RED
    when: datetime = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    took: timedelta = timedelta(seconds=1.5)
    price: Decimal = Decimal("0.10")
    ident: UUID = UUID(int=7)
    path: PurePosixPath = PurePosixPath("a/b")
    raw: bytes = b"text"
    by_number: Annotated[dict[int, tuple[str, ...]], MERGE] = {}
    inner: Strictly = Strictly(w=4)
    left: Annotated[int, COUNT, Field(ge=0)] = 3
    short: Annotated[tuple[str, ...], APPEND, Field(max_length=2)] = ()
    word: Annotated[str, StringConstraints(strip_whitespace=True, max_length=5)] = "word"
    ratio: float = Field(default=0.1, gt=0)
    reason: Annotated[str | None, FIRST] = None

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def loud(self) -> str:
        """The goal in capitals."""
        return self.goal.upper()


def _machine(context: type[BaseModel]) -> Machine[Any]:
    return puppet(
        context=context,
        result=puppet().result,
        states={
            s: {"reads": set(context.model_fields), "writes": set(context.model_fields)} for s in (S.A, S.B)
        },
    )


def test_a_rich_context_survives_snapshot_and_log() -> None:

    machine = _machine(Rich)
    patch = {
        "goal": "new", "by_number": {7: ("x",)}, "left": -3, "word": "  trim ", "ratio": 0.30000000000000004,
        "inner": Strictly(w=9), "when": datetime(2027, 1, 1, tzinfo=UTC), "raw": b"more",
    }  # fmt: skip
    play = Play(machine, Rich(theGoal="old")).tell((patch, Ask()), ({"by_number": {8: ("y",)}}, Went()))
    assert (play.context.word, play.context.left, play.context.inner.width) == ("trim", 0, 9)
    assert play.context.by_number == {7: ("x",), 8: ("y",)}
    assert load(machine, json.loads(json.dumps(dump(play.step.snapshot)))) == play.step.snapshot
    records = [type(r).model_validate_json(r.model_dump_json()) for r in play.records]
    assert rebuild(machine, records) == (play.state, play.context)


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"left": -4}, "left: Input should be greater than or equal to 0"),
        ({"short": ("a", "b", "c")}, "short: Tuple should have at most 2 items"),
        ({"word": "too long"}, "word: String should have at most 5 characters"),
        ({"ratio": 0}, "ratio: Input should be greater than 0"),
        ({"raw": b"\xff"}, "the log cannot hold the patch"),
        ({"colour": 2}, "colour: Input should be 1"),
    ],
)
def test_a_fields_constraints_hold_for_what_a_patch_makes_of_it(patch: Any, message: str) -> None:

    with pytest.raises(BadPatch, match=message):
        Play(_machine(Rich), Rich(theGoal="x")).tell((patch, Went()))


class Checked(Frozen):
    """A context with validators that check, and one that changes."""

    low: int = 0
    high: int = 10
    name: str = "x"

    @model_validator(mode="after")
    def _ordered(self) -> Checked:
        if self.low > self.high:
            raise ValueError("low is above high")
        return self

    @field_validator("name")
    @classmethod
    def _lower(cls, name: str) -> str:
        return name.lower()


def test_validators_of_the_context_class_are_asked_about_the_whole_candidate() -> None:

    machine = _machine(Checked)
    assert Play(machine, Checked()).tell(({"low": 20, "high": 30}, Went())).context.low == 20
    with pytest.raises(BadPatch, match="Checked: Value error, low is above high"):
        Play(machine, Checked()).tell(({"low": 20}, Went()))
    with pytest.raises(BadPatch, match="validators may only check, but they change name"):
        Play(machine, Checked()).tell(({"name": "LOUD"}, Went()))


def test_a_reducer_of_ones_own_is_folded_as_the_log_folds_it() -> None:
    """Its compose is rough, so the state follows it too: state and log never differ."""

    worst = Reducer("most", lambda old, delta: {**old, **delta}, lambda first, later: later)

    class Own(Frozen):
        """A context with such a field."""

        table: Annotated[JsonObject, worst] = {}

    machine = Machine(
        name="own", context=Own, initial=S.A, final={S.END},
        states={
            S.A: State(enter=lambda c, at: ({"table": {"a": 1}}, Ended()), writes={"table"}),
            S.END: State(on_enter=lambda c: {"table": {"b": 2}}, writes={"table"}),
        },
        table=[Row(S.A, Ended, S.END)], result=puppet().result,
    )  # fmt: skip
    play = Play(machine, Own())
    assert rebuild(machine, play.records) == (S.END, play.context)
    with pytest.raises(TypeError, match="read-only"):
        play.context.table["x"] = 1


def test_a_reducer_that_cannot_fold_makes_a_bad_patch() -> None:

    broken = Reducer("broken", lambda old, delta: old["nothing"], lambda first, later: later)

    class Broken(Frozen):
        """A context with such a field."""

        x: Annotated[JsonObject, broken] = {}

    with pytest.raises(BadPatch, match="the patch does not fit: x: 'nothing'"):
        Play(_machine(Broken), Broken()).tell(({"x": {}}, Went()))


def test_add_and_put_keep_the_kind_of_their_field() -> None:
    class Lists(Frozen):
        """Lists instead of tuples."""

        added: Annotated[list[int], ADD] = []
        put: Annotated[list[int], PUT] = []
        appended: Annotated[list[int], APPEND] = []

    fields = Fields.of(Lists)
    for name, delta in (("added", [1, 1]), ("put", {0: 1}), ("appended", [1])):
        assert fields.fold(name, FrozenList(), fields.checked(name, delta)) == FrozenList([1])
