"""The knobs of the code machine: their borders, nested runs, compression, and the prompts (spec 2.4, 2.8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from activities.contracts import (
    CallModel,
    ContextRef,
    EffectFailed,
    InnerLimits,
    MachineEnded,
    ModelReplied,
    RunMachine,
    Usage,
)
from activities.contracts_code import CodeAnswer, RunCode
from tests.machines.answers import failed, said
from tests.machines.driver import Play, play, run_script, tool
from tests.machines.scripts_code import block, calls, ran, wrote
from workflows.kernel.design import Brief, Parts
from workflows.kernel.errors import PolicyViolation
from workflows.machines.code_context import Compression, Options
from workflows.machines.code_prompt import look_back, outputs
from workflows.registry import design

DESIGN = design("code")
TOOLS = (tool("search", pattern={"type": "string"}), tool("other"))

# -- borders -----------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_spec() -> None:
    knobs = Options()
    assert (knobs.max_iterations, knobs.max_depth) == (30, 1)
    assert (knobs.block.seconds, knobs.block.output_chars) == (300, 20_000)
    assert (knobs.final_var_missing, knobs.nested.policy, knobs.compression) == ("retry", "never", None)
    compression = Compression(window_tokens=1000)
    assert (compression.at, compression.keep_last, compression.least) == (0.92, 6, 8)


@pytest.mark.parametrize(
    "bad",
    [
        {"max_iterations": 0},
        {"max_iterations": -1},
        {"max_depth": -1},
        {"final_var_missing": "ignore"},
        {"block": {"seconds": 3601}},
        {"block": {"seconds": 0}},
        {"nested": {"mode": "thread"}},
        {"compression": {}},
        {"compression": {"window_tokens": 1000, "at": 1.1}},
        {"max_iteration": 3},
    ],
)
def test_settings_are_checked_at_the_border(bad: Any) -> None:
    with pytest.raises(ValidationError):
        Options.model_validate(bad)


def test_an_iteration_limit_of_any_size_is_no_limit_of_transitions() -> None:
    most = 6_000
    machine = DESIGN.build(Options(max_iterations=most), Parts())
    assert machine.max_transitions >= 2 * most + 1


def test_the_machine_takes_a_context_and_a_model_for_sub_queries() -> None:
    assert DESIGN.takes_context
    assert DESIGN.roles == ("default", "sub")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"nested": "sometimes"}, "nested.policy: unknown hook 'sometimes'; there are always, never"),
        ({"nested": "alway"}, "did you mean always?"),
        ({"policies": ["max_costs"]}, "did you mean max_cost?"),
    ],
)
def test_names_that_nobody_knows_are_refused(options: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem.replace("?", r"\?")):
        DESIGN.build(Options.model_validate(options), Parts())


def test_a_nested_run_has_no_tools_that_its_run_has_not() -> None:
    with pytest.raises(ValueError, match=r"nested\.tools: the run has no tool rm; name it under `tools` too"):
        DESIGN.begin(Brief("q", "t", tools=TOOLS), Options.model_validate({"nested": {"tools": ["rm"]}}))


# -- nested runs -------------------------------------------------------------------------------------


def nested(knob: Any, *answers: Any, hooks: Any = None, **more: Any) -> Play:
    """A run with this nested policy."""
    options = {"nested": knob, **more}
    return run_script("code", answers, options=options, tools=TOOLS, parts=Parts(hooks=hooks or {}))


def opened(run: Play) -> RunMachine:
    """The nested run that is asked for."""
    assert isinstance(run.last.effect, RunMachine)
    return run.last.effect


def ended(**more: Any) -> MachineEnded:
    """How a nested run ended."""
    return MachineEnded(**{"machine": "code", "ok": True, "exit_reason": "stop", **more})


ASKS = (block("..."), calls("llm_query", "what?"))


def test_R_001_6_a_sub_query_is_a_plain_call_unless_it_is_said_otherwise() -> None:
    """R-001-6: `never` is the default."""
    assert isinstance(nested("never", *ASKS).last.effect, CallModel)
    assert isinstance(run_script("code", ASKS).last.effect, CallModel)


def test_R_001_6_always_makes_every_sub_query_a_run_of_its_own() -> None:
    """R-001-6: a child workflow of the same machine, with this run's knobs and tools."""
    run = nested("always", *ASKS, max_depth=3)
    call = opened(run)
    assert (call.machine, call.goal, call.mode, call.context) == ("code", "what?", "child", None)
    assert call.tools_given == ("search", "other")
    assert call.roles == {"default": "sub"}
    assert (call.options["max_depth"], call.options["nested"]) == (3, {"policy": "always"})


def test_R_001_6_its_settings_reach_the_nested_run() -> None:
    """R-001-6: mode, machine, tools and limits."""
    knob = {
        "policy": "always", "machine": "tools", "mode": "inline", "tools": ["search"],
        "limits": {"model_calls": 3}, "options": {"max_iterations": 2},
    }  # fmt: skip
    call = opened(nested(knob, *ASKS))
    assert (call.machine, call.mode, call.tools_given) == ("tools", "inline", ("search",))
    assert (call.limits, call.options) == (InnerLimits(model_calls=3), {"max_iterations": 2})


