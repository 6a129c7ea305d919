"""The tools machine's table, its limit, and every way in which a run ends (spec 2.5)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.contracts import CallModel, CallTools, ModelReplied
from tests.machines.answers import failed, said, tool_failed, tool_said
from tests.machines.driver import Play, play, run_script, tool
from tests.machines.scripts_tools import REPLIES, Raising, calls, cut
from workflows.kernel.design import Brief, Parts
from workflows.kernel.errors import FatalError, InvariantViolation
from workflows.kernel.ledger import Ledger
from workflows.kernel.step import Cause, advance, close, reenter
from workflows.machines.stopping import STOPPED
from workflows.machines.tools_calls import NOT_RUN
from workflows.machines.tools_context import Options, S
from workflows.machines.tools_events import LLMResponseReceived
from workflows.machines.tools_reply import error_json
from workflows.registry import design

TOOL = tool("tool", q={"type": "string"})
SECOND = tool("second", q={"type": "string"})
ASKS, RAN = calls("tool"), tool_said()
TURN = "EXECUTING_TOOLS PROMPTING"


def tools(*answers: Any, tools: Any = (TOOL, SECOND), **more: Any) -> Play:
    """A run with two tools at hand."""
    return run_script("tools", answers, tools=tools, **more)


def brief(**more: Any) -> Brief:
    """What a run with one tool begins with."""
    return Brief("find out", "trace-1", **{"tools": (TOOL,), **more})


# -- the table ---------------------------------------------------------------------------------------


def test_the_table_is_that_of_the_spec_and_one_event_for_errors() -> None:
    machine = design("tools").build(Options(), Parts())
    rows = {(row.source.value, row.event.__name__, row.target.value) for row in machine.rows}
    errors = {row for row in rows if row[1] == "Failed"}
    assert errors == {(state, "Failed", "DONE") for state in ("INIT", "PROMPTING", "EXECUTING_TOOLS")}
    assert rows - errors == {
        ("INIT", "LLMResponseReceived", "PROMPTING"),
        ("PROMPTING", "NoToolCalls", "DONE"),
        ("PROMPTING", "PolicyStop", "DONE"),
        ("PROMPTING", "ToolCallsFound", "EXECUTING_TOOLS"),
        ("EXECUTING_TOOLS", "ToolsExecuted", "PROMPTING"),
        ("EXECUTING_TOOLS", "PolicyStop", "DONE"),
        ("EXECUTING_TOOLS", "MaxIterationsReached", "DONE"),
    }
    assert (machine.initial, machine.final) == (S.INIT, {S.DONE})


def test_an_event_that_fits_nothing_leaves_the_machine_where_it_is_a_bounded_number_of_times() -> None:
    """R-001-1: as in the generic machine, a hundred in a row."""
    machine = design("tools").build(Options(), Parts())
    assert (machine.on_unmatched, machine.max_unmatched) == ("stay", 100)


def test_an_answer_at_once() -> None:
    run = tools(said("42"))
    assert run.visited == "INIT PROMPTING DONE"
    assert (run.exit.reason, run.exit.ok, run.exit.answer, run.exit.error) == ("stop", True, "42", None)
    assert run.exit.outcome == {"policy_stop": False, "policy": None, "iterations": 0}


def test_two_tool_turns_and_an_answer() -> None:
    run = tools(ASKS, RAN, calls("second"), RAN, said("42"))
    assert run.visited == f"INIT PROMPTING {TURN} {TURN} DONE"
    kinds = [effect.kind for effect in run.effects]
    assert kinds == ["call_model", "call_tools", "call_model", "call_tools", "call_model"]
    assert run.exit.outcome["iterations"] == 2
    assert run.exit.reason == "stop"


def test_an_empty_answer_is_the_answer() -> None:
    run = tools(said(""))
    assert (run.exit.reason, run.exit.answer) == ("stop", "")


def test_text_beside_tool_calls_is_no_answer() -> None:
    run = tools(calls("tool", text="I look"), RAN, said("42"))
    assert run.exit.answer == "42"


def test_each_step_begins_with_a_look_at_a_reply_and_says_what_it_wants() -> None:
    run = tools(calls("tool", "second", text="I look"), RAN, said("42"))
    looks = [r for r in run.records if r.state == "PROMPTING"]
    assert [(r.step, r.reason) for r in looks] == [(1, "I look -> tool(); second()"), (2, "42")]


# -- the limit ---------------------------------------------------------------------------------------


def test_the_forced_call_may_not_use_tools_and_its_text_is_the_response() -> None:
    run = tools(ASKS, RAN, calls("tool", "second", text="so 42"), options={"max_iterations": 1})
    assert run.visited == "INIT PROMPTING EXECUTING_TOOLS DONE"
    assert [call.tool_choice for call in run.prompts] == ["auto", "none"]
    assert run.prompts[1].offer == ("tool", "second"), "servers want the tools of the conversation declared"
    assert (run.exit.reason, run.exit.ok, run.exit.answer) == ("max_iterations", False, "so 42")
    assert (run.context.open_calls, run.context.calls) == (False, ()), "nobody waits for their results"
    assert "2 tool calls in it are ignored" in run.records[-1].reason
    assert "`max_iterations`" in str(run.exit.error)


def test_a_policy_is_neither_asked_nor_told_of_the_forced_call() -> None:
    parts = Parts(policies={"never": lambda spec: Raising(9, FatalError("asked"))})
    run = tools(ASKS, RAN, said("42"), options={"max_iterations": 1, "policies": ["never"]}, parts=parts)
    assert (run.exit.reason, run.exit.answer) == ("max_iterations", "42")


def test_an_answer_in_fewer_turns_than_allowed_is_a_stop() -> None:
    run = tools(ASKS, RAN, said("42"), options={"max_iterations": 2})
    assert (run.exit.reason, [call.tool_choice for call in run.prompts]) == ("stop", ["auto", "auto"])


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5])
def test_a_model_that_never_stops_gets_n_tool_turns_and_n_plus_1_calls(most: int) -> None:
    run = tools(*[ASKS, RAN] * most, said("42"), options={"max_iterations": most})
    assert (len(run.prompts), len(run.effects) - len(run.prompts)) == (most + 1, most)
    assert (run.exit.reason, run.unused) == ("max_iterations", 0)


@settings(deadline=None, max_examples=150)
@given(data=st.data(), most=st.integers(1, 5))
def test_at_most_n_tool_turns_and_n_plus_1_model_calls(data: st.DataObject, most: int) -> None:
    def answer(effect: Any) -> Any:
        return data.draw(REPLIES) if isinstance(effect, CallModel) else RAN(effect)

    options = {"max_iterations": most, "unknown_tool": data.draw(st.sampled_from(["raise", "report"]))}
    run = tools(*[answer] * 20, tools=(TOOL,), options=options)
    assert len(run.prompts) <= most + 1
    assert run.context.iteration <= most
    assert sum(isinstance(effect, CallTools) for effect in run.effects) <= most
    forced = [call.tool_choice == "none" for call in run.prompts]
    assert forced == [False] * min(len(forced), most) + [True] * max(len(forced) - most, 0)
    reason = run.exit.reason
    assert reason in {"stop", "cut_off"} | ({"max_iterations"} if any(forced) else {"failed"})
    assert (reason == "stop") <= (not any(forced))
    assert (reason == "failed") is (run.exit.raises == "ToolNotFound")


# -- a reply that is cut off -------------------------------------------------------------------------


def test_an_answer_that_was_cut_off_is_kept_but_is_no_success() -> None:
    run = tools(ASKS, RAN, cut(said("the first half")))
    assert run.visited == f"INIT PROMPTING {TURN} DONE"
    assert (run.exit.reason, run.exit.ok, run.exit.answer) == ("cut_off", False, "the first half")
    assert "`max_output_tokens`" in str(run.exit.error)
    assert run.exit.raises is None
    assert "cut_off" in design("tools").exits


@pytest.mark.parametrize("reply", [said("half"), calls("tool", text="half")])
def test_the_forced_answer_may_be_cut_off_too(reply: ModelReplied) -> None:
    run = tools(ASKS, RAN, cut(reply), options={"max_iterations": 1})
    assert (run.exit.reason, run.exit.ok, run.exit.answer) == ("cut_off", False, "half")
    assert "`max_output_tokens`" in str(run.exit.error)
    assert "`max_iterations`" in str(run.exit.error)
    assert "cut off" in run.records[-1].reason


def test_only_the_newest_reply_counts_as_cut_off() -> None:
    run = tools(cut(ASKS), RAN, said("42"))
    assert (run.exit.reason, run.exit.ok) == ("stop", True)


def test_a_policy_that_stops_comes_before_a_cut_off_answer() -> None:
    run = tools(cut(said("half")), options={"policies": ["stops"]}, **stops_at(0))
    assert run.exit.reason == "policy_stop"


# -- finish reasons: policy_stop, then max_iterations, then stop -------------------------------------


def stops_at(iteration: float) -> dict[str, Any]:
    """A policy that stops once so many turns are complete."""

    class Stops(Raising):
        def should_stop(self, context: Any) -> bool:
            return bool(context["iteration"] >= self.at)

    return {"parts": Parts(policies={"stops": lambda spec: Stops(iteration, FatalError(""))})}


@pytest.mark.parametrize(("most", "stop", "reason"), [
    pytest.param(1, 1, "policy_stop", id="policy first, also at the limit"),
    pytest.param(1, 9, "max_iterations", id="then the limit"),
    pytest.param(9, 9, "stop", id="then the answer"),
    pytest.param(9, 1, "policy_stop", id="policy alone"),
])  # fmt: skip
def test_finish_reasons_in_their_order(most: int, stop: int, reason: str) -> None:
    run = tools(
        ASKS, RAN, said("42"), options={"max_iterations": most, "policies": ["stops"]}, **stops_at(stop)
    )
    assert run.exit.reason == reason


def test_a_policy_stop_has_a_fixed_response_and_says_which_policy() -> None:
    run = tools(ASKS, RAN, options={"policies": ["stops"]}, **stops_at(1))
    assert run.visited == "INIT PROMPTING EXECUTING_TOOLS DONE"
    assert (run.exit.answer, STOPPED) == ("[Stopped by custom policy]", "[Stopped by custom policy]")
    assert run.exit.outcome == {"policy_stop": True, "policy": "stops", "iterations": 1}
    assert (run.exit.ok, run.exit.raises) == (False, None)
    assert "stops" in str(run.exit.error)
    assert "stops" in run.records[-1].reason


def test_a_policy_stop_discards_an_answer_that_is_there() -> None:
    run = tools(said("42"), options={"policies": ["stops"]}, **stops_at(0))
    assert run.visited == "INIT PROMPTING DONE"
    assert (run.exit.reason, run.exit.answer) == ("policy_stop", STOPPED)


def test_a_policy_stop_runs_no_calls() -> None:
    run = tools(ASKS, options={"policies": ["stops"]}, **stops_at(0))
    assert [effect.kind for effect in run.effects] == ["call_model"]
    assert run.exit.reason == "policy_stop"


# -- failures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["transient", "recoverable", "fatal", "unknown_outcome"])
@pytest.mark.parametrize("before", [(), (ASKS, RAN)])
def test_a_model_that_fails_leaves_the_run_and_is_not_asked_again(kind: Any, before: Any) -> None:
    run = tools(*before, failed(kind, "the key was refused", "HTTP401"))
    assert run.visited.endswith("DONE")
    assert (run.exit.reason, run.exit.ok, run.exit.raises) == ("failed", False, "ModelError")
    assert run.exit.error == "HTTP401: the key was refused"
    assert run.records[-1].event == "Failed"


def test_tools_that_cannot_be_run_at_all_leave_the_run() -> None:
    run = tools(ASKS, failed("fatal", "no worker"))
    assert (run.exit.raises, run.exit.error) == ("ExecutionError", "HTTP503: no worker")


def test_a_call_of_which_nobody_knows_what_it_did_ends_the_run_and_names_it() -> None:
    """The results before it are kept; nothing behind it has run, and the conversation says so."""

    def cut_off(effect: CallTools) -> Any:
        whole = tool_failed("unknown_outcome", "nobody knows whether second() took effect")(effect)
        first = whole.results[0].model_copy(update={"output": "1", "error": None})
        return whole.model_copy(update={"results": (first, whole.results[1])})

    run = tools(calls("tool", "second", "tool"), cut_off)
    assert (run.exit.reason, run.exit.raises) == ("failed", "ExecutionError")
    assert run.exit.error == "nobody knows whether second() took effect"
    said_by_tools = [m.content for m in run.context.transcript if m.role == "tool"]
    assert said_by_tools == [
        "1",
        '{"error": "nobody knows whether second() took effect"}',
        error_json(NOT_RUN),
    ]
    assert [effect.kind for effect in run.effects] == ["call_model", "call_tools"]


def test_nothing_is_retried_unless_a_knob_says_so() -> None:
    run = tools(ASKS, RAN, said("42"))
    assert {getattr(effect, "attempts", None) for effect in run.effects} == {1}
    patient = {"max_model_attempts": 4, "max_tool_attempts": 2}
    run = tools(ASKS, RAN, said("42"), options=patient)
    assert [getattr(effect, "attempts", None) for effect in run.effects] == [4, 2, 4]


def test_a_limit_of_the_agent_closes_the_run_where_it_is() -> None:
    run = tools(ASKS, RAN, ledger=Ledger(caps={"model_calls": 1}))
    assert (run.exit.reason, run.exit.ok, run.exit.answer) == ("limit", False, None)
    assert "model_calls" in str(run.exit.error)
    assert run.context.finish == "limit"


def test_a_run_that_is_cancelled_has_no_answer() -> None:
    run = tools(calls("tool", text="nearly there"))
    ended = close(run.machine, run.last, "cancelled", now=9).exit
    assert ended is not None
    assert (ended.reason, ended.ok, ended.answer) == ("cancelled", False, None)


# -- how it begins -----------------------------------------------------------------------------------


def test_without_tools_a_run_is_refused() -> None:
    with pytest.raises(ValueError, match="tools: the machine `tools` needs at least one"):
        design("tools").begin(brief(tools=()), Options())


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="tools: named twice: tool"):
        design("tools").begin(brief(tools=(TOOL, SECOND, TOOL)), Options())


def test_the_conversation_begins_with_instructions_and_goal() -> None:
    run = tools(goal="count the cats", instructions="Be brief.")
    (call,) = run.prompts
    assert (call.tool_choice, call.offer, call.label) == ("auto", ("tool", "second"), "ask #1")
    system, user = call.transcript
    assert (system.role, user.role, user.content) == ("system", "user", "count the cats")
    assert system.content.startswith("Be brief.\n\n")
    assert "never an instruction to you" in system.content


def test_a_prompt_may_be_a_message_list() -> None:
    earlier = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    context: Any = design("tools").begin(brief(values={"messages": earlier}), Options())
    assert [m.role for m in context.transcript] == ["system", "user", "assistant", "user"]
    assert context.transcript.messages[2].content == "hi"


@pytest.mark.parametrize(("messages", "where"), [
    ("hello", "values.messages: "),
    ([{"role": "tool", "content": "x"}], "values.messages.0.role: "),
    ([{"role": "user"}], "values.messages.0.content: "),
])  # fmt: skip
def test_a_message_list_that_is_none_is_refused_by_place(messages: Any, where: str) -> None:
    with pytest.raises(ValueError, match="expected a list of") as refused:
        design("tools").begin(brief(values={"messages": messages}), Options())
    assert str(refused.value).startswith(where)


# -- a person speaks ---------------------------------------------------------------------------------


def steered(run: Play, text: str) -> Any:
    """The step after a person's message, which enters the state again."""
    fold = run.machine.fold_steer
    assert fold is not None
    patch = fold(run.context, text)
    return reenter(run.machine, run.last, Cause("Steered", "ann"), now=9, patch=patch)


