"""`ratchet inbox`: what waits for people."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from client.cli.options import CommonOptions, Json, command
from client.errors import NoWorker, Refused, StoreNotShared

if TYPE_CHECKING:
    from client.agent import AgentClient
    from client.listing import RequestSummary
    from workflows.people import Request, RequestsPage

__all__ = ["app", "asked_by"]

app = typer.Typer()


@command(app)
async def inbox(
    common: CommonOptions,
    run: Annotated[str | None, typer.Argument(help="Show all that this run asks, in full.")] = None,
    as_json: Json = False,
) -> None:
    """List the runs that wait for people, those that have waited longest first."""
    from client.cli.render import inbox_table, notes, out, print_json

    if run is not None:
        await _requests_of(common, run, as_json)
        return
    async with common.client() as client:
        lines = await client.inbox()
    if as_json:
        print_json(lines)
    elif lines:
        out().print(inbox_table(lines, datetime.now(UTC), out().width))
        notes().print("`ratchet inbox RUN` shows all that a run asks, and the commands that decide it")
    else:
        notes().print("no run waits for anybody; `ratchet list` shows all runs")


async def _requests_of(common: CommonOptions, name: str, as_json: bool) -> None:
    """All that one run asks: why, and how it is decided."""
    from client.cli.render import (
        decision_commands,
        notes,
        out,
        plain,
        print_json,
        request_block,
        request_reason,
        run_block,
    )
    from client.history.recorded import beginning_of
    from workflows.people import Request

    async with common.client() as client:
        run_id = await client.find(name)
        line, about = await asyncio.gather(client.describe(run_id), client.description(run_id))
        if line.progress != "running":
            raise Refused(
                f"run {run_id} is over ({line.exit_reason or line.progress}), so it asks nothing; "
                f"`ratchet show {run_id}` shows its result"
            )
        requests, page = await asked_by(client, run_id)
        task = (await beginning_of(client.temporal, run_id)).task
    children = [child.workflow_id for child in about.raw_description.pending_children]
    if as_json:
        rows = [
            {
                **request.model_dump(mode="json"),
                "reason": request_reason(request, task),
                "answers": decision_commands(request, run_id),
            }
            for request in requests
        ]
        print_json({"run": line, "children": children, "requests": rows})
        return
    out().print(run_block(line, children, datetime.now(UTC), paused=bool(page and page.paused)))
    if any(not isinstance(request, Request) for request in requests):
        notes().print("no worker answers, so this is the short form: not why it asks, nor who may decide")
    for request in requests:
        out().print()
        out().print(request_block(request, run_id, full=True, task=task))
        out().print("\n".join(f"  {line}" for line in decision_commands(request, run_id)))
    if not requests:
        then = (
            f"`ratchet resume {run_id}` lets it go on"
            if line.waiting == "paused"
            else f"`ratchet watch {run_id}` follows it"
        )
        notes().print(plain(f"it asks nothing now; {then}"))


async def asked_by(
    client: AgentClient, run_id: str
) -> tuple[tuple[Request | RequestSummary, ...], RequestsPage | None]:
    """The open requests of a run, oldest first; with their page, or in short and None without a worker."""
    try:
        page = await client.requests_page(run_id)
    except (NoWorker, StoreNotShared):
        return await client.request_summaries(run_id), None
    return page.open, page
