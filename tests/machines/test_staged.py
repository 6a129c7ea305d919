"""The staged machine: scripts that read as its documentation, then what no script shows (spec 3)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from ruamel.yaml import YAML

from activities.contracts import CallTools, ModelSpec, NativeCall, RunMachine, ToolsReturned
from tests.machines.answers import calls, cut, failed, person, ran, replied
from tests.machines.play import Played, Reaction, play, program_of, rows_of, rows_taken, tool
from tests.machines.staged_scripts import (
    ANSWER,
    CALL,
    CHECK,
    DONE,
    HALF,
    MORE,
    NOTHING,
    REVIEWED,
    TOOLS,
    ended,
    error,
    hooked,
    judged,
    observed,
    run,
    stages,
    thinks,
)
from workflows.kernel.errors import DefinitionError, FatalError, TransientError
from workflows.kernel.machine import Extensions
from workflows.kernel.snapshot import Program, dump
from workflows.kernel.transition import advance, close, load, start
from workflows.machines.common.json_text import NotJson, object_in
from workflows.machines.staged import MACHINE, Options, Stage, build_machine, machine
from workflows.machines.staged.context import FIELDS, Observation, Thought
from workflows.machines.staged.reply import read_observation, read_thought

PASS = (TOOLS, CALL, ran(), MORE)
ONE_FAIL: dict[str, Any] = {"max_iterations": 1, "on_max_iterations": "fail"}

# -- the shipped stages (3.2, 3.8, 3.9) -----------------------------------------------------------


@dataclass(frozen=True)
class Script:
    """A list of answers is one run."""

    name: str
    answers: tuple[Reaction, ...]
    states: str
    """Behind Initialized."""
    reason: str = "answered"
    options: Mapping[str, Any] = field(default_factory=dict)


ONE: dict[str, Any] = {"max_iterations": 1}
NO_TOOL, WITH_TOOL = "Thinking Observing", "Thinking Acting Observing"
SCRIPTS = [
    Script("needs no tool", (NOTHING, ANSWER), f"{NO_TOOL} Finished"),
    Script("uses a tool", (TOOLS, CALL, ran(), ANSWER), f"{WITH_TOOL} Finished"),
    Script("needs two passes", (NOTHING, MORE, *PASS[:3], ANSWER), f"{NO_TOOL} {WITH_TOOL} Finished"),
    Script("an answer counts only without need of a loop, and none never counts",
           (NOTHING, observed(), NOTHING, observed("41", need_loop=True), NOTHING, ANSWER),
           f"{NO_TOOL} {NO_TOOL} {NO_TOOL} Finished"),
    Script("a general inquiry needs no tool, whatever is suggested",
           (thinks("tool", intent="general_inquiry"), ANSWER), f"{WITH_TOOL} Finished"),
    Script("a thought is asked for again while it cannot be read",
           (replied("what?"), thinks("tool", intent="fishing"), NOTHING, ANSWER), f"{NO_TOOL} Finished",
           options={"max_format_attempts": 3}),
    # a stage that cannot do its work (3.7)
    Script("cannot think", (failed("fatal"),), "Thinking Failed", "failed"),
    Script("an unreadable thought", (replied("I do not know"),), "Thinking Failed", "failed"),
    Script("cannot act", (TOOLS, failed("transient")), "Thinking Acting Failed", "failed"),
    Script("acts in words", (TOOLS, replied("no")), "Thinking Acting Failed", "failed"),
    Script("loses a tool", (TOOLS, CALL, ran(error="unknown_outcome")), "Thinking Acting Failed", "failed"),
    Script("cannot observe", (NOTHING, failed()), f"{NO_TOOL} Failed", "failed"),
    # the last pass (3.8): force_answer, fail, last_observation
    Script("the last pass uses no tools and does not loop", (TOOLS, observed("41", need_loop=True)),
           f"{NO_TOOL} Finished", options=ONE),
    Script("without an answer there is the fallback text", (TOOLS, MORE), f"{NO_TOOL} Finished", "no_answer",
           ONE),
    Script("with `fail` it may not go on", (NOTHING, MORE), f"{NO_TOOL} Failed", "max_iterations", ONE_FAIL),
    Script("with `fail` it is a normal one", (*PASS, *PASS[:3], ANSWER), f"{WITH_TOOL} {WITH_TOOL} Finished",
           options={"max_iterations": 2, "on_max_iterations": "fail"}),
    Script("with `last_observation` its summary is the answer",
           (*PASS, *PASS[:3], observed(summary="nearly", need_loop=True)),
           f"{WITH_TOOL} {WITH_TOOL} Finished",
           options={"max_iterations": 2, "on_max_iterations": "last_observation"}),
    Script("with `last_observation` there may be no summary either", (NOTHING, replied("{}")),
           f"{NO_TOOL} Finished", "no_answer", {**ONE, "on_max_iterations": "last_observation"}),
]  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script(script: Script) -> None:
    played = run(*script.answers, **script.options)
    assert played.states == f"Initialized {script.states}"
    ok = script.reason == "answered"
    assert (played.exit.reason, played.exit.ok, played.unused) == (script.reason, ok, 0)


def test_every_row_of_the_table_is_taken() -> None:
    assert rows_taken(run(*one.answers, **one.options) for one in SCRIPTS) == rows_of(MACHINE)


def test_state_has_the_fields_of_the_spec() -> None:
    own = ("lifecycle", "session_id", "user_input", "iteration", "thought", "action", "observation")
    assert (*own, "last_error", "extensions") == FIELDS


def test_prompts_show_each_stage_only_what_it_reads() -> None:
    asked = run(*PASS, given={"goal": "the secret", "instructions": "Speak like a pirate."}).asked
    assert [(one.role, one.beside, one.label) for one in asked[:3]] == [
        ("think", True, "think #1"),
        ("act", True, "act #1"),
        ("observe", True, "observe #1"),
    ]
    assert ["the secret" in one.say[1].content for one in asked] == [True, False, False, True]
    assert all("pirate" in one.say[0].content for one in asked)
    assert "Pass 2 of 10." in asked[3].say[1].content
    assert "observation.summary: so far" in asked[3].say[1].content
    assert 'tool {"q": "x"} returned:\nfound' in asked[2].say[1].content


def test_way_back_clears_thought_and_action() -> None:
    """R-002-5, R-002-6: the observation stays, and the iteration rises by one."""
    context = run(*PASS).context
    assert (context.thought, context.action, context.iteration) == (None, None, 1)
    assert context.observation == Observation(summary="so far")
    assert run().context.iteration == 0


def test_last_pass_offers_no_tools() -> None:
    played = run(*PASS, TOOLS, ANSWER, max_iterations=2)
    first, last = played.asked[0].say[0].content, played.asked[-2].say[0].content
    assert ("- tool: does tool" in first, "- tool: does tool" in last) == (True, False)
    assert played.context.thought.suggested_tools == ()


def test_a_persons_message_reaches_every_later_stage() -> None:
    """Whatever a stage reads."""
    played = run(TOOLS, person("in Bern"), CALL, ran(), MORE, NOTHING, ANSWER)
    heard = ["in Bern" in one.say[-1].content for one in played.asked]
    assert heard == [False, False, True, True, True]
    assert played.asked[2].say[-1].content.endswith("\n\nThe user says: in Bern")
    assert played.context.user_input == "find out"
    assert [m.content for m in played.step.snapshot.inbox] == []
    late = run(NOTHING, person("in Bern"), ANSWER)
    assert [m.content for m in late.step.snapshot.inbox] == ["in Bern"]  # nobody heard it


# -- acting ---------------------------------------------------------------------------------------

TOOLBOX = (tool("search"), tool("read"), tool("write"))


def outputs(played: Played) -> list[tuple[str, str | None]]:
    """Each output as tool and error."""
    return [(output.tool, output.error) for output in played.context.action.tool_outputs]


def notes(played: Played) -> list[tuple[str, str]]:
    """The machine's notes as code and stage."""
    return [(note.code, note.stage) for note in played.context.degraded]


