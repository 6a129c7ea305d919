"""The transition log: one record per transition and per patch inside a visit.

From the records alone the state can be rebuilt (`rebuild`), whatever the machine; spec 6, 7.3. The log only
grows: a rollback or a fork is a record too, and says which of those before it still hold (`lineage`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from activities.contracts import Frozen, JsonObject

__all__ = ["FORKED", "HELD_BACK", "ROLLED_BACK", "STARTED", "Record", "chain", "chained_hash", "lineage"]

STARTED = "Started"
"""Event of the first record; its patch is the whole initial context."""
ROLLED_BACK = "RolledBack"
"""Event of a record that goes back to a step of this run."""
FORKED = "Forked"
"""Event of a record that goes on from a step of another run, whose records are in front of it."""
HELD_BACK = "HeldBack"
"""Event of a record of the gate before a final state."""


class Record(Frozen):
    """One thing that happened to a run."""

    seq: int
    """0, 1, 2, ... without gaps over all branches."""
    branch: int = 0
    """Rises at each rollback."""
    machine: str
    state: str
    """Where the machine was."""
    event: str
    """Name of the event, or of the answer that was folded in."""
    to: str | None = None
    """Where the event led; None for a patch inside a visit, a state entered again, and a refusal."""
    reason: str = ""
    """For people: what was thought, called, returned or violated."""
    step: int = 0
    """How many times a step had begun (entries of the machine's step state)."""
    visit: int = 0
    """Number of the state's visit; never falls."""
    counters: dict[str, float] = Field(default_factory=dict)
    """The ledger: what the run had spent by then (calls, tokens, USD, seconds)."""
    reads: tuple[str, ...] = ()
    """Fields that the state really read."""
    writes: tuple[str, ...] = ()
    """Fields that the patch changed."""
    patch: JsonObject = Field(default_factory=dict)
    """The change as deltas, one per field, for the field's reducer."""
    reset: tuple[str, ...] = ()
    """Fields that went back to their defaults, before the patch. Of a record with `back_to`: fields whose
    whole value the patch has."""
    started: float = 0
    """When the visit or the call began, in seconds since 1970."""
    finished: float = 0
    error: str | None = None
    """Why the change was refused; the patch is empty then."""
    by: str = "machine"
    """Who caused it: `machine`, `kernel`, or a person."""
    within: str = ""
    """The effect of the outer machine in which this happened, such as `research#3:1`; empty: in none."""
    back_to: int | None = None
    """A rollback or fork: of the records before this one, those up to this number still hold (-1: none)."""
    about: JsonObject = Field(default_factory=dict)
    """What a person's message or a request was about: id, kind, digest, arguments, who decided."""

    @model_serializer(mode="wrap")
    def _lean(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what is empty of the fields that came later: the hashes of older logs hold."""
        values: dict[str, Any] = write(self)
        for name, empty in (("within", ""), ("back_to", None), ("about", {})):
            if name in values and values[name] == empty:
                del values[name]
        return values


def lineage(records: Iterable[Record]) -> list[Record]:
    """The records that still hold: what a rollback or a fork went back behind is left out."""
    kept: list[Record] = []
    for record in records:
        if record.back_to is not None:
            while kept and kept[-1].seq > record.back_to:
                kept.pop()
        kept.append(record)
    return kept


def chained_hash(previous: str, record: Record) -> str:
    """The hash of a record in its chain: 64 hexadecimal characters."""
    return hashlib.sha256(f"{previous}\n{record.model_dump_json()}".encode()).hexdigest()


def chain(records: Iterable[Record], after: str = "") -> str:
    """The hash of the last of these records; `after` is the hash before the first."""
    for record in records:
        after = chained_hash(after, record)
    return after
