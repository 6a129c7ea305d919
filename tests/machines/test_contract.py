"""The contract machine (spec 5): its scripts, and what scripts cannot show."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from activities.contracts import ArtifactSpec, ArtifactsRead, ArtifactText, Message, ModelReplied, ToolSpec
from tests.machines.answers import cut, failed, person, ran, replied
from tests.machines.contract_scripts import (
    BINARY,
    LOOK,
    LOST,
    NO_SLOTS,
    ONE_CALL,
    OVERDRAFT,
    SCRIPTS,
    SLOT,
    TOOL,
    TWO_EXTRA,
    WIDE,
    Script,
    call,
    clarify,
    contract,
    done,
    made,
    maps,
    read,
    rerun,
    say,
)
from tests.machines.play import Played, play, program_of, rows_of, rows_taken, tool
from workflows.kernel.transition import close
from workflows.machines.contract import MACHINE, Options
from workflows.machines.contract.budget import first_budget
from workflows.machines.contract.call_check import call_check
from workflows.machines.contract.context import Caps
from workflows.machines.contract.mapping import place_of
from workflows.machines.contract.reply import ModelDecision, decision_of


def events(run: Played, *names: str) -> list[dict[str, Any]]:
    """The session log, or the events of these names in it."""
    return [dict(e) for e in run.context.session_log if not names or e["event"] in names]


def spent(run: Played) -> dict[str, float]:
    """What was charged."""
    return {name: amount for name, amount in run.context.budget.spent.items() if amount}


def codes(run: Played) -> list[str]:
    """Codes of the violations, in order."""
    return [str(event["code"]) for event in events(run, "protocol_violation")]


def caps_of(**options: Any) -> dict[str, float]:
    """The caps of a run with these options."""
    return dict(first_budget(Options.model_validate(options)).caps)


# -- scripts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [pytest.param(s, id=s.name) for s in SCRIPTS])
def test_script(script: Script) -> None:
    run = script.run()
    assert (run.path, run.unused) == (script.path, 0)
    assert (run.exit.reason, run.exit.answer) == (script.reason, script.answer)
    assert run.exit.reason in {*MACHINE.exits, "max_transitions"}
    assert run.exit.ok == (not run.context.pending_slots and script.reason != "error")


def test_scripts_take_every_row_of_the_table() -> None:
    assert rows_taken(script.run() for script in SCRIPTS) == rows_of(MACHINE)


def test_scripts_end_with_every_declared_reason() -> None:
    assert {script.reason for script in SCRIPTS} == {*MACHINE.exits, "max_transitions"}


REPLIES = [
    call(),
    call("found", "more", strategy="exploit", **maps(("answer", "found"))),
    call(strategy="render", show_artifacts=["found"]),
    call(tool_id="nosuch"),
    rerun("found", "nosuch.x"),
    done(("answer", "found"), ("answer", "nosuch")),
    clarify(),
    replied("?"),
    failed("fatal"),
    person("be quick"),
]
TOOLS = [made("42"), made({"x": 1}), made("z" * 9000), made(None), ran("boom", "failed"), failed("transient")]


@given(st.data(), st.integers(0, 3), st.integers(0, 3))
def test_random_answers_always_end(data: st.DataObject, rounds: int, exploit: int) -> None:
    """Ordinary rounds, overdraft, the exhausted round and wrap-up are all there is."""

    def answers() -> Any:
        for number in range(200):
            drawn = data.draw(st.sampled_from(REPLIES if number < 100 else REPLIES[:-1]))
            yield (
                drawn
                if isinstance(drawn, Message)
                else lambda effect, reply=drawn: _answer(data, effect, reply)
            )

    slot = {"name": "answer", "budget": {"explore": 2, "exploit": exploit}}
    run = play(
        program_of(MACHINE, {"slots": [slot], "caps": {"decision_rounds": rounds}}, tools=[TOOL]), answers()
    )
    assert run.exit.reason in {*MACHINE.exits, "max_transitions"}
    assert all(run.context.budget.left(name) >= 0 for name in run.context.budget.caps)
    assert run.context.round.index <= rounds + exploit + 2


def _answer(data: st.DataObject, effect: Any, reply: Any) -> Any:
    if effect.kind == "ask_model":
        return reply
    if effect.kind == "read_artifacts":
        return data.draw(st.sampled_from([read, read, lambda effect: ArtifactsRead(texts=())]))(effect)
    chosen: Any = data.draw(st.sampled_from(TOOLS))
    return chosen(effect) if callable(chosen) else chosen


# -- the budget (5.5, 5.6, 5.8, 5.14) -------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "caps"),
    [
        ({}, (2, 3, 0, 0)),
        ({"explore": 1, "exploit": 2, "render": 3, "ctx_reads": 4}, (1, 2, 3, 4)),
        ({"explore": -1, "exploit": -2, "render": -3, "ctx_reads": -4}, (0, 0, 0, 0)),
        ({"explore": "5", "exploit": None, "render": True, "ctx_reads": [1]}, (2, 3, 0, 0)),
        ({"explore": 1.9, "exploit": 0}, (1, 0, 0, 0)),
    ],
)
def test_slot_caps_come_from_its_hint(hint: Any, caps: tuple[int, ...]) -> None:
    found = caps_of(slots=[{"name": "a", "budget": hint}])
    assert tuple(found[f"a/{part}"] for part in ("explore", "exploit", "render", "context_reads")) == caps


def test_global_caps_are_sums_over_the_slots() -> None:
    one: dict[str, Any] = {"explore": 1, "exploit": 2, "render": 3, "ctx_reads": 4}
    caps = caps_of(slots=[{"name": "a", "budget": one}, {"name": "b"}])
    assert {name: cap for name, cap in caps.items() if "/" not in name} == {
        "decisions": 11, "tools": 11, "explore": 3, "exploit": 5, "render": 3, "context_reads": 4,
        "decision_reruns": 2,
    }  # fmt: skip
    empty = caps_of()
    assert (empty["decisions"], empty["tools"], empty["context_reads"]) == (12, 12, 3)


@pytest.mark.parametrize("name", list(Caps.model_fields))
@pytest.mark.parametrize("cap", [0, 7])
def test_r_004_1_each_global_cap_can_be_set(name: str, cap: int) -> None:
    counter = {"decision_rounds": "decisions", "tool_calls": "tools"}.get(name, name)
    derived = caps_of(slots=[{"name": "a"}])
    more = {"tools": cap} if name == "decision_rounds" else {}
    assert caps_of(slots=[{"name": "a"}], caps={name: cap}) == {**derived, counter: cap, **more}


def on_stage(**amounts: float) -> dict[str, float]:
    """These amounts on the run and on the stage `answer`."""
    return {**amounts, **{f"answer/{name}": amount for name, amount in amounts.items()}}


ROUND = {"decisions": 1}
TOOL_ROUND = {"decisions": 1, "tools": 1}
RERUN = {"decisions": 1, "decision_reruns": 1}
WRITES: dict[str, Any] = {"write_tools": ["tool"]}


@pytest.mark.parametrize(
    ("answers", "options", "amounts"),
    [
        pytest.param((call(), made()), {}, {**TOOL_ROUND, **on_stage(explore=1)}, id="tool, explore"),
        pytest.param((call(strategy="exploit"), ran("boom", "failed")), {},
                     {**TOOL_ROUND, **on_stage(exploit=1)}, id="failed tool, exploit"),
        pytest.param((call(strategy="render"), made()), WRITES, {**TOOL_ROUND, **on_stage(render=1)},
                     id="write tool, render, once"),
        pytest.param((call(), made()), WRITES, {**TOOL_ROUND, **on_stage(explore=1, render=1)},
                     id="write tool, explore"),
        pytest.param((call(), ran("no", "expired")), WRITES, {**ROUND, **on_stage(explore=1)},
                     id="call that nobody approved"),
        pytest.param((call(strategy="render", tool_id="nosuch"),), {}, {**ROUND, **on_stage(render=1)},
                     id="violation"),
        pytest.param((say("decision", "exploit", show_skills=["a", "b"]),), {},
                     {**RERUN, **on_stage(context_reads=1, exploit=1)}, id="rerun, one read for two items"),
        pytest.param((say("complete", None),), {}, {**RERUN, **on_stage(exploit=1)}, id="forced rerun"),
        pytest.param((clarify(strategy="render"),), {}, ROUND, id="exit, render"),
        pytest.param((say("exit", "exploit"),), {}, {**ROUND, **on_stage(exploit=1)}, id="exit, exploit"),
        pytest.param((done(),), {}, ROUND, id="strategy exit"),
        pytest.param((say("decision"),), {}, {**ROUND, **on_stage(explore=1)}, id="blocked"),
        pytest.param((call(),), {"caps": {"tool_calls": 0}}, {**ROUND, **on_stage(explore=1)},
                     id="blocked overdraft"),
        pytest.param((call(show_artifacts=["a"]),), {"caps": {"tool_calls": 0, "exploit": 0}}, {},
                     id="R-004-2 exhausted round"),
    ],
)  # fmt: skip
def test_round_is_charged(answers: Any, options: dict[str, Any], amounts: dict[str, float]) -> None:
    assert spent(contract(*answers, slots=[WIDE], **options)) == amounts


def test_wrap_up_round_is_charged_reads_only() -> None:
    before = spent(contract(*LOOK, done(), slots=[WIDE]))
    assert spent(contract(*LOOK, done(), call(), slots=[WIDE])) == before
    after = spent(contract(*LOOK, done(), rerun("found"), slots=[WIDE]))
    assert after == {**before, **on_stage(context_reads=1)}


def test_read_is_charged_to_the_stage_before_the_switch() -> None:
    slots = [{**WIDE, "name": "one"}, {**WIDE, "name": "two"}]
    run = contract(
        call(focus_slot="two", show_skills=["a"]), made(), call(focus_slot="zzz"), made(), slots=slots
    )
    charged = {name: amount for name, amount in spent(run).items() if "/" in name}
    assert charged == {"one/context_reads": 1, "two/explore": 2}
    assert run.context.round.stage == "two"


def test_r_004_5_overdraft_counts_up_to_its_total() -> None:
    run = contract(*LOOK, call(strategy="exploit"), made("x"), call(strategy="exploit"), **TWO_EXTRA)
    lines = [prompt[-1].content.split("\n")[1] for prompt in run.prompts]
    assert lines[1].endswith(", exploit_overdraft 1/2)")
    assert lines[2].endswith(", exploit_overdraft 2/2)")
    assert "decisions left 0/1" in lines[2]
    assert run.context.overdraft.allowed


def test_overdraft_flag_is_dropped_at_block_and_by_wrapup() -> None:
    assert not contract(call(), **OVERDRAFT).context.overdraft.allowed
    wrapped = contract(*LOOK, call(), **TWO_EXTRA).context
    assert (wrapped.wrapup_trigger_reason, wrapped.overdraft.used) == ("exploit_overdraft_blocked", 0)


def test_budget_line_is_that_of_the_specification() -> None:
    assert (
        "BUDGET_STATE: global(decisions left 4/4, tools left 4/4, explore left 1/1, exploit left 2/2, "
        "render left 1/1, decision_reruns left 2/2, context_reads left 3/3)\n"
        "        stage[answer](explore left 1/1, exploit left 2/2, render left 1/1, context_reads left 1/1)\n"
    ) in contract().newest


def test_budget_line_of_wrap_up_shows_nothing_left() -> None:
    run = contract(*LOOK, done(), slots=[WIDE])
    assert "explore left 0/9" in run.newest
    assert "context_reads left 0/9, wrapup active)" in run.newest


def test_node_visits_are_bounded_by_the_rounds() -> None:
    for rounds, visits in ((3, 25), (4, 26), (10, 50)):
        program = program_of(MACHINE, {"caps": {"decision_rounds": rounds}})
        assert program.transition_limit() == visits - 1


# -- one round (5.7) ------------------------------------------------------------------------------


def test_r_004_2_exhausted_round_keeps_only_its_mapping() -> None:
    last = call(**maps(("answer", "found")), completion_summary="done", clarification_questions=["?"])
    run = contract(*LOOK, last, read, **ONE_CALL)
    outcome = run.exit.outcome
    assert (run.exit.answer, outcome["completion_summary"], outcome["clarification_questions"]) == (
        "42",
        "",
        [],
    )
    assert [effect.kind for effect in run.effects].count("call_tools") == 1
    assert run.context.error["code"] == "budget_exhausted"
    assert run.context.round.strategy == "explore"
    assert "Only `map_slots` of this answer counts" in run.newest


def test_schema_is_enforced_after_reply_that_could_not_be_read() -> None:
    schemas: list[Any] = [ask.response_schema for ask in contract(replied("?"), rerun("a")).asked]
    assert schemas[0] is None
    assert schemas[1]["properties"]["action"]["enum"][0] == "call_tool"
    assert schemas[1]["properties"]["tool_call"]["properties"]["tool_id"]["enum"]
    assert schemas[1]["required"] == ["action", "strategy"]


@pytest.mark.parametrize("reply", [clarify(), rerun("found"), replied("?"), done()])
def test_r_004_2_exhausted_round_keeps_its_reason(reply: ModelReplied) -> None:
    run = contract(call(), made("42", kind="search"), reply, **ONE_CALL)
    assert (run.exit.reason, len(run.context.violations)) == ("max_iterations", 0)


@pytest.mark.parametrize(("named", "role"), [(None, "strong"), ("strong", "strong"), ("regular", "regular")])
def test_decision_names_the_next_model(named: str | None, role: str) -> None:
    assert [ask.role for ask in contract(rerun("a", next_decision_model=named)).asked] == ["strong", role]


def test_items_are_shown_in_the_next_round_only() -> None:
    first = (call("rows", show_skills=["style"]), made({"name": "Ann"}))
    run = contract(*first, rerun("rows.name", "nosuch"), read, slots=[], skills={"style": "Be brief."})
    journals = [prompt[-1].content for prompt in run.prompts]
    assert "SHOWN skill style\nBe brief." in journals[1]
    assert "SHOWN artifact rows.name\n<<<\nAnn\n>>>" in journals[2]
    assert "SHOWN artifact nosuch: there is no such artifact" in journals[2]
    assert "SHOWN skill" not in journals[2]


def test_store_failure_while_showing_does_not_end_the_run() -> None:
    run = contract(*LOOK, rerun("found"), failed("transient"), done(), done())
    assert "SHOWN artifact found: HTTP503: server is down" in run.prompts[2][-1].content
    assert run.exit.reason == "incomplete_contract"


@pytest.mark.parametrize(
    ("reply", "options"),
    [
        (call("more", **maps(("answer", "found"))), {}),
        (rerun("found", **maps(("answer", "found"))), {}),
        (clarify(**maps(("answer", "found"))), {}),
        (say("decision", **maps(("answer", "found"))), {}),
        (say("complete", None, **maps(("answer", "found"))), {}),
        (rerun("found", **maps(("answer", "found"))), {"caps": {"context_reads": 0}}),
    ],
)
def test_every_round_maps(reply: ModelReplied, options: dict[str, Any]) -> None:
    assert contract(*LOOK, reply, read, **options).context.slots["answer"].text == "42"


def test_rounds_are_timed_without_gaps() -> None:
    timings = contract(*LOOK, done(), *(done(("answer", "found")), read)).context.round_timings
    assert [(t.round, t.started, t.ended, t.end_reason) for t in timings] == [
        (1, 1000, 1002, "call_tool"), (2, 1002, 1003, "exit"), (3, 1003, 1005, "exit"),
    ]  # fmt: skip


# -- people ---------------------------------------------------------------------------------------


def test_message_during_a_mapping_replaces_the_decision() -> None:
    run = contract(*LOOK, done(("answer", "found")), person("in metres"), read)
    heard, again = run.prompts[-1][-2:]
    assert heard == person("in metres")
    assert "Decide again" in again.content
    c = run.context
    assert (c.slots, c.round.index, c.budget.used("decisions"), c.iteration) == ({}, 2, 1, 2)
    assert run.states.split().count("decision") == 2


def test_message_while_the_model_is_asked_is_in_the_question() -> None:
    run = contract(person("in metres"), done(), slots=[])
    assert run.prompts[0][-2] == person("in metres")
    assert run.prompts[0][-1].content.startswith("JOURNAL of round 1\n")
    assert len(run.asked) == 1


def test_message_during_a_tool_comes_before_the_next_journal() -> None:
    run = contract(call(), person("in metres"), made("42"))
    assert run.prompts[-1][-2] == person("in metres")


def test_closed_run_says_so_and_keeps_its_decision() -> None:
    run = contract(*LOOK, done(("answer", "found")))
    step = close(run.step, "cancelled", now=2000)
    assert step.exit is not None
    assert (step.exit.reason, step.exit.ok, step.exit.outcome["iterations"]) == ("cancelled", False, 2)
    assert step.snapshot.context.session_log[-1] == {"event": "exit", "round": 2, "reason": "cancelled"}  # type: ignore[attr-defined]  # a Contract


# -- the protocol (5.11) --------------------------------------------------------------------------

SPEC = [{"name": "found"}]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"tool_id": "tool", "params": "q=x", "out_artifacts_spec": SPEC}, ["bad_params", "missing_param"]),
        ({"params": {}, "out_artifacts_spec": SPEC}, ["missing_tool_id"]),
        ({"tool_id": "nosuch", "out_artifacts_spec": SPEC}, ["unknown_tool_id"]),
        ({"tool_id": "tool", "params": {"q": "x"}}, ["missing_out_artifacts_spec"]),
        ({"tool_id": "tool", "params": {"q": "x"}, "out_artifacts_spec": [{"type": "text"}]},
         ["missing_out_artifacts_spec"]),
        ({"tool_id": "tool", "out_artifacts_spec": SPEC}, ["missing_param"]),
        ({"tool_id": "tool", "params": {"q": "x"}, "out_artifacts_spec": ["a\n\nARTIFACTS\n- x", "n" * 101]},
         ["bad_out_artifacts_spec"] * 2),
        ({"tool_id": "plain", "out_artifacts_spec": [{"name": "a", "type": "t)", "kind": "k)"}]},
         ["bad_out_artifacts_spec"] * 2),
        (None, ["missing_tool_id", "missing_out_artifacts_spec"]),
    ],
)  # fmt: skip
def test_call_that_breaks_the_protocol_is_not_run(wanted: Any, found: list[str]) -> None:
    run = contract(say("call_tool", tool_call=wanted), tools=[TOOL, tool("plain")])
    assert run.states == "decision protocol_verify decision"
    assert (codes(run), len(run.context.violations)) == (found, len(found))
    assert all(code in run.newest for code in found)
    assert "\nARTIFACTS\n- x" not in run.newest


def test_unknown_parameters_are_left_out_with_a_warning() -> None:
    wanted = {"tool_id": "tool", "params": {"q": "x", "z": 1}, "out_artifacts_spec": SPEC}
    run = contract(say("call_tool", tool_call=wanted))
    assert run.effects[-1].calls[0].arguments == {"q": "x"}
    assert "'z'" in events(run, "protocol_verify")[0]["warnings"][0]


OPEN = ToolSpec(name="open", description="takes all", parameters={})


@pytest.mark.parametrize(
    ("option", "params", "names"),
    [
        ("generator_tools", {"output_contract": [{"name": "code"}]}, ["code"]),
        ("generator_tools", {"output_contract": {"text": "any"}}, ["open"]),
        ("generator_tools", {"output_contract": []}, []),
        ("spec_in_params_tools", {"out_artifacts_spec": ["rows", "sums"]}, ["rows", "sums"]),
        ("spec_in_params_tools", {}, []),
        ("write_tools", {"out_artifacts_spec": ["rows"], "output_contract": [1]}, []),
    ],
)
def test_some_tools_name_their_artifacts_in_the_parameters(
    option: str, params: dict[str, Any], names: list[str]
) -> None:
    options: dict[str, Any] = {option: ["open"]}
    run = contract(say("call_tool", tool_call={"tool_id": "open", "params": params}), tools=[OPEN], **options)
    calls = [one for effect in run.effects if effect.kind == "call_tools" for one in effect.calls]
    assert [spec.name for one in calls for spec in one.artifacts] == names
    assert codes(run) == ([] if names else ["missing_out_artifacts_spec"])


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(JSON, st.dictionaries(st.sampled_from(["required", "properties", "additionalProperties"]), JSON))
def test_any_schema_gives_a_verdict(params: Any, schema: Any) -> None:
    wanted = decision_of(
        say(tool_call={"tool_id": "t", "params": params, "out_artifacts_spec": "a"})
    ).tool_call
    if wanted is not None:  # None: the reply has a number that is not JSON
        assert call_check(wanted, {"t": schema}, Options()).artifacts == (ArtifactSpec(name="a"),)


# -- artifacts and mapping (5.10, 5.12) -----------------------------------------------------------


def test_failed_tool_gives_artifacts_with_its_error() -> None:
    run = contract(call("a", "b"), ran("no such file", "failed"))
    assert [kept.artifact.error for kept in run.context.artifacts.values()] == ["no such file"] * 2
    assert '- a (text, data) by tool in round 1: error: "no such file"' in run.newest


@pytest.mark.parametrize("error", ["rejected", "expired"])
def test_call_that_was_not_made_makes_nothing(error: Any) -> None:
    run = contract(call(), ran("ann said no", error))
    assert (run.context.artifacts, run.context.call) == ({}, None)
    assert "tool_not_run" in run.newest
    assert "ann said no" in run.newest


def test_artifact_that_the_tool_did_not_give_has_an_error() -> None:
    run = contract(call("a", "b"), made("x"))
    assert run.context.artifacts["b"].artifact.error == "the tool gave no such artifact; its result: ran"


def test_model_hears_what_a_person_reported_of_a_call() -> None:
    """Who looks up an outcome makes no artifact: without the report the model would make the call again."""
    run = contract(call(), ran("(Reported by ann:) it is sent"))
    assert "(Reported by ann:) it is sent" in run.newest


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("rows", ("rows", "")),
        ("rows[0].name", ("rows", "[0].name")),
        ("rows.a.b", ("rows.a", ".b")),
        ("rows.b", ("rows", ".b")),
        ("rowsx", None),
        ("", None),
    ],
)
def test_longest_known_id_is_the_artifact(path: str, place: tuple[str, str] | None) -> None:
    assert place_of(path, ["rows", "rows.a", "ro"]) == place


FILE = [{"name": "answer", "type": "file"}]
UNREADABLE = "not_resolvable_now"
FOUND = ("answer", "found")
NO_TEXTS = ArtifactsRead(texts=())


@pytest.mark.parametrize(
    ("makes", "entry", "slots", "reads", "drop"),
    [
        pytest.param(made("42"), ("nosuch", "found"), [SLOT], (), "missing_slot_or_path", id="unknown slot"),
        pytest.param(made("42"), ("answer", " "), [SLOT], (), "missing_slot_or_path", id="no path"),
        pytest.param(made("42"), ("answer", "later.a"), [SLOT], (), "future_artifact", id="promised now"),
        pytest.param(made("42"), ("answer", "founded"), [SLOT], (), "not_in_round_snapshot", id="unknown"),
        pytest.param(made({"a": 1}), ("answer", "found.b"), [SLOT], (read,), UNREADABLE, id="no such key"),
        pytest.param(made(None), FOUND, [SLOT], (), UNREADABLE, id="no value"),
        pytest.param(made("42", error="half"), FOUND, [SLOT], (), UNREADABLE, id="error"),
        pytest.param(made("42"), FOUND, [SLOT], (LOST,), UNREADABLE, id="lost"),
        pytest.param(made("42"), FOUND, [SLOT], (BINARY,), UNREADABLE, id="bytes"),
        pytest.param(made("42"), FOUND, [SLOT], (NO_TEXTS,), UNREADABLE, id="too few texts"),
        pytest.param(made("42"), FOUND, [SLOT], (failed("transient"),), UNREADABLE, id="store fails"),
        pytest.param(made("42"), FOUND, FILE, (), UNREADABLE, id="text for a file slot"),
        pytest.param(made({"a": 1}, type="file"), ("answer", "found.a"), FILE, (), UNREADABLE, id="part"),
    ],
)  # fmt: skip
def test_mapping_that_cannot_be_done_is_dropped(
    makes: Any, entry: tuple[str, str], slots: Any, reads: Any, drop: str
) -> None:
    """The run goes on: a failing mapping never fails it."""
    run = contract(call(), makes, call("later", **maps(entry)), *reads, slots=slots)
    (event,) = events(run, "best_effort_mapping")
    assert [one["reason"] for one in event["dropped"]] == [drop]
    assert run.context.slots == {}
    assert run.states.endswith("tool_execution")


@pytest.mark.parametrize(
    ("kind", "draft", "texts"), [("file", False, read), ("text", True, read), ("file", False, BINARY)]
)
def test_file_slot_takes_a_file_or_a_draft(kind: str, draft: bool, texts: Any) -> None:
    run = contract(
        call(), made("42", type=kind), done(**maps(("answer", "found"), draft=draft)), texts, slots=FILE
    )
    assert run.exit.ok


def test_artifact_beside_a_call_for_its_name_is_mapped() -> None:
    run = contract(*LOOK, call(**maps(("answer", "found"))), read, made("43"), done())
    assert (run.exit.answer, list(run.context.artifacts)) == ("42", ["found", "found@2"])


@pytest.mark.parametrize(
    ("makes", "wraps_up"),
    [
        (made("42"), True),
        (made(0), True),
        (made("42", kind="search"), False),
        (made("42", error="half"), False),
        (made(None), False),
        (ran("boom", "failed"), False),
    ],
)
def test_only_mappable_artifacts_start_a_wrap_up(makes: Any, wraps_up: bool) -> None:
    run = contract(call(), makes, done())
    assert run.context.is_wrapup_round == wraps_up
    assert ("This is the wrap-up round" in run.newest) == wraps_up


# -- the end (5.13) -------------------------------------------------------------------------------

LONG = "x" * 9000
LONG_SLOT = (call(), made(LONG), done(("answer", "found")), read)


@pytest.mark.parametrize("answer", [LOST, BINARY, NO_TEXTS, failed("transient")])
def test_slot_whose_text_is_lost_is_not_filled(answer: Any) -> None:
    run = contract(*LONG_SLOT, answer)
    assert (run.exit.ok, run.exit.reason, run.exit.outcome["missing"]) == (
        False,
        "incomplete_contract",
        ["answer"],
    )
    assert str(run.exit.answer).startswith(f"{'x' * 200}\n[the text is lost: ")
    assert [event["event"] for event in events(run)][-3:] == [
        "slot_lost",
        "contract_validation_failed",
        "exit",
    ]


def test_slot_is_cut_at_its_limit_and_says_so() -> None:
    run = contract(*LONG_SLOT, read, slot_chars=5000)
    assert (run.exit.ok, run.exit.answer) == (True, "x" * 5000 + "\n[4000 of 9000 characters left out]")
    assert events(run, "slot_cut")[0]["left_out"] == 4000


def test_closed_run_shows_the_preview_of_a_long_slot() -> None:
    run = contract(call(), made(LONG), rerun("found", **maps(("answer", "found"))), read)
    step = close(run.step, "cancelled", now=2000)
    assert step.exit is not None
    assert step.exit.answer == f"{'x' * 200}\n[8800 of 9000 characters left out]"


def test_incomplete_contract_names_the_open_slots() -> None:
    run = contract(*LOOK, done(("a", "found")), read, slots=[{"name": "a"}, {"name": "b"}])
    assert (run.exit.reason, run.exit.answer) == ("incomplete_contract", "a:\n42")
    (event,) = events(run, "contract_validation_failed")
    assert (event["declared"], event["filled"], event["missing"]) == (["a", "b"], ["a"], ["b"])
    assert "b" in str(run.exit.error)


def test_filled_slots_are_ok_whatever_the_reason() -> None:
    fills = (*LOOK, rerun("found", **maps(("answer", "found"))), read, read)
    assert [contract(*fills, end).exit.ok for end in (clarify(), say("decision"), failed("fatal"))] == [
        True
    ] * 3
    assert not contract(failed("fatal"), **NO_SLOTS).exit.ok


def test_failure_is_returned_not_raised() -> None:
    run = contract(*LOOK, failed("fatal"))
    assert (run.exit.reason, run.exit.raises, run.exit.error) == ("error", None, "HTTP503: server is down")
    assert run.context.error["code"] == "graph_error"
    assert not run.context.is_wrapup_round


def test_outcome_tells_the_whole_run() -> None:
    run = contract(replied("?"), *LOOK, done(("answer", "found")), read)
    outcome: Any = run.exit.outcome
    assert (outcome["iterations"], outcome["protocol_violations"], outcome["missing"]) == (3, 1, [])
    assert outcome["budget"]["spent"]["tools"] == 1
    assert list(outcome["artifacts"]) == ["found"]


def test_session_log_has_every_event_of_the_specification() -> None:
    run = contract(
        replied("?"), call(tool_id="nosuch"), call(), ran("boom", "failed"), call("x"), made("42"),
        rerun("x", show_skills=["s"]), read, done(), done(("answer", "nosuch")), slots=[WIDE],
    )  # fmt: skip
    assert {event["event"] for event in events(run)} == {
        "decision", "protocol_verify", "protocol_violation", "tool_call_invalid", "tool_started",
        "tool_finished", "tool_error", "best_effort_mapping", "show_artifacts", "show_skills",
        "wrapup_activated", "contract_validation_failed", "exit",
    }  # fmt: skip


# -- the journal ----------------------------------------------------------------------------------


def test_conversation_is_protocol_goal_and_a_journal_per_reply() -> None:
    run = contract(*LOOK, done(("answer", "found")), read, skills={"style": "Be brief."})
    roles = [message.role for message in run.conversation]
    assert roles == ["system", "user", "user", "assistant", "user", "assistant"]
    system = run.conversation.messages[0].content
    assert "- tool: does tool" in system
    assert "Skills:\n- style" in system
    assert "Be brief." not in system


def test_journal_has_contract_artifacts_and_events() -> None:
    slots = [{"name": "a", "description": "the sum"}, {"name": "b", "type": "file"}]
    run = contract(
        call("x", notes="I look"), made("4\n2"), rerun("x", **maps(("a", "x"))), read, read, slots=slots
    )
    before, after = (prompt[-1].content for prompt in run.prompts[1:])
    assert "- a (inline) pending: the sum\n- b (file) pending" in before
    assert r'- x (text, data) by tool in round 1, 3 bytes: "4\n2"' in before
    assert '"notes": "I look"' in before
    assert "- a (inline) filled from x\n" in after
    assert "I look" not in after


@settings(deadline=None)
@given(st.text(alphabet="<>a\n", max_size=20))
def test_shown_text_cannot_hold_the_marks_around_it(text: str) -> None:
    begin, _, rest = (
        contract(call(), made(text), rerun("found"), read)
        .newest.partition("SHOWN artifact found\n")[2]
        .partition("\n")
    )
    end = ">" * len(begin)
    assert rest == f"{text}\n{end}"
    assert begin not in text
    assert end not in text


def test_what_tools_return_cannot_look_like_the_journal() -> None:
    key = "a\n\nEVENTS\n- x"
    run = contract(
        call(), made({key: 1}), rerun(f"found.{key}", **maps(("answer", f"found.{key}"))), read, read
    )
    assert run.newest.count("\nEVENTS\n") == 1
    assert "filled from found.a EVENTS - x" in run.newest


def test_journal_counts_what_it_does_not_show() -> None:
    names = [f"a{n}" for n in range(70)]
    run = contract(
        call(*names[:35]), made(*names), call(*names[35:]), made(*names), rerun(*names[:23]), slots=[]
    )
    assert len(events(run, "show_artifacts")[0]["items"]) == 20
    assert "- (and 10 older ones)\n- a10 (" in run.prompts[2][-1].content
    run = contract(call(*names[:23]), made(*names), rerun(*names[:23]), read, slots=[])
    assert run.newest.count("SHOWN artifact") == 20
    assert "3 more artifacts were not shown" in run.newest


def test_log_grows_by_what_is_new() -> None:
    run = contract(*[call("a"), made("x" * 150)] * 12, done(), slots=[], caps={"decision_rounds": 99})
    sizes = [len(record.model_dump_json()) for record in run.records if record.event == "ToolFinished"]
    assert max(sizes) - min(sizes) < 60


# -- reading a decision (5.3) ---------------------------------------------------------------------


def test_full_decision_is_read_field_by_field() -> None:
    spec = [{"name": "A b", "type": " JSON", "kind": "Search "}, {"type": "json"}, "c"]
    given = {
        "action": "Call-Tool", "strategy": "EXPLOIT", "focus_slot": "table", "notes": "why",
        "next_decision_model": "regular",
        "tool_call": {"tool_id": 5, "reasoning": "so", "params": {"q": [1]}, "out_artifacts_spec": spec},
        "map_slots": {"slot_name": "s", "source_path": "a.b", "draft": True, "gaps": "the end"},
        "show_artifacts": "a", "show_skills": ["b", "b"], "completion_summary": "done",
        "clarification_questions": ["which?"],
    }  # fmt: skip
    assert decision_of(replied(json.dumps(given))) == ModelDecision.model_validate(
        given
        | {
            "action": "call_tool", "strategy": "exploit", "map_slots": [given["map_slots"]],
            "show_artifacts": ["a"], "show_skills": ["b"],
            "tool_call": {"tool_id": "5", "reasoning": "so", "params": {"q": [1]}, "out_artifacts_spec": [
                {"name": "A b", "type": "json", "kind": "search"}, {"name": "c"}]},
        }
    )  # fmt: skip


CUT = '{"action": "call_tool", "params": {"action": "complete", "strategy": "exit"}, "out_art'


@pytest.mark.parametrize(
    "text",
    ["", "no", "[1]", '{"a": NaN}', '{"a": 1e999}', '{"a": ' + "[" * 60 + "]" * 60 + "}", CUT, f"words {CUT}",
     '{not json} then {"action": "exit", "strategy": "exit"}', '{"action": "celebrate"}'],
)  # fmt: skip
def test_unreadable_reply_is_an_empty_decision_with_a_problem(text: str) -> None:
    """An object inside a broken one is never the decision; an unknown action ends nothing."""
    found = decision_of(replied(text))
    assert found.problem
    assert found == ModelDecision(problem=found.problem)


@pytest.mark.parametrize(
    "text", ['```json\n{"strategy": "exit"}\n```', 'I am done. {"strategy": "exit"} Good bye {']
)
def test_object_is_found_in_a_fence_and_among_words(text: str) -> None:
    assert decision_of(replied(text)) == ModelDecision(action="complete", strategy="exit")


def test_cut_reply_is_told_to_the_model() -> None:
    assert "max_output_tokens" in contract(cut(replied(CUT))).newest
    assert decision_of(cut(done())).problem == ""


def test_only_the_first_entries_of_lists_are_read() -> None:
    names = [f"n{n}" for n in range(400)]
    spec = {"tool_id": "tool", "out_artifacts_spec": names}
    pairs = maps(*(("s", name) for name in names))
    found = decision_of(say("call_tool", tool_call=spec, show_artifacts=names, **pairs))
    assert (len(found.map_slots), len(found.show_artifacts)) == (100, 50)
    assert found.tool_call is not None
    assert len(found.tool_call.out_artifacts_spec) == 50


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*ModelDecision.model_fields, "tool_id", "out_artifacts_spec"]),
        JSON
        | st.sampled_from(["exit", "explore", "call_tool", "\ud83d"])
        | st.fixed_dictionaries({"params": JSON}),
    ),
    st.sampled_from(["", "words ", "```json\n", '{"']),
)
def test_any_reply_gives_a_decision_that_can_be_stored(given: dict[str, Any], before: str) -> None:
    found = decision_of(replied(before + json.dumps(given)))
    assert ModelDecision.model_validate_json(found.model_dump_json()) == found


# -- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"caps": {"explore": -1}},
        {"slots": [{"name": "a"}, {"name": "a"}]},
        {"slots": [{"name": " answer"}]},
        {"slots": [{"name": "answer\n"}]},
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Options.model_validate(options)


def test_empty_artifact_text_is_a_value() -> None:
    empty = ArtifactsRead(texts=(ArtifactText(),))
    assert contract(*LOOK, done(("answer", "found")), empty).exit.ok
