"""A machine's declaration: states, one table, and the slots that the six machines need.

A machine never does anything; it says what it wants done. Entering a state yields an *effect* (call
the model, run tools, ask a person), or an *event* (a decision it can take from what it knows). The
loop performs effects and feeds the answers back to `resume`. Only events move the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from pydantic import BaseModel

from activities.contracts import Effect, ErrorClass, Frozen, JsonObject
from workflows.kernel.errors import DefinitionError, MachineError, name_of
from workflows.kernel.fields import Patch
from workflows.kernel.ledger import Breach, Ledger
from workflows.kernel.log import Record

if TYPE_CHECKING:
    from workflows.kernel.snapshot import Snapshot

__all__ = ["At", "Exit", "Machine", "Move", "Row", "Said", "State"]

C = TypeVar("C", bound=BaseModel)
Event = object
"""Any frozen dataclass; its `reason`, if it has one, goes into the log for people."""
Said = Effect | Event | None | tuple[Patch, Effect | Event | None]
"""What a state says: what it wants done, or what happened; with a patch in front when it
changes something."""


@dataclass(frozen=True, slots=True)
class At:
    """What a pure function cannot know: where and when it is called."""

    now: float
    """Seconds since 1970."""
    state: Enum
    visit: int
    """Number of this visit; never falls."""
    call: int
    """How many effects this visit has asked for so far."""
    step: int
    transitions: int
    ledger: Ledger
    last: Record | None
    """The record of the last transition."""


class Exit(Frozen):
    """How a run ended."""

    reason: str
    ok: bool = False
    answer: str | None = None
    error: str | None = None
    outcome: JsonObject = {}
    raises: str | None = None
    """Name of the error that a caller gets instead of a result (see `errors`); None: it is returned."""


@dataclass(frozen=True, slots=True)
class Move:
    """An event on its way to a final state, as the hold-back gate sees it."""

    event: Event
    target: Enum
    state: Enum


Enter = Callable[[Any, At], Said]
Resume = Callable[[Any, Any, At], Said]
Check = Callable[[Any, Record | None], bool | str]
"""True or the empty string: holds. False or a text: does not, and why."""
Callback = Callable[[Any], Patch | None]
Guard = Callable[[Any, Any], bool]
Action = Callable[[Any, Any], Patch | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A state: what it may see, change and ask for, and what must hold while the machine is in it."""

    enter: Enter | None = None
    resume: Resume | None = None
    reads: frozenset[str] | set[str] = frozenset()
    writes: frozenset[str] | set[str] = frozenset()
    grants: frozenset[str] | set[str] = frozenset()
    """Kinds of effect that it may ask for."""
    tools: frozenset[str] | None = None
    """Tools that its effects may name; None: every tool that the agent has."""
    requires: Check | None = None
    """Precondition, sees what the state may read."""
    holds: Check | None = None
    """Invariant, sees the whole context."""
    on_enter: Callback | None = None
    on_exit: Callback | None = None
    spends: str | None = None
    """A ledger counter that each visit raises by one; every cycle of an agent machine has such a state."""
    max_effects: int = 1000
    """Effects in one visit."""
    on_error: Mapping[ErrorClass, Resume] = field(default_factory=dict)
    """Class of error -> what to say instead of `resume`; wins over the machine's."""
    again: bool | Callable[[Any], bool] = False
    """Entering it again in the middle of a visit asks for the pending model call alone, and for nothing that
    was done before it; or a function of the context that says so. Where it is the visit's first call, that
    goes without saying. A message from a person is put before such a call."""
    enforce: bool = True
    """False: undeclared reads and writes of this one state are merged and logged as a warning."""

    def __post_init__(self) -> None:
        for name in ("reads", "writes", "grants"):
            object.__setattr__(self, name, frozenset(getattr(self, name)))


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table. The first row that fits wins; subclasses of the event fit too."""

    source: Enum
    event: type
    target: Enum
    guard: Guard | None = None
    action: Action | None = None
    """Called with (event, context) between on_exit of the old and on_enter of the new state."""
    reset: tuple[str, ...] = ()
    """Fields that go back to their defaults on this edge, before callbacks and action."""
    writes: frozenset[str] | set[str] = frozenset()
    """Fields that the action may write."""

    def fits(self, state: Enum, event: Event, context: Any) -> bool:
        """Is this the row for the event in this state?"""
        fits = self.source == state and isinstance(event, self.event)
        return fits and (self.guard is None or self.guard(event, context))


def _row(machine: str, number: int, row: Row | tuple[Any, ...]) -> Row:
    try:
        return row if isinstance(row, Row) else Row(*row)
    except TypeError as error:
        problem = f"row {number} is {row!r}; expected (from, event, to) and then guard, action, ..."
        raise DefinitionError(f"machine {machine}: {problem}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine(Generic[C]):
    """An agent machine, verified when it is made; raises DefinitionError naming the culprit."""

    name: str
    version: str = "1"
    context: type[C]
    initial: Enum
    final: Set[Enum]
    states: Mapping[Any, State]
    """State -> its declaration; the keys are members of an Enum."""
    table: tuple[Row, ...] | Iterable[Row | tuple[Any, ...]]
    result: Callable[[C, Enum], Exit]
    """How the run ended; the state is not final when the run was closed in the middle."""
    step_state: Enum | None = None
    """The state whose entry begins a step: rollback, interrupts and continue-as-new count by it."""
    driven_by: Literal["effects", "events"] = "effects"
    """Plain machines are driven by an event source and may cycle freely (spec 2.1)."""
    on_error: Mapping[ErrorClass, Resume] = field(default_factory=dict)
    """Class of error -> what to say instead of `resume`, within the failing state's rights."""
    on_unmatched: Literal["raise", "stay", "fail", "end"] = "raise"
    max_unmatched: int = 100
    """Unmatched events in a row, for `stay`; the counter restarts at each transition."""
    fail_state: Enum | None = None
    """Where a broken rule leads; None: a broken rule raises."""
    on_violation: Callable[[MachineError, C], Patch] | None = None
    """The patch that goes with the move to the fail state, such as a `last_error`."""
    max_transitions: int = 10_000
    limit_reasons: Mapping[str, str] = field(default_factory=dict)
    """Counter -> exit reason when its cap ends the run; default `limit`."""
    on_limit: Callable[[C, Breach, At], Said] | None = None
    """Asked before a limit ends the run: an event, one more effect, or None to end; each may have a patch."""
    hold_back: Callable[[C, Move, At], tuple[Patch, Event] | None] | None = None
    """Asked before a final state is entered: another event instead, or None to let it pass."""
    max_hold_backs: int = 1
    on_close: Callable[[C, str], Patch] | None = None
    """What a close in the middle (cancel, abort, a limit) writes, given the exit reason."""
    fold_steer: Callable[[C, str], Patch] | None = None
    """How a message from a person, given while the run is on its way, gets into the context."""
    on_rollback: Callable[[C, C], Patch] | None = None
    """(context before the rollback, context that is restored) -> what the restored one is to know of it."""
    rewind: Callable[[C, int], C] | None = None
    """(context, last step that stays, from 0) -> the context to go on with, where the steps are in it; for
    runs without Temporal (spec 1.8). ValueError: it has no such step. None: they go back by the log."""
    steps_done: Callable[[C], int] | None = None
    """How many steps are done, for whom counts them (R-000-13); None: those that have begun."""
    hold: Callable[[Snapshot[C]], bool] | None = None
    """Asked once at each arrival in a state, before it is entered: True hands out a `Hold` instead. It is the
    run's, not the definition's."""

    def __post_init__(self) -> None:
        from workflows.kernel.verify import verify

        put = object.__setattr__
        put(self, "final", frozenset(self.final))
        put(self, "table", tuple(_row(self.name, n, row) for n, row in enumerate(self.table)))
        verify(self)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The table, in order."""
        return self.table  # type: ignore[return-value]  # __post_init__ made it a tuple of rows

    def state_named(self, name: str) -> Enum:
        """The state with this name; raises ValueError with what there is."""
        state: Enum
        for state in self.states:
            if name_of(state) == name:
                return state
        raise ValueError(f"{self.name} has no state {name!r}; it has {[name_of(s) for s in self.states]}")

    def with_limit(self, max_transitions: int) -> Machine[C]:
        """The same machine with another limit on transitions."""
        return replace(self, max_transitions=max_transitions)
