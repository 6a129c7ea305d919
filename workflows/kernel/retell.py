"""What a fork is told otherwise than its source was: goal, instructions, tools, where the context has them.

What that is depends on the machine: contexts are compared field by field, those that a run begins with and
what the machine makes of them before it asks for anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import BaseModel

from workflows.kernel.errors import MachineError
from workflows.kernel.fields import Fields
from workflows.kernel.log import Record
from workflows.kernel.machine import Machine
from workflows.kernel.step import start

__all__ = ["RETOLD", "deaf", "differing", "pairs", "retold", "told"]

C = TypeVar("C", bound=BaseModel)
RETOLD = "retold"
"""Key of `Record.about`: what a fork's task begins otherwise than its log does. It is in the record of the
fork, and in that of each of its rollbacks that told it anew."""


def told(first: C, records: Iterable[Record]) -> C:
    """What a run was told last: the first context of its log, with what a fork says otherwise; the newest
    record that goes back and tells it counts."""
    said: Mapping[str, Any] = {}
    for record in records:
        anew = record.about.get(RETOLD)
        if record.back_to is not None and isinstance(anew, dict):
            said = anew
    fields = Fields.of(type(first))
    known = [name for name in fields.names if name in said]
    return first.model_copy(update={name: fields.value_from_json(name, said[name]) for name in known})


def differing(before: BaseModel, after: BaseModel) -> dict[str, Any]:
    """The fields of the second first context that are others than the first one's, as JSON values."""
    fields = Fields.of(type(after))
    return {
        name: fields.value_to_json(name, getattr(after, name))
        for name in fields.names
        if getattr(after, name) != getattr(before, name)
    }


def pairs(machine: Machine[C], before: C, after: C, began: float) -> list[tuple[C, C]]:
    """What the run was told and what it is told now: as the machine has it when it first asks for something,
    and as it begins. `began` is when the run did, for what the machine makes of that."""
    if before == after:
        return []
    opened = [_opened(machine, first, began) for first in (before, after)]
    return [*([(opened[0], opened[1])] if opened[0] and opened[1] else []), (before, after)]


def _opened(machine: Machine[C], first: C, began: float) -> C | None:
    try:
        return start(replace(machine, hold=None), first, now=began).snapshot.context
    except MachineError:
        return None


def retold(context: BaseModel, told: Iterable[tuple[BaseModel, BaseModel]]) -> dict[str, Any]:
    """Whole values for the fields of a context that still say what was told before, as it is told now.

    A field is replaced while it is as it began; of what only grows, the beginning; of a mapping that is
    merged into, the keys that are as they began.
    """
    fields, known = Fields.of(type(context)), tuple(told)
    found: dict[str, Any] = {}
    for name in fields.names:
        old, whole = getattr(context, name), fields.replaces(name)
        said = [(getattr(was, name), getattr(now, name)) for was, now in known]
        ways = (_told_anew(old, was, now, whole) for was, now in said)
        new = next((way for way in ways if way != old), old)
        if new != old:
            found[name] = new
    return found


def deaf(context: BaseModel, told: Iterable[tuple[BaseModel, BaseModel]]) -> list[str]:
    """The fields that are told anew and say neither what was told before nor what is told now: the run has
    changed them, and `retold` leaves them as they are."""
    known = tuple(told)
    if not known:
        return []
    heard, now = retold(context, known), known[-1][1]
    # Said elsewhere too: a step's first input is the goal, and later another.
    elsewhere = [getattr(now, name) for name in heard]
    return [
        name
        for name in Fields.of(type(context)).names
        if name not in heard
        and getattr(now, name) not in elsewhere
        and getattr(known[-1][0], name) != getattr(known[-1][1], name)
        and all(getattr(context, name) != getattr(told_now, name) for _, told_now in known)
    ]


def _told_anew(old: Any, was: Any, now: Any, whole: bool) -> Any:
    if was == now:
        return old
    if old == was:
        return now
    if whole:
        return old
    if isinstance(old, Mapping):
        return _keys(old, was, now)
    return _front(old, was, now) if isinstance(old, tuple | list) or hasattr(old, "add") else old


def _front(old: Any, was: Any, now: Any) -> Any:
    """The beginning of what grew, when it is what it began with."""
    items, begun = list(old), list(was)
    if items[: len(begun)] != begun:
        return old
    rest = items[len(begun) :]
    return now.add(*rest) if hasattr(now, "add") else type(now)([*now, *rest])


def _keys(old: Mapping[str, Any], was: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Key by key, also in mappings within; a key that nobody has told any more is left out."""
    new = dict(old)
    for key in (*was, *(key for key in now if key not in was)):
        if key not in now:
            if key in old and old[key] == was[key]:
                del new[key]
        elif key not in old:
            if key not in was:
                new[key] = now[key]
        elif key in was:
            both = all(isinstance(one[key], Mapping) for one in (old, was, now))
            new[key] = _told_anew(old[key], was[key], now[key], not both)
    return new