def test_act_offers_suggested_tools_and_runs_calls_in_order() -> None:
    made = (NativeCall(id="same", name="read", arguments='{"n": 1}'), NativeCall(id="same", name="search"))
    answers = (thinks("read", "search", "nosuch"), calls(*made, "write"), ran(), ANSWER)
    played = run(*answers, given={"tools": TOOLBOX})
    acting, effect = played.asked[1], played.effects[2]
    assert (acting.offer, acting.tool_choice) == (("read", "search"), "required")
    assert isinstance(effect, CallTools)
    assert [(one.tool, one.arguments) for one in effect.calls] == [("read", {"n": 1}), ("search", {})]
    assert len({one.id for one in effect.calls}) == 2
    unknown = "unknown_tool"
    assert outputs(played) == [("nosuch", unknown), ("read", None), ("search", None), ("write", unknown)]
    assert notes(played) == [(unknown, "act")] * 2
    assert (played.exit.ok, played.exit.outcome["degraded"]) == (True, True)


@pytest.mark.parametrize("kind", ["failed", "timeout", "bad_arguments", "rejected"])
def test_a_failed_tool_degrades_the_run(kind: Any) -> None:
    played = run(TOOLS, CALL, ran("no such file", kind), ANSWER)
    assert (played.exit.ok, outputs(played), notes(played)) == (True, [("tool", kind)], [(kind, "act")])


def test_calls_that_cannot_be_run_fail_alone() -> None:
    many = calls(NativeCall(id="0", name="tool", arguments="{oops"), *["tool"] * 60)

    def stops(effect: CallTools) -> ToolsReturned:
        whole = ran(error="unknown_tool")(effect)
        return ToolsReturned(results=whole.results[:1])

    played = run(TOOLS, many, stops, ANSWER)
    assert len(played.effects[2].calls) == 49
    assert outputs(played)[:3] == [("tool", "bad_arguments"), ("tool", "unknown_tool"), ("tool", "not_run")]
    assert outputs(played)[-1] == ("tool", "too_many_calls")
    assert len(outputs(played)) == 51


def test_a_lost_tool_keeps_what_was_done() -> None:
    def lost(effect: CallTools) -> ToolsReturned:
        one = ran()(effect).results[0]
        return ToolsReturned(results=(one, one.model_copy(update={"error": "unknown_outcome"})))

    played = run(TOOLS, calls("tool", "tool"), lost)
    assert error(played) == ("StageError", "act")
    assert outputs(played) == [("tool", None), ("tool", "unknown_outcome")]
    assert played.context.last_error.details["tool"] == "tool"


@pytest.mark.parametrize(
    ("answers", "code"),
    [((cut(replied('{"intent": "diag')),), "StageError"), ((TOOLS, cut(replied("I will"))), "StageError")],
)
def test_the_error_of_a_cut_reply_names_the_cause(answers: Any, code: str) -> None:
    played = run(*answers)
    assert error(played)[0] == code
    assert "max_output_tokens" in played.context.last_error.message


def test_a_cut_observation_is_noted() -> None:
    played = run(NOTHING, cut(replied("It is 4")))
    assert (played.exit.answer, notes(played)) == ("It is 4", [("reply_cut", "observe")])


# -- the last pass, with stages of users' own (design 9.4) ----------------------------------------

REVIEW = {"flow_type": "hook", "enters": "Reviewing", "hook": "back", "exits": ["Finished", "Thinking"]}
BACK = {"back": lambda view: {"lifecycle": "Thinking"}}
LOOPING = [
    pytest.param(lambda view: ({"observation": HALF}, "Thinking"), id="loops"),
    pytest.param(lambda view: ({"observation": HALF}, "Finished"), id="ends without an answer"),
    pytest.param(lambda view: {"lifecycle": "Thinking"}, id="writes nothing"),
]


@pytest.mark.parametrize("hook", LOOPING)
def test_a_hook_that_observes_last_gives_the_fallback_text(hook: Any) -> None:
    played = hooked(hook, max_iterations=1, fallback_text="Ask Ann.")
    assert (played.exit.reason, played.exit.answer) == ("no_answer", "Ask Ann.")
    assert notes(played) == [("fallback_used", "observe")]


