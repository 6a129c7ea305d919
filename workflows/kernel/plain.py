"""Plain machines: the chainable builder, driven by an event source (spec 2.1).

    machine = StateMachine[S, E, C]().state(S.A).transition(S.A, Went, S.B).terminal(S.B)
    state, context = machine.run(S.A, context, source)

The source takes the place of `enter`. The context is the caller's own object, changed in place by
actions and callbacks; what they change is recorded as patches. Building is not thread-safe, running
is, as long as each run has its own context.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from pydantic_core import from_json, to_json

from workflows.kernel.errors import NoTransitionError, TransitionLimitExceeded, name_of
from workflows.kernel.log import Record
from workflows.kernel.machine import Exit, Machine, Row, State

__all__ = ["StateMachine"]

S = TypeVar("S", bound=Enum)
E = TypeVar("E")
C = TypeVar("C")


class _NoFields(BaseModel, frozen=True):
    """The declared context of a plain machine: the caller's own object is outside the kernel."""


@dataclass(slots=True)
class _Run(Generic[C]):
    """One run in progress."""

    context: C
    log: list[Record] | None
    transitions: int = 0
    unmatched: int = 0


class StateMachine(Generic[S, E, C]):
    """A machine over the caller's states, events and context; every build call returns it.

    `max_unmatched` events in a row that fit no row raise NoTransitionError (R-001-1); more than
    `max_transitions` raise TransitionLimitExceeded.
    """

    def __init__(
        self, name: str = "machine", *, max_unmatched: int = 100, max_transitions: int = 10_000
    ) -> None:
        self.name, self.max_unmatched, self.max_transitions = name, max_unmatched, max_transitions
        self._states: dict[S, State] = {}
        self._rows: list[Row] = []
        self._final: set[S] = set()

    def state(
        self,
        name: S,
        on_enter: Callable[[C], object] | None = None,
        on_exit: Callable[[C], object] | None = None,
    ) -> StateMachine[S, E, C]:
        """Declare a state with its callbacks, which may change the context."""
        self._states[name] = State(on_enter=on_enter, on_exit=on_exit)  # type: ignore[arg-type]  # a plain callback changes the context instead of returning a patch
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
        self._rows.append(Row(from_state, event_type, to_state, guard, action))  # type: ignore[arg-type]  # a plain action changes the context instead of returning a patch
        return self

    def terminal(self, *states: S) -> StateMachine[S, E, C]:
        """States in which a run stops."""
        self._final.update(states)
        return self

    def definition(self, initial: S) -> Machine[_NoFields]:
        """The machine as a verified declaration, for diagrams; raises DefinitionError."""
        named = {s: State() for row in self._rows for s in (row.source, row.target)}
        states: dict[Enum, State] = {**named, **{s: State() for s in self._final}}
        for state, stage in self._states.items():
            states[state] = stage
        return Machine(
            name=self.name,
            context=_NoFields,
            initial=initial,
            final=set(self._final),
            states=states,
            table=self._rows,
            result=lambda _, state: Exit(reason=name_of(state)),
            driven_by="events",
            on_unmatched="stay",
            max_unmatched=self.max_unmatched,
            max_transitions=self.max_transitions,
        )

    def run(
        self,
        initial_state: S,
        context: C,
        event_source: Callable[[S, C], E | None],
        log: list[Record] | None = None,
    ) -> tuple[S, C]:
        """Ask the source for events until it gives None or a terminal state is reached.

        `log` gets one record per transition and unmatched event. Exceptions of source, guard,
        action and callbacks leave unchanged.
        """
        run, state = self._start(initial_state, context, log)
        while state not in self._final and (event := event_source(state, context)) is not None:
            state = self._take(run, state, event)
        return state, context

    async def arun(
        self,
        initial_state: S,
        context: C,
        event_source: Callable[[S, C], Awaitable[E | None]],
        log: list[Record] | None = None,
    ) -> tuple[S, C]:
        """The same with an asynchronous source."""
        run, state = self._start(initial_state, context, log)
        while state not in self._final and (event := await event_source(state, context)) is not None:
            state = self._take(run, state, event)
        return state, context

    def _start(self, initial: S, context: C, log: list[Record] | None) -> tuple[_Run[C], S]:
        run = _Run(context, log)
        _call(self._states.get(initial), "on_enter", context)
        return run, initial

    def _take(self, run: _Run[C], state: S, event: E) -> S:
        row = next((r for r in self._rows if r.fits(state, event, run.context)), None)
        if row is None:
            run.unmatched += 1
            self._record(run, state, event, None, ())
            if run.unmatched >= self.max_unmatched:
                problem = (
                    f"{type(event).__name__} came; {run.unmatched} events in a row fitted no row, "
                    f"expected {_names(self._rows, state)}"
                )
                raise NoTransitionError(self.name, state, problem)
            return state
        if run.transitions >= self.max_transitions:
            problem = f"more than {self.max_transitions} transitions were made"
            raise TransitionLimitExceeded(self.name, state, problem)
        before = {} if run.log is None else _values(run.context)
        _call(self._states.get(state), "on_exit", run.context)
        if row.action:
            row.action(event, run.context)
        target: S = row.target  # type: ignore[assignment]  # rows of this builder hold its own states
        _call(self._states.get(target), "on_enter", run.context)
        run.transitions, run.unmatched = run.transitions + 1, 0
        after = {} if run.log is None else _values(run.context)
        self._record(run, state, event, target, _changed(before, after))
        return target

    def _record(
        self, run: _Run[C], state: S, event: E, to: S | None, changed: Iterable[tuple[str, Any]]
    ) -> None:
        if run.log is None:
            return
        patch = dict(changed)
        run.log.append(
            Record(
                seq=len(run.log),
                machine=self.name,
                state=name_of(state),
                event=type(event).__name__,
                to=None if to is None else name_of(to),
                visit=run.transitions,
                writes=tuple(patch),
                patch=patch,
                reason=_text(str(getattr(event, "reason", "") or "")),
            )
        )


def _call(stage: State | None, slot: str, context: object) -> None:
    callback = getattr(stage, slot) if stage else None
    if callback:
        callback(context)


def _names(rows: list[Row], state: Enum) -> str:
    return " or ".join(row.event.__name__ for row in rows if row.source == state) or "nothing"


def _values(context: object) -> dict[str, Any]:
    """The context's fields as JSON values, so that a later change in place is seen."""
    if isinstance(context, Mapping):
        items = dict(context)
    elif is_dataclass(context):
        items = {f.name: getattr(context, f.name, None) for f in fields(context)}
    else:
        slots = [name for kind in type(context).__mro__ for name in getattr(kind, "__slots__", ())]
        items = {name: getattr(context, name) for name in slots if hasattr(context, name)}
        items |= getattr(context, "__dict__", {})
    return {_text(str(name)): _jsonable(value) for name, value in items.items()}


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, Any]]:
    gone = [(name, None) for name in before if name not in after]
    return gone + [(n, value) for n, value in after.items() if n not in before or before[n] != value]


def _jsonable(value: object) -> Any:
    """What the log can hold of a value of any kind: writing the log never fails the run."""
    try:
        text = to_json(value, fallback=repr, bytes_mode="base64", inf_nan_mode="strings")
        return from_json(text)
    except Exception:  # noqa: BLE001  # a user's object may raise anything here
        return f"<{type(value).__name__}>"


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
