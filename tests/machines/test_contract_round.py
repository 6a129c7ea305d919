"""One decision round, step by step (spec 5.7): what comes first decides."""

from __future__ import annotations

from typing import Any

import pytest

from activities.contracts import CallModel, ModelReplied
from tests.machines.answers import said
from tests.machines.contractkit import call, clarify, contract, done, events, made, maps, rerun, say
from tests.machines.driver import Play
from workflows.machines.contract_exit import resolved
from workflows.machines.contract_round import BEFORE_MAPPING, BEHIND_MAPPING

WIDE = {"name": "answer", "budget": {"explore": 9, "exploit": 9, "render": 9, "ctx_reads": 9}}
WRAPPED: dict[str, Any] = {"is_wrapup_round": True, "wrapup_round_used": True}
NO_READS: dict[str, Any] = {"caps": {"context_reads": 0}}
NO_RERUNS: dict[str, Any] = {"caps": {"decision_reruns": 0}}
OVERDRAFT: dict[str, Any] = {"slots": [WIDE], "caps": {"tool_calls": 0}}
EXHAUSTED: dict[str, Any] = {
    "slots": [{"name": "answer", "budget": {"exploit": 0}}],
    "caps": {"tool_calls": 1},
}


def ends(run: Play) -> tuple[str, str | None]:
    """Its exit reason, and what it was to end for when it began to wrap up."""
    return run.exit.reason, run.context.wrapup_trigger_reason


def test_the_steps_run_in_the_order_of_their_numbers() -> None:
    """Also those whose order makes no difference today."""
    numbers = [(step.__doc__ or "").split(".")[0] for step in (*BEFORE_MAPPING, *BEHIND_MAPPING)]
    assert numbers == ["4", "5", "6", "7", "8", "9", "11", "12"]


# -- 1 and 2: the gate --------------------


@pytest.mark.parametrize("set_before", ["exit_reason", "pending_exit_reason"])
def test_1_a_reason_that_is_set_goes_straight_to_the_routing(set_before: str) -> None:
    """Also before the gate is asked: an exhausted budget does not change it."""
    changed = {set_before: "decision_no_progress"}
    run = contract(changed=changed, slots=[], caps={"decision_rounds": 0})
    assert (run.effects, ends(run)) == ((), ("decision_no_progress", None))
    assert run.context.error is None


def test_1_in_the_wrap_up_round_a_pending_reason_does_not_end_the_round() -> None:
    run = contract(done(), changed={**WRAPPED, "pending_exit_reason": "clarify"})
    assert len(run.prompts) == 1
    assert run.exit.reason == "clarify"


def test_2_an_exhausted_budget_allows_one_more_call_whose_mapping_counts() -> None:
    """R-004-2: `map_only`, the default: charged to nothing, the tool call is not run."""
    last = call(strategy="explore", **maps(("answer", "found")), show_artifacts=["found"])
    run = contract(call(), made("42"), last, **EXHAUSTED)
    assert [effect.kind for effect in run.effects] == [
        "call_model", "call_tools", "call_model", "read_artifacts",
    ]  # fmt: skip
    assert (run.exit.reason, run.exit.ok, run.exit.answer) == ("max_iterations", True, "42")
    assert run.context.budget.used("decisions") == 1
    assert run.context.budget.used("context_reads") == 0
    assert run.context.error == {
        "code": "budget_exhausted",
        "message": "the budget is used up: no decision rounds or no tool calls are left",
    }
    assert "Of this answer only `map_slots` counts" in run.told


@pytest.mark.parametrize("reply", [clarify(), rerun("found"), said("?"), done()])
def test_2_the_reason_of_an_exhausted_budget_stays(reply: ModelReplied) -> None:
    """R-004-2: whatever the one more call says, the reason stays `max_iterations`."""
    run = contract(call(), made("42", kind="search"), reply, **EXHAUSTED)
    assert ends(run) == ("max_iterations", None)
    assert run.context.protocol_violation_count == 0


