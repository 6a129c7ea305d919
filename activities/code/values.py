"""Values that leave the sandbox, as JSON values. They are hostile: endless, deep, or not JSON.

What has an obvious JSON form takes it: tuples and sets become lists (a set sorted), dataclasses become
objects, dates and decimals become text. Anything else is refused, in words for the block that sent it,
and so is what is too deep or too large.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal
from pathlib import PurePath
from typing import Any

from pydantic import JsonValue
from pydantic_monty import MontyClassProxy

from activities.contracts import CodeCall
from activities.text import readable

__all__ = ["MAX_ARGUMENTS", "MAX_DEPTH", "MAX_ITEMS", "MAX_TEXT", "NotPlain", "plain_call"]

MAX_ARGUMENTS = 100
"""Of one call, positional and named together."""
MAX_DEPTH = 60
"""Lists in lists; readers of JSON elsewhere stop at about 200."""
MAX_ITEMS = 100_000
"""Values in one call, so that lists that hold one list many times cannot explode."""
MAX_TEXT = 4_000_000
"""Characters in one call."""
MAX_INT_BITS = 3_300
"""About 1000 digits."""


class NotPlain(TypeError):
    """The value has no JSON form, or is too large; the message is for the block that sent it."""


def plain_call(name: str, args: Sequence[object], named: Mapping[str, object]) -> CodeCall:
    """The call with JSON values; its arguments share the bounds. Raises `NotPlain`."""
    if len(args) + len(named) > MAX_ARGUMENTS:
        raise NotPlain(
            f"{name} was given {len(args) + len(named):,} arguments, at most {MAX_ARGUMENTS} are allowed; "
            "pass one list"
        )
    walk = _Walk(name)
    return CodeCall(
        name=name,
        args=tuple(walk.argument(f"argument {n}", value) for n, value in enumerate(args, 1)),
        named={walk.text(key): walk.argument(key[:60], value) for key, value in named.items()},
    )


@dataclass(slots=True)
class _Walk:
    """One call on its way to JSON. The depth is bounded, so recursion is safe."""

    name: str
    what: str = ""
    """The argument that is at fault when something in it has no JSON form."""
    items: int = 0
    chars: int = 0

    def argument(self, what: str, value: object) -> JsonValue:
        self.what = f"{what} of {self.name}"
        return self.plain(value)

    def plain(self, value: object, depth: int = 0) -> JsonValue:
        self._count(depth)
        match value:
            case None | bool():
                return value
            case str():
                return self.text(value)
            case int() | float():
                return self._number(value)
            case dict():
                return self._object(value.items(), depth)
            case list() | tuple() | set() | frozenset():
                found = [self.plain(one, depth + 1) for one in value]
                # The order of a set differs from process to process.
                return sorted(found, key=json.dumps) if isinstance(value, Set) else found
            case MontyClassProxy() if value.is_dataclass:
                return self._object(value.attributes.items(), depth)
        return self.text(self._words(value))

    def _count(self, depth: int) -> None:
        self.items += 1
        if self.items > MAX_ITEMS:
            raise NotPlain(f"the call of {self.name} holds more than {MAX_ITEMS:,} values; pass less at once")
        if depth > MAX_DEPTH:
            raise NotPlain(f"{self.what} is nested more than {MAX_DEPTH} deep; make it flatter")

    def text(self, text: str) -> str:
        self.chars += len(text)
        if self.chars > MAX_TEXT:
            raise NotPlain(
                f"the call of {self.name} holds more than {MAX_TEXT:,} characters; pass less at once"
            )
        return readable(text)

    def _number(self, number: int | float) -> int | float:
        if isinstance(number, int):
            if number.bit_length() > MAX_INT_BITS:
                raise NotPlain(f"{self.what} holds a number of more than 900 digits; pass it as text")
        elif not math.isfinite(number):
            raise NotPlain(f"{self.what} holds {number}, which JSON cannot express; pass it as text")
        return number

    def _object(self, items: Iterable[tuple[object, object]], depth: int) -> JsonValue:
        found: dict[str, JsonValue] = {}
        for key, value in items:
            name = self._key(key)
            if name in found:
                raise NotPlain(f"{self.what} holds two keys that are both {name[:60]!r} as text")
            found[name] = self.plain(value, depth + 1)
        return found

    def _key(self, key: object) -> str:
        match key:
            case str():
                return self.text(key)
            case None | bool() | int() | float():
                return json.dumps(self.plain(key))
            case datetime.date() | Decimal():
                return str(key)
        raise NotPlain(f"{self.what} has a key of type {_type(key)}; keys must be text")

    def _words(self, value: object) -> str:
        """The text that stands for a value without a JSON form of its own."""
        match value:
            case bytes():
                try:
                    return value.decode()
                except UnicodeDecodeError:
                    raise NotPlain(f"{self.what} holds bytes that are not UTF-8 text; decode them") from None
            case datetime.date() | datetime.time():
                return value.isoformat()
            case Decimal() | datetime.timedelta() | PurePath():
                return str(value)
            case BaseException():
                return f"{type(value).__name__}: {value}"
        raise NotPlain(
            f"{self.what} holds a value of type {_type(value)}, which cannot leave the block; "
            "pass text, numbers, lists or dicts"
        )


def _type(value: Any) -> str:
    return value.name[:60] if isinstance(value, MontyClassProxy) else type(value).__name__