@pytest.mark.parametrize("lifecycle", ["Thinking", "Finished"])
def test_a_model_that_observes_last_gives_the_fallback_text(lifecycle: str) -> None:
    declared = stages(observe={"flow_type": "model", "writes": ["observation"]})
    reply = replied(json.dumps({"lifecycle": lifecycle, "observation": HALF}))
    played = run(NOTHING, reply, declared=declared, max_iterations=1)
    assert (played.exit.reason, played.exit.outcome["fallback_used"]) == ("no_answer", True)
    schema: Any = played.asked[-1].response_schema
    assert schema["properties"]["lifecycle"] == {"enum": ["Finished"]}  # the way back is not offered


@pytest.mark.parametrize("exits", [["Finished", "Thinking"], ["Thinking"]])
def test_no_stage_loops_in_the_last_pass(exits: list[str]) -> None:
    """Also one that can do nothing else; a review sees the observation as it was made."""
    declared = stages(observe={"exits": ["Reviewing", "Finished"]}, review={**REVIEW, "exits": exits})
    played = run(NOTHING, MORE, declared=declared, hooks=BACK, max_iterations=1)
    assert played.states == "Initialized Thinking Observing Reviewing Finished"
    assert (played.exit.reason, notes(played)) == ("no_answer", [("fallback_used", "review")])


def test_an_inner_machine_may_observe_last() -> None:
    inner = {"flow_type": "machine", "writes": ["observation"], "merge": "observation", "machine": "react"}
    played = run(
        NOTHING, ended(""), declared=stages(observe={**inner, "exits": ["Finished"]}), max_iterations=1
    )
    assert played.exit.reason == "no_answer"


def test_stage_that_wants_another_pass_fails_run_with_fail() -> None:
    declared = stages(observe={"exits": ["Reviewing", "Thinking"]}, review=REVIEW)
    played = run(NOTHING, ANSWER, declared=declared, hooks=BACK, **ONE_FAIL)
    assert error(played) == ("MaxIterationsExceeded", "review")
    assert played.context.observation.final_answer == "42"  # what was found is kept
    earlier = run(NOTHING, ANSWER, NOTHING, ANSWER, declared=declared, hooks=BACK, max_iterations=2)
    assert (earlier.context.iteration, earlier.exit.answer) == (1, "42")


# -- one stage run, its rights and its failures (3.4 to 3.7) --------------------------------------

FAILURES = [
    pytest.param(lambda view: None, {}, "EmptyPatch", id="nothing"),
    pytest.param(lambda view: {}, {}, "EmptyPatch", id="empty"),
    pytest.param(lambda view: 7, {}, "StageError", id="no patch"),
    pytest.param(lambda view: ({"observation": 7}, "Finished"), {}, "StageError", id="misfit"),
    pytest.param(
        lambda view: ({"observation": {"summary": "\ud800"}}, "Finished"), {}, "StageError", id="text"
    ),
    pytest.param(
        lambda view: ({"thought": None}, "Finished"), {}, "PermissionViolation", id="undeclared write"
    ),
    pytest.param(
        lambda view: ({"last_error": None}, "Finished"), {}, "PermissionViolation", id="machine's own"
    ),
    pytest.param(lambda view: {"nonsense": 1}, {}, "PermissionViolation", id="unknown field"),
    pytest.param(
        lambda view: {"observation": view.user_input}, {}, "PermissionViolation", id="undeclared read"
    ),
    pytest.param(
        lambda view: {"observation": view.degraded}, {}, "PermissionViolation", id="machine's notes"
    ),
    pytest.param(
        lambda view: ({"observation": DONE}, "Acting"), {}, "InvalidTransition", id="no exit of its"
    ),
    pytest.param(lambda view: {"observation": DONE}, {}, "InvalidTransition", id="several exits, none named"),
    pytest.param(
        lambda view: ({"observation": DONE, "lifecycle": "Finished"}, "Thinking"),
        {},
        "InvalidTransition",
        id="patch and target differ",
    ),
    pytest.param(
        lambda view: ({"observation": DONE, "lifecycle": "Finished"}, "Failed"),
        {},
        "InvalidTransition",
        id="patch and Failed differ",
    ),
    pytest.param(lambda view: ({"observation": HALF}, "Finished"), {}, "InvariantViolation", id="no answer"),
    pytest.param(lambda view: ({}, "Failed"), {}, "StageError", id="asks for Failed"),
    pytest.param(lambda view: 1 / 0, {}, "StageError", id="raises"),
    pytest.param(DONE.get, {"check": lambda view: "not now"}, "PreconditionFailed", id="check says why"),
    pytest.param(DONE.get, {"check": lambda view: False}, "PreconditionFailed", id="check says no"),
    pytest.param(DONE.get, {"check": lambda view: 7}, "StageError", id="check says nothing"),
    # R-002-7: what comes first in one stage run is named where two things are wrong.
    pytest.param(
        lambda view: ({"thought": None}, "Nowhere"), {}, "PermissionViolation", id="step 5 before 7"
    ),
    pytest.param(lambda view: ({"observation": 7}, "Nowhere"), {}, "StageError", id="step 6 before 7"),
    pytest.param(
        lambda view: ({"observation": HALF}, "Acting"), {}, "InvalidTransition", id="step 7 before 9"
    ),
]


@pytest.mark.parametrize(("hook", "keys", "code"), FAILURES)
def test_a_stage_that_breaks_its_declaration_fails(hook: Any, keys: Any, code: str) -> None:
    """R-002-3, R-002-7: the whole patch is dropped, the error names the stage, later stages do not run."""
    played = hooked(hook, reads=["thought", "iteration"], **keys)
    assert error(played) == (code, "observe")
    assert played.context.observation is None
    assert (played.context.iteration, played.context.thought.intent) == (0, "general_inquiry")
    assert played.context.last_error.details["lifecycle"] == "Observing"


@pytest.mark.parametrize("patch", [{"observation": DONE, "lifecycle": "Finished"}, {"observation": DONE}])
def test_patch_or_target_says_where_the_run_goes(patch: Any) -> None:
    target = None if "lifecycle" in patch else "Finished"
    assert hooked(lambda view: (patch, target), check=lambda view: True).exit.answer == "42"


