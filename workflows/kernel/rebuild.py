"""The state, folded from the log alone; a test proves for every machine that it equals the state.

What rollbacks went back behind does not count: the records that still hold are the log's lineage.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, TypeVar

from pydantic import BaseModel

from workflows.kernel.fields import APPEND, Fields
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
    """A context in the making. What is appended waits until all of it is there: a long run's log would
    take seconds otherwise, since each append makes a new value."""

    def __init__(self, fields: Fields, first: BaseModel) -> None:
        self.fields, self.first = fields, first
        self.values = {name: getattr(first, name) for name in fields.names}
        self.behind: dict[str, list[Any]] = {}

    def take(self, record: Record) -> None:
        """Fold one record in."""
        for name in record.reset:
            self.behind.pop(name, None)
            if record.back_to is None:
                self.values[name] = self.fields.default(name)
        for name, delta in record.patch.items():
            if record.back_to is not None and name in record.reset:
                self.values[name] = self.fields.value_from_json(name, delta)
                continue
            found = self.fields.from_json(name, delta)
            if self.fields.reducer(name) == APPEND.name:
                self.behind.setdefault(name, []).extend(found)
            else:
                self.values[name] = self.fields.fold(name, self.values[name], found)

    def context(self) -> BaseModel:
        """The context after all of them."""
        for name, items in self.behind.items():
            self.values[name] = self.fields.fold(name, self.values[name], items)
        return self.first.model_copy(update=self.values)
