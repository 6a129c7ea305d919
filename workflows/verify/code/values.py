"""What code can hold where nothing is run: a value is the set of all that an expression may be.

Constants, classes, functions and what an author's module holds are known as they are (`Is`); what code makes
of them keeps its form (`Made`, `Seq`, `Dict`); the rest is `Data`. A set may be too large, never too small.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

__all__ = [
    "ANY",
    "EITHER",
    "NEVER",
    "NOTHING",
    "PLAIN",
    "Context",
    "Data",
    "Dict",
    "DictEntry",
    "Function",
    "Generated",
    "Is",
    "Made",
    "Many",
    "Method",
    "Place",
    "RunShown",
    "Seq",
    "Value",
    "dicts_of",
    "elements",
    "exactly",
    "items_of",
    "joined",
    "lasting",
    "one_dict",
    "pieces",
    "truths",
]

PLAIN = str | int | float | bool | bytes | None
MAX_ALTERNATIVES = 32
"""Alternatives of one value; beyond it those of one form become one."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A line of a file."""

    file: str
    line: int


@dataclass(frozen=True, slots=True, eq=False)
class Is:
    """Exactly this object."""

    it: Any
    guess: bool = False
    """It is one of several, and data decides which."""

    def _key(self) -> tuple[Any, ...]:
        return type(self.it), self.it if isinstance(self.it, PLAIN) else id(self.it), self.guess

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Is) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


@dataclass(frozen=True, slots=True)
class Data:
    """Whatever a model, a tool, a person, an option or a computation brings."""

    kind: Any = None
    """Its class, if that is known."""
    true: bool = False
    """It is neither empty nor zero, nor None."""


@dataclass(frozen=True, slots=True)
class Made:
    """An object that the code makes."""

    kind: type
    fields: tuple[tuple[str, Value], ...] = ()
    """What it was given; `**`: something that data names."""
    guess: bool = False
    place: Place | None = None

    def get(self, name: str) -> Value | None:
        """What the field was given; None: nothing."""
        return dict(self.fields).get(name)


@dataclass(frozen=True, slots=True)
class Seq:
    """A tuple or list of known length."""

    items: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Many:
    """A tuple, list, set or iterator of any length."""

    item: Value


@dataclass(frozen=True, slots=True)
class DictEntry:
    """A key's value in a `Dict`."""

    value: Value
    sure: bool = True
    """The key is there."""
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Dict:
    """A mapping. With a `rest` it may have more keys, whose values are among these."""

    entries: tuple[tuple[Any, DictEntry], ...] = ()
    rest: Value = frozenset()


@dataclass(frozen=True, slots=True)
class Context:
    """The context; `changed` is what `after` has put over it."""

    changed: Dict | None = None


@dataclass(frozen=True, slots=True)
class RunShown:
    """The `run` of a visit."""


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function or lambda that a function makes: its source, and the names around it."""

    source: Any
    names: Any


@dataclass(frozen=True, slots=True)
class Method:
    """A method of what `of` is: `function` of an author's class, else the one of that name."""

    name: str
    of: Value
    function: Any = None


@dataclass(frozen=True, slots=True)
class Generated:
    """A generator that was called: what it yields besides effects, and what it returns."""

    yields: Value
    returns: Value
    unclear: Place | None = None
    """Where it yields what may be an effect or not."""


Value = frozenset[Any]
"""All that an expression may be, each one of the classes above. Empty: nothing, since an error was raised."""

NEVER: Value = frozenset()
NOTHING: Value = frozenset({Is(None)})
ANY: Value = frozenset({Data()})
EITHER: Value = frozenset({Is(True), Is(False)})


def exactly(it: Any) -> Value:
    """The value that is this object."""
    return frozenset({Is(it)})


def joined(*values: Value) -> Value:
    """What one of these is."""
    found = NEVER.union(*values)
    return _fewer(found) if len(found) > MAX_ALTERNATIVES else found


def _fewer(value: Value) -> Value:
    """The same in fewer alternatives: what has one form becomes one."""
    forms: dict[Any, list[Any]] = {}
    for atom in value:
        forms.setdefault(_form(atom), []).append(atom)
    return NEVER.union(*(_as_one(atoms) for atoms in forms.values()))


def _form(atom: Any) -> Any:
    if isinstance(atom, Made):
        return Made, atom.kind
    if isinstance(atom, Seq):
        return Seq, len(atom.items)
    return type(atom), isinstance(atom, Is) and isinstance(atom.it, PLAIN)


