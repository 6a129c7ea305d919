"""`ratchet inbox`: what waits for people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from client.cli import render
from client.cli.options import CommonOptions, Json, command
from client.errors import NoWorker, Refused, StoreNotShared, clear_errors
from client.runs.listing import RequestSummary
from client.runs.words import request_reason
from workflows.people import Request, RequestsPage

if TYPE_CHECKING:
    from client.sdk.agent import AgentClient

__all__ = ["AnyRequest", "app", "open_requests"]

app = typer.Typer(rich_markup_mode=None)
AnyRequest = Request | RequestSummary


@command(app)
async def inbox(
    common: CommonOptions,
    run: Annotated[str | None, typer.Argument(help="Show all that this run asks, in full.")] = None,
    as_json: Json = False,
) -> None:
    """List the runs that wait for people, those that have waited longest first."""
    if run is not None:
        async with common.client() as client:
            await _show_requests(client, await client.find(run), as_json)
        return
    async with common.runs() as runs:
        lines = await runs.inbox()
    if as_json:
        render.print_lines(lines)
    elif lines:
        render.out().print(render.inbox_table(lines, datetime.now(UTC), render.out().width))
        render.note("`ratchet inbox RUN` shows all that a run asks, and the commands that decide it")
    else:
        render.note("no run waits for anybody; `ratchet list` shows all runs")


async def _show_requests(client: AgentClient, run_id: str, as_json: bool) -> None:
    """All that one run asks: why, and how it is decided."""
    from client.history.recorded import beginning_of

    line = await client.describe(run_id)
    if line.progress != "running":
        raise Refused(
            f"run {run_id} is over ({line.exit_reason or line.progress}), so it asks nothing; "
            f"`ratchet show {run_id}` shows its result"
        )
    about = (await client.description(run_id)).raw_description
    children = [child.workflow_id for child in about.pending_children]
    requests, page = await open_requests(client, run_id)
    async with clear_errors(client.where, run_id):
        task = (await beginning_of(client.temporal, run_id)).task
    if as_json:
        rows = [
            {
                **request.model_dump(mode="json"),
                "reason": request_reason(request, task),
                "answers": render.decision_commands(request, run_id),
            }
            for request in requests
        ]
        render.print_json({"run": line, "children": children, "requests": rows})
        return
    render.out().print(render.run_block(line, children, datetime.now(UTC), paused=bool(page and page.paused)))
    if page is None:
        render.note("no worker answers, so this is the short form: not why it asks, nor who may decide")
    for request in requests:
        render.out().print("\n", render.request_block(request, run_id, full=True, task=task), sep="")
        render.out().print("\n".join(f"  {one}" for one in render.decision_commands(request, run_id)))
    if not requests:
        does = "resume {} lets it go on" if line.waiting == "paused" else "watch {} follows it"
        render.note(f"it asks nothing now; ratchet {does.format(run_id)}")


async def open_requests(
    client: AgentClient, run_id: str
) -> tuple[tuple[AnyRequest, ...], RequestsPage | None]:
    """The open requests of a run, oldest first; with their page, or in short and None without a worker."""
    try:
        page = await client.requests_page(run_id)
    except (NoWorker, StoreNotShared):
        return await client.request_summaries(run_id), None
    return page.open, page
