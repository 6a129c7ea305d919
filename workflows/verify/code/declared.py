"""Level 1 of verification: what a machine declares is what its code can do, and its code does no more.

What the code shows for certain is `wrong`; what data decides is `unknown`, never proven; what is declared and
never used is a `note`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

from workflows.kernel.machine import COMMON_EXITS, Event, Machine, state_name
from workflows.verify.code.sources import place_of, row_places
from workflows.verify.code.study import Move, Study, Visit
from workflows.verify.code.values import Is, Place

__all__ = ["Certainty", "Finding", "Kind", "findings"]

Certainty = Literal["wrong", "unknown", "note"]
Kind = Literal["event", "row", "ask", "tool", "read", "write", "holds", "exit", "begin", "code"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in which declaration and code differ, or may differ."""

    kind: Kind
    """What it is about; `code`: what fails whenever it runs, such as a name that nothing has."""
    state: str
    """Empty: the machine as a whole."""
    text: str
    """For people."""
    file: str
    """From the current folder on, if it lies there."""
    line: int
    certainty: Certainty
    """`wrong`: they differ. `unknown`: data decides. `note`: declared, never used."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


def findings(machine: Machine) -> tuple[Finding, ...]:
    """What differs between a machine's declaration and its code, by file and line."""
    found = dict.fromkeys(_Comparison(machine).findings())
    return tuple(sorted(found, key=lambda one: (one.file, one.line, one.kind, one.text)))


