"""The simple machine (spec 4.10): decide, check, act, until it is done."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from activities.contracts import CallTools
from tests.machines.answers import failed, said, tool_failed, tool_said
from tests.machines.driver import Play, run_script, tool
from tests.machines.plannerkit import returned
from tests.machines.scripts_simple import act, finish
from workflows.kernel.design import Parts
from workflows.kernel.errors import PolicyViolation
from workflows.kernel.ledger import Ledger
from workflows.machines.decisions import Decision
from workflows.machines.json_text import NotJson
from workflows.machines.simple_context import Options
from workflows.machines.simple_reply import NAME_LIMIT, read_decision

LOOK = tool("look", q={"type": "string"})


def simple(*answers: Any, hooks: dict[str, Callable[..., Any]] | None = None, **more: Any) -> Play:
    """A run with one tool at hand; keywords that are knobs go to the machine."""
    known = {"goal", "instructions", "ledger", "changed", "tools"}
    options = {name: more.pop(name) for name in list(more) if name not in known}
    parts = Parts(hooks=hooks or {})
    return run_script("simple", answers, options=options, parts=parts, **{"tools": (LOOK,), **more})


def ran(run: Play) -> list[Any]:
    """The arguments with which the tool was run."""
    return [e.runs[0].arguments for e in run.effects if isinstance(e, CallTools)]


def audit(run: Play) -> list[Any]:
    """The audit records in the result."""
    records: Any = run.exit.outcome["audit"]
    return list(records)


# -- the loop --------------------


def test_finish_ends_the_run_without_marks() -> None:
    run = simple(finish("42"))
    assert run.visited == "decide act done"
    assert (run.exit.ok, run.exit.reason, run.exit.answer) == (True, "finished", "42")
    assert run.exit.outcome["result"] == {"done": True}
    assert run.context.marks == ()
    assert ran(run) == []


@pytest.mark.parametrize(("answer", "shown"), [({"a": [1]}, '{"a": [1]}'), (3, "3"), ("", "")])
def test_an_answer_of_any_kind_is_shown_as_text(answer: Any, shown: str) -> None:
    assert simple(finish(answer)).exit.answer == shown


def test_finish_without_an_answer_leaves_the_last_result_as_the_answer() -> None:
    assert simple(act("look"), tool_said("seven"), act("finish")).exit.answer == "seven"
    assert simple(act("finish")).exit.answer is None


def test_every_step_is_one_model_call_with_one_attempt() -> None:
    run = simple(act("look", q="a"), tool_said("A"), act("look", q="b"), tool_said("B"), finish())
    assert run.visited == "decide act decide act decide act done"
    assert [call.attempts for call in run.prompts] == [1, 1, 1]
    assert [call.label for call in run.prompts] == ["decide #1", "decide #2", "decide #3"]
    assert ran(run) == [{"q": "a"}, {"q": "b"}]
    assert run.exit.outcome["iterations"] == 3


def test_a_successful_tool_sets_the_marks_and_its_own() -> None:
    run = simple(act("look"), returned("x", "found"), finish())
    assert run.context.marks == ("tool_called", "step_completed", "found")


def test_a_result_with_done_ends_the_run() -> None:
    run = simple(act("look"), tool_said('{"done": true, "sum": 3}'))
    assert (run.exit.ok, run.exit.reason, run.exit.answer) == (True, "done", '{"done": true, "sum": 3}')
    assert run.exit.outcome["result"] == {"done": True, "sum": 3}


@pytest.mark.parametrize("output", ['{"done": false}', '{"done": "yes"}', "done", "[true]"])
def test_any_other_result_goes_on(output: str) -> None:
    assert simple(act("look"), tool_said(output)).visited == "decide act decide"


def test_convergence_is_asked_after_a_step_and_ends_the_run() -> None:
    run = simple(act("look"), returned("x", "a"), act("look"), returned("y", "b"), converged=["a", "b"])
    assert (run.exit.ok, run.exit.reason, run.exit.answer) == (True, "converged", "y")
    assert run.exit.outcome["iterations"] == 2


def test_a_convergence_hook_sees_the_state_with_the_newest_result() -> None:
    hooks = {"enough": lambda state, progress: state.get("n") == 2 and progress.includes("tool_called")}
    run = simple(
        act("look"),
        tool_said('{"n": 1}'),
        act("look"),
        tool_said('{"n": 2}'),
        converged="enough",
        hooks=hooks,
    )
    assert (run.exit.reason, run.exit.outcome["iterations"]) == ("converged", 2)


def test_convergence_is_not_asked_before_the_first_step() -> None:
    run = simple(converged="always", hooks={"always": lambda state, progress: True})
    assert run.visited == "decide"


def test_more_steps_than_allowed_raise() -> None:
    run = simple(act("look"), tool_said(), act("look"), tool_said(), max_iterations=2)
    assert run.visited == "decide act decide act decide failed"
    assert (run.exit.reason, run.exit.raises, run.exit.ok) == (
        "max_iterations",
        "MaxIterationsExceeded",
        False,
    )
    assert run.exit.error == "Max iterations exceeded: 2 are allowed"
    assert len(run.prompts) == 2


def test_finishing_in_the_last_allowed_step_is_fine() -> None:
    assert simple(act("look"), tool_said(), finish(), max_iterations=2).exit.ok


def test_with_a_maximum_of_0_nothing_is_asked() -> None:
    run = simple(max_iterations=0)
    assert (run.exit.raises, run.prompts) == ("MaxIterationsExceeded", ())


def test_the_default_maximum_is_50() -> None:
    run = simple(*(act("look"), tool_said()) * 50)
    assert (run.exit.reason, run.exit.outcome["iterations"], run.unused) == ("max_iterations", 50, 0)


def test_the_log_grows_linearly() -> None:
    """Deltas: no record holds what was there before."""
    size = {
        turns: sum(len(r.model_dump_json()) for r in simple(*(act("look"), tool_said()) * turns).records)
        for turns in (10, 20, 30)
    }
    assert abs((size[30] - size[20]) - (size[20] - size[10])) < 0.1 * (size[20] - size[10])


# -- state (4.9) --------------------


def test_results_that_are_mappings_are_merged_deeply_into_the_state() -> None:
    run = simple(
        act("look"), tool_said('{"a": {"b": 1}, "l": [1, 2]}'),
        act("look"), tool_said('{"a": {"c": 2}, "l": [3]}'), finish(),
    )  # fmt: skip
    assert run.exit.outcome["state"] == {"a": {"b": 1, "c": 2}, "l": [3], "done": True}


@pytest.mark.parametrize("output", ["plain", "[1, 2]", "3", ""])
def test_a_result_that_is_no_mapping_is_ignored_by_the_state(output: str) -> None:
    run = simple(act("look"), tool_said('{"a": 1}'), act("look"), tool_said(output))
    assert run.context.state == {"a": 1}


# -- inputs --------------------


def test_the_model_is_told_tools_format_and_goal() -> None:
    run = simple(instructions="Be brief.")
    system, user = run.prompts[0].transcript.messages
    assert system.content.startswith("Be brief.")
    assert '- look: does look\n  params: {"properties": {"q"' in system.content
    assert '{"action": "the name of a tool, or finish"' in system.content
    assert user.content == "find out"
    assert "there is only finish" in simple(tools=()).prompts[0].transcript.messages[0].content


def test_the_next_input_has_the_result_by_default() -> None:
    run = simple(act("look"), tool_said("found"))
    assert run.told == "Result of look: found\nGo on with the next action, or finish."
    run = simple(act("look"), tool_said('{"n": [1]}'))
    assert run.told.startswith('Result of look: {"n": [1]}\n')


def test_an_input_builder_gets_the_result_and_the_iteration() -> None:
    hooks = {"mine": lambda result, iteration: f"{iteration}: {result}"}
    run = simple(act("look"), tool_said("a"), act("look"), tool_said("b"), input_builder="mine", hooks=hooks)
    assert [m.content for m in run.context.transcript if m.role == "user"] == ["find out", "1: a", "2: b"]


@pytest.mark.parametrize(("knobs", "hook", "words"), [
    ({"input_builder": "h"}, lambda result, n: result["x"], "the input builder failed: TypeError"),
    ({"input_builder": "h"}, lambda result, n: None, "the input builder answered a value of type NoneType"),
    ({"converged": "h"}, lambda state, progress: 1, "the hook `converged` answered a value of type int"),
    ({"converged": "h"}, lambda state, progress: state["x"], "the hook `converged` failed: KeyError"),
])  # fmt: skip
def test_a_hook_that_fails_raises_and_what_the_tool_returned_is_kept(
    knobs: Any, hook: Any, words: str
) -> None:
    run = simple(act("look"), tool_said("found"), hooks={"h": hook}, **knobs)
    assert (run.exit.reason, run.exit.raises) == ("hook_failed", "ExecutionError")
    assert words in str(run.exit.error)
    assert (run.context.result, run.context.marks) == ("found", ("tool_called", "step_completed"))


@pytest.mark.parametrize("knob", ["policy", "converged", "input_builder"])
def test_a_machine_with_an_unknown_hook_is_not_built(knob: str) -> None:
    with pytest.raises(ValueError, match=f"{knob}: unknown hook 'nosuch'"):
        run_script("simple", (), options={knob: "nosuch"})


# -- what goes wrong --------------------


@pytest.mark.parametrize(("reply", "words"), [
    (act(None), "the decision has no action"),
    (act(""), "the decision has no action"),
    (act("look", 0.4), "Low confidence"),
])  # fmt: skip
def test_a_policy_violation_leaves_the_loop_and_nothing_is_run(reply: Any, words: str) -> None:
    run = simple(reply)
    assert run.visited == "decide failed"
    assert (run.exit.reason, run.exit.raises) == ("policy_violation", "PolicyViolation")
    assert words in str(run.exit.error)


def test_a_confidence_of_exactly_a_half_passes() -> None:
    assert simple(act("look", 0.5)).visited == "decide act"


def test_a_users_policy_sees_decision_and_state() -> None:
    def rule(decision: Any, state: Any) -> None:
        if decision.action == "look" and state.get("looked"):
            raise PolicyViolation("once is enough")

    run = simple(act("look"), tool_said('{"looked": true}'), act("look"), policy="rule", hooks={"rule": rule})
    assert (run.exit.raises, run.exit.error) == ("PolicyViolation", "once is enough")


@pytest.mark.parametrize("error", ["failed", "transient", "timeout", "bad_arguments", "unknown_tool"])
def test_a_tool_that_fails_raises_with_the_causes_text(error: Any) -> None:
    run = simple(act("look"), tool_failed(error, "broken"))
    assert run.visited == "decide act failed"
    assert (run.exit.reason, run.exit.raises, run.exit.error) == ("tool_failure", "ExecutionError", "broken")
    assert run.context.marks == ()


@pytest.mark.parametrize("error", ["transient", "recoverable", "fatal"])
def test_a_tool_call_that_could_not_be_made_raises_too(error: Any) -> None:
    run = simple(act("look"), failed(error, "lost"))
    assert (run.exit.reason, run.exit.raises, run.exit.error) == ("tool_failure", "ExecutionError", "lost")


def test_a_tool_that_is_not_there_raises_and_says_what_is() -> None:
    run = simple(act("nosuch"))
    assert (run.exit.raises, run.exit.error) == ("ExecutionError", "Tool not found: nosuch; there is look")
    assert ran(run) == []


def test_a_tool_whose_outcome_nobody_knows_ends_the_run() -> None:
    for lost in (tool_failed("unknown_outcome", "nobody knows"), failed("unknown_outcome", "nobody knows")):
        run = simple(act("look"), lost)
        assert (run.exit.reason, run.exit.error, len(ran(run))) == ("unknown_outcome", "nobody knows", 1)


@pytest.mark.parametrize("error", ["transient", "recoverable", "fatal", "unknown_outcome"])
def test_a_model_that_cannot_be_asked_raises(error: Any) -> None:
    run = simple(failed(error, "bad key"))
    assert (run.exit.reason, run.exit.raises, run.exit.error) == ("model_failed", "ExecutionError", "bad key")
    assert simple(failed(error, "")).exit.error == "HTTP503"


@pytest.mark.parametrize(("text", "words"), [
    ("I look", "it is not JSON"),
    ("[]", "a list came"),
    ('{"action": 3}', "`action` must be a text"),
    ('{"action": "look", "params": []}', "`params` must be an object"),
    ('{"action": "look", "confidence": "high"}', "`confidence` must be a number"),
    ('{"action": "look", "confidence": true}', "`confidence` must be a number"),
])  # fmt: skip
def test_a_reply_that_is_no_decision_raises(text: str, words: str) -> None:
    run = simple(said(text))
    assert (run.exit.reason, run.exit.raises) == ("bad_decision", "ExecutionError")
    assert words in str(run.exit.error)


def test_a_limit_of_the_agent_ends_the_run_where_it_is() -> None:
    run = simple(act("look"), tool_said(), ledger=Ledger(caps={"model_calls": 1}))
    assert (run.exit.reason, run.exit.raises, len(audit(run))) == ("limit", None, 1)


# -- audit --------------------


def test_every_step_is_audited_with_input_decision_and_result() -> None:
    run = simple(act("look", 0.9, q="x"), tool_said("found"), finish("42"))
    assert audit(run) == [
        {
            "input": "find out",
            "decision": {"action": "look", "params": {"q": "x"}, "confidence": 0.9},
            "result": "found",
        },
        {
            "input": "Result of look: found\nGo on with the next action, or finish.",
            "decision": {"action": "finish", "params": {"answer": "42"}, "confidence": None},
            "result": {"done": True},
        },
    ]


@pytest.mark.parametrize(("answers", "decided"), [
    ((act("look"), tool_failed("failed", "broken")), True),
    ((act("nosuch"),), True),
    ((act("look", 0.1),), True),
    ((said("hm"),), False),
    ((failed("fatal"),), False),
])  # fmt: skip
def test_a_step_that_fails_is_audited_too(answers: Any, decided: bool) -> None:
    run = simple(*answers)
    (record,) = audit(run)
    assert (record["input"], record["decision"] is not None) == ("find out", decided)
    assert record["result"] == {"error": run.exit.error}


# -- the parser --------------------


@given(st.text())
def test_the_parser_never_raises_on_any_text(text: str) -> None:
    assert isinstance(read_decision(text), Decision | NotJson)


@given(
    st.dictionaries(
        st.sampled_from(["action", "params", "confidence", "x"]),
        st.none()
        | st.text()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.booleans()
        | st.lists(st.integers())
        | st.dictionaries(st.text(), st.integers()),
    )
)
def test_the_parser_never_raises_on_any_object(value: Any) -> None:
    assert isinstance(read_decision(json.dumps(value)), Decision | NotJson)


def test_params_are_normalised() -> None:
    read = read_decision('{"params": {":q": 1, " limit ": 2, "path": {":x": 3}, " : far ": 4}}')
    assert read == Decision(None, {"q": 1, "limit": 2, "path": {":x": 3}, "far": 4})
    assert ran(simple(said('{"action": " look ", "params": {":q": "x"}}'))) == [{"q": "x"}]


@pytest.mark.parametrize("key", [" path", "path ", ":path", " :path", ": path", "\\tpath\\n"])
def test_the_policy_is_asked_about_exactly_what_runs(key: str) -> None:
    """However the model spells a name, policy, tool and audit have the same parameters."""
    seen: list[Any] = []

    def rule(decision: Any, state: Any) -> str | None:
        seen.append((decision.action, dict(decision.params)))
        return "not that" if decision.params.get("path") == "/etc/passwd" else None

    def reply(path: str) -> Any:
        return said(f'{{"action": " look ", "params": {{"{key}": "{path}"}}}}')

    refused = simple(reply("/etc/passwd"), policy="rule", hooks={"rule": rule})
    assert (refused.exit.reason, ran(refused)) == ("policy_violation", [])
    assert audit(refused)[0]["decision"]["params"] == {"path": "/etc/passwd"}
    let_pass = simple(reply("notes.txt"), policy="rule", hooks={"rule": rule})
    assert ran(let_pass) == [seen[1][1]] == [{"path": "notes.txt"}]


@pytest.mark.parametrize("second", [":q", " q", ": q "])
def test_parameters_of_the_same_name_are_refused(second: str) -> None:
    run = simple(said(f'{{"action": "look", "params": {{"q": "a", "{second}": "b"}}}}'))
    assert (run.exit.reason, ran(run)) == ("bad_decision", [])
    assert "names one parameter twice" in str(run.exit.error)


def test_an_action_that_is_too_long_is_refused_and_cut() -> None:
    assert simple(act("x" * NAME_LIMIT)).exit.reason == "tool_failure"
    run = simple(act("x" * 1_000_000))
    assert run.exit.reason == "bad_decision"
    assert len(str(run.exit.error)) < 300


def test_a_policy_cannot_change_what_is_run() -> None:
    for change in (
        lambda decision: decision.params.update(q="mine"),
        lambda decision: decision.params["l"].append("mine"),
    ):

        def rule(decision: Any, state: Any, change: Any = change) -> None:
            with pytest.raises(TypeError, match="read-only"):
                change(decision)

        run = simple(act("look", q="a", l=["b"]), policy="rule", hooks={"rule": rule})
        assert ran(run) == [{"q": "a", "l": ["b"]}]


def test_an_input_builder_cannot_change_the_result() -> None:
    def mine(result: Any, iteration: int) -> str:
        with pytest.raises(TypeError, match="read-only"):
            result["n"] = 2
        with pytest.raises(TypeError, match="read-only"):
            result["l"].append(1)
        return "next"

    run = simple(act("look"), tool_said('{"n": 1, "l": []}'), input_builder="mine", hooks={"mine": mine})
    assert (run.visited, run.context.result) == ("decide act decide", {"n": 1, "l": []})


@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 400, "1e308", "30", "1.01", "-0.01"])
def test_a_confidence_outside_its_range_ends_the_run(number: str) -> None:
    run = simple(said(f'{{"action": "look", "params": {{}}, "confidence": {number}}}'))
    assert (run.visited, run.exit.reason in ("policy_violation", "bad_decision")) == ("decide failed", True)


def test_a_decision_that_was_cut_names_the_length_limit() -> None:
    run = simple(said('{"action": "look", "par').model_copy(update={"finish_reason": "length"}))
    assert (run.exit.reason, run.exit.raises) == ("bad_decision", "ExecutionError")
    assert "cut at its length limit (max_output_tokens)" in str(run.exit.error)


def test_finish_wins_over_a_tool_of_that_name() -> None:
    run = simple(finish("42"), tools=(tool("finish", answer={"type": "string"}),))
    assert (run.exit.reason, run.exit.answer, ran(run)) == ("finished", "42", [])


def test_a_step_whose_model_fails_counts_all_the_same() -> None:
    assert simple(failed("fatal")).exit.outcome["iterations"] == 1
    assert simple(act("look"), tool_said(), failed("fatal")).exit.outcome["iterations"] == 2


def test_a_decision_is_forgotten_when_its_step_is_done() -> None:
    run = simple(act("look", q="a"))
    assert run.context.decision == {"action": "look", "params": {"q": "a"}, "confidence": None}
    assert simple(act("look", q="a"), tool_said()).context.decision is None


@pytest.mark.parametrize("most", [0, 1, 2, 5])
def test_the_limit_of_steps_is_reached_before_any_other(most: int) -> None:
    """The machine's own bound on transitions leaves room for all of them."""
    run = simple(*(act("look"), tool_said()) * most, max_iterations=most)
    assert run.exit.reason == "max_iterations"
    assert run.machine.max_transitions > len(run.visited.split())


# -- knobs --------------------


def test_the_defaults_are_those_of_the_spec() -> None:
    knobs = Options()
    assert (knobs.max_iterations, knobs.min_confidence) == (50, 0.5)
    assert (knobs.policy, knobs.converged, knobs.input_builder) == (None, None, None)
    assert simple(reply_format="json_schema").prompts[0].response_schema is not None
    assert simple().prompts[0].response_schema is None


@pytest.mark.parametrize(("knob", "value", "words"), [
    ("max_iterations", -1, "greater than or equal to 0"),
    ("min_confidence", 2, "less than or equal to 1"),
    ("converged", [], "at least 1 item"),
    ("reply_format", "xml", "'text' or 'json_schema'"),
    ("max_iteration", 5, "Extra inputs"),
])  # fmt: skip
def test_a_knob_outside_its_range_is_refused_with_the_range(knob: str, value: Any, words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Options.model_validate({knob: value})
    assert words in str(refused.value)
    assert knob in str(refused.value)


def test_every_knob_says_what_it_is() -> None:
    for name, field in Options.model_fields.items():
        assert field.description, name
