"""The rule engine and the rules of the ReAct machine (spec 1.6)."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.machines.answers import act, final, thought, tool_said
from tests.machines.driver import Play, run_script, tool
from workflows import registry
from workflows.kernel.design import Parts
from workflows.kernel.errors import FatalError, RecoverableError, TransientError
from workflows.kernel.rules import Rule, RuleSpec, build_rules, judge
from workflows.machines.react_context import Options
from workflows.machines.react_rules import RULE_TYPES
from workflows.registry import design

SEARCH = tool("search", q={"type": "string"})


def react(*answers: Any, rules: Any = None, own: Any = None, **options: Any) -> Play:
    """A run with these rules; `own` are rules that the worker has loaded."""
    knobs = options if rules is None else {**options, "rules": rules}
    return run_script("react", answers, tools=(SEARCH,), options=knobs, parts=Parts(rules=own or {}))


def always(name: str, severity: Any, message: Any, seen: list[str] | None = None) -> Rule:
    """A rule that always says the same."""

    def check(step: Any, context: Any) -> Any:
        if seen is not None:
            seen.append(name)
        if isinstance(message, Exception):
            raise message
        return message

    return Rule(name, severity, check)


# -- the engine --------------------


def test_rules_run_in_order_and_the_first_terminal_one_stops_at_once() -> None:
    seen: list[str] = []
    rules = (
        always("one", "retryable", "r1", seen), always("two", "retryable", None, seen),
        always("three", "terminal", "t1", seen), always("four", "terminal", "t2", seen),
    )  # fmt: skip
    verdict = judge(rules, None, None)
    assert seen == ["one", "two", "three"]
    assert verdict.terminal is not None
    assert (verdict.terminal.rule, verdict.terminal.message) == ("three", "t1")
    assert verdict.retryable == ()
    assert verdict.text == "three: t1"


def test_without_a_terminal_violation_all_retryable_ones_are_gathered() -> None:
    rules = (
        always("one", "retryable", "r1"),
        always("two", "terminal", ""),
        always("three", "retryable", "r3"),
    )
    verdict = judge(rules, None, None)
    assert (verdict.ok, verdict.terminal, verdict.text) == (False, None, "one: r1; three: r3")


def test_no_rules_hold_always() -> None:
    assert judge((), None, None).ok


def test_both_reasons_reach_the_model() -> None:
    def said_by(spec: RuleSpec) -> Rule:
        return always(spec.type, "retryable", f"because of {spec.type}")

    own = {"aa": said_by, "bb": said_by}
    run = react(thought("x"), rules=[{"type": "aa"}, {"type": "bb"}], own=own)
    assert "because of aa" in run.told
    assert "because of bb" in run.told


# -- the shipped rules --------------------


@pytest.mark.parametrize(("steps", "passes"), [(20, True), (21, False)])
def test_max_depth_lets_20_steps_pass(steps: int, passes: bool) -> None:
    (rule,) = build_rules([RuleSpec(type="max_depth")], RULE_TYPES)
    context = run_script("react", [thought("x")] * steps, options={"max_steps": 30}).context
    assert rule.severity == "terminal"
    assert (rule.check(context.steps[-1], context) is None) is passes


@pytest.mark.parametrize(("cost", "passes"), [(0.50, True), (0.51, False)])
def test_cost_limit_lets_half_a_dollar_pass(cost: float, passes: bool) -> None:
    run = react(thought("x", cost=cost))
    assert (run.last.exit is None) is passes


@pytest.mark.parametrize("words", [
    "I guess", "i GUESS so", "PROBABLY", "I'm not sure", "I\N{RIGHT SINGLE QUOTATION MARK}m not sure",
    "it might be", "it could be", "it Might\nbe so",
])  # fmt: skip
def test_R_000_10_forbid_guessing_compares_without_case(words: str) -> None:
    run = react(thought(f"Well, {words}, or so"))
    assert run.visited == "thought validate thought"
    assert "forbid_guessing" in run.context.metadata["retry_reason"]


@pytest.mark.parametrize("words", ["I know", "it might have been", "I am sure", "we guess"])
def test_forbid_guessing_lets_other_words_pass(words: str) -> None:
    assert react(thought(words)).context.steps[0].status == "committed"


@pytest.mark.parametrize("phrase", ["Perhaps", "I don\N{RIGHT SINGLE QUOTATION MARK}t know", "I  DON'T know"])
def test_forbid_guessing_can_be_extended(phrase: str) -> None:
    rules = [{"type": "forbid_guessing", "config": {"phrases": [phrase]}}]
    assert react(thought("perhaps I don't know"), rules=rules).visited == "thought validate thought"
    assert react(thought("I guess"), rules=rules).visited == "thought validate thought"


def test_require_tool_use_is_off_and_lets_a_step_without_action_pass() -> None:
    off = {spec.type: spec.enabled for spec in Options().rule_specs()}
    assert off == {"max_depth": True, "cost_limit": True, "forbid_guessing": True, "require_tool_use": False}
    rules = [{"type": "require_tool_use"}]
    assert react(thought("x"), rules=rules).context.steps[0].status == "committed"
    assert react(act("search", q="x"), tool_said(), rules=rules).context.steps[0].status == "committed"


def test_require_tool_use_rejects_an_action_without_a_name() -> None:
    (rule,) = build_rules([RuleSpec(type="require_tool_use")], RULE_TYPES)
    context = react(act("search", q="x"), tool_said()).context
    assert rule.severity == "retryable"
    assert rule.check(context.steps[0].model_copy(update={"action": " "}), context)


def test_no_rules_at_all_when_the_list_is_empty() -> None:
    run = react(thought("I guess", cost=0.9), rules=[])
    assert run.context.steps[0].status == "committed"


def test_a_rule_that_is_not_enabled_is_skipped() -> None:
    run = react(thought("I guess"), rules=[{"type": "forbid_guessing", "enabled": False}])
    assert run.context.steps[0].status == "committed"


@pytest.mark.parametrize(("knobs", "depth", "cost"), [
    ({}, 20, 0.50), ({"max_steps": 5}, 20, 0.50), ({"max_steps": 50}, 50, 0.50),
    ({"cost_limit": 3.0}, 20, 3.0), ({"cost_limit": 0.1}, 20, 0.1), ({"cost_limit": 1.0}, 20, 1.0),
])  # fmt: skip
def test_the_default_rules_follow_a_knob_that_was_set(knobs: Any, depth: float, cost: float) -> None:
    values = {spec.type: spec.value for spec in Options.model_validate(knobs).rule_specs()}
    assert (values["max_depth"], values["cost_limit"]) == (depth, cost)


def test_a_raised_cost_limit_is_not_cut_short_by_the_default_rule() -> None:
    assert react(thought("x", cost=0.9), cost_limit=2.0).last.exit is None


def test_max_depth_ends_a_run_of_rejected_drafts() -> None:
    rules = [{"type": "forbid_guessing"}, {"type": "max_depth", "value": 2}]
    run = react(*[thought("I guess")] * 3, rules=rules)
    assert run.exit.reason == "rule_violation"
    assert "max_depth" in str(run.exit.error)


# -- declarations --------------------


def test_the_yaml_form_has_type_value_enabled_and_config() -> None:
    text = """
    rules:
      - type: max_depth
        value: 3
      - {type: forbid_guessing, enabled: true, config: {phrases: [maybe]}}
      - {type: require_tool_use, enabled: false}
    """
    options = Options.model_validate(yaml.safe_load(text))
    rules = build_rules(options.rule_specs(), RULE_TYPES)
    assert [rule.name for rule in rules] == ["max_depth", "forbid_guessing"]


@pytest.mark.parametrize(("spec", "words"), [
    pytest.param({"type": "max_dept"}, "'max_dept'; did you mean max_depth", id="unknown"),
    pytest.param({"type": "nosuch", "enabled": False}, "unknown rule type", id="also when it is off"),
    pytest.param({"type": "max_depth", "value": 0}, "max_depth.*greater than 0", id="zero"),
    pytest.param({"type": "max_depth", "value": 2.5}, "max_depth.*whole number", id="half a step"),
    pytest.param({"type": "max_depth", "value": -1}, "max_depth.*greater than 0", id="negative"),
    pytest.param({"type": "cost_limit", "value": float("nan")}, "finite", id="not a number"),
    pytest.param({"type": "max_depth", "value": float("inf")}, "finite", id="infinite"),
    pytest.param({"type": "forbid_guessing", "config": {"phrases": "maybe"}}, "list of texts", id="no list"),
    pytest.param({"type": "forbid_guessing", "config": {"phrases": [" "]}}, "list of texts", id="blank"),
    pytest.param({"type": "forbid_guessing", "config": {"phrase": ["x"]}}, "phrase.*phrases", id="misspelt"),
    pytest.param({"type": "forbid_guessing", "value": 3}, "forbid_guessing.*value", id="a value for none"),
    pytest.param({"type": "max_depth", "config": {"max": 3}}, "max_depth.*max", id="config for none"),
])  # fmt: skip
def test_a_bad_declaration_is_a_ValueError_that_names_the_rule(spec: Any, words: str) -> None:
    made = design("react")
    with pytest.raises(ValueError, match=words):
        made.build(made.options.model_validate({"rules": [spec]}), Parts())


def _raises(spec: RuleSpec) -> Rule:
    raise KeyError("limit")


@pytest.mark.parametrize("maker", [
    pytest.param(_raises, id="raises"),
    pytest.param(lambda spec: lambda step, context: None, id="makes no Rule"),
])  # fmt: skip
def test_a_users_rule_that_cannot_be_made_is_a_ValueError_that_names_it(maker: Any) -> None:
    made = design("react")
    with pytest.raises(ValueError, match="mine"):
        made.build(made.options.model_validate({"rules": [{"type": "mine"}]}), Parts(rules={"mine": maker}))


# -- rules of one's own --------------------


def module(name: str, **rules: Any) -> ModuleType:
    """A user's module with rules."""
    made = ModuleType(name)
    made.RULES = rules  # type: ignore[attr-defined]  # what a user's module would define
    return made


