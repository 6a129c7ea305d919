"""What leaves a block through a call is JSON, or refused in words that the block can catch."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.code_values import MAX_ARGUMENTS, MAX_DEPTH, MAX_ITEMS, MAX_TEXT, NotPlain, plain
from activities.contracts_code import CodeLimits, CodeStepped
from tests.activities.codekit import Sandbox, sandbox_in


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with sandbox_in(tmp_path) as sandbox:
        yield sandbox


PASSED = {
    "None": None,
    "True": True,
    "-2.5": -2.5,
    "2**200": 2**200,
    "'é\\U0001f600'": "é😀",
    "(1, [2, (3,)])": [1, [2, [3]]],
    "{3, 1, 2}": [1, 2, 3],
    "frozenset(['b', 'a'])": ["a", "b"],
    "{1: 'a', None: 'b', False: 'c', 2.5: 'd'}": {"1": "a", "null": "b", "false": "c", "2.5": "d"},
    "b'caf\\xc3\\xa9'": "café",
    "__import_decimal__('1.50')": "1.50",
    "datetime.date(2024, 2, 29)": "2024-02-29",
    "datetime.datetime(2024, 2, 29, 1, 2)": "2024-02-29T01:02:00",
    "datetime.timedelta(days=1, seconds=1)": "1 day, 0:00:01",
    "pathlib.Path('/a/b')": "/a/b",
    "ValueError('why')": "ValueError: why",
    "Point(1, (2, 3))": {"x": 1, "y": [2, 3]},
    "collections.Counter('aab')": {"a": 2, "b": 1},
    "Pair(1, 2)": [1, 2],
    "range(3)": "range(0, 3)",
    "'\\ud800'": "\ufffd",
}
BEFORE = """
import collections, dataclasses, datetime, decimal, pathlib
__import_decimal__ = decimal.Decimal
Pair = collections.namedtuple('Pair', ['a', 'b'])
@dataclasses.dataclass
class Point:
    x: int
    y: object
class Plain: pass
deep = []
for _ in range(500): deep = [deep]
shared = []
for _ in range(60): shared = [shared, shared]
"""
REFUSED = {
    "float('nan')": "argument 1 of ask holds nan, which JSON cannot express",
    "[1, {'a': float('-inf')}]": "holds -inf",
    "2**4000": "a number of more than 900 digits",
    "b'\\xff'": "bytes that are no UTF-8 text",
    "{(1, 2): 3}": "a key of type tuple",
    "{1: 2, '1': 3}": "two keys that are both '1'",
    "Plain()": "a value of type Plain, which cannot leave the block",
    "1j": "a value of type complex",
    "...": "a value of type ellipsis",
    "deep": f"nested more than {MAX_DEPTH} deep",
    "shared": f"more than {MAX_ITEMS:,} values",
    "['x' * 1000] * 5000": f"more than {MAX_TEXT:,} characters",
    "[0] * 200_000": f"more than {MAX_ITEMS:,} values",
    "10**5000": "more than 900 digits",
    "*['x' * 3_900_000] * 2": f"the call of ask holds more than {MAX_TEXT:,} characters",
    "'x' * 3_900_000, named='x' * 200_000": f"more than {MAX_TEXT:,} characters",
    "**{'x' * 3_900_000: 'x' * 200_000}": f"more than {MAX_TEXT:,} characters",
    "*[list(range(30_000))] * 4": f"the call of ask holds more than {MAX_ITEMS:,} values",
    "*range(101)": f"101 arguments, at most {MAX_ARGUMENTS} are taken",
    "*range(60), **{f'k{n}': n for n in range(41)}": "101 arguments",
}


@pytest.mark.parametrize("value", PASSED)
async def test_what_has_an_obvious_json_form_takes_it(sandbox: Sandbox, value: str) -> None:
    await sandbox.run(BEFORE)
    stepped = await sandbox.run(f"ask({value})\nask(named={value})")
    assert stepped.error is None
    first, second = sandbox.calls
    assert first.args == (PASSED[value],)
    assert second.named == {"named": PASSED[value]}


@pytest.mark.parametrize("value", REFUSED)
async def test_anything_else_is_an_error_at_the_call_that_the_block_can_catch(
    sandbox: Sandbox, value: str
) -> None:
    await sandbox.run(BEFORE)
    caught = "except (TypeError, ValueError) as error:\n    print('refused:', error)"
    stepped = await sandbox.run(f"try:\n    ask({value})\n{caught}\nask('next')")
    assert stepped.error is None
    assert [call.args for call in sandbox.calls] == [("next",)]
    assert stepped.printed.startswith("refused:")
    assert REFUSED[value] in stepped.printed


async def test_a_call_with_millions_of_arguments_does_not_hold_up_the_worker(sandbox: Sandbox) -> None:
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - began)

    watching = asyncio.create_task(watch())
    try:
        stepped = await sandbox.run("ask(*range(2_000_000))", limits=CodeLimits(seconds=20))
    finally:
        watching.cancel()
    assert stepped.error is not None
    assert "2,000,000 arguments" in stepped.error
    assert longest < 0.5


async def test_as_many_arguments_as_are_allowed_pass(sandbox: Sandbox) -> None:
    stepped = await sandbox.run(f"ask(*range({MAX_ARGUMENTS - 1}), last=1)")
    assert stepped.error is None
    assert len(sandbox.calls[0].args) == MAX_ARGUMENTS - 1


async def test_a_list_that_holds_itself_leaves_as_what_it_shows(sandbox: Sandbox) -> None:
    stepped = await sandbox.run("a = [1]\na.append(a)\nask(a)")
    assert stepped.error is None
    assert sandbox.calls[0].args == ([1, ["[...]"]],) or sandbox.calls[0].args == ([1, "[...]"],)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.binary(max_size=4)
    | st.complex_numbers()
    | st.dates()
    | st.decimals(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.none() | st.floats(), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(value=values)
def test_every_value_becomes_json_or_is_refused(value: object) -> None:
    try:
        made = plain(value)
    except NotPlain:
        return
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    json.dumps(made, ensure_ascii=False).encode()
    CodeStepped.model_validate_json(
        CodeStepped(session="", call={"name": "f", "args": [made]}).model_dump_json()
    )


def test_depth_is_bounded_where_the_converter_still_reads_it() -> None:
    def nested(depth: int) -> object:
        value: object = 1
        for _ in range(depth):
            value = [value]
        return value

    stepped = CodeStepped(session="", call={"name": "f", "args": [plain(nested(MAX_DEPTH))]})
    assert CodeStepped.model_validate_json(stepped.model_dump_json()) == stepped
    with pytest.raises(NotPlain, match="flatter"):
        plain(nested(MAX_DEPTH + 1))
