"""The context: all that a machine remembers. A state sees the fields it declared; the log keeps the
difference that a patch makes.

A difference is JSON, one key saying what it is:

    {"append": [...]}                   items at the end of a list
    {"change": {key: difference}, "drop": [key, ...]}    keys of a mapping or fields of a model, recursively
    {"set": value}                      the whole value
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Self, TypeVar, get_origin

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticSerializationError, to_jsonable_python

from activities.contracts import ReadOnlyDict, read_only
from activities.text import problems_text

__all__ = [
    "Append",
    "Context",
    "Misfit",
    "Patch",
    "View",
    "apply_difference",
    "difference",
    "differences",
    "nearest_field",
    "patched",
    "seal",
    "to_json",
    "whole",
]

Some = TypeVar("Some", bound="Context")
Patch = Mapping[str, Any]
"""Field -> new value."""


class Append:
    """In a patch: these items at the end of a field that is a tuple. Unlike `(*c.field, item)` it does not
    read the field, so that a state may write a list that it never looks at."""

    __slots__ = ("items",)

    def __init__(self, *items: Any) -> None:
        self.items = items

    def to(self, old: Any, name: str) -> tuple[Any, ...]:
        """What the field holds then. Raises Misfit where it holds no tuple."""
        if not isinstance(old, tuple):
            raise Misfit(f"{name}: `Append` adds to a tuple; the field holds {type(old).__name__}")
        return (*old, *self.items)

    def __repr__(self) -> str:
        return f"Append({', '.join(map(repr, self.items))})"


class Context(BaseModel):
    """Base of all contexts: frozen, JSON in and out, and read-only to its depth. Use tuples and frozen models
    inside; dicts and lists are kept as such that refuse a change."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, extra="forbid")

    @model_validator(mode="after")
    def _sealed(self) -> Self:
        seal(self)
        return self

    def after(self, patch: Patch) -> Self:
        """The context as this patch would leave it; nothing is validated or kept."""
        return _copied(self, {name: _new_value(self, name, value) for name, value in patch.items()})


def _new_value(context: Context, name: str, value: Any) -> Any:
    return value.to(getattr(context, name), name) if isinstance(value, Append) else value


def seal(context: Context) -> None:
    """Make what the fields hold read-only. Raises ValueError for what cannot be made so."""
    for name, value in context.__dict__.items():
        context.__dict__[name] = read_only(value, _named(name))


