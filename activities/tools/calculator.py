"""Tool `calculator`: the value of an arithmetic expression."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, Field

from activities.toolbox import Tool

MAX_CHARACTERS = 256
MAX_BITS = 4096
"""Integers stay below 2 to this power (about 1,200 digits)."""

TOKEN = re.compile(
    r"\s+|[A-Za-z_]\w*|[-+*/%(),]"
    r"|0[xX][0-9a-fA-F]+(?!\w)|(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?![\w.])",
    re.ASCII,
)


class Params(BaseModel, frozen=True, extra="forbid"):
    """Evaluate an arithmetic expression exactly, for example `(17 * 3 - 1) / 2` or `sqrt(2)`.

    Operators: + - * / // % ** and parentheses. Functions: abs, round, min, max, sqrt, exp, log,
    log2, log10, sin, cos, tan, asin, acos, atan, degrees, radians, floor, ceil, factorial, gcd,
    hypot. Constants: pi, e. Angles are in radians.
    """

    expression: str = Field(description="At most 256 characters.")


class _Refused(Exception):
    """An expression that is not evaluated; the text says why."""


Number = int | float


def run(params: Params) -> str:
    """The value as text, or `Error: ` and the reason."""
    try:
        return _text(_value_of(params.expression))
    except _Refused as refused:
        return f"Error: {refused}"
    except ZeroDivisionError:
        return "Error: division by zero"
    except OverflowError:
        return "Error: a number became too large"
    except SyntaxError:
        return "Error: this is no arithmetic expression"
    except (ArithmeticError, MemoryError, RecursionError, TypeError, ValueError) as error:
        return f"Error: {error}"


def _value_of(expression: str) -> Number:
    if len(expression) > MAX_CHARACTERS:
        raise _Refused(f"the expression is longer than {MAX_CHARACTERS} characters")
    if "^" in expression:
        raise _Refused("write ** for powers")
    _check_tokens(expression)
    return _value(ast.parse(expression.strip(), mode="eval").body)


def _check_tokens(expression: str) -> None:
    """Only numbers, names and operators get to Python's parser."""
    at = 0
    while at < len(expression):
        token = TOKEN.match(expression, at)
        if token is None:
            raise _Refused(f"{expression[at : at + 12]!r} at character {at + 1} is not understood")
        at = token.end()


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=value):
            return _constant(value)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return _checked(BINARY[type(op)](_value(left), _value(right)))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in UNARY:
            return _checked(UNARY[type(op)](_value(operand)))
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            return _checked(FUNCTIONS[name](*(_value(arg) for arg in args)))
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
            raise _Refused(f"{name} is unknown here")
        case _:
            raise _Refused(f"{type(node).__name__} is not allowed in an expression")


def _constant(value: object) -> Number:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Refused("only real numbers are allowed")
    return _checked(value)


def _checked(value: object) -> Number:
    if isinstance(value, int) and value.bit_length() <= MAX_BITS:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, complex):
        raise _Refused("the result is not a real number")
    raise OverflowError


def _power(base: Number, exponent: Number) -> object:
    """The power, unless it could be huge: that is seen before it is worked out."""
    whole = isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1
    if whole and abs(exponent) * (abs(int(base)).bit_length() - 1) > MAX_BITS:
        raise _Refused("the power is too large")
    return base**exponent


def _factorial(number: Number) -> int:
    if not isinstance(number, int) or not 0 <= number <= 500:
        raise _Refused("factorial takes a whole number from 0 to 500")
    return math.factorial(number)


def _round(number: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > 300:
        raise _Refused("round takes a whole number of digits, at most 300")
    return round(number, digits) if digits else round(number)


def _text(value: Number) -> str:
    # 15 digits: what a float holds for certain, so 0.1 + 0.2 is 0.3.
    return str(value) if isinstance(value, int) else format(value, ".15g")


BINARY: dict[type[ast.operator], Callable[[Any, Any], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}

UNARY: dict[type[ast.unaryop], Callable[[Any], object]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}

CONSTANTS = {"pi": math.pi, "e": math.e}

FUNCTIONS: dict[str, Callable[..., object]] = {
    "abs": abs,
    "round": _round,
    "min": min,
    "max": max,
    "factorial": _factorial,
    "gcd": math.gcd,
    "floor": math.floor,
    "ceil": math.ceil,
    "hypot": math.hypot,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "degrees": math.degrees,
    "radians": math.radians,
}

TOOL = Tool(name="calculator", params=Params, run=run, effect="pure", timeout_seconds=10)
