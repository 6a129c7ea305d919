"""A visit of EXECUTING: blocks, their calls, and what the model is shown of them (spec 2.2, 2.4)."""

from __future__ import annotations

from typing import Any

import pytest

from activities.contracts import CallModel, CallModels, CallTools, ContextRef, ToolResult, ToolsReturned
from activities.contracts_code import CodeAnswer, RunCode
from tests.machines.answers import failed, said, tool_failed, tool_said
from tests.machines.driver import Play, run_script, tool
from tests.machines.scripts_code import block, broke, calls, ran, together
from workflows.kernel.ledger import Ledger
from workflows.machines.code_calls import BUILT_IN

SEARCH = tool("search", pattern={"type": "string"}, limit={"type": "integer"})
MARK = tool("my-tool.v2", line={"type": "string"})


def code(*answers: Any, tools: Any = (), changed: Any = None, ledger: Any = None, **options: Any) -> Play:
    """A run with these knobs."""
    return run_script("code", answers, options=options, tools=tools, changed=changed, ledger=ledger)


def steps(run: Play) -> list[RunCode]:
    """What the sandbox was asked for."""
    return [effect for effect in run.effects if isinstance(effect, RunCode)]


def told(run: Play) -> list[str]:
    """What the model was told of blocks, in order."""
    return [m.content for m in run.context.transcript if m.content.startswith("Code:")]


def answered(run: Play) -> CodeAnswer:
    """What the block was last given as the answer to its call."""
    answer = steps(run)[-1].answer
    assert answer is not None
    return answer


def one_call(name: str, *args: Any, tools: Any = (), **named: Any) -> Play:
    """A run whose block has just made this call."""
    return code(block("..."), calls(name, *args, **named), tools=tools)


# -- blocks in order, one session --------------------------------------------------------------------


def test_blocks_run_in_order_and_each_has_a_message_behind_the_reply() -> None:
    run = code(block("one", "two"), ran("1\n"), ran("2\n"), said("FINAL(42)"))
    assert [step.block for step in steps(run)] == ["one", "two"]
    roles = [message.role for message in run.context.transcript]
    assert roles == ["system", "user", "assistant", "user", "user", "assistant"]
    assert told(run) == [
        "Code:\n```repl\none\n```\nOutput:\n1",
        "Code:\n```repl\ntwo\n```\nOutput:\n2",
    ]
    assert run.prompts[1].transcript.messages == run.context.transcript.messages[:-1]


def test_one_session_is_kept_from_block_to_block_and_from_reply_to_reply() -> None:
    run = code(
        block("1", "2"), ran(session="a"), ran(session="b"), block("3"), ran(session="c"), said("FINAL(4)")
    )
    assert [(step.session, step.before) for step in steps(run)] == [("", ""), ("a", "a"), ("b", "b")]


def test_what_a_block_is_given() -> None:
    run = code(block("1"), changed={"depth": 0, "material": "text"}, tools=(SEARCH, MARK))
    (first,) = steps(run)
    assert first.names == (*BUILT_IN, "search", "my_tool_v2")
    assert BUILT_IN == ("llm_query", "llm_query_batched", "FINAL", "FINAL_VAR")
    assert first.constants == {"DEPTH": 0, "CORRELATION_ID": "trace-1"}
    assert first.context == "text"
    assert (first.limits.seconds, first.limits.output_chars) == (300, 20_000)


def test_without_a_context_the_goal_is_the_context() -> None:
    assert steps(code(block("1")))[0].context == "find out"


def test_a_short_context_is_given_to_a_fresh_session_only_and_a_long_one_always() -> None:
    ref = ContextRef(digest="d", chars=9, bytes=9)
    for material, later in (("text", None), (ref, ref)):
        run = code(block("1", "2"), ran(), ran(), changed={"material": material})
        assert [step.context for step in steps(run)] == [material, later]


def test_a_short_context_travels_with_every_step_once_code_reaches_for_parts_of_it() -> None:
    answers = (block("1"), ran(), block("context_len()", "2"), ran(), ran(), block("3"))
    run = code(*answers, changed={"material": "text"})
    assert [step.context for step in steps(run)] == ["text", "text", "text", "text"]
    run = code(block("1"), ran(), block("len(context)"), changed={"material": "text"})
    assert [step.context for step in steps(run)] == ["text", None]


def test_a_session_that_is_fresh_again_is_given_the_context_again() -> None:
    run = code(block("1", "2"), broke("TimeoutError", session="", fatal=True), changed={"material": "text"})
    assert [step.context for step in steps(run)] == ["text", "text"]