class View:
    """A read-only window on a context. For an undeclared field, `refuse` returns what to raise.

    Stands in for the context in a state's function: properties and methods of the context read
    through it, so they need the fields that they use.
    """

    __slots__ = ("_allowed", "_context", "_read", "_refuse")

    def __init__(self, context: Context, allowed: frozenset[str], refuse: Callable[[str], Exception]) -> None:
        for name, value in (("_context", context), ("_allowed", allowed), ("_refuse", refuse)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_read", {})

    def __getattr__(self, name: str) -> Any:
        kind = type(self._context)
        if name in kind.model_fields:
            if name not in self._allowed:
                raise self._refuse(name)
            self._read[name] = None
            return getattr(self._context, name)
        if not hasattr(kind, name):
            raise AttributeError(f"the context has no field {name!r}{nearest_field(kind, name)}")
        member = getattr(kind, name)
        if isinstance(member, property) and member.fget is not None:
            return member.fget(self)
        return member.__get__(self) if callable(member) else member

    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError(f"the context is read-only: return a patch with {name!r} instead")

    def after(self, patch: Patch) -> View:
        """The same window on the context as this patch would leave it."""
        view = View(self._context.after(patch), self._allowed | frozenset(patch), self._refuse)
        object.__setattr__(view, "_read", self._read)
        return view

    @property
    def fields_read(self) -> tuple[str, ...]:
        """In the order of the first read."""
        return tuple(self._read)


def nearest_field(kind: type[Context], name: str) -> str:
    """`; did you mean ...?`, for the end of a message; empty: no field has a name like it."""
    close = difflib.get_close_matches(name, list(kind.model_fields), 1)
    return f"; did you mean `{close[0]}`?" if close else ""


RESERVED = frozenset({"after", "fields_read"})
"""Names of `View` that a context's fields would hide."""


def move(view: View, context: Context) -> None:
    """Let the window show a newer context."""
    object.__setattr__(view, "_context", context)


def patched(context: Context, patch: Patch) -> Context:
    """The next context; values that changed are validated. Raises Misfit.

    Of a tuple that grew and a mapping with changed keys only the new items are validated, so that a
    patch costs by what is new.
    """
    adapters, values = _adapters(type(context)), dict[str, Any]()
    for name, value in patch.items():
        if name not in adapters:
            raise Misfit(f"the context has no field {name!r}")
        try:
            old = getattr(context, name)
            new = value.to(old, name) if isinstance(value, Append) else value
            values[name] = _validated(name, *adapters[name], old, new)
        except ValidationError as error:
            raise Misfit(problems_text(error, 1, under=name)) from error
        except PydanticSerializationError as error:
            raise Misfit(f"{name}: it cannot be written as JSON: {error}") from error
        except ValueError as error:
            raise Misfit(str(error)) from error
    return _copied(context, values)


def _copied(context: Some, values: dict[str, Any]) -> Some:
    """With these values, and without what it keeps beside its fields (`cached_property`), which was made of
    the old ones."""
    copy = context.model_copy(update=values)
    for name in copy.__dict__.keys() - type(copy).model_fields.keys():
        del copy.__dict__[name]
    return copy


class Misfit(ValueError):
    """A value does not fit its field; the message names both."""


def _validated(name: str, adapter: TypeAdapter[Any], by_item: bool, old: Any, new: Any) -> Any:
    if new is old:
        return old
    if by_item and isinstance(new, tuple) and isinstance(old, tuple) and old and _begins(new, old):
        return (*old, *_fitting(name, adapter, new[len(old) :]))
    if by_item and isinstance(new, dict) and isinstance(old, dict) and old:
        changed = {key: value for key, value in new.items() if key not in old or old[key] is not value}
        if len(changed) < len(new):
            valid = _fitting(name, adapter, changed)
            if valid.keys() == changed.keys():
                return ReadOnlyDict({**new, **valid}, _named(name))
    return _fitting(name, adapter, new)


def _begins(new: tuple[Any, ...], old: tuple[Any, ...]) -> bool:
    """With the very items of the old one: `True` equals `1`, but is another value."""
    return len(new) >= len(old) and all(map(operator.is_, new, old))


def _fitting(name: str, adapter: TypeAdapter[Any], value: Any) -> Any:
    """The value as its field takes it, read-only; JSON can spell half of a character pair, but no log can
    write one."""
    valid = adapter.validate_python(value)
    adapter.dump_json(valid)
    return read_only(valid, _named(name))


def _named(field: str) -> str:
    return f"`{field}` of the context"


@cache
def _adapters(kind: type[Context]) -> dict[str, tuple[TypeAdapter[Any], bool]]:
    """Field -> its adapter, and whether its items can be validated without the others: a rule for the whole,
    such as a largest length, needs all of them."""
    config = ConfigDict(allow_inf_nan=False)
    adapters: dict[str, tuple[TypeAdapter[Any], bool]] = {}
    for name, field in kind.model_fields.items():
        annotation = field.rebuild_annotation()
        own = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        adapter = TypeAdapter(annotation) if own else TypeAdapter(annotation, config=config)
        adapters[name] = adapter, get_origin(annotation) in (tuple, dict)
    return adapters


def to_json(context: type[Context], patch: Patch) -> dict[str, Any]:
    """A patch as JSON."""
    adapters = _adapters(context)
    return {name: adapters[name][0].dump_python(value, mode="json") for name, value in patch.items()}


def differences(old: Context, new: Context) -> dict[str, Any]:
    """Field -> difference, for the fields that changed."""
    if old is new:
        return {}
    found = {name: difference(getattr(old, name), getattr(new, name)) for name in type(old).model_fields}
    return {name: change for name, change in found.items() if change is not None}


def whole(context: Context) -> dict[str, Any]:
    """Field -> difference from nothing."""
    return {name: {"set": value} for name, value in context.model_dump(mode="json").items()}


def difference(old: Any, new: Any) -> dict[str, Any] | None:
    """What changed, as JSON; None: nothing."""
    if old is new:
        return None
    if isinstance(old, dict) and isinstance(new, dict):
        return _changes(old, new)
    if isinstance(old, BaseModel) and type(old) is type(new):
        return _changes(dict(old), dict(new))
    if isinstance(old, tuple | list) and isinstance(new, tuple | list) and len(old) <= len(new):
        # Item by item: `True` equals `1`, but the log must tell them apart.
        if all(one is other or difference(one, other) is None for one, other in zip(old, new, strict=False)):
            return {"append": to_jsonable_python(new[len(old) :])} if len(new) > len(old) else None
    elif type(old) is type(new) and old == new:
        return None
    return {"set": to_jsonable_python(new)}


def _changes(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> dict[str, Any] | None:
    others = [key for key, value in new.items() if key not in old or old[key] is not value]
    changed = {
        _json_key(key): change
        for key in others
        if (change := difference(old[key], new[key]) if key in old else {"set": to_jsonable_python(new[key])})
    }
    dropped = [_json_key(key) for key in old if key not in new]
    if not changed and not dropped:
        return None  # equal but for the order of keys
    return {"change": changed, "drop": dropped} if dropped else {"change": changed}


def _json_key(key: Any) -> str:
    return key if type(key) is str else next(iter(to_jsonable_python({key: None})))


def apply_difference(old: Any, change: Mapping[str, Any]) -> Any:
    """The JSON value after a difference."""
    if "set" in change:
        return change["set"]
    if "append" in change:
        return [*old, *change["append"]]
    value = dict(old)
    for key in change.get("drop", ()):
        del value[key]
    for key, inner in change["change"].items():
        value[key] = apply_difference(value.get(key), inner)
    return value