@pytest.mark.parametrize("raised", [TransientError("x"), FatalError("x"), ValueError("x"), KeyError("x")])
def test_what_a_hook_raises_ends_its_stage(raised: Exception) -> None:
    def hook(view: Any) -> Any:
        raise raised

    played = hooked(hook)
    assert error(played) == ("StageError", "observe")
    assert type(raised).__name__ in played.context.last_error.message


@pytest.mark.parametrize(
    ("patch", "stage"),
    [({}, "think"), ({"thought": {"intent": "fishing"}}, "think"), ({}, "act")],
    ids=["acting without a thought", "an undefined intent", "observing without an action"],
)
def test_invariants_hold_before_a_state_is_entered(patch: Any, stage: str) -> None:
    """Spec 3.5, 2 and 3."""
    target = {"think": "Acting", "act": "Observing"}[stage]
    played = hooked(lambda view: (patch, target), stage=stage)
    assert error(played) == ("InvariantViolation", stage)


def test_a_stale_action_does_not_replace_a_missing_one() -> None:
    """R-002-6."""
    played = hooked(
        lambda view: ({} if view.iteration else {"action": {}}, "Observing"),
        *(TOOLS, MORE, TOOLS),
        stage="act",
        reads=["iteration"],
    )
    assert error(played) == ("InvariantViolation", "act")


def test_a_run_without_user_input_fails_before_any_stage() -> None:
    played = run(given={"goal": "  "})
    assert error(played) == ("InvariantViolation", "orchestrator")
    assert played.effects == ()


def test_a_failed_model_call_keeps_its_cause() -> None:
    """R-002-4, R-002-8."""
    played = run(NOTHING, MORE, failed("fatal"))
    details = played.context.last_error.details
    assert (details["error"], details["type"], details["iteration"]) == ("fatal", "HTTP503", 1)
    assert played.exit.error == "StageError in think: HTTP503: server is down"


RAISING = [((failed(),), {}, "StageError"), ((NOTHING, MORE), ONE_FAIL, "MaxIterationsExceeded")]


@pytest.mark.parametrize(("answers", "options", "code"), RAISING)
def test_a_failed_run_returns_its_error_or_raises_it(answers: Any, options: Any, code: str) -> None:
    """R-002-8."""
    assert run(*answers, **options).exit.raises is None
    assert run(*answers, **options, raise_on_failure=True).exit.raises == code
    assert run(NOTHING, ANSWER, raise_on_failure=True).exit.raises is None


def test_a_run_that_is_closed_names_its_stage() -> None:
    played = run(TOOLS, CALL, raise_on_failure=True)
    closed = close(played.step, "cancelled", now=2000, by="ann")
    context: Any = closed.snapshot.context
    assert (context.last_error.code, context.last_error.stage) == ("cancelled", "act")
    assert closed.exit is not None
    assert (closed.exit.reason, closed.exit.raises, context.lifecycle) == ("cancelled", None, "Acting")


def test_r_002_9_each_stage_run_is_one_event() -> None:
    """In order, with one for the orchestrator's Initialized; a refused patch is empty, and its event names
    the field. `play` shows that the final state comes back from them."""
    played = run(TOOLS, CALL, ran(), MORE, NOTHING, declared=stages(observe={"writes": ["observation"]}))
    moves = [record for record in played.records[1:] if record.to]
    assert [(one.state, one.to) for one in moves] == [
        ("Initialized", "Thinking"), ("Thinking", "Acting"), ("Acting", "Observing"),
        ("Observing", "Thinking"), ("Thinking", "Observing"),
    ]  # fmt: skip
    assert [one.started <= one.at for one in moves] == [True] * 5
    assert [set(one.patch) - {"lifecycle", "iteration"} for one in moves[1:4]] == [
        {"thought"}, {"action"}, {"observation", "thought", "action"},
    ]  # fmt: skip
    assert set(moves[2].reads) == {"thought", "extensions"}
    refused = run(NOTHING, declared=stages(think={"writes": []})).records[-1]
    assert (refused.state, refused.to, set(refused.patch)) == (
        "Thinking",
        "Failed",
        {"lifecycle", "last_error"},
    )
    assert "thought" in str(refused.error)


@pytest.mark.parametrize("stage", ["think", "act", "observe"])
def test_a_shipped_stage_may_only_do_what_it_declared(stage: str) -> None:
    answers = {"think": (NOTHING,), "act": (TOOLS, CALL, ran()), "observe": (NOTHING, ANSWER)}[stage]
    played = run(*answers, declared=stages(**{stage: {"writes": []}}))
    assert error(played) == ("PermissionViolation", stage)
    assert error(run(TOOLS, declared=stages(act={"reads": []}))) == ("PermissionViolation", "act")


def test_unenforced_writes_are_kept_and_recorded() -> None:
    """Spec 3.7; enforcement of the others stays on."""
    played = hooked(lambda view: ({"observation": DONE, "thought": None}, "Finished"), enforce=False)
    assert (played.exit.answer, played.context.thought) == ("42", None)
    last = played.records[-1]
    assert "thought" in last.reason
    assert last.about == {"enforce": False}


# -- a model stage --------------------------------------------------------------------------------


def test_a_model_stage_chooses_its_exit_and_keeps_its_texts() -> None:
    """R-002-1."""
    played = run(
        NOTHING, ANSWER, judged("Thinking", ["no"]), NOTHING, ANSWER, judged("Finished"), declared=REVIEWED
    )
    assert played.states.split().count("Checking") == 2
    assert played.exit.answer == "42"
    assert played.context.extensions == {"check": {"verdict": "yes"}}
    call, think = played.asked[2], played.asked[3]
    schema: Any = call.response_schema
    assert (call.role, schema["properties"]["lifecycle"]["enum"]) == ("custom", ["Finished", "Thinking"])
    assert (
        '{"lifecycle": "Finished | Thinking", "extensions": {"verdict": "is it so?"}}' in call.say[0].content
    )
    assert "observation.final_answer: 42" in call.say[1].content
    assert 'check: {"verdict": "[\\"no\\"]"}' in think.say[1].content


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (judged("Acting"), "InvalidTransition"),
        (judged("\ud800"), "InvalidTransition"),
        (replied('{"extensions": {"verdict": "yes"}}'), "InvalidTransition"),
        (judged("Finished", observation=DONE), "PermissionViolation"),
        (judged("Finished", extensions={"remark": "nice"}), "PermissionViolation"),
        (judged("Finished", remark="nice"), "PermissionViolation"),
        (judged(7), "StageError"),
        (judged("Finished", extensions=7), "StageError"),
        (replied("fine"), "StageError"),
        (replied("{}"), "EmptyPatch"),
        (failed("fatal"), "StageError"),
    ],
)
def test_a_model_stage_keeps_to_its_declaration(reply: Any, code: str) -> None:
    played = run(NOTHING, ANSWER, reply, declared=REVIEWED)
    assert (error(played), played.context.extensions) == ((code, "check"), {})


