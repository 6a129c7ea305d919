"""Runs as a list shows them: what Temporal knows of them without a worker."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypedDict, Unpack, get_args

from client.errors import UsageError
from workflows.temporal_names import WORKFLOW_TYPE, Kind, Verb

__all__ = [
    "GOAL_CHARACTERS", "PROGRESS", "Filter", "RequestSummary", "RunLine", "list_filter", "quoted",
    "requests_in", "run_with_short_id",
]  # fmt: skip

Progress = Literal["running", "completed", "failed", "cancelled", "terminated", "timed out", "continued"]
PROGRESS: dict[int | None, Progress] = {
    1: "running",
    2: "completed",
    3: "failed",
    4: "cancelled",
    5: "terminated",
    6: "continued",
    7: "timed out",
}
"""By Temporal's number of the status; one that is not here is of a run that is not over."""
GOAL_CHARACTERS = 200
MAX_NAMED_RUNS = 10
"""Runs that a message names."""


@dataclass(frozen=True, kw_only=True)
class RequestSummary:
    """An open request in short, as the memo of its run has it."""

    id: str
    """Such as `r1`."""
    kind: Kind
    """Why the run asks."""
    text: str = ""
    """The beginning of the question."""
    tool: str | None = None
    """Of the call that it is about; None: it is about none."""
    digest: str
    """A decision must name it."""
    options: tuple[Verb, ...] = ()
    """What may be decided."""
    deadline: float | None = None
    """Seconds since 1970."""
    group: str | None = None
    """Who decides; None: anybody."""
    approvers: tuple[str, ...] = ()
    """Who may decide, the first five; empty: anybody."""
    quorum: int = 1
    """How many must decide the same."""
    signed: bool = False
    """Only signed decisions count."""
    arguments: dict[str, Any] | None = None
    """None: there are none, or they are too long for a list."""
    because: str = ""
    """The bound that the call would pass, in words; empty: none asks."""
    holds: tuple[str, ...] = ()
    """What its run holds that is untrusted or private, and what brought it."""


@dataclass(frozen=True, kw_only=True)
class RunLine:
    """One run in a list."""

    id: str
    """The workflow id."""
    run_id: str = ""
    """Temporal's id of the newest execution."""
    progress: Progress
    """Temporal's status."""
    agent: str = ""
    """Its name."""
    machine: str = ""
    """Its name."""
    task_queue: str
    """Of its workers: `ratchet`, or one of its own for a run of `ratchet run`."""
    state: str = ""
    """Empty unless the agent asks for `visibility: state`, or Temporal has a status that is no progress."""
    waiting: str = ""
    """Kind of the oldest open request, or `paused`; empty: the run waits for nobody."""
    waiting_since: datetime | None = None
    """When that request was opened, or it was paused."""
    deadline: datetime | None = None
    """The earliest of its requests'."""
    exit_reason: str = ""
    """Empty: it is not over, or Temporal does not know."""
    ok: bool | None = None
    """It reached its goal; None: it is not over, or the archive here does not know."""
    goal: str = ""
    """The first 200 characters of the goal."""
    started: datetime
    """When it began."""
    closed: datetime | None = None
    """When it ended; None: it is not over."""
    requests: tuple[RequestSummary, ...] = ()
    """The oldest five open requests."""
    log_head: str = ""
    """Hash of the log's last record, where the log could not be archived when the run ended; a worker writes
    it when the archive is back."""

    @property
    def is_running(self) -> bool:
        """It is not over."""
        return self.progress == "running"


def requests_in(memo: Any) -> tuple[RequestSummary, ...]:
    """The open requests that a memo names, the oldest five at most; none when it cannot be read."""
    with suppress(ValueError, TypeError, AttributeError, RecursionError):  # another program wrote it
        return tuple(map(_request_in, json.loads(memo) if isinstance(memo, str) else memo or ()))
    return ()


def _request_in(found: Mapping[str, Any]) -> RequestSummary:
    """One of them; what a newer worker says beyond our fields is left out. Raises ValueError."""
    values = {name: found[name] for name in _FORMS if found.get(name) is not None}
    if not all(isinstance(value, _FORMS[name]) for name, value in values.items()):
        raise ValueError
    for name in ("options", "approvers", "holds"):
        values[name] = tuple(map(str, values.get(name, ())))
    if values.get("kind") not in get_args(Kind) or not {*values["options"]} <= {*get_args(Verb)}:
        raise ValueError
    return RequestSummary(**values)


_FORMS: dict[str, Any] = {
    "id": str, "kind": str, "text": str, "tool": str, "digest": str, "options": list | tuple,
    "deadline": int | float, "group": str, "approvers": list | tuple, "quorum": int, "signed": bool,
    "arguments": dict, "because": str, "holds": list | tuple,
}  # fmt: skip
"""How the fields of a `RequestSummary` look as JSON."""


class Filter(TypedDict, total=False):
    """Which runs are meant; default: all."""

    running: bool
    """Only those that are not over."""
    waiting: bool
    """Only those that wait for people."""
    machine: str | None
    agent: str | None
    prefix: str
    """The beginning of their ids."""
    since: datetime | None
    """When they began at the earliest."""


def list_filter(**wanted: Unpack[Filter]) -> str:
    """A visibility query for runs. Executions that were continued as new are not there: the newest one is."""
    parts = [f"WorkflowType = '{WORKFLOW_TYPE}'", "ExecutionStatus != 'ContinuedAsNew'"]
    if wanted.get("running") or wanted.get("waiting"):
        parts.append("CloseTime IS NULL")
    if wanted.get("waiting"):
        parts.append("AgentWaiting IS NOT NULL")
    for name, value in (("AgentMachine", wanted.get("machine")), ("AgentName", wanted.get("agent"))):
        if value is not None:
            parts.append(f"{name} = '{quoted(value)}'")
    if since := wanted.get("since"):
        parts.append(f"StartTime >= '{since.astimezone(UTC).isoformat()}'")
    if prefix := wanted.get("prefix"):
        parts.append(f"WorkflowId STARTS_WITH '{quoted(prefix)}'")
    return " AND ".join(parts)


def quoted(value: str) -> str:
    """The value for a text in a visibility query. Raises UsageError."""
    if "\0" in value:  # the server cannot read such a query, and is asked again and again
        raise UsageError(f"no run has a name or an id such as {value[:40]!r}; `ratchet list` shows the runs")
    return value.replace("\\", "\\\\").replace("'", "\\'")


def run_with_short_id(short: str, ids: Iterable[str]) -> str | None:
    """The one id that begins or ends with `short`; None when there is none.

    An inner run's id begins with that of the outer run; a shortened one means the outer run.

    Raises:
        UsageError: there are several; they are named.
    """
    found = sorted(run for run in set(ids) if run.startswith(short) or run.endswith(short))
    outer = [run for run in found if not any(run.startswith(f"{other}/") for other in found)]
    if len(outer) > 1:
        more = [f"  and {len(outer) - MAX_NAMED_RUNS} more"] if len(outer) > MAX_NAMED_RUNS else []
        lines = "\n".join([*(f"  {run}" for run in outer[:MAX_NAMED_RUNS]), *more])
        raise UsageError(
            f"{short}: several runs have an id that begins or ends so; name one of them:\n{lines}"
        )
    return outer[0] if outer else None
