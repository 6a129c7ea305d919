"""Blocks step by step: what they may call, what they print, how they fail, what is kept."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.contracts_code import CodeAnswer, CodeCall, CodeLimits, RunCode
from tests.activities.codekit import SHORT, Sandbox, sandbox_in

PROCESSES_ARE_FILES = Path("/proc/self/stat").exists()
"""As on Linux."""


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with sandbox_in(tmp_path) as sandbox:
        yield sandbox


async def test_a_block_runs_to_its_next_call_and_goes_on_with_the_answer(sandbox: Sandbox) -> None:
    first = await sandbox.step(
        block="x = 2\nprint('before')\ny = ask('how much?', x, unit='km')\nprint(x, y)"
    )
    assert first.call == CodeCall(name="ask", args=("how much?", 2), named={"unit": "km"})
    assert (first.printed, first.error, first.fatal) == ("before\n", None, False)
    second = await sandbox.step(session=first.session, answer=CodeAnswer(value={"km": [3, None]}))
    assert (second.call, second.printed) == (None, "2 {'km': [3, None]}\n")
    third = await sandbox.step(session=second.session, block="print(y['km'][0] + x)")
    assert third.printed == "5\n"
    assert 0 < third.seconds < 5


async def test_a_step_may_be_repeated_from_the_same_session(sandbox: Sandbox) -> None:
    first = await sandbox.step(block="n = 1\nn += ask()\nprint(n)")
    again = [await sandbox.step(session=first.session, answer=CodeAnswer(value=v)) for v in (1, 1, 5)]
    assert [step.printed for step in again] == ["2\n", "2\n", "6\n"]


async def test_a_fresh_session_has_the_constants_even_if_its_first_block_is_no_python(
    sandbox: Sandbox,
) -> None:
    given: dict[str, Any] = {"constants": {"depth": 1, "who": {"id": "é"}}}
    broken = await sandbox.run("x = = 1", **given)
    assert broken.error is not None
    assert "SyntaxError" in broken.error
    told = await sandbox.run("print(depth, who['id'])", **given)
    assert told.printed == "1 é\n"


async def test_constants_are_not_set_again_in_a_session_that_goes_on(sandbox: Sandbox) -> None:
    await sandbox.run("depth = 7", constants={"depth": 1})
    assert (await sandbox.run("print(depth)", constants={"depth": 1})).printed == "7\n"


async def test_a_bare_expression_prints_nothing_and_may_be_anything(sandbox: Sandbox) -> None:
    for last in (
        "41 + 1",
        "ask",
        "lambda: 1",
        "list(range(100000))",
        "print",
        "x = 1  # the end",
        "# end \\",
        "if 1:\n  2\n",
    ):
        stepped = await sandbox.run(f"print('a')\n{last}")
        assert (stepped.printed, stepped.error) == ("a\n", None), last


async def test_a_name_may_be_read_kept_and_called_later(sandbox: Sandbox) -> None:
    await sandbox.run("f = ask\ndef twice(x):\n    return f(f(x))")
    assert (await sandbox.run("print(twice('q'))")).printed == "<<q>>\n"
    assert [call.name for call in sandbox.calls] == ["ask", "ask"]


@pytest.mark.parametrize("block", ["aks('x')", "print(aks)", "aks.x('y')", "context_len()", "print(context)"])
async def test_any_other_name_is_a_name_error_inside(sandbox: Sandbox, block: str) -> None:
    name = "aks" if "aks" in block else "context_len" if "len" in block else "context"
    stepped = await sandbox.run(f"print('kept')\n{block}")
    assert (stepped.printed, stepped.call, stepped.fatal) == ("kept\n", None, False)
    assert stepped.error is not None
    assert f"line 2, in <module>\n    {block}\n" in stepped.error
    assert stepped.error.endswith(f"NameError: name '{name}' is not defined")


async def test_a_name_error_can_be_caught_inside(sandbox: Sandbox) -> None:
    stepped = await sandbox.run("try:\n    aks()\nexcept NameError as error:\n    print(error)")
    assert (stepped.printed, stepped.error) == ("name 'aks' is not defined\n", None)


async def test_an_error_keeps_the_output_and_the_variables_before_it(sandbox: Sandbox) -> None:
    stepped = await sandbox.run("x = 1\nprint('out')\nx = 2\n1 / 0\nx = 3")
    assert (stepped.printed, stepped.fatal) == ("out\n", False)
    assert stepped.error is not None
    assert "line 4" in stepped.error
    assert stepped.error.endswith("ZeroDivisionError: division by zero")
    assert (await sandbox.run("print(x)")).printed == "2\n"


async def test_source_that_is_not_supported_is_refused_with_its_line_before_anything_runs(
    sandbox: Sandbox,
) -> None:
    stepped = await sandbox.run("print('never')\nclass A(Exception): pass")
    assert stepped.printed == ""
    assert stepped.error is not None
    assert "line 2" in stepped.error
    assert "NotImplementedError" in stepped.error


@pytest.mark.parametrize(
    "source",
    [
        "x = (",
        "def f(:",
        "'''",
        "x = \\",
        "x = 1 \\",
        "x = 1 \\\n",
        "x = 1 + \\\n",
        "if 1: \\",
        "if True:",
        "\ud800 = 1",
        "@f",
        "\0",
    ],
)
async def test_a_syntax_error_speaks_of_what_was_written(sandbox: Sandbox, source: str) -> None:
    stepped = await sandbox.run(source)
    assert stepped.error is not None
    assert "SyntaxError" in stepped.error
    assert "None" not in stepped.error


async def test_a_long_error_is_cut_in_its_middle(sandbox: Sandbox) -> None:
    stepped = await sandbox.run("raise ValueError('begin' + 'x' * 1_000_000 + 'end')")
    assert stepped.error is not None
    assert len(stepped.error) < 4200
    assert "begin" in stepped.error
    assert "characters left out]" in stepped.error
    assert stepped.error.endswith("end")


# -- answers ---------------------------------------------------------------------------------------


async def test_an_error_as_answer_is_a_runtime_error_inside(sandbox: Sandbox) -> None:
    block = "try:\n    ask('x')\nexcept RuntimeError as error:\n    print('caught', error)"
    stepped = await sandbox.run(block, lambda call: CodeAnswer(error="the tool is broken"))
    assert stepped.printed == "caught the tool is broken\n"
    stepped = await sandbox.run("ask('x')", lambda call: CodeAnswer(error="the tool is broken"))
    assert stepped.error is not None
    assert stepped.error.endswith("RuntimeError: the tool is broken")


async def test_a_stop_ends_the_block_there_and_keeps_its_variables(sandbox: Sandbox) -> None:
    block = "x = 1\ntry:\n    ask('x')\nexcept Exception:\n    x = 5\nfinally:\n    y = 2\nx = 9"
    stepped = await sandbox.run(block, lambda call: CodeAnswer(stop=True))
    assert (stepped.error, stepped.fatal, stepped.call) == (None, False, None)
    assert (await sandbox.run("print(x, y)")).printed == "1 2\n"


async def test_a_block_that_catches_its_end_makes_no_more_calls(sandbox: Sandbox) -> None:
    block = "x = 0\nfor n in range(20):\n    try:\n        ask(n)\n    except BaseException:\n        x += 1"
    stepped = await sandbox.run(block, lambda call: CodeAnswer(stop=True))
    assert (stepped.error, stepped.fatal) == (None, False)
    assert len(sandbox.calls) == 1
    endless = "while True:\n    try:\n        ask()\n    except BaseException:\n        pass"
    limits = SHORT.model_copy(update={"seconds": 60})
    stepped = await sandbox.run(endless, lambda call: CodeAnswer(stop=True), limits=limits)
    assert stepped.fatal
    assert stepped.error is not None
    assert "the block does not end, although it was ended" in stepped.error
    assert (await sandbox.run("print(x)")).printed == "20\n"


async def test_a_whole_output_takes_the_place_of_the_value(sandbox: Sandbox) -> None:
    digest = await sandbox.store.put(b"one\xfftwo " + b"x" * 300_000)
    stepped = await sandbox.run(
        "t = ask()\nprint(len(t), t[:8])", lambda call: CodeAnswer(value="cut", whole=digest)
    )
    assert stepped.printed == "300008 one\ufffdtwo \n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"a": [1, 2.5, null, true]}', "dict {'a': [1, 2.5, None, True]}"),
        ('"text"', "str text"),
        ("12345678901234567890123", "int 12345678901234567890123"),
        ("no json", "str no json"),
        ("NaN", "str NaN"),
        ("", "str "),
        ("[" * 5000 + "]" * 5000, "str " + "[" * 20),
    ],
)
async def test_a_text_is_parsed_if_it_is_json(sandbox: Sandbox, text: str, shown: str) -> None:
    block = "v = ask()\nprint(type(v).__name__, str(v)[:40])"
    stepped = await sandbox.run(block, lambda call: CodeAnswer(value=text, parse=True))
    assert stepped.printed.startswith(shown)
    digest = await sandbox.store.put(text.encode())
    stepped = await sandbox.run(block, lambda call: CodeAnswer(whole=digest, parse=True))
    assert stepped.printed.startswith(shown)


async def test_a_value_that_is_not_text_is_handed_over_as_it_is(sandbox: Sandbox) -> None:
    stepped = await sandbox.run("print(ask())", lambda call: CodeAnswer(value=["1", 2], parse=True))
    assert stepped.printed == "['1', 2]\n"


# -- output, limits --------------------------------------------------------------------------------


async def test_output_is_cut_at_the_limit_and_what_was_cut_is_counted(sandbox: Sandbox) -> None:
    limits = SHORT.model_copy(update={"output_chars": 100})
    stepped = await sandbox.run("for n in range(50):\n    print('é' * 9)", limits=limits)
    assert stepped.printed == ("é" * 9 + "\n") * 10
    assert stepped.left_out == 400
    stepped = await sandbox.run("print('x' * 100, end='')", limits=limits)
    assert (len(stepped.printed), stepped.left_out) == (100, 0)


async def test_both_streams_are_shown_in_order(sandbox: Sandbox) -> None:
    block = "import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c')"
    assert (await sandbox.run(block)).printed == "a\nb\nc\n"


async def test_a_timeout_goes_back_to_the_state_before_the_block(sandbox: Sandbox) -> None:
    await sandbox.run("x = 1")
    before = sandbox.session
    stepped = await sandbox.run("x = 2\nask()\nx = 3\nprint('seen')\nwhile True: pass")
    assert (stepped.fatal, stepped.session, stepped.call) == (True, before, None)
    assert stepped.printed == "seen\n"
    assert stepped.error is not None
    assert "TimeoutError" in stepped.error
    assert "as they were before this block" in stepped.error
    assert (await sandbox.run("print(x)")).printed == "1\n"


async def test_the_time_of_a_block_is_counted_over_its_steps(sandbox: Sandbox) -> None:
    block = "while True:\n    n = 0\n    while n < 300_000: n += 1\n    ask()"
    stepped = await sandbox.run(block, limits=SHORT.model_copy(update={"seconds": 0.5}))
    assert stepped.fatal
    assert len(sandbox.calls) > 1  # on a busy machine each step takes long


async def test_more_calls_than_allowed_end_the_block_and_keep_its_variables(sandbox: Sandbox) -> None:
    limits = SHORT.model_copy(update={"calls": 3})
    stepped = await sandbox.run("n = 0\nwhile True:\n    n += 1\n    ask(n)", limits=limits)
    assert (len(sandbox.calls), stepped.fatal) == (3, False)
    assert stepped.error == "the block was ended: it wanted more than 3 calls; use several blocks"
    assert (await sandbox.run("print(n)\nask()", limits=limits)).printed == "4\n"
    assert len(sandbox.calls) == 1  # each block counts anew


async def test_variables_that_are_too_large_to_keep_are_refused(sandbox: Sandbox) -> None:
    limits = SHORT.model_copy(update={"state_bytes": 2**17})
    await sandbox.run("x = 'small'", limits=limits)
    stepped = await sandbox.run("x = 'x' * 200_000", limits=limits)
    assert stepped.fatal
    assert stepped.error is not None
    assert "at most 131,072 are kept" in stepped.error
    assert (await sandbox.run("print(x)", limits=limits)).printed == "small\n"


@pytest.mark.parametrize("size", range(36_000, 60_000, 4_000))
async def test_no_block_leaves_a_state_that_fits_into_no_memory(sandbox: Sandbox, size: int) -> None:
    """It takes more memory to load a state than to make it; then every later block would fail."""
    limits = SHORT.model_copy(update={"memory_bytes": 8 * 2**20})
    await sandbox.run("x = 'small'", limits=limits)
    stepped = await sandbox.run(f"y = [str(n) for n in range({size})]\nx = 'large'", limits=limits)
    then = await sandbox.run("print(x)", limits=limits)
    assert (then.error, then.printed) == (None, "small\n" if stepped.fatal else "large\n")


async def test_a_call_whose_state_fits_into_no_memory_is_lost_with_its_block(sandbox: Sandbox) -> None:
    limits = SHORT.model_copy(update={"memory_bytes": 8 * 2**20})
    await sandbox.run("x = 'small'", limits=limits)
    stepped = await sandbox.run("y = [str(n) for n in range(50_000)]\nask()", limits=limits)
    assert stepped.fatal
    assert (await sandbox.run("print(x)", limits=limits)).printed == "small\n"


async def test_the_same_block_does_the_same_thing_each_time(sandbox: Sandbox) -> None:
    block = (
        "import random, time, datetime\n"
        "print(random.random(), random.sample(range(100), 5), time.time(), datetime.datetime.now())\n"
        "time.sleep(1000)\nprint(time.monotonic(), hash('a'), list({'b', 'a', 'c'}))"
    )
    shown = []
    for _ in range(3):
        sandbox.session = ""
        shown.append((await sandbox.run(block)).printed)
    assert shown[0] == shown[1] == shown[2]
    assert "2025-01-01" in shown[0]


# -- the activity ----------------------------------------------------------------------------------


async def test_a_step_that_makes_no_sense_is_refused_for_good(sandbox: Sandbox) -> None:
    waiting = (await sandbox.step(block="ask()")).session
    ended = (await sandbox.step(block="1")).session
    for given in (
        {"block": "1", "session": waiting},
        {"session": ended, "answer": CodeAnswer()},
        {"answer": CodeAnswer()},
        {"session": waiting},
    ):
        with pytest.raises(ApplicationError, match="session") as raised:
            await sandbox.step(**given)
        assert (raised.value.type, raised.value.non_retryable) == ("Fatal", True)


async def test_a_cancelled_step_ends_at_once_and_its_interpreter_with_it(sandbox: Sandbox) -> None:
    environment = ActivityEnvironment()
    effect = RunCode(block="while True: pass", limits=CodeLimits(seconds=60))
    running = asyncio.create_task(environment.run(sandbox.activities.run_code, effect))
    if PROCESSES_ARE_FILES:
        await until(lambda: bool(interpreters()))
    await asyncio.sleep(0.2)
    environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 10)
    await until(lambda: not interpreters())
    assert (await sandbox.run("print('next')")).printed == "next\n"


async def until(reached: Callable[[], bool]) -> None:
    """Look again and again, for up to 30 seconds."""
    for _ in range(600):
        if reached():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come to that within 30 s")


def interpreters() -> list[int]:
    """The interpreters that this process has started and that live."""
    ours = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            state, parent, *_ = rest.split()
            if (name, int(parent)) == ("monty", os.getpid()) and state != "Z":
                ours.append(int(stat.parent.name))
    return ours


async def test_a_step_sends_heartbeats_while_it_runs(sandbox: Sandbox) -> None:
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(
        ActivityEnvironment.default_info(), heartbeat_timeout=timedelta(seconds=0.4)
    )
    beats: list[object] = []
    environment.on_heartbeat = lambda *details: beats.append(details)
    await environment.run(sandbox.activities.run_code, RunCode(block="while True: print(1)", limits=SHORT))
    assert len(beats) >= 5


async def test_many_blocks_run_side_by_side(sandbox: Sandbox) -> None:
    steps = [sandbox.step(block=f"n = 0\nwhile n < 50_000: n += 1\nprint({n})") for n in range(40)]
    assert [step.printed for step in await asyncio.gather(*steps)] == [f"{n}\n" for n in range(40)]


async def test_the_pool_opens_again_after_it_was_closed(sandbox: Sandbox) -> None:
    await sandbox.run("x = 1")
    await sandbox.activities.close()
    await sandbox.activities.close()
    assert (await sandbox.run("print(x)")).printed == "1\n"
