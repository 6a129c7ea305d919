"""Commands that show runs, and one that stops them: list, show, log, watch, result, cancel."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client.cli.options import INTERRUPTED, CommonOptions, Json, RunName, command
from client.errors import NoWorker, RatchetError, RunFailed, UnknownRun

if TYPE_CHECKING:
    from client.agent import AgentClient
    from client.listing import RunLine

__all__ = ["app"]

app = typer.Typer()


@command(app, "list")
async def list_runs(
    common: CommonOptions,
    running: Annotated[bool, typer.Option("--running", help="Only runs that are not over.")] = False,
    machine: Annotated[str | None, typer.Option("--machine", help="Only of this machine.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Only of this agent.")] = None,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    from client.cli.render import WIDE, notes, out, print_json, run_table

    async with common.client() as client:
        lines = await client.list(running=running, machine=machine, agent=agent)
    if as_json:
        print_json(lines)
    elif lines:
        console = out()
        console.print(run_table(lines, console.width))
        if console.width < WIDE:
            text = f"agent, start, deadline: on a wider terminal ({WIDE} columns) or with --json"
            notes().print(text, style="dim")
    else:
        notes().print("no runs")


@command(app)
async def show(
    common: CommonOptions,
    run: RunName,
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="The state when step N began, and what came of it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show where a run is, and its steps; with --step its state then."""
    from client.cli.render import notes, out, plain, print_json, run_table, status_block, steps_table

    if step is not None:
        from client.cli.history import show_step

        await show_step(common, run, step, as_json)
        return
    async with common.client() as client:
        run_id = await client.find(run)
        line = await _line(client, run_id)
        found: dict[str, Any] = {"run": line, "status": None, "steps": None}
        problem: RatchetError | None = None
        try:
            found |= {"status": await client.status(run_id), "steps": await client.steps(run_id)}
        except NoWorker as error:
            if line is None:
                raise
            problem = await _failure(client, line) or error
    if as_json:
        print_json(found)
    elif problem is None:
        out().print(status_block(line, found["status"]))
        out().print(steps_table(found["steps"]) if found["steps"] else "")
    elif line is not None:
        console = out()
        console.print(run_table([line], console.width))
    if problem is not None:
        notes().print(plain(str(problem)))


@command(app)
async def log(
    common: CommonOptions,
    run: RunName,
    since: Annotated[int, typer.Option("--since", min=0, help="First sequence number.")] = 0,
    full: Annotated[bool, typer.Option("--full", help="Changes too, and no value cut.")] = False,
    as_json: Json = False,
) -> None:
    """Print every record of a run: what happened, why, and what it changed."""
    from client.cli.render import change_block, notes, out, plain, print_json, record_block

    async with common.client() as client:
        run_id = await client.find(run)
        records = await client.records(run_id, since, full=full)
        line = await _line(client, run_id)
        failure = await _failure(client, line) if line and not records else None
        is_cut_off = line is None and not await client.is_archived(run_id)
    for before, record in zip((None, *records), records, strict=False):
        if as_json:
            print_json(record, indent=None)
            continue
        out().print(record_block(record, before))
        if changes := change_block(record, full=full):
            out().print(changes)
    if not records and not as_json:
        text = f"run {run_id} has no record from {since} on" if since else f"run {run_id} has no log yet"
        notes().print(plain(str(failure or text)))
    if is_cut_off:
        notes().print(f"Temporal does not know run {plain(run_id)}, and the archive lacks its end")


@command(app)
async def watch(common: CommonOptions, run: RunName, as_json: Json = False) -> int:
    """Follow a run as it happens, to its result."""
    from client.cli.run import follow

    try:
        async with common.client() as client:
            return await follow(client, await client.find(run), as_json=as_json)
    except asyncio.CancelledError:
        return INTERRUPTED


@command(app)
async def result(common: CommonOptions, run: RunName, as_json: Json = False) -> int:
    """Print what came out of a run that is over; exit code 1 when it did not reach its goal."""
    from client.cli.render import out, print_json, result_text

    async with common.client() as client:
        run_id = await client.find(run)
        line = await _line(client, run_id)
        if line is not None and line.progress == "running":
            waits = f"; it waits for a person ({line.waiting})" if line.waiting else ""
            raise RatchetError(f"run {run_id} is not over yet{waits}; `ratchet watch {run_id}` follows it")
        found = await client.result(run_id)
    if as_json:
        print_json(found)
    else:
        out().print(result_text(found, out()))
    return 0 if found.ok else 1


@command(app)
async def cancel(common: CommonOptions, run: RunName, as_json: Json = False) -> None:
    """Stop a run; it ends with the exit reason `cancelled`."""
    from client.cli.render import plain, print_json

    async with common.client() as client:
        run_id = await client.find(run)
        line = await client.describe(run_id)
        if line.progress != "running":
            reason = line.exit_reason or line.progress
            raise RatchetError(f"run {run_id} is over already ({reason}); nothing was stopped")
        await client.cancel(run_id)
        has_worker = await client.has_worker()
    if as_json:
        print_json({"id": run_id, "asked_to_stop": True, "has_worker": has_worker})
        return
    typer.echo(plain(f"asked run {run_id} to stop"))
    if not has_worker:
        typer.echo("no worker runs; it stops when one does (`ratchet run --resume`)")


async def _line(client: AgentClient, run_id: str) -> RunLine | None:
    """What a list shows of a run; None when only the archive knows it."""
    try:
        return await client.describe(run_id)
    except UnknownRun:
        return None


async def _failure(client: AgentClient, line: RunLine) -> RunFailed | None:
    """Why a run that is over has no result."""
    if line.progress == "running":
        return None
    try:
        await client.result(line.id)
    except RunFailed as error:
        return error
    return None