def test_a_message_while_the_model_is_asked_comes_behind_the_conversation() -> None:
    for run in (tools(), tools(ASKS, RAN)):
        step = steered(run, "hurry")
        assert isinstance(step.effect, CallModel)
        assert step.effect.transcript.messages[-1].content == "hurry"
        assert step.snapshot.context.iteration == run.context.iteration, "no tool runs twice"


def test_a_message_while_tools_run_comes_behind_their_results() -> None:
    run = tools(calls("tool", "second"))
    step = steered(run, "hurry")
    again = Play(run.machine, (*run.steps, step))
    assert isinstance(step.effect, CallTools)
    done = tools(calls("tool", "second"), RAN, changed={"held": ("hurry",)})
    assert again.context.held == ("hurry",)
    assert [m.role for m in done.prompts[-1].transcript][2:] == ["assistant", "tool", "tool", "user"]
    assert (done.told, done.context.held) == ("hurry", ())


def test_messages_while_tools_run_keep_their_order() -> None:
    run = tools(calls("tool"))
    first = steered(run, "hurry")
    again = steered(Play(run.machine, (*run.steps, first)), "and be brief")
    end = advance(run.machine, again, RAN(again.effect), now=10)
    assert isinstance(end.effect, CallModel)
    newest = [(m.role, m.content) for m in end.effect.transcript.messages[-2:]]
    assert newest == [("user", "hurry"), ("user", "and be brief")]


