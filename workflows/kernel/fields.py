"""Typed context fields and their reducers: how a patch becomes the next context.

A patch maps field names to *deltas*. What a delta means is the field's reducer, declared beside its
type: `steps: Annotated[tuple[Step, ...], APPEND] = ()`; without one the delta replaces the value.
Deltas compose, so that several patches of one transition are one patch in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import to_json

from workflows.kernel.frozen import FrozenDict, FrozenList, freeze, unfit

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


@dataclass(frozen=True, slots=True)
class Reducer:
    """How a delta changes a field, and how two deltas in a row become one.

    Folding two deltas one after the other must give what folding the composed delta gives.
    """

    name: str
    fold: Callable[[Any, Any], Any]
    """(old value, delta) -> new value."""
    compose: Callable[[Any, Any], Any]
    """(delta, later delta) -> delta."""
    delta_type: Callable[[Any], Any] = lambda annotation: annotation
    """The field's type -> the delta's type."""
    takes: Callable[[type], bool] = lambda kind: True
    """Can the reducer work on a field of this class?"""
    whole: bool = False
    """The delta is a whole value, so the field's constraints hold for it too."""
    chained: bool = False
    """A delta may be a tuple of deltas, folded in order: what `compose` gives when one cannot say it."""
    frozen: bool = False
    """What `fold` and `compose` make of frozen values is frozen within: it is not walked again."""
    gather: Callable[[list[Any]], list[Any]] | None = None
    """Deltas as JSON values -> fewer that fold to the same, unread: so that a long log is read fast."""


def _like(old: Any, items: list[Any]) -> Any:
    return tuple(items) if isinstance(old, tuple) else items


def _append(old: Any, delta: Any) -> Any:
    return old.add(*delta) if hasattr(old, "add") else _like(old, [*old, *delta])


def _union(old: Any, delta: Any) -> Any:
    items = list(old)
    for item in delta:
        if item not in items:
            items.append(item)
    return _like(old, items)