def test_2_an_exhausted_budget_may_end_without_a_call() -> None:
    """R-004-2: with `exhausted_round: skip` the model is not asked again."""
    run = contract(call(), made("42", kind="search"), exhausted_round="skip", **EXHAUSTED)
    assert (ends(run), len(run.prompts), run.context.iteration) == (("max_iterations", None), 1, 1)
    assert run.context.error["code"] == "budget_exhausted"


def test_2_in_the_wrap_up_round_the_gate_is_not_asked() -> None:
    run = contract(done(), changed=WRAPPED, caps={"decision_rounds": 0})
    assert run.context.error is None
    assert run.exit.reason == "incomplete_contract"


# -- 3: the model --------------------


def test_3_the_round_remembers_what_is_there_before_it_asks() -> None:
    run = contract(call("a"), made("x"), call("b"), made("y"), done(), slots=[])
    assert run.context.round_snapshot_artifact_ids == ("a", "b")
    asked = [s.snapshot.context for s in run.steps if isinstance(s.effect, CallModel)]
    assert [c.round_snapshot_artifact_ids for c in asked] == [(), ("a",), ("a", "b")]


def test_3_iterations_are_decisions_that_came_back_wrap_up_included() -> None:
    run = contract(said("?"), call(), made("x"), done(), done())
    assert (run.context.iteration, run.context.wrapup_round_used) == (4, True)


@pytest.mark.parametrize(("wish", "role"), [(None, "strong"), ("strong", "strong"), ("regular", "regular")])
def test_3_a_decision_says_which_model_decides_next(wish: str | None, role: str) -> None:
    run = contract(rerun("a", next_decision_model=wish))
    assert [prompt.role for prompt in run.prompts] == ["strong", role]


# -- 4: the strategy --------------------


@pytest.mark.parametrize("action", ["call_tool", "decision", "clarify", "complete"])
def test_4_the_strategy_exit_forces_the_exit(action: str) -> None:
    run = contract(say(action, "exit", show_artifacts=["a"], clarification_questions=["?"]), slots=[])
    assert ends(run) == ("complete", None)


def test_4_without_a_strategy_a_summary_ends_the_run() -> None:
    run = contract(say("call_tool", None, completion_summary="that is it"), slots=[])
    assert (run.exit.reason, run.exit.answer) == ("complete", "that is it")


@pytest.mark.parametrize(
    "reply", [said("{}"), said("nonsense"), say("call_tool", "fast"), say("clarify", None)]
)
def test_4_without_both_it_is_a_violation_and_the_decision_is_asked_for_again(reply: ModelReplied) -> None:
    run = contract(reply, done(), slots=[])
    assert run.visited == "decision decision exit"
    assert run.context.protocol_violation_count == 1
    assert run.context.last_protocol_violation["code"] == "decision_invalid_strategy"
    assert "decision_invalid_strategy" in run.told


def test_4_forced_reruns_are_bounded_by_the_reruns() -> None:
    run = contract(*[said("nonsense")] * 3, slots=[])
    assert (ends(run), len(run.prompts)) == (("decision_reruns_exhausted", None), 3)


def test_4_forced_reruns_are_bounded_by_the_rounds_too() -> None:
    caps = {"decision_rounds": 2, "decision_reruns": 99, "exploit": 0}
    run = contract(*[said("nonsense")] * 3, slots=[], caps=caps)
    assert (ends(run), len(run.prompts)) == (("max_iterations", None), 3)


def test_4_comes_before_5_and_before_7() -> None:
    """The strategy decides the action that the later steps look at."""
    run = contract(rerun("a", strategy="exit"), slots=[], **NO_READS)
    assert ends(run) == ("complete", None)
    run = contract(call(strategy=""), done(), **OVERDRAFT)
    assert "exploit_overdraft_blocked" not in ends(run)
    assert run.visited.startswith("decision decision")


