"""The ReAct machine: scripts that read as its documentation, then what no script shows (spec 1)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from activities.contracts import AskModel, CallTools, ModelReplied, ToolResult, ToolsReturned
from client.sdk.local import Local, ScriptedModel
from ratchet import TransientError
from tests.machines.answers import cut, decided, failed, person, ran, replied
from tests.machines.play import Played, Reaction, play, program_of, rows_of, rows_taken, tool
from workflows.api import AgentSpec
from workflows.kernel.errors import FatalError, RecoverableError, UndeclaredAccess
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import Extensions, Machine
from workflows.kernel.rollback import rolled_back
from workflows.kernel.snapshot import Suspension
from workflows.kernel.transition import advance, start, steer
from workflows.machines.react import (
    MACHINE,
    BadReply,
    Options,
    ReplyFormat,
    Rule,
    RuleSpec,
    Thought,
    react_machine,
)
from workflows.machines.react.rules import build_rules, judge
from workflows.people import People

SEARCH = tool("search")
STEP = "thought validate action observation commit"


def thought(text: str, cost: float = 0) -> ModelReplied:
    """A thought without an action."""
    return act(None, text, cost)


def act(action: str | None, words: str = "I look", cost: float = 0, **given: Any) -> ModelReplied:
    """A thought with an action."""
    return replied(json.dumps({"thought": words, "action": action, "action_input": given}), cost)


def final(answer: str = "42", cost: float = 0) -> ModelReplied:
    """A thought with the final answer."""
    return thought(f"FINAL ANSWER: {answer}", cost)


LOOK, GUESS, BAD = act("search", q="x"), thought("I guess it is 42"), replied("?")


def _always(message: Any, severity: Literal["retryable", "terminal"] = "retryable") -> Any:
    """Maker of a rule that always says the same, or raises it."""

    def check(step: Any, context: Any) -> Any:
        if isinstance(message, Exception):
            raise message
        return message

    return lambda spec: Rule(spec.type, severity, check)


OWN = {
    "raises": _always(KeyError("x")), "fatal": _always(FatalError("x")), "no": _always("no"),
    "away": _always(RecoverableError("x")), "wait": _always(TransientError("x")), "yes": _always(True),
    "end": _always("t", "terminal"),
}  # fmt: skip


def react(*answers: Reaction, machine: Machine = MACHINE, **more: Any) -> Played:
    """A run with one tool, `search`; `more`: a ledger, rules (`own`), what `program_of` takes."""
    ledger, rules = more.pop("ledger", None), more.pop("own", OWN)
    given = {"tools": (SEARCH,), "extensions": Extensions(rules=rules), **more}
    return play(program_of(machine, **given), answers, ledger=ledger)


def begun_with(**fields: Any) -> Machine:
    """The machine, with these fields in its first context."""

    def begin(input: Any, options: Any) -> Any:
        begun: Any = MACHINE.begin(input, options)
        context, opening = begun
        return context.model_copy(update=fields), opening

    return replace(MACHINE, begin=begin)


@dataclass(frozen=True)
class Script:
    """A list of answers is one run."""

    name: str
    answers: tuple[Reaction, ...]
    states: str
    reason: str
    options: Mapping[str, Any] = field(default_factory=dict)
    machine: Machine = MACHINE


def rule(name: str) -> dict[str, Any]:
    """Options with one rule."""
    return {"rules": [name]}


ASKED = " ".join(["thought validate"] * 4) + " human_approval"
FOUR = (GUESS,) * 4
DOWN = failed("transient")
OK, FATAL, TWO = "goal_achieved", "fatal_error", f"{STEP} {STEP} __end__"
SCRIPTS = [
    Script("answers at once", (final(),), f"{STEP} __end__", OK),
    Script("structured finish", (act("finish", answer="42"),), f"{STEP} __end__", OK),
    Script("one tool step, then an answer", (LOOK, ran(), final()), TWO, OK),
    Script("thinks without an action", (thought("hm"), final()), TWO, OK),
    Script("final answer with a failed tool", (act("search", "FINAL ANSWER: 42"), ran("no", "failed")),
           f"{STEP} __end__", OK),
    Script("failed and unknown tools are observed", (LOOK, ran("no", "failed"), act("nosuch"), final()),
           f"{STEP} {STEP} {STEP} __end__", OK),
    Script("a person rejects the call", (LOOK, ran("no", "rejected"), final()), TWO,
           OK),
    # R-000-4: at most three model calls for one thought
    Script("R-000-4 malformed twice", (BAD, BAD, final()), f"{STEP} __end__", OK),
    Script("R-000-4 malformed three times", (BAD, BAD, BAD), "thought __end__", FATAL),
    # rules: retryable ones reject, terminal ones end (spec 1.6)
    Script("rejected once", (GUESS, final()), f"thought validate {STEP} __end__", OK),
    Script("a terminal rule", (act("search", cost=0.51),), "thought validate __end__", "rule_violation"),
    Script("R-000-9 a rule fails", (thought("a"),), "thought validate __end__", FATAL, rule("raises")),
    Script("R-000-9 a rule is fatal", (thought("a"),), "thought validate __end__", FATAL, rule("fatal")),
    Script("a rule answers yes", (thought("a"),), "thought validate __end__", FATAL, rule("yes")),
    Script("a rule cannot be checked", (LOOK, final()), TWO, OK, rule("away")),
    Script("R-000-8 a rule has to wait", (LOOK, final()), TWO, OK, rule("wait")),
    # a person decides about rejected thoughts (R-000-1)
    Script("R-000-1 resumed", (*FOUR, decided("resume"), final()), f"{ASKED} {STEP} __end__", OK),
    Script("R-000-1 answered", (*FOUR, decided("answer", "41"), final()), f"{ASKED} {STEP} __end__",
           OK),
    Script("R-000-1 aborted", (*FOUR, decided("abort")), f"{ASKED} __end__", "aborted"),
    Script("R-000-1 nobody", (*FOUR, decided("unavailable")), f"{ASKED} __end__", "retries_exhausted"),
    Script("nobody could be asked", (*FOUR, failed("fatal")), f"{ASKED} __end__", "retries_exhausted"),
    Script("R-000-1 caught at commit", (thought("a"), decided("abort")), f"{STEP} human_approval __end__",
           "aborted", machine=begun_with(retry_count=4)),
    # failures: recoverable ones are observed, others end the run (spec 1.5)
    Script("R-000-8 the model fails once", (DOWN, final()), TWO, OK),
    Script("the model fails the same way twice in a row", (DOWN, DOWN), f"{STEP} thought __end__", FATAL),
    Script("the model fails twice, not in a row", (DOWN, thought("a"), DOWN, final()),
           f"{STEP} {STEP} {STEP} {STEP} __end__", OK),
    Script("the model fails in two ways", (DOWN, failed("recoverable", type="cut"), final()),
           f"{STEP} {STEP} {STEP} __end__", OK),
    Script("R-000-9 the model fails for good", (failed("fatal"),), "thought __end__", FATAL),
    Script("tools cannot be run once", (LOOK, failed("recoverable"), final()), TWO,
           OK),
    Script("R-000-9 tools fail for good", (LOOK, failed("fatal")), "thought validate action __end__",
           FATAL),
    Script("outcome of a tool is unknown", (LOOK, ran("lost", "unknown_outcome")),
           "thought validate action __end__", FATAL),
    # commit: final answer, max_steps, flag, cost, retries (1.3)
    Script("all steps are taken", (thought("a"),), f"{STEP} __end__", "max_steps", {"max_steps": 1}),
    Script("R-000-3 failed drafts count", (GUESS, GUESS, thought("a")),
           f"thought validate thought validate {STEP} __end__", "max_steps", {"max_steps": 3}),
    Script("flagged", (thought("a"),), f"{STEP} __end__", "flagged", machine=begun_with(terminated=True)),
    Script("R-000-12 replies and tools cost too much", (act("search", cost=0.2), ran(cost=0.85)),
           f"{STEP} __end__", "cost_limit"),
    Script("R-000-11 transitions", (thought("a"), thought("b")), f"{STEP} thought", "max_transitions",
           {"max_transitions": 6}),
]  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script(script: Script) -> None:
    run = react(*script.answers, options=script.options, machine=script.machine)
    assert run.states == f"thought {script.states.partition(' ')[2]}"
    assert (run.exit.reason, run.exit.ok, run.unused) == (script.reason, script.reason == "goal_achieved", 0)
    assert run.exit.answer == ("42" if run.exit.ok else None)
    assert (run.exit.error is None) is run.exit.ok
    assert run.context.terminated, "R-000-2: whoever reads the state sees that it is over"
    assert run.exit.outcome["exit_reason"] == run.exit.reason


def test_every_row_of_the_table_is_taken() -> None:
    runs = [react(*one.answers, options=one.options, machine=one.machine) for one in SCRIPTS]
    assert rows_taken(runs) == rows_of(MACHINE)


# -- thought --------------------------------------------------------------------------------------


def test_model_is_told_its_tools_the_format_and_the_goal() -> None:
    run = react(instructions="Be brief.", goal="count")
    system, goal = run.prompts[0]
    assert system.content.startswith("Be brief.\n\nTools:\n- search: does search")
    assert "FINAL ANSWER" in system.content
    assert goal.content == "count"


def test_R_000_6_model_learns_why_thought_was_rejected() -> None:
    run = react(GUESS, options={"rules": [{"type": "no"}, {"type": "forbid_guessing"}]})
    assert "no: no; forbid_guessing: " in run.newest


def test_log_names_the_rules_that_rejected_a_thought() -> None:
    run = react(GUESS, options={"rules": [{"type": "no"}, {"type": "forbid_guessing"}]})
    assert [one.refused_by for one in run.records if one.refused_by] == [("no", "forbid_guessing")]


def test_long_name_of_a_rule_is_cut_in_the_log() -> None:
    def made(spec: Any) -> Rule:
        return Rule("n" * 10_000, "retryable", lambda step, context: "no")

    run = react(GUESS, options=rule("long"), own={"long": made})
    (name,) = next(one.refused_by for one in run.records if one.refused_by)
    assert name.startswith("n" * 100)
    assert len(name) < 200


def test_rejection_is_repeated_when_the_question_failed() -> None:
    run = react(GUESS, DOWN, final())
    assert "forbid_guessing" in run.newest
    assert sum("forbid_guessing" in m.content for m in run.prompts[-1]) == 1, "a failed question was not said"


def test_malformed_reply_is_named_and_the_format_repeated() -> None:
    run = react(BAD, cut(replied('{"thought": "I beg')))
    assert [("neither" in prompt[-1].content) for prompt in run.prompts] == [False, True, False]
    assert "length limit" in run.newest
    assert "action_input" in run.newest


@pytest.mark.parametrize("words", [
    "FINAL ANSWER: 42", "FINAL ANSWER 42", "so **FINAL ANSWER:** 42",
    "The FINAL ANSWER comes.\nFINAL ANSWER: 42",
])  # fmt: skip
def test_final_answer_may_be_anywhere_in_the_thought(words: str) -> None:
    assert react(thought(words)).exit.answer == "42"


def test_final_answer_is_case_sensitive() -> None:
    assert react(thought("final answer: 1"), thought("Final Answer: 2"), final()).exit.answer == "42"


@pytest.mark.parametrize(("given", "answer"), [
    ({"answer": {"cats": "ä"}}, '{"cats": "ä"}'), ({"answer": 0}, "0"), ({"answer": ""}, ""),
    ({}, "I look"), ({"answer": None}, "I look"),
])  # fmt: skip
def test_answer_of_the_structured_finish(given: dict[str, Any], answer: str) -> None:
    assert react(act("finish", **given)).exit.answer == answer


def test_own_tool_named_finish_is_a_tool() -> None:
    run = react(act("finish", answer="x"), ran("filed"), final(), tools=(tool("finish"),),
                options={"reply_format": "json_schema"})  # fmt: skip
    assert run.context.steps[0].observation == "filed"
    assert 'action "finish"' not in run.prompts[0][0].content
    schema: Any = run.asked[0].response_schema
    assert schema["properties"]["action"]["anyOf"][0]["enum"] == ["finish"]


def test_schema_is_enforced_after_reply_that_could_not_be_read() -> None:
    run = react(replied("17 * 23 = 341."), final())
    assert [asked.response_schema is not None for asked in run.asked] == [False, True]
    assert run.exit.answer == "42"


def xml(text: str) -> Thought | BadReply:
    """A parser of one's own."""
    errors: dict[str, Any] = {"!f": FatalError, "!r": RecoverableError, "!t": TransientError, "!k": KeyError}
    if text[:2] in errors:
        raise errors[text[:2]](text)
    return Thought(text[3:-4]) if text.startswith("<t>") else BadReply("there is no <t>")