def _merge_into(merged: dict[Any, Any], delta: Mapping[Any, Any]) -> None:
    for key, item in delta.items():
        both = isinstance(item, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = FrozenDict(_deep_merge(merged[key], item)) if both else item


def _deep_merge(old: Mapping[Any, Any], delta: Mapping[Any, Any]) -> dict[Any, Any]:
    merged = dict(old)
    _merge_into(merged, delta)
    return merged


def _parts(delta: Any) -> tuple[Mapping[Any, Any], ...]:
    return delta if isinstance(delta, tuple) else (delta,)


def _merge(old: Mapping[Any, Any], delta: Any) -> dict[Any, Any]:
    merged = dict(old)
    for part in _parts(delta):
        _merge_into(merged, part)
    return merged


def _hides(first: Mapping[Any, Any], later: Mapping[Any, Any]) -> bool:
    """Does `later` put a mapping where `first` put something else? Merged, the two would say less."""
    for key, item in later.items():
        if isinstance(item, Mapping) and key in first:
            before = first[key]
            if not isinstance(before, Mapping) or _hides(before, item):
                return True
    return False


def _compose_merges(first: Any, later: Any) -> Any:
    parts = [*_parts(first)]
    for part in _parts(later):
        if _hides(parts[-1], part):
            parts.append(part)
        else:
            parts[-1] = _deep_merge(parts[-1], part)
    return parts[0] if len(parts) == 1 else tuple(parts)


def _items(kind: Any) -> Any:
    item: Any = get_args(kind)[0]
    return dict[int, item]


def _put(old: Any, delta: Mapping[int, Any]) -> Any:
    items = list(old)
    for index in sorted(delta):
        if not 0 <= index <= len(items):
            raise ValueError(f"index {index} is outside 0..{len(items)}: nothing may be skipped")
        items[index : index + 1] = [delta[index]]
    return _like(old, items)


def _all_items(deltas: list[Any]) -> list[Any]:
    listed = all(isinstance(delta, list | tuple) for delta in deltas)
    return [[item for delta in deltas for item in delta]] if listed else deltas


def _all_parts(deltas: list[Any]) -> list[Any]:
    return [[part for delta in deltas for part in (delta if isinstance(delta, list | tuple) else [delta])]]


def _all_places(deltas: list[Any]) -> list[Any]:
    return [{place: item for delta in deltas for place, item in delta.items()}]


def _sequence(kind: type) -> bool:
    return issubclass(kind, tuple | list)


REPLACE = Reducer(
    "replace",
    lambda old, delta: delta,
    lambda first, later: later,
    whole=True,
    frozen=True,
    gather=lambda deltas: deltas[-1:],
)
APPEND = Reducer(
    "append",
    _append,
    _append,
    takes=lambda kind: _sequence(kind) or hasattr(kind, "add"),
    frozen=True,
    gather=_all_items,
)
"""For tuples, lists and transcripts: the delta's items come behind."""
ADD = Reducer("add", _union, _union, takes=_sequence, frozen=True, gather=_all_items)
"""For tuples used as sets that keep their order: items that are not there yet come behind."""
FIRST = Reducer(
    "first",
    lambda old, delta: delta if old is None else old,
    lambda first, later: later if first is None else first,
    whole=True,
    frozen=True,
    gather=lambda deltas: [delta for delta in deltas if delta is not None][:1],
)
"""For a reason: the first writer wins, until a reset."""
COUNT = Reducer(
    "count",
    lambda old, delta: old + delta,
    lambda first, later: first + later,
    takes=lambda kind: issubclass(kind, int | float),
)
"""For numbers: the delta is added."""
MERGE = Reducer(
    "merge",
    _merge,
    _compose_merges,
    takes=lambda kind: issubclass(kind, Mapping),
    chained=True,
    frozen=True,
    gather=_all_parts,
)
"""For mappings: nested mappings are merged, anything else is replaced (spec 4.9)."""
PUT = Reducer(
    "put",
    _put,
    lambda first, later: {**first, **later},
    delta_type=_items,
    takes=_sequence,
    frozen=True,
    gather=_all_places,
)
"""For tuples and lists: index -> item, where the index after the last one appends."""

_annotated: Any = Annotated


def _shell(value: Any) -> Any:
    """The value frozen, when all that is in it is frozen already."""
    if type(value) is dict:
        return FrozenDict(value)
    return FrozenList(value) if type(value) is list else value


class _Field:
    """One field: its reducer, and what checks and writes its deltas and its value."""

    def __init__(self, kind: Any, metadata: list[Any]) -> None:
        self.reducer = next((m for m in metadata if isinstance(m, Reducer)), REPLACE)
        rules = [m for m in metadata if not isinstance(m, Reducer)]
        self.unfit = unfit(kind) or self._misplaced(kind)
        if self.unfit:
            return
        try:
            self._adapt(kind, rules)
        except PydanticUserError as error:
            self.unfit = str(error).split(". ")[0]

    def _adapt(self, kind: Any, rules: list[Any]) -> None:
        self.value: TypeAdapter[Any] = TypeAdapter(_annotated[(kind, *rules)] if rules else kind)
        self.constrained = bool(rules) and not self.reducer.whole
        delta: Any = self.reducer.delta_type(kind)
        self.delta = self.value if self.reducer.whole else TypeAdapter(delta)
        self.chain = TypeAdapter(tuple[delta, ...]) if self.reducer.chained else self.delta

    def _misplaced(self, kind: Any) -> str:
        base = get_origin(kind) or kind
        if isinstance(base, type) and self.reducer.takes(base):
            return ""
        if self.reducer.whole:
            return ""
        return f"the reducer {self.reducer.name} does not work on {getattr(base, '__name__', base)}"

    def adapter(self, delta: Any) -> TypeAdapter[Any]:
        """What checks and writes this delta."""
        return self.chain if isinstance(delta, tuple | list) else self.delta


def _why(name: str, error: ValidationError) -> ValueError:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])[:200]
    return ValueError(f"{name}{'.' if where else ''}{where}: {first['msg']}")


