"""What a run asks of its tools after a call, and what it tells people: plain frozen data.

A call whose worker died may have taken effect or not; a rollback may want a call undone; people
are told of what waits for them. These are the inputs and answers of the activities
`reconcile_tool`, `compensate_tool` and `notify`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from activities.contracts import Frozen, JsonObject, ToolRequest, ToolResult

__all__ = [
    "Compensated", "CompensateRequest", "Moment", "Notice", "Noticed", "ReconcileRequest", "Reconciled",
    "Way",
]  # fmt: skip

Moment = Literal["opened", "expiring", "closed"]
"""Of a request to people: it was opened, its deadline is near, it was decided or given up."""

Way = Literal["webhook", "command"]
"""How a worker tells people outside."""


class ReconcileRequest(ToolRequest):
    """Input of the activity `reconcile_tool`: the call as it was made, with its key.

    `attempts` counts those of the question, which may be repeated; the call itself never is.
    """


class Reconciled(Frozen):
    """What a tool's `reconcile` found out."""

    outcome: Literal["happened", "not_happened", "unknown"]
    result: ToolResult | None = None
    """What the call would have answered, if it happened."""
    text: str = ""
    """For a person: what was found, or why nothing was."""


class CompensateRequest(Frozen):
    """Input of the activity `compensate_tool`: undo this call."""

    tool: str
    arguments: JsonObject
    output: str = ""
    """What the call answered, as far as the run still has it."""
    key: str
    """Of the call that is undone; the undoing's own is this one with `/undo` behind it."""
    attempts: int = 3
    """In all, for transient failures of tools that may be repeated."""


class Compensated(Frozen):
    """What became of it."""

    ok: bool
    """The tool says that the call is undone."""
    text: str
    """For a person: what was done, or what went wrong."""
    cost_usd: float = Field(default=0, ge=0, allow_inf_nan=False)


class Notice(Frozen):
    """Input of the activity `notify`: tell people of a request."""

    moment: Moment
    request: JsonObject
    """The request as the run knows it; only what a person needs is passed on."""
    run: str
    """Workflow id."""
    agent: str = ""
    attempts: int = 6
    """In all, for transient failures: half a minute of an outage, and the time of the attempts."""


class Noticed(Frozen):
    """Whom the worker's hook told."""

    ok: bool = True
    """Nothing went wrong; also true when there is nobody to tell."""
    sent: tuple[Way, ...] = ()
    text: str = ""
    """What went wrong, or that the worker has no hook."""
