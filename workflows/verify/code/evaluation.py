"""What attributes and calls evaluate to: an author's functions are gone through, Python's own are known."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from activities.contracts import Doing, Effect, do, read_only
from workflows.kernel.machine import Event
from workflows.verify.code import known
from workflows.verify.code.one_way import Args
from workflows.verify.code.sources import Source, is_followed
from workflows.verify.code.values import (
    ANY,
    NEVER,
    NOTHING,
    PLAIN,
    Context,
    Data,
    Dict,
    DictEntry,
    Function,
    Is,
    Made,
    Many,
    Method,
    Place,
    RunShown,
    Seq,
    Value,
    dicts_of,
    elements,
    exactly,
    joined,
    one_dict,
    pieces,
    truths,
)

__all__ = ["CHANGING", "Reading", "attribute", "call", "in_place", "of_mapping"]


class Reading(Protocol):
    """Who goes through the code."""

    @property
    def context(self) -> type[BaseModel]:
        """The class of the machine's context."""

    @property
    def homes(self) -> frozenset[str]:
        """Packages whose functions are followed, wherever they lie."""

    @property
    def run(self) -> Mapping[str, Value]:
        """What is known of `run`, by attribute."""

    def place(self) -> Place:
        """The line that is gone through."""

    def field(self, name: str) -> Value:
        """A field of the context, which is read here."""

    def wrong(self, text: str) -> None:
        """Something is wrong here, whatever comes."""

    def handed_on(self, value: Value) -> None:
        """The value goes where nobody looks."""

    def guessed(self, atom: Any, args: Args) -> Value:
        """What a call gives of one of several functions, where data decides which it is."""

    def strange(self) -> None:
        """A function is called here that data brings."""

    def follow(self, function: Any, args: Args) -> Value:
        """What a function gives; only an author's code is looked into."""

    def made_by(self, kind: type, init: types.FunctionType, args: Args) -> Value:
        """An object of a class with an `__init__` of its own."""

    def go_through(self, source: Source, args: Args, names: Mapping[str, Value]) -> Value:
        """What a function gives that was made while going through."""


# -- attributes --------------------


def attribute(reading: Reading, atom: Any, name: str) -> Value:
    """What `atom.name` may be."""
    if isinstance(atom, Context):
        return _of_context(reading, atom, name)
    if isinstance(atom, RunShown):
        return reading.run.get(name, ANY)
    if isinstance(atom, Is):
        return _of_object(atom, name)
    if isinstance(atom, Made):
        return _of_made(reading, atom, name)
    if isinstance(atom, Data):
        return _of_class(reading, atom, atom.kind, name) if isinstance(atom.kind, type) else ANY
    return frozenset({Method(name, frozenset({atom}))})


def _of_context(reading: Reading, atom: Context, name: str) -> Value:
    changes: dict[Any, DictEntry] = dict(atom.changed.entries) if atom.changed else {}
    if name in changes and changes[name].sure:
        return changes[name].value
    if name in reading.context.model_fields:
        value = reading.field(name)
        later = changes[name].value if name in changes else NEVER
        return joined(value, later, atom.changed.rest if atom.changed else NEVER)
    if name == "after":
        return frozenset({Method(name, frozenset({atom}))})
    if name.startswith("__"):
        reading.handed_on(frozenset({atom}))
        return ANY
    if not hasattr(reading.context, name):
        reading.wrong(f"reads {name}, which is no field of the context")
        return ANY
    return _of_class(reading, atom, reading.context, name)