XML = react_machine("react_xml", ReplyFormat(read=xml, words="Answer as <t>your thought</t>."))


def test_R_000_7_reply_parser_is_a_port() -> None:
    run = react(replied("nothing"), replied("<t>FINAL ANSWER: 42</t>"), machine=XML)
    assert run.exit.answer == "42"
    assert "there is no <t>.\nAnswer as <t>" in run.newest
    with pytest.raises(ValueError, match="reply_format"):
        react(machine=XML, options={"reply_format": "json_schema"})


@pytest.mark.parametrize(("reply", "states"), [
    ("!f", "thought __end__"), ("!k", "thought __end__"), ("!r", f"{STEP} thought"),
    ("!t", f"{STEP} thought"),
])  # fmt: skip
def test_R_000_9_errors_of_parser_go_through_wrapper(reply: str, states: str) -> None:
    run = react(replied(f"{reply} away", cost=0.1), machine=XML)
    assert run.states == states
    assert run.context.metadata["total_cost"] == 0.1
    assert "away" in str(run.exit.error if run.step.exit else run.context.steps[-1].observation)


# -- the cache (R-000-5), rollback (R-000-14) and the ledger --------------------------------------


def on(step: Suspension, *answers: Any) -> tuple[Suspension, list[Any]]:
    """The step after these answers, and its new records."""
    records: list[Any] = []
    for number, answer in enumerate(answers):
        effect = step.effect
        step = advance(step, answer(effect) if callable(answer) else answer, now=3000.0 + number)
        records += step.records
    return step, records


