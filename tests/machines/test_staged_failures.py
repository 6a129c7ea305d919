"""What goes wrong in a staged run, row by row of the table in spec 3.7."""

from __future__ import annotations

import json
from typing import Any

import pytest

from activities.contracts import ModelReplied, ToolCall, ToolsReturned
from tests.machines.answers import failed, said, tool_failed, tool_said
from tests.machines.driver import Play
from tests.machines.scripts_staged import ANSWER, MORE, NOTHING, TOOLS, asks, run, stages, thinks
from workflows.kernel.errors import FatalError, RecoverableError, TransientError, name_of
from workflows.kernel.step import close
from workflows.machines.staged_context import Observation

CALL = asks("tool", q="x")
DONE = Observation(summary="s", final_answer="42", need_loop=False)


def hooked(hook: Any, *answers: Any, **keys: Any) -> Play:
    """A run whose observing stage is this function."""
    given = {"flow_type": "hook", "hook": "hook", "reads": ["thought"], "writes": ["observation"], **keys}
    hooks = {"hook": hook, "no": lambda view: False, "yes": lambda view: True, "odd": lambda view: 7}
    return run(*(answers or (NOTHING,)), declared=stages(observe=given), hooks=hooks)


def error(play: Play) -> tuple[str, str, str]:
    """Code, stage and message; the run is in Failed and says so in its outcome too."""
    last = play.context.last_error
    assert name_of(play.last.snapshot.state) == "Failed"
    assert (play.exit.ok, play.exit.reason) == (False, "failed")
    assert play.exit.outcome["last_error"] == last.model_dump(mode="json")
    return last.code, last.stage, last.message


def test_a_broken_invariant() -> None:
    play = hooked(lambda view: ({"observation": Observation()}, "Finished"))
    code, stage, message = error(play)
    assert (code, stage) == ("InvariantViolation", "observe")
    assert "the invariant of Finished does not hold" in message


@pytest.mark.parametrize(("check", "code"), [("no", "PreconditionFailed"), ("odd", "StageError")])
def test_a_precondition_that_says_no(check: str, code: str) -> None:
    """And one that says nothing that can be understood."""
    play = hooked(lambda view: ({"observation": DONE}, "Finished"), check=check)
    assert error(play)[:2] == (code, "observe")
    assert hooked(lambda view: ({"observation": DONE}, "Finished"), check="yes").exit.answer == "42"


@pytest.mark.parametrize("field", ["thought", "user_input", "iteration", "nonsense"])
def test_an_undeclared_or_read_only_field_is_written(field: str) -> None:
    """The error names stage and field; the patch is dropped."""
    play = hooked(lambda view: ({"observation": DONE, field: None}, "Finished"))
    code, stage, message = error(play)
    assert (code, stage) == ("PermissionViolation", "observe")
    assert f"'{field}' was written" in message
    assert play.context.observation is None


def test_an_undeclared_field_is_read() -> None:
    """R-002-3: the view does not show it."""
    code, stage, message = error(hooked(lambda view: ({"observation": view.user_input}, "Finished")))
    assert (code, stage) == ("PermissionViolation", "observe")
    assert "'user_input' was read" in message


def test_a_lifecycle_that_is_not_among_the_exits() -> None:
    play = hooked(lambda view: ({"observation": DONE}, "Acting"))
    code, stage, message = error(play)
    assert (code, stage) == ("InvalidTransition", "observe")
    assert message == (
        "the stage observe asks for 'Acting'; by its exits it may lead to Finished or Thinking, or to Failed"
    )
    assert play.context.last_error.details == {"lifecycle": "Observing", "iteration": 0}


@pytest.mark.parametrize(
    ("returned", "code"), [(None, "EmptyPatch"), ({}, "EmptyPatch"), ([1], "StageError"), (7, "StageError")]
)
def test_a_stage_that_returns_nothing(returned: Any, code: str) -> None:
    """And one that returns what is no patch."""
    assert error(hooked(lambda view: returned))[:2] == (code, "observe")


def test_a_model_stage_whose_reply_is_empty_returns_nothing() -> None:
    declared = stages(observe={"flow_type": "model", "writes": ["observation"]})
    assert error(run(NOTHING, said("{}"), declared=declared))[:2] == ("EmptyPatch", "observe")


