"""The knobs of the tools machine (spec 2.8): defaults, ranges, and what a person is told."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from workflows.kernel.design import Parts
from workflows.machines.tools_context import Options
from workflows.registry import design


def test_the_defaults_are_those_of_the_spec() -> None:
    knobs = Options()
    assert (knobs.max_iterations, knobs.unknown_tool, knobs.parallel_tools) == (10, "raise", False)
    assert knobs.max_calls_per_reply == 100
    assert (knobs.policies, knobs.max_tool_attempts, knobs.max_model_attempts) == ((), 1, 1)


@pytest.mark.parametrize(("knob", "value", "words"), [
    ("max_iterations", 0, "greater than or equal to 1"),
    ("max_iterations", 10_001, "less than or equal to 10000"),
    ("max_iterations", 2.5, "valid integer"),
    ("unknown_tool", "ignore", "'raise' or 'report'"),
    ("parallel_tools", "sometimes", "valid boolean"),
    ("policies", "no_progress", "tuple"),
    ("policies", [{"typ": "no_progress"}], "Field required"),
    ("policies", [{"type": "no_progress", "valeu": 3}], "Extra inputs"),
    ("max_tool_attempts", 0, "greater than or equal to 1"),
    ("max_model_attempts", 21, "less than or equal to 20"),
    ("max_calls_per_reply", 0, "greater than or equal to 1"),
    ("max_calls_per_reply", 10_001, "less than or equal to 10000"),
    ("max_iteration", 5, "Extra inputs"),
])  # fmt: skip
def test_a_knob_outside_its_range_is_refused_with_the_range(knob: str, value: Any, words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Options.model_validate({knob: value})
    assert words in str(refused.value)
    assert knob in str(refused.value)


def test_every_knob_says_what_it_is() -> None:
    for name, field in Options.model_fields.items():
        assert field.description, name


@pytest.mark.parametrize("most", [1, 10, 10_000])
def test_the_transition_limit_leaves_room_for_every_turn(most: int) -> None:
    """One transition before the first turn, two for each; the last one is final."""
    machine = design("tools").build(Options(max_iterations=most), Parts())
    assert machine.max_transitions == 2 * most + 1