def no_cats(spec: RuleSpec) -> Rule:
    """Refuses thoughts about cats."""
    return Rule("no_cats", "retryable", lambda step, context: "cats" if "cat" in step.thought else None)


def test_a_rule_of_a_loaded_module_is_known_by_its_name_and_by_its_dotted_name() -> None:
    registry.add_module(module("house.rules", no_cats=no_cats))
    for name in ("no_cats", "house.rules.no_cats"):
        run = run_script(
            "react", [thought("a cat")], options={"rules": [{"type": name}]}, parts=registry.parts()
        )
        assert run.visited == "thought validate thought"
        assert "no_cats: cats" in run.told


def test_the_same_module_may_be_loaded_again_but_no_other_rule_of_its_name() -> None:
    def another(spec: RuleSpec) -> Rule:
        return no_cats(spec)

    registry.add_module(module("garden.rules", no_dogs=no_cats))
    registry.add_module(module("garden.rules", no_dogs=no_cats))
    with pytest.raises(ValueError, match=r"yard\.rules.*no_dogs.*there already"):
        registry.add_module(module("yard.rules", no_dogs=another, no_birds=another))
    assert registry.parts().rules["no_dogs"] is no_cats
    assert "no_birds" not in registry.parts().rules


def test_a_shipped_rule_cannot_be_replaced() -> None:
    with pytest.raises(ValueError, match="max_depth is there already"):
        registry.add_module(module("loose.rules", max_depth=no_cats))