class _Comparison:
    """A machine's declaration beside what its code does."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.study = machine, Study(machine)
        self.rows = _table_places(machine)

    def findings(self) -> Iterator[Finding]:
        for name, visit in self.study.visits.items():
            yield from self.events(name, visit)
            yield from self.unused_rows(name, visit)
            yield from self.asks(name, visit)
            yield from self.tools(name, visit)
            yield from self.reads(name, visit)
            yield from self.writes(name, visit)
            for text, place in visit.seen.wrong.items():
                yield self.found("code", name, text, place)
        for name, can in self.study.holds.items():
            if not can:
                start = place_of(self.machine.by_name[name].holds)
                yield self.found("holds", name, "has an invariant that can never hold", start)
        for text, place in self.study.first.wrong.items():
            yield self.found("begin", "", text, place)
        yield from self.own_writes()
        yield from self.exits()

    def found(
        self, kind: Kind, state: str, text: str, place: Place | None, certainty: Certainty = "wrong"
    ) -> Finding:
        who = f"state {state}" if state else f"machine {self.machine.name}"
        file, line = (_shown(place.file), place.line) if place else ("?", 0)
        return Finding(kind, state, f"{who} {text}", file, line, certainty)

    # -- the table --------------------

    def events(self, name: str, visit: Visit) -> Iterator[Finding]:
        """Events without a row, and those that cannot be seen."""
        row, moves = self.machine.rows[name], _by_event(visit.moves)
        for event, move in moves.items():
            if event not in row and move.sure:
                text = f"returns {event.__name__}, and the table has no row for it"
                yield self.found("event", name, text, move.place)
        picked = next((move.place for move in moves.values() if not move.sure), None)
        if place := visit.unclear or picked:
            yield self.found("event", name, "returns an event that data decides", place, "unknown")

    def unused_rows(self, name: str, visit: Visit) -> Iterator[Finding]:
        """Rows whose event nothing returns."""
        moves = _by_event(visit.moves)
        for event in self.machine.rows[name].keys() - moves.keys():
            text = f"has a row for {event.__name__}, and no way through its code returns it"
            certainty: Certainty = "unknown" if visit.unclear or event in visit.rescued else "wrong"
            yield self.found("row", name, text, self.row_place(name, event), certainty)

    def row_place(self, name: str, event: type[Event]) -> Place | None:
        """Where the row is written down; else where the state's function is."""
        start = place_of(self.machine.by_name[name].visit)
        found = self.rows.get((name, event), [])
        beside = [place for place in found if start and place.file == start.file]
        return next(iter(beside or found), start)

    # -- a state's rights --------------------

    def asks(self, name: str, visit: Visit) -> Iterator[Finding]:
        """Effects beyond `asks`, and those never asked for."""
        state, seen = self.machine.by_name[name], visit.seen
        for kind, place in seen.asks.items():
            if not issubclass(kind, tuple(state.asks)):
                yield self.found("ask", name, f"asks for {kind.__name__}, which is not in its `asks`", place)
        unused = [one for one in state.asks if not any(issubclass(kind, one) for kind in seen.asks)]
        yield from self.unused("ask", name, visit, "asks", (one.__name__ for one in unused))

    def tools(self, name: str, visit: Visit) -> Iterator[Finding]:
        """Tools beyond `tools`, and those never used."""
        declared, seen = self.machine.by_name[name].tools, visit.seen.tools
        if declared is None:
            return
        for tool in seen.keys() - declared:
            yield self.found("tool", name, f"uses the tool {tool}, which is not in its `tools`", seen[tool])
        yield from self.unused("tool", name, visit, "tools", declared - seen.keys())

    def reads(self, name: str, visit: Visit) -> Iterator[Finding]:
        """Fields beyond `reads`, those that nothing writes, and those never read."""
        state, seen = self.machine.by_name[name], visit.seen.reads
        for field in seen.keys() - state.reads if state.enforce else ():
            text = f"reads {field}, which is not in its `reads`"
            yield self.found("read", name, text, seen[field].place)
        writable = self.writable()
        for field, read in seen.items():
            if not read.written and field not in writable:
                text = f"reads {field}, which nothing ever writes: it is always its default"
                yield self.found("read", name, text, read.place)
        yield from self.unused("read", name, visit, "reads", state.reads - seen.keys())

    def writable(self) -> set[str]:
        """The fields that something writes or may write."""
        study = self.study
        given = [
            study.first.writes,
            study.own.writes,
            *(visit.seen.writes for visit in study.visits.values()),
        ]
        rights = [one.writes for one in self.machine.by_name.values()]
        return set[str]().union(*given, *rights, self.machine.writes or ())

    def writes(self, name: str, visit: Visit) -> Iterator[Finding]:
        """Fields beyond `writes`, and those never written."""
        state, seen, fields = self.machine.by_name[name], visit.seen.writes, self.machine.context.model_fields
        for field, place in seen.items():
            if field not in fields:
                yield self.found("write", name, f"writes {field}, which is no field of the context", place)
            elif state.enforce and field not in state.writes:
                yield self.found("write", name, f"writes {field}, which is not in its `writes`", place)
        yield from self.unused("write", name, visit, "writes", state.writes - seen.keys())

    def unused(
        self, kind: Kind, name: str, visit: Visit, what: str, rights: Iterable[str]
    ) -> Iterator[Finding]:
        """Rights that are never used; where that cannot be seen, that it cannot."""
        if what in visit.seen.unclear:
            yield self.found(kind, name, UNCLEAR[what], visit.seen.unclear[what], "unknown")
            return
        for right in rights:
            text = f"declares {right} in its `{what}` and never uses it"
            yield self.found(kind, name, text, place_of(self.machine.by_name[name].visit), "note")

    # -- the machine as a whole --------------------

    def own_writes(self) -> Iterator[Finding]:
        """What the machine's own functions write beyond its `writes`."""
        declared, own = self.machine.writes, self.study.own
        for text, place in own.wrong.items():
            yield self.found("code", "", text, place)
        for field, place in own.writes.items():
            if field not in self.machine.context.model_fields:
                yield self.found(
                    "write", "", f"itself writes {field}, which is no field of the context", place
                )
            elif declared is not None and field not in declared:
                yield self.found("write", "", f"itself writes {field}, which is not in its `writes`", place)
        if declared is None:
            return
        if "writes" in own.unclear:
            yield self.found("write", "", f"itself {UNCLEAR['writes']}", own.unclear["writes"], "unknown")
            return
        for field in declared - own.writes.keys():
            text = f"declares {field} in its own `writes` and never uses it"
            yield self.found("write", "", text, place_of(self.machine.result), "note")

    def exits(self) -> Iterator[Finding]:
        """Exit reasons beyond `exits`, if there are some, and those that never come."""
        declared, reasons = self.machine.exits, self.study.reasons
        if not declared:
            return
        words = {one.it: place for one, place in reasons.items() if isinstance(one, Is) and not one.guess}
        for reason in words.keys() - declared.keys() - COMMON_EXITS.keys():
            text = f"ends with the exit reason {reason!r}, which is not in its `exits`"
            yield self.found("exit", "", text, words[reason])
        guesses = {one.it: place for one, place in reasons.items() if isinstance(one, Is) and one.guess}
        for reason in guesses.keys() - words.keys() - declared.keys() - COMMON_EXITS.keys():
            text = f"may end with the exit reason {reason!r}, which is not in its `exits`"
            yield self.found("exit", "", text, guesses[reason], "unknown")
        if data := [place for one, place in reasons.items() if not isinstance(one, Is)]:
            yield self.found("exit", "", "ends with an exit reason that data decides", min(data), "unknown")
            return
        for reason in declared.keys() - words.keys() - guesses.keys():
            text = f"declares the exit reason {reason!r} and never ends with it"
            yield self.found("exit", "", text, place_of(self.machine.result), "note")


UNCLEAR = {
    "reads": "hands the context on, and which fields are read there cannot be seen",
    "writes": "writes fields that data decides",
    "asks": "asks for an effect that data decides",
    "tools": "uses tools that data decides",
}


def _by_event(moves: Iterable[Move]) -> dict[type[Event], Move]:
    """Each event with the surest of its moves."""
    found: dict[type[Event], Move] = {}
    for move in sorted(moves, key=lambda one: (not one.sure, one.place)):
        found.setdefault(move.event, move)
    return found


def _table_places(machine: Machine) -> dict[tuple[str, type[Event]], list[Place]]:
    """(state, event) -> where the row is written down, in the files of the machine's functions."""
    found: dict[tuple[str, type[Event]], list[Place]] = {}
    functions = [*(one.visit for one in machine.by_name.values() if one.visit), machine.result]
    names = {place.file: inspect.unwrap(one) for one in functions if (place := place_of(one))}
    for file, function in names.items():
        for state, event, place in row_places(file, getattr(function, "__globals__", {})):
            if isinstance(state, Enum) and isinstance(event, type):
                found.setdefault((state_name(state), event), []).append(place)
    return found


def _shown(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
