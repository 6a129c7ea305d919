"""Tool `calculator`: the value of an arithmetic expression.

`simpleeval` walks the expression. Its own bounds are too wide for a worker (a power may have an
exponent of four million), so operators and functions are bounded here. Only numbers, names and
operators get to the parser at all: no text, no attribute, no index.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from pydantic import BaseModel, Field

from activities.tools import Tool

MAX_CHARS = 256
MAX_BITS = 4096
"""Integers stay below 2 to this power (about 1,200 digits)."""
TOKEN = re.compile(
    r"\s+|[A-Za-z]\w*|[-+*/%(),]"
    r"|0[xX][0-9a-fA-F]+(?!\w)|(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?![\w.])",
    re.ASCII,
)
Number = int | float


class Params(BaseModel, frozen=True, extra="forbid"):
    """Evaluate an arithmetic expression exactly, for example `(17 * 3 - 1) / 2` or `sqrt(2)`.

    Operators: + - * / // % ** and parentheses. Functions: abs, round, min, max, sqrt, exp, log,
    log2, log10, sin, cos, tan, asin, acos, atan, degrees, radians, floor, ceil, factorial, gcd,
    hypot. Constants: pi, e. Angles are in radians.
    """

    expression: str = Field(description="At most 256 characters.")


async def run(params: Params) -> str:
    """The value as text, or `Error: ` and the reason."""
    from simpleeval import InvalidExpression  # type: ignore[import-untyped]  # it ships no types

    try:
        return _text(_value(params.expression))
    except ZeroDivisionError:
        return "Error: division by zero"
    except OverflowError:
        return "Error: a number became too large"
    except SyntaxError:
        return "Error: this is not an arithmetic expression"
    except (ArithmeticError, InvalidExpression, MemoryError, RecursionError, TypeError, ValueError) as error:
        return f"Error: {error}"


def _value(expression: str) -> Number:
    from simpleeval import SimpleEval

    if len(expression) > MAX_CHARS:
        raise ValueError(f"the expression is longer than {MAX_CHARS} characters")
    if "^" in expression:
        raise ValueError("write ** for powers")
    at = 0
    while at < len(expression):
        token = TOKEN.match(expression, at)
        if token is None:
            raise ValueError(f"{expression[at : at + 12]!r} at character {at + 1} is not understood")
        at = token.end()
    evaluator = SimpleEval(operators=OPERATORS, functions=FUNCTIONS, names={"pi": math.pi, "e": math.e})
    return _checked(evaluator.eval(" ".join(expression.split())))


def _checked(value: object) -> Number:
    if isinstance(value, complex):
        raise ValueError("the result is not a real number")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("only real numbers are allowed")
    if value.bit_length() > MAX_BITS if isinstance(value, int) else not math.isfinite(value):
        raise OverflowError
    return value


def _bounded(function: Callable[..., object], *numbers: Number) -> Number:
    return _checked(function(*map(_checked, numbers)))


def _power(base: Number, exponent: Number) -> object:
    """The power, unless it could be huge: that is known before it is computed."""
    whole = isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1
    if whole and abs(exponent) * (int(abs(base)).bit_length() - 1) > MAX_BITS:
        raise ValueError("the power is too large")
    return base**exponent


def _factorial(number: Number) -> int:
    if not isinstance(number, int) or not 0 <= number <= 500:
        raise ValueError("factorial takes a whole number from 0 to 500")
    return math.factorial(number)


def _round(number: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > 300:
        raise ValueError("round takes a whole number of digits, at most 300")
    return round(number, digits) if digits else round(number)


def _text(value: Number) -> str:
    # 15 digits are what a float holds for certain, so 0.1 + 0.2 is 0.3.
    return str(value) if isinstance(value, int) else format(value, ".15g")


OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: partial(_bounded, operator.add),
    ast.Sub: partial(_bounded, operator.sub),
    ast.Mult: partial(_bounded, operator.mul),
    ast.Div: partial(_bounded, operator.truediv),
    ast.FloorDiv: partial(_bounded, operator.floordiv),
    ast.Mod: partial(_bounded, operator.mod),
    ast.Pow: partial(_bounded, _power),
    ast.UAdd: partial(_bounded, operator.pos),
    ast.USub: partial(_bounded, operator.neg),
}
PLAIN = (
    "floor", "ceil", "gcd", "hypot", "sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin",
    "acos", "atan", "degrees", "radians",
)  # fmt: skip
"""Functions of Python's `math` that need no bound of their own."""
FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: partial(_bounded, function)
    for name, function in {
        "abs": abs,
        "round": _round,
        "min": min,
        "max": max,
        "factorial": _factorial,
        **{name: getattr(math, name) for name in PLAIN},
    }.items()
}

TOOL = Tool(name="calculator", params=Params, run=run, effect="pure", timeout_seconds=10)
