"""What is known on one way through the code, and what the code was seen to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from activities.contracts import Effect
from workflows.verify.code.values import ANY, NEVER, Dict, DictEntry, Place, Value, joined, lasting

__all__ = ["Args", "Read", "Seen", "Store", "Way", "note"]


@dataclass(frozen=True, slots=True)
class Store:
    """The context's fields as the code sees them."""

    values: Mapping[str, Value]
    written: frozenset[str] = frozenset()
    """Fields that something has written on some way to here."""

    def after(self, patch: Dict) -> Store:
        """With this patch."""
        values, new = dict(self.values), [name for name, _ in patch.entries]
        for name, entry in patch.entries:
            if name in values:
                values[name] = joined(lasting(entry.value), NEVER if entry.sure else values[name])
        if patch.rest:
            values = {name: joined(value, ANY) for name, value in values.items()}
            new = list(values)
        return Store(values, self.written.union(new))

    def where(self, name: str, value: Value) -> Store:
        """With this field as something that was found out, not written."""
        return Store({**self.values, name: value}, self.written)

    def joined(self, *others: Store) -> Store:
        """What one of these is."""
        new = [one for one in others if one is not self]
        if not new:
            return self
        values = {
            name: joined(value, *(one.values[name] for one in new)) for name, value in self.values.items()
        }
        return Store(values, self.written.union(*(one.written for one in new)))


@dataclass(slots=True)
class Way:
    """One way through a function, up to a statement."""

    names: dict[str, Value]
    store: Store
    dead: bool = False
    """An error was raised on it."""

    def copy(self) -> Way:
        """The same, to go on elsewhere."""
        return Way(dict(self.names), self.store)

    def joined(self, *others: Way) -> Way:
        """What one of these is."""
        ways = (self, *others)
        names = dict.fromkeys(name for way in ways for name in way.names)
        found = {name: joined(*(way.names.get(name, NEVER) for way in ways)) for name in names}
        return Way(found, self.store.joined(*(one.store for one in others)))


@dataclass(frozen=True, slots=True)
class Read:
    """A field of the context that is read."""

    place: Place
    written: bool
    """Something may have written it before."""


def note(into: dict[Any, Place], what: Any, place: Place) -> None:
    """Keep the first line of each thing: values are sets, and have no order."""
    into[what] = min(place, into.get(what, place))


@dataclass(slots=True)
class Seen:
    """What code was seen to do, and where."""

    reads: dict[str, Read] = field(default_factory=dict)
    writes: dict[str, Place] = field(default_factory=dict)
    asks: dict[type[Effect[Any]], Place] = field(default_factory=dict)
    tools: dict[str, Place] = field(default_factory=dict)
    unclear: dict[str, Place] = field(default_factory=dict)
    """What of its doing cannot be seen: `reads`, `writes`, `asks`, `tools`."""
    wrong: dict[str, Place] = field(default_factory=dict)
    """What is wrong whatever comes, in words."""
    strange: Place | None = None
    """Where a function is called that data brings: nobody knows what it raises."""
    stores: list[Store] = field(default_factory=list)
    """The context each time that something was asked."""


@dataclass(slots=True)
class Args:
    """What a function is given."""

    given: list[Value]
    named: dict[str, DictEntry] = field(default_factory=dict)
    more: Value = NEVER
    """Of a `*` of unknown length: what each item may be."""
    rest: Value = NEVER
    """The same of a `**`."""

    @property
    def all(self) -> Value:
        """What one of them may be."""
        return joined(*self.given, *(one.value for one in self.named.values()), self.more, self.rest)

    def prepended(self, *first: Value) -> Args:
        """The same behind these."""
        return Args([*first, *self.given], self.named, self.more, self.rest)