def test_the_session_before_a_block_is_known_at_each_of_its_calls() -> None:
    run = code(
        block("1", "2"), ran(session="a"), calls("llm_query", "x", session="b"), said("y"),
        calls("llm_query", "x", session="c"), said("y"),
    )  # fmt: skip
    assert [(step.session, step.before) for step in steps(run)[1:]] == [("a", "a"), ("b", "a"), ("c", "a")]


def test_limits_of_a_block_can_be_set() -> None:
    run = code(block("1"), block={"seconds": 5, "output_chars": 100})
    assert (steps(run)[0].limits.seconds, steps(run)[0].limits.output_chars) == (5, 100)


# -- what the model is shown -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended", "shown"),
    [
        pytest.param(ran("one\ntwo\n"), "one\ntwo", id="what was printed"),
        pytest.param(ran(""), "(nothing was printed)", id="a bare expression prints nothing"),
        pytest.param(
            broke("ValueError: bad", "one\n"), "one\nValueError: bad", id="output and then the error"
        ),
        pytest.param(broke("ValueError: bad"), "ValueError: bad", id="the error alone"),
        pytest.param(
            ran("abc", left_out=12_345), "abc\n[12,345 characters left out]", id="a note of the cut"
        ),
        pytest.param(broke("Oops", "abc", left_out=5), "abc\n[5 characters left out]\nOops", id="all three"),
    ],
)
def test_the_model_is_shown(ended: Any, shown: str) -> None:
    run = code(block("1"), ended, said("FINAL(1)"))
    assert told(run) == [f"Code:\n```repl\n1\n```\nOutput:\n{shown}"]


def test_an_error_ends_its_block_and_the_others_go_on() -> None:
    run = code(block("one", "two"), broke("ValueError", session="a"), ran("2"), said("FINAL(42)"))
    assert [step.block for step in steps(run)] == ["one", "two"]
    assert steps(run)[1].session == "a", "what was set before the error is kept"
    assert run.exit.reason == "stop"


def test_what_is_printed_between_calls_is_shown_together() -> None:
    run = code(
        block("..."), calls("llm_query", "a", printed="one\n"), said("b"),
        calls("llm_query", "a", printed="two\n"), said("b"), ran("three\n"), block("2"), ran("four"),
        said("FINAL(1)"),
    )  # fmt: skip
    assert [text.partition("Output:\n")[2] for text in told(run)] == ["one\ntwo\nthree", "four"]


def test_output_is_cut_over_the_whole_block() -> None:
    """Spec 2.4: 20,000 characters, with a note how many were cut."""
    run = code(
        block("...", "2"), calls("llm_query", "a", printed="a" * 15_000), said("b"),
        calls("llm_query", "a", printed="b" * 15_000, ), said("b"),
        ran("c" * 7, left_out=3), ran("d" * 20_000), said("FINAL(1)"),
    )  # fmt: skip
    first, second = (text.partition("Output:\n")[2] for text in told(run))
    assert first == "a" * 15_000 + "b" * 5_000 + "\n[10,010 characters left out]"
    assert second == "d" * 20_000
    assert sum(map(len, run.context.printed)) == 20_000


def test_after_a_fatal_step_the_session_before_the_block_is_gone_on_with() -> None:
    run = code(
        block("1", "2", "3"), ran(session="a"), calls("llm_query", "x", session="b"), said("y"),
        broke("TimeoutError: out of time\nThe variables are again as before.", session="a", fatal=True),
        ran("3", session="c"), said("FINAL(1)"),
    )  # fmt: skip
    went_on = steps(run)[2]
    assert (went_on.block, went_on.session, went_on.before) == (None, "b", "a")
    assert (steps(run)[3].block, steps(run)[3].session, steps(run)[3].before) == ("3", "a", "a")
    assert "TimeoutError: out of time" in told(run)[1]
    assert "3" in told(run)[2]


# -- sub-queries -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "named", "role"),
    [
        (("what?",), {}, "sub"),
        ((), {"prompt": "what?"}, "sub"),
        (("what?", None), {}, "sub"),
        (("what?", "default"), {}, "default"),
        (("what?",), {"model": "sub"}, "sub"),
    ],
)
def test_a_sub_query_is_one_plain_call_with_that_prompt_alone(args: Any, named: Any, role: str) -> None:
    run = one_call("llm_query", *args, **named)
    asked = run.last.effect
    assert isinstance(asked, CallModel)
    assert [(m.role, m.content) for m in asked.transcript] == [("user", "what?")]
    assert (asked.role, asked.offer) == (role, ())


