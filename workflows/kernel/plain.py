"""Plain machines: a chainable builder, driven by an event source (spec 2.1).

    machine = StateMachine[S, E, C]().state(S.A).transition(S.A, Went, S.B).terminal(S.B)
    state, context = machine.run(S.A, context, source)

The builder makes a `Machine` whose every state asks the source for the next event; table, transitions
and log are the kernel's. The context is the caller's own object, changed in place by actions and
callbacks; with a log, what they changed is recorded. Building is not thread-safe; running is, as long
as each run has its own context.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, JsonValue
from pydantic_core import from_json, to_json

from activities.contracts import Effect
from activities.text import readable
from workflows.kernel.context import Context
from workflows.kernel.errors import DefinitionError, LimitExceeded, NoTransition
from workflows.kernel.log import Record
from workflows.kernel.machine import (
    Event,
    Exit,
    Machine,
    PlainEvent,
    Run,
    RunInput,
    State,
    Visit,
    VisitEnd,
    state_name,
)
from workflows.kernel.snapshot import Program, Suspension
from workflows.kernel.transition import advance, log_event, start

__all__ = ["StateMachine"]

S = TypeVar("S", bound=Enum)
E = TypeVar("E")
C = TypeVar("C")


class _Options(BaseModel, frozen=True):
    """A plain machine has none."""


class _Values(Context):
    """The caller's context as JSON, as the log shows it."""

    values: dict[str, JsonValue] = {}


class _NextEvent(Effect["_Matched"]):
    """Ask the event source."""

    kind: Literal["next_event"] = "next_event"


@dataclass(frozen=True, slots=True)
class _Matched:
    """The source gave an event that fits a row."""

    event: Event
    values: dict[str, JsonValue]
    kind: str = "matched"

    @property
    def cost(self) -> dict[str, float]:
        return {}


class _SourceEnded(Event):
    """The source gave no event: a run may be left in any state, so every state has this way out."""


class _End(Enum):
    STOPPED = "(source ended)"


@dataclass(frozen=True, slots=True)
class _Row(Generic[C]):
    source: Enum
    event: type[Any]
    target: Enum
    guard: Callable[[Any, C], bool] | None
    action: Callable[[Any, C], object] | None
    happened: type[Event]
    """The kernel's event for this row; its name says which guard let it pass."""


class StateMachine(Generic[S, E, C]):
    """A machine over the caller's states, events and context; every build call returns it.

    `max_unmatched` events in a row without a fitting row raise NoTransition (R-001-1); more than
    `max_transitions` raise LimitExceeded.
    """

    def __init__(
        self, name: str = "machine", *, max_unmatched: int = 100, max_transitions: int = 10_000
    ) -> None:
        self.name, self.max_unmatched, self.max_transitions = name, max_unmatched, max_transitions
        self._on_enter: dict[Enum, Callable[[C], object] | None] = {}
        self._on_exit: dict[Enum, Callable[[C], object] | None] = {}
        self._rows: list[_Row[C]] = []
        self._final: set[Enum] = set()

    def state(
        self,
        name: S,
        on_enter: Callable[[C], object] | None = None,
        on_exit: Callable[[C], object] | None = None,
    ) -> StateMachine[S, E, C]:
        """Declare a state with its callbacks, which may change the context."""
        self._on_enter[name], self._on_exit[name] = on_enter, on_exit
        return self

    def transition(
        self,
        from_state: S,
        event_type: type[Any],
        to_state: S,
        guard: Callable[[Any, C], bool] | None = None,
        action: Callable[[Any, C], object] | None = None,
    ) -> StateMachine[S, E, C]:
        """Append a row to the table. The first row that fits wins; subclasses of the event fit."""
        name = f"{event_type.__name__} [{_function_name(guard)}]" if guard else event_type.__name__
        happened = type(name, (PlainEvent,), {})
        self._rows.append(_Row(from_state, event_type, to_state, guard, action, happened))
        return self

    def terminal(self, *states: S) -> StateMachine[S, E, C]:
        """States in which a run stops."""
        self._final.update(states)
        return self

    def definition(self, initial: S) -> Machine:
        """The machine as a verified declaration, for diagrams. Raises DefinitionError."""
        declared = {s for row in self._rows for s in (row.source, row.target)} | self._on_enter.keys()
        if stuck := declared - self._final - {row.source for row in self._rows}:
            names = ", ".join(sorted(map(state_name, stuck)))
            raise DefinitionError(f"machine {self.name}: no row leaves {names}; declare it with `terminal`")
        return self._machine(initial, declared, stops=False)

    def run(
        self,
        initial_state: S,
        context: C,
        event_source: Callable[[S, C], E | None],
        log: list[Record] | None = None,
    ) -> tuple[S, C]:
        """Ask the source for events until it gives None or a terminal state is reached.

        `log` gets one record per transition and unmatched event. Exceptions of source, guard, action and
        callbacks leave unchanged.
        """
        run = _PlainRun(self, initial_state, context, log)
        while not run.is_over and (event := event_source(run.state, context)) is not None:
            run.take(event)
        return run.state, context

    async def arun(
        self,
        initial_state: S,
        context: C,
        event_source: Callable[[S, C], Awaitable[E | None]],
        log: list[Record] | None = None,
    ) -> tuple[S, C]:
        """The same with an asynchronous source."""
        run = _PlainRun(self, initial_state, context, log)
        while not run.is_over and (event := await event_source(run.state, context)) is not None:
            run.take(event)
        return run.state, context

    def _machine(
        self, initial: Enum, states: set[Enum], *, stops: bool, values: dict[str, JsonValue] | None = None
    ) -> Machine:
        """The kernel's machine; with `stops`, every state may end because the source does."""
        table: dict[Enum, dict[type[Event], Enum]] = {s: {} for s in sorted(states, key=state_name)}
        for row in self._rows:
            if row.source in states:
                table[row.source][row.happened] = row.target
        for state in self._final & table.keys():
            del table[state]
        for state in table if stops else ():
            table[state][_SourceEnded] = _End.STOPPED
        return Machine(
            name=self.name, options=_Options, context=_Values, initial=initial,
            begin=lambda _, __: _Values(values=values or {}),
            table=table, states=[_asking(state) for state in {**table, initial: {}}],
            result=lambda _, run: Exit(reason="stopped", ok=True), max_transitions=self.max_transitions,
        )  # fmt: skip

    def _reachable(self, initial: Enum) -> set[Enum]:
        found = {initial}
        while more := {
            row.target for row in self._rows if row.source in found - self._final and row.target not in found
        }:
            found |= more
        return found