def test_no_user_input() -> None:
    """It fails before any stage runs: nothing is asked for."""
    play = run(changed={"user_input": None})
    assert error(play)[:2] == ("InvariantViolation", "orchestrator")
    assert play.effects == ()


@pytest.mark.parametrize("kind", ["transient", "recoverable", "fatal"])
@pytest.mark.parametrize(("answers", "stage"), [((), "think"), ((TOOLS,), "act"), ((NOTHING,), "observe")])
def test_a_model_call_fails(kind: Any, answers: Any, stage: str) -> None:
    """The cause is kept."""
    play = run(*answers, failed(kind))
    assert error(play) == ("StageError", stage, "HTTP503: server is down")
    details = play.context.last_error.details
    assert (details["error"], details["type"], details["attempts"]) == (kind, "HTTP503", 1)


def test_a_thought_that_cannot_be_read_is_a_failed_model_call() -> None:
    code, stage, message = error(run(said("I do not know")))
    assert (code, stage) == ("StageError", "think")
    assert message == "the reply is no thought: the reply is not a JSON object"
    play = run(said("what?"), thinks("tool", intent="x"), NOTHING, ANSWER, max_format_attempts=3)
    assert play.exit.answer == "42"
    assert "the intent is" in play.prompts[2].transcript.messages[-1].content


@pytest.mark.parametrize("kind", ["failed", "transient", "timeout", "bad_arguments"])
def test_a_tool_fails_and_the_run_goes_on_degraded(kind: Any) -> None:
    play = run(TOOLS, CALL, tool_failed(kind, "no such file"), ANSWER)
    outcome = play.exit.outcome
    assert (play.exit.ok, play.exit.answer, outcome["degraded"]) == (True, "42", True)
    assert outcome["degrade_events"] == [{"code": kind, "stage": "act", "message": "tool: no such file"}]
    assert f'tool {{"q": "x"}} failed ({kind}):\nno such file' in play.told


def test_a_run_in_which_all_went_well_is_not_degraded() -> None:
    outcome = run(TOOLS, CALL, tool_said(), ANSWER).exit.outcome
    assert (outcome["degraded"], outcome["degrade_events"], outcome["fallback_used"]) == (False, [], False)


def test_a_tool_fails_and_nobody_knows_what_it_did() -> None:
    """The run ends and names the tool; what was done before it is kept."""
    play = run(thinks("tool"), asks("tool", "tool", q="x"), _lost_after_one)
    code, stage, message = error(play)
    assert (code, stage, message) == ("StageError", "act", "nobody knows")
    assert play.context.last_error.details["tool"] == "tool"
    assert [output.output for output in play.context.action.tool_outputs] == ["found", "nobody knows"]


def _lost_after_one(effect: Any) -> ToolsReturned:
    one = tool_said()(effect).results[0]
    lost = one.model_copy(update={"output": "nobody knows", "error": "unknown_outcome"})
    return ToolsReturned(results=(one, lost))


def test_tools_are_suggested_and_the_model_asks_for_none() -> None:
    code, stage, message = error(run(TOOLS, said("no idea")))
    assert (code, stage) == ("StageError", "act")
    assert message == "the tools tool were suggested, but the model asks for none"


# -- enforcement, later stages, raising --------------------


def test_enforcement_off_merges_an_undeclared_write_and_warns() -> None:
    play = hooked(lambda view: ({"observation": DONE, "thought": None}, "Finished"), enforce=False)
    assert (play.exit.answer, play.context.thought) == ("42", None)
    assert "enforcement is off): ['thought']" in play.records[-1].reason


def test_enforcement_off_for_one_stage_leaves_it_on_for_the_others() -> None:
    declared = stages(observe={"enforce": False}, think={"writes": []})
    play = run(NOTHING, declared=declared)
    assert error(play)[:2] == ("PermissionViolation", "think")


