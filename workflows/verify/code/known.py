"""What Python makes of values, without looking into any function: parts, operators, classes, annotations."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import product
from typing import Any

from pydantic import BaseModel

from activities.contracts import Effect
from workflows.kernel.machine import Event
from workflows.verify.code.one_way import Args, Way
from workflows.verify.code.sources import Source, tree_of
from workflows.verify.code.values import (
    ANY,
    EITHER,
    NEVER,
    NOTHING,
    PLAIN,
    Data,
    Dict,
    DictEntry,
    Generated,
    Is,
    Made,
    Many,
    Place,
    Seq,
    Value,
    dicts_of,
    elements,
    exactly,
    joined,
    lasting,
    pieces,
    truths,
)

__all__ = [
    "answer_to",
    "bound",
    "changed",
    "classes",
    "compared",
    "default_of",
    "entry",
    "field_hints",
    "guessed",
    "hinted",
    "is_word",
    "isinstance_of",
    "item",
    "key_of",
    "merged",
    "opened",
    "operated",
    "positional",
    "set_later",
    "typed",
    "unpacked",
    "widened",
    "with_part",
]

MAX_KNOWN_VALUES = 64
"""Values of a mapping of the author's that an unknown key may mean."""


# -- parts --------------------


def item(atom: Any, key: Value) -> Value:
    """What `atom[key]` may be. Of several that a mapping of the author's has, each is a guess."""
    keys = [key_of(one.it) for one in key if isinstance(one, Is)]
    exact = len(keys) == len(key)
    if isinstance(atom, Dict):
        entries = dict(atom.entries)
        if exact and all(one in entries for one in keys):
            return joined(*(entries[one].value for one in keys), atom.rest)
        return joined(atom.rest or ANY, *(one.value for one in entries.values()))
    if isinstance(atom, Is) and isinstance(atom.it, Mapping):
        found = [atom.it[one] for one in keys if one in atom.it] if exact else list(atom.it.values())
        if len(found) > MAX_KNOWN_VALUES:
            return ANY
        return frozenset(Is(one, guess=len(found) > 1) for one in found)
    if (items := elements(atom)) is not None:
        inside = exact and all(isinstance(one, int) and -len(items) <= one < len(items) for one in keys)
        return joined(*(items[one] for one in keys)) if inside else joined(ANY, *items)
    return atom.item if isinstance(atom, Many) else ANY


def key_of(it: Any) -> Any:
    """The object as a key; None for what is none."""
    return it if isinstance(it, PLAIN | Enum | type) else None


def entry(key: Value, value: Value, place: Place) -> Dict:
    """A mapping of one key."""
    keys = [one.it for one in key if isinstance(one, Is) and isinstance(one.it, PLAIN | Enum | type)]
    known = len(keys) == len(key)
    entries = tuple((one, DictEntry(value, known and len(keys) == 1, place)) for one in keys)
    return Dict(entries, NEVER if known else value or ANY)


def merged(one: Dict, other: Dict) -> Dict:
    """`{**one, **other}`."""
    entries = dict(one.entries)
    if other.rest:
        for key, old in one.entries:
            entries[key] = DictEntry(joined(old.value, other.rest), old.sure, old.place)
    for key, new in other.entries:
        before = entries.get(key)
        unsure = not new.sure and before is not None
        entries[key] = (
            DictEntry(joined(before.value, new.value), before.sure, new.place) if unsure and before else new
        )
    return Dict(tuple(entries.items()), joined(one.rest, other.rest))


def with_part(atom: Any, key: Value, value: Value, place: Place) -> Any:
    """The object after `object[key] = value` or `object.key = value`."""
    if isinstance(atom, Dict):
        return merged(atom, entry(key, value, place))
    if isinstance(atom, Made):
        return next(iter(changed(atom, entry(key, value, place))))
    return Many(joined(pieces(frozenset({atom})), value)) if isinstance(atom, Seq | Many) else atom


def changed(atom: Any, changes: Dict) -> Value:
    """A copy of an object with these fields changed."""
    if not isinstance(atom, Made):
        return lasting(frozenset({atom}))
    fields = dict(atom.fields)
    for name, one in changes.entries:
        fields[name] = one.value if one.sure else joined(one.value, fields.get(name, ANY))
    if changes.rest:
        fields = {**{name: joined(one, ANY) for name, one in fields.items()}, "**": ANY}
    return frozenset({Made(atom.kind, tuple(fields.items()), atom.guess, atom.place)})


def opened(atom: Any) -> Any:
    """What a list or mapping is after somebody has changed it who is not looked at."""
    if isinstance(atom, Dict):
        return merged(atom, Dict((), ANY))
    return Many(joined(pieces(frozenset({atom})), ANY)) if isinstance(atom, Seq | Many) else atom


def guessed(atom: Any) -> Any:
    """What a function gives that may not be the one that is called."""
    if isinstance(atom, Made):
        return dataclasses.replace(atom, guess=True)
    if isinstance(atom, Seq):
        return Seq(tuple(frozenset(guessed(one) for one in part) for part in atom.items))
    if isinstance(atom, Generated):
        return dataclasses.replace(atom, returns=frozenset(guessed(one) for one in atom.returns))
    return Dict((), ANY) if isinstance(atom, Dict) else atom