MACHINES_OWN = ["last_error", "degraded", "session_id", "user_input", "iteration"]
PWNED = {"code": "Pwned", "stage": "think", "message": "x"}


@pytest.mark.parametrize("field", MACHINES_OWN)
@pytest.mark.parametrize("enforce", [True, False])
def test_a_models_json_cannot_write_what_is_the_machines(field: str, enforce: bool) -> None:
    """Also without enforcement."""
    declared = stages(observe={"exits": ["Checking", "Thinking"]}, check={**CHECK, "enforce": enforce})
    played = run(NOTHING, ANSWER, judged("Finished", **{field: PWNED}), declared=declared)
    assert error(played) == ("PermissionViolation", "check")
    assert played.context.session_id == "trace-1"


def test_unenforced_extensions_are_kept_and_recorded() -> None:
    declared = stages(observe={"exits": ["Checking", "Thinking"]}, check={**CHECK, "enforce": False})
    reply = judged("Finished", extensions={"verdict": "yes", "remark": "nice"})
    played = run(NOTHING, ANSWER, reply, declared=declared)
    assert played.context.extensions == {"check": {"verdict": "yes", "remark": "nice"}}


# -- hooks ----------------------------------------------------------------------------------------


def test_each_stage_owns_one_key_of_the_extensions() -> None:
    """R-002-1: merged pass by pass, under the stage's own name, whatever it says."""

    def hook(view: Any) -> Any:
        kept = {"extensions": {"think": "mine", "deep": {f"pass{view.iteration}": True}}}
        return (kept, "Thinking") if view.iteration < 1 else ({**kept, "observation": DONE}, "Finished")

    played = hooked(hook, NOTHING, NOTHING, reads=["iteration"], writes=["observation", "extensions"])
    assert played.context.extensions == {"observe": {"think": "mine", "deep": {"pass0": True, "pass1": True}}}
    # Its own extensions are merged for it; it sees them only if it declares so.
    blind = hooked(lambda view: {"extensions": {"x": str(view.extensions)}}, writes=["extensions"])
    assert error(blind) == ("PermissionViolation", "observe")


def test_a_machine_may_have_only_stages_of_ones_own() -> None:
    declared = [
        {"name": "draft", "enters": "Drafting", "exits": ["Checking"], "writes": ["observation"]},
        {"name": "check", "enters": "Checking", "exits": ["Finished", "Drafting"], "reads": ["iteration"]},
    ]
    declared = [{**stage, "flow_type": "hook", "hook": str(stage["name"])} for stage in declared]
    hooks = {
        "draft": lambda view: {"observation": DONE},
        "check": lambda view: {"lifecycle": "Finished" if view.iteration == 2 else "Drafting"},
    }
    played = run(declared=declared, hooks=hooks)
    assert (played.exit.answer, played.context.iteration, played.step.snapshot.step) == ("42", 2, 3)


# -- the error handler ----------------------------------------------------------------------------

RESCUE = {"flow_type": "error_handler", "enters": "Failed", "hook": "rescue"}


def handled(hook: Any, *answers: Any, **changed: Any) -> Played:
    """A run with this error handler."""
    return run(*answers, declared=stages(rescue=RESCUE, **changed), hooks={"rescue": hook})


def test_the_error_handler_completes_the_error() -> None:
    def rescue(view: Any) -> Any:
        return {"details": {"ticket": f"{view.user_input}: {view.last_error.code}"}}

    played = handled(rescue, failed())
    assert error(played) == ("StageError", "think")
    assert played.context.last_error.details == {"ticket": "find out: StageError"}
    broken = handled(rescue, NOTHING, think={"writes": []})
    assert error(broken) == ("PermissionViolation", "think")
    assert broken.context.last_error.details == {"ticket": "find out: PermissionViolation"}
    assert handled(rescue, NOTHING, ANSWER).exit.answer == "42"
    assert error(handled(lambda view: None, failed())) == ("StageError", "think")
    assert error(handled(lambda view: {"lifecycle": "Failed"}, failed())) == ("StageError", "think")


@pytest.mark.parametrize("given_", [{"observation": DONE}, {"mesage": "sorry"}, {"lifecycle": "Thinking"}])
def test_an_undeclared_write_of_the_error_handler_is_a_violation(given_: Any) -> None:
    """Design 9.11: the error that it was to complete is kept as the cause."""
    played = handled(lambda view: {"message": "sorry", **given_}, failed())
    last = played.context.last_error
    assert error(played) == ("PermissionViolation", "rescue")
    assert next(iter(given_)) in last.message
    assert last.details["cause"]["message"] == "HTTP503: server is down"


def test_an_undeclared_read_of_the_error_handler_is_a_violation() -> None:
    declared = stages(rescue={**RESCUE, "reads": ["iteration"]})
    played = run(failed(), declared=declared, hooks={"rescue": lambda view: {"message": view.user_input}})
    assert error(played) == ("PermissionViolation", "rescue")


class Mute(RuntimeError):
    def __str__(self) -> str:
        raise ValueError("no words")


def _raises_mute(view: Any) -> Any:
    raise Mute


FAULTS = [
    _raises_mute,
    lambda view: 7,
    lambda view: {"code": None},
    lambda view: {"message": "\ud800"},
    lambda view: {"details": {"a": float("nan")}},
    lambda view: {"details": {"a": {1, 2}}},
]