def test_a_rule_of_a_file_is_known_by_the_files_name_too() -> None:
    made = module("ratchet_user.hen_house_0a1b2c3d", no_hens=no_cats)
    made.__file__ = "/somewhere/hen_house.py"
    registry.add_module(made)
    assert registry.parts().rules["hen_house.no_hens"] is no_cats


def test_a_module_whose_rule_is_not_callable_is_refused() -> None:
    with pytest.raises(TypeError, match="no_fish"):
        registry.add_module(module("sea.rules", no_fish=3))


def test_a_rule_sees_the_step_and_the_whole_state_of_the_spec_and_cannot_change_them() -> None:
    seen: list[Any] = []

    def check(step: Any, context: Any) -> str | None:
        seen.append(
            (step.id, context.trace_id, len(context.steps), context.metadata["goal"], context.terminated)
        )
        with pytest.raises(TypeError):
            context.metadata["goal"] = "other"
        with pytest.raises(TypeError):
            context.terminated = True
        return None

    run = react(
        thought("x"), rules=[{"type": "mine"}], own={"mine": lambda spec: Rule("mine", "terminal", check)}
    )
    assert seen == [(0, "trace-1", 1, "find out", False)]
    assert run.context.steps[0].status == "committed"


@pytest.mark.parametrize("error", [KeyError("x"), FatalError("boom"), ZeroDivisionError("boom")])
def test_R_000_9_a_rule_that_raises_ends_the_run_and_is_named(error: Exception) -> None:
    run = react(
        thought("x"), rules=[{"type": "mine"}], own={"mine": lambda spec: always("mine", "retryable", error)}
    )
    assert run.visited == "thought validate __end__"
    assert run.exit.reason == "fatal_error"
    assert run.context.terminated
    for words in ("boom" if "boom" in str(error) else "KeyError", "mine"):
        assert words in str(run.exit.error) or isinstance(error, FatalError)