def gone_back(run: Played, to_step: int) -> Suspension:
    """The run at the beginning of an earlier step."""
    return rolled_back(run.step, run.records, to_step, now=2000.0, by="ann")


THREE = (LOOK, ran(), BAD, act("search", "more", cost=0.1, q="y"), ran(), final())


def test_R_000_5_prompt_answered_before_is_a_hit() -> None:
    """Also where a reminder of the format was needed the first time. The first thought is thought again."""
    step, _ = on(gone_back(react(*THREE), 1), LOOK, ran())
    assert isinstance(step.effect, CallTools), "the second thought came from the cache"
    assert step.effect.calls[0].arguments == {"q": "y"}
    assert [m.content for m in step.snapshot.conversation if "cannot be read" in m.content] == []
    step, _ = on(step, ran())
    assert isinstance(step.effect, AskModel), "its prompt was another one: it had the reminder in it"


def test_R_000_5_hit_costs_nothing_and_takes_same_way() -> None:
    again, _ = on(gone_back(react(LOOK, ran(), thought("a", cost=0.1), final(cost=0.1)), 1), LOOK, ran())
    assert again.exit is not None
    assert (again.exit.answer, again.ledger.used("cost_usd"), again.ledger.used("model_calls")) == (
        "42",
        0.2,
        4,
    )


