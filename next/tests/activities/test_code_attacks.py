"""What hostile blocks try: the worker lives, its memory is bounded, the session is as it was before."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activities.contracts import CodeLimits
from tests.activities.codekit import Sandbox, sandbox_in

LIMITS = CodeLimits(seconds=0.3, memory_bytes=32 * 2**20, recursion=200)


@pytest_asyncio.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sandbox]:
    async with sandbox_in(tmp_path_factory.mktemp("attacks"), LIMITS) as sandbox:
        yield sandbox


@pytest.fixture
async def sandbox(shared: Sandbox) -> Sandbox:
    """With one variable that has to survive."""
    shared.session = ""
    await shared.run("x = 'survives'")
    return shared


async def x_survives(sandbox: Sandbox) -> bool:
    return (await sandbox.run("print(x)")).printed == "survives\n"


ENDLESS = {
    "loop": "while True: pass",
    "in except": "while True:\n    try:\n        while True: pass\n    except BaseException:\n        pass",
    "in finally": "try:\n    1 / 0\nfinally:\n    while True: pass",
    "in a comprehension": "[0 for _ in iter(lambda: 1, 2)]\nn = 0\nwhile True: n += 1",
    "printing": "while True: print('x' * 1000)",
    "sorting": "while True: sorted(range(100_000))",
    "regular expression": "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')\nwhile True: pass",
    "sleeping": "import time\nwhile True: time.sleep(10)",
    "unknown names": "while True:\n    try:\n        nobody()\n    except NameError:\n        pass",
    "its own generator of code": "while True: exec('x = 1')",
    "async": "import asyncio\nasync def f():\n    while True: await asyncio.sleep(1)\nasyncio.run(f())",
}
GREEDY = {
    "text": "a = 'x' * 1000\nwhile True: a += a",
    "list": "a = [0]\nwhile True: a += a",
    "one large list": "a = [0] * 10**9",
    "bytes": "a = bytes(10**10)",
    "dict": "a = {}\nn = 0\nwhile True:\n    a[n] = 'x' * 100\n    n += 1",
    "padding": "a = 'x'.ljust(10**10)",
    "format": "a = f'{1:>10000000000}'",
    "shift": "a = 1 << 10**10",
    "power": "a = 10 ** 10 ** 8",
    "squares": "a = 3 ** 10_000_000\nwhile True: a = a * a",
    "permutations": "import itertools\na = list(itertools.permutations(range(12)))",
    "joined": "a = ','.join(['x' * 10**6] * 10**6)",
    "json": "import json\na = json.dumps(['x' * 10**6] * 10**5)",
}
FAILING = {
    "recursion": "def f(): return f()\nf()",
    "nested source": "a = " + "(" * 3000 + ")" * 3000,
    "nested lists in source": "a = " + "[" * 3000 + "]" * 3000,
    "many nots": "a = " + "not " * 30_000 + "1",
    "long chain": "a = " + "+".join(["1"] * 30_000) + "\nraise ValueError('through')",
    "nested blocks": "".join(" " * n + "if 1:\n" for n in range(150)) + " " * 150 + "pass\n1/0",
    "nested text": "import json\njson.loads('[' * 100_000 + ']' * 100_000)",
    "import os.system": "import os\nos.system('id')",
    "import of subprocess": "import subprocess",
    "import of socket": "import socket",
    "import of ctypes": "import ctypes",
    "import of threading": "import threading",
    "import of pickle": "import pickle",
    "import of builtins": "import builtins",
    "import of gc": "import gc",
    "import by name": "__import__('os')",
    "importlib": "import importlib\nimportlib.import_module('os')",
    "class": "().__class__",
    "mro": "''.__class__.__mro__[1].__subclasses__()",
    "globals": "(lambda: 0).__globals__",
    "code": "(lambda: 0).__code__",
    "builtins": "__builtins__['open']",
    "frames": "try:\n    1 / 0\nexcept Exception as e:\n    e.__traceback__.tb_frame.f_globals",
    "module loader": "import os\nos.__loader__",
    "module globals": "import json\njson.__builtins__",
    "getattr": "getattr((), '__cl' + 'ass__').__bases__",
    "format": "'{0.__class__}'.format(())",
    "format of a host name": "'{0.__globals__}'.format(ask)",
    "host function": "ask.__globals__",
    "host code": "ask.__code__.co_consts",
    "open": "open('/etc/passwd').read()",
    "writing": "open('/tmp/pwned', 'w').write('x')",
    "path": "import pathlib\npathlib.Path('/etc/passwd').read_text()",
    "folder": "import os\nos.listdir('/')",
    "folder of paths": "import pathlib\nlist(pathlib.Path('/').iterdir())",
    "environment": "import os\nprint(os.environ['PATH'])",
    "getenv": "import os\nprint(os.getenv('HOME').upper())",
    "input": "input()",
    "breakpoint": "breakpoint()",
    "exit": "exit()",
    "system exit": "raise SystemExit(3)",
    "keyboard interrupt": "raise KeyboardInterrupt",
}


@pytest.mark.parametrize("attack", ENDLESS)
async def test_endless_block_is_ended(sandbox: Sandbox, attack: str) -> None:
    stepped = await sandbox.run(ENDLESS[attack])
    assert stepped.fatal
    assert len(stepped.printed) <= LIMITS.output_chars
    assert await x_survives(sandbox)


@pytest.mark.parametrize("attack", GREEDY)
async def test_greedy_block_gets_no_memory(sandbox: Sandbox, attack: str) -> None:
    assert (await sandbox.run(GREEDY[attack])).error
    assert await x_survives(sandbox)


async def test_block_without_memory_loses_its_changes(sandbox: Sandbox) -> None:
    before = sandbox.session
    stepped = await sandbox.run(f"x = 'changed'\n{GREEDY['padding']}")
    assert (stepped.fatal, stepped.session) == (True, before)
    assert "MemoryError" in (stepped.error or "")
    assert await x_survives(sandbox)


@pytest.mark.parametrize("attack", FAILING)
async def test_way_out_is_an_error_inside(sandbox: Sandbox, attack: str) -> None:
    assert (await sandbox.run(FAILING[attack])).error
    assert not sandbox.calls
    assert await x_survives(sandbox)


@pytest.mark.parametrize(
    "source", ["a = 1\n" * 300_000, "a = '" + "x" * 5_000_000 + "'", "#" * 5_000_000, "(" * 500_000],
    ids=["lines", "text", "comment", "brackets"],
)  # fmt: skip
async def test_huge_source_harms_only_its_own_block(sandbox: Sandbox, source: str) -> None:
    await sandbox.run(source)
    assert await x_survives(sandbox)


async def test_deep_values_harm_no_host(sandbox: Sandbox) -> None:
    block = "a = []\nfor _ in range(100_000): a = [a]\ntry:\n    ask(a)\nexcept TypeError: print('refused')"
    assert (await sandbox.run(block)).printed == "refused\n"
    stepped = await sandbox.run("b = a == a\nprint(len(str(a)) > 0)")
    assert stepped.printed == "True\n" or stepped.error
    assert await x_survives(sandbox)


SOURCE = st.text(max_size=80) | st.lists(
    st.sampled_from(
        ["x = ", "ask(", ")", "[", "]", "\n", "    ", "def f():", "while 1:", "print(", "'", "1", "/0", "f",
         "try:", "except:", "lambda", "**", "x", "import ", "os", "raise ", "return", "await ", "\\", "#"]
    ),
    max_size=25,
).map("".join)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(source=SOURCE)
async def test_no_block_makes_the_activity_raise(sandbox: Sandbox, source: str) -> None:
    stepped = await sandbox.step(block=source, limits=LIMITS.model_copy(update={"seconds": 0.2}))
    assert stepped.session or stepped.fatal


GAUGE = """
import asyncio, resource, sys, tempfile
from pathlib import Path
import logging, structlog
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
from activities.contracts import CodeLimits
from tests.activities.codekit import sandbox_in

