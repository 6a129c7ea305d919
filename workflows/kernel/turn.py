"""One advance in the making: changes gather here and are kept only when all of them hold."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Any

from activities.contracts import Effect
from workflows.kernel.errors import (
    BadPatch,
    InvariantViolation,
    MachineError,
    PermissionViolation,
    PreconditionFailed,
    name_of,
)
from workflows.kernel.fields import Fields, Patch
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import Record
from workflows.kernel.machine import At, Check, Machine, State
from workflows.kernel.snapshot import Snapshot
from workflows.kernel.view import View, fields_read

__all__ = ["Change", "Turn"]


REASON_LIMIT = 1000


def _cut(text: str) -> str:
    return text if len(text) <= REASON_LIMIT else f"{text[:REASON_LIMIT]} [... {len(text):,} characters]"


class Change:
    """A candidate context: patches fold into it, and into one patch for the log."""

    def __init__(self, turn: Turn, context: Any) -> None:
        self._turn = turn
        self._fields = Fields.of(turn.machine.context)
        self.context = context
        self.patch: dict[str, Any] = {}
        self.reset: tuple[str, ...] = ()

    def apply(self, patch: Patch | None, writes: frozenset[str] | None) -> None:
        """Fold a patch in as a whole; `writes` is what it may touch, None: everything.

        Raises PermissionViolation or BadPatch; the candidate is to be thrown away then.
        """
        for name, delta in (patch or {}).items():
            known = name in self._fields.names
            if not known or (writes is not None and name not in writes):
                raise self._turn.refusal(
                    f"the undeclared field {name!r} was written; declared writes are "
                    f"{sorted(writes) if writes else 'none' if known else list(self._fields.names)}"
                )
            try:
                checked = self._fields.checked(name, delta)
                self.context = self._fields.fold(self.context, name, checked)
            except (ValueError, TypeError) as error:
                raise self._turn.error(BadPatch, f"the patch does not fit: {error}") from error
            seen = name in self.patch
            both = self._fields.compose(name, self.patch[name], checked) if seen else checked
            self.patch[name] = both

    def clear(self, names: tuple[str, ...]) -> None:
        """Fields go back to their defaults; what a patch said of them before is forgotten."""
        values = {name: self._fields.default(name) for name in names}
        self.context = self.context.model_copy(update=values)
        self.reset = names
        self.patch = {name: delta for name, delta in self.patch.items() if name not in names}

    def written(self) -> dict[str, Any]:
        """The patch as JSON values."""
        return self._fields.to_json(self.patch)


class Turn:
    """What one `start` or `advance` works on; never leaves `step.py`."""

    def __init__(self, machine: Machine[Any], snapshot: Snapshot[Any], ledger: Ledger, now: float) -> None:
        self.machine, self.snapshot, self.now = machine, snapshot, now
        self.ledger = ledger.at_least("seconds", now - snapshot.began)
        self.records: list[Record] = []
        self.view = self.new_view()
        self.call_began = snapshot.entered
        self.warnings: list[str] = []

    @property
    def state(self) -> Enum:
        """Where the machine is."""
        return self.snapshot.state

    @property
    def stage(self) -> State:
        """The declaration of the state that the machine is in."""
        return self.machine.states[self.snapshot.state]

    @property
    def at(self) -> At:
        """Where and when, for the pure functions."""
        s = self.snapshot
        return At(
            now=self.now, state=s.state, visit=s.visit, call=s.call, step=s.step, transitions=s.transitions,
            ledger=self.ledger, last=s.last,
        )  # fmt: skip

    def new_view(self, context: Any = None) -> View:
        """What the current state may see of the context, or of a candidate."""
        allowed = frozenset(self.stage.reads) if self.stage.enforce else None
        return View(self.snapshot.context if context is None else context, allowed, self.unread)

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

    def writable(self, patch: Patch) -> frozenset[str] | None:
        """What the current state may write; with enforcement off everything, with a warning."""
        writes = frozenset(self.stage.writes)
        if self.stage.enforce:
            return writes
        extra = sorted(set(patch) - writes)
        if extra:
            self.warnings.append(f"undeclared writes let through (enforcement is off): {extra}")
        return None

    def check(self, check: Check | None, kind: type[MachineError], view: Any, what: str) -> None:
        """Raises `kind` when the check says no."""
        verdict = check(view, self.snapshot.last) if check else True
        if verdict is False or (isinstance(verdict, str) and verdict):
            why = f": {verdict}" if isinstance(verdict, str) else ""
            raise self.error(kind, f"{what} does not hold{why}")

    def check_invariant(self, context: Any, stage: State | None = None) -> None:
        """Raises InvariantViolation when the state's invariant does not hold for this context."""
        self.check((stage or self.stage).holds, InvariantViolation, context, "the invariant")

    def check_precondition(self) -> None:
        """Raises PreconditionFailed when the state's precondition does not hold."""
        self.check(self.stage.requires, PreconditionFailed, self.new_view(), "the precondition")

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
        s = self.snapshot
        spent = {k: v for k, v in self.ledger.spent.items() if v}
        words = [more.pop("reason", ""), *self.warnings]
        if change:
            kept = {"writes": tuple(change.patch), "patch": change.written(), "reset": change.reset}
            more = {**kept, **more}
        record = Record(
            seq=s.seq, branch=s.branch, machine=self.machine.name, state=name_of(s.state),
            event=event, step=s.step, visit=s.visit, counters=spent, reads=fields_read(self.view),
            started=self.call_began, finished=self.now, reason=_cut("; ".join(w for w in words if w)), **more,
        )  # fmt: skip
        self.records.append(record)
        self.warnings = []
        self.view = self.new_view()
        self.call_began = self.now
        self.snapshot = replace(self.snapshot, seq=s.seq + 1)
        return record