def test_R_000_5_cache_never_answers_person_who_spoke() -> None:
    step, _ = on(gone_back(react(LOOK, ran(), thought("a"), final()), 1), LOOK)
    step, _ = on(steer(step, person("look again"), now=2500.0, by="ann"), ran())
    assert isinstance(step.effect, AskModel)
    assert step.effect.say[0].content == "look again"


def test_R_000_5_only_well_formed_replies_are_kept() -> None:
    run = react(BAD, thought("a"), GUESS, BAD, BAD, BAD)
    assert [reply.text for reply in run.context.cache] == [thought("a").text, GUESS.text]


def test_R_000_14_rollback_writes_two_keys_and_reopens_run() -> None:
    step = gone_back(react(LOOK, ran(), thought("a"), final()), 2)
    context: Any = step.snapshot.context
    assert (context.metadata["rolled_back_from"], context.metadata["rolled_back_to"]) == (3, 0)
    assert (context.terminated, context.metadata["exit_reason"], len(context.steps)) == (False, None, 1)


def test_rollback_gives_no_money_back() -> None:
    run = react(LOOK, ran(cost=0.6), thought("a"), options={"rules": []})
    step, _ = on(gone_back(run, 1), act("search", "again"), ran(cost=0.6))
    assert step.exit is not None
    assert (step.exit.reason, step.exit.outcome["total_cost"]) == ("cost_limit", 1.2)
    run = react(LOOK, ran(cost=0.6))
    step, _ = on(gone_back(run, 1), thought("a"))
    assert step.exit is not None
    assert step.exit.reason == "rule_violation", "rules see it, too"


