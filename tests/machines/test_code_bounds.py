"""How much a run in code mode may send, get and run (spec 2.4), and what it does where that is too much."""

from __future__ import annotations

from typing import Any

import pytest

from activities.context import MATCH_CHARS, MATCHES
from activities.contracts import CallModel, CallTools, MachineEnded, ModelReplied
from activities.contracts_code import CodeAnswer, RunCode
from tests.machines.answers import failed, said, tool_failed, tool_said
from tests.machines.driver import Play, run_script, tool
from tests.machines.scripts_code import block, broke, calls, ran, together
from workflows.kernel.design import Brief, Parts
from workflows.machines.code_calls import ONE_CALL_CHARS, RUN_BYTES, VISIT_BYTES
from workflows.machines.code_context import Options, S
from workflows.machines.code_prompt import compressed
from workflows.machines.code_reply import MOST_BLOCKS
from workflows.registry import design

DESIGN = design("code")
SEARCH = tool("search", pattern={"type": "string"})


def code(*answers: Any, **options: Any) -> Play:
    """A run with these knobs."""
    return run_script("code", answers, options=options, tools=(SEARCH,))


def given(run: Play) -> CodeAnswer:
    """What the block was last given as the answer to its call."""
    step = run.effects[-1]
    assert isinstance(step, RunCode)
    assert step.answer is not None
    return step.answer


def cut(text: str) -> ModelReplied:
    """A reply that was cut at its length limit."""
    return ModelReplied(text=text, finish_reason="length")


# -- what is sent outside ----------------------------------------------------------------------------


def test_a_prompt_that_is_too_long_is_an_error_text_that_names_the_limit() -> None:
    run = code(block("."), calls("llm_query", "x" * (ONE_CALL_CHARS + 1)))
    assert str(given(run).value).startswith(
        "Error: llm_query: the prompt has 400,001 characters, at most 400,000"
    )
    run = code(block("."), calls("llm_query_batched", ["a", "x" * (ONE_CALL_CHARS + 1)]))
    assert "item 1 has 400,001 characters" in str(given(run).value)
    assert isinstance(code(block("."), calls("llm_query", "x" * ONE_CALL_CHARS)).last.effect, CallModel)


def test_sixty_very_large_prompts_leave_a_small_log() -> None:
    turns = [calls("llm_query", str(n) + "x" * 3_900_000) for n in range(60)]
    run = code(block("."), *turns, ran("done"), said("FINAL(1)"))
    assert (run.exit.reason, len(run.prompts)) == ("stop", 2)
    assert sum(len(record.model_dump_json()) for record in run.records) < 200_000


