"""Typed context fields and their reducers: how a patch becomes the next context.

A patch maps field names to *deltas*. What a delta means is the field's reducer, declared beside its
type: `steps: Annotated[tuple[Step, ...], APPEND] = ()`; without one the delta replaces the value.
Deltas compose, so that several patches of one transition are one patch in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

__all__ = [
    "ADD",
    "APPEND",
    "COUNT",
    "FIRST",
    "MERGE",
    "PUT",
    "REPLACE",
    "Fields",
    "Patch",
    "Reducer",
    "freeze",
]

Patch = Mapping[str, Any]
"""Field name -> delta."""

C = TypeVar("C", bound=BaseModel)


class FrozenDict(dict[Any, Any]):
    """A dict that nobody can change: what a view shows must not be a way to write."""

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError("a context is read-only: return a patch instead of changing it in place")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> dict[Any, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return dict(thaw(self))

    def __reduce__(self) -> tuple[type, tuple[dict[Any, Any]]]:
        return (FrozenDict, (dict(self),))


class FrozenList(list[Any]):
    """A list that nobody can change."""

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError("a context is read-only: return a patch instead of changing it in place")

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return list(thaw(self))

    def __reduce__(self) -> tuple[type, tuple[list[Any]]]:
        return (FrozenList, (list(self),))


def freeze(value: Any) -> Any:
    """The same value with every dict and list in it made read-only, also inside models."""
    if isinstance(value, FrozenDict | FrozenList):
        return value
    if isinstance(value, dict):
        return FrozenDict({key: freeze(item) for key, item in value.items()})
    if isinstance(value, list):
        return FrozenList([freeze(item) for item in value])
    if isinstance(value, tuple):
        return tuple(freeze(item) for item in value) if type(value) is tuple else value
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, BaseModel):
        items = {name: getattr(value, name) for name in type(value).model_fields}
        frozen = {name: freeze(item) for name, item in items.items()}
        changed = {name: item for name, item in frozen.items() if item is not items[name]}
        return value.model_copy(update=changed) if changed else value
    return value


def thaw(value: Any) -> Any:
    """A changeable copy of frozen dicts and lists."""
    if isinstance(value, dict):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, list):
        return [thaw(item) for item in value]
    return value


@dataclass(frozen=True, slots=True)
class Reducer:
    """How a delta changes a field, and how two deltas in a row become one."""

    name: str
    fold: Callable[[Any, Any], Any]
    """(old value, delta) -> new value."""
    compose: Callable[[Any, Any], Any]
    """(delta, later delta) -> delta."""
    delta_type: Callable[[Any], Any] = lambda annotation: annotation
    """The field's type -> the delta's type."""


def _append(old: Any, delta: Any) -> Any:
    return old.add(*delta) if hasattr(old, "add") else old + delta


def _union(old: tuple[Any, ...], delta: tuple[Any, ...]) -> tuple[Any, ...]:
    for item in delta:
        old = old if item in old else (*old, item)
    return old


def _deep_merge(old: Mapping[str, Any], delta: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for key, item in delta.items():
        both = isinstance(item, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _deep_merge(merged[key], item) if both else item
    return merged


def _items(kind: Any) -> Any:
    item: Any = get_args(kind)[0]
    return dict[int, item]


def _put(old: tuple[Any, ...], delta: Mapping[int, Any]) -> tuple[Any, ...]:
    items = list(old)
    for index in sorted(delta):
        if not 0 <= index <= len(items):
            raise ValueError(f"index {index} is outside 0..{len(items)}: nothing may be skipped")
        items[index : index + 1] = [delta[index]]
    return tuple(items)


REPLACE = Reducer("replace", lambda old, delta: delta, lambda first, later: later)
APPEND = Reducer("append", _append, _append)
"""For tuples and transcripts: the delta's items come behind."""
ADD = Reducer("add", _union, _union)
"""For tuples used as sets that keep their order: items that are not there yet come behind."""
FIRST = Reducer(
    "first",
    lambda old, delta: delta if old is None else old,
    lambda first, later: later if first is None else first,
)
"""For a reason: the first writer wins, until a reset."""
COUNT = Reducer("count", lambda old, delta: old + delta, lambda first, later: first + later)
"""For numbers: the delta is added."""
MERGE = Reducer("merge", _deep_merge, _deep_merge)
"""For mappings: nested mappings are merged, anything else is replaced (spec 4.9)."""
PUT = Reducer("put", _put, lambda first, later: {**first, **later}, _items)
"""For tuples: index -> item, where the index after the last one appends."""


@dataclass(frozen=True, slots=True)
class _Field:
    reducer: Reducer
    delta: TypeAdapter[Any]
    whole: TypeAdapter[Any]


class Fields:
    """A context class, taken apart: which fields it has and how each takes a delta."""

    def __init__(self, context: type[BaseModel]) -> None:
        self.context = context
        self.names = tuple(context.model_fields)
        self._fields = {name: self._field(name) for name in self.names}

    @staticmethod
    def of(context: type[BaseModel]) -> Fields:
        """The fields of a context class, worked out once."""
        found = _known.get(context)
        if found is None:
            found = _known[context] = Fields(context)
        return found

    def _field(self, name: str) -> _Field:
        declared = self.context.model_fields[name]
        reducer = next((m for m in declared.metadata if isinstance(m, Reducer)), REPLACE)
        kind: Any = declared.annotation
        return _Field(reducer, TypeAdapter(reducer.delta_type(kind)), TypeAdapter(kind))

    def reducer(self, name: str) -> str:
        """The name of a field's reducer."""
        return self._fields[name].reducer.name

    def checked(self, name: str, delta: Any) -> Any:
        """The delta as a frozen value of the right type; raises ValueError when it does not fit."""
        try:
            return freeze(self._fields[name].delta.validate_python(delta))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ValueError(f"{name}{'.' if where else ''}{where}: {first['msg']}") from error

    def fold(self, context: C, name: str, delta: Any) -> C:
        """The context with one checked delta in it; raises ValueError when it cannot be folded."""
        value = freeze(self._fields[name].reducer.fold(getattr(context, name), delta))
        return context.model_copy(update={name: value})

    def compose(self, name: str, first: Any, later: Any) -> Any:
        """Two deltas in a row as one."""
        return freeze(self._fields[name].reducer.compose(first, later))

    def default(self, name: str) -> Any:
        """The value that a reset gives back; raises KeyError for a required field."""
        declared = self.context.model_fields[name]
        if declared.is_required():
            raise KeyError(name)
        return freeze(declared.get_default(call_default_factory=True, validated_data={}))

    def to_json(self, patch: Patch) -> dict[str, Any]:
        """A patch of checked deltas as JSON values, for the log."""
        return {n: self._fields[n].delta.dump_python(d, mode="json") for n, d in patch.items()}

    def dump(self, context: BaseModel) -> dict[str, Any]:
        """The whole context as JSON values."""
        return {n: self._fields[n].whole.dump_python(getattr(context, n), mode="json") for n in self.names}

    def load(self, values: Mapping[str, Any]) -> BaseModel:
        """A context from JSON values, frozen throughout."""
        frozen: BaseModel = freeze(self.context.model_validate(values))
        return frozen


_known: dict[type[BaseModel], Fields] = {}