def _of_class(reading: Reading, atom: Any, kind: type, name: str) -> Value:
    """What an object has by its class: a field, a property, a method."""
    if isinstance(atom, Data) and (hint := known.field_hints(kind).get(name)) is not None:
        return known.typed(hint)
    if isinstance(atom, Data) and (getattr(kind, "_is_protocol", False) or type.__subclasses__(kind)):
        return ANY  # of another class, perhaps, that does it otherwise
    member = inspect.getattr_static(kind, name, None)
    if isinstance(member, property | functools.cached_property):
        getter = member.fget if isinstance(member, property) else member.func
        followed = isinstance(getter, types.FunctionType) and is_followed(getter, reading.homes)
        return call(reading, Is(getter), Args([frozenset({atom})])) if followed else ANY
    if isinstance(member, staticmethod | classmethod):
        return exactly(getattr(kind, name))
    if isinstance(member, types.FunctionType):
        return frozenset({Method(name, frozenset({atom}), member)})
    return frozenset({Method(name, frozenset({atom}))}) if callable(member) else ANY


def _of_object(atom: Is, name: str) -> Value:
    if isinstance(atom.it, PLAIN) and not isinstance(atom.it, Enum):
        return frozenset({Method(name, frozenset({atom}))}) if hasattr(atom.it, name) else NEVER
    try:
        return frozenset({Is(getattr(atom.it, name), atom.guess)})
    except Exception:  # noqa: BLE001  # whatever a property of the author's raises outside of a run
        return ANY


def _of_made(reading: Reading, atom: Made, name: str) -> Value:
    if name in known.set_later(atom.kind):
        return ANY
    if (given := atom.get(name)) is not None:
        return given
    default = known.default_of(atom.kind, name)
    if default is None:
        return _of_class(reading, atom, atom.kind, name)
    return joined(default, ANY) if atom.get("**") else default


# -- calls --------------------


def call(reading: Reading, atom: Any, args: Args) -> Value:
    """What a call gives."""
    if isinstance(atom, Function):
        return reading.go_through(atom.source, args, atom.names)
    if isinstance(atom, Method):
        return _method(reading, atom, args)
    if isinstance(atom, Is):
        one_of_several = atom.guess and not isinstance(atom.it, type)
        return reading.guessed(Is(atom.it), args) if one_of_several else _object_called(reading, atom, args)
    if isinstance(atom, Made):
        return joined(*(call(reading, one, args) for one in _of_class(reading, atom, atom.kind, "__call__")))
    reading.strange()
    reading.handed_on(args.all)
    return ANY


def _object_called(reading: Reading, atom: Is, args: Args) -> Value:
    it = atom.it
    if isinstance(it, type | types.FunctionType | types.BuiltinFunctionType) and it in BUILT_IN:
        return BUILT_IN[it](reading, args)
    if isinstance(it, type):
        return _made(reading, it, args, guess=atom.guess)
    if isinstance(it, functools.partial):
        named = {name: DictEntry(exactly(one)) for name, one in it.keywords.items()}
        inner = dataclasses.replace(args.prepended(*map(exactly, it.args)), named={**named, **args.named})
        return call(reading, Is(it.func), inner)
    if isinstance(it, types.MethodType | types.BuiltinMethodType):
        return _bound_called(reading, it, args)
    function = it if isinstance(it, types.FunctionType) else getattr(it, "__wrapped__", None)
    if function is None:
        function, args = getattr(type(it), "__call__", None), args.prepended(frozenset({atom}))  # noqa: B004  # the function itself
    return reading.follow(function, args)


def _bound_called(reading: Reading, it: Any, args: Args) -> Value:
    """A method of an object that is known."""
    if isinstance(it, types.BuiltinMethodType):
        if not isinstance(it.__self__, types.ModuleType):
            return _method(reading, Method(it.__name__, exactly(it.__self__)), args)
        reading.handed_on(args.all)
        return ANY
    if it.__func__ is FieldInfo.get_default:
        return exactly(it(call_default_factory=True))
    return call(reading, Is(it.__func__), args.prepended(exactly(it.__self__)))