# -- validate and rules ---------------------------------------------------------------------------


def test_R_000_1_failures_across_steps_add_up_showing_reason() -> None:
    run = react(GUESS, thought("a"), GUESS, thought("b"), GUESS, thought("c"), GUESS)
    assert run.states.endswith("thought validate human_approval")
    assert "4 thoughts were rejected: forbid_guessing" in run.effects[-1].text


def test_R_000_1_limit_may_be_reached_but_not_passed() -> None:
    options = {"max_retries_before_human": 1}
    assert react(GUESS, options=options).states == "thought validate thought"
    assert react(GUESS, GUESS, options=options).states.endswith("human_approval")


def test_R_000_1_resume_clears_count_and_keeps_reason() -> None:
    run = react(*FOUR, decided("resume", "look at the log"), GUESS)
    assert run.context.retry_count == 1
    assert "look at the log" in [m.content for m in run.prompts[-2]]
    assert "forbid_guessing" in run.prompts[-2][-1].content


def test_last_reason_of_a_retry_is_in_the_result() -> None:
    run = react(GUESS, thought("a"), options={"max_steps": 2})
    assert run.context.metadata["retry_reason"] is None, "a thought has passed"
    assert "forbid_guessing" in str(run.exit.outcome["retry_reason"])
    nobody = react(*FOUR, decided("unavailable"))
    assert "forbid_guessing" in str(nobody.exit.error)


def test_rules_run_in_order_up_to_the_first_terminal_one() -> None:
    specs = [RuleSpec(type=name) for name in ("no", "end", "raises")]
    verdict = judge(build_rules(specs, OWN), None, None)
    assert (verdict.text, verdict.terminal) == ("end: t", True)
    gathered = judge(build_rules([specs[0], specs[0]], OWN), None, None)
    assert (gathered.text, gathered.terminal) == ("no: no; no: no", False)
    assert judge((), None, None).text == ""


@pytest.mark.parametrize(("words", "passes"), [
    ("i GUESS so", False), ("PROBABLY", False), ("I\N{RIGHT SINGLE QUOTATION MARK}m not sure", False),
    ("it Might\nbe so", False), ("it could be", False), ("I know", True), ("we guess", True),
])  # fmt: skip
def test_R_000_10_forbid_guessing_compares_without_case(words: str, passes: bool) -> None:
    assert ("forbid_guessing" not in react(thought(f"Well, {words}, or so")).newest) is passes


def test_forbid_guessing_can_be_extended() -> None:
    rules = [
        {"type": "forbid_guessing", "config": {"phrases": ["I don\N{RIGHT SINGLE QUOTATION MARK}t know"]}}
    ]
    assert "forbid_guessing" in react(thought("I don't  know"), options={"rules": rules}).newest


def test_max_depth_ends_a_run_of_rejected_drafts() -> None:
    rules = [{"type": "max_depth", "value": 2}, "forbid_guessing"]
    run = react(*[GUESS] * 3, options={"rules": rules})
    assert (run.exit.reason, len(run.context.steps)) == ("rule_violation", 3)


def test_require_tool_use_rejects_only_a_blank_name() -> None:
    (found,) = build_rules([RuleSpec(type="require_tool_use")], {})
    steps = react(thought("a"), LOOK, ran(), thought("b")).context.steps
    assert [bool(found.check(step, None)) for step in steps] == [False, False, False]
    assert found.check(steps[1].model_copy(update={"action": " "}), None)