def _as_one(atoms: list[Any]) -> Value:
    """What one of several of one form is, as one."""
    first = atoms[0]
    if isinstance(first, Is):
        return ANY if isinstance(first.it, PLAIN) and len(atoms) > MAX_ALTERNATIVES // 2 else frozenset(atoms)
    if isinstance(first, Dict):
        return frozenset({one_dict(atoms)})
    if isinstance(first, Many):
        return frozenset({Many(joined(*(one.item for one in atoms)))})
    if isinstance(first, Seq):
        parts = zip(*(one.items for one in atoms), strict=True)
        return frozenset({Seq(tuple(joined(*part) for part in parts))})
    if isinstance(first, Made):
        names = sorted({name for one in atoms for name, _ in one.fields})
        fields = ((name, joined(*(one.get(name) or NEVER for one in atoms))) for name in names)
        return frozenset(
            {Made(first.kind, tuple(fields), any(one.guess for one in atoms), _first_place(atoms))}
        )
    return frozenset(atoms)


def _first_place(found: Iterable[Any]) -> Place | None:
    return min((one.place for one in found if one.place is not None), default=None)


def one_dict(dicts: Iterable[Dict]) -> Dict:
    """What one of these mappings is, as one."""
    dicts = list(dicts)
    parts, entries = [dict(one.entries) for one in dicts], dict[Any, DictEntry]()
    for key in dict.fromkeys(key for part in parts for key in part):
        found = [part[key] for part in parts if key in part]
        sure = len(found) == len(parts) and all(entry.sure for entry in found)
        entries[key] = DictEntry(joined(*(entry.value for entry in found)), sure, _first_place(found))
    return Dict(tuple(entries.items()), joined(*(one.rest for one in dicts)))


def dicts_of(value: Value) -> list[Dict]:
    """The mappings that a value may be; of what is none, one of which nothing is known."""
    found = []
    for atom in value:
        if isinstance(atom, Dict):
            found.append(atom)
        elif isinstance(atom, Is) and isinstance(atom.it, Mapping):
            found.append(Dict(tuple((key, DictEntry(exactly(it))) for key, it in atom.it.items())))
        elif not (isinstance(atom, Is) and atom.it is None):
            found.append(Dict((), ANY))
    return found


def elements(atom: Any) -> list[Value] | None:
    """The items of what is iterated; None: their number is not known."""
    if isinstance(atom, Seq):
        return list(atom.items)
    if isinstance(atom, Dict) and not atom.rest and all(entry.sure for _, entry in atom.entries):
        return [exactly(key) for key, _ in atom.entries]
    it = atom.it if isinstance(atom, Is) else None
    if isinstance(it, tuple | list | Mapping):
        return [exactly(one) for one in it]
    return [exactly(one) for one in sorted(it, key=repr)] if isinstance(it, set | frozenset) else None


def items_of(value: Value) -> list[Value] | None:
    """The same of a value that can be one thing only."""
    return elements(next(iter(value))) if len(value) == 1 else None


def pieces(value: Value) -> Value:
    """What an item of it may be."""
    return joined(*(_pieces(atom) for atom in value))


def _pieces(atom: Any) -> Value:
    if (items := elements(atom)) is not None:
        return joined(*items)
    if isinstance(atom, Many):
        return atom.item
    if isinstance(atom, Generated):
        return atom.yields
    return joined(ANY, *(exactly(key) for key, _ in atom.entries)) if isinstance(atom, Dict) else ANY


def truths(value: Value) -> set[bool]:
    """Whether it may be true, and whether it may be false."""
    return set[bool]().union(*(_truths(atom) for atom in value))


def _truths(atom: Any) -> set[bool]:
    if isinstance(atom, Is):
        plain = isinstance(atom.it, PLAIN | Enum | type | tuple | dict)
        return {bool(atom.it)} if plain else _by_class(type(atom.it))
    if isinstance(atom, Made):
        return _by_class(atom.kind)
    if isinstance(atom, Seq):
        return {bool(atom.items)}
    if isinstance(atom, Dict):
        if any(entry.sure for _, entry in atom.entries):
            return {True}
        return {True, False} if atom.entries or atom.rest else {False}
    return {True, False} if isinstance(atom, Many) or (isinstance(atom, Data) and not atom.true) else {True}


def _by_class(kind: type) -> set[bool]:
    """Of an object: true, unless its class has something to say about that."""
    return {True, False} if hasattr(kind, "__bool__") or hasattr(kind, "__len__") else {True}


def lasting(value: Value) -> Value:
    """What a field of the context keeps of a value: constants and members of enums as they are, what is empty
    as empty; of all else, that it is data of its class."""
    return joined(*(frozenset({_lasting(atom)}) for atom in value))


def _lasting(atom: Any) -> Any:
    if isinstance(atom, Data) or _truths(atom) == {False}:
        return atom
    if isinstance(atom, Is):
        kept = isinstance(atom.it, PLAIN | Enum)
        return Is(atom.it) if kept else Data(type(atom.it), _by_class(type(atom.it)) == {True})
    return Data(atom.kind, _by_class(atom.kind) == {True}) if isinstance(atom, Made) else Data()
