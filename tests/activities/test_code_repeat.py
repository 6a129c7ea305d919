"""A block that is stopped at every call and goes on in another process does what a straight run does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pydantic_monty as monty
import pytest

from activities.code_pool import POLICY
from activities.contracts_code import CodeAnswer, CodeCall
from tests.activities.codekit import Sandbox, sandbox_in


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with sandbox_in(tmp_path) as sandbox:
        yield sandbox


PROGRAMS = {
    "recursion": """
def walk(n, path):
    if n == 0:
        return [ask(path)]
    return walk(n - 1, path + 'l') + [ask(n)] + walk(n - 1, path + 'r')
print(walk(3, ''))
""",
    "closures": """
def counter():
    seen = []
    def add(x):
        seen.append(ask(x))
        return len(seen)
    return add, seen
add, seen = counter()
print([add(n) for n in 'abc'], seen)
""",
    "memory": """
import functools
@functools.lru_cache
def known(x):
    return ask(x)
print(known(1), known(1), known(2), known(1))
""",
    "classes": """
class Account:
    def __init__(self, name):
        self.name, self.seen = name, [ask(name)]
    def __repr__(self):
        return f'Account({self.name}, {self.seen})'
    def more(self):
        self.seen.append(ask(len(self.seen)))
        return self
a = Account('x').more()
b = a
b.more()
print(a, a is b)
""",
    "with": """
class Guard:
    def __enter__(self):
        print('in', ask('in'))
        return self
    def __exit__(self, *error):
        print('out', error[0])
        return True
with Guard():
    ask('body')
    raise ValueError('stopped')
print('after')
""",
    "try and finally": """
def careful(n):
    try:
        if ask(n) == '<2>':
            raise KeyError(str(n))
        return 'fine'
    except KeyError as error:
        return f'caught {error} {ask("again")}'
    finally:
        print('done', n, ask('last'))
print([careful(n) for n in range(4)])
""",
    "match": """
for value in [1, [2, 3], {'k': 4}, 'text', None]:
    match value:
        case [first, *rest]: print(first, rest, ask('list'))
        case {'k': inner}: print(inner, ask('dict'))
        case str(): print(ask(value))
        case None: print('none', ask())
        case _: print(ask(value))
""",
    "comprehensions": """
table = {n: [ask(m) for m in range(n)] for n in range(4)}
pairs = [(a, b) for a in 'ab' for b in (ask(a), a)]
print(table, pairs, {ask(n) for n in (1, 1, 2)})
""",
    "chance and time": """
import random, datetime, time
for _ in range(3):
    print(random.random(), ask(random.randint(0, 9)), datetime.datetime.now(), time.time())
""",
    "aliases": """
a = [1]
b = {'a': a, 'self': None}
b['self'] = b
f = ask
a.append(f('x'))
c = (a, a)
f(len(b['self']['a']))
c[0].append('end')
print(a, c[1] is a, b['self'] is b)
""",
    "large numbers": """
n = 3 ** 500
ask(str(n % 10**9))
n = n * n + 1
print(n % 10**20, ask(n % 1000), hash('a'), sorted({'x', 'y', 'z'}))
""",
    "exec and eval": """
exec("y = ask('inner')")
print(eval("y + ask('second')"))
""",
    "loops": """
total = 0
while total < 40:
    total += len(ask(total))
    if total % 2: continue
    for n in range(3):
        if n == 2: break
        ask(n)
else:
    print('else', total)
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
async def test_stopped_at_every_call_is_the_same_as_run_straight(sandbox: Sandbox, name: str) -> None:
    seen, printed = straight(PROGRAMS[name])
    stepped = await sandbox.run(PROGRAMS[name], answered)
    assert stepped.error is None
    assert stepped.printed == printed
    assert [call.args for call in sandbox.calls] == seen
    assert len(seen) >= 2


def answered(call: CodeCall) -> CodeAnswer:
    """The same answer to the same call."""
    return CodeAnswer(value=f"<{call.args[0] if call.args else ''}>")


def straight(program: str) -> tuple[list[tuple[Any, ...]], str]:
    """The calls of a program and its output, from one process without any stop."""
    seen: list[tuple[Any, ...]] = []

    def ask(*args: Any) -> str:
        seen.append(args)
        return f"<{args[0] if args else ''}>"

    output = monty.CollectString()
    with monty.Monty() as pool, pool.checkout(os_policy=POLICY) as session:
        session.feed_run(program, external_lookup={"ask": ask}, print_callback=output)
    return seen, output.output
