"""A run's past: rebuild it from its log, roll it back, fork it, go on with another version of its machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from activities.contracts import Conversation, JsonObject, Message
from workflows.kernel.context import Context, apply_difference
from workflows.kernel.errors import NotRestored, restoring
from workflows.kernel.labels import first_of_each
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import (
    FORKED,
    MIGRATED,
    REFUSED,
    ROLLED_BACK,
    STARTED,
    VERSION,
    Checkpoint,
    Record,
    checkpoints,
    lineage,
)
from workflows.kernel.machine import Machine
from workflows.kernel.snapshot import Program, RunFacts, Snapshot, Suspension, suspension_from
from workflows.kernel.transition import Transition

__all__ = ["forked", "migrated", "restored", "restored_context", "rolled_back"]


@restoring()
def restored(program: Program, records: Iterable[Record]) -> Snapshot:
    """The run after these records, at the beginning of its newest visit, with what was said and kept since;
    in the form of the program's machine, also where an older version of it wrote them.

    Raises NotRestored for a log without a first record, or values that the machine does not take.
    """
    machine, kept = program.machine, _kept(records)
    said: list[Message] = []
    notes: list[Message] = []
    heard = 0
    counts: dict[str, int] = {}
    state, visit, step, transitions, entered, entry = "", 0, 0, 0, kept[0].at, kept[0]
    for record in kept:
        said += record.messages
        notes += record.notes
        heard += record.heard
        visit = max(visit, record.visit)
        if record.to is None:
            continue
        visit, entered, entry = record.visit + 1, record.at, record
        before, state = state, record.to
        step = record.step + record.begins
        if record.event in {ROLLED_BACK, FORKED, MIGRATED} and before not in machine.final:
            continue  # the state was entered before, by a record that holds
        transitions += record.event not in {STARTED, ROLLED_BACK, FORKED}
        if state in machine.by_name and (counter := machine.by_name[state].counts):
            counts[counter] = counts.get(counter, 0) + 1
    state, context = _restored_context(machine, kept, state)
    ledger = Ledger(spent=entry.counters)
    shown = RunFacts(entered, len(said), len(notes), heard, ledger)
    return Snapshot(
        state=state, context=context, conversation=Conversation(said), entered=shown, entry_context=context,
        began=kept[0].at, opening=len(kept[0].messages), notes=tuple(notes), heard=heard, counts=counts,
        visit=visit, step=step, transitions=transitions, seq=kept[-1].seq + 1, branch=kept[-1].branch,
        labels=first_of_each(one for record in kept for one in record.brought),
        refused=sum(record.event == REFUSED for record in kept),
    )  # fmt: skip


@restoring()
def restored_context(machine: Machine, records: Iterable[Record]) -> Any:
    """The context of a run after these records of its log, read-only; after all of them, or up to an earlier
    one. It has the form of this machine, also where an older version wrote them and this one migrates it.

        context = restored_context(MACHINE, await agents.records(run, full=True))

    Raises NotRestored for a log without a first record, or values that the machine does not take.
    """
    kept = _kept(records)
    entered = [record.to for record in kept if record.to is not None]
    return _restored_context(machine, kept, entered[-1])[1]


def _kept(records: Iterable[Record]) -> list[Record]:
    """The records that hold. Raises NotRestored for a log without a first one."""
    kept = lineage(records)
    if not kept or kept[0].event != STARTED:
        raise NotRestored("the log does not begin with `Started`; the archive may lack its first part")
    return kept


def _restored_context(machine: Machine, kept: Sequence[Record], state: str) -> tuple[str, Context]:
    values: JsonObject = {}
    for record in kept:
        if VERSION in record.about:
            values = {}
        for name, change in record.patch.items():
            values[name] = apply_difference(values.get(name), change)
    if (version := _version(kept)) == machine.version:
        return state, machine.context.model_validate(values)
    return machine.migrated(version, state, values)


def rolled_back(  # noqa: PLR0913  # who, when and why beside where
    suspension: Suspension,
    records: Sequence[Record],
    to_step: int,
    *,
    now: float,
    by: str,
    reason: str = "",
    about: JsonObject | None = None,
) -> Suspension:
    """Begin step `to_step` again, on a new branch; 0 is the run's start. `records` is the whole log.

    Context, conversation and counts are those of that moment; the ledger stays (also what was reserved for
    the pending effect, which may have been performed), and visits go on counting. People's messages that no
    question has brought stay unheard; what the run said itself was about the branch that is left.
    Raises NotRestored for a step that the run does not have.
    """
    point = _checkpoint(records, to_step)
    then = restored(suspension.program, [record for record in records if record.seq <= point.seq])
    live = suspension.snapshot
    unheard = [note for note in live.notes[max(live.heard, len(then.notes)) :] if not note.from_run]
    back = replace(
        then, seq=live.seq, branch=live.branch + 1, visit=live.visit, began=live.began,
        notes=(*then.notes, *unheard),
    )  # fmt: skip
    transition = Transition(suspension.program, back, suspension.ledger, now)
    return transition.go_back(
        ROLLED_BACK, then, _led_there(records, point), live, by=by, reason=reason, about=about or {},
        migrated=_is_older(suspension.program, records, point),
    )  # fmt: skip


def forked(  # noqa: PLR0913  # who, when and why beside where
    program: Program,
    records: Sequence[Record],
    from_step: int,
    *,
    now: float,
    by: str,
    reason: str = "",
    about: JsonObject | None = None,
    ledger: Ledger | None = None,
) -> Suspension:
    """A new run that begins step `from_step` of another one again. Its log begins with that run's records.

    Raises NotRestored for a step that the source does not have.
    """
    point = _checkpoint(records, from_step)
    kept = [record for record in records if record.seq <= point.seq]
    then = restored(program, kept)
    back = replace(then, seq=point.seq + 1, began=now)
    transition = Transition(program, back, ledger or Ledger(), now)
    return transition.go_back(
        FORKED, then, _led_there(records, point), then, by=by, reason=reason, about=about or {},
        migrated=_is_older(program, records, point),
    )  # fmt: skip


def migrated(program: Program, data: Mapping[str, Any], version: str, *, now: float) -> Suspension:
    """Go on from a `dump` of an older version of the machine: its state is entered again.

    Raises NotRestored in the middle of a visit, whose answers are the older version's alone, and where the
    machine has no migration or it does not fit; MachineError for a broken rule.
    """
    machine = program.machine
    with restoring():
        state = data["state"]
        if data["moments"] or data["calls"] or data["interrupted"]:
            raise NotRestored(
                f"the run is in the middle of {state}, which only version {version} can end; let a worker "
                f"that has it go on"
            )
        entered, context = machine.migrated(version, state, data["context"])
        moved = {"state": entered, "context": context.model_dump(mode="json")}
        step = suspension_from(program, {**data, **moved})
        ledger = step.ledger.refund(data["reserved"])  # the visit's first call was not made
    transition = Transition(program, step.snapshot, ledger, now)
    return transition.go_back(
        MIGRATED, step.snapshot, None, replace(step.snapshot, state=state), by="kernel", migrated=True,
        reason=f"from version {version} to {machine.version}", about={},
    )  # fmt: skip


def _version(kept: Sequence[Record]) -> str:
    """The version of the machine in whose form the context is after these records."""
    version = next((record.about[VERSION] for record in reversed(kept) if VERSION in record.about), None)
    if version is None:
        raise ValueError("the log's first record names no version of the machine")
    return str(version)


def _is_older(program: Program, records: Sequence[Record], point: Checkpoint) -> bool:
    kept = lineage(record for record in records if record.seq <= point.seq)
    return _version(kept) != program.machine.version


def _led_there(records: Sequence[Record], point: Checkpoint) -> Record:
    """The record after which a step begins."""
    return next(record for record in records if record.seq == point.seq)


def _checkpoint(records: Sequence[Record], step: int) -> Checkpoint:
    found = {point.step: point for point in checkpoints(records)}
    if step not in found:
        known = f"this run has steps {min(found)} to {max(found)}" if found else "this run has no steps yet"
        raise NotRestored(f"No step {step}: {known}.")
    return found[step]