@pytest.mark.parametrize(("options", "depth", "cost"), [
    ({}, 20, 0.50), ({"max_steps": 5}, 20, 0.50), ({"max_steps": 50}, 50, 0.50),
    ({"cost_limit": 3.0}, 20, 3.0), ({"cost_limit": 1.0}, 20, 1.0),
])  # fmt: skip
def test_default_rules_follow_options_that_were_set(options: Any, depth: float, cost: float) -> None:
    specs = {spec.type: spec for spec in Options.model_validate(options).rule_specs()}
    assert (specs["max_depth"].value, specs["cost_limit"].value) == (depth, cost)
    assert not specs["require_tool_use"].enabled


@pytest.mark.parametrize("rules", [[], [{"type": "forbid_guessing", "enabled": False}]])
def test_no_rules_and_disabled_ones_let_all_pass(rules: Any) -> None:
    assert (
        react(thought("I guess", cost=0.9), options={"rules": rules}).context.steps[0].status == "committed"
    )


@pytest.mark.parametrize(("spec", "words"), [
    ("max_dept", "'max_dept'; did you mean max_depth"),
    ({"type": "nosuch", "enabled": False}, "nosuch"),
    ({"type": "max_depth", "value": 0}, "max_depth.*greater than 0"),
    ({"type": "max_depth", "value": 2.5}, "max_depth.*whole number"),
    ({"type": "cost_limit", "value": float("nan")}, "finite"),
    ({"type": "forbid_guessing", "config": {"phrases": "maybe"}}, "list of texts"),
    ({"type": "forbid_guessing", "config": {"phrases": [" "]}}, "list of texts"),
    ({"type": "forbid_guessing", "config": {"phrase": ["x"]}}, "phrase.*phrases"),
    ({"type": "forbid_guessing", "value": 3}, "forbid_guessing.*value"),
    ({"type": "max_depth", "config": {"max": 3}}, "max_depth.*max"),
    ("broken", "broken cannot be made: KeyError"),
    ("wrong", "wrong.*expected a Rule"),
])  # fmt: skip
def test_bad_rule_is_refused_by_name(spec: Any, words: str) -> None:
    own = {"broken": lambda spec: spec.config["x"], "wrong": lambda spec: lambda step, context: None}
    with pytest.raises(ValueError, match=words):
        react(options={"rules": [spec]}, own=own)


def watching(seen: list[Any], read: Any) -> dict[str, Any]:
    """A rule that notes what it reads of the context."""

    def check(step: Any, context: Any) -> str | None:
        seen.append(read(context))
        return None

    return {"mine": lambda spec: Rule("mine", "terminal", check)}


def test_rule_sees_the_state_of_the_spec_read_only() -> None:
    seen: list[Any] = []

    def state(c: Any) -> Any:
        return (c.trace_id, len(c.steps), c.metadata["goal"], c.metadata["mine"], c.terminated)

    react(thought("x"), own=watching(seen, state), options=rule("mine"), values={"mine": 1, "goal": "other"})
    assert set(seen) == {("trace-1", 1, "find out", 1, False)}
    for change in (lambda c: c.metadata.update(goal="x"), lambda c: setattr(c, "terminated", True)):
        run = react(thought("x"), own=watching([], change), options=rule("mine"))
        assert run.exit.reason == "fatal_error"


def test_rule_that_changes_step_in_place_is_named_with_line() -> None:
    """Else the tool would get other arguments than the log says."""

    def check(step: Any, context: Any) -> str | None:
        step.action_input["q"] = "x"
        return None

    run = react(
        act("search", q="a"), own={"mine": lambda spec: Rule("mine", "terminal", check)}, options=rule("mine")
    )
    assert run.exit.reason == "fatal_error"
    for part in ("the rule mine failed", "`newest` of the context is read-only"):
        assert part in (run.exit.error or "")
    assert run.step.author_line == f"{__file__}, line {check.__code__.co_firstlineno + 1}, in check"
    assert __file__ not in str(run.records), "the log has the same hashes wherever the file lies"


def test_rule_that_reads_another_field_breaks_rule_of_machine() -> None:
    with pytest.raises(UndeclaredAccess, match="cache"):
        react(thought("x"), own=watching([], lambda c: c.cache), options=rule("mine"))


# -- action, observation, the result --------------------------------------------------------------


