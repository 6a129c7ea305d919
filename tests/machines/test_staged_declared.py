"""Stages are data (spec 3.11): what is checked when they are read, and what can be built of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from activities.contracts import MachineEnded, RunMachine
from tests.machines.answers import failed, said, tool_said
from tests.machines.scripts_staged import ANSWER, MORE, NOTHING, TOOLS, asks, run, stages, thinks
from workflows.kernel.design import Parts
from workflows.kernel.diagram import mermaid
from workflows.kernel.errors import DefinitionError
from workflows.kernel.verify import definition_hash
from workflows.machines.staged import DESIGN
from workflows.machines.staged_context import Action, Observation, ToolOutput
from workflows.machines.staged_options import InnerMachine, Options, Stage

CHECK: dict[str, Any] = {
    "flow_type": "model",
    "enters": "Checking",
    "exits": ["Finished", "Thinking"],
    "reads": ["observation"],
    "writes": ["extensions"],
    "extension": {"verdict": "is it so?"},
}
BAD = [
    pytest.param([], "declare at least one stage", id="none"),
    pytest.param(stages(act={"flow_type": "dance"}), "'think', 'act', 'observe'", id="flow type"),
    pytest.param(stages(act={"flow": "act"}), "flow\n  Extra inputs are not permitted", id="key"),
    pytest.param(
        stages(act={"reads": ["thougth"]}),
        r"stage act: reads: unknown field 'thougth'; did you mean thought\?",
        id="field to read",
    ),
    pytest.param(
        stages(check={**CHECK, "writes": ["verdict"], "extension": {}}),
        "stage check: writes: unknown field 'verdict'; there are action, extensions",
        id="field to write",
    ),
    pytest.param(
        stages(check={**CHECK, "enters": "Acting"}),
        "stage check: enters: act runs in Acting already",
        id="two for one lifecycle",
    ),
    pytest.param(
        stages(think={"exits": ["Acting", "Observign"]}),
        r"stage think: exits: no stage enters 'Observign'; did you mean Observing\?",
        id="exit",
    ),
    pytest.param(stages(act={"exits": []}), "stage act: exits: none are named", id="no exit"),
    pytest.param(stages(act={"exits": ["Failed"]}), "stage act: exits: none are named", id="only Failed"),
    pytest.param(
        stages(act={"exits": ["Observing", "Observing"]}), "exits: one is named twice", id="same exit"
    ),
    pytest.param(
        stages(act={"exits": ["Initialized"]}), "nothing leads back to Initialized", id="Initialized"
    ),
    pytest.param(
        stages(check={**CHECK, "enters": "Finished"}), "enters: no stage runs in Finished", id="Finished"
    ),
    pytest.param(
        stages(check={**CHECK, "enters": "Failed"}), "an error_handler enters Failed, and no", id="Failed"
    ),
    pytest.param(
        stages(rescue={"flow_type": "error_handler", "enters": "Rescuing", "hook": "h"}),
        "an error_handler enters Failed",
        id="error handler elsewhere",
    ),
    pytest.param(
        stages(rescue={"flow_type": "error_handler", "enters": "Failed", "exits": ["Thinking"], "hook": "h"}),
        "Failed is terminal",
        id="error handler with exits",
    ),
    pytest.param(
        [{"name": "rescue", "flow_type": "error_handler", "enters": "Failed", "hook": "h"}],
        "declare at least one stage",
        id="only an error handler",
    ),
    pytest.param(stages(check={**CHECK, "enters": "checking it"}), "should match pattern", id="lifecycle"),
    pytest.param(stages(check={**CHECK, "enters": "C" * 33}), "should match pattern", id="long lifecycle"),
    pytest.param(
        [{**stage, "name": "a b"} for stage in stages()], "name\n  String should match pattern", id="name"
    ),
    pytest.param(
        [{**stage, "name": "one"} for stage in stages()], "stage one: name: it is taken", id="names"
    ),
    pytest.param(
        [{**stage, "enforce": False} for stage in stages()], "not for all", id="no enforcement at all"
    ),
    pytest.param(stages(act={"role": "boss"}), "'default', 'think', 'act', 'observe' or 'custom'", id="role"),
    pytest.param(
        stages(act={"flow_type": "hook"}), "stage act: hook: is missing; name a function", id="hook"
    ),
    pytest.param(stages(act={"flow_type": "machine"}), "stage act: machine: is missing", id="machine"),
    pytest.param(
        stages(act={"hook": "h"}), "stage act: hook: a stage of type act has none", id="hook of a think stage"
    ),
    pytest.param(
        stages(check={**CHECK, "tools": ["t"]}), "tools: a stage of type model has none", id="tools"
    ),
    pytest.param(
        stages(observe={"tools": []}), "tools: a stage of type observe has none", id="an empty list of tools"
    ),
    pytest.param(
        stages(check={**CHECK, "extension": {}}), "check: extension: is missing", id="no names of extensions"
    ),
    pytest.param(
        stages(check={**CHECK, "writes": [], "extension": {}, "exits": ["Finished"]}),
        "stage check: writes: none are named, and there is one exit",
        id="nothing to say",
    ),
    pytest.param(
        stages(rescue={"flow_type": "error_handler", "enters": "Failed", "hook": "h", "writes": []}),
        "stage rescue: writes: 'last_error' is missing",
        id="error handler that writes nothing",
    ),
    pytest.param(
        stages(
            rescue={"flow_type": "error_handler", "enters": "Failed", "hook": "h", "writes": ["observation"]}
        ),
        "stage rescue: writes: 'observation' is not for a stage of type error_handler",
        id="error handler that writes more",
    ),
    pytest.param(
        [
            *({**stage, "enforce": False} for stage in stages()),
            {"name": "rescue", "flow_type": "error_handler", "enters": "Failed", "hook": "h"},
        ],
        "not for all",
        id="enforcement of the error handler alone",
    ),
    pytest.param(
        stages(check={**CHECK, "writes": ["observation"]}),
        "extension: 'extensions' is not among its writes",
        id="extension without the right",
    ),
    pytest.param(
        stages(check={**CHECK, "writes": ["action", "extensions"]}),
        "'action' is written by acting",
        id="action by a model stage",
    ),
    pytest.param(
        stages(act={"flow_type": "machine", "writes": ["thought"], "machine": {"name": "react"}}),
        "machine.merge: 'extensions' is not among its writes",
        id="merge",
    ),
    pytest.param(
        stages(
            act={"flow_type": "machine", "exits": ["Observing", "Thinking"], "machine": {"name": "react"}}
        ),
        "a machine stage has one, for nothing in its answer chooses",
        id="machine with two exits",
    ),
]


@pytest.mark.parametrize(("declared", "words"), BAD)
def test_a_bad_declaration_is_refused_and_names_stage_and_key(declared: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Options.model_validate({"stages": declared})


UNSOUND = [
    pytest.param(
        stages(think={"exits": ["Observing"]}),
        "stages: .*unreachable from Initialized: Acting; Acting is entered by act; each must be",
        id="unreachable",
    ),
    pytest.param(
        stages(observe={"exits": ["Thinking"]}),
        "no path to a final state|unreachable from Initialized: Finished",
        id="no end",
    ),
    pytest.param(
        stages(act={"exits": ["Observing", "Checking"]}, check={**CHECK, "exits": ["Acting"]}),
        "cycle without a counting state.*Acting -> Checking -> Acting"
        ".*; Acting is entered by act; Checking is entered by check; .*loop only through Thinking",
        id="uncounted loop",
    ),
]


@pytest.mark.parametrize(("declared", "words"), UNSOUND)
def test_a_lifecycle_that_is_not_sound_is_refused(declared: Any, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        DESIGN.build(Options.model_validate({"stages": declared}), Parts())


@pytest.mark.parametrize("key", ["hook", "check"])
def test_a_hook_must_be_loaded(key: str) -> None:
    keys = {"flow_type": "hook", "hook": "here", "writes": ["action"], key: "nowhere"}
    options = Options.model_validate({"stages": stages(act=keys)})
    with pytest.raises(ValueError, match=f"stage act: {key}: unknown hook 'nowhere'; the worker has here"):
        DESIGN.build(options, Parts(hooks={"here": lambda view: {}}))


def test_the_shipped_stages_may_be_declared_too_and_make_the_same_machine() -> None:
    declared = DESIGN.build(Options.model_validate({"stages": stages()}), Parts())
    assert definition_hash(declared) == definition_hash(DESIGN.build(Options(), Parts()))


def test_the_intents_must_contain_the_general_one_and_the_fallback_must_say_something() -> None:
    with pytest.raises(ValidationError, match="must contain general_inquiry"):
        Options(intents=("diagnosis",))
    with pytest.raises(ValidationError, match="blank"):
        Options(fallback_text="  ")


# -- a lifecycle of ones own --------------------

REVIEWED = stages(observe={"exits": ["Checking", "Thinking"]}, check=CHECK)


def judged(lifecycle: str, verdict: str = "yes", **more: Any) -> Any:
    """A reply of the checking stage."""
    return said(json.dumps({"lifecycle": lifecycle, "extensions": {"verdict": verdict}, **more}))


def test_a_stage_of_ones_own_stands_between_observing_and_the_end() -> None:
    play = run(NOTHING, ANSWER, judged("Finished"), declared=REVIEWED)
    assert play.visited == "Initialized Thinking Observing Checking Finished"
    assert [record.event for record in play.records[1:]] == [
        *("ToThinking", "ToObserving", "ToChecking", "ToFinished"),
    ]
    assert play.context.extensions == {"check": {"verdict": "yes"}}
    assert play.exit.answer == "42"


def test_a_model_stage_chooses_its_exit_by_the_lifecycle_in_its_reply() -> None:
    play = run(NOTHING, ANSWER, judged("Thinking", "no"), NOTHING, declared=REVIEWED)
    assert play.context.iteration == 1
    assert play.context.extensions == {"check": {"verdict": "no"}}
    assert 'check: {"verdict": "no"}' in play.prompts[3].transcript.messages[-1].content


def test_a_model_stage_is_told_its_format_and_held_to_it() -> None:
    call = run(NOTHING, ANSWER, declared=REVIEWED).prompts[-1]
    assert call.role == "custom"
    schema: Any = call.response_schema
    assert schema["properties"]["lifecycle"] == {"enum": ["Finished", "Thinking"]}
    assert set(schema["properties"]["extensions"]["properties"]) == {"verdict"}
    text = call.transcript.messages[0].content
    assert '{"lifecycle": "Finished | Thinking", "extensions": {"verdict": "is it so?"}}' in text
    assert "observation.final_answer: 42" in call.transcript.messages[-1].content


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (judged("Acting"), "InvalidTransition"),
        (judged("Elsewhere/../x"), "InvalidTransition"),
        (said('{"extensions": {"verdict": "yes"}}'), "InvalidTransition"),
        (judged("Finished", observation={"summary": "mine"}), "PermissionViolation"),
        (judged("Finished", remark="nice"), "PermissionViolation"),
        (said('{"lifecycle": 7, "extensions": {}}'), "StageError"),
        (said('{"lifecycle": "Finished", "extensions": 7}'), "StageError"),
        (said("fine"), "StageError"),
        (said("{}"), "EmptyPatch"),
        (failed("fatal"), "StageError"),
    ],
)
def test_a_model_stage_that_does_not_keep_to_its_declaration_fails(reply: Any, code: str) -> None:
    error = run(NOTHING, ANSWER, reply, declared=REVIEWED).context.last_error
    assert (error.code, error.stage) == (code, "check")


def test_a_model_stage_keeps_the_extensions_that_it_declared_and_no_other() -> None:
    """R-002-1: as texts; an undeclared one is a refused write, and the whole patch is dropped."""
    two = {"lifecycle": "Finished", "extensions": {"verdict": "yes", "remark": "nice"}}
    play = run(NOTHING, ANSWER, said(json.dumps(two)), declared=REVIEWED)
    error = play.context.last_error
    assert (error.code, error.stage, play.context.extensions) == ("PermissionViolation", "check", {})
    assert "the undeclared extension 'remark' was written; declared are verdict" in error.message
    free = stages(observe={"exits": ["Checking", "Thinking"]}, check={**CHECK, "enforce": False})
    play = run(NOTHING, ANSWER, said(json.dumps(two)), declared=free)
    assert play.context.extensions == {"check": two["extensions"]}
    assert "'remark' was written" in play.records[-1].reason
    odd = {"lifecycle": "Finished", "extensions": {"verdict": ["yes", 1]}}
    play = run(NOTHING, ANSWER, said(json.dumps(odd)), declared=REVIEWED)
    assert play.context.extensions == {"check": {"verdict": '["yes", 1]'}}


def test_a_model_stage_may_write_thought_and_observation() -> None:
    keys = {**CHECK, "writes": ["observation"], "extension": {}, "exits": ["Finished"]}
    declared = stages(observe={"exits": ["Checking", "Thinking"]}, check=keys)
    better = {"observation": {"summary": "s", "final_answer": "43", "need_loop": False}}
    play = run(NOTHING, ANSWER, said(json.dumps(better)), declared=declared)
    assert play.exit.answer == "43"


def test_a_machine_may_consist_of_stages_of_ones_own_alone() -> None:
    """The first one begins a pass; the invariants of the lifecycles that it has still hold."""
    declared = [
        {"name": "draft", "enters": "Drafting", "exits": ["Checking"], "writes": ["observation"]},
        {"name": "check", "enters": "Checking", "exits": ["Finished", "Drafting"], "reads": ["observation"]},
    ]
    declared = [{**stage, "flow_type": "hook", "hook": str(stage["name"])} for stage in declared]
    seen = Observation(final_answer="a draft", need_loop=False)
    declared[0]["reads"] = ["iteration"]
    hooks = {
        "draft": lambda view: {"observation": seen.model_copy(update={"summary": str(view.iteration)})},
        "check": lambda view: {"lifecycle": "Finished" if view.observation.summary == "2" else "Drafting"},
    }
    play = run(declared=declared, hooks=hooks)
    assert (play.exit.answer, play.context.iteration, play.last.snapshot.step) == ("a draft", 2, 3)


def test_the_diagram_shows_the_stages_of_ones_own() -> None:
    picture = mermaid(DESIGN.build(Options.model_validate({"stages": REVIEWED}), Parts()))
    assert "Observing --> Checking: ToChecking" in picture
    assert "Checking --> Thinking: ToThinking" in picture


# -- a whole machine as a stage --------------------


def inner(merge: str, **more: Any) -> Any:
    """The stages with an inner machine in the place of act."""
    keys = {
        "flow_type": "machine",
        "reads": ["thought"],
        "writes": [merge],
        "prompt": "Look into it.",
        **more,
    }
    machine = {"name": "react", "options": {"max_steps": 3}, "mode": "child", "merge": merge}
    return stages(act={**keys, "machine": machine, "tools": ["tool"]})


def ended(answer: str | None = "found it", *, ok: bool = True) -> MachineEnded:
    """How the inner machine ended."""
    error = None if ok else "no luck"
    return MachineEnded(machine="react", ok=ok, exit_reason="max_steps", answer=answer, error=error)


def test_an_inner_machine_gets_what_its_stage_sees_as_its_goal() -> None:
    play = run(thinks("tool", reasoning="find x"), declared=inner("action"))
    effect = play.effects[-1]
    assert isinstance(effect, RunMachine)
    assert (effect.machine, effect.mode, effect.options) == ("react", "child", {"max_steps": 3})
    assert effect.tools_given == ("tool",)
    assert effect.goal.startswith("Look into it.\n\nthought.intent: diagnosis")
    assert "thought.reasoning: find x" in effect.goal


def test_the_answer_of_an_inner_machine_may_stand_for_that_of_tools() -> None:
    play = run(TOOLS, ended(), ANSWER, declared=inner("action"))
    assert play.context.action.tool_outputs == (ToolOutput(tool="react", output="found it"),)
    assert "react {} returned:\nfound it" in play.told
    assert play.exit.outcome["degraded"] is False


def test_an_inner_machine_that_stands_for_tools_may_fail_like_one() -> None:
    play = run(TOOLS, ended(None, ok=False), ANSWER, declared=inner("action"))
    assert isinstance(play.context.action, Action)
    assert play.context.action.tool_outputs[0].output == "react ended with max_steps: no luck"
    assert play.exit.outcome["degraded"] is True


def test_the_answer_of_an_inner_machine_may_be_the_observation() -> None:
    machine = {"name": "react", "merge": "observation"}
    keys = {"flow_type": "machine", "reads": ["thought"], "writes": ["observation"], "exits": ["Finished"]}
    declared = stages(observe={**keys, "machine": machine})
    play = run(NOTHING, ended("the end"), declared=declared)
    assert play.exit.answer == "the end"


def test_the_answer_of_an_inner_machine_may_be_kept_as_an_extension() -> None:
    declared = stages(
        think={"exits": ["Looking"]},
        act=None,
        observe={"reads": ["thought", "extensions"]},
        look={
            "flow_type": "machine",
            "enters": "Looking",
            "exits": ["Observing"],
            "reads": ["user_input"],
            "writes": ["extensions"],
            "machine": {"name": "react"},
        },
    )
    play = run(NOTHING, ended(), ANSWER, declared=declared)
    assert play.context.extensions == {"look": {"answer": "found it"}}
    assert 'look: {"answer": "found it"}' in play.told


@pytest.mark.parametrize("merge", ["extensions", "observation"])
def test_an_inner_machine_without_success_fails_its_stage(merge: str) -> None:
    declared = stages(
        observe={
            "flow_type": "machine",
            "exits": ["Finished"],
            "writes": [merge],
            "machine": {"name": "react", "merge": merge},
        }
    )
    for answer in (ended(None, ok=False), failed("fatal", "no such machine", "unknown_machine")):
        error = run(NOTHING, answer, declared=declared).context.last_error
        assert (error.code, error.stage) == ("StageError", "observe")


# -- the page that tells of it --------------------

PAGE = Path(__file__).parents[2] / "docs" / "stages.md"


def test_the_worked_example_of_the_docs_is_valid_and_runs() -> None:
    found = [block.split("```")[0] for block in PAGE.read_text().split("```yaml\n")[1:]]
    options = [yaml.safe_load(block)["options"] for block in found if "options:" in block]
    assert options
    for given in options:
        DESIGN.build(Options.model_validate(given), Parts())
    worked = options[-1]
    play = run(TOOLS, asks("tool", q="x"), tool_said(), MORE, NOTHING, declared=worked["stages"])
    assert play.context.iteration == 1


def test_the_docs_name_every_key_of_a_stage() -> None:
    text = PAGE.read_text()
    keys = [*Stage.model_fields, *InnerMachine.model_fields]
    assert [key for key in keys if f"`{key}`" not in text] == []
