"""The state, folded from the log alone; a test proves for every machine that it equals the state.

What rollbacks went back behind does not count: the records that still hold are the log's lineage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel

from workflows.kernel.fields import Fields
from workflows.kernel.log import STARTED, Record, lineage
from workflows.kernel.machine import Machine

__all__ = ["rebuild"]

C = TypeVar("C", bound=BaseModel)


def rebuild(machine: Machine[C], records: Iterable[Record], within: str = "") -> tuple[Enum, C]:
    """State and context after these records, which begin with the run's first.

    Those of machines inside it are passed over; `within` names one of them to rebuild that instead.

    Raises ValueError when the records do not begin with the start, or name an unknown state.
    """
    fields, state = Fields.of(machine.context), machine.initial
    folding: _Folding | None = None
    for record in lineage(records):
        if record.within != within:
            continue
        if folding is None:
            if record.event != STARTED:
                raise ValueError(f"the log begins with record {record.seq}, {record.event}, not {STARTED}")
            folding = _Folding(fields, fields.load(record.patch))
        else:
            folding.take(record)
        if record.to is not None:
            state = machine.state_named(record.to)
    if folding is None:
        raise ValueError("the log is empty")
    return state, folding.context()  # type: ignore[return-value]  # Fields.load gives the machine's context


class _Folding:
    """A context in the making. Deltas wait, as JSON, until all are there: read one by one, with a new value
    after each, a long log would take many seconds."""

    def __init__(self, fields: Fields, first: BaseModel) -> None:
        self.fields, self.first = fields, first
        self.begins: dict[str, Callable[[], Any]] = {}
        """What a field's deltas are folded into, where that is not its first value."""
        self.behind: dict[str, list[Any]] = {}

    def take(self, record: Record) -> None:
        """Fold one record in."""
        for name in record.reset:
            self.behind.pop(name, None)
            if record.back_to is None:
                self.begins[name] = partial(self.fields.default, name)
        for name, delta in record.patch.items():
            if record.back_to is not None and name in record.reset:
                self.begins[name] = partial(self.fields.value_from_json, name, delta)
            else:
                self.behind.setdefault(name, []).append(delta)

    def context(self) -> BaseModel:
        """The context after all of them."""
        values = {name: value() for name, value in self.begins.items()}
        for name, deltas in self.behind.items():
            old = values[name] if name in values else getattr(self.first, name)
            values[name] = self.fields.fold_json(name, old, deltas)
        return self.first.model_copy(update=values)
