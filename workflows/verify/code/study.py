"""What a machine's code can do, state by state: gone through from `begin` on along the table, with what the
context can hold in each state, until nothing new comes of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from workflows.kernel.errors import AgentError
from workflows.kernel.machine import Event, Exit, Machine, RunInput, State, state_name
from workflows.verify.code.one_way import Seen, Store, note
from workflows.verify.code.reader import Reader
from workflows.verify.code.sources import place_of
from workflows.verify.code.values import (
    ANY,
    Context,
    Data,
    Generated,
    Is,
    Made,
    Place,
    RunShown,
    Seq,
    Value,
    elements,
    exactly,
    joined,
    lasting,
    truths,
)

__all__ = ["Move", "Study", "Visit"]

MAX_TABLE_PASSES = 20
"""Times that the table is gone through; contexts hold few constants, so that four or five are enough."""
CONTEXT: Value = frozenset({Context()})
RUN: Value = frozenset({RunShown()})


@dataclass(frozen=True, slots=True)
class Move:
    """An event that a visit can return, and the context then."""

    event: type[Event]
    sure: bool
    """The code names the event here; else data picks it out of several."""
    place: Place
    store: Store


@dataclass(slots=True)
class Visit:
    """What a state's code does."""

    seen: Seen = field(default_factory=Seen)
    moves: list[Move] = field(default_factory=list)
    unclear: Place | None = None
    """Where it returns what cannot be seen."""
    rescued: set[type[Event]] = field(default_factory=set)
    """What `on_error` returns for an error that a function may raise which data brings."""