@pytest.mark.parametrize(
    "error", ["bad_arguments", "failed", "transient", "timeout", "unknown_tool", "expired"]
)
def test_tool_error_is_an_observation_and_a_failed_step(error: Any) -> None:
    run = react(LOOK, ran("what went wrong", error))
    step = run.context.steps[0]
    assert (step.observation, step.status, run.context.tool_history) == ("what went wrong", "failed", ())
    assert run.newest == "Observation: what went wrong"


def test_unknown_tool_is_an_observation() -> None:
    run = react(act("serch", q="x"))
    assert (run.context.steps[-1].status, run.newest) == ("failed", "Observation: Unknown tool: serch")


def test_no_action_and_empty_output_are_told_apart() -> None:
    assert "No action was taken" in react(thought("hm")).newest
    assert react(LOOK, ran("")).newest == "Observation: "


def test_step_goes_through_its_statuses() -> None:
    run = react(LOOK, ran("one"), act("search", q="y"), ran("two"))
    assert [step.observation for step in run.context.steps] == ["one", "two"]
    assert run.context.metadata["tool_history"] == ["search", "search"]
    patches: list[Any] = [r.patch for r in run.records[2:6]]
    changes = [patch["newest"]["change"] for patch in patches if "change" in patch.get("newest", ())]
    statuses = [change["status"]["set"] for change in changes]
    assert statuses == ["validated", "executed"]
    assert patches[-1]["past"]["append"][0]["status"] == "committed"


def test_options_reach_the_effects() -> None:
    run = react(LOOK, options={"max_model_attempts": 4, "max_tool_attempts": 1})
    assert [effect.attempts for effect in run.effects] == [4, 1]
    assert [effect.attempts for effect in react(LOOK).effects] == [6, 3]


def test_cut_observation_says_where_the_whole_is() -> None:
    whole = ToolsReturned(results=(ToolResult(id="0", tool="search", output="a lot", whole="f" * 64),))
    run = react(LOOK, whole, final())
    assert run.context.steps[0].whole == "f" * 64
    assert any("f" * 64 in str(record.patch) for record in run.records)


@pytest.mark.parametrize(("reply", "max_steps", "flag", "cost", "retries", "end"), [
    pytest.param(final(), 1, True, 9.0, 9, "goal_achieved", id="final answer first"),
    pytest.param(thought("x"), 1, True, 9.0, 9, "max_steps", id="then max_steps"),
    pytest.param(thought("x"), 2, True, 9.0, 9, "flagged", id="then the flag"),
    pytest.param(thought("x"), 2, False, 9.0, 9, "cost_limit", id="then cost"),
    pytest.param(thought("x"), 2, False, 1.0, 9, "human_approval", id="then retries; cost at its limit"),
    pytest.param(thought("x"), 2, False, 1.0, 3, "thought", id="else on; retries at their limit"),
])  # fmt: skip
def test_commit_decides_in_the_order_of_the_spec(
    reply: Any, max_steps: int, flag: bool, cost: float, retries: int, end: str
) -> None:
    machine = begun_with(retry_count=retries, terminated=flag)
    run = react(reply, machine=machine, options={"max_steps": max_steps, "rules": []},
                ledger=Ledger(spent={"cost_usd": cost}))  # fmt: skip
    assert run.states == f"{STEP} {'__end__' if run.step.exit else end}"
    if run.step.exit:
        assert run.exit.reason == end


def test_end_without_steps_left_names_the_last_failure() -> None:
    run = react(thought("a"), DOWN, options={"max_steps": 2})
    assert run.exit.reason == "max_steps"
    assert "server is down" in str(run.exit.error)
    assert "max_steps_reached" in run.records[-1].reason


def test_limit_on_money_ends_the_run_where_it_is() -> None:
    """The agent's limit is not the machine's option: `cost_limit` ends at commit, when it was exceeded; a
    limit of any agent ends as `limit`, before the call that would pass it (spec 1.7, 7.4)."""
    run = react(thought("a", cost=0.3), final(), ledger=Ledger(caps={"cost_usd": 0.2}))
    assert (run.exit.reason, run.context.exit_reason, run.exit.outcome["total_cost"]) == (
        "limit",
        "limit",
        0.3,
    )


