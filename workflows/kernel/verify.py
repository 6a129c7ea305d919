"""What is checked when a machine is defined, each error naming the culprit (spec 6, 7.1)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, get_args

from activities.contracts import ErrorClass
from workflows.kernel.errors import DefinitionError, name_of
from workflows.kernel.fields import Fields
from workflows.kernel.log import FORKED, HELD_BACK, ROLLED_BACK, STARTED

if TYPE_CHECKING:
    from workflows.kernel.machine import Machine, Row

__all__ = ["definition_hash", "verify"]

RESERVED = (FORKED, HELD_BACK, ROLLED_BACK, STARTED)
"""Names in the log by which a run is restored; no event of a machine may have them."""


def verify(machine: Machine[Any]) -> None:
    """Raises DefinitionError for the first fault found."""
    _names(machine)
    _known(machine)
    _slots(machine)
    _rows(machine)
    _ways(machine)
    _context(machine)
    _fields(machine)
    _stages(machine)
    if machine.driven_by == "effects":
        _bounded(machine)


def _fail(machine: Machine[Any], problem: str) -> DefinitionError:
    return DefinitionError(f"machine {machine.name}: {problem}")


def _list(states: Iterable[Enum]) -> str:
    return ", ".join(sorted(name_of(s) for s in states))


def _names(machine: Machine[Any]) -> None:
    """The log knows states by name, so every name must mean one state."""
    seen: dict[str, Enum] = {}
    for state in machine.states:
        if not isinstance(state, Enum):
            raise _fail(machine, f"the state {state!r} is not a member of an Enum")
        first = seen.setdefault(name_of(state), state)
        if first is not state:
            raise _fail(machine, f"{first!r} and {state!r} have the same name {name_of(state)!r}")


def _known(machine: Machine[Any]) -> None:
    declared = set(machine.states)
    if not machine.final:
        raise _fail(machine, "has no final state; name at least one in `final`")
    named = {"initial": [machine.initial], "final": machine.final}
    for slot in ("step_state", "fail_state"):
        named[slot] = [] if getattr(machine, slot) is None else [getattr(machine, slot)]
    for slot, states in named.items():
        for state in states:
            if state not in declared:
                raise _fail(
                    machine,
                    f"`{slot}` names the unknown state {name_of(state)}; declared are {_list(declared)}",
                )
    for row in machine.rows:
        if unknown := {row.source, row.target} - declared:
            problem = f"the row {_row(row)} names the unknown state {_list(unknown)}"
            raise _fail(machine, f"{problem}; declared are {_list(declared)}")


def _slots(machine: Machine[Any]) -> None:
    known = get_args(ErrorClass)
    for kind in (*machine.on_error, *(k for stage in machine.states.values() for k in stage.on_error)):
        if kind not in known:
            raise _fail(machine, f"`on_error` names the unknown class {kind!r}; there are {', '.join(known)}")
    if machine.on_unmatched == "fail" and machine.fail_state is None:
        raise _fail(machine, "`on_unmatched` is `fail`, but there is no `fail_state`")
    if machine.fail_state is not None and machine.fail_state not in machine.final:
        raise _fail(machine, f"the fail state {name_of(machine.fail_state)} is not final")


def _row(row: Row) -> str:
    event = getattr(row.event, "__name__", repr(row.event))
    return f"({name_of(row.source)}, {event}, {name_of(row.target)})"


def _rows(machine: Machine[Any]) -> None:
    for number, row in enumerate(machine.rows):
        if not isinstance(row.event, type):
            raise _fail(machine, f"row {number} has {row.event!r} where an event class is expected")
        if row.event.__name__ in RESERVED:
            raise _fail(machine, f"{_row(row)}: {row.event.__name__} is the kernel's own; name it otherwise")
        if row.source in machine.final:
            raise _fail(machine, f"the final state {name_of(row.source)} has the row {_row(row)}")
        for earlier in machine.rows[:number]:
            hides = earlier.source == row.source and issubclass(row.event, earlier.event)
            if not hides or earlier.guard is not None:
                continue
            if earlier.event is row.event:
                raise _fail(
                    machine,
                    f"two rows without a guard before the last for state {name_of(row.source)} and "
                    f"event {row.event.__name__}: {_row(earlier)} and {_row(row)}",
                )
            raise _fail(machine, f"{_row(row)} is never reached: {_row(earlier)} takes its events")


def _next(machine: Machine[Any]) -> dict[Enum, list[Enum]]:
    """State -> where its rows lead. A broken rule may lead from any state to the fail state."""
    ways: dict[Enum, list[Enum]] = {state: [] for state in machine.states}
    for row in machine.rows:
        ways[row.source].append(row.target)
    return ways


def _closure(start: Iterable[Enum], ways: dict[Enum, list[Enum]]) -> set[Enum]:
    seen, todo = set(start), list(start)
    while todo:
        for target in ways[todo.pop()]:
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return seen


def _ways(machine: Machine[Any]) -> None:
    ways = _next(machine)
    for state, targets in ways.items():
        if not targets and state not in machine.final:
            raise _fail(
                machine,
                f"state {name_of(state)} is a dead end: it is not final and no row leaves it",
            )
    roots = [machine.initial, *([] if machine.fail_state is None else [machine.fail_state])]
    unreachable = set(machine.states) - _closure(roots, ways)
    if unreachable:
        raise _fail(machine, f"unreachable from {name_of(machine.initial)}: {_list(unreachable)}")
    back: dict[Enum, list[Enum]] = {state: [] for state in machine.states}
    for state, targets in ways.items():
        for target in targets:
            back[target].append(state)
    stuck = set(machine.states) - _closure(machine.final, back)
    if stuck:
        raise _fail(machine, f"no path to a final state from: {_list(stuck)}")


def _context(machine: Machine[Any]) -> None:
    if not machine.context.model_config.get("frozen"):
        raise _fail(machine, f"{machine.context.__name__} can be changed in place; declare it `frozen=True`")
    for name, why in Fields.of(machine.context).unfit().items():
        raise _fail(machine, f"{machine.context.__name__}.{name}: {why}")


def _fields(machine: Machine[Any]) -> None:
    known = Fields.of(machine.context)
    where = [(name_of(s), slot, getattr(d, slot)) for s, d in machine.states.items()
             for slot in ("reads", "writes")]  # fmt: skip
    for row in machine.rows:
        where.append((name_of(row.source), f"reset of {_row(row)}", row.reset))
        where.append((name_of(row.source), f"writes of {_row(row)}", row.writes))
    for state, slot, names in where:
        for name in sorted(names):
            if name not in known.names:
                raise _fail(
                    machine,
                    f"state {state} declares the unknown field {name!r} in {slot}; "
                    f"{machine.context.__name__} has {', '.join(known.names)}",
                )
    for row in machine.rows:
        for name in row.reset:
            if machine.context.model_fields[name].is_required():
                raise _fail(machine, f"{_row(row)} resets {name!r}, which has no default")


def _stages(machine: Machine[Any]) -> None:
    if machine.driven_by == "events":
        return
    for state, stage in machine.states.items():
        name = name_of(state)
        if stage.enter is None and state not in machine.final:
            raise _fail(machine, f"state {name} has no `enter`: nobody says what happens there")
        if stage.grants and stage.resume is None:
            raise _fail(machine, f"state {name} may ask for effects but has no `resume`")
        if stage.resume is not None and not stage.grants:
            raise _fail(machine, f"state {name} has a `resume` but grants no kind of effect")
    if all(not stage.enforce for stage in machine.states.values()):
        raise _fail(machine, "enforcement may be switched off for one named state, not for all")


def _bounded(machine: Machine[Any]) -> None:
    """Every cycle passes a state that counts: take those out, and what is left must have no cycle."""
    ways = _next(machine)
    free = [s for s, stage in machine.states.items() if stage.spends is None]
    for start in free:
        path = _cycle(start, ways, set(free))
        if path:
            raise _fail(
                machine,
                "a cycle without a counting state (`spends=...`): " + " -> ".join(name_of(s) for s in path),
            )


def _cycle(start: Enum, ways: dict[Enum, list[Enum]], free: set[Enum]) -> list[Enum] | None:
    """A way from a state back to itself through states that count nothing."""
    todo: list[list[Enum]] = [[start]]
    seen: set[Enum] = set()
    while todo:
        path = todo.pop()
        for target in ways[path[-1]]:
            if target == start:
                return [*path, target]
            if target in free and target not in seen:
                seen.add(target)
                todo.append([*path, target])
    return None


def definition_hash(machine: Machine[Any]) -> str:
    """A fingerprint of what was declared (not of the code behind it): 16 hexadecimal characters."""
    declared = {
        "name": machine.name,
        "version": machine.version,
        "initial": name_of(machine.initial),
        "final": sorted(name_of(s) for s in machine.final),
        "rows": [[_row(row), row.guard is not None, list(row.reset)] for row in machine.rows],
        "states": {
            name_of(s): [sorted(d.reads), sorted(d.writes), sorted(d.grants), d.spends, d.enforce]
            for s, d in machine.states.items()
        },
        "fields": {n: Fields.of(machine.context).reducer(n) for n in Fields.of(machine.context).names},
    }
    return hashlib.sha256(json.dumps(declared, sort_keys=True).encode()).hexdigest()[:16]
