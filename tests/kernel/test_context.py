"""Patches, differences and the ledger: what is kept, what is refused, and what the log can give back."""

from __future__ import annotations

import copy
import json
import math
import pickle
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from workflows.kernel.context import Context, Misfit, View, apply_difference, difference, differences, patched
from workflows.kernel.ledger import Ledger, plain_number

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3)
    ),
    max_leaves=12,
)


def plain(value: Any) -> Any:
    """As JSON gives it back."""
    return json.loads(json.dumps(value))


@given(old=VALUES, new=VALUES)
def test_difference_gives_the_new_value_back(old: Any, new: Any) -> None:
    found = difference(old, new)
    rebuilt = plain(old) if found is None else apply_difference(plain(old), plain(found))
    assert json.dumps(rebuilt, sort_keys=True) == json.dumps(new, sort_keys=True)  # `True` is not `1`


def test_difference_writes_what_is_new() -> None:
    old = {"a": (1,), "b": {"x": 1, "y": 2}, "c": 3}
    new = {"a": (1, 2), "b": {"x": 5}, "d": 4}
    assert difference(old, new) == {
        "change": {
            "a": {"append": [2]},
            "b": {"change": {"x": {"set": 5}}, "drop": ["y"]},
            "d": {"set": 4},
        },
        "drop": ["c"],
    }
    assert difference(old, dict(old)) is None


class Pair(Context):
    """A rule about a whole tuple."""

    both: Annotated[tuple[int, ...], Field(max_length=2)] = ()


def test_rule_for_the_whole_value_is_kept() -> None:
    with pytest.raises(Misfit, match="both"):
        patched(Pair(both=(1, 2)), {"both": (1, 2, 3)})


class Part(BaseModel):
    """A model inside."""

    model_config = ConfigDict(frozen=True)

    n: int = 0
    note: str = ""


class Values(Context):
    """Some fields."""

    part: Part = Part()
    items: tuple[Part, ...] = ()
    table: dict[str, int] = {}

    @property
    def total(self) -> int:
        """Needs `items`."""
        return sum(one.n for one in self.items)


def test_model_inside_changes_by_field() -> None:
    old = Values(part=Part(n=1, note="x"))
    new = patched(old, {"part": Part(n=2, note="x")})
    assert differences(old, new) == {"part": {"change": {"n": {"set": 2}}}}


def test_patch_is_validated_where_it_is_new() -> None:
    old = Values(items=(Part(n=1),), table={"a": 1})
    new = patched(old, {"items": (*old.items, {"n": 2}), "table": {**old.table, "b": "3"}})
    assert new == Values(items=(Part(n=1), Part(n=2)), table={"a": 1, "b": 3})
    assert new.items[0] is old.items[0]
    for patch, where in (
        ({"items": (*old.items, "no")}, "items"),
        ({"table": {"a": "no"}}, "table.a"),
        ({"part": 5}, "part"),
        ({"prat": Part()}, "prat"),
    ):
        with pytest.raises(Misfit, match=where):
            patched(old, patch)


class Inner(BaseModel, frozen=True, extra="allow"):
    """A model with a mapping in it, declared or not."""

    given: dict[str, Any] = {}


class Nested(Context):
    """Any JSON, at any depth, bare and in models."""

    bare: JsonValue = None
    parts: tuple[Inner, ...] = ()
    table: dict[str, Inner] = {}


CHANGES: dict[type[Any], list[Any]] = {
    dict: [
        lambda d: d.update(x=1), lambda d: d.setdefault("x", 1), lambda d: d.pop("a", 0), lambda d: d.clear(),
        lambda d: d.__setitem__("x", 1), lambda d: d.__delitem__("a"), lambda d: d.popitem(),
        lambda d: d.__ior__({"x": 1}),
    ],
    list: [
        lambda x: x.append(1), lambda x: x.extend([1]), lambda x: x.insert(0, 1), lambda x: x.pop(),
        lambda x: x.remove(1), lambda x: x.clear(), lambda x: x.sort(), lambda x: x.reverse(),
        lambda x: x.__setitem__(slice(0), [1]), lambda x: x.__delitem__(slice(None)),
        lambda x: x.__iadd__([1]), lambda x: x.__imul__(2),
    ],
}  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=12,
)
MAPPINGS = st.dictionaries(st.text("ab", max_size=2), JSON, max_size=3)


