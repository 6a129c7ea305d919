"""A call that a person rejects, or that nobody decides upon in time: it was not run, each machine tells its
model so with the person's words, and the run goes on. `rejected` and `expired` are no failures of a tool."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.machines import scripts_refund_desk as shop
from tests.machines.answers import act, decided, final, said, tool_failed, tool_said
from tests.machines.contractkit import call, contract, done, events
from tests.machines.deskkit import desk
from tests.machines.driver import Play, run_script, tool
from tests.machines.plannerkit import planner
from tests.machines.scripts_code import block, broke, calls
from tests.machines.scripts_planner import ANSWER, PLAN
from tests.machines.scripts_planner import calls as proposes
from tests.machines.scripts_simple import act as decides
from tests.machines.scripts_simple import finish
from tests.machines.scripts_staged import ANSWER as OBSERVED
from tests.machines.scripts_staged import TOOLS, asks, observed, run, stages
from tests.machines.scripts_tools import calls as wants
from workflows.kernel.design import Parts
from workflows.machines.declined import DECLINED

TOOL = tool("tool", q={"type": "string"})
WHY = "ann rejected it: too dear"
both = pytest.mark.parametrize("error", DECLINED)


def plays(machine: str, *answers: Any, **options: Any) -> Play:
    """A run with one tool."""
    return run_script(machine, answers, options=options, tools=(TOOL,))


@both
def test_react_has_it_as_the_observation_of_a_failed_step_and_thinks_again(error: Any) -> None:
    played = plays("react", act("tool", q="x"), tool_failed(error, WHY), final())
    step = played.context.steps[0]
    assert (step.status, step.observation) == ("failed", WHY)
    assert played.told == f"Observation: {WHY}"
    assert (played.context.metadata["tool_history"], played.context.retry_count) == ([], 0)
    assert played.exit.ok


@both
def test_tools_mode_answers_the_call_with_it_and_runs_the_other_calls(error: Any) -> None:
    def one_of_two(effect: Any) -> Any:
        declined, ran = tool_failed(error, WHY)(effect).results[0], tool_said("found")(effect).results[1]
        return tool_said()(effect).model_copy(update={"results": (declined, ran)})

    played = plays("tools", wants("tool", "tool"), one_of_two, said("42"))
    told = [message.content for message in played.prompts[-1].transcript if message.role == "tool"]
    assert told == [json.dumps({"error": WHY}), '"found"']
    assert (played.exit.reason, played.context.iteration) == ("stop", 1)


@both
def test_a_block_of_code_gets_it_as_the_error_that_the_tool_raises(error: Any) -> None:
    played = plays("code", block("tool('x')"), calls("tool", "x"), tool_failed(error, WHY))
    effect: Any = played.last.effect
    assert effect.answer.error == WHY
    told = plays("code", block("1"), calls("tool"), tool_failed(error, WHY), broke(WHY), said("FINAL(1)"))
    assert WHY in told.told
    assert told.exit.reason == "stop"


@both
def test_staged_observes_that_it_was_not_run_and_notes_it(error: Any) -> None:
    played = run(TOOLS, asks("tool", q="x"), tool_failed(error, WHY), OBSERVED)
    assert f'tool {{"q": "x"}} was not run:\n{WHY}' in played.told
    assert played.exit.outcome["degrade_events"] == [
        {"code": error, "stage": "act", "message": f"tool: {WHY}"}
    ]
    assert (played.exit.reason, played.exit.ok) == ("answered", True)


@both
@pytest.mark.parametrize("knob", ["halt", "record"])
def test_the_planner_records_it_and_goes_on_whatever_its_knobs_say_of_failures(error: Any, knob: Any) -> None:
    two = proposes(("look", '{"q": "a"}'), ("write", "{}"))
    declined = tool_failed(error, WHY)
    played = planner(
        PLAN, two, declined, tool_said("B"), ANSWER, on_tool_error=knob, on_policy_violation=knob
    )
    assert [(r.get("error"), r.get("result")) for r in played.context.observations] == [
        (WHY, None), (None, "B"),
    ]  # fmt: skip
    assert played.context.marks == ("tool_called", "step_completed")
    assert json.dumps({"name": "look", "error": WHY}) in [m.content for m in played.prompts[-1].transcript]
    assert (played.exit.ok, played.exit.reason) == (True, "answered")


@both
def test_the_planner_sets_no_mark_for_it_and_so_has_not_converged(error: Any) -> None:
    played = planner(
        PLAN, proposes(("look", "{}")), tool_failed(error, WHY), ANSWER, converged=["tool_called"]
    )
    assert played.context.marks == ()
    assert played.exit.reason == "answered"


@both
def test_simple_ends_the_step_without_it_and_decides_again(error: Any) -> None:
    played = plays("simple", decides("tool", q="x"), tool_failed(error, WHY), finish("no"))
    assert WHY in played.told
    assert ("error" in played.context.state, played.context.marks, played.context.iteration) == (False, (), 2)
    audit: Any = played.exit.outcome["audit"]
    assert audit[0]["result"] == {"error": WHY}
    assert (played.exit.ok, played.exit.answer) == (True, "no")


def test_a_hook_that_fails_on_a_call_that_was_not_run_ends_the_simple_run() -> None:
    def lost(result: Any, iteration: int) -> str:
        raise ValueError("lost")

    parts = Parts(hooks={"lost": lost})
    played = run_script(
        "simple",
        [decides("tool"), tool_failed("rejected", WHY)],
        options={"input_builder": "lost"},
        tools=(TOOL,),
        parts=parts,
    )
    assert played.exit.reason == "hook_failed"


@both
def test_contract_charges_the_round_but_no_tool_call_and_makes_no_artifact(error: Any) -> None:
    """As a call that breaks the protocol (spec 5.6): the decision was made, the tool was not run."""
    played = contract(call(), tool_failed(error, WHY), done(), write_tools=["tool"])
    spent = {name: n for name, n in played.context.budget.spent.items() if n}
    assert spent == {"decisions": 2, "explore": 1, "answer/explore": 1}
    assert dict(played.context.artifacts) == {}
    (event,) = events(played, "tool_not_run")
    assert (event["tool_id"], event["error"]) == ("tool", WHY)
    assert f'- tool_not_run: {{"tool_id": "tool", "error": "{WHY}"}}' in played.told
    assert played.exit.reason == "incomplete_contract"


@both
def test_contract_in_overdraft_comes_to_its_end_when_every_call_is_declined(error: Any) -> None:
    again = (call(strategy="exploit"), tool_failed(error, WHY))
    played = contract(*again * 9, done(), caps={"tool_calls": 0})
    assert played.last.exit is not None
    assert played.context.budget.used("tools") == 0
    assert played.context.budget.used("exploit") == 2


@both
def test_the_refund_desk_parks_a_ticket_whose_payment_was_not_let_through(error: Any) -> None:
    played = desk(shop.ONE, shop.sign(), shop.facts(), tool_failed(error, WHY))
    (entry,) = played.context.decisions
    assert (entry.outcome, entry.cents) == ("parked", 0)
    assert WHY in entry.why
    assert played.exit.reason == "some_parked"


# -- machines that ask people themselves --------------------

GUESS = act("tool", words="I guess so")


@pytest.mark.parametrize("words", ["", "nobody decided in time"])
def test_react_ends_when_nobody_answers_its_escalation(words: str) -> None:
    played = plays("react", *[GUESS] * 4, decided("unavailable", words))
    assert (played.exit.reason, played.context.terminated) == ("retries_exhausted", True)
    assert [r.reason for r in played.records if r.event == "NobodyToAsk"] == [words or "unavailable"]


@pytest.mark.parametrize("decision", ["resume", "answer"])
def test_react_tells_the_model_what_a_person_answers_its_escalation(decision: Any) -> None:
    played = plays("react", *[GUESS] * 4, decided(decision, "look into the log"))
    assert "look into the log" in [message.content for message in played.prompts[-1].transcript]
    assert played.context.retry_count == 0


def test_a_stage_that_is_declined_every_tool_still_answers_in_its_last_pass() -> None:
    more = (TOOLS, asks("tool", q="x"), tool_failed("rejected", WHY), observed(need_loop=True))
    played = run(*more, TOOLS, OBSERVED, declared=stages(), max_iterations=2)
    assert (played.exit.reason, played.unused) == ("answered", 0)
