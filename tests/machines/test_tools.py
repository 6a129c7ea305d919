"""The tools machine: scripts that read as its documentation, then what no script shows (spec 2.5)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.contracts import AskModel, CallTools, Message, NativeCall, ToolsReturned
from tests.machines.answers import call, calls, cut, failed, person, ran, replied
from tests.machines.play import Played, Reaction, play, program_of, rows_of, rows_taken, tool
from workflows.kernel.errors import FatalError, PolicyViolation
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import Extensions
from workflows.kernel.transition import close
from workflows.machines.common.stopping import STOPPED
from workflows.machines.tools import MACHINE
from workflows.machines.tools.reply_calls import NOT_RUN

TOOLS = (tool("tool"), tool("second"))
ASKS = calls("tool")
EMPTY = replied("  ")
TURN = "EXECUTING_TOOLS PROMPTING"


@dataclass
class Own:
    """A user's policy: stops or raises once so many iterations are complete, and notes what it sees."""

    at: float
    error: Exception | None = None
    asked: list[int] = field(default_factory=list)
    told: list[tuple[int, str]] = field(default_factory=list)

    def should_stop(self, context: Mapping[str, Any]) -> bool:
        self.asked.append(context["iteration"])
        if context["iteration"] >= self.at and self.error:
            raise self.error
        return bool(context["iteration"] >= self.at)

    def on_iteration_complete(self, context: Mapping[str, Any], result: str) -> None:
        self.told.append((context["iteration"], result))


OWN = Extensions(policies={
    "stops": lambda spec: Own(spec.value or 0),
    "raises": lambda spec: Own(spec.value or 0, FatalError("the policy is lost")),
})  # fmt: skip


def tools(*answers: Reaction, options: Any = None, own: Own | None = None, **more: Any) -> Played:
    """A run with two tools; `own` is a policy named `own`."""
    extensions = Extensions(policies={"own": lambda spec: own}) if own else OWN
    ledger, given = more.pop("ledger", None), {"tools": TOOLS, "extensions": extensions, **more}
    program = program_of(MACHINE, options, **given)
    # A policy that notes what it sees would see a visit twice that is run again.
    return play(program, answers, ledger=ledger, both_ways=own is None)


def policy(name: str, value: float) -> dict[str, Any]:
    """Options with one policy."""
    return {"policies": [{"type": name, "value": value}]}


@dataclass(frozen=True)
class Script:
    """A list of answers is one run."""

    name: str
    answers: tuple[Reaction, ...]
    states: str
    reason: str
    answer: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    raises: str | None = None


