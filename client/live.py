"""What a run is doing at this moment, as the server knows it of the workers' heartbeats."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse
from temporalio.client import Client

__all__ = ["Now", "moment"]


@dataclass(frozen=True, slots=True)
class Now:
    """One look at a run."""

    text: str = ""
    """What the model has said so far in the call that is under way, its last 2 KiB; or what a tool
    reports of its progress. At most a second old."""
    trouble: str | None = None
    """What fails and is tried again, in one line; None when all goes well."""
    children: tuple[str, ...] = ()
    """Ids of the runs at work inside."""
    asks: bytes = b""
    """What it asks people, as the server keeps it: to see that it has changed."""


async def moment(temporal: Client, about: DescribeWorkflowExecutionResponse) -> Now:
    """Read it out of a description."""
    doing = await _doing(temporal, about)
    children = tuple(child.workflow_id for child in about.pending_children)
    asks = about.workflow_execution_info.memo.fields.get("asks")
    return replace(doing, children=children, asks=asks.data if asks else b"")


async def _doing(temporal: Client, about: DescribeWorkflowExecutionResponse) -> Now:
    text = ""
    for pending in about.pending_activities:
        if pending.HasField("last_failure"):
            words = " ".join(pending.last_failure.message.split())[:300]
            return Now(trouble=f"{pending.activity_id} failed and is tried again: {words}")
        with suppress(Exception):  # a heartbeat of another version: nothing to show
            seen = await temporal.data_converter.decode(pending.heartbeat_details.payloads, [str])
            text = str(seen[0]) if seen else text
    if about.HasField("pending_workflow_task") and about.pending_workflow_task.attempt > 2:
        return Now(text, "the workflow itself fails again and again; the cause is in worker.log")
    return Now(text)
