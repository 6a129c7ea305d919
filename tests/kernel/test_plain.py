"""Plain machines: the caller's own states, events and context (spec 2.1)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

import pytest

from workflows.kernel.diagram import mermaid
from workflows.kernel.errors import DefinitionError, LimitExceeded, NoTransition
from workflows.kernel.log import Record
from workflows.kernel.plain import StateMachine


class S(Enum):
    """States of a door."""

    OPEN = "open"
    SHUT = "shut"
    GONE = "gone"


@dataclass(frozen=True)
class Pushed:
    """The door was pushed."""

    reason: str = ""


@dataclass(frozen=True)
class Slammed(Pushed):
    """Pushed hard."""


@dataclass(frozen=True)
class Removed:
    """No door any more."""


@dataclass
class Context:
    """Changed in place."""

    calls: list[str] = field(default_factory=list)
    count: int = 0


Door = StateMachine[S, object, Context]


def _note(word: str) -> Callable[[Context], None]:
    return lambda c: c.calls.append(word)


def _act(word: str) -> Callable[[Any, Context], None]:
    return lambda event, c: c.calls.append(f"{word} {type(event).__name__}")


def _door() -> Door:
    return (
        Door("door")
        .state(S.OPEN, on_enter=_note("enter open"), on_exit=_note("exit open"))
        .state(S.SHUT, on_enter=_note("enter shut"), on_exit=_note("exit shut"))
        .transition(S.OPEN, Slammed, S.OPEN, guard=lambda e, c: c.count > 0, action=_act("bounce"))
        .transition(S.OPEN, Pushed, S.SHUT, action=_act("push"))
        .transition(S.SHUT, Pushed, S.OPEN)
        .transition(S.SHUT, Removed, S.GONE)
        .terminal(S.GONE)
    )


def _source(events: Iterable[object | None]) -> Callable[[S, Context], object | None]:
    left = iter(events)
    return lambda state, c: next(left)


def test_events_move_machine_and_context_comes_back() -> None:
    context = Context()
    state, same = _door().run(S.OPEN, context, _source([Pushed(), Removed()]))
    assert state is S.GONE
    assert same is context
    assert context.calls == ["enter open", "exit open", "push Pushed", "enter shut", "exit shut"]


def test_self_transition_and_false_guard() -> None:
    context = Context(count=1)
    assert _door().run(S.OPEN, context, _source([Slammed(), None]))[0] is S.OPEN
    assert context.calls == ["enter open", "exit open", "bounce Slammed", "enter open"]
    assert _door().run(S.OPEN, Context(), _source([Slammed(), None]))[0] is S.SHUT


def test_terminal_initial_state_asks_no_source() -> None:
    context = Context()
    machine = _door().state(S.GONE, on_enter=_note("enter gone"))
    assert machine.run(S.GONE, context, _source([])) == (S.GONE, context)
    assert context.calls == ["enter gone"]


def test_none_stops_in_any_state() -> None:
    assert _door().run(S.SHUT, Context(), _source([None]))[0] is S.SHUT


async def test_async_source_gives_the_same() -> None:
    events = _source([Pushed(), Pushed(), Pushed(), Removed()])

    async def source(state: S, context: Context) -> object | None:
        return events(state, context)

    there, here = Context(), Context()
    one: list[Record] = []
    two: list[Record] = []
    assert (await _door().arun(S.OPEN, there, source, one))[0] is S.GONE
    _door().run(S.OPEN, here, _source([Pushed(), Pushed(), Pushed(), Removed()]), two)
    assert (there, one) == (here, two)


@pytest.mark.parametrize("where", ["source", "guard", "action", "on_enter", "on_exit"])
def test_exception_leaves_unchanged(where: str) -> None:
    raised = LookupError("mine")

    def fail(*_: object) -> Any:
        raise raised

    machine = Door("door").transition(
        S.OPEN,
        Pushed,
        S.SHUT,
        guard=fail if where == "guard" else None,
        action=fail if where == "action" else None,
    )
    machine.state(S.SHUT, on_enter=fail if where == "on_enter" else None)
    machine.state(S.OPEN, on_exit=fail if where == "on_exit" else None)
    with pytest.raises(LookupError) as caught:
        machine.run(S.OPEN, Context(), fail if where == "source" else _source([Pushed()]))
    assert caught.value is raised


def test_unmatched_events_are_logged_and_bounded() -> None:
    """R-001-1: the event source may not keep the machine busy for ever."""
    log: list[Record] = []
    machine = Door("door", max_unmatched=3).transition(S.OPEN, Pushed, S.SHUT)
    with pytest.raises(NoTransition, match="in state open, Removed came"):
        machine.run(S.OPEN, Context(), lambda state, c: Removed(), log)
    assert [(r.state, r.event, r.to) for r in log] == [("open", "Removed", None)] * 3


def test_hundredth_unmatched_event_raises() -> None:
    """R-001-1: `max_unmatched` is 100 by default, and starts again after a transition."""
    asked = [Removed()] * 99 + [Pushed()] + [Slammed()] * 99
    machine = Door().transition(S.OPEN, Pushed, S.SHUT)
    assert machine.run(S.OPEN, Context(), _source([*asked, None]))[0] is S.SHUT
    with pytest.raises(NoTransition):
        machine.run(S.OPEN, Context(), _source([*asked, Slammed()]))


def test_transitions_are_bounded() -> None:
    """R-001-1: `max_transitions` is 10,000 by default."""
    assert Door().max_transitions == 10_000
    context = Context()
    machine = Door(max_transitions=5).transition(S.OPEN, Pushed, S.OPEN, action=_act("push"))
    with pytest.raises(LimitExceeded, match="5 transitions"):
        machine.run(S.OPEN, context, lambda state, c: Pushed())
    assert len(context.calls) == 5


def test_log_shows_changes() -> None:
    log: list[Record] = []
    machine = Door().transition(S.OPEN, Pushed, S.SHUT, action=lambda e, c: setattr(c, "count", c.count + 1))
    machine.state(S.SHUT, on_enter=_note("shut"))
    machine.run(S.OPEN, Context(), _source([Pushed("wind"), None]), log)
    (record,) = log
    assert (record.state, record.event, record.to, record.reason) == ("open", "Pushed", "shut", "wind")
    assert record.patch == {"values": {"change": {"calls": {"append": ["shut"]}, "count": {"set": 1}}}}


class Awkward:
    """A context that cannot be copied, compared, or written as JSON."""

    __slots__ = ("also", "lock", "loop", "name")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.loop: list[Any] = [b"\xff", float("nan"), {1, 2}]
        self.loop.append(self.loop)
        self.name = "half \ud800"

    def __eq__(self, other: object) -> bool:
        raise TypeError("do not compare me")

    __hash__ = None  # type: ignore[assignment]  # it cannot be hashed either


def test_log_never_fails_a_run() -> None:
    log: list[Record] = []
    machine = StateMachine[S, object, Any]().transition(
        S.OPEN, Pushed, S.SHUT, action=lambda e, c: setattr(c, "also", 1)
    )
    context = Awkward()
    _, same = machine.run(S.OPEN, context, _source([Pushed("half \ud800"), None]), log)
    assert same is context
    assert log[0].patch == {"values": {"change": {"also": {"set": 1}}}}
    assert log[0].model_dump_json()


def test_mapping_context() -> None:
    log: list[Record] = []
    machine = StateMachine[S, object, Any]().transition(S.OPEN, Pushed, S.SHUT, action=lambda e, c: c.pop(1))
    machine.run(S.OPEN, {1: "x", "y": 2}, _source([Pushed(), None]), log)
    assert log[0].patch == {"values": {"change": {}, "drop": ["1"]}}


class Number(IntEnum):
    """A state that counts as false."""

    ZERO = 0
    ONE = 1


def test_state_may_be_zero() -> None:
    log: list[Record] = []
    machine = (
        StateMachine[Number, object, Any]().transition(Number.ONE, Pushed, Number.ZERO).terminal(Number.ZERO)
    )
    assert machine.run(Number.ONE, {}, lambda state, c: Pushed(), log)[0] is Number.ZERO
    assert log[0].to == "ZERO"


def test_run_without_log_reads_no_context() -> None:
    class Shy:
        """A context that does not want to be looked at."""

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    machine = StateMachine[S, object, Any]().transition(S.OPEN, Pushed, S.OPEN)
    assert machine.run(S.OPEN, Shy(), _source([*[Pushed()] * 9, None]))[0] is S.OPEN


def test_definition_is_verified_and_drawn() -> None:
    assert "    open --> open: Slammed [condition]\n" in mermaid(_door().definition(S.OPEN), "shut")
    with pytest.raises(DefinitionError, match="no row leaves gone"):
        Door("door").transition(S.OPEN, Pushed, S.GONE).transition(S.OPEN, Removed, S.SHUT).terminal(
            S.SHUT
        ).definition(S.OPEN)
    with pytest.raises(DefinitionError, match="unreachable from shut: open"):
        Door("door").transition(S.OPEN, Pushed, S.SHUT).terminal(S.SHUT).definition(S.SHUT)


def test_plain_machine_may_name_events_as_ratchet_does() -> None:
    Started, Paused = (type(name, (), {}) for name in ("Started", "Paused"))
    machine = Door().transition(S.OPEN, Started, S.SHUT).transition(S.SHUT, Paused, S.GONE).terminal(S.GONE)
    log: list[Record] = []
    assert machine.run(S.OPEN, Context(), _source([Started(), Paused()]), log)[0] is S.GONE
    assert [record.event for record in log] == ["Started", "Paused"]
