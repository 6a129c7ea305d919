"""One advance in the making: changes gather here and are kept only when all of them hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from activities.contracts import Effect, ErrorClass
from workflows.kernel.errors import (
    BadPatch,
    InvariantViolation,
    MachineError,
    PermissionViolation,
    PreconditionFailed,
    name_of,
)
from workflows.kernel.fields import Fields, Patch
from workflows.kernel.hold import Hold
from workflows.kernel.ledger import Breach, Ledger
from workflows.kernel.log import Record
from workflows.kernel.machine import At, Check, Machine, Resume, State
from workflows.kernel.snapshot import Snapshot
from workflows.kernel.view import View, fields_read

__all__ = ["Change", "Turn"]


REASON_LIMIT = 1000


def _cut(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()  # half a character pair cannot be written
    return text if len(text) <= REASON_LIMIT else f"{text[:REASON_LIMIT]} [... {len(text):,} characters]"


class Change:
    """A candidate context: patches fold into it, and into one patch for the log."""

    def __init__(self, turn: Turn, context: Any) -> None:
        self._turn = turn
        self._fields = Fields.of(turn.machine.context)
        self.context = self._base = context
        self.patch: dict[str, Any] = {}
        self.reset: tuple[str, ...] = ()
        self.warnings: list[str] = []
        self._whole: tuple[str, ...] = ()

    def apply(self, patch: Patch | None, writes: frozenset[str] | None) -> None:
        """Fold a patch in as a whole; `writes` is what it may touch, None: everything.

        Raises PermissionViolation or BadPatch; the candidate is to be thrown away then.
        """
        if patch is not None and not isinstance(patch, Mapping):
            problem = f"a {type(patch).__name__} came as a patch; expected field names with their deltas"
            raise self._turn.error(BadPatch, problem)
        values: dict[str, Any] = {}
        for name, delta in (patch or {}).items():
            known = name in self._fields.names
            if not known or (writes is not None and name not in writes):
                raise self._turn.refusal(
                    f"the undeclared field {name!r} was written; declared writes are "
                    f"{sorted(writes) if writes else 'none' if known else list(self._fields.names)}"
                )
            try:
                values[name] = self._folded(name, delta)
            except ValueError as error:
                raise self._turn.error(BadPatch, f"the patch does not fit: {error}") from error
        if values:
            self.context = self.context.model_copy(update=values)

    def allow(self, patch: Patch | None, stage: State) -> None:
        """Fold in what this state says, within its writes; with enforcement off, with a warning."""
        if not stage.enforce and isinstance(patch, Mapping):
            extra = sorted(str(name) for name in set(patch) - stage.writes)
            if extra:
                self.warnings.append(f"undeclared writes let through (enforcement is off): {extra}")
        self.apply(patch, frozenset(stage.writes) if stage.enforce else None)

    def _folded(self, name: str, delta: Any) -> Any:
        """The composed delta is what is folded, as when the state is rebuilt from the log."""
        checked = self._fields.checked(name, delta)
        if name in self.patch:
            checked = self._fields.compose(name, self.patch[name], checked)
        value = self._fields.fold(name, getattr(self._base, name), checked)
        self.patch[name] = checked
        return value

    def clear(self, names: tuple[str, ...]) -> None:
        """Fields go back to their defaults; what a patch said of them before is forgotten."""
        values = {name: self._fields.default(name) for name in names}
        self.context = self.context.model_copy(update=values)
        self._base = self._base.model_copy(update=values)
        self.reset = names
        self.patch = {name: delta for name, delta in self.patch.items() if name not in names}

    def put(self, values: Mapping[str, Any]) -> None:
        """Fields get these whole values, whatever their reducers, before any patch: when a run goes back.

        Raises BadPatch when one does not fit.
        """
        try:
            whole = {name: self._fields.whole(name, value) for name, value in values.items()}
        except ValueError as error:
            raise self._turn.error(BadPatch, f"a value does not fit: {error}") from error
        self.context = self._base = self._base.model_copy(update=whole)
        self.reset = self._whole = tuple(whole)

    @property
    def writes(self) -> tuple[str, ...]:
        """The fields that were changed."""
        return (*self._whole, *(name for name in self.patch if name not in self._whole))

    def written(self) -> dict[str, Any]:
        """The patch as JSON values; raises BadPatch for what the log cannot hold."""
        deltas = {name: delta for name, delta in self.patch.items() if name not in self._whole}
        try:
            whole = {n: self._fields.value_to_json(n, getattr(self.context, n)) for n in self._whole}
            return {**whole, **self._fields.to_json(deltas)}
        except ValueError as error:
            raise self._turn.error(BadPatch, f"the log cannot hold the patch: {error}") from error

    def check(self) -> None:
        """Ask the validators of the context class; raises BadPatch."""
        try:
            self._fields.check(self.context)
        except ValueError as error:
            raise self._turn.error(BadPatch, f"the patch does not fit: {error}") from error


def _asked(check: Check | None, view: Any, last: Record | None) -> str | None:
    """None: it holds. Else what the check says, behind a colon when it says anything."""
    verdict = check(view, last) if check else True
    if isinstance(verdict, str):
        return f": {verdict}" if verdict else None
    return None if verdict else ""


class Turn:
    """What one `start` or `advance` works on; never leaves `step.py`."""

    def __init__(self, machine: Machine[Any], snapshot: Snapshot[Any], ledger: Ledger, now: float) -> None:
        self.machine, self.snapshot, self.now = machine, snapshot, now
        self.ledger = ledger.at_least("seconds", now - snapshot.began)
        self.records: list[Record] = []
        self.view = self.new_view(snapshot.reads)
        self.call_began = snapshot.entered
        self.recovering = False
        """`on_error` has been asked in this visit, so it is not asked again."""
        self.failing = False
        """The machine is on its way to the fail state, so no broken rule leads there again."""
        self.held: Hold | None = None
        """The machine has arrived and is to stand still."""
        self.refused: Breach | None = None
        """The limit at which the effect that is asked for next ends, whatever the ledger says."""

    @property
    def state(self) -> Enum:
        """Where the machine is."""
        return self.snapshot.state

    @property
    def stage(self) -> State:
        """The declaration of the state that the machine is in."""
        return self.machine.states[self.snapshot.state]

    @property
    def on_error(self) -> Mapping[ErrorClass, Resume]:
        """What is said to each class of error: the state's word, else the machine's."""
        return {**self.machine.on_error, **self.stage.on_error}

    @property
    def at(self) -> At:
        """Where and when, for the pure functions."""
        s = self.snapshot
        return At(
            now=self.now, state=s.state, visit=s.visit, call=s.call, step=s.step, transitions=s.transitions,
            ledger=self.ledger, last=s.last,
        )  # fmt: skip

    def new_view(self, reads: Iterable[str] = ()) -> View:
        """What the current state may see of the context; `reads` are those that no record names yet."""
        allowed = frozenset(self.stage.reads) if self.stage.enforce else None
        return View(self.snapshot.context, allowed, self.unread, reads)

    def error(self, kind: type[MachineError], problem: str) -> MachineError:
        """An error that names machine and state."""
        return kind(self.machine.name, self.state, problem)

    def refusal(self, problem: str) -> MachineError:
        """A broken permission."""
        return self.error(PermissionViolation, problem)

    def unread(self, name: str) -> Exception:
        """The refusal of an undeclared read."""
        return self.refusal(
            f"the undeclared field {name!r} was read; declared reads are {sorted(self.stage.reads)}"
        )

    def check_candidate(self, change: Change, record: Record | None = None) -> None:
        """Raises BadPatch or InvariantViolation when the state cannot have this context.

        `record` is the transition in the making: its target's invariant has to hold then, and sees
        the record as the last one.
        """
        change.check()
        state = self.machine.state_named(record.to) if record and record.to else self.state
        verdict = _asked(self.machine.states[state].holds, change.context, record or self.snapshot.last)
        if verdict is not None:
            raise self.error(InvariantViolation, f"the invariant of {name_of(state)} does not hold{verdict}")

    def check_precondition(self) -> None:
        """Raises PreconditionFailed when the state's precondition does not hold."""
        verdict = _asked(self.stage.requires, self.view, self.snapshot.last)
        if verdict is not None:
            raise self.error(PreconditionFailed, f"the precondition does not hold{verdict}")

    def check_grant(self, effect: Effect) -> None:
        """Raises PermissionViolation for an effect, or a tool of it, that the state may not ask for."""
        if effect.kind not in self.stage.grants:
            raise self.refusal(
                f"the effect {effect.kind!r} was asked for; granted are {sorted(self.stage.grants)}"
            )
        allowed = self.stage.tools
        for tool in effect.tools:
            if allowed is not None and tool not in allowed:
                raise self.refusal(f"the tool {tool!r} was asked for; granted are {sorted(allowed)}")

    def record(self, event: str, change: Change | None = None, **more: Any) -> Record:
        """Append a record; `change` is what was kept."""
        return self.keep(self.draft(event, change, **more))

    def draft(self, event: str, change: Change | None = None, **more: Any) -> Record:
        """The next record, not kept yet. Raises BadPatch when the log cannot hold the change."""
        s = self.snapshot
        spent = {k: v for k, v in self.ledger.spent.items() if v}
        words = [more.pop("reason", ""), *(change.warnings if change else ())]
        if more.get("error"):
            more["error"] = _cut(more["error"])
        if change:
            kept = {"writes": change.writes, "patch": change.written(), "reset": change.reset}
            more = {**kept, **more}
        return Record(
            seq=s.seq, branch=s.branch, machine=self.machine.name,
            state=more.pop("state", name_of(s.state)), event=event, step=s.step, visit=s.visit,
            counters=spent, reads=fields_read(self.view),
            started=self.call_began, finished=self.now, reason=_cut("; ".join(w for w in words if w)),
            within=s.within, **more,
        )  # fmt: skip

    def keep(self, record: Record) -> Record:
        """Append a record to the log."""
        self.records.append(record)
        self.view = self.new_view()
        self.call_began = self.now
        self.snapshot = replace(self.snapshot, seq=record.seq + 1)
        return record