def test_R_001_6_a_nested_run_of_the_same_machine_may_have_other_knobs() -> None:
    """R-001-6: those that are named; the others are this run's."""
    call = opened(nested({"policy": "always", "options": {"max_iterations": 2}}, *ASKS, max_depth=2))
    assert (call.options["max_iterations"], call.options["max_depth"]) == (2, 2)


def test_R_001_6_a_hook_decides_by_prompt_and_depth() -> None:
    """R-001-6: `should_orchestrate(prompt, depth)`, by its name."""
    seen: list[tuple[str, int]] = []

    def long_ones(prompt: str, depth: int) -> bool:
        seen.append((prompt, depth))
        return len(prompt) > 3

    batch = calls("llm_query_batched", ["short"[:2], "longer"])
    run = nested("mine", block("..."), batch, said("A"), ended(answer="B"), hooks={"mine": long_ones})
    assert [effect.kind for effect in run.effects][2:4] == ["call_model", "run_machine"]
    assert set(seen) == {("sh", 0), ("longer", 0)}
    assert isinstance(run.last.effect, RunCode)
    assert run.last.effect.answer == CodeAnswer(value=["A", "B"])


@pytest.mark.parametrize(
    ("hook", "raises", "words"),
    [
        (
            lambda prompt, depth: None,
            "FatalError",
            "the nested policy mine answered None; expected True or False",
        ),
        (lambda prompt: True, "FatalError", "the nested policy mine failed: TypeError"),
        (lambda prompt, depth: 1 / 0, "FatalError", "ZeroDivisionError"),
    ],
)
def test_R_001_6_a_hook_that_fails_leaves_the_run(hook: Any, raises: str, words: str) -> None:
    """R-001-6: as a policy that fails does."""
    run = nested("mine", *ASKS, hooks={"mine": hook})
    assert (run.exit.reason, run.exit.raises) == ("failed", raises)
    assert words in str(run.exit.error)


def test_R_001_6_an_error_that_a_hook_names_is_raised_as_it_is() -> None:
    """R-001-6: also for a later prompt of a batch."""

    def hook(prompt: str, depth: int) -> bool:
        if prompt == "b":
            raise PolicyViolation("not b")
        return False

    batch = calls("llm_query_batched", ["a", "b"])
    run = nested("mine", block("..."), batch, hooks={"mine": hook})
    assert (run.exit.raises, run.exit.error) == ("PolicyViolation", "not b")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (ended(answer="B"), "B"),
        (ended(answer=""), ""),
        (ended(ok=False, exit_reason="max_iterations", answer="so", error="no answer within"), "so"),
        (ended(ok=False, exit_reason="failed", error="HTTP500: gone"), "Error: HTTP500: gone"),
        (ended(ok=False, exit_reason="limit"), "Error: limit"),
        (failed("fatal", "no such machine", "inner_machine"), "Error: inner_machine: no such machine"),
        (failed("recoverable", "too deep", "depth_limit"), "Error: depth_limit: too deep"),
    ],
)
def test_a_nested_run_gives_its_answer_or_an_error_text(
    answer: MachineEnded | EffectFailed, text: str
) -> None:
    run = nested("always", *ASKS, answer)
    assert isinstance(run.last.effect, RunCode)
    assert run.last.effect.answer == CodeAnswer(value=text)


def test_the_usage_of_a_nested_run_is_counted_once() -> None:
    run = nested("always", *ASKS, ended(answer="B", spent={"cost_usd": 2, "model_calls": 3}))
    assert (run.last.ledger.used("cost_usd"), run.last.ledger.used("model_calls")) == (2, 4)


def test_with_the_default_depth_the_root_runs_code_and_a_child_answers_in_one_call() -> None:
    """Spec 2.4: the root has depth 0, the child depth 1, and `max_depth` is 1."""
    call = opened(nested("always", *ASKS))
    knobs = Options.model_validate(call.options)
    context = DESIGN.begin(Brief(call.goal, "trace-1/child", tools=TOOLS, depth=1), knobs)
    child = play(DESIGN.build(knobs, Parts()), context, [said("FINAL(42)")])
    assert child.visited == "INIT SHALLOW_CALL DONE"
    assert [m.content for m in child.prompts[0].transcript] == ["what?"]
    assert child.exit.answer == "42"


# -- compression -------------------------------------------------------------------------------------


def long_reply(number: int, tokens: int) -> ModelReplied:
    """A reply after a call of so many tokens."""
    return ModelReplied(
        text=wrote(f"print({number})"), usage=Usage(input_tokens=tokens - 10, output_tokens=10)
    )


def talk(count: int, tokens: int, **compression: Any) -> Play:
    """So many turns with blocks, each call with so many tokens."""
    knob = {"window_tokens": 1000, **compression}
    turns = [part for n in range(count) for part in (long_reply(n, tokens), ran(str(n)))]
    return run_script("code", turns, options={"compression": knob} if compression is not None else {})


