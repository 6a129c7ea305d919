"""What a fork is told otherwise than its source was: goal, instructions, tools, where the context has them.

What that is depends on the machine; only its first contexts are compared, field by field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from workflows.kernel.fields import Fields
from workflows.kernel.log import FORKED, Record

__all__ = ["RETOLD", "differing", "retold", "told"]

C = TypeVar("C", bound=BaseModel)
RETOLD = "retold"
"""Key of a fork's `Record.about`: the fields that its task begins otherwise than its log does."""


def told(first: C, records: Iterable[Record]) -> C:
    """What a run was told last: the first context of its log, with what the newest fork says otherwise."""
    said: Any = {}
    for record in records:
        if record.event == FORKED and record.back_to is not None:
            said = record.about.get(RETOLD, said)
    fields = Fields.of(type(first))
    return first.model_copy(update={name: fields.value_from_json(name, said[name]) for name in said})


def differing(before: BaseModel, after: BaseModel) -> dict[str, Any]:
    """The fields of the second first context that are others than the first one's, as JSON values."""
    fields = Fields.of(type(after))
    return {
        name: fields.value_to_json(name, getattr(after, name))
        for name in fields.names
        if getattr(after, name) != getattr(before, name)
    }


def retold(context: BaseModel, before: BaseModel, after: BaseModel) -> dict[str, Any]:
    """Whole values for the fields of a context that still say what `before` had told, as `after` tells it.

    A field is replaced while it is as it began; of what only grows, the beginning; of a mapping that is
    merged into, the keys that are as they began.
    """
    fields = Fields.of(type(context))
    found: dict[str, Any] = {}
    for name in fields.names:
        old, was, now = (getattr(one, name) for one in (context, before, after))
        new = _told_anew(old, was, now, fields.reducer(name))
        if new != old:
            found[name] = new
    return found


def _told_anew(old: Any, was: Any, now: Any, reducer: str) -> Any:
    if was == now:
        return old
    if old == was:
        return now
    if reducer == "append":
        return _front(old, was, now)
    if reducer == "merge":
        return _keys(old, was, now)
    return old


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
            new[key] = _told_anew(old[key], was[key], now[key], "merge" if both else "replace")
    return new
