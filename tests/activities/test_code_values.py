"""What leaves a block through a call is JSON, or refused in words that the block can catch."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.code.values import MAX_ARGUMENTS, MAX_DEPTH, MAX_ITEMS, MAX_TEXT, NotPlain, plain_call
from activities.contracts import CodeCall, CodeStepped
from tests.activities.codekit import Sandbox, sandbox_in


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with sandbox_in(tmp_path) as sandbox:
        await sandbox.run(BEFORE)
        yield sandbox


BEFORE = """
import collections, dataclasses, datetime, decimal, pathlib
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
PASSED: dict[str, Any] = {
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
    "decimal.Decimal('1.50')": "1.50",
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
REFUSED = {
    "float('nan')": "argument 1 of ask holds nan",
    "[1, {'a': float('-inf')}]": "holds -inf",
    "2**4000": "more than 900 digits",
    "b'\\xff'": "not UTF-8 text",
    "{(1, 2): 3}": "a key of type tuple",
    "{1: 2, '1': 3}": "two keys that are both '1'",
    "Plain()": "a value of type Plain",
    "1j": "a value of type complex",
    "deep": f"nested more than {MAX_DEPTH} deep",
    "shared": f"more than {MAX_ITEMS:,} values",
    "['x' * 1000] * 5000": f"more than {MAX_TEXT:,} characters",
    "*['x' * 3_900_000] * 2": f"more than {MAX_TEXT:,} characters",
    "'x' * 3_900_000, named='x' * 200_000": f"more than {MAX_TEXT:,} characters",
    "**{'x' * 3_900_000: 'x' * 200_000}": f"more than {MAX_TEXT:,} characters",
    "*[list(range(30_000))] * 4": f"more than {MAX_ITEMS:,} values",
    "*range(200_000)": f"200,000 arguments, at most {MAX_ARGUMENTS}",
    "*range(60), **{f'k{n}': n for n in range(41)}": "101 arguments",
}


@pytest.mark.parametrize("value", PASSED)
async def test_value_takes_its_obvious_json_form(sandbox: Sandbox, value: str) -> None:
    stepped = await sandbox.run(f"ask({value})\nask(named={value})")
    assert stepped.error is None
    first, second = sandbox.calls
    assert first.args == (PASSED[value],)
    assert second.named == {"named": PASSED[value]}


@pytest.mark.parametrize("value", REFUSED)
async def test_other_values_are_errors_that_blocks_catch(sandbox: Sandbox, value: str) -> None:
    caught = "except (TypeError, ValueError) as error:\n    print('refused:', error)"
    stepped = await sandbox.run(f"try:\n    ask({value})\n{caught}\nask('next')")
    assert stepped.error is None
    assert [call.args for call in sandbox.calls] == [("next",)]
    assert stepped.printed.startswith("refused:")
    assert REFUSED[value] in stepped.printed


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8)
    | st.binary(max_size=4) | st.complex_numbers() | st.dates() | st.decimals(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.none() | st.floats(), inner, max_size=4)
    ),
    max_leaves=20,
)  # fmt: skip


@given(value=values)
def test_every_value_becomes_json_or_is_refused(value: object) -> None:
    try:
        (made,) = plain_call("ask", (value,), {}).args
    except NotPlain:
        return
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    json.dumps(made, ensure_ascii=False).encode()
    assert reread(made) is not None


def reread(value: Any) -> CodeStepped:
    """An answer with this value, as it arrives in the workflow."""
    stepped = CodeStepped(session="", call=CodeCall(name="f", args=(value,)))
    return CodeStepped.model_validate_json(stepped.model_dump_json())