def test_its_answer_goes_back_into_the_block() -> None:
    run = code(block("..."), calls("llm_query", "a", session="s5"), said("b"))
    went_on = steps(run)[-1]
    assert (went_on.block, went_on.session, went_on.before) == (None, "s5", "")
    assert went_on.answer == CodeAnswer(value="b")


def test_sub_queries_leave_the_conversation_alone() -> None:
    run = code(block("..."), calls("llm_query", "secret"), said("hidden"), ran(), said("FINAL(1)"))
    assert not any("secret" in m.content or "hidden" in m.content for m in run.context.transcript)


@pytest.mark.parametrize("kind", ["transient", "recoverable", "fatal"])
def test_a_failing_sub_query_gives_a_text_that_begins_with_error(kind: Any) -> None:
    run = code(block("..."), calls("llm_query", "a"), failed(kind, "overloaded", "HTTP529"))
    assert answered(run) == CodeAnswer(value="Error: HTTP529: overloaded")


def test_a_batch_is_asked_side_by_side_and_gives_one_list_in_the_same_order() -> None:
    batch = calls("llm_query_batched", ["a", "b", "c"], model="default")
    run = code(block("..."), batch, together(said("A"), failed("fatal", "no", "X"), said("C")))
    asked = run.effects[2]
    assert isinstance(asked, CallModels)
    assert [[m.content for m in one.transcript] for one in asked.calls] == [["a"], ["b"], ["c"]]
    assert {(one.role, one.offer, one.attempts) for one in asked.calls} == {("default", (), 1)}
    assert asked.label == "llm_query 1-3"
    assert answered(run) == CodeAnswer(value=["A", "Error: X: no", "C"])
    assert run.last.ledger.used("model_calls") == 4


def test_a_large_batch_is_asked_in_several_parts() -> None:
    prompts = [str(n) for n in range(250)]
    parts = [together(*[said(f"{n}!") for n in range(a, b)]) for a, b in ((0, 100), (100, 200), (200, 250))]
    run = code(block("..."), calls("llm_query_batched", prompts), *parts)
    asked = [effect for effect in run.effects if isinstance(effect, CallModels)]
    assert [len(effect.calls) for effect in asked] == [100, 100, 50]
    assert [effect.label for effect in asked] == ["llm_query 1-100", "llm_query 101-200", "llm_query 201-250"]
    assert answered(run).value == [f"{n}!" for n in prompts]


def test_a_batch_of_one_is_one_plain_call_and_still_gives_a_list() -> None:
    run = code(block("..."), calls("llm_query_batched", ["a"]), said("A"))
    assert isinstance(run.effects[2], CallModel)
    assert answered(run) == CodeAnswer(value=["A"])


def test_batches_and_queries_of_one_block_do_not_mix() -> None:
    run = code(
        block("..."), calls("llm_query", "a"), said("A"), calls("llm_query_batched", ["b", "c"]),
        together(said("B"), said("C")), calls("llm_query_batched", ["d"]), said("D"), calls("llm_query", "e"),
        said("E"), ran(),
    )  # fmt: skip
    answers = [step.answer.value for step in steps(run) if step.answer]
    assert answers == ["A", ["B", "C"], ["D"], "E"]


@pytest.mark.parametrize("kind", ["transient", "recoverable", "fatal"])
def test_a_batch_that_fails_as_a_whole_gives_an_error_for_each_of_its_prompts(kind: Any) -> None:
    run = code(block("..."), calls("llm_query_batched", ["a", "b"]), failed(kind, "gone", "X"))
    assert answered(run) == CodeAnswer(value=["Error: X: gone"] * 2)


def test_a_batch_beyond_the_limit_of_model_calls_ends_the_run() -> None:
    batch = calls("llm_query_batched", ["a", "b"])
    run = code(block("..."), batch, ledger=Ledger(caps={"model_calls": 2}))
    assert (run.exit.reason, run.exit.answer) == ("limit", None)


def test_an_empty_batch_asks_nobody() -> None:
    run = one_call("llm_query_batched", [])
    assert (answered(run), len(run.prompts)) == (CodeAnswer(value=[]), 1)