class Fields:
    """A context class, taken apart: which fields it has and how each takes a delta."""

    def __init__(self, context: type[BaseModel]) -> None:
        self.context = context
        self.names = tuple(context.model_fields)
        self._fields = {n: _Field(f.annotation, f.metadata) for n, f in context.model_fields.items()}
        declared = context.__pydantic_decorators__
        self._validated = bool(declared.field_validators or declared.model_validators)

    @staticmethod
    def of(context: type[BaseModel]) -> Fields:
        """The fields of a context class, worked out once."""
        found = _known.get(context)
        if found is None:
            found = _known[context] = Fields(context)
        return found

    def unfit(self) -> dict[str, str]:
        """The fields that a context cannot have, and why; nothing else works on those."""
        return {name: field.unfit for name, field in self._fields.items() if field.unfit}

    def reducer(self, name: str) -> str:
        """The name of a field's reducer."""
        return self._fields[name].reducer.name

    def replaces(self, name: str) -> bool:
        """A delta of this field is a whole value."""
        return self._fields[name].reducer.whole

    def checked(self, name: str, delta: Any) -> Any:
        """The delta as a frozen value of the right type; raises ValueError when it does not fit."""
        if isinstance(delta, set | frozenset):
            raise ValueError(f"{name}: a set has no stable order; give a tuple")
        try:
            return freeze(self._fields[name].adapter(delta).validate_python(delta))
        except ValidationError as error:
            raise _why(name, error) from error
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        except RecursionError as error:
            raise ValueError(f"{name}: the value is nested too deeply") from error

    def fold(self, name: str, old: Any, delta: Any) -> Any:
        """A field's next value after a checked delta; raises ValueError when it cannot be folded."""
        field = self._fields[name]
        try:
            value = field.reducer.fold(old, delta)
            if field.constrained:
                value = field.value.validate_python(value)
        except ValidationError as error:
            raise _why(name, error) from error
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            raise ValueError(f"{name}: {error}") from error
        return _shell(value) if field.reducer.frozen and not field.constrained else freeze(value)

    def compose(self, name: str, first: Any, later: Any) -> Any:
        """Two deltas in a row as one."""
        reducer = self._fields[name].reducer
        delta = reducer.compose(first, later)
        return _shell(delta) if reducer.frozen else freeze(delta)

    def check(self, context: BaseModel) -> None:
        """Ask the validators of the context class, which may only check; raises ValueError."""
        if not self._validated:
            return
        values = {name: getattr(context, name) for name in self.names}
        try:
            again = self.context.model_validate(values, by_name=True, by_alias=False)
        except ValidationError as error:
            raise _why(self.context.__name__, error) from error
        changed = [name for name in self.names if getattr(again, name) != values[name]]
        if changed:
            problem = f"validators may only check, but they change {', '.join(changed)}"
            raise ValueError(f"{self.context.__name__}: {problem}")

    def default(self, name: str) -> Any:
        """The value that a reset gives back; raises KeyError for a required field."""
        declared = self.context.model_fields[name]
        if declared.is_required():
            raise KeyError(name)
        return freeze(declared.get_default(call_default_factory=True, validated_data={}))

    def to_json(self, patch: Patch) -> dict[str, Any]:
        """A patch of checked deltas as JSON values, for the log; raises ValueError."""
        return {n: _dump(self._fields[n].adapter(d), d) for n, d in patch.items()}

    def from_json(self, name: str, delta: Any) -> Any:
        """The checked delta that `to_json` wrote; raises ValueError when it is none."""
        adapter = self._fields[name].adapter(delta)
        return freeze(adapter.validate_json(to_json(delta), by_name=True, by_alias=False))

    def fold_json(self, name: str, old: Any, deltas: list[Any]) -> Any:
        """A field's value after deltas that `to_json` wrote, one behind the other; raises ValueError.

        Where the reducer can gather them they are read once, together; constraints look at each value.
        """
        field = self._fields[name]
        if field.reducer.gather and not field.constrained:
            deltas = field.reducer.gather(deltas)
        for delta in deltas:
            old = self.fold(name, old, self.from_json(name, delta))
        return old

    def whole(self, name: str, value: Any) -> Any:
        """A field's whole value, frozen; raises ValueError when it does not fit."""
        try:
            return freeze(self._fields[name].value.validate_python(value))
        except ValidationError as error:
            raise _why(name, error) from error

    def value_to_json(self, name: str, value: Any) -> Any:
        """A field's whole value as JSON; raises ValueError."""
        return _dump(self._fields[name].value, value)

    def value_from_json(self, name: str, value: Any) -> Any:
        """The whole value that `value_to_json` wrote; raises ValueError when it is none."""
        adapter = self._fields[name].value
        return freeze(adapter.validate_json(to_json(value), by_name=True, by_alias=False))

    def dump(self, context: BaseModel) -> dict[str, Any]:
        """The whole context as JSON values; raises ValueError for what JSON cannot hold."""
        return {n: self.value_to_json(n, getattr(context, n)) for n in self.names}

    def load(self, values: Mapping[str, Any]) -> BaseModel:
        """A context from JSON values, frozen throughout; raises ValueError when they do not fit."""
        loaded = self.context.model_validate_json(to_json(values), by_name=True, by_alias=False)
        frozen: BaseModel = freeze(loaded)
        return frozen


def _dump(adapter: TypeAdapter[Any], value: Any) -> Any:
    # round_trip leaves out computed fields, which a strict model would refuse when it is read again.
    return adapter.dump_python(value, mode="json", by_alias=False, round_trip=True)


_known: dict[type[BaseModel], Fields] = {}