ONE, REPORT = {"max_iterations": 1}, {"unknown_tool": "report"}
SCRIPTS = [
    Script("answers at once", (replied("42"),), "PROMPTING DONE", "stop", "42"),
    Script("calls tools first", (calls("tool", "second", text="I look"), ran(), ASKS, ran(), replied("42")),
           f"PROMPTING {TURN} {TURN} DONE", "stop", "42"),
    Script("uses all its turns and is made to answer", (ASKS, ran(), calls("tool", text="7")),
           "PROMPTING EXECUTING_TOOLS DONE", "max_iterations", "7", ONE),
    # a reply that was cut off is kept, but it is no success
    Script("answer is cut off", (ASKS, ran(), cut(replied("4"))), f"PROMPTING {TURN} DONE", "cut_off", "4"),
    Script("answer it was made to give is cut off", (ASKS, ran(), cut(replied("4"))),
           "PROMPTING EXECUTING_TOOLS DONE", "cut_off", "4", ONE),
    Script("nothing before the cut", (cut(replied("")),), "PROMPTING DONE", "cut_off", ""),
    Script("only the newest reply counts as cut", (cut(ASKS), ran(), replied("42")),
           f"PROMPTING {TURN} DONE", "stop", "42"),
    # an empty reply is asked for again, once per question
    Script("empty reply, then an answer", (EMPTY, replied("42")), "PROMPTING DONE", "stop", "42"),
    Script("empty reply, then a call", (EMPTY, ASKS, ran(), EMPTY, replied("42")),
           f"PROMPTING {TURN} DONE", "stop", "42"),
    Script("two empty replies", (EMPTY, EMPTY), "DONE", "failed", raises="ModelError"),
    Script("two empty replies after tools", (ASKS, ran(), EMPTY, EMPTY),
           "PROMPTING EXECUTING_TOOLS DONE", "failed", raises="ModelError"),
    Script("calls where none are allowed are no answer", (ASKS, ran(), ASKS),
           "PROMPTING EXECUTING_TOOLS DONE", "max_iterations", "", ONE),
    # policies: before the calls run, and after them; an answer that is there is discarded
    Script("stopped before its calls", (calls("tool", cost=2),), "PROMPTING DONE", "policy_stop", STOPPED,
           policy("max_cost", 1)),
    Script("stopped after its calls", (ASKS, ran(cost=2)), "PROMPTING EXECUTING_TOOLS DONE", "policy_stop",
           STOPPED, policy("max_cost", 1)),
    Script("a policy stop discards an answer", (replied("42"),), "PROMPTING DONE", "policy_stop", STOPPED,
           policy("stops", 0)),
    Script("a policy comes before the limit", (ASKS, ran()), "PROMPTING EXECUTING_TOOLS DONE", "policy_stop",
           STOPPED, {**policy("stops", 1), **ONE}),
    Script("a policy comes before a cut answer", (cut(replied("4")),), "PROMPTING DONE", "policy_stop",
           STOPPED, policy("stops", 0)),
    Script("R-001-9 policy raises", (replied("42"),), "PROMPTING DONE", "failed", None, policy("raises", 0),
           "FatalError"),
    Script("R-001-9 policy raises after tools", (ASKS, ran()), "PROMPTING EXECUTING_TOOLS DONE", "failed",
           None, policy("raises", 1), "FatalError"),
    # errors leave the run (2.7)
    Script("model fails", (failed("transient"),), "DONE", "failed", raises="ModelError"),
    Script("model fails later", (ASKS, ran(), failed()), "PROMPTING EXECUTING_TOOLS DONE", "failed",
           raises="ModelError"),
    Script("model fails when asked again", (EMPTY, failed()), "DONE", "failed", raises="ModelError"),
    Script("tools cannot be run", (ASKS, failed()), "PROMPTING EXECUTING_TOOLS DONE", "failed",
           raises="ExecutionError"),
    Script("outcome of a tool is unknown", (ASKS, ran("lost", "unknown_outcome")),
           "PROMPTING EXECUTING_TOOLS DONE", "failed", raises="ExecutionError"),
    Script("R-001-7 unknown tool", (calls("tool", "nosuch", "second"), ran()),
           "PROMPTING EXECUTING_TOOLS DONE", "failed", raises="ToolNotFound"),
    Script("R-001-7 unknown tool comes first", (calls("nosuch", "tool"),), "PROMPTING EXECUTING_TOOLS DONE",
           "failed", raises="ToolNotFound"),
    Script("R-001-7 worker lost the tool", (ASKS, ran("gone", "unknown_tool")),
           "PROMPTING EXECUTING_TOOLS DONE", "failed", raises="ToolNotFound"),
    Script("R-001-7 report", (calls("nosuch"), replied("42")), f"PROMPTING {TURN} DONE", "stop", "42",
           REPORT),
    Script("R-001-7 report of a lost tool", (ASKS, ran("gone", "unknown_tool"), replied("42")),
           f"PROMPTING {TURN} DONE", "stop", "42", REPORT),
]  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script(script: Script) -> None:
    run = tools(*script.answers, options=script.options)
    assert run.states == f"INIT {script.states}"
    assert (run.exit.reason, run.exit.ok) == (script.reason, script.reason == "stop")
    assert (run.exit.answer, run.exit.raises, run.unused) == (script.answer, script.raises, 0)
    assert (run.exit.error is None) is run.exit.ok
    assert run.exit.reason in MACHINE.exits


def test_every_row_of_the_table_is_taken() -> None:
    runs = [tools(*script.answers, options=script.options) for script in SCRIPTS]
    assert rows_taken(runs) == rows_of(MACHINE)


# -- calls: which run, and what the model is told -------------------------------------------------


def told(run: Played) -> list[tuple[str | None, Any]]:
    """What the model was told of each call: its id and the JSON value."""
    return [(m.tool_call_id, json.loads(m.content)) for m in run.conversation if m.role == "tool"]


