"""A machine in the middle of a run: all that has to be known to go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from activities.contracts import Effect, JsonObject
from workflows.kernel.errors import name_of
from workflows.kernel.fields import Fields
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import Record
from workflows.kernel.machine import Exit, Machine

__all__ = ["Snapshot", "Step", "dump", "load", "position"]

C = TypeVar("C", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[C]):
    """State, context and counters; the ledger lies outside, because what is spent stays spent."""

    state: Enum
    context: C
    visit: int = 1
    """Visits of all states so far; never falls, also not by a rollback."""
    call: int = 0
    """Effects asked for in this visit."""
    step: int = 0
    """Entries of the step state so far."""
    transitions: int = 0
    unmatched: int = 0
    hold_backs: int = 0
    entered: float = 0
    """When the visit, or its newest effect, began; in seconds since 1970."""
    began: float = 0
    """When the run began."""
    seq: int = 0
    """Sequence number of the next record."""
    branch: int = 0
    last: Record | None = None
    """The record of the last transition."""
    reads: tuple[str, ...] = ()
    """Fields that this visit has read since the last record; the next record names them."""
    within: str = ""
    """The effect of the outer machine that this one is run for; empty: there is none."""


@dataclass(frozen=True, slots=True)
class Step(Generic[C]):
    """One advance: where the machine is now, what it wants done, and what to log."""

    snapshot: Snapshot[C]
    ledger: Ledger
    effect: Effect | None = None
    """None: the run is over, see `exit`."""
    exit: Exit | None = None
    records: tuple[Record, ...] = ()
    """What this advance added to the log."""


_COUNTERS = (
    "visit", "call", "step", "transitions", "unmatched", "hold_backs", "entered", "began", "seq", "branch",
)  # fmt: skip


def dump(snapshot: Snapshot[Any]) -> JsonObject:
    """A snapshot as JSON values."""
    return {**position(snapshot), "context": Fields.of(type(snapshot.context)).dump(snapshot.context)}


def position(snapshot: Snapshot[Any]) -> JsonObject:
    """A snapshot as JSON values without its context, which the log can tell as well."""
    return {
        "state": name_of(snapshot.state),
        "last": snapshot.last.model_dump(mode="json") if snapshot.last else None,
        "reads": list(snapshot.reads),
        "within": snapshot.within,
        **{name: getattr(snapshot, name) for name in _COUNTERS},
    }


def load(machine: Machine[C], values: Mapping[str, Any]) -> Snapshot[C]:
    """The snapshot that `dump` wrote; raises ValueError when it is not one of this machine's."""
    lacking = [name for name in ("state", "context", *_COUNTERS) if name not in values]
    if lacking:
        raise ValueError(f"the snapshot of {machine.name} lacks {', '.join(lacking)}")
    context: Any = Fields.of(machine.context).load(values["context"])
    last = values.get("last")
    return Snapshot(
        state=machine.state_named(values["state"]),
        context=context,
        last=Record.model_validate(last) if last else None,
        reads=tuple(values.get("reads", ())),
        within=str(values.get("within", "")),
        **{name: values[name] for name in _COUNTERS},
    )
