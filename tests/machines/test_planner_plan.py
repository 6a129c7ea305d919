"""PLAN (spec 4.3): the prompt, the schema, what a plan gives; and the knobs (4.11)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tests.machines.answers import said
from tests.machines.plannerkit import path, planner
from tests.machines.scripts_planner import PLAN, plan
from workflows.machines.planner_context import Options
from workflows.machines.planner_schema import DEFAULT_SCHEMA

# -- the one call --------------------


def test_the_planner_is_asked_once_with_goal_schema_tools_and_instructions() -> None:
    run = planner(instructions="Be brief.")
    (call,) = run.prompts
    system, user = call.transcript.messages
    assert (call.role, call.attempts, call.offer, call.response_schema) == ("planner", 1, (), None)
    assert system.content.startswith("Be brief.")
    assert '"initial_steps"' in system.content
    assert "- look: does look\n- write: does write" in system.content
    assert (user.role, user.content) == ("user", "find out")


def test_a_plan_that_does_not_fit_is_not_asked_for_again() -> None:
    run = planner(said("{}"), PLAN)
    assert (len(run.prompts), run.unused) == (1, 1)


def test_the_provider_may_hold_the_plan_to_its_schema() -> None:
    schema = {"type": "object", "properties": {"goal": {"type": "string"}}}
    assert planner(plan_format="json_schema").prompts[0].response_schema == DEFAULT_SCHEMA
    run = planner(plan_format="json_schema", plan_schema=schema)
    assert run.prompts[0].response_schema == schema


def test_a_prompt_builder_writes_what_the_planner_is_asked() -> None:
    hooks = {"mine": lambda text, state: f"Plan for {text}, begun {state['started_at'][:4]}"}
    run = planner(prompt_builder="mine", hooks=hooks)
    assert run.prompts[0].transcript.messages[-1].content == "Plan for find out, begun 1970"


def test_a_prompt_builder_cannot_change_the_state() -> None:
    def mine(text: Any, state: Any) -> str:
        with pytest.raises(TypeError, match="read-only"):
            state["goal"] = "mine"
        with pytest.raises(TypeError, match="read-only"):
            state["observations"].append({})
        return "plan"

    run = planner(prompt_builder="mine", hooks={"mine": mine})
    assert (run.context.state["goal"], run.told) == ("find out", "plan")


@pytest.mark.parametrize(("hook", "words"), [
    (lambda text, state: state["nothing"], "Plan failed: the prompt builder failed: KeyError: 'nothing'"),
    (lambda text, state: 3, "Plan failed: the prompt builder answered a value of type int; expected a text"),
])  # fmt: skip
def test_a_prompt_builder_that_fails_halts(hook: Any, words: str) -> None:
    run = planner(prompt_builder="mine", hooks={"mine": hook})
    assert path(run) == "I P H"
    assert run.exit.error == f"Agent halted: {words}"


# -- what a plan gives --------------------


def test_what_a_plan_leaves_out_is_empty() -> None:
    run = planner(plan("see"))
    assert run.context.state["plan"] == {"goal": "see", "required_capabilities": [], "initial_steps": []}


def test_a_plan_without_a_goal_takes_the_input_if_the_schema_lets_it_through() -> None:
    run = planner(said('{"initial_steps": ["a"]}'), plan_schema={"type": "object"})
    assert run.context.state["plan"]["goal"] == "find out"
    assert path(planner(said('{"initial_steps": ["a"]}'))) == "I P H"


def test_a_plan_may_say_more_if_the_schema_lets_it_through() -> None:
    run = planner(plan("see", risk="low"), plan_schema={})
    assert run.context.state["plan"]["risk"] == "low"
    assert path(planner(plan("see", risk="low"))) == "I P H"


def test_the_model_that_carries_the_plan_out_sees_it() -> None:
    messages = planner(PLAN).prompts[-1].transcript.messages
    assert [m.role for m in messages] == ["user", "assistant", "user"]
    assert messages[1].content == PLAN.text


def test_an_empty_goal_of_the_plan_is_not_replaced_by_the_input() -> None:
    assert planner(plan("")).context.state["plan"]["goal"] == ""


@pytest.mark.parametrize(
    "text", ['{"goal": "a", "confidence": %s}' % ("9" * 400), '{"goal": %s}' % ("9" * 400)]
)
def test_a_number_of_400_digits_is_no_plan(text: str) -> None:
    run = planner(said(text), plan_schema={"properties": {"goal": {"multipleOf": 0.1}}})
    assert (path(run), run.exit.reason) == ("I P H", "plan_failed")


def test_a_plan_that_was_cut_names_the_length_limit() -> None:
    run = planner(said('{"goal": "a').model_copy(update={"finish_reason": "length"}))
    assert "the plan cannot be read: the reply was cut at its length limit" in str(run.exit.error)


# -- knobs --------------------


def test_the_defaults_are_those_of_the_spec() -> None:
    knobs = Options()
    assert (knobs.max_iterations, knobs.decide, knobs.finalize_summary) == (50, None, False)
    assert (knobs.on_tool_error, knobs.on_policy_violation) == ("halt", "halt")
    assert (knobs.time_limit, knobs.budgets, knobs.min_confidence) == (None, {}, 0.5)
    assert (knobs.policy, knobs.converged, knobs.prompt_builder) == (None, None, None)


@pytest.mark.parametrize(("knob", "value", "words"), [
    ("max_iterations", -1, "greater than or equal to 0"),
    ("max_iterations", 2.5, "valid integer"),
    ("on_tool_error", "ignore", "'halt' or 'record'"),
    ("on_policy_violation", "ignore", "'halt' or 'record'"),
    ("time_limit", 0, "greater than 0"),
    ("time_limit", float("inf"), "finite"),
    ("budgets", {"tokns": 1}, "'tokens'"),
    ("budgets", {"tokens": 0}, "greater than 0"),
    ("min_confidence", 1.1, "less than or equal to 1"),
    ("min_confidence", -0.1, "greater than or equal to 0"),
    ("converged", [], "at least 1 item"),
    ("plan_schema", [], "dictionary"),
    ("plan_format", "xml", "'text' or 'json_schema'"),
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