@pytest.mark.parametrize("letter", ["x", "é", "\N{GRINNING FACE}"])
def test_what_the_blocks_of_one_reply_send_is_bounded_in_bytes(letter: str) -> None:
    prompt = letter * (ONE_CALL_CHARS // len(letter.encode()))
    fit = VISIT_BYTES // ONE_CALL_CHARS
    turns = [part for _ in range(fit // 2) for part in (calls("llm_query", prompt), said(""), ran())]
    run = code(block(*["."] * (fit // 2 + 1)), *turns, calls("llm_query_batched", [prompt] * (fit // 2 + 1)))
    assert "may send and bring 8,000,000 bytes in all; 4,000,000 are used" in str(given(run).value)
    asked = (calls("llm_query", prompt), said("b"), ran(), block("."), calls("llm_query", prompt))
    run = code(block(*["."] * (fit // 2 + 1)), *turns, *asked)
    assert isinstance(run.last.effect, CallModel), "the next reply counts anew"
    assert run.context.visit_bytes == ONE_CALL_CHARS
    assert run.context.run_bytes == (fit // 2 + 2) * ONE_CALL_CHARS + 1


def test_answers_count_too() -> None:
    big = "y" * (VISIT_BYTES // 2)
    run = code(block("."), calls("llm_query_batched", ["a", "b"]), together(said(big), said(big)))
    assert run.context.visit_bytes == VISIT_BYTES + 2
    run = code(
        block("."),
        calls("llm_query_batched", ["a", "b"]),
        together(said(big), said(big)),
        calls("llm_query", "c"),
    )
    assert str(given(run).value).startswith("Error: the calls of one reply may send")


def test_a_reply_may_send_just_as_much_as_is_allowed() -> None:
    for size, fits in ((VISIT_BYTES - 3, True), (VISIT_BYTES - 2, False)):
        run = code(block("."), calls("llm_query", ""), said("x" * size), calls("llm_query", "abc"))
        assert isinstance(run.last.effect, CallModel) is fits


def test_what_a_tool_returns_counts_too() -> None:
    run = code(block("."), calls("search", "a"), tool_said("z" * 1000))
    sent: Any = run.records[-2].patch["visit_bytes"]
    assert run.context.visit_bytes == run.context.run_bytes == sent + 1000


def test_what_a_whole_run_sends_is_bounded() -> None:
    before = {"run_bytes": RUN_BYTES - 3}
    run = run_script("code", (block("."), calls("llm_query", "four")), changed=before)
    assert "the calls of a run may send and bring 64,000,000 bytes in all" in str(given(run).value)
    run = run_script("code", (block("."), calls("llm_query", "abc")), changed=before)
    assert isinstance(run.last.effect, CallModel)


def test_arguments_of_tools_are_bounded_by_the_same() -> None:
    run = code(block("."), calls("search", "x" * ONE_CALL_CHARS))
    assert str(given(run).error).startswith("search: the arguments have 400,")
    large = "x" * (ONE_CALL_CHARS - 1000)
    turns = [part for _ in range(20) for part in (calls("search", large), tool_said("z" * 1000))]
    run = code(block("."), *turns)
    assert isinstance(code(block("."), calls("search", large)).last.effect, CallTools)
    run = code(block("."), *turns, calls("search", large), calls("search", large))
    assert str(given(run).error).startswith("the calls of one reply may send and bring 8,000,000 bytes")


def test_prompts_are_kept_until_they_are_answered_and_no_longer() -> None:
    batch = calls("llm_query_batched", ["a", "b"])
    assert [query.prompt for query in code(block("."), batch).context.asked] == ["a", "b"]
    run = code(block("."), batch, together(said("A"), said("B")))
    assert (run.context.asked, run.context.answers) == ((), ("A", "B"))


# -- how much is run ---------------------------------------------------------------------------------


def test_at_most_fifty_blocks_of_a_reply_are_run_and_the_model_is_told_of_the_others() -> None:
    run = code(block(*["print(1)"] * 3000), *[ran("1")] * MOST_BLOCKS, said("FINAL(1)"))
    assert len([e for e in run.effects if isinstance(e, RunCode)]) == MOST_BLOCKS == 50
    assert run.told.startswith("At most 50 blocks of a reply are run: 2,950 more were not.")
    run = code(block(*["print(1)"] * MOST_BLOCKS), *[ran("1")] * MOST_BLOCKS, said("FINAL(1)"))
    assert run.told.startswith("Code:")


def test_an_empty_block_has_run_with_no_output_and_needs_no_sandbox() -> None:
    """Spec 2.3: an empty fence gives one empty block."""
    run = code(block("", "one", "", " ", "two", ""), ran("1"), ran("2"), said("FINAL(1)"))
    assert [e.block for e in run.effects if isinstance(e, RunCode)] == ["one", "two"]
    told = [m.content.split("\n", 2)[2] for m in run.context.transcript if m.content.startswith("Code:")]
    nothing = "\n```\nOutput:\n(nothing was printed)"
    assert told == [nothing, "one\n```\nOutput:\n1", nothing, nothing, "two\n```\nOutput:\n2", nothing]


def test_behind_an_empty_block_nothing_is_shown_that_an_earlier_one_has_printed() -> None:
    earlier = (calls("llm_query", "a", printed="one\n"), said("b"), ran("two"))
    run = code(block("1", "", "2"), *earlier, ran("three"), said("FINAL(1)"))
    shown = [m.content.partition("Output:\n")[2] for m in run.context.transcript if "Output:" in m.content]
    assert shown == ["one\ntwo", "(nothing was printed)", "three"]


def test_three_thousand_empty_blocks_cost_no_step() -> None:
    run = code(block(*[""] * 3000), said("FINAL(1)"))
    assert [effect.kind for effect in run.effects] == ["call_model", "call_model"]
    assert (run.context.iteration, run.exit.answer) == (1, "1")


def test_a_visit_and_a_run_have_borders_that_follow_from_the_knobs() -> None:
    machine = DESIGN.build(Options.model_validate({"max_iterations": 7, "block": {"calls": 10}}), Parts())
    assert machine.max_transitions == 15
    assert machine.states[S.EXECUTING].max_effects == 50 * 22 + 2


def test_a_visit_may_make_all_the_calls_that_its_blocks_may_make() -> None:
    turns = [part for _ in range(3) for part in (calls("llm_query", "a"), said("b"))]
    blocks = [
        part for _ in range(MOST_BLOCKS) for part in (*turns, calls("FINAL_VAR", "x"), ran(), broke("no"))
    ]
    run = code(block(*["."] * MOST_BLOCKS), *blocks, said("FINAL(1)"), block={"calls": 4})
    assert run.exit.reason == "stop"


# -- the session before a block ----------------------------------------------------------------------


def test_the_first_block_can_always_go_back_to_a_fresh_session() -> None:
    """Its end may be fatal after any number of calls: a session that waits is never restored."""
    turns = [part for n in range(3) for part in (calls("llm_query", "x", session=f"waits {n}"), said("y"))]
    run = code(block("."), *turns)
    assert [step.before for step in run.effects if isinstance(step, RunCode)] == ["", "", "", ""]


# -- parts of the context ----------------------------------------------------------------------------


def test_only_what_the_model_writes_makes_the_context_travel() -> None:
    """What blocks print, or a person says, names `context_slice` in vain."""
    shown = (block("1"), ran("context_slice"), block("2"))
    run = run_script("code", shown, goal="what does context_len do?", changed={"material": "text"})
    assert [e.context for e in run.effects if isinstance(e, RunCode)] == ["text", None]
    assert not run.context.reaches
    run = run_script("code", (said("I use context_len()."), block("1"), ran(), block("2")))
    assert run.context.reaches


# -- replies that were cut ---------------------------------------------------------------------------


@pytest.mark.parametrize("reply", ["It is", "```repl\nx = 1", "```repl\nx = 1\n```\nFINAL(4"])
def test_the_model_is_told_that_its_reply_was_cut(reply: str) -> None:
    steps = (ran(),) if reply.count("```") == 2 else ()
    run = code(cut(reply), *steps, said("FINAL(1)"))
    told = [m.content for m in run.prompts[-1].transcript if m.role == "user"][1:]
    assert any(text.startswith("Your reply was cut at its length limit (max_output_tokens)") for text in told)
    assert not any("There is no repl block in that" in text for text in told)
    later = code(cut("It is"), said("hm"), said("FINAL(1)"))
    assert later.told.startswith("There is no repl block"), "only of the reply that was cut"


def test_a_whole_answer_in_a_cut_reply_counts() -> None:
    assert code(cut("FINAL(42)\nAnd so")).exit.answer == "42"


@pytest.mark.parametrize(
    ("before", "options", "reason"),
    [((), {"max_depth": 0}, "shallow"), ((said("hm"),), {"max_iterations": 1}, "max_iterations")],
)
def test_a_last_reply_that_was_cut_is_not_ok(before: Any, options: Any, reason: str) -> None:
    run = code(*before, cut("It is"), **options)
    assert (run.exit.reason, run.exit.ok, run.exit.answer) == (reason, False, "It is")
    assert "the reply was cut at its length limit (`max_output_tokens`)" in str(run.exit.error)
    run = code(*before, cut("FINAL(42)\nAnd"), **options)
    assert (run.exit.answer, run.exit.ok) == ("42", reason == "shallow")
    assert "was cut" not in str(run.exit.error)


# -- what nobody knows -------------------------------------------------------------------------------

LOST = [
    pytest.param({"exit_reason": "unknown_outcome"}, id="by its reason"),
    pytest.param({"exit_reason": "failed", "outcome": {"unknown_outcome": True}}, id="by its outcome"),
]


@pytest.mark.parametrize("how", LOST)
def test_a_run_of_a_sub_query_that_does_not_know_what_it_did_ends_this_run(how: Any) -> None:
    ended = MachineEnded(machine="code", ok=False, error="pay(1) may have run", **how)
    run = code(block("."), calls("llm_query", "a"), ended, nested="always")
    assert (run.exit.reason, run.exit.raises) == ("failed", "ExecutionError")
    assert run.exit.error == "the run of a sub-query ended: pay(1) may have run"
    assert run.exit.outcome["unknown_outcome"] is True


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (calls("search", "a"), tool_failed("unknown_outcome", "pay(1) may have run")),
        (calls("search", "a"), failed("unknown_outcome")),
        (calls("llm_query", "a"), failed("unknown_outcome")),
        (calls("llm_query_batched", ["a", "b"]), together(said("A"), failed("unknown_outcome"))),
    ],
)
def test_the_outcome_says_that_nobody_knows(call: Any, answer: Any) -> None:
    run = code(block("."), call, answer)
    assert (run.exit.reason, run.exit.outcome["unknown_outcome"]) == ("failed", True)
    assert "unknown_outcome" not in code(failed("fatal")).exit.outcome


def test_a_tool_that_fails_without_words_is_named_by_its_kind() -> None:
    run = code(block("."), calls("search", "a"), tool_failed("timeout", ""))
    assert given(run) == CodeAnswer(error="timeout")


# -- answers and prompts -----------------------------------------------------------------------------


def test_an_answer_of_a_block_that_is_too_long_is_raised_in_the_block() -> None:
    run = code(block("."), calls("FINAL", "x" * 1_000_001))
    assert "the answer would have 1,000,001 characters, at most 1,000,000" in str(given(run).error)
    run = code(block("."), calls("FINAL_VAR", ["x" * 1_000_000]))
    assert str(given(run).error).startswith("FINAL_VAR: the answer would have 1,000,004 characters")
    assert len(str(code(block("."), calls("FINAL", "x" * 1_000_000), ran()).exit.answer)) == 1_000_000


def system(**options: Any) -> str:
    """The system message under these knobs."""
    brief = Brief("Which?", "trace-1", tools=(tool("open"), tool("ValueError"), tool("property")))
    first: Any = DESIGN.begin(brief, Options.model_validate(options))
    text: str = first.transcript.messages[0].content
    return text


def test_the_prompt_says_what_a_search_gives_and_what_is_bounded() -> None:
    text = " ".join(system(block={"state_bytes": 8 * 2**20, "calls": 77}).split())
    for words in (
        "context_search(pattern, start=0): a list of matches",
        '{"start": ..., "end": ..., "text": ...}',
        "RE2, without look-around",
        f"At most {MATCHES:,} matches",
        f"text at most {MATCH_CHARS:,} characters",
        "by the clock",
        "more than 77 calls",
        "may hold 8 MB",
        "At most 50 blocks",
        "at most 400,000 characters",
        "at most 1,000,000 characters",
    ):
        assert words in text, words


def test_the_prompt_says_how_batches_are_asked() -> None:
    assert "They are asked side by side" in system()
    always = system(nested="always")
    assert "side by side" not in always
    assert "asked one after the other" in always


def test_a_tool_with_a_name_of_the_sandbox_is_offered_under_another() -> None:
    assert all(f"- {name}_()" in system() for name in ("open", "ValueError", "property"))


def test_one_message_that_is_left_out_is_left_out() -> None:
    run = code(said("one"), said("two"))
    whole = run.context.transcript
    sent = compressed(whole, 3).messages
    assert (sent[:2], sent[3:]) == (whole.messages[:2], whole.messages[3:])
    assert sent[2].content.startswith("[1 earlier messages")
    assert compressed(whole, 2) == whole
