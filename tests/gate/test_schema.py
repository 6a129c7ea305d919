"""Arguments that a person wrote, held against a tool's schema."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from activities.settings import Settings
from activities.toolbox import Toolbox
from workflows.gate.schema import ARGUMENTS_BYTES, problem


def props(**properties: Any) -> dict[str, Any]:
    """A schema of an object."""
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "arguments", "words"),
    [
        (props(a={"type": "integer"}), {"a": 1}, ""),
        (props(a={"type": "integer"}), {}, ""),
        (props(a={"type": "integer"}), {"a": True}, "a: True is not of type 'integer'"),
        (props(a={"type": "integer"}), {"b": 1}, "the tool has no argument b; it has a"),
        (props(), {"b": 1}, "the tool has no argument b; it has none"),
        ({**props(a={}), "additionalProperties": True}, {"b": 1}, ""),
        ({**props(a={}), "additionalProperties": False}, {"b": 1}, "the tool has no argument b"),
        ({**props(a={}), "patternProperties": {"^b": {}}}, {"b": 1}, ""),
        ({"type": "object"}, {"b": 1}, ""),
        (props(a={"pattern": "^x+$"}), {"a": "xx"}, ""),
        (props(a={"pattern": "^x+$"}), {"a": "y"}, "a: 'y' does not match"),
        (props(a={"pattern": "^x+$"}), {"a": 5}, ""),
        (props(a={"pattern": ".{1000}"}), {"a": "y"}, ""),
        (props(a={"pattern": "(?!y)"}), {"a": "y"}, ""),
        (props(a={"uniqueItems": True}), {"a": [1, 2]}, ""),
        (props(a={"uniqueItems": True}), {"a": [1, 1]}, "a: an item is there more than once"),
        (props(a={"uniqueItems": True}), {"a": [1, True]}, ""),
        (props(a={"uniqueItems": False}), {"a": [1, 1]}, ""),
        (props(a={"$ref": "#/$defs/n"}) | {"$defs": {"n": {"maximum": 5}}}, {"a": 6}, "a: 6 is greater than"),
        (props(a={"$ref": "https://example.com/n"}), {"a": 6}, ""),
        (props(a={"$ref": "#/$defs/missing"}), {"a": 6}, ""),
        (props(a={"$ref": "#/properties/a"}), {"a": 6}, ""),
        (props(b={"maximum": 1}, a={"maximum": 1}), {"b": 2, "a": 2}, "a: 2 is greater .*; b: 2 is greater"),
        (props(a={"type": 5}), {"a": 6}, ""),
        (props(a={"enum": 5}), {"a": 6}, ""),
        (props(a={"minimum": "x"}), {"a": 6}, ""),
        (props(a=5), {"a": 6}, ""),
        ({**props(a={}), "required": 5}, {"a": 6}, ""),
        ({"properties": 5, "patternProperties": {"(a+)+$": False}}, {"a" * 40 + "b": 6}, ""),
        ({"patternProperties": {"(a+)+$": {}}, "additionalProperties": False}, {"a" * 40 + "b": 6}, ""),
        ({"additionalProperties": {"type": "string"}}, {"a": 6}, "a: 6 is not of type 'string'"),
        (props(a={}), {"a": "x" * 70_000}, "70,008 bytes as JSON, at most 65,536"),
        (
            {**props(a={"maximum": 1}), "$schema": "http://json-schema.org/draft-04/schema#"},
            {"a": 2},
            "greater",
        ),
    ],
)
def test_what_does_not_fit_is_said(schema: dict[str, Any], arguments: dict[str, Any], words: str) -> None:
    """And nothing of what fits."""
    found = problem(schema, arguments)
    assert re.search(words, found) if words else found == "", found


def test_large_arguments_may_be_given() -> None:
    schema = props(text={"type": "string", "minLength": 1}, mode={"enum": ["a", "b"]}, rows={"type": "array"})
    assert problem(schema, {"text": "x" * 60_000, "mode": "a", "rows": [[1, 2]] * 500}) == ""


def test_no_schema_can_hang_a_run() -> None:
    """Each `$ref` doubles the work; each pattern looks at all of the text, `uniqueItems` at all items."""
    doubled: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    doubling = props(a={"$ref": "#/$defs/d0"}) | {"$defs": {**doubled, "d40": {"type": "string"}}}
    patterns = props(a={"anyOf": [{"pattern": f"y{n}$"} for n in range(5000)]})
    unique = props(a={"anyOf": [{"uniqueItems": True, "maxItems": n} for n in range(1000)]})
    text: Any = "x" * 60_000
    large = props(a={"anyOf": [{"pattern": f".{{500}}y{n}$"} for n in range(50)]})
    items: Any = [f"{n:08}" for n in range(5000)]
    began = time.monotonic()
    for schema, value in (
        (large, text),
        (doubling, text),
        (doubling, items),
        (patterns, text),
        (unique, items),
    ):
        assert "it takes too long" in problem(schema, {"a": value})
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("spec", Toolbox.load(Settings()).specs, ids=lambda spec: spec.name)
def test_every_shipped_tool_can_be_edited(spec: Any) -> None:
    """Its schema is one that arguments can be held against."""
    assert "no argument such_as_no_tool_has" in problem(spec.parameters, {"such_as_no_tool_has": 1})


@pytest.mark.parametrize(
    ("size", "words"), [(ARGUMENTS_BYTES, ""), (ARGUMENTS_BYTES + 1, "65,537 bytes as JSON")]
)
def test_arguments_have_a_largest_size(size: int, words: str) -> None:
    text: Any = "x" * (size - len('{"a":""}'))
    found = problem(props(a={}), {"a": text})
    assert (words in found) if words else found == ""


@pytest.mark.parametrize("key", ["$schema", "$id"])
def test_no_schema_brings_a_validator_of_its_own(key: str) -> None:
    """Without its own checks, Python's expressions would search, and hang."""
    schema = {**props(a={"pattern": "^(a+)+$"}), key: "http://json-schema.org/draft-07/schema#"}
    began = time.monotonic()
    assert "does not match" in problem(schema, {"a": "a" * 40 + "b"})
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("4800", ""),
        ("48000000000000000000", "is not of type 'integer'"),
        ("-3", "is less than the minimum"),
        ("4.5", "is not of type 'integer'"),
        ("4 800", "is not of type 'integer'"),
        ("", "is not of type 'integer'"),
    ],
)
def test_a_number_may_stand_as_text_as_the_model_wrote_it(value: str, fault: str) -> None:
    schema: dict[str, Any] = {"properties": {"cents": {"type": "integer", "minimum": 0}}}
    assert fault in problem(schema, {"cents": value})
    assert bool(problem(schema, {"cents": value})) == bool(fault)
    assert "is not of type 'string'" in problem({"properties": {"to": {"type": "string"}}}, {"to": 5})
