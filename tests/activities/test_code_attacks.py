"""What hostile blocks try: the worker lives, its memory is bounded, the session is as it was before."""

from __future__ import annotations

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
    "printing": "while True: print('x' * 1000)",
    "regular expression": "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')\nwhile True: pass",
    "sleeping": "import time\nwhile True: time.sleep(10)",
}
GREEDY = {
    "text": "a = 'x' * 1000\nwhile True: a += a",
    "one large list": "a = [0] * 10**9",
    "dict": "a = {}\nn = 0\nwhile True:\n    a[n] = 'x' * 100\n    n += 1",
    "format": "a = f'{1:>10000000000}'",
    "power": "a = 10 ** 10 ** 8",
    "permutations": "import itertools\na = list(itertools.permutations(range(12)))",
}
FAILING = {
    "recursion": "def f(): return f()\nf()",
    "nested source": "a = " + "(" * 3000 + ")" * 3000,
    "nested text": "import json\njson.loads('[' * 100_000 + ']' * 100_000)",
    "import os.system": "import os\nos.system('id')",
    "import of subprocess": "import subprocess",
    "import by name": "__import__('os')",
    "mro": "''.__class__.__mro__[1].__subclasses__()",
    "globals": "(lambda: 0).__globals__",
    "builtins": "__builtins__['open']",
    "frames": "try:\n    1 / 0\nexcept Exception as e:\n    e.__traceback__.tb_frame.f_globals",
    "getattr": "getattr((), '__cl' + 'ass__').__bases__",
    "format of a host name": "'{0.__globals__}'.format(ask)",
    "host code": "ask.__code__.co_consts",
    "open": "open('/etc/passwd').read()",
    "writing": "open('/tmp/pwned', 'w').write('x')",
    "folder": "import os\nos.listdir('/')",
    "environment": "import os\nprint(os.environ['PATH'])",
    "system exit": "raise SystemExit(3)",
}


@pytest.mark.parametrize(
    "attack",
    [
        "in except",
        "printing",
        "regular expression",
        *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("loop", "in finally", "sleeping")),
    ],
)
async def test_endless_block_is_ended(sandbox: Sandbox, attack: str) -> None:
    stepped = await sandbox.run(ENDLESS[attack])
    assert stepped.fatal
    assert len(stepped.printed) <= LIMITS.output_chars
    assert await x_survives(sandbox)


@pytest.mark.parametrize("attack", GREEDY)
async def test_greedy_block_gets_no_memory(sandbox: Sandbox, attack: str) -> None:
    assert (await sandbox.run(GREEDY[attack])).error
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
