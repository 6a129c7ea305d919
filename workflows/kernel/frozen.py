"""Values that nobody can change: what a view shows must not be a way to write.

A context holds only what comes back unchanged from the log's JSON: no sets (they have no order), no
numbers that JSON lacks, nothing that can be changed in place.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, MutableMapping, MutableSequence, Sequence, Set
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, JsonValue, SecretBytes, SecretStr

__all__ = ["FrozenDict", "FrozenList", "freeze", "unfit"]


def _refuse(self: object, *_: object, **__: object) -> Any:
    raise TypeError("a context is read-only: return a patch instead of changing it in place")


class FrozenDict(dict[Any, Any]):
    """A dict that nobody can change; its copies are ordinary dicts."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> dict[Any, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return dict(_thaw(self))

    def __reduce__(self) -> tuple[type, tuple[dict[Any, Any]]]:
        return (FrozenDict, (dict(self),))


class FrozenList(list[Any]):
    """A list that nobody can change; its copies are ordinary lists."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return list(_thaw(self))

    def __reduce__(self) -> tuple[type, tuple[list[Any]]]:
        return (FrozenList, (list(self),))


def _thaw(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _thaw(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_thaw(item) for item in value]
    return value


def freeze(value: Any) -> Any:
    """The same value with every dict and list in it made read-only, also inside models.

    Raises ValueError for what a context cannot hold, RecursionError for what is nested too deeply.
    """
    if value is None or isinstance(value, (str, int, FrozenDict, FrozenList)):
        return _text(value) if type(value) is str else value
    if isinstance(value, dict):
        return FrozenDict({freeze(key): freeze(item) for key, item in value.items()})
    if isinstance(value, list):
        return FrozenList([freeze(item) for item in value])
    if isinstance(value, tuple):
        return _tuple(value)
    if isinstance(value, BaseModel):
        return _model(value)
    if is_dataclass(value) and not isinstance(value, type):
        return _dataclass(value)
    return _single(value)


def _text(value: str) -> str:
    if not value.isascii():
        value.encode()  # half a character pair cannot be written anywhere; UnicodeEncodeError is a ValueError
    return value


def _tuple(value: tuple[Any, ...]) -> tuple[Any, ...]:
    items = [freeze(item) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def _model(value: BaseModel) -> BaseModel:
    kind = type(value)
    if not kind.model_config.get("frozen"):
        raise ValueError(f"a {kind.__name__} can be changed in place; declare it `frozen=True`")
    items = {name: getattr(value, name) for name in kind.model_fields}
    frozen = {name: freeze(item) for name, item in items.items()}
    changed = {name: item for name, item in frozen.items() if item is not items[name]}
    return value.model_copy(update=changed) if changed else value


def _dataclass(value: Any) -> Any:
    kind = type(value)
    if not kind.__dataclass_params__.frozen:
        raise ValueError(f"a {kind.__name__} can be changed in place; declare it `frozen=True`")
    items = {f.name: getattr(value, f.name) for f in fields(kind)}
    frozen = {name: freeze(item) for name, item in items.items()}
    if all(frozen[name] is items[name] for name in items):
        return value
    copy = object.__new__(kind)
    for name, item in frozen.items():
        object.__setattr__(copy, name, item)
    return copy


def _single(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no number that JSON, and so the log, can hold")
    if isinstance(value, Set | MutableSequence | MutableMapping):
        raise ValueError(f"a {type(value).__name__} cannot be held in a context; use a tuple or a dict")
    return value


_LOOSE: Collection[Any] = (Any, object, dict, list, tuple)
_ABSTRACT = (Sequence, Iterable, Collection)
_UNORDERED = (set, frozenset)
_SECRET = (SecretStr, SecretBytes)


def unfit(kind: Any, seen: set[Any] | None = None) -> str:
    """Why a context cannot have a field of this type, or the empty string."""
    seen = set() if seen is None else seen
    if kind is JsonValue or kind is Ellipsis or isinstance(kind, TypeVar | str):
        return ""
    if get_origin(kind) is Annotated:
        return unfit(get_args(kind)[0], seen)
    if any(kind is loose for loose in _LOOSE):
        name = getattr(kind, "__name__", kind)
        return f"{name} says nothing of what it holds; use JsonValue, or name the type"
    base = get_origin(kind) or kind
    if isinstance(base, type) and base not in seen:
        seen.add(base)
        if why := _unfit_class(base, seen):
            return why
    # The values of a Literal are no types.
    parts = () if str(kind).startswith("typing.Literal") else get_args(kind)
    return next((why for part in parts if (why := unfit(part, seen))), "")


def _unfit_class(kind: type, seen: set[Any]) -> str:
    if kind in _ABSTRACT:
        return f"a {kind.__name__} may come back as another type; say tuple or list"
    if issubclass(kind, _UNORDERED):
        return f"a {kind.__name__} has no stable order; use a tuple with the reducer ADD"
    if issubclass(kind, _SECRET):
        return f"a {kind.__name__} would have to be in the log; keep secrets out of a context"
    if issubclass(kind, deque | bytearray):
        return f"a {kind.__name__} can be changed in place; use a tuple"
    if issubclass(kind, BaseModel):
        return _unfit_model(kind, seen)
    if is_dataclass(kind):
        if not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]  # typeshed does not know it
            return f"{kind.__name__} can be changed in place; declare it `frozen=True`"
        hints = get_type_hints(kind)
        return next((why for f in fields(kind) if (why := unfit(hints[f.name], seen))), "")
    return ""


def _unfit_model(kind: type[BaseModel], seen: set[Any]) -> str:
    if not kind.model_config.get("frozen"):
        return f"{kind.__name__} can be changed in place; declare it `frozen=True`"
    for name, declared in kind.model_fields.items():
        if declared.exclude:
            return f"{kind.__name__}.{name} is excluded from JSON, so the log would lack it"
        if why := unfit(declared.annotation, seen):
            return f"{kind.__name__}.{name}: {why}"
    return ""
