"""An agent that says what its answer must be: asked for, checked, asked for again, and given as data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator
from rich.console import Console

from activities.tools import Tool
from client.cli.render import result_text
from client.sdk.local import Local, ScriptedModel, tool_call
from tests.people import any_effect
from workflows import registry
from workflows.api import AgentSpec, AgentTask, Limits
from workflows.hosts.memory import LocalOutcome
from workflows.kernel.machine import Exit, Machine
from workflows.kernel.snapshot import Program, dump
from workflows.kernel.transition import advance, load, start
from workflows.queries import inline_result
from workflows.task import program_for
from workflows.verify.policy.bounds import calls_bound


class Refund(BaseModel):
    """A refund that is to be paid."""

    order: str
    cents: int = Field(ge=0)


class Query(BaseModel):
    """Look something up."""

    q: str = ""


class Numbered(BaseModel):
    """Look the next one up."""

    x: str


GOOD = '{"order": "a1", "cents": 500}'
DATA = {"order": "a1", "cents": 500}
BAD = "a1 gets 5 EUR"
LOOK = Tool(name="look", params=Query, run=lambda params: params.q, effect="read")
AGAIN = "That answer cannot be used: "


def react(answer: str) -> list[Any]:
    return [json.dumps({"thought": f"FINAL ANSWER: {answer}", "action": None, "action_input": {}})]


def staged(answer: str) -> list[Any]:
    thought = {"intent": "general_inquiry", "suggested_tools": [], "reasoning": "r"}
    seen = {"summary": "s", "final_answer": answer, "need_loop": False}
    return [json.dumps(thought), json.dumps(seen)]


def simple(answer: str) -> list[Any]:
    return [json.dumps({"action": "finish", "params": {"answer": answer}})]


def contract(answer: str) -> list[Any]:
    """Two rounds: a tool makes the text, and it is mapped."""
    made = [{"name": f"text {len(answer)}", "type": "text", "kind": "data"}]
    call = {"tool_id": "look", "params": {"q": answer}, "out_artifacts_spec": made}
    mapped = [{"slot_name": "refund", "source_path": f"text {len(answer)}"}]
    return [
        json.dumps({"action": "call_tool", "strategy": "exploit", "tool_call": call}),
        json.dumps({"action": "complete", "strategy": "exploit", "map_slots": mapped}),
    ]


@dataclass(frozen=True)
class Case:
    """How a model answers in one machine."""

    machine: str
    answers: Any
    """Answer -> the replies that give it, the first time and later ones."""
    first: Sequence[Any] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, *answers: str, **more: Any) -> tuple[LocalOutcome, ScriptedModel]:
        model = ScriptedModel([*self.first, *(reply for answer in answers for reply in self.answers(answer))])
        agent = AgentSpec(machine=self.machine, options={**self.options, **more})
        outcome = Local(agent, model=model, tools=[LOOK]).run_sync("refund?", output=Refund)
        assert model.unused == 0
        return outcome, model


CASES = {
    "react": Case("react", react, (), {}),
    "tools": Case("tools", lambda answer: [answer], [tool_call("look", q="x")], {}),
    "planner": Case("planner", lambda answer: [answer], ['{"goal": "refund"}'], {}),
    "planner_simple": Case("planner", simple, (), {"mode": "simple"}),
    "staged": Case("staged", staged, (), {"max_iterations": 3}),
    "contract": Case("contract", contract, (), {"slots": [{"name": "refund"}]}),
    "code": Case("code", lambda answer: [f"FINAL({answer})"], (), {}),
}
each = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def test_every_machine_is_among_the_cases() -> None:
    assert {case.machine for case in CASES.values()} == {machine.name for machine in registry.shipped()}


@each
def test_answer_that_fits_is_data(case: Case) -> None:
    outcome, model = case.run(GOOD)
    assert (outcome.ok, outcome.output) == (True, DATA)
    assert outcome.output_as(Refund) == Refund(order="a1", cents=500)
    asked = model.asked[0].messages
    assert any("The final answer must be one JSON object" in one.content for one in asked)
    assert not any(record.event == "AnswerRefused" for record in outcome.records)


@each
def test_answer_that_does_not_fit_is_asked_for_again(case: Case) -> None:
    outcome, model = case.run(BAD, GOOD)
    assert (outcome.ok, outcome.output) == (True, DATA)
    (refused,) = [record for record in outcome.records if record.event == "AnswerRefused"]
    assert refused.by == "kernel"
    assert refused.reason == "it is not JSON: Expecting value: line 1 column 1 (char 0)"
    told = [asked for asked in model.asked if any(AGAIN in one.content for one in asked.messages)]
    assert f"{AGAIN}{refused.reason}" in "".join(one.content for one in told[0].messages)


@each
def test_run_whose_answer_never_fits_ends_and_says_so(case: Case) -> None:
    outcome, _ = case.run(BAD, '{"order": "a1"}', '{"order": "a1", "cents": -5}')
    result = outcome.result
    assert (result.ok, result.exit_reason, result.output) == (False, "invalid_answer", None)
    assert result.error == (
        "the answer does not fit `output`: cents: -5 is less than the minimum of 0 (3 answers were given)"
    )
    with pytest.raises(ValueError, match="ended as `invalid_answer` without an output: the answer does not"):
        result.output_as(Refund)


def test_react_gives_as_many_answers_as_it_has_format_attempts() -> None:
    outcome, _ = CASES["react"].run(BAD, max_format_attempts=1)
    assert outcome.result.exit_reason == "invalid_answer"
    assert outcome.result.error == (
        "the answer does not fit `output`: it is not JSON: Expecting value: line 1 column 1 (char 0)"
    )


def test_limit_of_the_machine_ends_what_is_asked_again() -> None:
    outcome, _ = CASES["staged"].run(BAD, max_iterations=1)
    assert outcome.result.exit_reason == "invalid_answer"
    code, _ = CASES["code"].run(BAD, max_iterations=1)
    assert code.result.exit_reason == "invalid_answer"


@pytest.mark.parametrize(
    ("answer", "given"),
    [
        pytest.param('{"order": "a1", "cents": "500"}', DATA, id="a number as text"),
        pytest.param(f"```json\n{GOOD}\n```", DATA, id="in a fence"),
        pytest.param(f"Here it is: {GOOD} - done", DATA, id="among words"),
        pytest.param('{"order": "a1", "cents": 500, "why": "late"}', None, id="a name too many"),
        pytest.param('["a1", 500]', None, id="a list"),
        pytest.param("", None, id="nothing"),
        pytest.param(f"[{GOOD}]", None, id="in a list"),
        pytest.param(f"The refunds: [1, {GOOD}]", None, id="in a list among words"),
        pytest.param(f"{GOOD} I left out {{a2}}", None, id="braces behind it"),
        pytest.param('{"order": "a1", "cents": 1, "cents": 500}', None, id="a key twice"),
    ],
)
def test_answer_is_read_as_arguments_of_tools_are(answer: str, given: Any) -> None:
    model = ScriptedModel(react(answer))
    agent = AgentSpec(options={"max_format_attempts": 1})
    outcome = Local(agent, model=model).run_sync("refund?", output=Refund)
    assert (outcome.output, outcome.ok) == (given, given is not None)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        pytest.param(f"[{GOOD}, {GOOD}]", "a JSON object is expected, a list came", id="list"),
        pytest.param(f"See: [{GOOD}]", "a JSON object is expected, it came in a list", id="in a list"),
        pytest.param(json.dumps(GOOD), "a JSON object is expected, a text came", id="text"),
        pytest.param(f"{GOOD} or {{}}", "one JSON object is expected, more braces came behind it", id="two"),
        pytest.param(
            'It is {"a": 1, "a": 2}.', "it is not JSON: the key a comes more than once", id="a key twice"
        ),
        pytest.param(
            'It is\n{"a": }', "it is not JSON: Expecting value: line 2 column 7 (char 12)", id="no value"
        ),
        pytest.param(f"It is {'[' * 60}{'{'}{'}'}", "it came in a list", id="open list"),
        pytest.param('It is {"a": ' + "[" * 60 + "]" * 60 + "}", "nested more than 50 deep", id="deep"),
    ],
)
def test_what_is_wrong_with_an_answer_fits_it(answer: str, problem: str) -> None:
    agent = AgentSpec(options={"max_format_attempts": 1})
    outcome = Local(agent, model=ScriptedModel(react(answer))).run_sync("refund?", output=Refund)
    assert problem in (outcome.result.error or "")


def test_output_cut_out_of_result_is_said_to_be_cut() -> None:
    schema = {"properties": {"text": {"type": "string"}}}
    answer = json.dumps({"text": "x" * 100_000})
    whole = Local(model=ScriptedModel(react(answer))).run_sync("all?", output=schema).result
    kept = inline_result(whole)
    assert kept.ok
    with pytest.raises(ValueError, match=r"without an output; .*output: cut here; the whole result has"):
        kept.output_as(Refund)


def test_defaults_of_the_model_are_filled_in() -> None:
    class Small(BaseModel):
        """A refund."""

        cents: int
        currency: str = "EUR"

    outcome = Local(model=ScriptedModel(react('{"cents": 5}'))).run_sync("refund?", output=Small)
    assert outcome.output == {"cents": 5, "currency": "EUR"}


def test_long_and_deep_answer_by_finish_is_whole() -> None:
    deep = {"order": "x" * 9_000, "parts": {"a": {"b": {"c": {"d": [1]}}}}}
    schema = {"type": "object", "properties": {"order": {"type": "string"}, "parts": {"type": "object"}}}
    reply = {"thought": "done", "action": "finish", "action_input": {"answer": deep}}
    outcome = Local(model=ScriptedModel([json.dumps(reply)])).run_sync("refund?", output=schema)
    assert outcome.output == deep


def test_slots_of_a_contract_are_fields() -> None:
    made = [{"name": name, "type": "text", "kind": "data"} for name in ("number", "sum")]
    call = {"tool_id": "look", "params": {"q": '{"number": "a1", "sum": 500}'}, "out_artifacts_spec": made}
    mapped = [
        {"slot_name": "order", "source_path": "number"},
        {"slot_name": "cents", "source_path": "sum"},
    ]
    script = [
        json.dumps({"action": "call_tool", "strategy": "exploit", "tool_call": call}),
        json.dumps({"action": "complete", "strategy": "exploit", "map_slots": mapped}),
    ]
    agent = AgentSpec(machine="contract", options={"slots": [{"name": "order"}, {"name": "cents"}]})
    model = ScriptedModel(script)
    outcome = Local(agent, model=model, tools=[LOOK]).run_sync("refund?", output=Refund)
    assert outcome.output == DATA
    assert "an object with the text of each" in model.asked[0].messages[0].content


# -- what a provider is held to, and ends without an answer --------------------


def test_provider_is_held_to_form_where_reply_is_answer() -> None:
    _, model = CASES["tools"].run(BAD, GOOD)
    schemas = [asked.effect.response_schema for asked in model.asked]
    assert [schema is not None for schema in schemas] == [False, False, True]
    assert model.asked[-1].tools == ("look",)  # it may still look up what the answer lacks
    _, forced = CASES["tools"].run(GOOD, max_iterations=1)
    assert forced.asked[-1].effect.response_schema is not None


def test_answer_after_last_turn_is_data_though_run_failed() -> None:
    outcome, _ = CASES["tools"].run(GOOD, max_iterations=1)
    assert (outcome.ok, outcome.result.exit_reason, outcome.output) == (False, "max_iterations", DATA)


def test_summary_of_a_planner_is_the_answer() -> None:
    script = ['{"goal": "refund"}', "a1, I think", GOOD]
    agent = AgentSpec(machine="planner", options={"finalize_summary": True})
    model = ScriptedModel(script)
    outcome = Local(agent, model=model).run_sync("refund?", output=Refund)
    assert (outcome.output, model.asked[-1].text) == (DATA, "Give the final answer now. Call no tool.")


def test_end_that_gives_no_answer_keeps_its_reason() -> None:
    script = ['{"goal": "refund"}', '{"continue": false, "reason": "not allowed"}']
    agent = AgentSpec(machine="planner", options={"decide": "model"})
    outcome = Local(agent, model=ScriptedModel(script)).run_sync("refund?", output=Refund)
    assert (outcome.ok, outcome.result.exit_reason, outcome.output) == (False, "stopped", None)
    assert "EXECUTE" not in outcome.states
    asks = json.dumps({"action": "clarify", "strategy": "explore", "clarification_questions": ["Which?"]})
    contract = Local(AgentSpec(machine="contract"), model=ScriptedModel([asks]))
    asked = contract.run_sync("refund?", output=Refund)
    assert (asked.ok, asked.result.exit_reason, asked.answer) == (False, "clarify", "Which?")


# -- machines of one's own --------------------


def outcome_of(*answers: str, machine: Machine = any_effect.MACHINE) -> LocalOutcome:
    script = [f"answer {answer}" for answer in answers]
    return Local(machine, model=ScriptedModel(script), tools=[LOOK]).run_sync("refund?", output=Refund)


def test_own_machine_that_can_go_on_is_asked_again() -> None:
    outcome = outcome_of(
        BAD, GOOD, machine=replace(any_effect.MACHINE, on_reopen=lambda c: (any_effect.S.THINK, {}))
    )
    assert (outcome.ok, outcome.output) == (True, DATA)


def test_own_machine_that_cannot_go_on_ends() -> None:
    result = outcome_of(BAD).result
    assert (result.ok, result.exit_reason) == (False, "invalid_answer")
    assert "again: the machine any_effect has neither `on_refused` nor `on_reopen`" in (result.error or "")


def reopening(**more: Any) -> Machine:
    """`any_effect`, which goes on thinking after an answer; `more` are fields of that state and of it."""
    of_state = {name: more.pop(name) for name in ("entry", "holds") if name in more}
    states = [
        replace(one, **of_state) if one.name == any_effect.S.THINK else one
        for one in any_effect.MACHINE.states
    ]
    return replace(
        any_effect.MACHINE, **{"states": states, "on_reopen": lambda c: (any_effect.S.THINK, {}), **more}
    )


def test_reentered_state_does_and_checks_what_it_always_does() -> None:
    machine = reopening(entry=lambda c, left: {"seen": (*c.seen, f"after {left}")})
    outcome = outcome_of(BAD, GOOD, machine=machine)
    (refused,) = [record for record in outcome.records if record.event == "AnswerRefused"]
    assert refused.patch["seen"] == {"append": ["after think"]}
    strict = outcome_of(BAD, GOOD, machine=reopening(holds=lambda c, left: "answered" if c.answer else ""))
    assert strict.result.exit_reason == "broken_rule"
    assert "the invariant of think does not hold: answered" in (strict.result.error or "")


def test_counter_that_is_used_up_forbids_only_what_needs_it() -> None:
    """No state counts `repairs`; `steps` counts each thought."""
    free = outcome_of(BAD, GOOD, machine=reopening(caps=lambda options: {"repairs": 0}))
    assert (free.ok, free.output) == (True, DATA)
    once = outcome_of(BAD, machine=reopening(caps=lambda options: {"steps": 1}))
    assert once.result.exit_reason == "invalid_answer"
    assert "it is not asked for again: `steps` is used up (1)" in (once.result.error or "")


def test_function_that_leads_nowhere_is_named() -> None:
    for name in ("on_refused", "on_reopen"):
        outcome = outcome_of(BAD, machine=reopening(**{name: lambda c: (any_effect.S.DONE, {})}))
        assert f"`{name}` leads to done" in (outcome.result.error or "")


def test_result_of_a_run_without_output_is_as_ever() -> None:
    outcome = Local(model=ScriptedModel(react("42"))).run_sync("what?")
    assert (outcome.ok, outcome.output) == (True, None)
    assert "output" not in outcome.result.model_dump()
    with pytest.raises(ValueError, match="without an output; its agent names none"):
        outcome.output_as(Refund)


# -- what a run remembers --------------------


def test_what_was_refused_outlives_the_process() -> None:
    """As a continued run: each step is dumped and loaded."""
    task = AgentTask(machine="tools", goal="refund?", output=Refund, tools=("look",))
    program = program_for(task, {"look": LOOK.spec()}, "w")
    step = start(program, now=0)
    for number in range(3):
        step = load(program, json.loads(json.dumps(dump(step))))
        assert step.snapshot.refused == number
        step = advance(step, replied(BAD), now=number + 1)
    assert step.exit is not None
    assert step.exit.reason == "invalid_answer"


def replied(text: str) -> Any:
    from activities.contracts import ModelReplied

    return ModelReplied(text=text)


def test_rollback_behind_a_refused_answer_asks_again() -> None:
    store: dict[str, list[str]] = {}
    agent = AgentSpec(machine="react")
    script = ScriptedModel([*react(BAD), *react(BAD), *react(BAD), *react(GOOD)])
    local = Local(agent, model=script, store=store)
    first = local.run_sync("refund?", trace_id="r", output=Refund)
    assert first.result.exit_reason == "invalid_answer"

    async def again() -> LocalOutcome:
        return await local.replay("r", 3, "refund?", output=Refund)

    import asyncio

    second = asyncio.run(again())
    assert (second.ok, second.output) == (True, DATA)


def test_people_are_shown_the_data() -> None:
    outcome, _ = CASES["tools"].run(f"Here it is: {GOOD} - done")
    lines = [one.plain for one in result_text(outcome.result, Console(width=80))]
    assert json.loads(lines[0]) == DATA


# -- what an author writes --------------------


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        pytest.param(
            {"type": "array"}, "must be the JSON schema of an object, not of type 'array'", id="list"
        ),
        pytest.param({"type": "object"}, "names no `properties`", id="says nothing"),
        pytest.param({"properties": {"a": {"type": "txt"}}}, "'txt' is not valid", id="no such type"),
        pytest.param(
            {"properties": {"a": {"$ref": "#/$defs/b"}}}, "no such name in `$defs`", id="no such ref"
        ),
        pytest.param(7, "should be a valid dictionary", id="number"),
    ],
)
def test_output_that_cannot_be_used_is_refused(output: Any, problem: str) -> None:
    with pytest.raises(ValidationError) as error:
        AgentTask(goal="x", output=output)
    assert problem in str(error.value)


def test_validators_of_the_model_are_asked_by_the_reader() -> None:
    class Strict(Refund):
        """A refund."""

        @field_validator("order")
        @classmethod
        def _known(cls, order: str) -> str:
            raise ValueError("there is no such order")

    outcome = Local(model=ScriptedModel(react(GOOD))).run_sync("refund?", output=Strict)
    assert outcome.output == DATA
    with pytest.raises(ValidationError, match="there is no such order"):
        outcome.output_as(Strict)


def test_inner_run_answers_its_outer_machine_in_words() -> None:
    """`output` is what the agent gives, not what its parts give each other."""
    options = {"nested": {"policy": "always"}, "max_depth": 2}
    block = "```repl\nprint(llm_query('which?'))\n```"
    script = ScriptedModel([block, "FINAL(a1)", f"FINAL({GOOD})"])
    agent = AgentSpec(machine="code", options=options)
    outcome = Local(agent, model=script).run_sync("refund?", output=Refund)
    assert outcome.output == DATA
    inner = next(one for one in script.asked if "which?" in one.messages[-1].content)
    assert not any("The final answer must be" in one.content for one in inner.messages)


def test_blast_radius_counts_what_asking_again_allows() -> None:
    machine = registry.machine("react")
    plain = AgentSpec(options={"max_steps": 5})
    typed = AgentSpec(options={"max_steps": 5}, output=Refund)
    assert (calls_bound(machine, plain).calls, calls_bound(machine, typed).calls) == (5, 15)
    seven = typed.model_copy(update={"limits": Limits(model_calls=7)})
    assert calls_bound(machine, seven).calls == 7  # a call for each reply, in whichever answer


def test_blast_radius_holds_for_a_machine_that_begins_anew() -> None:
    """Three calls before each of three answers, whatever it says of itself."""
    seen: list[str] = []

    def look(params: Numbered) -> str:
        seen.append(params.x)
        return params.x

    tools = [Tool(name="look", params=Numbered, run=look, effect="read")]
    machine = replace(
        any_effect.MACHINE,
        on_reopen=lambda c: (any_effect.S.THINK, {}),
        most_calls=lambda options, replies: max(min(3, replies - 1), 0),
    )
    one_answer = ["tools look 1", "tools look 2", "tools look 3", f"answer {BAD}"]
    Local(machine, model=ScriptedModel(one_answer * 3), tools=tools).run_sync("refund?", output=Refund)
    agent = AgentSpec(machine="any_effect", output=Refund)
    assert len(seen) == calls_bound(machine, agent).calls == 9
    few = agent.model_copy(update={"limits": Limits(model_calls=5)})
    assert calls_bound(machine, few).calls == 4  # not 9: four replies make three calls at most


def test_exit_of_a_machine_need_not_know_of_it() -> None:
    assert Exit(reason="done").output is None
    assert Program(any_effect.MACHINE, program_for(AgentTask(goal="x"), {}, "w").input).form is None