def _made(reading: Reading, kind: type, args: Args, *, guess: bool) -> Value:
    """An object of this class."""
    ours = issubclass(kind, BaseModel | Event | BaseException) or dataclasses.is_dataclass(kind)
    if issubclass(kind, Enum) or not (ours or is_followed(kind, reading.homes)):
        reading.handed_on(args.all)
        return frozenset({Data(kind)})
    init = inspect.getattr_static(kind, "__init__", None)
    own = isinstance(init, types.FunctionType) and not dataclasses.is_dataclass(kind)
    if own and is_followed(init, reading.homes):
        return reading.made_by(kind, init, args)
    fields = dict(zip(known.positional(kind), args.given, strict=False))
    fields |= {name: one.value if one.sure else joined(one.value, ANY) for name, one in args.named.items()}
    if issubclass(kind, Event | Effect):
        has = set(kind.model_fields) if issubclass(kind, BaseModel) else set(known.positional(kind))
        for name in sorted(args.named.keys() - has):
            reading.wrong(f"gives {kind.__name__} a field {name}, which it does not have")
    if args.more or args.rest:
        fields["**"] = ANY
    return frozenset({Made(kind, tuple(fields.items()), guess, reading.place())})


# -- functions that come with Python, and ours --------------------


def _type(reading: Reading, args: Args) -> Value:
    """`type(x)`. Who asks it of the context may tell the stand-in of an exploration from it."""
    found = NEVER
    for atom in args.all:
        if isinstance(atom, Context):
            reading.handed_on(frozenset({atom}))
        kind = atom.kind if isinstance(atom, Made) else type(atom.it) if isinstance(atom, Is) else None
        found |= ANY if kind is None else {Is(kind, atom.guess)}
    return found


def _items(reading: Reading, args: Args) -> Value:
    """tuple(x), list(x), sorted(x) and their like: the items of x."""
    reading.handed_on(args.all)
    return joined(*(_as_items(atom) for atom in args.given[0])) if args.given else frozenset({Seq()})


def _as_items(atom: Any) -> Value:
    if (items := elements(atom)) is not None:
        return frozenset({Seq(tuple(items))})
    return frozenset({atom if isinstance(atom, Data) else Many(pieces(frozenset({atom})))})


def _dict(reading: Reading, args: Args) -> Value:
    reading.handed_on(args.all)
    found = one_dict(dicts_of(args.given[0])) if args.given else Dict()
    return frozenset({known.merged(found, Dict(tuple(args.named.items()), args.rest))})


def _getattr(reading: Reading, args: Args) -> Value:
    names = [one.it for one in args.given[1] if known.is_word(one)]
    if len(names) < len(args.given[1]):
        reading.handed_on(args.given[0])
        return ANY
    return joined(
        *(attribute(reading, atom, name) for atom in args.given[0] for name in names), *args.given[2:]
    )


def _map(reading: Reading, args: Args) -> Value:
    inner = Args([pieces(one) for one in args.given[1:]])
    return frozenset({Many(joined(*(call(reading, atom, inner) for atom in args.given[0])))})


def _replace(reading: Reading, args: Args) -> Value:
    changes = Dict(tuple(args.named.items()), args.rest)
    return joined(*(known.changed(atom, changes) for atom in args.given[0]))


def _rows(*parts: Value) -> Value:
    """An iterator of tuples of these."""
    return frozenset({Many(frozenset({Seq(parts)}))})


BUILT_IN: Mapping[Any, Callable[[Reading, Args], Value]] = {
    isinstance: lambda reading, args: known.isinstance_of(args.given[0], known.classes(args.given[1])),
    type: _type,
    bool: lambda reading, args: frozenset(Is(one) for one in truths(args.all)),
    **dict.fromkeys((iter, tuple, list, sorted, reversed, set, frozenset), _items),
    dict: _dict,
    next: lambda reading, args: joined(pieces(args.given[0]), *args.given[1:]),
    getattr: _getattr,
    enumerate: lambda reading, args: _rows(ANY, pieces(args.given[0])),
    zip: lambda reading, args: _rows(*map(pieces, args.given)),
    map: _map,
    filter: lambda reading, args: frozenset({Many(pieces(args.given[1]))}),
    typing.cast: lambda reading, args: args.given[1],
    **dict.fromkeys((copy.copy, copy.deepcopy, read_only), lambda reading, args: args.given[0]),
    dataclasses.replace: _replace,
    do: lambda reading, args: frozenset({Made(Doing, (("effect", args.all),))}),
}


