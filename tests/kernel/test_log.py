"""The log: from it alone the state is rebuilt; a run goes on from a snapshot as if nothing had been."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, field_validator

from activities.contracts import Frozen
from tests.kernel.puppet import CALM, Ask, Context, Ended, Item, Looped, Play, S, Told, Went, hear, puppet
from tests.kernel.randomkit import random_machine, random_script, speaks
from workflows.kernel.errors import MachineError
from workflows.kernel.fields import ADD, APPEND, COUNT, FIRST, MERGE, PUT
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import Record, chain, chained_hash
from workflows.kernel.machine import Machine, State
from workflows.kernel.rebuild import rebuild
from workflows.kernel.snapshot import Step, dump, load
from workflows.kernel.step import Cause, advance, reenter, start


def _play(machine: Machine[Any], script: Sequence[Any]) -> tuple[list[Record], Step[Any] | None]:
    """The whole log and the last step; None when the very start was refused."""
    records: list[Record] = []
    try:
        step = start(machine, Context(), now=0, ledger=Ledger(caps={"seconds": 9}))
        records += step.records
        for number, said in enumerate(script):
            if step.effect is None:
                break
            step = advance(machine, step, Told(said=speaks(said)), now=number)
            records += step.records
    except MachineError as error:
        return records + list(error.step.records), error.step
    return records, step


@settings(CALM, max_examples=300)
@given(st.integers(0, 2**32))
def test_the_state_is_rebuilt_from_the_log_alone(seed: int) -> None:
    """Whatever the machine and the answers; and every run ends, or waits, within the bound."""
    machine, script = random_machine(Random(seed)), random_script(Random(seed + 1))
    records, step = _play(machine, script)
    assert step is not None
    written = [Record.model_validate_json(record.model_dump_json()) for record in records]
    assert written == records
    assert rebuild(machine, written) == (step.snapshot.state, step.snapshot.context)
    assert [record.seq for record in records] == list(range(len(records)))
    assert step.snapshot.seq == len(records)
    assert step.snapshot.transitions <= 21


@settings(CALM, max_examples=200)
@given(st.integers(0, 2**32))
def test_a_run_goes_on_from_a_loaded_snapshot_with_the_same_log(seed: int) -> None:
    """Dumped to JSON and loaded again before every answer, it is the same run."""
    machine, script = random_machine(Random(seed)), random_script(Random(seed + 1))
    whole, last = _play(machine, script)
    records: list[Record] = []
    try:
        step = start(machine, Context(), now=0, ledger=Ledger(caps={"seconds": 9}))
        records += step.records
        for number, said in enumerate(script):
            if step.effect is None:
                break
            loaded = load(machine, json.loads(json.dumps(dump(step.snapshot))))
            assert loaded == step.snapshot
            ledger = Ledger.model_validate_json(step.ledger.model_dump_json())
            step = advance(machine, Step(loaded, ledger), Told(said=speaks(said)), now=number)
            records += step.records
    except MachineError as error:
        step = error.step
        records += step.records
    assert records == whole
    assert last is not None
    assert step.snapshot == last.snapshot


def test_a_log_without_its_beginning_is_refused() -> None:
    play = Play(puppet()).tell(Went())
    with pytest.raises(ValueError, match="the log begins with record 1, Went, not Started"):
        rebuild(play.machine, play.records[1:])
    with pytest.raises(ValueError, match="the log is empty"):
        rebuild(play.machine, [])


def test_a_log_with_a_steer_and_a_failure_in_it_is_rebuilt() -> None:
    play = Play(puppet(fail_state=S.FAILED, on_violation=lambda e, c: {"last_error": str(e)}))
    again = reenter(play.machine, play.step, Cause("Steered", "ann"), now=1, patch={"tree": {"a": 1}})
    play.records += again.records
    play.step = again
    play.tell(({"hidden": "x"}, Went()))
    assert rebuild(play.machine, play.records) == (S.FAILED, play.context)


def test_a_snapshot_of_another_machine_is_refused() -> None:
    machine = puppet()
    values = dump(Play(machine).step.snapshot)
    for change, message in (
        ({"state": "nowhere"}, "puppet has no state 'nowhere'"),
        ({"context": {"total": "many"}}, "total"),
    ):
        with pytest.raises(ValueError, match=message):
            load(machine, {**values, **change})
    with pytest.raises(ValueError, match="the snapshot of puppet lacks context, visit"):
        load(machine, {k: v for k, v in values.items() if k not in ("visit", "context")})


def test_a_chain_of_hashes_can_be_checked_in_parts_and_shows_a_change() -> None:
    records = Play(puppet()).tell(Went(), Went(), Ended()).records
    head = chain(records)
    assert chain(records[2:], chain(records[:2])) == head
    assert chain([*records[:1], records[1].model_copy(update={"reason": "x"}), *records[2:]]) != head
    assert chained_hash("", records[0]) == chain(records[:1])
    assert chain([]) == ""


def test_a_record_holds_the_change_and_not_the_whole() -> None:
    """Two thousand steps with a growing field: the log grows by what is new."""
    play = Play(puppet())
    for number in range(2000):
        play.tell(({"items": (Item(name="x"),), "tree": {"n": number}, "slots": {number: "x"}}, Ask()))
        if number % 900 == 899:
            play.tell(Looped())
    sizes = [len(record.model_dump_json()) for record in play.records]
    assert max(sizes[1900:]) < sizes[1] + 200
    assert len(play.context.items) == 2000


class Read(Frozen):
    """What counts how often it is read."""

    n: int

    @field_validator("n")
    @classmethod
    def _count(cls, n: int) -> int:
        TIMES_READ.append(n)
        return n


TIMES_READ: list[int] = []


class Grown(Frozen):
    """A field for every reducer that deltas of a long log wait for, and one that has a rule."""

    whole: Read = Read(n=0)
    first: Annotated[Read | None, FIRST] = None
    items: Annotated[tuple[Read, ...], APPEND] = ()
    parts: Annotated[tuple[Read, ...], ADD] = ()
    places: Annotated[tuple[Read, ...], PUT] = ()
    named: Annotated[dict[str, Read], MERGE] = {}
    ruled: Annotated[tuple[int, ...], APPEND, Field(max_length=200)] = ()
    count: Annotated[int, COUNT] = 0


def test_of_a_long_log_each_value_is_read_once_and_those_that_were_replaced_never() -> None:
    """So a log is folded in time that grows as it does: tens of thousands of records within a second."""
    names = frozenset(Grown.model_fields)

    def said(n: int) -> Any:
        one = Read(n=n)
        lists = {"items": (one,), "parts": (one,), "ruled": (n,)}
        return {
            "whole": one,
            "first": one,
            **lists,
            "places": {n % 9: one},
            "named": {f"k{n}": one},
            "count": 1,
        }

    asks = State(
        enter=lambda c, at: Ask(), resume=hear, grants={"ask"}, reads=names, writes=names, spends="rounds"
    )
    plain = puppet()
    machine: Machine[Any] = Machine(
        name="long", context=Grown, initial=S.A, final={S.END}, table=plain.rows,
        states={S.A: asks, S.B: asks, S.END: State()}, result=plain.result,
    )  # fmt: skip
    step = start(machine, Grown(), now=0)
    records = list(step.records)
    for n in range(100):
        step = advance(machine, step, Told(said=(said(n), Went())), now=n)
        records += step.records
    TIMES_READ.clear()
    assert rebuild(machine, records) == (step.snapshot.state, step.snapshot.context)
    # Those that are left, and the first value of `whole`.
    assert len(TIMES_READ) == 100 + 100 + 100 + 9 + 1 + 1 + 1