def wanted(run: Played) -> list[tuple[str, str, Any]]:
    """The tool runs that were asked for."""
    found = [effect.calls for effect in run.effects if isinstance(effect, CallTools)]
    return [(one.id, one.tool, one.arguments) for runs in found for one in runs]


def bad(arguments: str, id: str = "bad") -> NativeCall:
    """A call with these arguments."""
    return NativeCall(id=id, name="tool", arguments=arguments)


def test_calls_run_in_order_and_results_follow_as_json() -> None:
    outputs = iter(['{"n": 1}', "2", "text"])

    def answer(effect: CallTools) -> ToolsReturned:
        results = ran()(effect).results
        return ToolsReturned(results=tuple(r.model_copy(update={"output": next(outputs)}) for r in results))

    reply = calls(call("second", 1, q="x"), call("tool", 2), call("second", 3, q="y"))
    run = tools(reply, answer, replied("done"))
    assert wanted(run) == [("c1", "second", {"q": "x"}), ("c2", "tool", {}), ("c3", "second", {"q": "y"})]
    assert told(run) == [("c1", {"n": 1}), ("c2", 2), ("c3", "text")]
    assert [m.role for m in run.conversation][2:] == ["assistant", *["tool"] * 3, "assistant"]


@pytest.mark.parametrize("kind", ["failed", "bad_arguments", "transient", "timeout", "rejected", "expired"])
def test_failed_tool_is_reported_and_the_run_goes_on(kind: Any) -> None:
    run = tools(calls("tool", "second"), ran('no "q"', kind), replied("done"))
    assert told(run) == [("c1", {"error": 'no "q"'}), ("c2", {"error": 'no "q"'})]
    assert run.exit.ok


@pytest.mark.parametrize("arguments", ["{bad", "[1]", '"q"', "7", '{"q": NaN}', '{"q": "x"} and so on'])
def test_unusable_arguments_are_reported_and_other_calls_run(arguments: str) -> None:
    run = tools(calls(call("tool", 1), bad(arguments), call("second", 2)), ran(), replied("done"))
    assert wanted(run) == [("c1", "tool", {}), ("c2", "second", {})]
    assert [id for id, _ in told(run)] == ["c1", "bad", "c2"]
    assert "cannot be used" in told(run)[1][1]["error"]


def test_reply_without_usable_calls_counts_as_a_turn() -> None:
    run = tools(calls(bad("?")), replied("done"))
    assert [effect.kind for effect in run.effects] == ["ask_model", "ask_model"]
    assert run.exit.outcome["iterations"] == 1


@pytest.mark.parametrize("arguments", ["", '{"q": "x'])
def test_last_call_of_a_cut_reply_is_told_so(arguments: str) -> None:
    run = tools(cut(calls(call("tool", 1), bad(arguments))), ran(), replied("done"))
    assert [id for id, _, _ in wanted(run)] == ["c1"]
    assert "max_output_tokens" in told(run)[1][1]["error"]


def test_blank_arguments_of_a_whole_reply_are_none() -> None:
    assert wanted(tools(calls(bad(" ")), ran())) == [("bad", "tool", {})]


def test_R_001_7_unknown_tool_ends_run_after_earlier_calls() -> None:
    run = tools(calls("tool", bad("?"), "nosuch", "second"), ran())
    assert wanted(run) == [("c1", "tool", {})]
    assert [id for id, _ in told(run)] == ["c1", "bad", "c3"]
    assert "nosuch" in str(run.exit.error)
    assert "unknown_tool: report" in str(run.exit.error)


@pytest.mark.parametrize(("error", "option"), [
    ("unknown_outcome", "raise"), ("unknown_tool", "raise"), ("unknown_tool", "report"),
])  # fmt: skip
def test_calls_behind_the_one_that_stops_are_not_run(error: Any, option: str) -> None:
    def stops(effect: CallTools) -> ToolsReturned:
        first, second = ran()(effect).results[0], ran("lost", error)(effect).results[1]
        return ToolsReturned(results=(first, second))

    run = tools(calls("tool", "second", "tool"), stops, replied("done"), options={"unknown_tool": option})
    assert told(run) == [("c1", "found"), ("c2", {"error": "lost"}), ("c3", {"error": NOT_RUN})]
    assert run.exit.ok is (option == "report")