def test_later_stages_do_not_run() -> None:
    ran: list[str] = []
    declared = stages(
        act={"flow_type": "hook", "hook": "act", "writes": ["action"]},
        observe={"flow_type": "hook", "hook": "observe", "writes": ["observation"]},
    )
    hooks = {"act": lambda view: ran.append("act"), "observe": lambda view: ran.append("observe")}
    play = run(TOOLS, declared=declared, hooks=hooks)
    assert (error(play)[:2], ran) == (("EmptyPatch", "act"), ["act"])


RAISING = [
    (((failed("fatal"),), {}), "StageError"),
    (((NOTHING, MORE), {"max_iterations": 1, "on_max_iterations": "fail"}), "MaxIterationsExceeded"),
    (((), {"changed": {"user_input": None}}), "InvariantViolation"),
]


@pytest.mark.parametrize(("how", "code"), RAISING)
def test_a_failed_run_returns_its_error_or_raises_it(how: Any, code: str) -> None:
    """R-002-8: the final state has the last error; with raise_on_failure the run raises it."""
    answers, keys = how
    play = run(*answers, **keys)
    assert (play.context.last_error.code, play.exit.raises) == (code, None)
    assert run(*answers, **keys, raise_on_failure=True).exit.raises == code


def test_a_run_that_finishes_raises_nothing() -> None:
    """R-002-8: also where failures are raised."""
    assert run(NOTHING, ANSWER, raise_on_failure=True).exit.raises is None


def test_the_error_of_the_result_is_the_last_error_in_words() -> None:
    assert run(failed("fatal")).exit.error == "StageError in think: HTTP503: server is down"


# -- what users' functions raise --------------------


@pytest.mark.parametrize(
    "raised", [TransientError("x"), RecoverableError("x"), FatalError("x"), ValueError("x"), KeyError("x")]
)
def test_what_a_hook_raises_ends_its_stage(raised: Exception) -> None:
    def hook(view: Any) -> Any:
        raise raised

    code, stage, message = error(hooked(hook))
    assert (code, stage) == ("StageError", "observe")
    assert type(raised).__name__ in message


def test_a_stage_may_ask_for_failed() -> None:
    """It is open to every stage (R-002-7), and the orchestrator writes the error (R-002-4)."""
    play = hooked(lambda view: ({"observation": DONE}, "Failed"))
    assert error(play) == ("StageError", "observe", "the stage observe asks for Failed")
    assert play.context.observation == DONE


# -- the error handler --------------------


def handled(hook: Any, *answers: Any) -> Play:
    """A run with this error handler."""
    rescue = {"flow_type": "error_handler", "enters": "Failed", "hook": "rescue"}
    return run(*answers, declared=stages(rescue=rescue), hooks={"rescue": hook})


def test_the_error_handler_sees_everything_and_completes_the_error() -> None:
    """It runs in Failed, after a stage that failed and after a broken rule alike."""
    seen: list[Any] = []

    def rescue(view: Any) -> Any:
        seen.append((view.user_input, view.iteration, view.last_error.code))
        return {"details": {"ticket": f"about {view.user_input}"}}

    play = handled(rescue, failed("fatal"))
    assert play.context.last_error.details == {"ticket": "about find out"}
    assert error(play)[:2] == ("StageError", "think")
    play = handled(rescue, thinks("tool"), ModelReplied(text="", tool_calls=()))
    assert play.context.last_error.details == {"ticket": "about find out"}
    assert seen == [("find out", 0, "StageError")] * 2
    assert handled(rescue, NOTHING, ANSWER).exit.answer == "42"
    assert len(seen) == 2


def test_the_error_handler_runs_after_a_broken_rule_too() -> None:
    rescue = {"flow_type": "error_handler", "enters": "Failed", "hook": "rescue"}
    declared = stages(rescue=rescue, think={"writes": []})
    play = run(NOTHING, declared=declared, hooks={"rescue": lambda view: {"message": "think may not think"}})
    assert error(play) == ("PermissionViolation", "think", "think may not think")


def _raises(view: Any) -> Any:
    raise RuntimeError("oops")


class _Mute(RuntimeError):
    def __str__(self) -> str:
        raise ValueError("no words")


class _MuteFatal(FatalError):
    __str__ = _Mute.__str__


def _raises_mute(view: Any) -> Any:
    raise _Mute


