"""A run goes on with another version of its machine."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel

from activities.contracts import AskPerson, JsonObject, PersonDecided
from ratchet import Context, Event, Exit, Machine, Run, RunInput, Visit, do, state
from workflows.kernel.errors import DefinitionError
from workflows.kernel.log import Record
from workflows.kernel.rollback import forked, migrated, restored, rolled_back
from workflows.kernel.snapshot import Program, Suspension, dump
from workflows.kernel.transition import advance, start


class Old(Enum):
    COUNT, DONE = "count", "done"


class New(Enum):
    TALLY, DONE = "tally", "done"


class Options(BaseModel, frozen=True):
    """None."""


class Counted(Context):
    count: int = 0


class Tallied(Context):
    total: int = 0
    unit: str = ""


class More(Event):
    """Not there yet."""


class Enough(Event):
    """Three."""


@state(Old.COUNT, asks={AskPerson}, reads={"count"}, writes={"count"}, counts="rounds")
def count(c: Counted, run: Run) -> Visit:
    """Ask, then count."""
    yield from do(AskPerson(about="question", text="go on?"))
    return {"count": c.count + 1}, Enough() if c.count >= 2 else More()


@state(New.TALLY, asks={AskPerson}, reads={"total"}, writes={"total"}, counts="rounds")
def tally(c: Tallied, run: Run) -> Visit:
    """Ask twice, then count."""
    yield from do(AskPerson(about="question", text="go on?"))
    yield from do(AskPerson(about="question", text="sure?", label="sure"))
    return {"total": c.total + 1}, Enough() if c.total >= 2 else More()


def to_new(state: str, context: JsonObject) -> tuple[str, JsonObject]:
    """The migration."""
    return {"count": "tally"}[state], {"total": context["count"], "unit": "pieces"}


def old() -> Machine:
    return Machine(
        name="tally", options=Options, context=Counted, begin=lambda given, options: Counted(),
        initial=Old.COUNT, table={Old.COUNT: {More: Old.COUNT, Enough: Old.DONE}}, states=[count],
        step=Old.COUNT, result=lambda c, run: Exit(reason="counted", ok=True, answer=str(c.count)),
    )  # fmt: skip


def new(**more: Any) -> Machine:
    given: dict[str, Any] = {"version": "2", "migrations": {"1": to_new}, **more}
    return Machine(
        name="tally", options=Options, context=Tallied, begin=lambda given, options: Tallied(),
        initial=New.TALLY, table={New.TALLY: {More: New.TALLY, Enough: New.DONE}}, states=[tally],
        step=New.TALLY, result=lambda c, run: Exit(reason="counted", ok=True, answer=str(c.total)), **given,
    )  # fmt: skip


def program(machine: Machine) -> Program:
    return Program(machine, RunInput(goal="count"))


def go_on(step: Suspension, log: list[Record], times: int) -> Suspension:
    """Answer so many questions."""
    for _ in range(times):
        step = advance(step, PersonDecided(decision="resume", by="ann"), now=1)
        log.extend(step.records)
    return step


def counted_once() -> tuple[Suspension, list[Record]]:
    """A run of the old version before its second step."""
    step = start(program(old()), now=0)
    log = list(step.records)
    return go_on(step, log, 1), log


def carried(step: Suspension) -> JsonObject:
    found: JsonObject = json.loads(json.dumps(dump(step)))
    return found


def test_run_continues_in_new_version_with_what_it_has() -> None:
    step, log = counted_once()
    step = migrated(program(new()), carried(step), "1", now=1)
    log.extend(step.records)
    assert step.snapshot.context == Tallied(total=1, unit="pieces")
    assert [record.event for record in log][-2:] == ["More", "Migrated"]
    step = go_on(step, log, 4)
    assert step.exit is not None
    assert step.exit.answer == "3"
    again = restored(step.program, log)
    live = step.snapshot
    assert (again.context, again.state, again.transitions, again.seq) == (
        live.context, live.state, live.transitions, live.seq,
    )  # fmt: skip


@pytest.mark.parametrize(("to_step", "total"), [(0, 0), (2, 1)])
def test_rollback_goes_behind_a_migration(to_step: int, total: int) -> None:
    step, log = counted_once()
    step = migrated(program(new()), carried(step), "1", now=1)
    log.extend(step.records)
    step = go_on(step, log, 2)
    back = rolled_back(step, log, to_step, now=2, by="person")
    assert back.snapshot.context == Tallied(total=total, unit="pieces")
    log.extend(back.records)
    assert restored(back.program, log).context == back.snapshot.context


def test_fork_of_an_old_run_begins_with_the_new_version() -> None:
    _, log = counted_once()
    fork = forked(program(new()), log, 0, now=2, by="person")
    log = [*log[:1], *fork.records]
    assert fork.snapshot.context == restored(fork.program, log).context == Tallied(unit="pieces")


def test_run_in_middle_of_visit_waits_for_own_version() -> None:
    step = start(program(new()), now=0)
    step = advance(step, PersonDecided(decision="resume", by="ann"), now=1)
    third = new(version="3", migrations={"2": lambda state, context: (state, context)})
    with pytest.raises(ValueError, match="middle of tally"):
        migrated(program(third), carried(step), "2", now=1)


@pytest.mark.parametrize(
    ("migrations", "culprit"),
    [
        ({"0": to_new}, "from version 1"),
        ({"1": lambda state, context: ("nowhere", {})}, "nowhere"),
        ({"1": lambda state, context: ("done", {})}, "done"),
        ({"1": lambda state, context: ("tally", {"total": "many"})}, "total"),
        ({"1": lambda state, context: ("tally", context)}, "count"),
    ],
)
def test_migration_that_does_not_fit_is_named(migrations: Any, culprit: str) -> None:
    step, _ = counted_once()
    with pytest.raises(ValueError, match=culprit):
        migrated(program(new(migrations=migrations)), carried(step), "1", now=1)


def test_machine_cannot_migrate_from_itself() -> None:
    with pytest.raises(DefinitionError, match="own version 2"):
        new(migrations={"2": to_new})


def test_call_that_was_not_made_is_not_counted() -> None:
    step, _ = counted_once()
    dump: Any = carried(step)
    dump["ledger"]["spent"]["model_calls"] = 1.0
    dump["reserved"] = {"model_calls": 1}
    assert migrated(program(new()), dump, "1", now=1).ledger.used("model_calls") == 0


def test_log_that_names_no_version_is_refused() -> None:
    _, log = counted_once()
    first = log[0].model_copy(update={"about": {}})
    with pytest.raises(ValueError, match="version"):
        restored(program(new()), [first, *log[1:]])