def unpacked(value: Value, targets: Sequence[ast.expr]) -> list[Value]:
    """What each of several names gets of a value."""
    found: list[list[Value]] = [[] for _ in targets]
    starred = any(isinstance(one, ast.Starred) for one in targets)
    for atom in value:
        items = elements(atom)
        if items is None or starred or len(items) != len(targets):
            items = [pieces(frozenset({atom}))] * len(targets)
        for into, part in zip(found, items, strict=True):
            into.append(part)
    return [joined(*parts) for parts in found]


# -- operators --------------------

COMPARISONS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}
SETS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.Sub: operator.sub,
}


def compared(how: ast.cmpop, left: Value, right: Value) -> Value:
    """What a comparison may be."""
    return joined(*(_compared(how, one, other) for one, other in product(left, right)))


def _compared(how: ast.cmpop, left: Any, right: Any) -> Value:
    if isinstance(how, ast.In | ast.NotIn) and isinstance(right, Seq):
        items = [one.it for part in right.items for one in part if isinstance(one, Is) and len(part) == 1]
        right = Is(tuple(items)) if len(items) == len(right.items) else right
    if isinstance(left, Is) and isinstance(right, Is):
        try:
            return exactly(bool(COMPARISONS[type(how)](left.it, right.it)))
        except Exception:  # noqa: BLE001  # whatever an author's `__eq__` raises
            return EITHER
    if isinstance(how, ast.Is | ast.IsNot | ast.Eq | ast.NotEq) and _one_is_none(left, right):
        return exactly(isinstance(how, ast.IsNot | ast.NotEq))
    return EITHER


def _one_is_none(left: Any, right: Any) -> bool:
    """One of them is None, and the other cannot be."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Is) and one.it is None:
            return not isinstance(other, Data) or other.true
    return False


def operated(how: ast.operator, left: Value, right: Value) -> Value:
    """What `left + right` and its like may be."""
    return joined(*(_operated(how, one, other) for one, other in product(left, right)))


def _operated(how: ast.operator, left: Any, right: Any) -> Value:
    if isinstance(how, ast.Add) and isinstance(left, Seq | Many) and isinstance(right, Seq | Many):
        if isinstance(left, Seq) and isinstance(right, Seq):
            return frozenset({Seq((*left.items, *right.items))})
        return frozenset({Many(pieces(frozenset({left, right})))})
    if isinstance(how, ast.BitOr) and isinstance(left, Dict):
        return frozenset(merged(left, one) for one in dicts_of(frozenset({right})))
    sets = [one.it for one in (left, right) if isinstance(one, Is) and isinstance(one.it, set | frozenset)]
    if len(sets) == 2 and type(how) in SETS:
        return exactly(SETS[type(how)](*sets))
    if isinstance(how, ast.Add | ast.Mod) and any(_is_text(one) for one in (left, right)):
        return frozenset({Data(str, any(truths(frozenset({one})) == {True} for one in (left, right)))})
    return ANY


def is_word(atom: Any) -> bool:
    """Whether it is a text that the code writes down."""
    return isinstance(atom, Is) and isinstance(atom.it, str)


def _is_text(atom: Any) -> bool:
    return is_word(atom) or (isinstance(atom, Data) and atom.kind is str)


# -- classes and annotations --------------------


def default_of(kind: type, name: str) -> Value | None:
    """What a field is that was not given; None: the class has no such field."""
    if issubclass(kind, BaseModel) and name in kind.model_fields:
        info = kind.model_fields[name]
        return ANY if info.is_required() else exactly(info.get_default(call_default_factory=True))
    if name in getattr(kind, "__dataclass_fields__", {}):
        default = kind.__dataclass_fields__[name].default  # type: ignore[attr-defined]  # just seen
        return ANY if default is dataclasses.MISSING else exactly(default)
    return None


def positional(kind: type) -> list[str]:
    """The fields that an object's class takes by their places."""
    if dataclasses.is_dataclass(kind):
        return [one.name for one in dataclasses.fields(kind) if one.init]
    return list(getattr(kind, "_fields", ()))


@functools.lru_cache(maxsize=1024)
def set_later(kind: type) -> frozenset[str]:
    """Attributes that the class's methods set after `__init__`: nobody follows those."""
    file = getattr(inspect.getmodule(kind), "__file__", None)
    tree = tree_of(file) if file and not issubclass(kind, BaseModel) else None
    bodies = [one for one in ast.walk(tree or ast.Module([], [])) if isinstance(one, ast.ClassDef)]
    methods = [one for body in bodies if body.name == kind.__name__ for one in body.body]
    later = [one for one in methods if isinstance(one, ast.FunctionDef) and one.name != "__init__"]
    parts = [part for one in later for part in ast.walk(one) if isinstance(part, ast.Attribute)]
    return frozenset(part.attr for part in parts if isinstance(part.ctx, ast.Store))