def containers(value: Any) -> list[Any]:
    """All that could be changed in a value."""
    if isinstance(value, BaseModel):
        inner = [*(getattr(value, name) for name in type(value).model_fields), value.__pydantic_extra__]
    else:
        inner = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(inner, list | tuple):
        return []
    found = [one for item in inner for one in containers(item)]
    return [value, *found] if isinstance(value, dict | list) else found


@given(JSON, st.lists(MAPPINGS, max_size=3), MAPPINGS, st.booleans())
def test_nothing_that_a_view_shows_can_be_changed(
    bare: Any, parts: list[Any], table: Any, loaded: bool
) -> None:
    values = {
        "bare": bare,
        "parts": [Inner(given=one, more=[one]) for one in parts],
        "table": {"x": Inner.model_construct(given=table)},
    }
    kept = patched(Nested(), values)
    if loaded:
        kept = Nested.model_validate_json(kept.model_dump_json())
    before, view = kept.model_dump_json(), View(kept, frozenset(values), PermissionError)
    shown = [one for name in values for one in containers(getattr(view, name))]
    for one in shown:
        for change in CHANGES[next(kind for kind in CHANGES if isinstance(one, kind))]:
            with pytest.raises(TypeError, match="of the context is read-only"):
                change(one)
    assert kept.model_dump_json() == before


@given(MAPPINGS)
def test_copies_of_what_a_view_shows_can_be_changed(table: Any) -> None:
    shown: Any = Nested(bare=table).bare
    for made in (dict(shown), {**shown}, shown.copy(), copy.copy(shown), copy.deepcopy(shown)):
        made["x"] = 1
        assert (type(made), made) == (dict, {**table, "x": 1})
    assert pickle.loads(pickle.dumps(shown)) == table


def test_view_shows_declared_fields_alone() -> None:
    view = View(Values(items=(Part(n=4),), table={"a": 1}), frozenset({"items", "table"}), PermissionError)
    assert view.total == 4
    assert view.fields_read == ("items",)
    assert view.after({"items": ()}).total == 0
    with pytest.raises(PermissionError, match="part"):
        _ = view.part
    with pytest.raises(TypeError):
        view.items = ()
    with pytest.raises(TypeError):
        view.table["a"] = 2


# -- the ledger --------------------


@pytest.mark.parametrize(
    ("spent", "amount", "breached"),
    [(0, 1, False), (1, 1, False), (2, 1, True), (1, 0, False), (2, 0, True), (3, 0, True)],
)
def test_breach_is_what_the_next_call_would_pass(spent: float, amount: float, breached: bool) -> None:
    ledger = Ledger(spent={"calls": spent}, caps={"calls": 2})
    assert (ledger.breach({"calls": amount}) is not None) == breached


def test_left_is_never_below_zero_and_infinite_without_a_cap() -> None:
    ledger = Ledger(caps={"calls": 2}).charge({"calls": 5, "cost": 0.1})
    assert (ledger.left("calls"), ledger.left("cost")) == (0, math.inf)
    assert ledger.credit({"calls": 4}).left("calls") == 1
    assert ledger.credit({"cost": 4}).caps == {"calls": 2}


@given(st.lists(st.floats(0, 10), max_size=50))
def test_sum_of_prices_never_passes_a_cap_by_rounding(prices: list[float]) -> None:
    prices = [round(price, 4) for price in prices]
    ledger = Ledger(caps={"cost": round(sum(prices), 4)})
    for price in prices:
        assert ledger.breach({"cost": price}) is None or price == 0
        ledger = ledger.charge({"cost": price})


def test_time_never_falls_and_scopes_are_counted_apart() -> None:
    ledger = Ledger().with_seconds(5).with_seconds(3).charge({"tools": 1}, "run", "stage")
    assert ledger.spent == {"seconds": 5, "run/tools": 1, "stage/tools": 1}


@pytest.mark.parametrize(("number", "text"), [(1_200_000, "1200000"), (0.25, "0.25"), (2.0, "2"), (0, "0")])
def test_numbers_read_as_people_write_them(number: float, text: str) -> None:
    assert plain_number(number) == text
