"""Values that nobody can change in place: what a state, a rule or a hook is shown is no way to write.

A change in place would be in no record: the log would say one thing, the next state see another. Code in C
that is given a list or dict changes it without asking, as `heapq` and `list.append(value, x)` do: where
visits run a second time (`client/agents/purity.py`), that is noticed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, MutableSet
from copy import deepcopy
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from pydantic import BaseModel

__all__ = ["ReadOnlyDict", "ReadOnlyList", "changeable", "read_only"]

UNCHANGEABLE = (
    NoneType, bool, int, float, complex, str, bytes, Enum, date, time, timedelta, Decimal, UUID,
    tuple, frozenset,
)  # fmt: skip
"""Classes whose values cannot be changed; a tuple may hold some that can."""
NEVER_READ_ONLY = (MutableSet, deque, bytearray)


def _refuse(self: ReadOnlyDict | ReadOnlyList, *_: Any, **__: Any) -> NoReturn:
    raise TypeError(
        f"{self.what} is read-only and was changed in place; make a changed copy instead, such as "
        "`{**old, key: new}` or `[*old, new]`: only the patch of a state changes the context"
    )


class ReadOnlyDict(dict[Any, Any]):
    """A dict that refuses every change with a TypeError, which names `what` it is. A copy may be changed."""

    __slots__ = ("what",)

    def __init__(self, items: Mapping[Any, Any], what: str) -> None:
        super().__init__(items)
        self.what = what

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> dict[Any, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return {key: deepcopy(value, memo) for key, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class ReadOnlyList(list[Any]):
    """A list that refuses every change with a TypeError, which names `what` it is. A copy may be changed."""

    __slots__ = ("what",)

    def __init__(self, items: Iterable[Any], what: str) -> None:
        super().__init__(items)
        self.what = what

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [deepcopy(item, memo) for item in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def read_only(value: Any, what: str) -> Any:
    """The value with all dicts and lists in it made read-only; `what` says in errors whose it is.

    A frozen model or dataclass stays the same object. Raises ValueError for one that is not frozen, and for a
    set, a deque or a bytearray.
    """
    if isinstance(value, str | int | float | ReadOnlyDict | ReadOnlyList) or value is None:
        return value
    if isinstance(value, dict):
        return ReadOnlyDict({key: read_only(item, what) for key, item in value.items()}, what)
    if isinstance(value, list):
        return ReadOnlyList([read_only(item, what) for item in value], what)
    if isinstance(value, tuple):
        items = [read_only(item, what) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    _close(value, what)
    return value


def _close(value: Any, what: str) -> None:
    """Make what a frozen model or dataclass holds read-only; other values hold nothing."""
    kind: Any = type(value)
    if problem := _problem(kind):
        raise ValueError(f"{what} holds {problem}")
    if isinstance(value, BaseModel) and value.__pydantic_extra__ is not None:
        object.__setattr__(value, "__pydantic_extra__", read_only(value.__pydantic_extra__, what))
    for name in _names_of_containers(kind):
        old = getattr(value, name)
        if (new := read_only(old, what)) is not old:
            # past the model's own refusal: the value stays the same, only nobody can change it any more
            object.__setattr__(value, name, new)


def changeable(annotation: Any) -> str:
    """What in a value of this type could be changed in place and cannot be made read-only; empty: nothing."""
    problems = (_problem(part) for part in _parts(annotation, set()) if isinstance(part, type))
    return next(filter(None, problems), "")


@cache
def _problem(kind: type[object]) -> str:
    if issubclass(kind, BaseModel) and not kind.model_config.get("frozen"):
        return f"the model `{kind.__name__}`, which is not frozen; declare it with `frozen=True`"
    if is_dataclass(kind) and not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]  # all have them
        return f"the dataclass `{kind.__name__}`, which is not frozen; declare it with `frozen=True`"
    if issubclass(kind, NEVER_READ_ONLY):
        return f"a {kind.__name__}, which can be changed in place; use a tuple or a frozenset"
    return ""


@cache
def _names_of_containers(kind: type[object]) -> tuple[str, ...]:
    """The fields of a model or dataclass whose values may hold a dict or a list."""
    return tuple(
        name
        for name, annotation in _annotations(kind).items()
        if not all(
            isinstance(part, type) and issubclass(part, UNCHANGEABLE) for part in _parts(annotation, set())
        )
    )


def _parts(annotation: Any, seen: set[Any]) -> Iterator[Any]:
    """Every class that a value of this type may consist of; what is no class, such as `Any`, as it is."""
    annotation = getattr(annotation, "__value__", annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _parts(arguments[0], seen)
    elif origin is Literal or annotation is Ellipsis:
        return
    elif origin is not None:
        if origin not in (Union, UnionType):
            yield origin
        for argument in arguments:
            yield from _parts(argument, seen)
    else:
        yield annotation
        if isinstance(annotation, type) and annotation not in seen:
            seen.add(annotation)
            for inner in _annotations(annotation).values():
                yield from _parts(inner, seen)


def _annotations(kind: type[object]) -> dict[str, Any]:
    """Of the fields of a model or dataclass; of other classes, none."""
    if issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    if not is_dataclass(kind):
        return {}
    try:
        hints = get_type_hints(kind)
    except NameError:  # a name that only type checkers import
        hints = {}
    return {field.name: hints.get(field.name, Any) for field in fields(kind)}