class _PlainRun(Generic[S, C]):
    """One run: asks for rows, calls the callbacks, and lets the kernel move."""

    def __init__(
        self, machine: StateMachine[S, Any, C], initial: S, context: C, log: list[Record] | None
    ) -> None:
        self.machine, self.state, self.context, self.log = machine, initial, context, log
        self.unmatched = 0
        self._call(machine._on_enter, initial)
        values = {} if log is None else _values(context)
        built = machine._machine(initial, machine._reachable(initial), stops=True, values=values)
        self._adopt(start(Program(built, RunInput(goal=machine.name)), now=0))

    @property
    def is_over(self) -> bool:
        """A terminal state is reached."""
        return self.suspension.exit is not None

    def take(self, event: Any) -> None:
        """Follow the first row that fits."""
        rows = [row for row in self.machine._rows if row.source == self.state]
        fitting = (
            r for r in rows if isinstance(event, r.event) and (not r.guard or r.guard(event, self.context))
        )
        row = next(fitting, None)
        if row is None:
            self._unmatched(event, rows)
            return
        if self.suspension.snapshot.transitions >= self.machine.max_transitions:
            problem = f"{self.machine.max_transitions} transitions were made, and no more are allowed"
            raise LimitExceeded(self.machine.name, state_name(self.state), problem)
        self._call(self.machine._on_exit, self.state)
        if row.action:
            row.action(event, self.context)
        self._call(self.machine._on_enter, row.target)
        values = {} if self.log is None else _values(self.context)
        reason = readable(str(getattr(event, "reason", "") or ""))
        self.unmatched, self.state = 0, row.target  # type: ignore[assignment]  # rows hold the caller's own states
        self._adopt(advance(self.suspension, _Matched(row.happened(reason), values), now=0))

    def _unmatched(self, event: Any, rows: list[_Row[C]]) -> None:
        self.unmatched += 1
        name = type(event).__name__
        self._adopt(log_event(self.suspension, name, now=0, by="machine", reason="no row fits"))
        if self.unmatched >= self.machine.max_unmatched:
            expected = " or ".join(row.event.__name__ for row in rows) or "nothing"
            problem = f"{name} came; {self.unmatched} events without a fitting row, expected {expected}"
            raise NoTransition(self.machine.name, state_name(self.state), problem)

    def _adopt(self, suspension: Suspension) -> None:
        self.suspension = suspension
        if self.log is not None:
            self.log += [record for record in suspension.records if record.seq]  # the first is the beginning

    def _call(self, callbacks: Mapping[Enum, Callable[[C], object] | None], state: Enum) -> None:
        if callback := callbacks.get(state):
            callback(self.context)


def _asking(name: Enum) -> State:
    """A state whose visit asks for the next event."""
    return State(name, _visit, writes=frozenset({"values"}), asks=frozenset({_NextEvent}), counts="visits")


def _visit(c: _Values, run: Run) -> Visit:
    matched: _Matched = yield _NextEvent()
    outcome: VisitEnd = ({"values": matched.values} if matched.values else {}, matched.event)
    return outcome


def _function_name(function: object) -> str:
    name = getattr(function, "__name__", "condition")
    return "condition" if name == "<lambda>" else name


def _values(context: object) -> dict[str, JsonValue]:
    """The context's fields as JSON values, so that a later change in place is seen."""
    if isinstance(context, Mapping):
        items = dict(context)
    else:
        slots = [name for kind in type(context).__mro__ for name in getattr(kind, "__slots__", ())]
        items = {name: getattr(context, name) for name in slots if hasattr(context, name)}
        items |= getattr(context, "__dict__", {})
    return {readable(str(name)): _jsonable(value) for name, value in items.items()}


def _jsonable(value: object) -> JsonValue:
    """What the log can hold of a value of any kind: writing the log never fails the run."""
    try:
        shown: JsonValue = from_json(
            to_json(value, fallback=repr, bytes_mode="base64", inf_nan_mode="strings")
        )
    except Exception:  # noqa: BLE001  # a user's object may raise anything here
        return f"<{type(value).__name__}>"
    return shown