# -- methods --------------------


def _method(reading: Reading, method: Method, args: Args) -> Value:
    """What a method gives."""
    name, of = method.name, method.of
    if name == "after" and any(isinstance(atom, Context) for atom in of):
        return frozenset({Context(one_dict(dicts_of(args.all)))})
    if name == "model_copy":
        update = args.named.get("update")
        changes = one_dict(dicts_of(update.value)) if update else Dict()
        return joined(*(known.changed(atom, changes) for atom in of))
    if method.function is not None and is_followed(method.function, reading.homes):
        return call(reading, Is(method.function), args.prepended(of))
    if name in ("get", "pop", "items", "values", "keys", "copy"):
        return joined(*(of_mapping(atom, name, args) for atom in of))
    reading.handed_on(joined(of, args.all))
    return known.hinted(ANY, method.function)


def of_mapping(atom: Any, name: str, args: Args) -> Value:
    """What these methods of a mapping give."""
    if not isinstance(atom, Dict) and not (isinstance(atom, Is) and isinstance(atom.it, Mapping)):
        return ANY
    if name in ("get", "pop"):
        return _got(atom, args)
    found = dicts_of(frozenset({atom}))[0]
    rows = [(exactly(key), one.value) for key, one in found.entries]
    whole = not found.rest and all(one.sure for _, one in found.entries)
    if not whole:
        rows.append((ANY, found.rest or ANY))
    if name == "copy":
        return frozenset({found})
    items = [frozenset({Seq(row)}) if name == "items" else row[name == "values"] for row in rows]
    return frozenset({Seq(tuple(items)) if whole else Many(joined(*items))})


def _got(atom: Dict | Is, args: Args) -> Value:
    """mapping.get(key, default)."""
    default = args.given[1] if len(args.given) > 1 else NOTHING
    keys = {known.key_of(one.it) if isinstance(one, Is) else None for one in args.given[0]}
    if None in keys or (isinstance(atom, Dict) and atom.rest):
        return joined(known.item(atom, args.given[0]), default)
    entries = dict(dicts_of(frozenset({atom}))[0].entries)
    found = [entries[key] for key in keys if key in entries]
    sure = len(found) == len(keys) and all(one.sure for one in found)
    return joined(*(one.value for one in found), NEVER if sure else default)


CHANGING = frozenset({"append", "extend", "add", "insert", "update", "pop", "setdefault", "remove", "clear"})
"""Methods that change a list, set or dict in place."""


def in_place(atom: Any, name: str, args: Args) -> Value:
    """What a list, set or dict is after such a method."""
    if isinstance(atom, Dict) and name == "update":
        given = one_dict(dicts_of(args.given[0])) if args.given else Dict()
        return frozenset(
            {known.merged(known.merged(atom, given), Dict(tuple(args.named.items()), args.rest))}
        )
    if isinstance(atom, Dict) and name == "pop":
        gone = {known.key_of(one.it) if isinstance(one, Is) else None for one in args.given[0]}
        rows = [(key, dataclasses.replace(one, sure=False)) for key, one in atom.entries]
        exact = len(gone) == 1 and None not in gone
        return frozenset(
            {Dict(tuple(row for row in (atom.entries if exact else rows) if row[0] not in gone), atom.rest)}
        )
    if isinstance(atom, Dict):
        return frozenset({known.merged(atom, Dict((), ANY))})
    new = pieces(args.all) if name in ("extend", "update") else args.given[-1] if args.given else NEVER
    if isinstance(atom, Seq) and name == "append" and len(atom.items) < known.MAX_KNOWN_VALUES:
        return frozenset({Seq((*atom.items, new))})
    return frozenset({Many(joined(pieces(frozenset({atom})), new))})