@pytest.mark.parametrize("kind", [RecoverableError, TransientError])
def test_a_rule_that_raises_a_recoverable_error_fails_the_step_and_its_tool_is_not_run(kind: Any) -> None:
    own = {"mine": lambda spec: always("mine", "retryable", kind("the list is away"))}
    run = react(act("search", q="x"), final(), rules=[{"type": "mine"}], own=own)
    step = run.context.steps[0]
    assert run.visited.startswith("thought validate action observation commit thought")
    assert step.status == "failed"
    assert "the list is away" in step.observation
    assert all(effect.kind == "call_model" for effect in run.effects)


@pytest.mark.parametrize("verdict", [True, False, 0, ["x"]])
def test_a_rule_that_answers_with_something_else_than_words_is_a_fault_of_the_rule(verdict: Any) -> None:
    run = react(
        thought("x"), rules=[{"type": "mine"}], own={"mine": lambda spec: always("mine", "terminal", verdict)}
    )
    assert run.exit.reason == "fatal_error"
    assert "mine" in str(run.exit.error)


def test_a_bare_name_is_the_rule_with_its_default() -> None:
    knobs = {"rules": ["forbid_guessing", {"type": "max_depth", "value": 3}]}
    specs = Options.model_validate(knobs).rule_specs()
    assert [(spec.type, spec.value) for spec in specs] == [("forbid_guessing", None), ("max_depth", 3)]


def test_the_rule_of_the_papers_works_as_printed() -> None:
    text = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()
    module = ModuleType("printed")
    exec(text.split("```python")[1].split("```")[0], module.__dict__)  # the very code that users copy
    declared = yaml.safe_load(text.split("```yaml")[1].split("```")[0])["options"]
    run = react(act("delete_file"), final("ok"), own=module.RULES, **declared)
    rejected = next(record for record in run.records if record.event == "Rejected")
    assert "deleting is not allowed" in rejected.reason
