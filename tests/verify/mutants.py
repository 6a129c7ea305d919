"""Machines with one mistake each, and who finds it: the check when a machine is made, what is read off the
source, the built-in properties, or what its author says of every run.

`python -m tests.verify.mutants FILE [MACHINE ...]` tries them all and prints the table. FILE gets a line for
each mistake at once; those that it has are not tried again.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from activities.extensions import load_modules
from workflows import registry
from workflows.kernel.errors import DefinitionError
from workflows.kernel.machine import Extensions, Machine, RunInput, state_name
from workflows.kernel.properties import Scenario
from workflows.kernel.snapshot import Program
from workflows.verify.code.declared import findings
from workflows.verify.runs.domain import Domain
from workflows.verify.runs.explore import Explored, explore

LARGE = frozenset({"2 rounds"})
"""Scenarios that take too long for each mistake."""
RIGHTS = ("reads", "writes", "asks", "tools")
SECONDS = 15.0
"""Of the processor, for one mistake in one scenario."""
(DESK,) = load_modules(["./examples/machines/refund_desk.py"])


@dataclass(frozen=True)
class Subject:
    """A machine, and the scenarios in which it is explored."""

    name: str
    machine: Machine
    scenarios: Sequence[Scenario]


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
    """Each row led elsewhere; each row, right, counter and invariant left out."""
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
        if one.holds is not None:
            yield Mutant("invariant", f"{name} holds nothing", (name, "holds"), _state(name, holds=None))


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


# -- who finds it --------------------


@dataclass(frozen=True)
class Found:
    """What became of one mistake."""

    machine: str
    kind: str
    text: str
    who: str
    """`refused`, `source`, `built-in`, `author`, or `nobody`."""
    how: str = ""
    """The rule or the property that it breaks; of `nobody`: `untaken`, `unused` or `kept`, where no run of
    the scenarios can differ, `cut`, or empty."""


def found(
    subject: Subject, seconds: float = SECONDS, known: frozenset[tuple[str, str]] = frozenset()
) -> Iterator[Found]:
    """What becomes of each mistake, but for those known by kind and text; where an invariant finds one, of
    the same mistake without the invariant, too."""
    right = list(explored(subject, lambda machine: machine, 4 * seconds))
    taken = {(state, event) for one in right for state, event, _ in one.arrows}
    sizes = {one.name: found.answers for one, found in zip(subject.scenarios, right, strict=True)}
    subject = replace(subject, scenarios=sorted(subject.scenarios, key=lambda one: sizes[one.name]))
    unused = {(one.state, one.text) for one in findings(subject.machine) if one.certainty == "note"}
    for one in mutants(subject.machine):
        if (one.kind, one.text) in known:
            continue
        who, how = finder(subject, one.make, seconds, _why_alike(one, taken, unused))
        if broken := re.search(r"the invariant of (\S+) does not hold", how):
            state = broken.group(1)
            pair = f"{one.text}, and {state} holds nothing"
            yield Found(subject.name, "pair", pair, *finder(subject, _both(one.make, state), seconds))
        yield Found(subject.name, one.kind, one.text, who, how)


def finder(
    subject: Subject, make: Callable[[Machine], Machine], seconds: float, alike: str = ""
) -> tuple[str, str]:
    """Who finds the mistake, and by what; see `Found`. `alike`: why no run of the scenarios can differ."""
    author, is_cut = "", False
    try:
        wrong = [one.text for one in findings(make(subject.machine)) if one.certainty == "wrong"]
        if wrong:
            return "source", wrong[0]
        if alike:
            return "nobody", alike
        for one in explored(subject, make, seconds, lambda came: bool(_rule_broken(came))):
            if rule := _rule_broken(one):
                return "built-in", rule
            author = author or next((each.name for each in one.violations.values()), "")
            is_cut |= not one.complete
    except DefinitionError as refused:
        return "refused", str(refused)
    return ("author", author) if author else ("nobody", "cut" if is_cut else "")


def explored(
    subject: Subject,
    make: Callable[[Machine], Machine],
    seconds: float,
    until: Callable[[Explored], bool] = lambda came: False,
) -> Iterator[Explored]:
    """What exploring each scenario of a mutant comes to. Raises DefinitionError."""
    for scenario in subject.scenarios:
        machine = make(registry.made_of(original(subject), scenario.options))
        given = RunInput(goal=scenario.goal, tools=tuple(scenario.tools), depth=scenario.depth)
        program = Program(
            machine, given, options=scenario.options, extensions=scenario.extensions or Extensions()
        )
        domain = Domain(scenario, {spec.name: spec for spec in scenario.tools})
        yield explore(
            program, domain, machine.properties, seconds=seconds, clock=time.process_time, until=until
        )


def original(subject: Subject) -> Machine:
    """As it is registered."""
    name = subject.machine.name
    return DESK.MACHINE if name == DESK.MACHINE.name else registry.machine(name, None)


def _rule_broken(came: Explored) -> str:
    return next((f"{one.name}: {one.detail}" for one in came.violations.values() if one.built_in), "")


def _why_alike(one: Mutant, taken: set[tuple[str, str]], unused: set[tuple[str, str]]) -> str:
    """Why the mutant's runs are those of the machine itself, which nothing is wrong with; empty: they may not
    be. A right that the code never uses, a row that no run takes, an invariant that every run keeps."""
    state, what = one.what
    if one.kind in RIGHTS:
        is_noted = any(at == state and f"declares {what} in its `{one.kind}`" in text for at, text in unused)
        return "unused" if is_noted else ""
    if one.kind == "invariant":
        return "kept"
    return "untaken" if one.kind.startswith("arrow") and one.what not in taken else ""


def _both(make: Callable[[Machine], Machine], state: str) -> Callable[[Machine], Machine]:
    return lambda machine: _changed(make(machine), state, {"holds": None})


# -- the table --------------------


def table(found: Iterable[Found]) -> str:
    """How many mistakes of each kind were found by whom."""
    lines, rows = [], list(found)
    for kind in ("", *dict.fromkeys(one.kind for one in rows)):
        some = [one for one in rows if (one.kind == kind if kind else one.kind != "pair")]
        times = [sum(one.who == who for one in some) for who in FINDERS]
        built_in, every = sum(times[:3]), sum(times[:4])
        shares = f"{built_in / len(some):.1%} built in, {every / len(some):.1%} with the author's"
        lines.append(f"{kind or 'all but pairs':16} {len(some):5} {times} {shares}")
    return "\n".join(lines)


FINDERS = ("refused", "source", "built-in", "author", "nobody")


def main() -> None:
    """Try the mistakes of the machines that are named, else of all, and print the tables."""
    file, every = Path(sys.argv[1]), subjects()
    before = [Found(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
    for name in sys.argv[2:] or every:
        rows = [one for one in before if one.machine == name]
        for row in found(every[name], known=frozenset((one.kind, one.text) for one in rows)):
            rows.append(row)
            with file.open("a") as out:
                out.write(json.dumps(asdict(row)) + "\n")
        sys.stdout.write(f"{name}\n{table(rows)}\n")
        left = (one for one in rows if one.who == "nobody")
        sys.stdout.writelines(f"    {one.kind}: {one.text}: {one.how}\n" for one in left)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