def test_calls_beyond_the_limit_are_not_run_and_told_so() -> None:
    options = {"max_calls_per_reply": 2}
    run = tools(calls("tool", "second", "tool", "nosuch"), ran(), replied("done"), options=options)
    assert [id for id, _, _ in wanted(run)] == ["c1", "c2"]
    assert all("max_calls_per_reply" in answer["error"] for _, answer in told(run)[2:])
    assert run.exit.ok, "an unknown tool among the rest ends nothing"
    assert [call.title for call in run.records[2].asked] == ["tool()", "second()"]


@pytest.mark.parametrize("option", ["raise", "report"])
def test_endless_name_is_cut_everywhere(option: str) -> None:
    run = tools(calls("n" * 1_000_000), replied("done"), options={"unknown_tool": option})
    assert len(told(run)[0][1]["error"]) + len(str(run.exit.error)) < 600
    assert all(len(record.reason) < 300 for record in run.records)


def test_options_reach_the_effects() -> None:
    options = {"max_model_attempts": 4, "max_tool_attempts": 2, "parallel_tools": True}
    run = tools(ASKS, ran(), replied("42"), options=options)
    assert [effect.attempts for effect in run.effects] == [4, 2, 4]
    assert run.effects[1].parallel


# -- the limit of turns ---------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 2, 5])
def test_n_turns_and_n_plus_one_model_calls(most: int) -> None:
    run = tools(*[ASKS, ran()] * most, replied("42"), options={"max_iterations": most})
    assert [asked.tool_choice for asked in run.asked] == ["auto"] * most + ["none"]
    assert {asked.offer for asked in run.asked} == {("tool", "second")}, "servers want them declared"
    assert (run.exit.reason, run.exit.outcome["iterations"]) == ("max_iterations", most)


def test_empty_reply_is_named_to_model_and_does_not_count() -> None:
    run = tools(ASKS, ran(), EMPTY, replied("42"), options=ONE)
    assert [asked.tool_choice for asked in run.asked] == ["auto", "none", "none"]
    assert run.newest == "Your reply was empty. Call a tool, or answer in plain text."
    assert run.exit.reason == "max_iterations"


# -- policies -------------------------------------------------------------------------------------


def test_policy_sees_the_iterations_of_the_spec() -> None:
    own = Own(at=99)
    tools(ASKS, ran("a"), ASKS, ran("b"), replied("42"), own=own, options={"policies": ["own"]})
    assert own.asked == [0, 1, 1, 2, 2]
    assert own.told == [(0, '"a"'), (1, '"b"'), (2, "42")]


def test_policy_is_neither_asked_nor_told_of_the_forced_answer() -> None:
    own = Own(at=99)
    tools(ASKS, ran("a"), replied("42"), own=own, options={"policies": ["own"], **ONE})
    assert (own.asked, own.told) == ([0, 1], [(0, '"a"')])


def test_policy_stop_is_named_in_the_result() -> None:
    run = tools(ASKS, ran(), options=policy("stops", 1))
    assert run.exit.outcome == {"policy_stop": True, "policy": "stops", "iterations": 1}
    assert "stops" in str(run.exit.error)


def test_repeated_call_is_counted_over_turns() -> None:
    run = tools(*[ASKS, ran()] * 2, ASKS, options={"policies": ["repeated_call"]})
    assert (run.exit.reason, run.exit.outcome["policy"]) == ("policy_stop", "repeated_call")


def test_own_error_of_a_policy_names_the_exit() -> None:
    own = Own(0, PolicyViolation("no"))
    run = tools(replied("42"), own=own, options={"policies": ["own"]})
    assert (run.exit.raises, run.exit.error) == ("PolicyViolation", "no")


# -- beginning, people, ends in the middle --------------------------------------------------------


def test_conversation_begins_with_instructions_earlier_messages_and_goal() -> None:
    earlier = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    run = tools(goal="count", instructions="Be brief.", values={"messages": earlier})
    assert [(m.role, m.content) for m in run.prompts[0]][1:] == [
        ("user", "hello"), ("assistant", "hi"), ("user", "count"),
    ]  # fmt: skip
    assert run.prompts[0][0].content.startswith("Be brief.\n\n")