@pytest.mark.parametrize("hook", FAULTS)
def test_a_fault_of_the_error_handler_is_only_noted(hook: Any) -> None:
    played = handled(hook, failed())
    assert error(played) == ("StageError", "think")
    assert played.context.last_error.message == "HTTP503: server is down"
    assert played.context.last_error.details["error_handler"]


# -- a machine as a stage -------------------------------------------------------------------------


def inner(merge: str | None, **more: Any) -> dict[str, Any]:
    """The keys of a machine stage."""
    writes = [merge or "extensions"]
    named = {"machine": "react", "options": {"max_steps": 3}, **({"merge": merge} if merge else {})}
    return {
        "flow_type": "machine",
        "reads": ["thought"],
        "writes": writes,
        "prompt": "Look.",
        **named,
        **more,
    }


def test_an_inner_machine_gets_what_its_stage_sees() -> None:
    played = run(thinks("tool"), ended(), ANSWER, declared=stages(act=inner("action", tools=["tool"])))
    effect = played.effects[1]
    assert isinstance(effect, RunMachine)
    assert (effect.machine, effect.options, effect.give) == ("react", {"max_steps": 3}, ("tool",))
    assert effect.goal.startswith("Look.\n\nthought.intent: diagnosis")
    assert "react {} returned:\nfound it" in played.newest


MERGED = [
    ("action", {"act": inner("action")}, (TOOLS, ended(), ANSWER), {"act": None}),
    ("observation", {"observe": inner("observation", exits=["Finished"])}, (NOTHING, ended("42")), {}),
    (
        "extensions",
        {
            "think": {"exits": ["Looking"]},
            "act": None,
            "look": inner(None, enters="Looking", exits=["Observing"]),
        },
        (NOTHING, ended(), ANSWER),
        {"look": {"answer": "found it"}},
    ),
]


@pytest.mark.parametrize(("field", "changed", "answers", "kept"), MERGED)
def test_the_answer_of_an_inner_machine_goes_into_one_field(
    field: str, changed: Any, answers: Any, kept: Any
) -> None:
    played = run(*answers, declared=stages(**changed))
    assert played.exit.answer == "42"
    assert field != "extensions" or played.context.extensions == kept


@pytest.mark.parametrize("merge", ["extensions", "observation"])
@pytest.mark.parametrize("answer", [ended(None, ok=False), failed("fatal", "no such machine")])
def test_an_inner_machine_without_success_fails_its_stage(merge: str, answer: Any) -> None:
    played = run(NOTHING, answer, declared=stages(observe=inner(merge, exits=["Finished"])))
    assert error(played) == ("StageError", "observe")


def test_inner_machine_in_place_of_tool_may_fail_like_it() -> None:
    played = run(TOOLS, ended(None, ok=False), ANSWER, declared=stages(act=inner("action")))
    assert (played.exit.ok, outputs(played), notes(played)) == (
        True,
        [("react", "failed")],
        [("failed", "act")],
    )


def wants_tools(view: Any) -> Any:
    return {"thought": {"intent": "diagnosis", "suggested_tools": ["tool"]}}, "Acting"


THINKERS: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "think": ({}, (TOOLS,)),
    "hook": ({"flow_type": "hook", "hook": "think", "writes": ["thought"]}, ()),
    "model": (
        {"flow_type": "model", "writes": ["thought"]},
        (
            replied(
                '{"lifecycle": "Acting", "thought": {"intent": "diagnosis", "suggested_tools": ["tool"]}}'
            ),
        ),
    ),
}
ACTORS: dict[str, dict[str, Any]] = {
    "act": {},
    "machine": inner("action", tools=["tool"]),
    "hook": {"flow_type": "hook", "hook": "act", "writes": ["action"]},
}


@pytest.mark.parametrize("exits", [["Acting", "Observing"], ["Acting"]], ids=["free", "bound"])
@pytest.mark.parametrize("actor", ACTORS)
@pytest.mark.parametrize("thinker", THINKERS)
def test_no_kind_of_stage_uses_tools_in_the_last_pass(thinker: str, actor: str, exits: list[str]) -> None:
    """Acting is no exit where there is another one."""
    think, answers = THINKERS[thinker]
    declared = stages(think={**think, "exits": exits}, act=ACTORS[actor])
    hooks = {"think": wants_tools, "act": lambda view: {"action": {}}}
    played = run(*answers, MORE, declared=declared, hooks=hooks, fallback_text="Ask Ann.", **ONE)
    assert not any(isinstance(effect, CallTools | RunMachine) or effect.tools for effect in played.effects)
    assert ("Acting" in played.states) is (len(exits) == 1)
    assert (played.exit.reason, played.exit.answer, played.unused) == ("no_answer", "Ask Ann.", 0)


def test_an_inner_machine_has_no_tools_in_the_last_pass() -> None:
    observe = inner("observation", exits=["Finished"], tools=["tool"])
    played = run(NOTHING, ended("42"), declared=stages(observe=observe), **ONE)
    assert (played.exit.answer, played.effects[1].give) == ("42", ())


# -- declarations (3.11) --------------------------------------------------------------------------