FAULTS = [
    _raises,
    _raises_mute,
    lambda view: 7,
    lambda view: {"code": None},
    lambda view: {"message": "\ud800"},
    lambda view: {"details": {"a": float("nan")}},
    lambda view: {"details": {"a": {1, 2}}},
    lambda view: view.no,
]


@pytest.mark.parametrize("hook", FAULTS)
def test_a_fault_of_the_error_handler_is_only_noted(hook: Any) -> None:
    play = handled(hook, failed("fatal"))
    assert error(play) == ("StageError", "think", "HTTP503: server is down")
    assert play.context.last_error.details["error_handler"]


def test_an_error_handler_that_declared_no_reads_still_completes_the_error() -> None:
    rescue = {"flow_type": "error_handler", "enters": "Failed", "hook": "rescue", "reads": []}
    for hook in (lambda view: {"message": "sorry"}, lambda view: {"message": view.user_input}):
        play = run(failed("fatal"), declared=stages(rescue=rescue), hooks={"rescue": hook})
        assert error(play)[:2] == ("StageError", "think")
    assert "PermissionViolation" in play.context.last_error.details["error_handler"]


@pytest.mark.parametrize("key", ["hook", "check"])
@pytest.mark.parametrize("mute", [_Mute, _MuteFatal])
def test_an_error_that_cannot_be_written_ends_the_stage_with_its_type_alone(mute: Any, key: str) -> None:
    def breaks(view: Any) -> Any:
        raise mute

    keys = {"flow_type": "hook", "hook": "hook", "writes": ["observation"], "check": "check"}
    hooks = {"hook": lambda view: {}, "check": lambda view: True, key: breaks}
    play = run(NOTHING, declared=stages(observe=keys), hooks=hooks)
    assert error(play)[2] == f"FatalError: the hook of stage observe failed: {mute.__name__}"


@pytest.mark.parametrize("field", ["material", "notes", "working", "degraded"])
@pytest.mark.parametrize("flow", ["hook", "model"])
def test_no_stage_of_ones_own_writes_what_is_the_machines(flow: str, field: str) -> None:
    """The whole patch is dropped."""
    patch = {"observation": DONE.model_dump(), "lifecycle": "Finished", field: []}
    keys = {"flow_type": flow, "writes": ["observation"], **({"hook": "hook"} if flow == "hook" else {})}
    play = run(
        *(NOTHING, said(json.dumps(patch))), declared=stages(observe=keys), hooks={"hook": lambda view: patch}
    )
    assert error(play)[:2] == ("PermissionViolation", "observe")
    assert play.context.observation is None


@pytest.mark.parametrize("field", ["material", "notes", "working", "degraded"])
def test_no_function_reads_what_is_the_machines(field: str) -> None:
    code, _, message = error(hooked(lambda view: {"observation": getattr(view, field)}))
    assert code == "PermissionViolation"
    assert f"'{field}' was read" in message


def test_an_error_handler_may_say_nothing() -> None:
    assert error(handled(lambda view: None, failed("fatal")))[0] == "StageError"


# -- a run that is ended from outside --------------------


def test_a_run_that_is_cancelled_says_in_which_stage() -> None:
    play = run(TOOLS, CALL)
    ended = close(play.machine, play.last, "cancelled", now=2000, by="person")
    context = ended.snapshot.context
    assert (context.last_error.code, context.last_error.stage) == ("cancelled", "act")
    assert (context.lifecycle, context.working) == ("Acting", ())
    assert ended.exit is not None
    assert (ended.exit.reason, ended.exit.raises) == ("cancelled", None)


def test_arguments_that_cannot_be_read_fail_their_call_alone() -> None:
    calls = (ToolCall(id="1", name="tool", arguments="{oops"), ToolCall(id="2", name="tool", arguments="{}"))
    play = run(TOOLS, ModelReplied(text="", tool_calls=calls), tool_said(), ANSWER)
    outputs = play.context.action.tool_outputs
    assert [(output.error, output.output[:5]) for output in outputs] == [
        ("bad_arguments", "the a"),
        (None, "found"),
    ]
    assert play.exit.outcome["degraded"] is True
