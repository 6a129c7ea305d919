"""Runs that wait for people, from search attributes and memo alone: no worker is needed, no run is asked."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime

from pydantic import TypeAdapter
from temporalio.client import WorkflowExecution

from activities.contracts import Frozen, JsonObject
from client.listing import RunLine, line_of, list_filter, memo_of
from workflows.people import Kind, Verb

__all__ = ["ASKS_KEY", "WAITING_FILTER", "Ask", "InboxLine", "asks_of", "inbox_line", "oldest_first"]

ASKS_KEY = "asks"
WAITING_FILTER = f"{list_filter(running=True)} AND AgentWaiting IS NOT NULL"
"""The visibility query of the inbox: one call, however many runs wait."""


class Ask(Frozen):
    """An open request in short, as a run's memo has it."""

    id: str
    kind: Kind
    text: str = ""
    """The beginning of what is asked."""
    tool: str | None = None
    digest: str
    options: tuple[Verb, ...] = ()
    deadline: float | None = None
    """Seconds since 1970."""
    arguments: JsonObject | None = None
    """None: there are none, or they are too long for a list."""


class InboxLine(Frozen):
    """One run that waits for people."""

    run: str
    """Workflow id."""
    waiting: str
    """Kind of the oldest open request, or `paused`."""
    since: datetime | None = None
    deadline: datetime | None = None
    agent: str = ""
    machine: str = ""
    goal: str = ""
    started: datetime
    asks: tuple[Ask, ...] = ()
    """The open requests in short, the oldest five at most."""


_ASKS: TypeAdapter[tuple[Ask, ...]] = TypeAdapter(tuple[Ask, ...])


async def asks_of(run: WorkflowExecution) -> tuple[Ask, ...]:
    """The open requests that the run's memo names; none when a newer worker wrote what we cannot read."""
    found = await memo_of(run, ASKS_KEY)
    with suppress(ValueError, RecursionError):  # pydantic's are some, too
        return _ASKS.validate_python(json.loads(found) if isinstance(found, str) else found or ())
    return ()


async def inbox_line(run: WorkflowExecution) -> InboxLine:
    """A run that waits, as the inbox shows it."""
    line: RunLine = await line_of(run)
    return InboxLine(
        run=line.id,
        waiting=line.waiting,
        since=line.waiting_since,
        deadline=line.deadline,
        agent=line.agent,
        machine=line.machine,
        goal=line.goal,
        started=line.started,
        asks=await asks_of(run),
    )


def oldest_first(lines: Iterable[InboxLine]) -> tuple[InboxLine, ...]:
    """Who has waited longest comes first; the server does not sort."""
    never = datetime.max.replace(tzinfo=UTC)
    return tuple(sorted(lines, key=lambda line: (line.since or never, line.started, line.run)))