def peak(who):
    return resource.getrusage(who).ru_maxrss // 1024

async def main():
    limits = CodeLimits(seconds=1, memory_bytes=64 * 2**20)
    with tempfile.TemporaryDirectory() as folder:
        async with sandbox_in(Path(folder), limits) as sandbox:
            await sandbox.run("1")
            before = peak(resource.RUSAGE_SELF)
            for block in sys.stdin.read().split("\\n---\\n"):
                await sandbox.run(block)
    print(before, peak(resource.RUSAGE_SELF), peak(resource.RUSAGE_CHILDREN))

asyncio.run(main())
"""


def test_memory_stays_bounded_whatever_blocks_do() -> None:
    """In MB: the worker grows by little more than what a block may have; the interpreter stays below that."""
    blocks = [
        "while True: print('x' * 1000)",
        "print('x' * 20_000_000)",
        "ask('x' * 15_000_000)",
        "ask(['x'] * 1_000_000)",
        "raise ValueError('x' * 15_000_000)",
        "a = [0] * 1_000_000\na",
        GREEDY["text"],
        GREEDY["dict"],
    ]
    command = [sys.executable, "-c", GAUGE]
    done = subprocess.run(command, input="\n---\n".join(blocks), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    before, worker, interpreter = map(int, done.stdout.split())
    assert worker - before < 128, (before, worker)
    assert interpreter < 200, interpreter