# -- 5: show items --------------------


def test_5_without_a_context_read_a_rerun_ends_the_run() -> None:
    """R-004-4: `context_reads_exhausted` beats `decision_no_progress`, which would hold too."""
    run = contract(rerun("a"), slots=[], **NO_READS)
    assert ends(run) == ("context_reads_exhausted", None)


def test_5_without_a_context_read_other_actions_go_on_and_show_nothing() -> None:
    run = contract(call(show_artifacts=["found"]), made("42"), slots=[], **NO_READS)
    assert run.context.shown_artifacts == ()
    assert "SHOWN" not in run.told
    assert events(run, "show_artifacts") == []


def test_5_what_was_asked_for_is_shown_in_the_next_round_and_only_there() -> None:
    run = contract(
        call("rows", show_skills=["style"]), made([{"name": "Ann"}]), rerun("rows[0].name", "nosuch"),
        rerun("rows"), slots=[], skills={"style": "Be brief."},
    )  # fmt: skip
    told = [prompt.transcript.messages[-1].content for prompt in run.prompts]
    assert "SHOWN skill style\nBe brief." in told[1]
    assert "SHOWN artifact rows[0].name\n<<<\nAnn\n>>>" in told[2]
    assert "SHOWN artifact nosuch: there is no such artifact" in told[2]
    assert "SHOWN skill" not in told[2]
    assert '<<<\n[{"name": "Ann"}]\n>>>' in told[3]


# -- 7 to 9: blocks --------------------


def test_7_a_block_keeps_its_reason() -> None:
    """R-004-3: the first pending reason wins; step 12 does not overwrite it with `complete`."""
    run = contract(call(strategy="explore"), **OVERDRAFT)
    assert ends(run) == ("exploit_overdraft_blocked", None)
    assert "call_tools" not in [effect.kind for effect in run.effects]


@pytest.mark.parametrize(
    ("reply", "options", "reason"),
    [
        (rerun("a"), NO_READS, "context_reads_exhausted"),
        (say("decision"), {}, "decision_no_progress"),
        (rerun("a"), NO_RERUNS, "decision_reruns_exhausted"),
        (rerun("a"), {"changed": WRAPPED}, "wrapup_no_decision_rerun"),
        (said("?"), {"changed": WRAPPED}, "wrapup_no_decision_rerun"),
        (rerun(), {"changed": WRAPPED}, "decision_no_progress"),
    ],
)
def test_every_special_reason_is_the_one_that_the_run_ends_with(
    reply: ModelReplied, options: dict[str, Any], reason: str
) -> None:
    """R-004-3: the special reasons of steps 5, 9 and 11 are real exit reasons."""
    assert contract(reply, **options).exit.reason == reason


def test_a_reason_that_was_pending_before_stays_too() -> None:
    """R-004-3: the first pending reason wins, also over a special one."""
    pending = {**WRAPPED, "pending_exit_reason": "clarify"}
    assert contract(rerun("a"), changed=pending).exit.reason == "clarify"


def test_8_in_the_wrap_up_round_a_tool_call_becomes_the_exit() -> None:
    run = contract(call(), made("42"), done(), call(strategy="exploit", **maps(("answer", "found"))))
    assert [effect.kind for effect in run.effects].count("call_tools") == 1
    assert ends(run) == ("complete", "complete")
    assert run.exit.answer == "42"


# -- 10: mapping, whatever the round comes to --------------------


@pytest.mark.parametrize(
    ("reply", "options"),
    [
        (done(("answer", "found")), {}),
        (call("more", **maps(("answer", "found"))), {}),
        (rerun("found", **maps(("answer", "found"))), {}),
        (clarify(**maps(("answer", "found"))), {}),
        (say("decision", **maps(("answer", "found"))), {}),
        (rerun("found", **maps(("answer", "found"))), NO_RERUNS),
        (rerun("found", **maps(("answer", "found"))), NO_READS),
        (say("complete", None, **maps(("answer", "found"))), {}),
    ],
)
def test_10_every_round_maps_also_one_that_exits_or_is_blocked(
    reply: ModelReplied, options: dict[str, Any]
) -> None:
    run = contract(call(), made("42"), reply, **options)
    assert run.context.slots["answer"].text == "42"
    assert run.context.mapped_round_index == 2


