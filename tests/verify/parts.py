"""Parts of machines that lie in another file."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ratchet import CallTools, Event, RecoverableError, ToolCall, VisitEnd, do


class Lost(Event):
    """Something else."""


def gave_up(why: str) -> VisitEnd:
    """What a state returns."""
    return {"secret": why}, Lost(why)


def called(tool: str) -> Generator[Any, Any, str]:
    """One call of a tool. Raises RecoverableError."""
    returned = yield from do(CallTools(calls=(ToolCall(id=tool, tool=tool),)))
    if not returned.results[0].ok:
        raise RecoverableError("it failed")
    return str(returned.results[0].output)


def noted(patch: dict[str, Any]) -> None:
    """Changes what it is given."""
    patch["secret"] = "noted"