class Study:
    """What one machine's code does."""

    def __init__(self, machine: Machine) -> None:
        self.machine = m = machine
        self.visits: dict[str, Visit] = {}
        self.entered: dict[str, Store] = {}
        """State -> what the context can hold there."""
        self.own = Seen()
        """What `entry`, `on_error`, `on_close` and their like do."""
        self.first = Seen()
        """What `begin` gives: `writes`; and what it must give and does not: `wrong`."""
        self.holds: dict[str, bool] = {}
        """State -> whether its invariant can hold on any way into it."""
        self.reasons: dict[Any, Place] = {}
        """The exit reasons that `result` can give where the machine ends."""
        functions = [inspect.unwrap(one.visit) for one in m.by_name.values() if one.visit]
        modules = {
            (getattr(one, "__module__", None) or "").partition(".")[0] for one in (*functions, m.result)
        }
        self.homes = frozenset(modules - {"", "functools"})
        self.prepared = ANY
        if m.prepare is not None:
            self.prepared = self.reader(m.prepare, Store({})).called(m.prepare, self.options, ANY)
        self.go()

    @property
    def options(self) -> Value:
        return frozenset({Data(self.machine.options, true=True)})

    def go(self) -> None:
        """Go through all of it."""
        self.begin()
        gone = dict[str, Store]()
        for _ in range(MAX_TABLE_PASSES):
            before = dict(self.entered)
            for name in self.machine.rows:
                if name in self.entered and self.entered[name] != gone.get(name):
                    gone[name] = self.entered[name]
                    self.visit(name)
            self.beside_the_table()
            if self.entered == before:
                break
        self.end()
        for name in (
            self.machine.rows.keys() - self.visits.keys()
        ):  # nothing leads there, but its code is wrong
            self.entered[name] = self.anything()
            self.visit(name)

    def reader(self, function: Any, store: Store, state: State | None = None) -> Reader:
        """Goes through this function of the machine's."""
        run = {
            "options": self.options,
            "prepared": self.prepared,
            "input": frozenset({Data(RunInput, true=True)}),
            "state": ANY if state is None else exactly(state.name),
        }
        return Reader(self.machine.context, self.homes, run, store, place_of(function))

    def anything(self) -> Store:
        """A context of which nothing is known."""
        fields = self.machine.context.model_fields
        return Store(dict.fromkeys(fields, ANY), frozenset(fields))

    # -- the beginning --------------------

    def begin(self) -> None:
        """The first context: what `begin` gives, and the defaults."""
        m = self.machine
        reader = self.reader(m.begin, Store({}))
        given = reader.called(m.begin, frozenset({Data(RunInput, true=True)}), self.options)
        contexts = joined(*((elements(one) or [frozenset({one})])[0] for one in given))
        made = [one for one in contexts if isinstance(one, Made) and not one.get("**")]
        values = {
            name: self.first_value(name, made, whole=len(made) == len(contexts))
            for name in m.context.model_fields
        }
        written = values if m.migrations else self.first.writes
        store = Store(values, frozenset(written))
        self.enter(state_name(m.initial), self.anything() if m.migrations else store)

    def first_value(self, name: str, made: list[Made], *, whole: bool) -> Value:
        """What a field holds at first. `whole`: no other contexts are made than these."""
        info, start = self.machine.context.model_fields[name], place_of(self.machine.begin) or NOWHERE
        given = [one.get(name) for one in made]
        known = [lasting(one) for one in given if one is not None]
        if known or not whole or info.is_required():
            self.first.writes[name] = start
        if not whole:
            return joined(*known, ANY)
        if len(known) == len(given) > 0:
            return joined(*known)
        if info.is_required():
            lacks = [one.place for one in made if one.get(name) is None and one.place is not None]
            self.first.wrong[f"begins without {name}, which has no default"] = min(lacks, default=start)
            return ANY
        return joined(*known, lasting(exactly(info.get_default(call_default_factory=True))))

    # -- along the table --------------------

    def enter(self, name: str, store: Store, source: str | None = None) -> None:
        """A state is entered with this context: by its `entry`, and where its invariant can hold. `source`:
        the state that was left; None: neither is asked."""
        one = self.machine.by_name[name]
        if one.entry is not None and source is not None:
            store = self.patched(one.entry, store, CONTEXT, exactly(source))
        if one.holds is not None and source is not None:
            reads = self.can_hold(one.holds, store, source)
            self.holds[name] = self.holds.get(name, False) or reads is not None
            if reads is None:
                return
            for each in reads:
                kept = [
                    atom
                    for atom in store.values[each]
                    if self.holds_with(one.holds, store, each, atom, source)
                ]
                store = store.where(each, frozenset(kept) or store.values[each])
        old = self.entered.get(name)
        self.entered[name] = store if old is None else old.joined(store)

    def can_hold(self, holds: Any, store: Store, source: str) -> Iterable[str] | None:
        """The fields that the invariant reads; None: it cannot hold."""
        reader = self.reader(holds, store)
        verdict = reader.called(holds, CONTEXT, exactly(source))
        self.take(reader.seen)
        return reader.seen.reads if False in truths(verdict) or not verdict else None

    def holds_with(self, holds: Any, store: Store, name: str, atom: Any, source: str) -> bool:
        tried = store.where(name, frozenset({atom}))
        return False in truths(self.reader(holds, tried).called(holds, CONTEXT, exactly(source)))

    def visit(self, name: str) -> None:
        """Go through a state's code, and on along its row."""
        state, store = self.machine.by_name[name], self.entered[name]
        visit = self.visits[name] = Visit()
        reader = self.reader(state.visit, store, state)
        reader.seen = visit.seen
        self.outcomes(visit, reader, reader.called(state.visit, CONTEXT, RUN))
        known = store.joined(*visit.seen.stores)
        for kind in reader.raised[0]:
            if issubclass(kind, AgentError):
                self.fails(visit, state, kind, known)
        if visit.seen.strange is not None:
            strange = Visit()
            self.fails(strange, state, AgentError, known)
            visit.rescued = {move.event for move in strange.moves}
        for event, target in self.machine.rows[name].items():
            if stores := [move.store for move in visit.moves if move.event is event]:
                self.enter(target, stores[0].joined(*stores[1:]), name)

    def outcomes(self, visit: Visit, reader: Reader, returned: Value) -> None:
        """What a visit returns: patches and events."""
        store = reader.way.store
        for atom in returned:
            inner = [atom]
            if isinstance(atom, Data):  # a generator, perhaps
                for what in ("asks", "tools"):
                    reader.unclear(what)
            if isinstance(atom, Generated):
                inner = list(atom.returns)
                if unclear := atom.unclear or (reader.start if atom.yields else None):
                    note(visit.seen.unclear, "asks", unclear)
            for one in inner:
                reader.way.store = store
                self.outcome(visit, reader, one)

    def outcome(self, visit: Visit, reader: Reader, atom: Any) -> None:
        parts = elements(atom) or []
        if len(parts) != 2 and isinstance(atom, Is | Made | Seq) and not getattr(atom, "guess", False):
            reader.wrong(f"returns {_words(atom)}; expected a patch and an event")
            return
        if len(parts) != 2:
            visit.unclear = visit.unclear or reader.start
            reader.unclear("writes")
            return
        reader.write(parts[0])
        for event in parts[1]:
            kind = (
                event.kind if isinstance(event, Made) else type(event.it) if isinstance(event, Is) else None
            )
            if kind is not None and not issubclass(kind, Event):
                reader.wrong(f"returns {_words(event)} in place of an event")
                continue
            if kind is None:
                visit.unclear = visit.unclear or reader.start
                continue
            place = (event.place if isinstance(event, Made) else None) or reader.start
            visit.moves.append(Move(kind, not event.guess, place, reader.way.store))

    def fails(self, visit: Visit, state: State, kind: type, store: Store) -> None:
        """An error leaves a visit: what `on_error` makes of it."""
        function = self.machine.on_error
        if function is None:
            return
        reader, inner = self.reader(function, store, state), Visit()
        inner.seen = reader.seen
        self.outcomes(inner, reader, reader.called(function, CONTEXT, frozenset({Made(kind)}), RUN))
        self.take(reader.seen)
        visit.moves += inner.moves
        visit.unclear = visit.unclear or inner.unclear

    # -- beside the table --------------------

    def beside_the_table(self) -> None:
        """What broken rules, rollback and reopening lead to."""
        m, step = self.machine, "" if self.machine.step is None else state_name(self.machine.step)
        stores = list(self.entered.values())
        anywhere = stores[0].joined(*stores[1:])
        if m.fail is not None:
            ends = self.patched(m.on_violation, anywhere, CONTEXT, ANY) if m.on_violation else anywhere
            self.enter(state_name(m.fail), ends, state_name(m.initial))
        if m.on_close is not None:
            self.patched(m.on_close, anywhere, CONTEXT, ANY)
        if m.on_rollback is not None and step in self.entered:
            self.enter(step, self.patched(m.on_rollback, self.entered[step], CONTEXT, CONTEXT))
        ended = [self.entered[name] for name in m.final if name in self.entered]
        if m.on_reopen is not None and ended:
            self.reopen(m.on_reopen, ended[0].joined(*ended[1:]))

    def reopen(self, function: Callable[..., Any], store: Store) -> None:
        """Where a finished run goes on."""
        reader = self.reader(function, store)
        for atom in reader.called(function, CONTEXT):
            target, patch, *_ = [*(elements(atom) or []), ANY, ANY]
            reader.write(patch)
            for one in target:
                if (
                    isinstance(one, Is)
                    and isinstance(one.it, Enum)
                    and state_name(one.it) in self.machine.rows
                ):
                    self.enter(state_name(one.it), reader.way.store)
        self.take(reader.seen)

    def patched(self, function: Callable[..., Any], store: Store, *given: Value) -> Store:
        """The context after the patch of one of the machine's own functions."""
        reader = self.reader(function, store)
        reader.write(reader.called(function, *given))
        self.take(reader.seen)
        return reader.way.store

    def take(self, seen: Seen) -> None:
        """What one of the machine's own functions was seen to do; they may read all."""
        for into, of in ((self.own.writes, seen.writes), (self.own.wrong, seen.wrong)):
            for name, place in of.items():
                note(into, name, place)
        if "writes" in seen.unclear:
            note(self.own.unclear, "writes", seen.unclear["writes"])

    # -- the end --------------------

    def end(self) -> None:
        """How runs end that come to a final state."""
        for name in sorted(self.machine.final & self.entered.keys()):
            reader = self.reader(self.machine.result, self.entered[name], self.machine.by_name[name])
            for atom in reader.called(self.machine.result, CONTEXT, RUN):
                exits = isinstance(atom, Made) and issubclass(atom.kind, Exit)
                for reason in (atom.get("reason") if exits else None) or ANY:
                    place = (atom.place if isinstance(atom, Made) else None) or reader.start
                    note(self.reasons, reason, place)
            self.take(reader.seen)


def _words(atom: Any) -> str:
    """What it is, for people."""
    if isinstance(atom, Is):
        return f"the class {atom.it.__name__}" if isinstance(atom.it, type) else repr(atom.it)[:100]
    return f"a {atom.kind.__name__}" if isinstance(atom, Made) else "a tuple"


NOWHERE = Place("?", 0)