def test_R_000_13_interrupt_every_n_steps_counts_failed_drafts() -> None:
    asked: list[int] = []

    def decide(request: Any) -> Literal["resume"]:
        asked.append(len(model.asked))
        return "resume"

    replies = [GUESS, thought("a"), thought("b"), thought("c"), final()]
    model = ScriptedModel([reply.text for reply in replies])
    agent = AgentSpec(machine="react", people=People(interrupt_every=2))
    outcome = Local(agent, model=model, decide=decide).run_sync("find out")
    assert (outcome.answer, asked) == ("42", [2, 4])
    assert [one.kind for one in outcome.result.decisions] == ["interrupt"] * 2


def test_R_000_11_ten_visits_for_each_step() -> None:
    limit: Any = MACHINE.max_transitions
    assert [limit(Options(max_steps=n)) for n in (1, 7)] == [9, 69]


def test_context_is_frozen() -> None:
    context = react(LOOK).context
    for model, name in ((context, "terminated"), (context.newest, "thought")):
        with pytest.raises(ValidationError):
            setattr(model, name, "other")


def test_person_is_heard_by_the_next_question() -> None:
    run = react(LOOK, person("hurry"), ran("found"), final())
    assert [m.content for m in run.prompts[-1][-2:]] == ["Observation: found", "hurry"]


# -- random runs ----------------------------------------------------------------------------------

MODEL = [
    thought("a"), thought("probably so"), LOOK, act("nosuch"), act("finish", answer="1"), final(), BAD,
    replied("Thought: b\nAction: search\nAction Input: {}"), thought("c", cost=0.2), DOWN,
    failed("recoverable", type="other"), failed("fatal"),
]  # fmt: skip
TOOLS = [ran(), ran("", cost=0.1), ran("no", "failed"), ran("lost", "unknown_outcome"), failed("recoverable")]
PEOPLE = [
    decided("resume"),
    decided("resume", "look"),
    decided("abort"),
    decided("unavailable"),
    failed("fatal"),
]


def reaction(dice: int) -> Any:
    """A random answer to whatever is asked."""

    def answer(effect: Any) -> Any:
        by_kind: dict[str, list[Any]] = {"ask_model": MODEL, "call_tools": TOOLS, "ask_person": PEOPLE}
        choices = by_kind[effect.kind]
        chosen = choices[dice % len(choices)]
        return chosen(effect) if callable(chosen) else chosen

    return answer


@settings(deadline=None)
@given(st.lists(st.integers(0, 419), min_size=120, max_size=120), st.integers(1, 8))
def test_any_run_ends_by_the_rules(dice: list[int], most: int) -> None:
    options = {"max_steps": most, "max_transitions": 60, "max_retries_before_human": 1}
    run = react(*[reaction(n) for n in dice], options=options)
    assert run.exit.reason in {*MACHINE.exits, "aborted", "max_transitions"}
    assert run.exit.ok is (run.exit.answer is not None)
    steps = run.context.steps
    assert [step.id for step in steps] == list(range(len(steps)))
    assert all(step.closed for step in steps[:-1]), "R-000-3"
    assert run.context.tool_history == tuple(
        s.action for s in steps if s.action == "search" and s.status in {"executed", "committed"}
    )
    for earlier, later in pairwise(run.prompts):
        assert later[: len(earlier) - 1] == earlier[:-1] or later[: len(earlier)] == earlier


def test_log_grows_linearly() -> None:
    turns = [pair for n in range(40) for pair in (act("search", q=str(n)), ran(str(n)))]
    program = program_of(MACHINE, {"max_steps": 60, "rules": []}, tools=(SEARCH,))
    run = play(program, turns, both_ways=False)
    sizes: dict[str, list[int]] = {}
    for record in run.records:
        sizes.setdefault(record.event, []).append(len(record.model_dump_json()))
    assert all(
        max(sizes[event][1:]) < 1.5 * min(sizes[event][1:]) for event in ("Drafted", "Acted", "StepTaken")
    )


def test_run_starts_with_the_well_known_metadata() -> None:
    step = start(program_of(MACHINE, values={"mine": 1}), now=1.0)
    context: Any = step.snapshot.context
    assert dict(context.metadata) == {
        "mine": 1, "goal": "find out", "retry_count": 0, "retry_reason": None, "total_cost": 0,
        "tool_history": [], "exit_reason": None,
    }  # fmt: skip