def test_R_001_6_below_the_mark_every_message_is_sent() -> None:
    """R-001-6: a compressor that is set works; by default from 0.92 of the window on."""
    sent = [len(call.transcript) for call in talk(5, 919).prompts]
    assert sent == [2, 4, 6, 8, 10, 12]


def test_R_001_6_from_the_mark_on_the_first_two_and_the_last_six_messages_are_sent() -> None:
    """R-001-6: with fewer than 8 messages nothing is left out; what is left out is said."""
    run = talk(5, 920)
    assert [len(call.transcript) for call in run.prompts] == [2, 4, 6, 8, 9, 9]
    messages = run.prompts[-1].transcript.messages
    whole = run.context.transcript.messages
    assert (messages[:2], messages[3:]) == (whole[:2], whole[-6:])
    assert messages[2].content.startswith("[4 earlier messages are left out here")
    assert len(whole) == 12


def test_R_001_6_what_was_left_out_stays_out_while_there_is_room_again() -> None:
    """R-001-6: the conversation that is sent only grows then, so that servers can reuse it."""
    turns = [
        part for n, t in enumerate([920, 920, 920, 920, 500, 500]) for part in (long_reply(n, t), ran(str(n)))
    ]
    run = run_script("code", turns, options={"compression": {"window_tokens": 1000}})
    sent = [call.transcript.messages for call in run.prompts]
    assert [len(messages) for messages in sent] == [2, 4, 6, 8, 9, 11, 13]
    assert sent[6][:11] == sent[5]


def test_R_001_6_the_forced_call_is_compressed_too() -> None:
    """R-001-6: it is a main call like any other; sub-queries have nothing to leave out."""
    turns = [part for n in range(4) for part in (long_reply(n, 950), ran(str(n)))]
    options = {"compression": {"window_tokens": 1000}, "max_iterations": 4}
    run = run_script("code", turns, options=options)
    assert len(run.prompts[-1].transcript) == 9
    assert run.told.startswith("The iterations are used up")


@pytest.mark.parametrize(
    ("count", "tokens", "dropped", "expected"),
    [
        (20, 919, 0, 0),
        (20, 920, 0, 14),
        (7, 999, 0, 0),
        (8, 999, 0, 2),
        (9, 999, 0, 3),
        (14, 999, 10, 10),
        (15, 999, 10, 10),
        (16, 999, 10, 10),
        (17, 999, 10, 11),
    ],
)
def test_where_the_messages_that_are_sent_begin(count: int, tokens: int, dropped: int, expected: int) -> None:
    assert look_back(Compression(window_tokens=1000), count, tokens, dropped) == expected


# -- the prompts -------------------------------------------------------------------------------------


def system(options: Any = None, **brief: Any) -> str:
    """The system message of a run that begins so."""
    first = replace(Brief("Which?", "trace-1"), **brief)
    return DESIGN.begin(first, Options.model_validate(options or {})).transcript.messages[0].content  # type: ignore[attr-defined, no-any-return]  # a code context


def test_the_prompt_says_what_the_sandbox_is_and_how_to_end() -> None:
    text = system()
    for words in (
        "```repl\n",
        "class inheritance",
        "`yield`",
        "`del`",
        "FINAL(your answer)",
        "FINAL_VAR(name)",
    ):
        assert words in text
    for name in ("llm_query(prompt, model=None)", "llm_query_batched(prompts", "DEPTH and CORRELATION_ID"):
        assert name in text
    assert "20,000 characters" in text
    assert "30 replies" in text
    assert "300 s" in text


def test_the_prompt_follows_the_knobs() -> None:
    text = system({"max_iterations": 1, "block": {"output_chars": 500, "seconds": 2.5}})
    assert "500 characters" in text
    assert "one reply" in text
    assert "2.5 s" in text


def test_the_prompt_says_how_the_context_is_reached() -> None:
    assert "context: the whole context, a text of 5 characters" in system(context="12345")
    own = system()
    assert "a text of 6 characters" in own
    assert "It is the question itself" in own
    long = system(context=ContextRef(digest="d", chars=1_234_567, bytes=1_234_567))
    for words in ("1,234,567 characters", "context_len()", "context_slice(a, b)", "context_search(pattern"):
        assert words in long
    assert "- context: the whole" not in long


def test_the_prompt_names_the_tools_as_blocks_call_them() -> None:
    text = system(tools=(tool("my-search", pattern={"type": "string"}, limit={}),))
    assert "- my_search(pattern, limit): does my-search" in text
    assert '"pattern": {"type": "string"}' in text
    assert "RuntimeError" in text
    assert "RuntimeError" not in system()


def test_instructions_stand_before_everything() -> None:
    assert system(instructions="You are careful.").startswith("You are careful.\n\nYou answer")


def test_what_blocks_brought_is_found_again_among_other_messages() -> None:
    """Policies see it; a person may have spoken in between, and two blocks may be alike."""
    run = run_script("code", (block("a", "a", "b"), ran("1"), ran("2"), ran("3")))
    transcript = run.context.transcript
    assert outputs(transcript, ["a", "a", "b"]) == ["1", "2", "3"]
    assert outputs(transcript, ["a", "c", "b"]) == ["1"]
    assert outputs(transcript, []) == []
