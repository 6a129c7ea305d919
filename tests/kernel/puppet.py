"""A machine whose states say what the test tells them: every answer carries what is said next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

from hypothesis import HealthCheck, settings
from pydantic import BaseModel, ConfigDict

from activities.contracts import Effect, EffectFailed, Frozen, JsonObject
from workflows.kernel.fields import ADD, APPEND, COUNT, FIRST, MERGE, PUT
from workflows.kernel.log import Record
from workflows.kernel.machine import At, Exit, Machine, Row, State
from workflows.kernel.snapshot import Step
from workflows.kernel.step import advance, start

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For property tests: a busy machine is no failure."""


class S(Enum):
    """The states of the puppet."""

    A = "a"
    B = "b"
    END = "end"
    FAILED = "failed"


@dataclass(frozen=True)
class Went:
    """A to B and back."""

    reason: str = ""


@dataclass(frozen=True)
class Looped(Went):
    """A subclass: a self-transition of A, when its row comes first."""


@dataclass(frozen=True)
class Ended:
    """To the end."""

    reason: str = ""


@dataclass(frozen=True)
class Stray:
    """No row fits this one."""


class Item(Frozen):
    """A nested model with something changeable in it."""

    name: str
    tags: list[str] = []
    more: JsonObject = {}


class Context(Frozen):
    """A field for every reducer."""

    goal: str = "goal"
    hidden: str = "secret"
    items: Annotated[tuple[Item, ...], APPEND] = ()
    names: Annotated[list[str], ADD] = []
    total: Annotated[int, COUNT] = 0
    tree: Annotated[JsonObject, MERGE] = {}
    slots: Annotated[tuple[str, ...], PUT] = ()
    why: Annotated[str | None, FIRST] = None
    item: Item = Item(name="first", tags=["x"], more={"deep": {"list": [1]}})
    last_error: str | None = None

    @property
    def loud(self) -> str:
        """The goal, in capitals."""
        return self.goal.upper()

    def said(self, word: str) -> str:
        """The goal and a word."""
        return f"{self.goal} {word}"


class Ask(Effect):
    """An effect of the test's own."""

    kind: Literal["ask"] = "ask"


class Told(BaseModel):
    """Its answer: what the state says next, or a function of view and `At` that gives it."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    said: Any


def hear(c: Any, told: Any, at: At) -> Any:
    """A `resume` that says what it is told."""
    return told.said(c, at) if callable(told.said) else told.said


def ask(c: Any, at: At) -> Ask:
    """An `enter` that asks."""
    return Ask()


FIELDS = frozenset(Context.model_fields) - {"hidden"}
TALKS: dict[str, Any] = {"enter": ask, "resume": hear, "grants": {"ask"}, "reads": FIELDS, "writes": FIELDS}
ROWS = (
    Row(S.A, Looped, S.A),
    Row(S.A, Went, S.B),
    Row(S.A, Ended, S.END),
    Row(S.B, Went, S.A),
    Row(S.B, Ended, S.END),
)


def ended(c: Any, state: Enum) -> Exit:
    """How the puppet ended."""
    return Exit(reason=str(state.value), ok=state is S.END, answer=getattr(c, "goal", None))


def puppet(
    rows: Any = ROWS, states: Mapping[S, Mapping[str, Any]] | None = None, **changes: Any
) -> Machine[Any]:
    """The machine; `states` changes single slots of states, `changes` those of the machine."""
    slots: dict[S, dict[str, Any]] = {S.A: {**TALKS, "spends": "rounds"}, S.B: {**TALKS}, S.END: {}}
    if changes.get("fail_state"):
        slots[S.FAILED] = {}
    for state, changed in (states or {}).items():
        slots[state] = {**slots.get(state, {}), **changed}
    made = {state: State(**kept) for state, kept in slots.items()}
    final = {S.END, *([S.FAILED] if S.FAILED in made else [])}
    base: dict[str, Any] = {
        "name": "puppet", "context": Context, "initial": S.A, "final": final, "table": rows,
        "states": made, "result": ended,
    }  # fmt: skip
    return Machine(**{**base, **changes})


class Play:
    """One run: tells the machine things and gathers its log."""

    def __init__(self, machine: Machine[Any], context: Any = None, **more: Any) -> None:
        self.machine = machine
        self.records: list[Record] = []
        self.now = 0.0
        first = Context() if context is None else context
        self.step: Step[Any] = self._kept(start(machine, first, now=0, **more))

    def _kept(self, step: Step[Any]) -> Step[Any]:
        self.records += step.records
        return step

    def tell(self, *said: Any) -> Play:
        """One answer after the other."""
        for each in said:
            self.now += 1
            answer = each if isinstance(each, EffectFailed) else Told(said=each)
            self.step = self._kept(advance(self.machine, self.step, answer, now=self.now))
        return self

    @property
    def state(self) -> Enum:
        """Where the machine is."""
        return self.step.snapshot.state

    @property
    def context(self) -> Any:
        """What it remembers."""
        return self.step.snapshot.context

    @property
    def path(self) -> list[tuple[str, str, str | None]]:
        """The log, as (state, event, to)."""
        return [(r.state, r.event, r.to) for r in self.records]
