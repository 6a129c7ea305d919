"""Machines with one mistake each, and who finds it: the check when a machine is made, the built-in
properties, or what its author says of every run. `python -m tests.verify.mutants react` prints the table."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from activities.extensions import load_modules
from workflows import registry
from workflows.kernel.errors import DefinitionError
from workflows.kernel.machine import Extensions, Machine, RunInput, state_name
from workflows.kernel.properties import Scenario
from workflows.kernel.snapshot import Program
from workflows.verify.runs.domain import Domain
from workflows.verify.runs.explore import Explored, explore

LARGE = frozenset({"2 rounds"})
"""Scenarios that take too long for each mistake."""
RIGHTS = ("reads", "writes", "asks", "tools")
(DESK,) = load_modules(["./examples/machines/refund_desk.py"])


@dataclass(frozen=True)
class Subject:
    """A machine, and the scenarios in which it is explored, the smallest first."""

    name: str
    machine: Machine
    scenarios: tuple[Scenario, ...]


def subjects() -> dict[str, Subject]:
    """The shipped machines and the refund desk; the planner is two machines."""
    found: dict[str, Subject] = {}
    for machine in (*registry.shipped(), DESK.MACHINE):
        for one in machine.scenarios:
            if one.name in LARGE:
                continue
            made = registry.made_of(machine, one.options)
            name = f"{machine.name}, simple" if one.options.get("mode") == "simple" else machine.name
            known = found.get(name, Subject(name, made, ()))
            found[name] = replace(known, scenarios=(*known.scenarios, one))
    return found


@dataclass(frozen=True)
class Mutant:
    """One mistake; `make` puts it into a machine, and raises DefinitionError where that is refused."""

    kind: str
    text: str
    what: tuple[str, str]
    """The state, and the event or the right."""
    make: Callable[[Machine], Machine]


def mutants(machine: Machine) -> Iterator[Mutant]:
    """Each row led elsewhere, each row, right and invariant left out."""
    yield from _rows(machine)
    for one in machine.states:
        name = state_name(one.name)
        for right in RIGHTS:
            for each in sorted(getattr(one, right) or (), key=str):
                shown = getattr(each, "__name__", each)
                yield Mutant(
                    right, f"{name}.{right} without {shown}", (name, shown), _without(name, right, each)
                )
        if one.counts:
            yield Mutant("counter", f"{name} without counts", (name, "counts"), _state(name, counts=""))


def _rows(machine: Machine) -> Iterator[Mutant]:
    names = sorted(machine.by_name)
    for source, row in machine.rows.items():
        for event, target in row.items():
            what = (source, event.__name__)
            arrow = f"{source} --{event.__name__}-->"
            for other in names:
                if other != target:
                    yield Mutant(
                        "arrow", f"{arrow} {other}, not {target}", what, _led(source, event.__name__, other)
                    )
            yield Mutant("arrow left out", f"{arrow} left out", what, _led(source, event.__name__, None))


def _led(source: str, event: str, target: str | None) -> Callable[[Machine], Machine]:
    def make(machine: Machine) -> Machine:
        targets = {name: one.name for name, one in machine.by_name.items()}
        table: dict[Any, dict[Any, Any]] = {key: dict(row) for key, row in machine.table.items()}
        for key, row in table.items():
            for kind in [kind for kind in row if (state_name(key), kind.__name__) == (source, event)]:
                row.pop(kind)
                if target is not None:
                    row[kind] = targets[target]
        return replace(machine, table=table)

    return make


def _without(name: str, right: str, each: Any) -> Callable[[Machine], Machine]:
    def make(machine: Machine) -> Machine:
        return _changed(machine, name, {right: getattr(machine.by_name[name], right) - {each}})

    return make


def _state(name: str, **changes: Any) -> Callable[[Machine], Machine]:
    return lambda machine: _changed(machine, name, changes)


def _changed(machine: Machine, name: str, changes: dict[str, Any]) -> Machine:
    states = [replace(one, **changes) if state_name(one.name) == name else one for one in machine.states]
    return replace(machine, states=states)


def _bare(make: Callable[[Machine], Machine]) -> Callable[[Machine], Machine]:
    """The same mistake in a machine whose states hold nothing."""

    def bare(machine: Machine) -> Machine:
        made = make(machine)
        return replace(made, states=[replace(one, holds=None) for one in made.states])

    return bare


# -- who finds it --------------------


def explored(
    subject: Subject,
    make: Callable[[Machine], Machine],
    seconds: float,
    until: Callable[[Explored], bool] = lambda found: False,
) -> Iterator[Explored]:
    """What exploring each scenario of a mutant comes to. Raises DefinitionError."""
    for scenario in subject.scenarios:
        machine = make(registry.made_of(_original(subject), scenario.options))
        given = RunInput(goal=scenario.goal, tools=tuple(scenario.tools), depth=scenario.depth)
        program = Program(
            machine, given, options=scenario.options, extensions=scenario.extensions or Extensions()
        )
        domain = Domain(scenario, {spec.name: spec for spec in scenario.tools})
        yield explore(
            program, domain, machine.properties, seconds=seconds, clock=time.process_time, until=until
        )


def _original(subject: Subject) -> Machine:
    name = subject.machine.name
    return DESK.MACHINE if name == DESK.MACHINE.name else registry.machine(name, None)


def finder(subject: Subject, make: Callable[[Machine], Machine], seconds: float) -> str:
    """Who finds the mistake: `refused`, `built-in`, the name of a property; "" or `cut`: nobody."""
    author, cut = "", False
    try:
        for found in explored(subject, make, seconds, _breaks_a_rule):
            if _breaks_a_rule(found):
                return "built-in"
            author = author or next(iter(found.violations), "")
            cut |= not found.complete
    except DefinitionError:
        return "refused"
    return author or ("cut" if cut else "")


def _breaks_a_rule(found: Explored) -> bool:
    return any(one.built_in for one in found.violations.values())


@dataclass
class Tally:
    """What became of a machine's mutants."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(kind, who found it) -> how many."""
    left: list[tuple[Mutant, str]] = field(default_factory=list)
    """Mutants that nobody found, and whether their exploration was cut."""
    killers: Counter[str] = field(default_factory=Counter)

    def line(self, name: str) -> str:
        """One line of the table."""
        total: Counter[str] = Counter()
        for (_, who), number in self.counts.items():
            total[who] += number
        every = total.total()
        seen = total["refused"] + total["built-in"]
        by_all = seen + total["author"]
        return (
            f"{name:16} {every:4} mutants: {total['refused']} refused, {total['built-in']} built in "
            f"({seen / every:.0%}), {total['author']} author ({by_all / every:.0%}), "
            f"{total['untaken']} untaken, {total['unused']} unused, {total['left']} left"
        )