@pytest.mark.parametrize(
    ("name", "args", "named", "problem"),
    [
        ("llm_query", (1,), {}, "llm_query takes a text, not a value of type int"),
        ("llm_query", (["a"],), {}, "a text, not a value of type list"),
        ("llm_query", (None,), {}, "a text, not None"),
        ("llm_query", (), {}, "llm_query needs prompt"),
        ("llm_query", ("a", "b", "c"), {}, "at most 2 positional arguments, 3 were given"),
        ("llm_query", ("a",), {"prompt": "b"}, "was given 'prompt' twice"),
        ("llm_query", ("a",), {"temperature": 1}, "has no parameter 'temperature'"),
        ("llm_query", ("a", "gpt"), {}, "unknown model 'gpt'; there is default and sub"),
        ("llm_query", ("a", ["sub"]), {}, "unknown model"),
        ("llm_query_batched", ("a",), {}, "takes a list of texts, not a value of type str"),
        ("llm_query_batched", (["a", 1],), {}, "item 1 is a value of type int"),
        ("llm_query_batched", (["a", None],), {}, "item 1 is None"),
        ("llm_query_batched", (), {}, "needs prompts"),
    ],
)
def test_bad_input_gives_one_error_text(name: str, args: Any, named: Any, problem: str) -> None:
    run = one_call(name, *args, **named)
    answer = answered(run)
    assert str(answer.value).startswith("Error: ")
    assert problem in str(answer.value)
    assert (answer.error, len(run.prompts)) == (None, 1)


def test_more_calls_than_a_block_may_make_give_an_error_text() -> None:
    run = code(block("..."), calls("llm_query_batched", ["a"] * 11), block={"calls": 10})
    assert "more than 10 calls in one block" in str(answered(run).value)
    run = code(
        block("...", "2"), calls("llm_query_batched", ["a"] * 2), together(said("b"), said("c")),
        calls("llm_query", "d"), ran(), calls("llm_query", "e"), block={"calls": 2},
    )  # fmt: skip
    assert "more than 2 calls" in str(steps(run)[2].answer)
    assert isinstance(run.last.effect, CallModel), "the next block counts anew"


def test_sub_queries_are_recorded_on_the_block_that_made_them() -> None:
    run = code(
        block("1", "2"), calls("llm_query", "a"), said("A"), ran(),
        calls("llm_query_batched", ["b"], model="default"), said("B"), ran(), said("FINAL(1)"),
    )  # fmt: skip
    patches: list[Any] = [record.patch for record in run.records[1:]]
    asked = [query for patch in patches for query in patch.get("asked", ())]
    answers = [text for patch in patches for text in patch.get("answers", ())]
    assert asked == [
        {"block": 0, "prompt": "a", "role": "sub"},
        {"block": 1, "prompt": "b", "role": "default"},
    ]
    assert answers == ["A", "B"]


def test_the_usage_of_sub_queries_is_counted_once() -> None:
    run = code(
        block("...", cost=1), calls("llm_query", "a"), said("b", cost=0.5), ran(), said("FINAL(1)", cost=2)
    )
    assert run.last.ledger.used("cost_usd") == 3.5
    assert run.last.ledger.used("model_calls") == 3


def test_a_limit_of_the_agent_ends_the_run_at_a_sub_query_too() -> None:
    run = code(block("..."), calls("llm_query", "a"), ledger=Ledger(caps={"model_calls": 1}))
    assert (run.exit.reason, run.exit.answer) == ("limit", None)


def test_the_log_grows_by_the_same_amount_with_each_sub_query() -> None:
    def logged(count: int) -> int:
        turns = [part for n in range(count) for part in (calls("llm_query", f"{n:09}"), said(f"{n:09}"))]
        run = code(block("..."), *turns, ran("done"), said("FINAL(1)"))
        return sum(len(record.model_dump_json()) for record in run.records)

    ten, twenty, forty = logged(10), logged(20), logged(40)
    assert forty - twenty < 2.1 * (twenty - ten)


def test_the_next_visit_begins_with_no_queries() -> None:
    run = code(block("..."), calls("llm_query", "a", printed="p"), said("b"), ran(), block("2"))
    assert (run.context.asked, run.context.answers, run.context.printed) == ((), (), ())
    assert run.context.place.index == 0


# -- tools -------------------------------------------------------------------------------------------


def test_positional_arguments_of_a_tool_follow_its_schema() -> None:
    run = one_call("search", "ERR", 5, tools=[SEARCH])
    wanted = run.last.effect
    assert isinstance(wanted, CallTools)
    assert (wanted.tools, wanted.runs[0].arguments) == (("search",), {"pattern": "ERR", "limit": 5})
    assert wanted.attempts == 1


