"""Blocks step by step: what they can call, what they print, how they fail, what is kept."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.contracts import CodeAnswer, CodeCall, CodeLimits, MaterialRef, RunCode
from tests.activities.codekit import SHORT, Sandbox, kept, sandbox_in

PROCESSES_ARE_FILES = Path("/proc/self/stat").exists()
"""As on Linux."""


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with sandbox_in(tmp_path) as sandbox:
        yield sandbox


async def test_block_stops_at_call_and_goes_on_with_answer(sandbox: Sandbox) -> None:
    first = await sandbox.step(
        block="x = 2\nprint('before')\ny = ask('how much?', x, unit='km')\nprint(x, y)"
    )
    assert first.call == CodeCall(name="ask", args=("how much?", 2), named={"unit": "km"})
    assert (first.printed, first.error, first.fatal) == ("before\n", None, False)
    second = await sandbox.step(session=first.session, answer=CodeAnswer(value={"km": [3, None]}))
    assert (second.call, second.printed) == (None, "2 {'km': [3, None]}\n")
    third = await sandbox.step(session=second.session, block="print(y['km'][0] + x)")
    assert third.printed == "5\n"
    assert third.seconds > 0


async def test_session_can_go_on_several_times(sandbox: Sandbox) -> None:
    first = await sandbox.step(block="n = 1\nn += ask()\nprint(n)")
    again = [await sandbox.step(session=first.session, answer=CodeAnswer(value=v)) for v in (1, 1, 5)]
    assert [step.printed for step in again] == ["2\n", "2\n", "6\n"]


async def test_constants_are_set_once_even_by_broken_first_block(sandbox: Sandbox) -> None:
    given: dict[str, Any] = {"constants": {"depth": 1, "who": {"id": "é"}}}
    broken = await sandbox.run("x = = 1", **given)
    assert "SyntaxError" in (broken.error or "")
    assert (await sandbox.run("print(depth, who['id'])\ndepth = 7", **given)).printed == "1 é\n"
    assert (await sandbox.run("print(depth)", **given)).printed == "7\n"


@pytest.mark.parametrize(
    "last",
    ["41 + 1", "ask", "lambda: 1", "list(range(100000))", "x = 1  # end", "# end \\", "if 1:\n  2\n"],
)
async def test_bare_expression_prints_nothing(sandbox: Sandbox, last: str) -> None:
    stepped = await sandbox.run(f"print('a')\n{last}")
    assert (stepped.printed, stepped.error) == ("a\n", None)


@pytest.mark.parametrize("block", ["aks('x')", "print(aks)", "aks.x('y')", "context_len()", "print(context)"])
async def test_unknown_name_is_name_error_inside(sandbox: Sandbox, block: str) -> None:
    name = "aks" if "aks" in block else "context_len" if "len" in block else "context"
    stepped = await sandbox.run(f"print('kept')\n{block}")
    assert (stepped.printed, stepped.call, stepped.fatal) == ("kept\n", None, False)
    assert (stepped.error or "").endswith(f"NameError: name '{name}' is not defined")
    caught = await sandbox.run("try:\n    aks()\nexcept NameError as error:\n    print(error)")
    assert (caught.printed, caught.error) == ("name 'aks' is not defined\n", None)


async def test_error_keeps_output_and_variables_before_it(sandbox: Sandbox) -> None:
    stepped = await sandbox.run("x = 1\nprint('out')\nx = 2\n1 / 0\nx = 3")
    assert (stepped.printed, stepped.fatal) == ("out\n", False)
    assert "line 4" in (stepped.error or "")
    assert "ZeroDivisionError" in (stepped.error or "")
    assert (await sandbox.run("print(x)")).printed == "2\n"


@pytest.mark.parametrize(
    "source",
    ["x = (", "def f(:", "'''", "x = \\", "x = 1 \\\n", "if 1: \\", "if True:", "\ud800 = 1", "\0"],
)  # fmt: skip
async def test_syntax_error_is_about_what_was_written(sandbox: Sandbox, source: str) -> None:
    stepped = await sandbox.run(source)
    assert "SyntaxError" in (stepped.error or "")
    assert "None" not in (stepped.error or "")


# -- the material ----------------------------------------------------------------------------------


async def test_short_material_is_variable_and_functions(sandbox: Sandbox) -> None:
    stepped = await sandbox.run(
        "print(context, context_len(), context_slice(-2), context_search('é+')[0]['start'])", material="aéb"
    )
    assert (stepped.printed, sandbox.calls) == ("aéb 3 éb 1\n", ())


async def test_long_material_is_reached_by_functions_alone(sandbox: Sandbox) -> None:
    ref = kept("word " * 100_000, sandbox.blobs)
    stepped = await sandbox.run("f = context_len\nprint(f(), context_slice(5, 9))", material=ref)
    assert (stepped.printed, sandbox.calls) == ("500000 word\n", ())
    hinted = await sandbox.run("print(context)", material=ref)
    assert "NameError" in (hinted.error or "")
    assert "context_slice(" in (hinted.error or "")
    wrong = await sandbox.run("context_slice('a')", material=ref)
    assert "TypeError" in (wrong.error or "")


# -- answers ---------------------------------------------------------------------------------------


async def test_error_as_answer_is_runtime_error_inside(sandbox: Sandbox) -> None:
    block = "try:\n    ask('x')\nexcept RuntimeError as error:\n    print('caught', error)"
    stepped = await sandbox.run(block, lambda call: CodeAnswer(error="the tool is broken"))
    assert stepped.printed == "caught the tool is broken\n"
    stepped = await sandbox.run("ask('x')", lambda call: CodeAnswer(error="the tool is broken"))
    assert (stepped.error or "").endswith("RuntimeError: the tool is broken")


async def test_stop_ends_block_and_keeps_variables(sandbox: Sandbox) -> None:
    block = "x = 1\ntry:\n    ask('x')\nexcept Exception:\n    x = 5\nfinally:\n    y = 2\nx = 9"
    stepped = await sandbox.run(block, lambda call: CodeAnswer(stop=True))
    assert (stepped.error, stepped.fatal, stepped.call) == (None, False, None)
    assert (await sandbox.run("print(x, y)")).printed == "1 2\n"


async def test_block_that_catches_its_end_makes_no_calls(sandbox: Sandbox) -> None:
    block = "x = 0\nfor n in range(20):\n    try:\n        ask(n)\n    except BaseException:\n        x += 1"
    stepped = await sandbox.run(block, lambda call: CodeAnswer(stop=True))
    assert (stepped.error, stepped.fatal, len(sandbox.calls)) == (None, False, 1)
    endless = "while True:\n    try:\n        ask()\n    except BaseException:\n        pass"
    stepped = await sandbox.run(endless, lambda call: CodeAnswer(stop=True), limits=CodeLimits(seconds=60))
    assert stepped.fatal
    assert (await sandbox.run("print(x)")).printed == "20\n"


async def test_whole_output_takes_place_of_value(sandbox: Sandbox) -> None:
    digest = sandbox.blobs.put(b"one\xfftwo " + b"x" * 300_000)
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
        ("[" * 5000 + "]" * 5000, "str " + "[" * 20),
    ],
    ids=["object", "text", "number", "words", "nan", "deep"],
)
async def test_text_is_parsed_if_it_is_json(sandbox: Sandbox, text: str, shown: str) -> None:
    block = "v = ask()\nprint(type(v).__name__, str(v)[:40])"
    stepped = await sandbox.run(block, lambda call: CodeAnswer(value=text, parse=True))
    assert stepped.printed.startswith(shown)
    digest = sandbox.blobs.put(text.encode())
    stepped = await sandbox.run(block, lambda call: CodeAnswer(whole=digest, parse=True))
    assert stepped.printed.startswith(shown)


# -- output, limits --------------------------------------------------------------------------------


async def test_output_is_cut_and_what_was_cut_is_counted(sandbox: Sandbox) -> None:
    limits = SHORT.model_copy(update={"output_chars": 100})
    stepped = await sandbox.run("for n in range(50):\n    print('é' * 9)", limits=limits)
    assert (stepped.printed, stepped.left_out) == (("é" * 9 + "\n") * 10, 400)
    stepped = await sandbox.run("import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c')")
    assert (stepped.printed, stepped.left_out) == ("a\nb\nc\n", 0)


async def test_timeout_goes_back_to_state_before_block(sandbox: Sandbox) -> None:
    await sandbox.run("x = 1")
    before = sandbox.session
    stepped = await sandbox.run("x = 2\nask()\nx = 3\nprint('seen')\nwhile True: pass")
    assert (stepped.fatal, stepped.session, stepped.call) == (True, before, None)
    assert stepped.printed == "seen\n"
    assert "TimeoutError" in (stepped.error or "")
    assert (await sandbox.run("print(x)")).printed == "1\n"


@pytest.mark.exhaustive
async def test_time_of_block_is_counted_over_its_steps(sandbox: Sandbox) -> None:
    block = "while True:\n    n = 0\n    while n < 500_000: n += 1\n    ask()"
    stepped = await sandbox.run(block, limits=SHORT.model_copy(update={"seconds": 0.5}))
    assert stepped.fatal
    assert len(sandbox.calls) >= 1


async def test_too_many_calls_end_block_and_keep_variables(sandbox: Sandbox) -> None:
    limits = SHORT.model_copy(update={"calls": 3})
    stepped = await sandbox.run("n = 0\nwhile True:\n    n += 1\n    ask(n)", limits=limits)
    assert (len(sandbox.calls), stepped.fatal) == (3, False)
    assert "3 calls" in (stepped.error or "")
    assert (await sandbox.run("print(n)\nask()", limits=limits)).printed == "4\n"
    assert len(sandbox.calls) == 1  # each block has its own count


async def test_variables_too_large_to_keep_are_refused(sandbox: Sandbox) -> None:
    limits = SHORT.model_copy(update={"state_bytes": 2**17})
    await sandbox.run("x = 'small'", limits=limits)
    stepped = await sandbox.run("x = 'x' * 200_000", limits=limits)
    assert stepped.fatal
    assert "131,072" in (stepped.error or "")
    assert (await sandbox.run("print(x)", limits=limits)).printed == "small\n"


@pytest.mark.parametrize("size", range(36_000, 60_000, 6_000))
async def test_no_state_is_kept_that_needs_more_memory(sandbox: Sandbox, size: int) -> None:
    """It takes more memory to load a state than to make it; then every later block would fail."""
    limits = SHORT.model_copy(update={"memory_bytes": 8 * 2**20})
    await sandbox.run("x = 'small'", limits=limits)
    stepped = await sandbox.run(f"y = [str(n) for n in range({size})]\nx = 'large'", limits=limits)
    then = await sandbox.run("print(x)", limits=limits)
    assert (then.error, then.printed) == (None, "small\n" if stepped.fatal else "large\n")
    await sandbox.run("x = 'small'", limits=limits)
    lost = await sandbox.run("y = [str(n) for n in range(60_000)]\nask()", limits=limits)
    assert lost.fatal


async def test_block_does_the_same_each_time(sandbox: Sandbox) -> None:
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


async def test_senseless_steps_are_refused_for_good(sandbox: Sandbox) -> None:
    waiting = (await sandbox.step(block="ask()")).session
    ended = (await sandbox.step(block="1")).session
    for given in (
        {"block": "1", "session": waiting},
        {"session": ended, "answer": CodeAnswer()},
        {"answer": CodeAnswer()},
        {"session": waiting},
    ):
        with pytest.raises(ApplicationError) as raised:
            await sandbox.step(**given)
        assert (raised.value.type, raised.value.non_retryable) == ("Fatal", True)
    material = MaterialRef(digest="0" * 64, chars=1, bytes=1)
    whole = CodeAnswer(whole="0" * 64)
    for lacking in (
        sandbox.step(session=waiting, answer=whole), sandbox.step(block="1", material=material),
    ):  # fmt: skip
        with pytest.raises(ApplicationError, match="Runs that need it wait") as raised:
            await lacking
        assert raised.value.type == "BlobMissing"


async def test_cancelled_step_ends_with_its_interpreter(sandbox: Sandbox) -> None:
    environment = ActivityEnvironment()
    effect = RunCode(block="while True: pass", limits=CodeLimits(seconds=60))
    running = asyncio.create_task(environment.run(sandbox.activities.run_code, effect))
    if PROCESSES_ARE_FILES:
        await until(lambda: bool(interpreters()))
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
    raise AssertionError("it did not happen within 30 s")


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