def test_10_a_round_maps_once() -> None:
    run = contract(done(("answer", "nosuch")), changed={"mapped_round_index": 1})
    assert events(run, "best_effort_mapping") == []


def test_10_stands_in_the_log_behind_what_was_shown() -> None:
    run = contract(call(), made("42"), rerun("found", **maps(("answer", "found"))))
    names = [event["event"] for event in events(run) if event["round"] == 2]
    assert names == ["decision", "show_artifacts", "best_effort_mapping"]


# -- 11 to 13 --------------------


def test_11_a_rerun_too_many_is_charged_as_an_exit() -> None:
    run = contract(rerun("a"), **NO_RERUNS)
    assert run.exit.reason == "decision_reruns_exhausted"
    assert (run.context.budget.used("decisions"), run.context.budget.used("decision_reruns")) == (1, 0)


@pytest.mark.parametrize(
    ("reply", "reason"), [(clarify(), "clarify"), (done(), "complete"), (say("exit"), "complete")]
)
def test_12_an_exit_is_pending_for_what_was_wished(reply: ModelReplied, reason: str) -> None:
    assert contract(reply, slots=[]).exit.reason == reason


def test_13_a_tool_round_stays_open_until_the_tool_has_run() -> None:
    run = contract(call())
    c = run.context
    assert run.visited == "decision protocol_verify tool_execution"
    assert (c.budget.spent, c.round_timings, c.round_index) == ({}, (), 1)
    assert (c.exit_reason, c.pending_exit_reason) == (None, None)


# -- routing (5.9, 1 and 2) --------------------


@pytest.mark.parametrize(
    ("exit_reason", "pending", "reply", "reason"),
    [
        ("clarify", "max_iterations", None, "clarify"),
        (None, "max_iterations", clarify(), "max_iterations"),
        (None, None, clarify(), "clarify"),
        (None, None, done(), "complete"),
        (None, None, say("exit"), "complete"),
        (None, None, call(), None),
        (None, None, None, None),
    ],
)
def test_one_resolver_says_why_a_run_ends(
    exit_reason: str | None, pending: str | None, reply: ModelReplied | None, reason: str | None
) -> None:
    run = contract(*([reply] if reply else []))
    decision = run.context.last_decision
    c = run.context.model_copy(
        update={"exit_reason": exit_reason, "pending_exit_reason": pending, "last_decision": decision}
    )
    assert resolved(c) == reason


def test_the_pending_reason_is_cleared_when_it_is_promoted() -> None:
    run = contract(clarify(), slots=[])
    assert (run.context.exit_reason, run.context.pending_exit_reason) == ("clarify", None)


def test_a_decision_without_a_strategy_is_a_violation_also_when_no_rerun_is_left() -> None:
    run = contract(said("?"), caps={"decision_reruns": 0})
    assert run.exit.reason == "decision_reruns_exhausted"
    assert run.context.protocol_violation_count == 1
    assert run.context.last_protocol_violation["code"] == "decision_invalid_strategy"


def test_a_cut_reply_is_asked_for_again_and_told_why() -> None:
    """An object inside it says that the run is complete; it was only a parameter of the call."""
    inner = '{"action": "complete", "strategy": "exit", "completion_summary": "done"}'
    cut = ModelReplied(text=f'{{"action": "call_tool", "params": {inner}, "out_art', finish_reason="length")
    run = contract(cut)
    assert run.visited == "decision decision"
    assert run.last.exit is None
    assert "the reply was cut at its length limit (max_output_tokens)" in run.told