def test_a_tool_may_be_called_by_names_of_its_arguments() -> None:
    wanted = one_call("search", "ERR", limit=5, tools=[SEARCH]).last.effect
    assert isinstance(wanted, CallTools)
    assert wanted.runs[0].arguments == {"pattern": "ERR", "limit": 5}


def test_a_tools_name_is_made_one_that_code_can_call() -> None:
    wanted = one_call("my_tool_v2", "x", tools=[MARK]).last.effect
    assert isinstance(wanted, CallTools)
    assert wanted.tools == ("my-tool.v2",)


def test_tools_cannot_take_the_place_of_what_blocks_have() -> None:
    names = ["FINAL", "context", "sum", "class", "2x", "a-b", "a.b", "a_b"]
    run = code(block("1"), tools=[tool(name) for name in names])
    offered = ("FINAL_", "context_", "sum_", "class_", "_2x", "a_b", "a_b_", "a_b__")
    assert steps(run)[0].names[4:] == offered


def test_a_tools_result_is_handed_over_whole_and_as_the_value_that_it_is() -> None:
    run = code(block("..."), calls("search", "x"), tool_said('[{"a": 1}]'), tools=[SEARCH])
    assert answered(run) == CodeAnswer(value='[{"a": 1}]', parse=True)
    assert run.context.place.run is None, "the call is not carried on"

    def cut(effect: CallTools) -> ToolsReturned:
        result = ToolResult(id=effect.runs[0].id, tool="search", output="[1, ...", whole="digest", bytes=99)
        return ToolsReturned(results=(result,))

    run = code(block("..."), calls("search", "x"), cut, tools=[SEARCH])
    assert answered(run) == CodeAnswer(value="[1, ...", whole="digest", parse=True)


@pytest.mark.parametrize("error", ["failed", "transient", "timeout", "bad_arguments", "unknown_tool"])
def test_a_tools_error_is_raised_inside_the_block(error: Any) -> None:
    run = code(block("..."), calls("search", "x"), tool_failed(error, "no such file"), tools=[SEARCH])
    assert answered(run) == CodeAnswer(error="no such file")


@pytest.mark.parametrize(
    ("args", "named", "problem"),
    [
        (("a", 1, 2), {}, "search takes at most 2 positional arguments, 3 were given"),
        (("a",), {"pattern": "b"}, "search was given 'pattern' twice"),
    ],
)
def test_arguments_that_fit_no_tool_are_raised_inside_the_block(args: Any, named: Any, problem: str) -> None:
    run = one_call("search", *args, tools=[SEARCH], **named)
    assert answered(run) == CodeAnswer(error=problem)


def test_a_tool_without_parameters_takes_no_positional_ones() -> None:
    run = one_call("bare", 1, tools=[tool("bare")])
    assert answered(run).error == "bare takes no positional arguments, 1 were given"


def test_a_tool_of_which_nobody_knows_what_it_did_ends_the_run_and_names_it() -> None:
    run = code(
        block("..."), calls("search", "x"),
        tool_failed("unknown_outcome", "nobody knows whether search(...)"), tools=[SEARCH],
    )  # fmt: skip
    assert (run.records[-1].event, run.exit.reason, run.exit.raises) == ("Failed", "failed", "ExecutionError")
    assert "nobody knows whether search" in str(run.exit.error)


def test_a_tool_that_cannot_be_run_at_all_is_raised_inside_the_block() -> None:
    run = code(block("..."), calls("search", "x"), failed("fatal", "gone", "X"), tools=[SEARCH])
    assert answered(run) == CodeAnswer(error="X: gone")


@pytest.mark.parametrize("call", [calls("search", "x"), calls("llm_query", "x")])
def test_an_unknown_outcome_is_never_told_to_a_block(call: Any) -> None:
    run = code(block("..."), call, failed("unknown_outcome", "who knows", "X"), tools=[SEARCH])
    assert (run.exit.raises, run.exit.error) == ("ExecutionError", "X: who knows")


def test_calls_of_tools_have_names_of_their_own() -> None:
    run = code(
        block("...", "2"), calls("search", "x"), tool_said(), calls("search", "y"), tool_said(), ran(),
        calls("search", "z"), tool_said(), ran(), block("3"), calls("search", "x"), tools=[SEARCH],
    )  # fmt: skip
    ids = [effect.runs[0].id for effect in run.effects if isinstance(effect, CallTools)]
    assert ids == ["1.1.1", "1.1.2", "1.2.1", "2.1.1"]