def tally(subject: Subject, seconds: float, kinds: frozenset[str] = frozenset()) -> Tally:
    """Try every mutant of these kinds, else of all."""
    came = Tally()
    taken = {
        row[:2] for found in explored(subject, lambda machine: machine, 60 * seconds) for row in found.arrows
    }
    for one in mutants(subject.machine):
        if kinds and one.kind not in kinds:
            continue
        who = finder(subject, one.make, seconds)
        kind = who if who in ("refused", "built-in") else "author" if who not in ("", "cut") else "left"
        if kind == "author":
            came.killers[who] += 1
        if kind == "left" and one.kind in RIGHTS:
            kind = "unused"
        elif kind == "left" and one.what not in taken and one.kind != "counter":
            kind = "untaken"
        if kind in ("left", "untaken", "unused"):
            came.left.append((one, f"{kind} {who}".strip()))
        came.counts[one.kind, kind] += 1
    return came


def pairs(subject: Subject, seconds: float) -> Counter[str]:
    """Of the arrow mutants that built-in properties find: who finds them once no state holds anything."""
    found: Counter[str] = Counter()
    for one in mutants(subject.machine):
        if one.kind != "arrow" or finder(subject, one.make, seconds) != "built-in":
            continue
        who = finder(subject, _bare(one.make), seconds)
        found["nobody" if who in ("", "cut") else who if who == "built-in" else "author"] += 1
    return found


def main() -> None:
    """Print the table of the machines that are named, else of all."""
    every = subjects()
    for name in sys.argv[1:] or every:
        began = time.process_time()
        came = tally(every[name], 4.0)
        sys.stdout.write(f"{came.line(name)}; {time.process_time() - began:.0f} s\n")
        for kind in sorted({kind for kind, _ in came.counts}):
            of = {who: n for (k, who), n in came.counts.items() if k == kind}
            sys.stdout.write(f"    {kind}: {of}\n")
        for one, why in came.left:
            sys.stdout.write(f"    left: {one.kind}: {one.text}: {why}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
