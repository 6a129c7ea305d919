"""Values that come out of the sandbox, as JSON values. They are hostile: endless, deep, or no JSON.

What has an obvious JSON form takes it: tuples and sets become lists (a set sorted), dataclasses
objects, dates and decimals text, keys text. Anything else is refused in words for the block that
sent it, and so is what is too deep or too large.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from decimal import Decimal
from pathlib import PurePath
from typing import Any

from pydantic import JsonValue
from pydantic_monty import MontyClassProxy

from activities.tool_output import readable

__all__ = ["MAX_ARGUMENTS", "MAX_DEPTH", "MAX_ITEMS", "MAX_TEXT", "NotPlain", "plain", "plain_call"]

MAX_ARGUMENTS = 100
"""Of one call, positional and named together."""

MAX_DEPTH = 60
"""Lists in lists; what reads JSON elsewhere stops at about 200."""
MAX_ITEMS = 100_000
"""Values of a call in all, so that lists that hold one list many times cannot explode."""
MAX_TEXT = 4_000_000
"""Characters of a call in all."""
MAX_INT_BITS = 3_300
"""About 1000 digits."""


class NotPlain(TypeError):
    """The value has no JSON form, or is too large; the message is for the block that sent it."""


def plain(value: object, what: str = "the value") -> JsonValue:
    """The JSON value; `what` names it in messages. Raises `NotPlain`."""
    return _Walk(what, f"{what} holds").plain(value, 0)


def plain_call(
    name: str, args: Sequence[object], named: Mapping[str, object]
) -> tuple[tuple[JsonValue, ...], dict[str, JsonValue]]:
    """The arguments of a call as JSON values; they share the bounds. Raises `NotPlain`."""
    if len(args) + len(named) > MAX_ARGUMENTS:
        raise NotPlain(
            f"{name} was given {len(args) + len(named):,} arguments, at most {MAX_ARGUMENTS} are taken; "
            "pass one list"
        )
    walk = _Walk(name, f"the call of {name} holds")
    return (
        tuple(walk.argument(value, f"argument {n} of {name}") for n, value in enumerate(args, 1)),
        {walk.key(key): walk.argument(value, f"{key} of {name}") for key, value in named.items()},
    )


@dataclasses.dataclass(slots=True)
class _Walk:
    """One conversion as it goes on; its depth is bounded, so recursion is safe."""

    what: str
    """What is at fault when something in it has no JSON form."""
    all_holds: str
    """How a message begins when all of it is too much."""
    items: int = 0
    chars: int = 0

    def argument(self, value: object, what: str) -> JsonValue:
        self.what = what
        return self.plain(value, 0)

    def plain(self, value: object, depth: int) -> JsonValue:
        self.items += 1
        if self.items > MAX_ITEMS:
            raise NotPlain(f"{self.all_holds} more than {MAX_ITEMS:,} values; pass less at once")
        if depth > MAX_DEPTH:
            raise NotPlain(f"{self.what} is nested more than {MAX_DEPTH} deep; make it flatter")
        match value:
            case None | bool():
                return value
            case str():
                return self._text(value)
            case int() | float():
                return self._number(value)
            case dict():
                return self._object(value.items(), depth)
            case list() | tuple() | set() | frozenset():
                return self._list(value, depth)
        return self._other(value, depth)

    def _list(self, values: Collection[object], depth: int) -> JsonValue:
        found = [self.plain(value, depth + 1) for value in values]
        # A set's own order differs from process to process.
        return sorted(found, key=json.dumps) if isinstance(values, Set) else found

    def _text(self, text: str) -> str:
        self.chars += len(text)
        if self.chars > MAX_TEXT:
            raise NotPlain(f"{self.all_holds} more than {MAX_TEXT:,} characters; pass less at once")
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
            name = self.key(key)
            if name in found:
                raise NotPlain(f"{self.what} holds two keys that are both {name[:60]!r} as text")
            found[name] = self.plain(value, depth + 1)
        return found

    def key(self, key: object) -> str:
        match key:
            case str():
                return self._text(key)
            case None | bool():
                return json.dumps(key)
            case int() | float():
                return json.dumps(self.plain(key, 0))
            case datetime.date() | Decimal():
                return str(key)
        raise NotPlain(f"{self.what} has a key of type {_type(key)}; keys must be text")

    def _other(self, value: object, depth: int) -> JsonValue:
        match value:
            case bytes():
                try:
                    return self._text(value.decode())
                except UnicodeDecodeError:
                    raise NotPlain(f"{self.what} holds bytes that are no UTF-8 text; decode them") from None
            case datetime.datetime() | datetime.date() | datetime.time():
                return value.isoformat()
            case Decimal() | datetime.timedelta() | PurePath():
                return self._text(str(value))
            case BaseException():
                return self._text(f"{type(value).__name__}: {value}")
            case MontyClassProxy() if value.is_dataclass:
                return self._object(value.attributes.items(), depth)
        raise NotPlain(
            f"{self.what} holds a value of type {_type(value)}, which cannot leave the block; "
            "pass text, numbers, lists or dicts"
        )


def _type(value: Any) -> str:
    return value.name[:60] if isinstance(value, MontyClassProxy) else type(value).__name__
