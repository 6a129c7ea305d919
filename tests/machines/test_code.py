"""The code machine (spec 2.2-2.6): its scripts, and what scripts cannot show."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from activities.contracts import (
    AskModel,
    CallTools,
    CodeAnswer,
    InnerLimits,
    JsonObject,
    MaterialRef,
    ModelReplied,
    RunCode,
    RunMachine,
    Together,
    ToolResult,
    ToolsReturned,
    Usage,
)
from tests.machines.answers import cut, failed, person, ran, replied
from tests.machines.code_scripts import (
    ASKS,
    BATCH,
    NESTED,
    ONCE,
    REPLIES,
    SCRIPTS,
    SEARCH,
    SHALLOW,
    STEPS,
    SUB_ANSWERS,
    USES,
    Script,
    block,
    broke,
    calls,
    child,
    code,
    ended,
    together,
)
from tests.machines.play import Played, play, program_of, rows_of, rows_taken, tool
from workflows.kernel.errors import PolicyViolation
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import Extensions
from workflows.kernel.transition import close
from workflows.machines.code import MACHINE, Options
from workflows.machines.code.block_calls import BUILT_IN, CALL_SIZE, REPLY_BYTES
from workflows.machines.code.context import Compression
from workflows.machines.code.reply import MAX_BLOCKS, ReadReply, is_variable, read_reply
from workflows.machines.common.stopping import STOPPED


def steps(run: Played) -> list[RunCode]:
    """What the sandbox was asked for."""
    return [effect for effect in run.effects if isinstance(effect, RunCode)]


def given_to_block(run: Played) -> CodeAnswer:
    """What the block got for its newest call."""
    answer = steps(run)[-1].answer
    assert answer is not None
    return answer


def outputs(run: Played) -> list[str]:
    """What the model was shown of the blocks, in order."""
    texts = [message.content for message in run.conversation if message.content.startswith("Code:")]
    return [text.partition("Output:\n")[2] for text in texts]


# -- scripts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [pytest.param(s, id=s.name) for s in SCRIPTS])
def test_script(script: Script) -> None:
    run = script.run()
    assert (run.path, run.unused) == (script.path, 0)
    assert (run.exit.reason, run.exit.answer) == (script.reason, script.answer)
    assert run.exit.ok == (script.reason in {"stop", "shallow"})
    assert run.newest.startswith(script.told)


def test_scripts_take_every_row_of_the_table() -> None:
    broken = watched(Watcher(stops=1, raises=KeyError("x")), *TURNS)  # no script has a policy of its own
    assert rows_taken([broken, *(script.run() for script in SCRIPTS)]) == rows_of(MACHINE)


def test_r_001_2_every_end_has_its_reason() -> None:
    assert {script.reason for script in SCRIPTS} == set(MACHINE.exits)


@settings(deadline=None)
@given(st.data(), st.integers(1, 3), st.sampled_from(["never", "always"]))
def test_random_answers_always_end(data: st.DataObject, most: int, nested: str) -> None:
    def answer(effect: Any) -> Any:
        if isinstance(effect, Together):
            return together(*(answer(member) for member in effect.effects))
        if isinstance(effect, RunMachine):
            return data.draw(st.sampled_from([child("A"), child(ok=False, error="gone"), failed()]))
        if isinstance(effect, CallTools):
            return data.draw(st.sampled_from([ran("[1]"), ran("no", "failed"), failed()]))
        pool = STEPS if isinstance(effect, RunCode) else SUB_ANSWERS if effect.beside else REPLIES
        chosen = data.draw(st.sampled_from(pool))
        return chosen(effect) if callable(chosen) else chosen

    def reaction(effect: Any) -> Any:
        made = answer(effect)
        return made(effect) if callable(made) else made

    limits = {"calls": 1000}
    run = code(*[reaction] * 3000, max_iterations=most, nested=nested, block=limits)
    assert run.exit.reason in MACHINE.exits
    assert len([one for one in run.asked if not one.beside]) <= most + 1
    assert run.context.iteration <= most


# -- INIT and SHALLOW_CALL ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("depth", "most", "shallow"), [(0, 1, False), (1, 1, True), (2, 1, True), (0, 0, True), (1, 2, False)]
)
def test_run_is_shallow_from_max_depth_on(depth: int, most: int, shallow: bool) -> None:
    run = code(input={"depth": depth}, max_depth=most)
    assert (run.step.snapshot.state == "SHALLOW_CALL") is shallow


def test_only_the_first_prompt_reminds_of_the_context() -> None:
    run = code(block("print(1)"), ended("1"), replied("FINAL(1)"))
    first, second = ([message.content for message in prompt] for prompt in run.prompts)
    assert first[1].startswith("find out\n\nLook at the context")
    assert not any("Look at the context" in text for text in second[2:])


@pytest.mark.parametrize(
    ("material", "chars", "prompt"),
    [
        (None, 9, "find out"),
        ("one two", 9, "find out\n\none two"),
        ("one two", 3, "find out\n\none\n[4 characters left out]"),
        (MaterialRef(digest="d", chars=12_345, bytes=1), 9,
         "find out\n\n[There is a context of 12,345 characters, too long to be shown here.]"),
    ],
)  # fmt: skip
def test_shallow_prompt_holds_as_much_context_as_fits(material: Any, chars: int, prompt: str) -> None:
    run = code(input={"material": material, "instructions": " Be short. "}, max_depth=0, shallow_chars=chars)
    assert [(m.role, m.content) for m in run.prompts[0]] == [("system", "Be short."), ("user", prompt)]


@pytest.mark.parametrize(
    ("options", "input", "words"),
    [
        ({}, {"goal": " \n"}, "the goal is empty"),
        ({"nested": {"tools": ["rm"]}}, {}, r"nested\.tools: the run has no tool rm"),
        ({"nested": "alway"}, {}, r"unknown hook 'alway'; did you mean always\?"),
        ({"policies": ["max_costs"]}, {}, r"did you mean max_cost\?"),
    ],
)
def test_run_that_cannot_begin_is_refused(options: Any, input: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        code(input=input, **options)


@pytest.mark.parametrize(
    "bad",
    [
        {"max_iterations": 0},
        {"max_depth": -1},
        {"final_var_missing": "ignore"},
        {"block": {"seconds": 3601}},
        {"nested": {"mode": "thread"}},
        {"compression": {}},
        {"max_iteration": 3},
    ],
)
def test_bad_option_is_refused(bad: Any) -> None:
    with pytest.raises(ValidationError):
        Options.model_validate(bad)


# -- blocks and their session ---------------------------------------------------------------------


def test_block_gets_names_constants_context_and_limits() -> None:
    tools = [tool(name) for name in ("FINAL", "context", "sum", "class", "2x", "a-b", "a.b", "a_b")]
    (first,) = steps(code(block("1"), tools=tools, input={"material": "text"}, block={"seconds": 5}))
    offered = ("FINAL_", "context_", "sum_", "class_", "_2x", "a_b", "a_b_", "a_b__")
    assert first.names == (*BUILT_IN, *offered)
    assert first.constants == {"DEPTH": 0, "CORRELATION_ID": "trace-1"}
    assert (first.material, first.limits.seconds, first.limits.output_chars) == ("text", 5, 20_000)


def test_one_session_is_kept_over_blocks_and_replies() -> None:
    run = code(block("1", "2"), ended(session="a"), broke("ValueError", session="b"), block("3"))
    assert [(s.block, s.session, s.before) for s in steps(run)] == [
        ("1", "", ""), ("2", "a", "a"), ("3", "b", "b"),
    ]  # fmt: skip


def test_session_before_a_block_is_known_at_each_call() -> None:
    run = code(
        block("1", "2"), ended(session="a"), calls("llm_query", "x", session="b"), replied("y"),
        calls("llm_query", "x", session="c"), replied("y"), broke("Timeout", session="a", fatal=True),
    )  # fmt: skip
    assert [(s.session, s.before) for s in steps(run)[1:]] == [("a", "a"), ("b", "a"), ("c", "a")]
    assert run.context.session == "a"


@pytest.mark.parametrize(
    ("answers", "travels"),
    [
        pytest.param((block("1", "2"), ended(), ended()), "yes no", id="to a fresh session only"),
        pytest.param((block("1", "2"), broke("Timeout", session="", fatal=True)), "yes yes",
                     id="fresh again"),
        pytest.param((block("1"), ended(), block("context_len()", "2"), ended(), ended()), "yes yes yes",
                     id="once code reaches for parts"),
        pytest.param((block("1"), ended("context_slice"), block("len(context)"), ended()), "yes no",
                     id="output does not count"),
    ],
)  # fmt: skip
def test_short_context_travels_when_needed(answers: Any, travels: str) -> None:
    run = code(*answers, input={"material": "text"})
    assert ["yes" if step.material else "no" for step in steps(run)] == travels.split()


def test_long_context_always_travels_as_a_reference() -> None:
    ref = MaterialRef(digest="d", chars=9, bytes=9)
    run = code(block("1", "2"), ended(), ended(), input={"material": ref})
    assert [step.material for step in steps(run)] == [ref, ref]


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        (ended("one\ntwo\n"), "one\ntwo"),
        (ended(""), "(nothing was printed)"),
        (broke("ValueError: bad", "one\n"), "one\nValueError: bad"),
        (ended("abc", left_out=12_345), "abc\n[12,345 characters left out]"),
        (broke("Oops", "abc", left_out=5), "abc\n[5 characters left out]\nOops"),
    ],
)
def test_model_is_shown_output_cut_and_error(step: Any, shown: str) -> None:
    assert outputs(code(block("1"), step, replied("FINAL(1)"))) == [shown]


def test_output_is_cut_over_the_whole_block() -> None:
    run = code(
        block("...", "2"), calls("llm_query", "a", printed="a" * 15_000), replied("b"),
        calls("llm_query", "a", printed="b" * 15_000), replied("b"), ended("c" * 7, left_out=3),
        ended("d" * 20_000), replied("FINAL(1)"),
    )  # fmt: skip
    first = "a" * 15_000 + "b" * 5_000 + "\n[10,010 characters left out]"
    assert outputs(run) == [first, "d" * 20_000]


def test_at_most_fifty_blocks_are_run() -> None:
    run = code(block(*["1"] * 53), *[ended("1")] * MAX_BLOCKS, replied("FINAL(1)"))
    assert len(steps(run)) == MAX_BLOCKS == 50
    assert run.newest.startswith("At most 50 blocks of a reply are run: 3 more were not.")


def test_closed_blocks_before_an_open_one_are_run() -> None:
    run = code(block("1", after="```repl\n2"), ended("1"), replied("FINAL(1)"))
    assert len(steps(run)) == 1
    assert run.newest.startswith("The last repl block has no end")


def test_block_is_a_visit_and_carries_only_its_own_answers() -> None:
    run = code(block("1", "2"), ended(), calls("llm_query", "a"), replied("b"))
    assert run.states == "INIT PROMPTING EXECUTING EXECUTING"
    assert len(run.step.snapshot.moments) == 2


def test_what_blocks_did_holds_when_the_model_fails() -> None:
    run = code(block("1"), ended("one", session="a"), failed())
    assert (run.context.session, run.context.iteration, outputs(run)) == ("a", 1, ["one"])


# -- the value of a variable ----------------------------------------------------------------------


def test_look_up_prints_and_calls_nothing_outside() -> None:
    look_up = steps(code(block("1"), ended(session="s7"), replied("FINAL_VAR('x')")))[-1]
    assert (look_up.block, look_up.session, look_up.before, look_up.names) == ("print(x)", "s7", "s7", ())
    assert look_up.limits.output_chars == 1_000_000


@pytest.mark.parametrize("beside_blocks", [False, True])
def test_look_up_that_waits_for_a_call_finds_nothing(beside_blocks: bool) -> None:
    """A block may have defined a `print` of its own, which asks a model."""
    first: Any = (block("1", after="FINAL_VAR(x)"), ended(session="s7"))
    if not beside_blocks:
        first = (block("1"), ended(session="s7"), replied("FINAL_VAR(x)"))
    run = code(*first, calls("llm_query", "1", session="waits"), replied("FINAL(2)"))
    assert run.context.session == "s7"
    assert run.newest.startswith("FINAL_VAR gives no answer: to print it, llm_query would have to be called")


@pytest.mark.parametrize("name", ["x + 1", "", "x.y", "__import__('os').system('ls')"])
@pytest.mark.parametrize("beside_blocks", [False, True])
def test_r_001_3_text_that_is_no_name_never_runs(name: str, beside_blocks: bool) -> None:
    text = f"FINAL_VAR({name})"
    run = code(*((block("1", after=text), ended()) if beside_blocks else (replied(text),)))
    assert [step.block for step in steps(run)] == ["1"] * beside_blocks


def test_r_001_3_name_in_a_block_is_checked_too() -> None:
    run = code(block("1", "2"), calls("FINAL_VAR", "a b"), ended(), ended(), replied("FINAL(42)"))
    assert [step.block for step in steps(run)] == ["1", None, "2"]
    assert any("'a b' is not the name of a variable" in m.content for m in run.conversation)


# -- sub-queries ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "named", "role"),
    [
        (("what?",), {}, "sub"),
        ((), {"prompt": "what?"}, "sub"),
        (("what?", None), {}, "sub"),
        (("what?",), {"model": "default"}, "default"),
    ],
)
def test_sub_query_is_one_question_beside_the_conversation(args: Any, named: Any, role: str) -> None:
    run = code(
        block("..."), calls("llm_query", *args, **named), replied("hidden"), ended(), replied("FINAL(1)")
    )
    asked = run.asked[1]
    assert (asked.beside, asked.role, [m.content for m in asked.say]) == (True, role, ["what?"])
    assert steps(run)[1].answer == CodeAnswer(value="hidden")
    assert not any("hidden" in message.content for message in run.conversation)


def test_sub_queries_are_recorded_with_their_block() -> None:
    run = code(block("1", "2"), ended(), calls("llm_query", "a"), replied("A"), ended())
    by_visit = {record.visit: record.beside for record in run.records if record.beside}
    assert {visit: [m.content for m in said] for visit, said in by_visit.items()} == {4: ["a", "A"]}


def test_batch_is_asked_side_by_side_in_order() -> None:
    batch = calls("llm_query_batched", ["a", "b", "c"], model="default")
    run = code(block("..."), batch, together(replied("A"), failed("fatal", "no", "X"), replied("C")))
    asked = run.effects[2]
    assert isinstance(asked, Together)
    assert [(one.say[0].content, one.role) for one in asked.effects] == [(n, "default") for n in "abc"]
    assert given_to_block(run) == CodeAnswer(value=["A", "Error: X: no", "C"])
    assert run.step.ledger.used("model_calls") == 4


def test_large_batch_is_several_effects() -> None:
    prompts = [str(n) for n in range(250)]
    parts = [together(*[replied(f"{n}!") for n in range(a, min(a + 100, 250))]) for a in (0, 100, 200)]
    run = code(block("..."), calls("llm_query_batched", prompts), *parts)
    assert [len(one.effects) for one in run.effects if isinstance(one, Together)] == [100, 100, 50]
    assert given_to_block(run).value == [f"{n}!" for n in prompts]


def test_batch_of_one_is_plain_question_and_gives_list() -> None:
    run = code(block("..."), calls("llm_query_batched", ["a"]), replied("A"))
    assert isinstance(run.effects[2], AskModel)
    assert given_to_block(run) == CodeAnswer(value=["A"])


@pytest.mark.parametrize(
    ("answers", "value"),
    [
        pytest.param((*ASKS, failed("transient", "overloaded", "X")), "Error: X: overloaded", id="one"),
        pytest.param((*BATCH, failed("fatal", "gone", "X")), ["Error: X: gone"] * 2, id="a whole batch"),
        pytest.param((block("."), calls("llm_query_batched", [])), [], id="an empty batch asks nobody"),
    ],
)
def test_sub_query_never_raises_in_the_block(answers: Any, value: Any) -> None:
    assert given_to_block(code(*answers)) == CodeAnswer(value=value)


@pytest.mark.parametrize(
    ("name", "args", "named", "problem"),
    [
        ("llm_query", (1,), {}, "takes a text, not a value of type int"),
        ("llm_query", (None,), {}, "a text, not None"),
        ("llm_query", (), {}, "llm_query needs prompt"),
        ("llm_query", ("a", "b", "c"), {}, "at most 2 positional arguments, 3 were given"),
        ("llm_query", ("a",), {"prompt": "b"}, "was given 'prompt' twice"),
        ("llm_query", ("a",), {"temperature": 1}, "has no parameter 'temperature'"),
        ("llm_query", ("a", "gpt"), {}, "unknown model 'gpt'; there is default and sub"),
        ("llm_query", ("a", ["sub"]), {}, "unknown model"),
        ("llm_query", ("x" * (CALL_SIZE + 1),), {}, "the prompt has 400,001 characters, at most 400,000"),
        ("llm_query_batched", ("a",), {}, "takes a list of texts, not a value of type str"),
        ("llm_query_batched", (["a", 1],), {}, "item 1 is a value of type int"),
        ("llm_query_batched", (), {}, "needs prompts"),
        ("llm_query_batched", (["a"] * 11,), {}, "more than 10 calls in one block"),
    ],
)
def test_bad_sub_query_is_one_error_text(name: str, args: Any, named: Any, problem: str) -> None:
    run = code(block("..."), calls(name, *args, **named), block={"calls": 10})
    answer = given_to_block(run)
    assert (answer.error, len(run.prompts)) == (None, 1)
    assert str(answer.value).startswith("Error: ")
    assert problem in str(answer.value)


def test_limit_of_model_calls_ends_the_run_at_a_batch() -> None:
    run = code(*BATCH, ledger=Ledger(caps={"model_calls": 2}))
    assert (run.exit.reason, run.exit.answer) == ("limit", None)


# -- what may be sent -----------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "fits"), [(REPLY_BYTES - 3, True), (REPLY_BYTES - 2, False)])
def test_calls_of_one_reply_are_bounded_in_bytes(size: int, fits: bool) -> None:
    """Answers count, and so do earlier blocks of the same reply."""
    answers = (
        block("1", "2"),
        calls("llm_query", ""),
        replied("é" * (size // 2) + "x" * (size % 2)),
        ended(),
    )
    run = play(program_of(MACHINE), (*answers, calls("llm_query", "abc")), both_ways=False)
    assert isinstance(run.effects[-1], AskModel) is fits
    assert run.context.reply_bytes == run.context.run_bytes == size
    if not fits:
        assert "the calls of one reply may send and bring 8,000,000 bytes" in str(given_to_block(run).value)


def test_next_reply_may_send_again() -> None:
    run = code(*ASKS, replied("b"), ended(), *ASKS, replied("cd"), ended())
    assert (run.context.reply_bytes, run.context.run_bytes) == (3, 5)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (calls("search", "x" * CALL_SIZE), "search: the arguments have 400,"),
        (calls("search", "a", 1, 2), "search takes at most 2 positional arguments, 3 were given"),
        (calls("search", "a", pattern="b"), "search was given 'pattern' twice"),
        (calls("FINAL", 1, 2), "FINAL takes one value, 2 were given"),
        (calls("FINAL", "x" * 1_000_001), "FINAL: the answer would have 1,000,001 characters"),
        (calls("FINAL_VAR", ["x" * 1_000_000]), "FINAL_VAR: the answer would have 1,000,004 characters"),
    ],
)
def test_bad_call_is_raised_in_the_block(call: Any, problem: str) -> None:
    assert str(given_to_block(code(block("."), call)).error).startswith(problem)


def test_block_may_make_all_its_calls_in_one_visit() -> None:
    turns = [part for _ in range(3) for part in (calls("llm_query", "a"), replied("b"))]
    one = (*turns, calls("FINAL_VAR", "x"), ended(), broke("no"))
    run = code(block("1", "2"), *one, *one, replied("FINAL(1)"), block={"calls": 4})
    assert run.exit.reason == "stop"


def test_log_grows_evenly_with_sub_queries() -> None:
    def logged(count: int) -> int:
        turns = [part for n in range(count) for part in (calls("llm_query", f"{n:09}"), replied(f"{n:09}"))]
        return sum(len(r.model_dump_json()) for r in code(block("..."), *turns, ended("done")).records)

    ten, twenty, forty = logged(10), logged(20), logged(40)
    assert forty - twenty < 2.1 * (twenty - ten)


# -- tools ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [calls("search", "ERR", 5), calls("search", "ERR", limit=5)])
def test_tool_is_called_with_its_arguments_by_name(call: Any) -> None:
    asked = code(block("..."), call, max_tool_attempts=3).effects[-1]
    assert isinstance(asked, CallTools)
    assert (asked.tools, asked.calls[0].arguments) == (("search",), {"pattern": "ERR", "limit": 5})
    assert asked.attempts == 3


def test_tool_named_differently_in_code_is_called_by_own_name() -> None:
    asked = code(block("..."), calls("my_tool_v2", q="x"), tools=[tool("my-tool.v2")]).effects[-1]
    assert asked.tools == ("my-tool.v2",)


def test_calls_of_tools_have_ids_of_their_own() -> None:
    run = code(
        block("...", "2"), calls("search", "x"), ran(), calls("search", "y"), ran(), ended(),
        calls("search", "z"), ran(), ended(), block("3"), calls("search", "x"),
    )  # fmt: skip
    ids = [effect.calls[0].id for effect in run.effects if isinstance(effect, CallTools)]
    assert ids == ["1.1.1", "1.1.2", "1.2.1", "2.1.1"]


def test_whole_result_of_a_tool_goes_into_the_block() -> None:
    def returned(effect: CallTools) -> ToolsReturned:
        result = ToolResult(id=effect.calls[0].id, tool="search", output="[1, ...", whole="digest", bytes=99)
        return ToolsReturned(results=(result,))

    assert given_to_block(code(*USES, returned)) == CodeAnswer(value="[1, ...", whole="digest", parse=True)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (ran("no such file", "failed"), "no such file"),
        (ran("", "timeout"), "timeout"),
        (failed("fatal", "gone", "X"), "X: gone"),
    ],
)
def test_failure_of_a_tool_is_raised_in_the_block(answer: Any, error: str) -> None:
    assert given_to_block(code(*USES, answer)) == CodeAnswer(error=error)


@pytest.mark.parametrize(
    ("answers", "options"),
    [
        pytest.param((*USES, ran("pay(1) may have run", "unknown_outcome")), {}, id="tool"),
        pytest.param((*USES, failed("unknown_outcome", "pay(1) may have run")), {}, id="failed effect"),
        pytest.param((*ASKS, failed("unknown_outcome", "pay(1) may have run")), {}, id="sub-query"),
        pytest.param(
            (*BATCH, together(replied("A"), failed("unknown_outcome", "pay(1) may have run"))), {}, id="batch"
        ),
        pytest.param(
            (*ASKS, child(ok=False, exit_reason="unknown_outcome", error="pay(1) may have run")),
            NESTED, id="nested run",
        ),
        pytest.param(
            (*ASKS, child(ok=False, outcome={"unknown_outcome": True}, error="pay(1) may have run")),
            NESTED, id="nested run, by its outcome",
        ),
    ],
)  # fmt: skip
def test_unknown_outcome_ends_the_run(answers: Any, options: Any) -> None:
    run = code(*answers, **options)
    assert (run.exit.reason, run.exit.raises) == ("failed", "ExecutionError")
    assert run.exit.outcome["unknown_outcome"] is True
    assert "pay(1) may have run" in str(run.exit.error)


# -- nested runs (R-001-6) ------------------------------------------------------------------------


def hook(function: Any) -> Extensions:
    """The hook `mine`."""
    return Extensions(hooks={"mine": function})


def test_r_001_6_sub_query_run_has_options_and_tools() -> None:
    asked = code(*ASKS, tools=(SEARCH, tool("other")), nested="always", max_depth=3).effects[-1]
    assert isinstance(asked, RunMachine)
    assert (asked.machine, asked.goal, asked.give) == ("code", "a", ("search", "other"))
    assert asked.roles == {"default": "sub"}
    assert (asked.options["max_depth"], asked.options["nested"]) == (3, {"policy": "always"})


def test_r_001_6_settings_reach_the_nested_run() -> None:
    nested = {
        "policy": "always", "machine": "tools", "tools": ["search"], "limits": {"model_calls": 3},
        "options": {"max_iterations": 2},
    }  # fmt: skip
    asked = code(*ASKS, tools=(SEARCH, tool("other")), nested=nested, max_depth=3).effects[-1]
    assert (asked.machine, asked.give) == ("tools", ("search",))
    assert (asked.limits, asked.options) == (InnerLimits(model_calls=3), {"max_iterations": 2})


def test_r_001_6_hook_decides_by_prompt_and_depth() -> None:
    """9.13: nested ones are asked side by side with plain ones."""
    run = code(
        block("..."), calls("llm_query_batched", ["sh", "longer"]), together(replied("A"), child("B")),
        nested="mine", extensions=hook(lambda prompt, depth: len(prompt) > 3 and depth == 0),
    )  # fmt: skip
    asked = run.effects[2]
    assert isinstance(asked, Together)
    assert [one.kind for one in asked.effects] == ["ask_model", "run_machine"]
    assert given_to_block(run) == CodeAnswer(value=["A", "B"])


def not_allowed(prompt: str, depth: int) -> bool:
    raise PolicyViolation("not here")


@pytest.mark.parametrize(
    ("function", "raises", "words"),
    [
        (lambda prompt, depth: None, "FatalError", "the nested policy mine answered None"),
        (lambda prompt: True, "FatalError", "the nested policy mine failed: TypeError"),
        (not_allowed, "PolicyViolation", "not here"),
    ],
)
def test_r_001_6_hook_that_fails_ends_the_run(function: Any, raises: str, words: str) -> None:
    run = code(*ASKS, nested="mine", extensions=hook(function))
    assert (run.exit.reason, run.exit.raises) == ("failed", raises)
    assert words in str(run.exit.error)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (child("B"), "B"),
        (child(""), ""),
        (child("so", ok=False, exit_reason="max_iterations", error="no answer"), "so"),
        (child(ok=False, exit_reason="failed", error="HTTP500: gone"), "Error: HTTP500: gone"),
        (child(ok=False, exit_reason="limit"), "Error: limit"),
        (failed("recoverable", "too deep", "depth_limit"), "Error: depth_limit: too deep"),
    ],
)
def test_nested_run_gives_its_answer_or_an_error(answer: Any, text: str) -> None:
    assert given_to_block(code(*ASKS, answer, nested="always")) == CodeAnswer(value=text)


def test_nested_run_is_shallow_by_default() -> None:
    asked = code(*ASKS, nested="always").effects[-1]
    program = program_of(MACHINE, asked.options, goal=asked.goal, depth=1)
    run = play(program, [replied("FINAL(42)")])
    assert (run.states, run.exit.answer) == ("INIT SHALLOW_CALL DONE", "42")


# -- stopping policies (2.6, R-001-8, R-001-9) ----------------------------------------------------


@dataclass
class Watcher:
    """Writes down what it is shown; stops or raises when it is asked for the n-th time."""

    stops: int = 99
    raises: Exception | None = None
    asked: list[Mapping[str, Any]] = field(default_factory=list)
    told: list[tuple[Mapping[str, Any], str]] = field(default_factory=list)

    def should_stop(self, context: Mapping[str, Any]) -> bool:
        self.asked.append(context)
        if len(self.asked) == self.stops and self.raises:
            raise self.raises
        return len(self.asked) == self.stops

    def on_iteration_complete(self, context: Mapping[str, Any], result: str) -> JsonObject | None:
        self.told.append((context, result))
        return {"seen": len(self.told)}


def watched(watcher: Watcher, *answers: Any, **options: Any) -> Played:
    """A run with this policy."""
    loaded = Extensions(policies={"watcher": lambda spec: watcher})
    return code(*answers, extensions=loaded, policies=["watcher"], **options)


TURNS = (block("a"), ended("A"), block("b"), ended("B"), replied("FINAL(42)"))


def test_r_001_8_policies_are_asked_before_and_after_blocks() -> None:
    """Two turns and an answer show iterations 0, 1, 1, 2, 2; complete are 0, 1, 2 (2.6)."""
    watcher = Watcher()
    assert watched(watcher, *TURNS).context.policy_memory == {"watcher": {"seen": 3}}
    assert [view["iteration"] for view in watcher.asked] == [0, 1, 1, 2, 2]
    assert [view["iteration"] for view, _ in watcher.told] == [0, 1, 2]
    assert [result for _, result in watcher.told] == ["A", "B", "42"]


@pytest.mark.parametrize(
    ("stops", "state", "effects", "iterations"),
    [
        pytest.param(1, "PROMPTING", 1, 0, id="before the first blocks"),
        pytest.param(2, "CONCLUDING", 2, 1, id="after them, before the next question"),
        pytest.param(3, "PROMPTING", 3, 1, id="before the second blocks"),
    ],
)
def test_r_001_8_policy_stops_the_run(stops: int, state: str, effects: int, iterations: int) -> None:
    run = watched(Watcher(stops), *TURNS)
    assert (len(run.effects), run.records[-1].state, run.records[-1].event) == (effects, state, "PolicyStop")
    assert (run.exit.reason, run.exit.ok, run.exit.answer) == ("policy_stop", False, STOPPED)
    assert run.exit.outcome == {
        "policy_stop": True, "policy": "watcher", "iterations": iterations, "depth": 0,
    }  # fmt: skip


def test_policy_comes_before_answer_and_limit() -> None:
    assert watched(Watcher(1), replied("FINAL(42)")).exit.reason == "policy_stop"
    run = watched(Watcher(2), block("a"), ended("A"), **ONCE)
    assert (run.exit.reason, len(run.prompts)) == ("policy_stop", 1)


def test_forced_question_concerns_no_policy() -> None:
    watcher = Watcher()
    watched(watcher, block("a"), ended("A"), replied("FINAL(42)"), **ONCE)
    assert (len(watcher.asked), len(watcher.told)) == (2, 1)


def test_policies_see_the_whole_run() -> None:
    watcher = Watcher()
    first = block("a").model_copy(
        update={"cost_usd": 0.25, "usage": Usage(input_tokens=30, output_tokens=12)}
    )
    answers = (first, ended("A"), replied("FINAL(42)", cost=0.5))
    run = watched(watcher, *answers, input={"depth": 1}, max_iterations=7, max_depth=2)
    history = run.conversation.messages
    wanted = {"name": "repl", "arguments": "a"}
    before = {
        "mode": "code", "max_iterations": 7, "depth": 1, "tokens": 42, "iteration": 0,
        "history": history[:3], "last_result": "", "calls": (wanted,), "cost_usd": 0.25, "memory": {},
    }  # fmt: skip
    told = {**before, "history": history[:4], "last_result": "A", "calls": ({**wanted, "result": "A"},)}
    after = {**told, "iteration": 1, "memory": {"seen": 1}}
    second = {**after, "history": history, "calls": (), "cost_usd": 0.75}
    assert watcher.asked == [before, after, second]
    assert watcher.told[0] == (told, "A")


def test_policies_see_what_each_block_brought() -> None:
    """Two blocks may be alike, one may be empty, and a person may speak in between."""
    watcher = Watcher()
    watched(watcher, block("a", "a", ""), ended("1"), person("hurry"), ended("2"), replied("FINAL(1)"))
    assert [call["result"] for call in watcher.asked[1]["calls"]] == ["1", "2", "(nothing was printed)"]


@pytest.mark.parametrize("stops", [1, 2])
@pytest.mark.parametrize(
    ("error", "raises"), [(PolicyViolation("not here"), "PolicyViolation"), (KeyError("x"), "FatalError")]
)
def test_r_001_9_what_a_policy_raises_ends_the_run(stops: int, error: Exception, raises: str) -> None:
    run = watched(Watcher(stops, error), *TURNS)
    assert (run.exit.reason, run.exit.raises) == ("failed", raises)


def test_shipped_policies_work_in_code_mode() -> None:
    same = (block("print(1)"), ended("1")) * 4
    run = code(*same, policies=[{"type": "no_progress", "value": 2}])
    assert (run.exit.outcome["policy"], run.context.iteration) == ("no_progress", 3)
    run = code(*same, policies=[{"type": "repeated_call", "value": 3}])
    assert (run.exit.outcome["policy"], run.context.iteration) == ("repeated_call", 2)


# -- compression (R-001-6) ------------------------------------------------------------------------


def talk(*tokens: int, **options: Any) -> Played:
    """Turns with blocks, whose questions took so many tokens."""
    turns = [
        part
        for n, used in enumerate(tokens)
        for part in (
            block(f"print({n})").model_copy(update={"usage": Usage(input_tokens=used)}),
            ended(str(n)),
        )
    ]
    return code(*turns, compression={"window_tokens": 1000}, **options)


@pytest.mark.parametrize(
    ("tokens", "skipped"),
    [
        pytest.param([919] * 5, [0, 0, 0, 0, 0, 0], id="below the mark all is sent"),
        pytest.param([920] * 5, [0, 0, 0, 0, 4, 6], id="from the mark on the first two and the last six"),
        pytest.param([920] * 4 + [500] * 2, [0, 0, 0, 0, 4, 4, 4], id="what was left out stays out"),
    ],
)
def test_r_001_6_long_conversation_is_sent_in_part(tokens: list[int], skipped: list[int]) -> None:
    run = talk(*tokens)
    found = [one.skip for one in run.asked]
    assert [end - start for start, end in found] == [max(n - 2, 0) for n in skipped]


def test_r_001_6_forced_question_is_compressed_too() -> None:
    last = talk(*[950] * 4, max_iterations=4).asked[-1]
    assert (last.skip, len(last.say)) == ((2, 5), 1)


@pytest.mark.parametrize(
    ("messages", "tokens", "dropped", "expected"),
    [
        (20, 919, 0, 0),
        (20, 920, 0, 14),
        (7, 999, 0, 0),
        (8, 999, 0, 2),
        (9, 999, 0, 3),
        (16, 999, 10, 10),
        (17, 999, 10, 11),
    ],
)
def test_first_message_that_is_sent(messages: int, tokens: int, dropped: int, expected: int) -> None:
    assert Compression(window_tokens=1000).first_sent(messages, tokens, dropped) == expected


# -- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["transient", "recoverable", "fatal", "unknown_outcome"])
@pytest.mark.parametrize(
    ("before", "options", "raises"),
    [
        pytest.param((), {}, "ModelError", id="the first question"),
        pytest.param((), SHALLOW, "ModelError", id="the shallow question"),
        pytest.param((replied("hm"),), ONCE, "ModelError", id="the forced question"),
        pytest.param((block("1"),), {}, "ExecutionError", id="the sandbox"),
        pytest.param((replied("FINAL_VAR(x)"),), {}, "ExecutionError", id="the sandbox, for a variable"),
        pytest.param((block("1"), calls("FINAL", 1)), {}, "ExecutionError", id="the sandbox, at the end"),
    ],
)
def test_failing_model_or_sandbox_ends_the_run(before: Any, options: Any, raises: str, kind: Any) -> None:
    run = code(*before, failed(kind, "gone", "HTTP500"), **options)
    assert (run.exit.reason, run.exit.answer) == ("failed", None)
    assert (run.exit.raises, run.exit.error) == (raises, "HTTP500: gone")


def test_attempts_of_questions_can_be_set() -> None:
    assert [one.attempts for one in code(*ASKS).asked] == [6, 6]
    assert [one.attempts for one in code(*ASKS, max_model_attempts=2).asked] == [2, 2]


@pytest.mark.parametrize(
    ("before", "options", "reason"), [((), SHALLOW, "shallow"), ((replied("hm"),), ONCE, "max_iterations")]
)
@pytest.mark.parametrize(
    ("reply", "fault"), [(cut(replied("It is")), "cut off"), (replied(" "), "the reply was empty")]
)
def test_last_reply_that_is_cut_or_empty_is_not_ok(
    before: Any, options: Any, reason: str, reply: ModelReplied, fault: str
) -> None:
    run = code(*before, reply, **options)
    assert (run.exit.reason, run.exit.ok, run.exit.answer) == (reason, False, reply.text)
    assert fault in str(run.exit.error)


def test_run_closed_in_the_middle_has_no_answer() -> None:
    closed = close(code(block("1"), ended()).step, "cancelled", now=2000, error="enough", by="ann")
    assert closed.exit is not None
    assert (closed.exit.reason, closed.exit.answer, closed.exit.error) == ("cancelled", None, "enough")


# -- the prompt -----------------------------------------------------------------------------------


def system(options: Any = None, **input: Any) -> str:
    """The system message of a run that begins so."""
    return code(input=input, tools=input.pop("tools", ()), **(options or {})).prompts[0][0].content


def test_prompt_states_limits_and_options() -> None:
    text = " ".join(system({"block": {"calls": 77, "seconds": 2.5}, "max_iterations": 1}).split())
    for words in (
        "computes longer than 2.5 s",
        "more than 77 calls",
        "may hold 8 MB",
        "20,000 characters",
        "one reply",
    ):
        assert words in text
    assert "older messages" in system({"compression": {"window_tokens": 1000}})
    assert system(instructions="You are careful.").startswith("You are careful.\n\nYou answer")


def test_prompt_says_how_the_context_is_reached() -> None:
    assert "context: the whole context, a text of 5 characters" in system(material="12345")
    assert "a text of 8 characters. It is the question itself" in system()
    long = system(material=MaterialRef(digest="d", chars=1_234_567, bytes=9))
    assert "text of 1,234,567 characters, too long for a variable" in long


def test_prompt_names_tools_as_blocks_call_them() -> None:
    text = system(tools=(tool("my-search"), tool("open")))
    assert "- my_search(q): does my-search" in text
    assert "- open_(q)" in text
    assert "RuntimeError" in text
    assert "RuntimeError" not in system()


# -- reading replies (2.3) ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        pytest.param("```repl\n\n  x = 1\n\n```", ("x = 1",), id="content is stripped"),
        pytest.param("```repl\nif x:\n    y = 1\n```", ("if x:\n    y = 1",), id="but not inside"),
        pytest.param("a\n```repl\n1\n```\nb\n```repl\n2\n```\nc", ("1", "2"), id="all in order"),
        pytest.param("See: ```repl\n1\n  ``` ", ("1",), id="words before and blanks around fences"),
        pytest.param("```repl\r\nx = 1\r\ny = 2\r\n```\r\n", ("x = 1\ny = 2",), id="other line breaks"),
        pytest.param("```repl\n```", ("",), id="an empty fence is one empty block"),
        pytest.param("```python\n1\n```", (), id="another language"),
        pytest.param("``` repl\n1\n```", (), id="a blank before the tag"),
        pytest.param("```repl \n1\n```", (), id="a blank after the tag"),
        pytest.param("```repl please\n1\n```", (), id="words after the tag"),
        pytest.param("```REPL\n1\n```", (), id="the tag is exact"),
        pytest.param("````repl\n1\n```", (), id="four backticks"),
        pytest.param("```repl\nx = 1 ```", (), id="the closing fence has its own line"),
        pytest.param('```repl\ns = "```"\n```', ('s = "```"',), id="backticks in code close nothing"),
        pytest.param("```repl\n1\n```python\n2\n```", ("1\n```python\n2",), id="nor does an opening fence"),
    ],
)
def test_blocks_of_a_reply(text: str, blocks: tuple[str, ...]) -> None:
    assert read_reply(text).blocks == blocks


@pytest.mark.parametrize(
    ("text", "final"),
    [
        pytest.param("So:\n \t FINAL(42)\nDone.", "42", id="at the start of a line"),
        pytest.param("So: FINAL(42)", None, id="not after words"),
        pytest.param("FINAL (42)", None, id="the bracket follows at once"),
        pytest.param("FINAL(   )", "", id="nothing is the empty text"),
        pytest.param("FINAL(f(x) and (g(y))) and (b)", "f(x) and (g(y))", id="brackets are balanced"),
        pytest.param("FINAL(first\n\nsecond (more)\n)", "first\n\nsecond (more)", id="lines"),
        pytest.param('FINAL(a ")" b)', 'a ")" b', id="brackets between quotes do not count"),
        pytest.param(r'FINAL("a \") b" c)', r'"a \") b" c', id="an escaped quote ends nothing"),
        pytest.param(r"FINAL(a \) b)", r"a \) b", id="an escaped bracket does not count"),
        pytest.param("FINAL(1)\nFINAL(2)", "2", id="the last one wins"),
        pytest.param("FINAL(1)\nno, FINAL(2)", "1", id="not one in the middle of a line"),
        pytest.param("FINAL(1)\nFINAL(2", None, id="the last one wins even without an end"),
        pytest.param("```python\nFINAL(42)\n```", "42", id="other fences are text"),
        pytest.param("FINAL(it's (about) 42)\nDone.", "it's (about) 42", id="R-001-4 an apostrophe"),
        pytest.param('FINAL(5" wide)', '5" wide', id="R-001-4 inches"),
        pytest.param("FINAL('a)' isn't)", "'a", id="R-001-4 quotes that do not match"),
        pytest.param("FINAL('a)' b)", "'a)' b", id="R-001-4 quotes are tried first"),
        pytest.param("```repl\nFINAL(42)\n```", None, id="R-001-5 in a block"),
        pytest.param("FINAL(1)\n```repl\nFINAL(2)\n```", "1", id="R-001-5 beside a block"),
        pytest.param("```repl\nx = 1\nFINAL(42)", "42", id="after a fence without end"),
        pytest.param("```repl\n1\n```\n```repl\n```repl\nFINAL(2)", "2", id="after two of them"),
    ],
)
def test_final_of_a_reply(text: str, final: str | None) -> None:
    assert (read_reply(text).final, read_reply(text).final_var) == (final, None)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("So:\n  FINAL_VAR( 'x' )\nDone.", "x"),
        ('FINAL_VAR("x")', "x"),
        ("So: FINAL_VAR(x)", None),
        ("FINAL_VAR(x", None),
        ("FINAL_VAR(f(x))", "f(x"),
        ("FINAL_VAR(a)\nFINAL_VAR(b)", "a"),
        ("FINAL(42)\nFINAL_VAR(x)", "x"),
        ("```repl\nFINAL_VAR('x')\n```", None),
        ("FINAL(FINAL_VAR(x))", None),
    ],
)
def test_final_var_of_a_reply(text: str, name: str | None) -> None:
    read = read_reply(text)
    assert read.final_var == name
    assert read.final is None or name is None


def test_only_so_many_blocks_are_kept() -> None:
    read = read_reply("```repl\n1\n```\n" * 57 + "FINAL(42)\n```repl\n2")
    assert read == ReadReply(("1",) * MAX_BLOCKS, not_run=7, final="42", open_fence=True)


def test_name_of_a_variable_is_nothing_else() -> None:
    assert all(is_variable(name) for name in ("x", "_x1", "é", "context"))
    bad = ["", "1x", "x.y", "x y", "x)", "x,y", "None", "class", "x\n", "x;y", "x[0]", "'x'"]
    assert not any(is_variable(name) for name in bad)


PIECES = ["```repl\n", "```", "\n", "FINAL(", "FINAL_VAR(", "(", ")", "'", '"', "\\", " ", "x", "\r\n", "é"]


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join) | st.text(max_size=200))
@example("FINAL(\\")
@example("FINAL('\\")
def test_any_text_can_be_read(text: str) -> None:
    read = read_reply(text)
    assert all(part == part.strip() for part in (*read.blocks, read.final or ""))
    assert not any(source not in text.replace("\r\n", "\n") for source in read.blocks)


HOSTILE = ["('", "\\'", "FINAL('\n"]
"""Brackets and quotes, escapes, and beginnings of answers."""


@pytest.mark.parametrize(
    "piece",
    [
        *HOSTILE,
        *(pytest.param(one, marks=pytest.mark.exhaustive) for one in (*PIECES, "()", "```repl\n```\n")),
    ],
)
@pytest.mark.parametrize("opening", ["FINAL(", "FINAL('", "FINAL_VAR("])
def test_hostile_text_is_read_in_linear_time(piece: str, opening: str) -> None:
    text = opening + piece * (1_000_000 // len(piece)) + ")"
    began = time.process_time()
    read_reply(text)
    assert time.process_time() - began < 2