@pytest.mark.parametrize(("more", "culprit"), [
    ({"tools": (*TOOLS, TOOLS[0])}, "duplicate name: tool"),
    ({"values": {"messages": "hello"}}, "values.messages: "),
    ({"values": {"messages": [{"role": "tool", "content": "x"}]}}, "values.messages.0.role: "),
    ({"values": {"messages": [{"role": "user"}]}}, "values.messages.0.content: "),
    ({"options": {"policies": ["nosuch"]}}, "nosuch"),
])  # fmt: skip
def test_input_that_cannot_be_run_is_refused_by_name(more: Any, culprit: str) -> None:
    with pytest.raises(ValueError, match=culprit):
        tools(**more)


def test_person_is_heard_behind_the_results_of_open_calls() -> None:
    run = tools(calls("tool", "second"), person("hurry"), person("be brief"), ran(), replied("42"))
    assert [m.content for m in run.prompts[-1][-4:]] == ['"found"', '"found"', "hurry", "be brief"]
    assert [m.role for m in run.prompts[-1][2:]] == ["assistant", "tool", "tool", "user", "user"]


def test_completed_turn_is_kept_when_the_model_then_fails() -> None:
    run = tools(ASKS, ran(), failed())
    assert (run.exit.outcome["iterations"], len(run.conversation)) == (1, 4)


def test_limit_of_the_agent_ends_the_run_where_it_is() -> None:
    run = tools(ASKS, ran(), ledger=Ledger(caps={"model_calls": 1}))
    assert (run.exit.reason, run.exit.ok, run.exit.answer) == ("limit", False, None)
    assert run.exit.outcome["iterations"] == 1


def test_cancelled_run_has_no_answer() -> None:
    run = tools(calls("tool", text="nearly there"))
    ended = close(run.step, "cancelled", now=9000.0).exit
    assert ended is not None
    assert (ended.reason, ended.ok, ended.answer) == ("cancelled", False, None)


# -- random runs ----------------------------------------------------------------------------------

REPLIES = st.sampled_from([
    replied("42"), EMPTY, ASKS, calls("tool", "tool", "second", text="three"), failed("transient"),
    calls("tool", "nosuch", "tool"), cut(replied("4")), cut(calls("tool", bad('{"q": "x'))),
    calls(bad("{bad")), calls(bad("[1]"), bad("", "b")),
])  # fmt: skip
RESULTS = st.sampled_from([ran(), ran("", "failed"), ran("lost", "unknown_outcome"), failed()])


def well_formed(messages: tuple[Message, ...]) -> bool:
    """The results of each message's calls follow it at once, in order."""
    for at, message in enumerate(messages):
        ids = [one.id for one in message.tool_calls]
        found = [m.tool_call_id for m in messages[at + 1 : at + 1 + len(ids)] if m.role == "tool"]
        if ids != found:
            return False
    return True


@settings(deadline=None)
@given(data=st.data(), most=st.integers(1, 4), option=st.sampled_from(["raise", "report"]))
def test_random_answers_end_within_the_limits(data: st.DataObject, most: int, option: str) -> None:
    drawn = [(data.draw(REPLIES), data.draw(RESULTS)) for _ in range(3 * most + 2)]
    pairs = iter(drawn)

    def answer(effect: Any) -> Any:
        reply, result = next(pairs)
        if isinstance(effect, AskModel):
            return reply
        return result(effect) if callable(result) else result

    options = {"max_iterations": most, "unknown_tool": option}
    run = tools(*[answer] * len(drawn), options=options)
    assert run.exit.reason in MACHINE.exits
    assert sum(isinstance(effect, CallTools) for effect in run.effects) <= most
    assert len([one for one in run.asked if not one.label.endswith("again")]) <= most + 1
    assert all(well_formed(prompt) for prompt in run.prompts)


def test_log_grows_linearly() -> None:
    turns = [pair for n in range(40) for pair in (calls(call(q=str(n))), ran(str(n)))]
    options = {"max_iterations": 50, "policies": ["no_progress"]}
    run = play(program_of(MACHINE, options), (*turns, replied("42")), both_ways=False)
    sizes = [len(record.model_dump_json()) for record in run.records if record.event == "ToolsExecuted"]
    assert max(sizes) < 1.5 * min(sizes)
