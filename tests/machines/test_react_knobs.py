"""The knobs of the ReAct machine (spec 1.7): defaults, ranges, and what a person is told."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from workflows.machines.react_context import Options


def test_the_defaults_are_those_of_the_spec() -> None:
    knobs = Options()
    assert (knobs.max_steps, knobs.cost_limit, knobs.max_tool_attempts) == (20, 1.0, 3)
    assert (knobs.max_retries_before_human, knobs.max_transitions) == (3, None)
    assert (knobs.max_model_attempts, knobs.max_format_attempts) == (3, 3)


@pytest.mark.parametrize(("knob", "value", "words"), [
    ("max_steps", 0, "greater than or equal to 1"),
    ("max_steps", 10_001, "less than or equal to 10000"),
    ("max_steps", "many", "valid integer"),
    ("max_steps", 2.5, "valid integer"),
    ("max_transitions", 0, "greater than or equal to 1"),
    ("cost_limit", 0, "greater than 0"),
    ("cost_limit", -1, "greater than 0"),
    ("cost_limit", float("inf"), "finite"),
    ("cost_limit", float("nan"), "finite"),
    ("max_tool_attempts", 0, "greater than or equal to 1"),
    ("max_tool_attempts", 21, "less than or equal to 20"),
    ("max_model_attempts", 0, "greater than or equal to 1"),
    ("max_format_attempts", 0, "greater than or equal to 1"),
    ("max_retries_before_human", -1, "greater than or equal to 0"),
    ("reply_format", "xml", "'text' or 'json_schema'"),
    ("rules", "none", "tuple"),
    ("rules", [{"typ": "max_depth"}], "Field required"),
    ("rules", [{"type": "max_depth", "valeu": 3}], "Extra inputs"),
    ("max_step", 5, "Extra inputs"),
])  # fmt: skip
def test_a_knob_outside_its_range_is_refused_with_the_range(knob: str, value: Any, words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Options.model_validate({knob: value})
    assert words in str(refused.value)
    assert knob in str(refused.value)


def test_every_knob_says_what_it_is() -> None:
    for name, field in Options.model_fields.items():
        assert field.description, name
