"""`ratchet inbox RUN`: all that one run asks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from client.cli import render, render_requests
from client.cli.output import note, print_json
from client.errors import MachineBug, NoWorker, Refused, StoreNotShared, resume_command
from client.runs.requests import AnyRequest, request_reason
from workflows.people import RequestsPage

if TYPE_CHECKING:
    from client.sdk.agent import AgentClient

__all__ = ["open_requests", "show_requests"]


async def show_requests(client: AgentClient, run_id: str, *, as_json: bool) -> None:
    """All that one run asks: why, and how it is decided."""
    from pydantic_core import to_jsonable_python

    line = await client.describe(run_id)
    if line.progress != "running":
        raise Refused(
            f"run {run_id} is over ({line.exit_reason or line.progress}), so it asks nothing; "
            f"`ratchet show {run_id}` shows its result"
        )
    about = (await client.description(run_id)).raw_description
    children = [child.workflow_id for child in about.pending_children]
    requests, page = await open_requests(client, run_id)
    task = (await client.beginning(run_id)).task
    sent = await client.waiting_decisions(run_id) if page is None else ()
    if as_json:
        rows = [
            {
                **to_jsonable_python(request),
                "reason": request_reason(request, task),
                "answers": render_requests.decision_commands(request, run_id),
            }
            for request in requests
        ]
        print_json({"run": line, "children": children, "requests": rows, "sent": sent})
        return
    render.out().print(
        render_requests.run_block(line, children, datetime.now(UTC), paused=bool(page and page.paused))
    )
    if page is None:
        note("the run does not answer, so this is the short form: not why it asks, nor who may decide")
    for request in requests:
        render.out().print("\n", render_requests.request_block(request, run_id, full=True, task=task), sep="")
        render.out().print(
            "\n".join(f"  {one}" for one in render_requests.decision_commands(request, run_id))
        )
    for one in sent:
        start = resume_command(embedded=client.ui is not None)
        text = f"{one.request}: `{one.decision}` by {one.by or 'somebody'} was sent, and waits for a worker"
        note(f"{text} ({start})")
    if not requests:
        does = "resume {} lets it go on" if line.waiting == "paused" else "watch {} follows it"
        note(f"it asks nothing now; ratchet {does.format(run_id)}")


async def open_requests(
    client: AgentClient, run_id: str
) -> tuple[tuple[AnyRequest, ...], RequestsPage | None]:
    """The open requests of a run, oldest first; with their page, or in short and None where it does
    not answer."""
    try:
        page = await client.requests_page(run_id)
    except (NoWorker, MachineBug, StoreNotShared):
        return await client.request_summaries(run_id), None
    return page.open, page