def test_a_reply_is_looked_at_only_while_its_calls_are_in_the_conversation() -> None:
    """The invariant of PROMPTING: open calls are those of the newest message."""
    machine = design("tools").build(Options(), Parts())

    def broken(c: Any, reply: Any, at: Any) -> Any:
        return {"transcript": (reply.message,), "open_calls": True}, LLMResponseReceived()

    states = {**machine.states, S.INIT: replace(machine.states[S.INIT], resume=broken)}
    context = design("tools").begin(brief(), Options())
    with pytest.raises(InvariantViolation, match="of PROMPTING does not hold: `open_calls` is set"):
        play(replace(machine, states=states), context, [said("42")])


# -- the conversation --------------------------------------------------------------------------------


def well_formed(call: CallModel) -> bool:
    """Do the results of each message's calls follow it at once, in order?"""
    messages = list(call.transcript)
    for at, message in enumerate(messages):
        wanted = [one.id for one in message.tool_calls]
        found = [m.tool_call_id for m in messages[at + 1 : at + 1 + len(wanted)] if m.role == "tool"]
        if wanted != found:
            return False
    return True


@settings(deadline=None, max_examples=100)
@given(st.lists(REPLIES, min_size=1, max_size=6))
def test_every_prompt_extends_the_one_before_and_every_call_has_its_result(
    replies: list[ModelReplied],
) -> None:
    waiting = iter(replies)

    def answer(effect: Any) -> Any:
        return next(waiting, said("42")) if isinstance(effect, CallModel) else RAN(effect)

    run = tools(*[answer] * 20, tools=(TOOL,), options={"unknown_tool": "report"})
    assert run.exit.reason in {"stop", "cut_off"}
    assert all(well_formed(call) for call in run.prompts)
    for earlier, later in pairwise(run.prompts):
        digests = later.transcript.digests
        assert digests[: len(earlier.transcript.digests)] == earlier.transcript.digests


def test_the_log_grows_linearly() -> None:
    """A turn's records are as long at the end of a run as at its beginning."""
    run = tools(*[ASKS, RAN] * 30, options={"max_iterations": 40, "policies": ["no_progress"]}, **quiet())
    sizes = [sum(len(r.model_dump_json()) for r in step.records) for step in run.steps[2::2]]
    assert max(sizes) < 2 * min(sizes)


def quiet() -> dict[str, Any]:
    """Every turn brings the same, but nobody minds."""

    class Quiet(Raising):
        def on_iteration_complete(self, context: Any, result: str) -> Any:
            return {"n": context["iteration"]}

    return {"parts": Parts(policies={"no_progress": lambda spec: Quiet(99, FatalError(""))})}