HANDLER = {"name": "rescue", **RESCUE}
BAD = [
    ([], "at least one stage"),
    (stages(act={"flow_type": "dance"}), "flow_type"),
    (stages(act={"flow": "act"}), "flow\n"),
    (stages(act={"reads": ["thougth"]}), "stage act: reads: .*did you mean thought"),
    (stages(check={**CHECK, "writes": ["verdict"], "extension": {}}), "stage check: writes: unknown field"),
    (stages(check={**CHECK, "enters": "Acting"}), "stage check: enters: act runs"),
    (stages(think={"exits": ["Acting", "Observign"]}), "stage think: exits: .*did you mean Observing"),
    (stages(act={"exits": []}), "stage act: exits: none"),
    (stages(act={"exits": ["Failed"]}), "stage act: exits: none"),
    (stages(act={"exits": ["Initialized"]}), "stage act: exits: .*Initialized"),
    (stages(observe={"exits": ["Thinking"]}), "no stage leads to Finished"),
    (stages(check={**CHECK, "enters": "Finished"}), "stage check: enters"),
    (stages(check={**CHECK, "enters": "Failing"}), "stage check: enters"),
    (stages(check={**CHECK, "enters": "Failed"}), "stage check: enters"),
    (stages(rescue={**RESCUE, "enters": "Rescuing"}), "stage rescue: enters"),
    (stages(rescue={**RESCUE, "exits": ["Thinking"]}), "stage rescue: exits"),
    (stages(rescue={**RESCUE, "writes": []}), "stage rescue: writes: 'last_error' is missing"),
    (stages(rescue={**RESCUE, "writes": ["observation"]}), "stage rescue: writes: .*'observation'"),
    ([HANDLER], "at least one stage"),
    ([HANDLER, *stages()], "at least one stage"),
    (stages(check={**CHECK, "enters": "checking it"}), "should match pattern"),
    ([{**stage, "name": "one"} for stage in stages()], "stage one: name: it is taken"),
    ([*({**stage, "enforce": False} for stage in stages()), HANDLER], "not for all"),
    (stages(act={"role": "boss"}), "role"),
    (stages(act={"flow_type": "hook"}), "stage act: hook: is missing"),
    (stages(act={"flow_type": "machine"}), "stage act: machine: is missing"),
    (stages(act={"hook": "h"}), "stage act: hook: "),
    (stages(act={"options": {"max_steps": 3}}), "stage act: options: "),
    (stages(observe={"tools": []}), "stage observe: tools: "),
    (stages(check={**CHECK, "extension": {}}), "stage check: extension: is missing"),
    (stages(check={**CHECK, "writes": ["observation"]}), "stage check: extension: "),
    (stages(check={**CHECK, "writes": ["action", "extensions"]}), "stage check: writes: .*'action'"),
    (stages(check={**CHECK, "writes": [], "extension": {}, "exits": ["Finished"]}), "could say nothing"),
    (stages(act=inner("action", writes=["thought"])), "stage act: merge: 'action'"),
    (stages(act=inner("action", exits=["Observing", "Thinking"])), "stage act: exits: a machine stage"),
    ([{**stages()[1], "exits": ["Finished"]}], "stage act: flow_type: act needs a thought"),
]


