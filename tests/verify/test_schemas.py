"""JSON schema for the solver, held against what production says of the same values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.contracts import ToolSpec
from workflows.gate.arguments import arguments_for, closed_schema, condition_problem, fits

z3 = pytest.importorskip("z3")

from workflows.verify.policy.listed_arguments import names_in  # noqa: E402  # behind the skip
from workflows.verify.policy.schemas import TYPES, Value, Values  # noqa: E402  # behind the skip

NUMBERS = st.sampled_from([-1, 0, 1, 2, 2.5, 3, 5, 0.1])
TEXTS = st.sampled_from(["", "a", "b", "ab", "reports/a", "12"])
PLAIN = st.one_of(NUMBERS, TEXTS, st.sampled_from([None, True, False]))
JSON = st.recursive(
    PLAIN,
    lambda one: st.one_of(
        st.lists(one, max_size=3), st.dictionaries(st.sampled_from("xyz"), one, max_size=3)
    ),
    max_leaves=4,
)
COUNT = st.integers(0, 3)
LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "type": st.sampled_from([*TYPES, "integer", ["string", "null"]]),
    "enum": st.lists(JSON, min_size=1, max_size=3),
    "const": JSON,
    "minimum": NUMBERS, "maximum": NUMBERS, "exclusiveMinimum": NUMBERS, "exclusiveMaximum": NUMBERS,
    "multipleOf": st.sampled_from([1, 2, 3]),
    "minLength": COUNT, "maxLength": COUNT, "pattern": st.sampled_from(["^a", "b$", "^[0-9]+$", "a|1"]),
    "minItems": COUNT, "maxItems": COUNT, "uniqueItems": st.booleans(),
    "minProperties": COUNT, "maxProperties": COUNT, 
    "required": st.lists(st.sampled_from("xyz"), max_size=2, unique=True),
    "title": st.just("a title"),
}  # fmt: skip


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=2)
    more = {
        "items": inner, "contains": inner, "prefixItems": some,
        "not": inner, "anyOf": some, "allOf": some, "oneOf": some,
        "properties": st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
        "additionalProperties": inner,
    }  # fmt: skip
    return st.fixed_dictionaries({}, optional={key: more[key] for key in more})


SIMPLE = st.fixed_dictionaries({}, optional=LEAVES)
SCHEMA = st.recursive(
    SIMPLE, lambda inner: st.builds(lambda a, b: {**a, **b}, SIMPLE, schemas(inner)), max_leaves=4
)


def judged(schema: Any, given: Any, *, condition: bool) -> bool | None:
    values = Values()
    value = Value("x", sorted({*names_in(schema), *names_in({"const": given})}))
    fixed = values.fits({"const": given}, value, condition=False)
    formula = values.fits(schema, value, condition=condition)
    solver = z3.Solver()
    solver.add(value.sound(), fixed)
    assert solver.check() == z3.sat
    can = [solver.check(formula), solver.check(z3.Not(formula))]
    assert z3.unknown not in can
    if can == [z3.sat, z3.sat]:
        assert values.unknown, "a value has one answer where nothing is unknown"
        return None
    return bool(can[0] == z3.sat)


@given(SCHEMA, JSON)
def test_condition_fits_what_production_fits(schema: Any, value: Any) -> None:
    if condition_problem(schema):
        return
    assert judged(schema, value, condition=True) in (None, fits({"x": schema}, {"x": value}))


@given(SCHEMA, st.dictionaries(st.sampled_from("xyz"), JSON, max_size=3))
def test_tool_takes_what_production_takes(schema: Any, value: dict[str, Any]) -> None:
    if condition_problem(schema):  # malformed for a tool, too
        return
    spec = ToolSpec(name="t", description="", parameters=schema)
    taken = arguments_for(spec, value)
    if isinstance(taken, dict) and taken != value:  # converted: another call is judged
        return
    assert judged(closed_schema(spec), value, condition=False) in (None, taken == value)
