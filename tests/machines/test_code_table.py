"""The table of the code machine, its limit, and every way in which a run ends (spec 2.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.contracts import CallModel, ContextRef
from activities.contracts_code import RunCode
from tests.machines import scripts_code
from tests.machines.answers import failed, said
from tests.machines.driver import Play, play, run_script, tool
from tests.machines.scripts_code import LOST, REPLIES, block, broke, calls, ran
from tests.machines.test_all_machines import answer_to
from workflows.kernel import errors
from workflows.kernel.design import Brief, Parts
from workflows.kernel.rebuild import rebuild
from workflows.kernel.step import Cause, advance, close, reenter
from workflows.machines.code_context import Options, S
from workflows.machines.code_prompt import FINAL_REQUEST
from workflows.registry import design

DESIGN = design("code")
LOOK = "EXECUTING PROMPTING"


def code(*answers: Any, **options: Any) -> Play:
    """A run with these knobs."""
    return run_script("code", answers, options=options)


def briefly(*answers: Any, options: Any = None, **brief: Any) -> Play:
    """A run that begins with this brief."""
    knobs = Options.model_validate(options or {})
    first = replace(Brief("Which?", "trace-1"), **brief)
    return play(DESIGN.build(knobs, Parts()), DESIGN.begin(first, knobs), answers)


def texts(call: CallModel) -> list[str]:
    """The messages of a model call."""
    return [message.content for message in call.transcript]


# -- the table ---------------------------------------------------------------------------------------


def test_the_table_is_that_of_the_spec_with_policies_and_errors() -> None:
    machine = DESIGN.build(Options(), Parts())
    rows = {(row.source.value, row.event.__name__, row.target.value) for row in machine.rows}
    ours = {row for row in rows if row[1] in ("Failed", "PolicyStop")}
    assert ours == {
        *((state, "Failed", "DONE") for state in ("INIT", "SHALLOW_CALL", "PROMPTING", "EXECUTING")),
        *((state, "PolicyStop", "DONE") for state in ("PROMPTING", "EXECUTING")),
    }
    assert rows - ours == {
        ("INIT", "DepthExceeded", "SHALLOW_CALL"),
        ("INIT", "LLMResponseReceived", "PROMPTING"),
        ("SHALLOW_CALL", "LLMResponseReceived", "DONE"),
        ("PROMPTING", "FinalAnswerFound", "DONE"),
        ("PROMPTING", "CodeBlocksFound", "EXECUTING"),
        ("EXECUTING", "FinalAnswerFound", "DONE"),
        ("EXECUTING", "MaxIterationsReached", "DONE"),
        ("EXECUTING", "CodeExecuted", "PROMPTING"),
    }
    assert (machine.initial, machine.final) == (S.INIT, {S.DONE})
    assert all(row.guard is None and row.action is None for row in machine.rows)


def test_an_event_that_fits_nothing_leaves_the_machine_where_it_is_a_bounded_number_of_times() -> None:
    """R-001-1: as in the generic machine, a hundred in a row."""
    machine = DESIGN.build(Options(), Parts())
    assert (machine.on_unmatched, machine.max_unmatched) == ("stay", 100)


# -- INIT --------------------------------------------------------------------------------------------


def test_the_first_prompt_reminds_of_the_context_and_later_ones_do_not() -> None:
    run = code(block("print(1)"), ran("1"), said("FINAL(1)"))
    first, second = (texts(call) for call in run.prompts)
    assert first[1].startswith("find out\n\nLook at the context")
    assert [text for text in second[2:] if "Look at the context" in text] == []


def test_a_missing_prompt_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="the prompt is missing"):
        DESIGN.begin(Brief(" \n", "trace-1"), Options())


def test_the_depth_is_looked_at_before_anything_else() -> None:
    run = briefly(said("FINAL(1)"), depth=1)
    assert run.visited == "INIT SHALLOW_CALL DONE"
    assert (run.records[1].event, run.records[1].patch) == ("DepthExceeded", {})
    assert run.records[1].reads == ("depth",)


@pytest.mark.parametrize(
    ("depth", "most", "shallow"), [(0, 1, False), (1, 1, True), (2, 1, True), (0, 0, True), (1, 2, False)]
)
def test_a_run_is_shallow_from_max_depth_on(depth: int, most: int, shallow: bool) -> None:
    run = briefly(depth=depth, options={"max_depth": most})
    assert (run.last.snapshot.state is S.SHALLOW_CALL) is shallow


# -- SHALLOW_CALL ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("just text", "just text"),
        ("So:\nFINAL(42)", "42"),
        ("FINAL_VAR(x)", "FINAL_VAR(x)"),
        ("FINAL_VAR(x)\nFINAL(1)", "FINAL_VAR(x)\nFINAL(1)"),
        ("FINAL()", "FINAL()"),
        ("```repl\nprint(1)\n```", "```repl\nprint(1)\n```"),
    ],
)
def test_a_shallow_call_answers_with_its_reply_and_final_unwrapped(reply: str, answer: str) -> None:
    run = briefly(said(reply), depth=1)
    assert (run.exit.answer, run.exit.reason, run.exit.ok) == (answer, "shallow", True)
    assert run.exit.outcome["iterations"] == 0
    assert [effect.kind for effect in run.effects] == ["call_model"]


def test_a_shallow_call_is_asked_the_bare_prompt() -> None:
    run = briefly(depth=1, tools=(tool("t"),))
    assert texts(run.prompts[0]) == ["Which?"]


def test_a_shallow_call_gets_as_much_of_the_context_as_fits() -> None:
    whole = briefly(depth=1, context="one two")
    assert texts(whole.prompts[0]) == ["Which?\n\none two"]
    cut = briefly(depth=1, context="one two", options={"shallow_chars": 3})
    assert texts(cut.prompts[0]) == ["Which?\n\none\n[4 characters left out]"]
    long = briefly(depth=1, context=ContextRef(digest="d", chars=12_345, bytes=12_345))
    assert "context of 12,345 characters, too long to be shown" in texts(long.prompts[0])[0]


def test_instructions_of_an_agent_hold_in_a_shallow_call_too() -> None:
    run = briefly(depth=1, instructions=" Be short. ")
    first = run.prompts[0].transcript.messages[0]
    assert (first.role, first.content) == ("system", "Be short.")


# -- PROMPTING ---------------------------------------------------------------------------------------


def test_no_model_is_called_in_prompting() -> None:
    machine = DESIGN.build(Options(), Parts())
    assert machine.states[S.PROMPTING].grants == {"run_code"}


def test_blocks_go_before_an_answer_in_the_same_reply() -> None:
    run = code(block("x = 1", behind="FINAL(42)"), ran())
    assert run.visited == "INIT PROMPTING EXECUTING DONE"
    assert [effect.kind for effect in run.effects] == ["call_model", "run_code"]
    assert (run.exit.answer, run.exit.reason) == ("42", "stop")


def test_an_answer_without_blocks_ends_at_once() -> None:
    run = code(said("Well.\nFINAL(42)"))
    assert run.visited == "INIT PROMPTING DONE"
    assert (run.exit.answer, run.exit.reason, run.exit.ok) == ("42", "stop", True)


def test_a_reply_with_neither_uses_up_an_iteration() -> None:
    run = code(said("hm"), said("FINAL(42)"))
    assert run.visited == f"INIT PROMPTING {LOOK} DONE"
    assert run.context.iteration == 1
    assert "There is no repl block in that" in run.told
    assert [r.event for r in run.records if r.state == "PROMPTING"] == ["CodeBlocksFound", "FinalAnswerFound"]


def test_a_block_that_is_left_open_is_not_run_and_the_model_is_told() -> None:
    run = code(said("```repl\nx = 1"), said("FINAL(42)"))
    assert "the last repl block is not closed" in run.told.lower()
    assert run.exit.answer == "42"


def test_the_closed_blocks_before_an_open_one_are_run() -> None:
    run = code(block("1", behind="```repl\n2"), ran("1"), said("FINAL(42)"))
    assert [effect.kind for effect in run.effects] == ["call_model", "run_code", "call_model"]
    assert "the last repl block is not closed" in run.told.lower()


# -- FINAL_VAR ---------------------------------------------------------------------------------------


def test_a_variable_is_printed_whole_and_stripped() -> None:
    run = code(block("x = 1"), ran(session="s7"), said("FINAL_VAR('x')"), ran("  two words \n"))
    looked_up = run.effects[-1]
    assert isinstance(looked_up, RunCode)
    assert (looked_up.block, looked_up.session, looked_up.before) == ("print(x)", "s7", "s7")
    assert looked_up.limits.output_chars == 1_000_000
    assert (run.exit.answer, run.exit.reason) == ("two words", "stop")


@pytest.mark.parametrize("first", [(said("FINAL_VAR(x)"),), (block("1", behind="FINAL_VAR(x)"), ran())])
def test_a_variable_that_is_too_long_for_an_answer_is_told_and_never_cut(first: Any) -> None:
    run = code(*first, ran("a" * 1_000_000, left_out=234), said("FINAL(1)"))
    assert run.told.startswith("FINAL_VAR gives no answer: it has 1,000,234 characters, at most 1,000,000")
    assert run.exit.answer == "1"
    run = code(*first, ran("a" * 1_000_000))
    assert (run.exit.ok, len(run.exit.answer or "")) == (True, 1_000_000)


@pytest.mark.parametrize("knob", ["retry", "answer"])
@pytest.mark.parametrize("in_blocks", [False, True])
def test_a_look_up_that_wants_to_call_something_finds_no_variable(in_blocks: bool, knob: Any) -> None:
    """A block may have defined a `print` of its own, which asks a model."""
    first = (
        (block("1", behind="FINAL_VAR(x)"), ran(session="s7"))
        if in_blocks
        else (block("1"), ran(session="s7"), said("FINAL_VAR(x)"))
    )
    run = code(*first, calls("llm_query", "1", session="waits"), said("FINAL(2)"), final_var_missing=knob)
    look_up = next(e for e in run.effects if isinstance(e, RunCode) and e.label.startswith("look up"))
    assert (look_up.block, look_up.names) == ("print(x)", ())
    assert run.context.session == "s7", "the session before the look-up is gone on with"
    problem = "to print it, llm_query would have to be called, which is not done here"
    if knob == "answer":
        assert run.exit.answer == problem
    else:
        assert run.told.startswith(f"FINAL_VAR gives no answer: {problem}")
        assert run.exit.answer == "2"


def test_a_variable_may_be_named_beside_blocks() -> None:
    run = code(block("x = 1", behind="FINAL_VAR(x)"), ran(session="s3"), ran("1"))
    assert run.visited == "INIT PROMPTING EXECUTING DONE"
    assert (run.exit.answer, run.exit.reason) == ("1", "stop")


@pytest.mark.parametrize("in_blocks", [False, True])
def test_R_001_3_an_unknown_variable_is_told_to_the_model_and_the_iteration_counts(in_blocks: bool) -> None:
    """R-001-3: by default it is no answer."""
    first = (block("1", behind="FINAL_VAR(x)"), ran()) if in_blocks else (said("FINAL_VAR(x)"),)
    run = code(*first, LOST, said("FINAL(42)"))
    assert run.visited == f"INIT PROMPTING {LOOK} DONE"
    assert run.told.startswith("FINAL_VAR gives no answer: NameError: name 'x' is not defined")
    assert "There is no repl block" not in run.told
    assert (run.context.iteration, run.exit.answer) == (1, "42")


@pytest.mark.parametrize("in_blocks", [False, True])
def test_R_001_3_the_error_is_the_answer_where_that_is_wanted(in_blocks: bool) -> None:
    """R-001-3: `final_var_missing: answer`."""
    first = (block("1", behind="FINAL_VAR(x)"), ran()) if in_blocks else (said("FINAL_VAR(x)"),)
    run = code(*first, LOST, final_var_missing="answer")
    assert (run.exit.answer, run.exit.reason) == ("NameError: name 'x' is not defined", "stop")


@pytest.mark.parametrize("name", ["x + 1", "", "x.y", "print", "__import__('os').system('ls')"])
@pytest.mark.parametrize("in_blocks", [False, True])
def test_R_001_3_what_is_no_variables_name_is_never_run(name: str, in_blocks: bool) -> None:
    """R-001-3: it is an unknown variable like any other; `print(...)` of it could do anything."""
    first = (block("1", behind=f"FINAL_VAR({name})"), ran()) if in_blocks else (said(f"FINAL_VAR({name})"),)
    run = code(*first)
    if name == "print":
        assert getattr(run.effects[-1], "block", None) == "print(print)"
        return
    assert "is not the name of a variable" in run.told
    assert [e for e in run.effects if isinstance(e, RunCode) and "print" in (e.block or "")] == []


def test_the_next_reply_may_name_a_variable_again() -> None:
    run = code(said("FINAL_VAR(x)"), LOST, block("x = 1"), ran(), said("FINAL_VAR(x)"), ran("1"))
    assert run.exit.answer == "1"
    run = code(said("FINAL_VAR(x)"), LOST, block("x = 1", behind="FINAL_VAR(x)"), ran(), ran("1"))
    assert run.exit.answer == "1"


def test_output_beats_an_error_when_a_variable_is_printed() -> None:
    assert code(said("FINAL_VAR(x)"), broke("Oops: later", printed="1")).exit.answer == "1"


# -- the answer --------------------------------------------------------------------------------------


@pytest.mark.parametrize("reply", ["FINAL()", "Nothing.\nFINAL(  )"])
def test_an_empty_answer_is_the_whole_reply(reply: str) -> None:
    run = code(said(reply))
    assert (run.exit.answer, run.exit.reason) == (reply, "stop")


def test_an_empty_variable_is_the_whole_reply() -> None:
    assert code(said("FINAL_VAR(x)"), ran(" \n")).exit.answer == "FINAL_VAR(x)"


# -- the limit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 2, 5])
def test_n_iterations_are_n_looks_and_at_most_one_call_more(most: int) -> None:
    run = code(*[said("hm")] * (most + 1), max_iterations=most)
    assert run.visited.split().count("PROMPTING") == most
    assert len(run.prompts) == most + 1
    assert (run.context.iteration, run.exit.outcome["iterations"]) == (most, most)
    assert run.last.ledger.used("iterations") == most


def test_an_answer_in_the_last_allowed_reply_needs_no_extra_call() -> None:
    run = code(said("hm"), said("FINAL(42)"), max_iterations=2)
    assert (len(run.prompts), run.exit.reason, run.exit.answer) == (2, "stop", "42")
    run = code(said("hm"), block("1", behind="FINAL(42)"), ran(), max_iterations=2)
    assert (len(run.prompts), run.exit.reason, run.exit.answer) == (2, "stop", "42")


def test_the_extra_call_asks_for_the_answer_and_its_whole_reply_is_one() -> None:
    run = code(block("1"), ran(), said("I think 42."), max_iterations=1)
    assert run.prompts[-1].transcript.messages[-1] == FINAL_REQUEST
    assert run.records[-1].event == "MaxIterationsReached"
    assert (run.exit.reason, run.exit.ok, run.exit.answer) == ("max_iterations", False, "I think 42.")
    assert "`max_iterations`" in str(run.exit.error)


def test_the_extra_call_with_final_ends_by_final_answer_found() -> None:
    run = code(said("hm"), said("So:\nFINAL(42)"), max_iterations=1)
    assert run.records[-1].event == "FinalAnswerFound"
    assert (run.exit.reason, run.exit.answer) == ("max_iterations", "42")


@pytest.mark.parametrize("reply", ["```repl\nFINAL(1)\n```", "FINAL_VAR(x)", "FINAL_VAR(x)\nFINAL(1)", ""])
def test_code_and_variables_of_the_extra_reply_are_left_alone(reply: str) -> None:
    run = code(said("hm"), said(reply), max_iterations=1)
    assert [effect.kind for effect in run.effects] == ["call_model"] * 2
    assert (run.records[-1].event, run.exit.answer) == ("MaxIterationsReached", reply)


def test_the_extra_reply_with_an_empty_answer_is_the_answer_as_it_stands() -> None:
    run = code(said("hm"), said("FINAL()"), max_iterations=1)
    assert (run.records[-1].event, run.exit.answer) == ("FinalAnswerFound", "FINAL()")


def test_R_001_2_every_end_has_its_reason() -> None:
    """R-001-2: stop, max_iterations, shallow, policy_stop; and `failed` for what leaves the run."""
    spender = {"policies": [{"type": "max_cost", "value": 1}]}
    runs = {
        "stop": code(said("FINAL(1)")),
        "max_iterations": code(said("hm"), said("FINAL(1)"), max_iterations=1),
        "shallow": code(said("FINAL(1)"), max_depth=0),
        "policy_stop": code(said("FINAL(1)", cost=2), **spender),
        "failed": code(failed("fatal")),
    }
    assert {reason: run.exit.reason for reason, run in runs.items()} == {reason: reason for reason in runs}
    assert set(DESIGN.exits) == set(runs)
    assert [reason for reason, run in runs.items() if run.exit.ok] == ["stop", "shallow"]


# -- failures ----------------------------------------------------------------------------------------

FAILURES = [
    pytest.param((), {}, "INIT", "ModelError", id="the first call"),
    pytest.param((), {"max_depth": 0}, "SHALLOW_CALL", "ModelError", id="the shallow call"),
    pytest.param((block("1"), ran()), {}, "EXECUTING", "ModelError", id="a later call"),
    pytest.param((said("hm"),), {"max_iterations": 1}, "EXECUTING", "ModelError", id="the extra call"),
    pytest.param((block("1"),), {}, "EXECUTING", "ExecutionError", id="the sandbox"),
    pytest.param(
        (said("FINAL_VAR(x)"),), {}, "PROMPTING", "ExecutionError", id="the sandbox, for a variable"
    ),
    pytest.param(
        (block("1"), calls("FINAL", 1)), {}, "EXECUTING", "ExecutionError", id="the sandbox, at the end"
    ),
]


@pytest.mark.parametrize("kind", ["transient", "recoverable", "fatal", "unknown_outcome"])
@pytest.mark.parametrize(("before", "options", "state", "raises"), FAILURES)
def test_a_failing_model_or_sandbox_leaves_the_run(
    before: Any, options: Any, state: str, raises: str, kind: Any
) -> None:
    run = code(*before, failed(kind, "gone", "HTTP500"), **options)
    last = run.records[-1]
    assert (last.state, last.event, last.to) == (state, "Failed", "DONE")
    assert (run.exit.reason, run.exit.ok, run.exit.answer) == ("failed", False, None)
    assert (run.exit.raises, run.exit.error) == (raises, "HTTP500: gone")
    assert issubclass(getattr(errors, raises), errors.KernelError)


def test_nothing_is_tried_again_unless_the_agent_says_so() -> None:
    asked = code(block("llm_query('a')"), calls("llm_query", "a")).prompts
    assert [call.attempts for call in asked] == [1, 1]
    asked = code(block("llm_query('a')"), calls("llm_query", "a"), max_model_attempts=4).prompts
    assert [call.attempts for call in asked] == [4, 4]


def test_a_run_that_is_closed_in_the_middle_has_no_answer() -> None:
    run = code(block("1"))
    closed = close(run.machine, run.last, "cancelled", now=9, error="enough", by="ann")
    assert closed.exit is not None
    assert (closed.exit.reason, closed.exit.answer, closed.exit.error) == ("cancelled", None, "enough")
    assert closed.snapshot.context.finish == "cancelled"


# -- a person's message ------------------------------------------------------------------------------


def _steered(run: Play, text: str = "hurry") -> Any:
    fold = run.machine.fold_steer
    assert fold is not None
    patch = fold(run.context, text)
    return reenter(run.machine, run.last, Cause("Steered", "ann"), now=50, patch=patch)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param((block("print(1)"),), id="a block"),
        pytest.param((block("llm_query('a')"), calls("llm_query", "a")), id="a sub-query"),
        pytest.param(
            (block("llm_query('a')"), calls("llm_query", "a"), said("b")), id="a block that goes on"
        ),
        pytest.param((block("tool()"), calls("tool", "a")), id="a tool"),
        pytest.param((said("FINAL_VAR(x)"),), id="a variable"),
        pytest.param((block("1", behind="FINAL_VAR(x)"), ran()), id="a variable beside blocks"),
    ],
)
def test_a_message_in_the_middle_asks_for_the_same_thing_again(before: Any) -> None:
    run = run_script("code", before, tools=[tool("tool", q={})])
    assert _steered(run).effect == run.last.effect


@pytest.mark.parametrize("before", [(), (block("1"), ran()), (said("hm"),)])
def test_a_message_before_a_model_call_is_in_it(before: Any) -> None:
    steered = _steered(code(*before, max_iterations=9))
    assert isinstance(steered.effect, CallModel)
    assert steered.effect.transcript.messages[-1].content == "hurry"


# -- random runs -------------------------------------------------------------------------------------


KNOBS = st.fixed_dictionaries(
    {},
    optional={
        "max_iterations": st.integers(1, 3),
        "max_depth": st.integers(0, 2),
        "final_var_missing": st.sampled_from(["retry", "answer"]),
        "nested": st.sampled_from(["never", "always", {"policy": "always", "mode": "inline"}]),
        "policies": st.sampled_from([["no_progress"], [{"type": "max_cost", "value": 0.3}]]),
        "compression": st.sampled_from([{"window_tokens": 1000, "at": 0.0001, "keep_last": 1, "least": 4}]),
        "block": st.sampled_from([{"calls": 2}, {"output_chars": 100}]),
    },
)


@settings(deadline=None, max_examples=150)
@given(options=KNOBS, data=st.data())
def test_any_run_under_any_knobs_follows_the_table_and_can_be_rebuilt(options: Any, data: Any) -> None:
    run = code(**options)
    steps, records = [run.last], list(run.records)
    for now in range(40):
        effect = steps[-1].effect
        if effect is None:
            break
        steps.append(
            advance(run.machine, steps[-1], data.draw(answer_to(effect, scripts_code)), now=2000 + now)
        )
        records += steps[-1].records
    last = steps[-1].snapshot
    assert rebuild(run.machine, records) == (last.state, last.context)
    assert [record.error for record in records if record.error] == []
    assert last.context.iteration <= run.machine.max_transitions
    assert (last.state is S.DONE) == (last.context.finish is not None)


@settings(deadline=None, max_examples=50)
@given(replies=st.lists(REPLIES, min_size=4, max_size=4), most=st.integers(1, 3))
def test_no_run_looks_at_more_replies_than_allowed(replies: list[Any], most: int) -> None:
    run = code(max_iterations=most)
    left = iter(replies)
    steps = list(run.steps)
    for now in range(60):
        effect = steps[-1].effect
        if effect is None:
            break
        main = isinstance(effect, CallModel) and effect.role == "default"
        answer = next(left) if main else said("b") if isinstance(effect, CallModel) else ran("printed")
        steps.append(advance(run.machine, steps[-1], answer, now=2000 + now))
    assert steps[-1].exit is not None
    assert len([s for s in steps if isinstance(s.effect, CallModel)]) <= most + 1