@functools.lru_cache(maxsize=1024)
def field_hints(kind: type) -> Mapping[str, Any]:
    """The fields of a class, with their annotations."""
    if issubclass(kind, BaseModel):
        return {name: info.annotation for name, info in kind.model_fields.items()}
    return _hints(kind) if dataclasses.is_dataclass(kind) else {}


@functools.lru_cache(maxsize=8192)
def _hints(what: Any) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(what)
    except Exception:  # noqa: BLE001  # an annotation that cannot be read says nothing
        return {}


def typed(hint: Any) -> Value:
    """What a value with this annotation may be."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is None or hint is type(None):
        return NOTHING
    if hint is bool:
        return EITHER
    if origin is typing.Literal:
        return joined(*(exactly(one) for one in inner))
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        return joined(*(typed(one) for one in (inner[:1] if origin is typing.Annotated else inner)))
    if origin in (tuple, list) and (len(inner) == 1 or inner[-1:] == (...,)):
        return frozenset({Many(typed(inner[0]))})
    kind = origin if isinstance(origin, type) else hint
    if not isinstance(kind, type):
        return ANY
    return frozenset({Data(kind, issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind))})


@functools.lru_cache(maxsize=64)
def answer_to(effect: type[Effect[Any]]) -> Value:
    """What an effect is answered with."""
    bases = (getattr(one, "__pydantic_generic_metadata__", {}) for one in effect.__mro__)
    found = next((one["args"][0] for one in bases if one.get("args")), None)
    return typed(found) if isinstance(found, type) else ANY


def hinted(value: Value, function: Any) -> Value:
    """Where a body does not show what it gives, and the function's annotation names events, one of these."""
    if Data() not in value or function is None:
        return value
    said = _hints(function).get("return")
    kinds = typing.get_args(said) or (said,)
    if not all(isinstance(one, type) and issubclass(one, Event) and one is not Event for one in kinds):
        return value
    return (value - ANY) | {Made(one, guess=True) for one in kinds}


def isinstance_of(value: Value, kinds: tuple[type, ...]) -> Value:
    """What `isinstance` says."""
    return joined(*(_is_one(atom, kinds) for atom in value)) if kinds else EITHER


def _is_one(atom: Any, kinds: tuple[type, ...]) -> Value:
    if isinstance(atom, Is):
        return exactly(isinstance(atom.it, kinds))
    if isinstance(atom, Generated):
        return exactly(issubclass(types.GeneratorType, kinds))
    kind = {Dict: dict, Seq: tuple}.get(type(atom), getattr(atom, "kind", None))
    if not isinstance(kind, type):
        return EITHER
    if issubclass(kind, kinds) and (not isinstance(atom, Data) or atom.true):
        return exactly(True)
    may = issubclass(kind, kinds) or any(issubclass(one, kind) for one in kinds)
    may = may or (isinstance(atom, Seq) and list in kinds)
    return EITHER if may else exactly(False)


def classes(value: Value) -> tuple[type, ...]:
    """The classes that `isinstance` or `except` is given; empty: it is not known which."""
    found: list[type] = []
    for atom in value:
        it = atom.it if isinstance(atom, Is) else None
        if isinstance(it, type):
            parts = [it]
        elif isinstance(it, types.UnionType):
            parts = [one for one in typing.get_args(it) if isinstance(one, type)]
        else:
            parts = [one for part in elements(atom) or [] for one in classes(part)]
        if not parts:
            return ()
        found += parts
    return tuple(found)


# -- functions and loops --------------------


def bound(source: Source, args: Args) -> dict[str, Value]:
    """The parameters of a function, with what they are given."""
    spec, names = source.node.args, dict[str, Value]()
    places = [one.arg for one in (*spec.posonlyargs, *spec.args)]
    for number, name in enumerate(places):
        known = number < len(args.given)
        more = joined(args.more, args.rest)
        names[name] = args.given[number] if known else _named(args, name, source.defaults.get(name), more)
    for one in spec.kwonlyargs:
        names[one.arg] = _named(args, one.arg, source.defaults.get(one.arg), args.rest)
    if spec.kwarg is not None:
        left = tuple((name, one) for name, one in args.named.items() if name not in names)
        names[spec.kwarg.arg] = frozenset({Dict(left, args.rest)})
    if spec.vararg is not None:
        given = args.given[len(places) :]
        names[spec.vararg.arg] = frozenset(
            {Many(joined(*given, args.more)) if args.more else Seq(tuple(given))}
        )
    return names


def _named(args: Args, name: str, default: Value | None, more: Value) -> Value:
    found = args.named.get(name)
    if found is not None and found.sure:
        return found.value
    return joined(found.value if found else NEVER, default or NEVER, more) or ANY


def widened(old: Way, new: Way, *, last: bool) -> Way:
    """The way into a loop's next turn; what still grows is made so wide that it ends."""
    for name, value in new.names.items():
        if value != old.names.get(name):
            new.names[name] = ANY if last else joined(*(_wide(atom) for atom in value))
    return new


def _wide(atom: Any) -> Value:
    long = isinstance(atom, Seq) and len(atom.items) > 2
    return frozenset({Many(joined(*atom.items)) if long else atom})