@pytest.mark.parametrize(("declared", "words"), BAD)
def test_a_bad_declaration_names_stage_and_key(declared: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Options.model_validate({"stages": declared})


UNSOUND = [
    (stages(think={"exits": ["Observing"]}), "unreachable .*Acting; .*Acting is entered by act"),
    (
        stages(act={"exits": ["Observing", "Checking"]}, check={**CHECK, "exits": ["Acting", "Finished"]}),
        "cycle .*Acting is entered by act.*loop only through Thinking",
    ),
]


@pytest.mark.parametrize(("declared", "words"), UNSOUND)
def test_an_unsound_lifecycle_is_refused(declared: Any, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        build_machine(Options.model_validate({"stages": declared}))


READS = {
    "think": {"session_id", "user_input", "iteration", "observation", "extensions"},
    "act": {"session_id", "iteration", "thought", "extensions"},
    "observe": {"session_id", "iteration", "thought", "action", "extensions"},
}
WRITES = {stage: {own, "extensions", "lifecycle"} for stage, own in
          (("think", "thought"), ("act", "action"), ("observe", "observation"))}  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(("key", "matrix"), [("reads", READS), ("writes", WRITES)])
def test_the_matrix_is_a_ceiling_for_the_shipped_stages(key: str, matrix: Any, field: str) -> None:
    """R-002-2, R-002-3: and no stage at all may write what the machine owns."""
    for stage, allowed in matrix.items():
        declared = {"stages": stages(**{stage: {key: [field]}})}
        if field in allowed:
            Options.model_validate(declared)
            continue
        with pytest.raises(ValidationError, match=f"stage {stage}: {key}: .*'{field}'"):
            Options.model_validate(declared)
    if key == "writes" and field in MACHINES_OWN:
        hook = {"flow_type": "hook", "hook": "h", "writes": [field]}
        with pytest.raises(ValidationError, match=f"stage act: writes: .*'{field}'"):
            Options.model_validate({"stages": stages(act=hook)})


@pytest.mark.parametrize("key", ["hook", "check"])
def test_a_hook_must_be_loaded(key: str) -> None:
    keys = {"flow_type": "hook", "hook": "here", "writes": ["action"], key: "nowhere"}
    options = {"stages": stages(act=keys)}
    with pytest.raises(ValueError, match=f"stage act: {key}: unknown hook 'nowhere'; did you mean here?"):
        program_of(
            build_machine(Options.model_validate(options)),
            options,
            extensions=Extensions(hooks={"here": len}),
        )


def test_a_tool_that_a_stage_names_must_be_the_agents() -> None:
    with pytest.raises(ValueError, match="stage act: tools: the agent has no tool 'serach'; it has tool"):
        run(declared=stages(act={"tools": ["serach"]}))
    assert build_machine(Options.model_validate({"stages": stages(act={"tools": ["search"]})})).by_name[
        "Acting"
    ].tools == frozenset({"search"})


def test_options_are_within_their_bounds() -> None:
    for options in ({"max_iterations": 0}, {"intents": ["diagnosis"]}, {"fallback_text": "  "}):
        with pytest.raises(ValidationError):
            Options.model_validate(options)
    assert ModelSpec(temperature=0).temperature == 0  # design 9.11


def test_page_begins_with_the_table_of_the_shipped_stages() -> None:
    lines = [
        f"    {name}: {', '.join(f'{event.__name__} -> {to}' for event, to in row.items())}\n"
        for name, row in MACHINE.rows.items()
    ]
    assert "".join(lines) in str(machine.__doc__)


def test_a_machine_of_other_options_is_refused() -> None:
    with pytest.raises(ValueError, match="build_machine"):
        start(program_of(MACHINE, {"max_iterations": 3}), now=1)


def test_the_registry_builds_the_machine_of_the_options() -> None:
    from workflows.registry import machine_for  # it imports every machine

    shipped, _ = machine_for("staged", None, {})
    declared, _ = machine_for("staged", None, {"stages": stages()})
    reviewed, _ = machine_for("staged", None, {"stages": REVIEWED})
    assert list(shipped.rows) == list(declared.rows) == list(MACHINE.rows)
    assert "Checking" in reviewed.rows


def test_examples_of_docs_are_valid_and_name_every_key() -> None:
    text = (Path(__file__).parents[2] / "docs" / "stages.md").read_text()
    assert [key for key in Stage.model_fields if f"`{key}`" not in text] == []
    blocks = [YAML(typ="safe").load(block.split("```")[0]) for block in text.split("```yaml\n")[1:]]
    assert blocks
    for block in blocks:
        build_machine(Options.model_validate(block["options"]))


# -- any reply ------------------------------------------------------------------------------------

REPLIES = st.sampled_from(
    [
        *(NOTHING, TOOLS, MORE, ANSWER, CALL, observed(), replied("?"), replied("{}"), replied(""), failed()),
        *(thinks("tool", "nosuch"), calls("tool", "nosuch"), judged("Thinking"), judged("Finished", 7)),
    ]
)


@settings(deadline=None)
@given(data=st.data(), declared=st.sampled_from([None, REVIEWED]), mode=st.integers(0, 2))
def test_random_replies_end_along_the_table(data: Any, declared: Any, mode: int) -> None:
    """And spec 3.5, 5 and 6 hold."""
    names = ("force_answer", "fail", "last_observation")
    options = {"max_iterations": 3, "on_max_iterations": names[mode], "stages": declared}
    machine = build_machine(Options.model_validate(options))
    errors = st.sampled_from([None, None, "failed", "unknown_outcome"])

    def answer(effect: Any) -> Any:
        return ran(error=data.draw(errors))(effect) if isinstance(effect, CallTools) else data.draw(REPLIES)

    played = play(program_of(machine, options), [answer] * 40)
    context = played.context
    backs = sum(r.state in ("Observing", "Checking") and r.to == "Thinking" for r in played.records)
    assert (context.last_error is not None) == (context.lifecycle == "Failed")
    assert (context.iteration, played.step.snapshot.state) == (backs, context.lifecycle)
    rows = {(s, e.__name__, t) for s, row in machine.rows.items() for e, t in row.items()}
    moves = {(r.state, r.event, r.to) for r in played.records[1:] if r.to and not r.error}
    assert moves <= rows


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
keys = st.sampled_from(["summary", "final_answer", "need_loop", "intent", "suggested_tools", "other"])
objects = st.dictionaries(keys, json_values, max_size=6)
texts = st.one_of(
    st.text(),
    st.text(alphabet='{}[]":,\\ux019e.-ntrfalsu \n', max_size=60),
    objects.map(json.dumps),
    objects.map(lambda value: f"Sure:\n```json\n{json.dumps(value)}\n```"),
    st.just('{"a":' * 200 + "1" + "}" * 200),
    st.just('{"final_answer": "\\ud800"}'),
)


@given(texts)
def test_no_text_breaks_a_parser(text: str) -> None:
    read_observation(text).model_dump_json()
    thought = read_thought(text, ["diagnosis"])
    assert isinstance(thought, NotJson) or thought.model_dump_json()


@given(objects)
def test_an_object_is_found_whatever_is_around_it(value: Any) -> None:
    text = json.dumps(value)
    assert object_in(f"Here it is: {text} - done") == object_in(text)


@pytest.mark.parametrize(
    ("text", "answer", "need"),
    [
        ('{"summary": "s", "final_answer": "a", "need_loop": true}', "a", True),
        ('I say:\n```json\n{"summary": "{s}", "final_answer": "a"}\n```\nThanks', "a", False),
        ('{"final_answer": {"n": 1}, "need_loop": "No"}', '{"n": 1}', False),
        ('{"final_answer": "a", "need_loop": "yes"}', "a", True),
        ("It is {42}.", "It is {42}.", False),
        ("[1, 2]", "[1, 2]", False),
        ('{"answer": 42}', '{"answer": 42}', False),
        ("x" * 2001, "x" * 2000, False),
        ("", "", True),
        ("{}", "", True),
    ],
)
def test_an_observation_is_read_from_what_models_write(text: str, answer: str, need: bool) -> None:
    seen = read_observation(text)
    assert (seen.final_answer, seen.need_loop) == (answer, need)


@pytest.mark.parametrize(
    ("intent", "tools", "read"),
    [
        (" Diagnosis ", None, ()),
        ("DIAGNOSIS", "search", ("search",)),
        ("diagnosis", ["a", " b ", "a", ""], ("a", "b")),
        ("diagnosis", [f"t{n}" for n in range(60)], tuple(f"t{n}" for n in range(50))),
        ("fishing", [], None),
        (["diagnosis"], [], None),
        ("diagnosis", [1], None),
        ("diagnosis", {"a": 1}, None),
    ],
)
def test_a_thought_is_read_from_what_models_write(intent: Any, tools: Any, read: Any) -> None:
    thought = read_thought(json.dumps({"intent": intent, "suggested_tools": tools}), ["diagnosis"])
    assert (thought.suggested_tools if isinstance(thought, Thought) else None) == read


def test_the_log_grows_by_the_same_amount_each_pass() -> None:
    played = run(*PASS * 9)
    sizes = {1: 0}
    for record in played.records[2:]:
        sizes[record.step] = sizes.get(record.step, 0) + len(record.model_dump_json(exclude={"counters"}))
    assert max(sizes[n] for n in range(3, 9)) - min(sizes[n] for n in range(3, 9)) < 100


def test_a_second_build_goes_on_with_a_snapshot() -> None:
    """The machine is data: in another process its states and events are other classes."""
    options: dict[str, Any] = {"stages": REVIEWED}

    def program() -> Program:
        return program_of(build_machine(Options.model_validate(options)), options)

    step = start(program(), now=1)
    for answer in (NOTHING, ANSWER, judged("Finished")):
        step = load(program(), json.loads(json.dumps(dump(step))))
        step = advance(step, answer, now=2)
    assert step.exit is not None
    assert step.exit.answer == "42"
