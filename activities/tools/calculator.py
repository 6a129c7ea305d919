"""Tool `calculator`: the value of an arithmetic expression.

`simpleeval` walks the expression. It may see only the nodes, operators and functions below. Its own
bounds are too wide for a worker (an exponent may be four million), so every operation is bounded here.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, Field

from activities.tools import Tool

MAX_CHARS = 256
MAX_BITS = 4096
"""Whole numbers stay below 2 to this power (about 1,200 digits)."""
NODES = (ast.Expr, ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Constant)
"""No text, attribute, index or comparison gets further than the parser."""


class Params(BaseModel, frozen=True, extra="forbid"):
    """Evaluate an arithmetic expression exactly, for example `(17 * 3 - 1) / 2` or `sqrt(2)`.

    Operators: + - * / // % ** and parentheses. Functions: abs, round, min, max, sqrt, exp, log,
    log2, log10, sin, cos, tan, asin, acos, atan, degrees, radians, floor, ceil, factorial, gcd,
    hypot. Constants: pi, e. Angles are in radians.
    """

    expression: str = Field(description="At most 256 characters.")


async def run(params: Params) -> str:
    """The value as text, or `Error: ` and the reason."""
    try:
        value = _value(params.expression)
    except ZeroDivisionError:
        return "Error: division by zero"
    except OverflowError:
        return "Error: a number became too large"
    except SyntaxError:
        return "Error: this is not an arithmetic expression"
    except Exception as error:  # noqa: BLE001  # whatever it is, the model should read it and go on
        return f"Error: {error}"
    # 15 digits are what a float holds for certain, so 0.1 + 0.2 is 0.3.
    return str(value) if isinstance(value, int) else format(value, ".15g")


def _value(expression: str) -> int | float:
    from simpleeval import SimpleEval  # type: ignore[import-untyped]  # it ships no types

    if len(expression) > MAX_CHARS:
        raise ValueError(f"the expression is longer than {MAX_CHARS} characters")
    if "^" in expression:
        raise ValueError("write ** for powers")
    evaluator = SimpleEval(operators=OPERATORS, functions=FUNCTIONS, names={"pi": math.pi, "e": math.e})
    evaluator.nodes = {node: evaluator.nodes[node] for node in NODES}
    return _real_number(evaluator.eval(" ".join(expression.split())))


def _real_number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("only real numbers are allowed")
    if value.bit_length() > MAX_BITS if isinstance(value, int) else not math.isfinite(value):
        raise OverflowError
    return value


def _on_real_numbers(function: Callable[..., object]) -> Callable[..., int | float]:
    return lambda *numbers: _real_number(function(*map(_real_number, numbers)))


def _power(base: Any, exponent: Any) -> object:
    """The power, unless it could be huge: that is known before it is computed."""
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > 2 * MAX_BITS:
        raise OverflowError
    return base**exponent


def _factorial(number: Any) -> object:
    if number > 500:  # computed first, it would take seconds
        raise OverflowError
    return math.factorial(number)


def _round(number: Any, digits: Any = 0) -> object:
    # More digits than any number here has change nothing, and cost time.
    return round(number, max(-MAX_BITS, min(digits, MAX_BITS))) if digits else round(number)


OPERATORS = {
    ast.Add: _on_real_numbers(operator.add),
    ast.Sub: _on_real_numbers(operator.sub),
    ast.Mult: _on_real_numbers(operator.mul),
    ast.Div: _on_real_numbers(operator.truediv),
    ast.FloorDiv: _on_real_numbers(operator.floordiv),
    ast.Mod: _on_real_numbers(operator.mod),
    ast.Pow: _on_real_numbers(_power),
    ast.UAdd: _on_real_numbers(operator.pos),
    ast.USub: _on_real_numbers(operator.neg),
}
PLAIN = (
    "floor", "ceil", "gcd", "hypot", "sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin",
    "acos", "atan", "degrees", "radians",
)  # fmt: skip
"""Functions of Python's `math`."""
FUNCTIONS = {
    **{name: _on_real_numbers(getattr(math, name)) for name in PLAIN},
    **{"abs": _on_real_numbers(abs), "min": _on_real_numbers(min), "max": _on_real_numbers(max)},
    **{"round": _on_real_numbers(_round), "factorial": _on_real_numbers(_factorial)},
}

TOOL = Tool(name="calculator", params=Params, run=run, effect="pure", timeout_seconds=10)
