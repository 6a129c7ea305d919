"""The state, folded from the log alone; a test proves for every machine that it equals the state.

What rollbacks went back behind does not count: the records that still hold are the log's lineage.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
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
    fields = Fields.of(machine.context)
    context: BaseModel | None = None
    state = machine.initial
    for record in lineage(records):
        if record.within != within:
            continue
        if context is None:
            if record.event != STARTED:
                raise ValueError(f"the log begins with record {record.seq}, {record.event}, not {STARTED}")
            context = fields.load(record.patch)
        else:
            context = _folded(fields, context, record)
        if record.to is not None:
            state = machine.state_named(record.to)
    if context is None:
        raise ValueError("the log is empty")
    return state, context  # type: ignore[return-value]  # Fields.load gives the machine's context


def _folded(fields: Fields, context: BaseModel, record: Record) -> BaseModel:
    values: dict[str, Any] = {}
    if record.back_to is None:
        values = {name: fields.default(name) for name in record.reset}
    for name, delta in record.patch.items():
        if record.back_to is not None and name in record.reset:
            values[name] = fields.value_from_json(name, delta)
            continue
        old = values.get(name, getattr(context, name))
        values[name] = fields.fold(name, old, fields.from_json(name, delta))
    return context.model_copy(update=values)