def test_how_often_a_tool_is_tried_can_be_set() -> None:
    run = code(block("..."), calls("search", "x"), tools=[SEARCH], max_tool_attempts=3)
    assert isinstance(run.last.effect, CallTools)
    assert run.last.effect.attempts == 3


# -- FINAL and FINAL_VAR inside a block --------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ("forty-two", "forty-two"),
        (" padded\n", "padded"),
        (42, "42"),
        ([1, None, True], "[1, null, true]"),
        ({"é": 1}, '{"é": 1}'),
        (None, "null"),
    ],
)
def test_final_ends_the_block_and_is_the_answer(value: Any, answer: str) -> None:
    run = code(block("FINAL(x)", "never"), calls("FINAL", value), ran("printed"))
    assert steps(run)[-1].answer == CodeAnswer(stop=True)
    assert [step.block for step in steps(run)] == ["FINAL(x)", None], "later blocks are not run"
    assert (run.exit.reason, run.exit.answer) == ("stop", answer)
    assert told(run) == ["Code:\n```repl\nFINAL(x)\n```\nOutput:\nprinted"]


def test_R_001_5_final_called_in_a_block_counts_and_its_text_does_not() -> None:
    """R-001-5: the text of a block is not searched; a call that is really made is the answer."""
    run = code(block("if False:\n  pass\nFINAL('x')"), ran(), said("FINAL(42)"))
    assert run.exit.answer == "42"
    run = code(block("FINAL('x')"), calls("FINAL", "x"), ran())
    assert run.exit.answer == "x"


def test_final_beats_an_answer_in_the_words_of_the_same_reply() -> None:
    run = code(block("FINAL(1)", behind="FINAL(2)"), calls("FINAL", 1), ran())
    assert run.exit.answer == "1"


def test_an_empty_final_is_the_whole_reply() -> None:
    run = code(block("FINAL()"), calls("FINAL"), ran())
    assert run.exit.answer == "```repl\nFINAL()\n```"


def test_final_takes_one_value_by_any_name() -> None:
    assert code(block("."), calls("FINAL", answer="x"), ran()).exit.answer == "x"
    run = one_call("FINAL", 1, 2)
    assert answered(run).error == "FINAL takes one value, 2 were given"


def test_final_var_in_a_block_looks_the_variable_up_when_the_block_has_ended() -> None:
    run = code(block("FINAL_VAR('x')"), calls("FINAL_VAR", " 'x' "), ran(session="s9"), ran("1\n"))
    assert [step.block for step in steps(run)] == ["FINAL_VAR('x')", None, "print(x)"]
    assert steps(run)[1].answer == CodeAnswer(stop=True)
    assert steps(run)[2].session == "s9"
    assert (run.exit.reason, run.exit.answer) == ("stop", "1")


def test_final_var_of_a_value_is_the_answer() -> None:
    run = code(block("FINAL_VAR(n)"), calls("FINAL_VAR", 42), ran())
    assert run.exit.answer == "42"


def test_R_001_3_an_unknown_variable_of_a_block_is_told_and_the_other_blocks_run() -> None:
    """R-001-3: also where a block calls FINAL_VAR."""
    run = code(
        block("FINAL_VAR('x')", "2"), calls("FINAL_VAR", "x"), ran(), broke("NameError: x"), ran("two"),
        said("FINAL(42)"),
    )  # fmt: skip
    assert [step.block for step in steps(run)] == ["FINAL_VAR('x')", None, "print(x)", "2"]
    assert any(m.content.startswith("FINAL_VAR gives no answer: NameError") for m in run.context.transcript)
    assert run.exit.answer == "42"


def test_R_001_3_a_text_that_is_no_name_is_told_and_the_other_blocks_run() -> None:
    """R-001-3: nothing is looked up then."""
    run = code(block("1", "2"), calls("FINAL_VAR", "a b"), ran(), ran(), said("FINAL(42)"))
    assert [step.block for step in steps(run)] == ["1", None, "2"]
    assert any("'a b' is not the name of a variable" in m.content for m in run.context.transcript)


def test_a_block_that_fails_while_it_ends_has_given_its_answer() -> None:
    run = code(block("."), calls("FINAL", 42), broke("TimeoutError", fatal=True))
    assert (run.exit.reason, run.exit.answer) == ("stop", "42")
