"""Commands that look at runs, and stop one: show, log, watch, list, result, cancel."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client.errors import NoWorker, RatchetError, RunFailed
from client.place import INTERRUPTED, Json, Place

if TYPE_CHECKING:
    from client.agent import AgentClient
    from client.listing import RunLine

__all__ = ["COMMANDS"]

Run = Annotated[
    str, typer.Argument(help="Id of the run, its beginning or end if that is unique.", metavar="RUN")
]


async def show(
    place: Place,
    run_id: Run,
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="The state as step N began, and what came of it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show where a run is, and its steps; with --step what it was then."""
    if step is not None:
        from client.cli_time import show_step

        await show_step(place, run_id, step, as_json)
        return
    await _show(place, run_id, as_json)


async def _show(place: Place, name: str, as_json: bool) -> None:
    from client.finding import find_any
    from client.view import notes, out, plain, status_lines, steps_table

    async with place.client() as agents:
        run_id = await find_any(agents, name)
        line = await _known(agents, run_id)
        try:
            status, steps = await agents.status(run_id), await agents.steps(run_id)
        except NoWorker as error:
            if line is None:
                raise
            _print_line(line, as_json)
            notes().print(plain(str(await _failure(agents, line) or error)))
            return
    if as_json:
        _print_json(
            {
                "run": line.model_dump(mode="json") if line else None,
                "status": status.model_dump(mode="json"),
                "steps": [step.model_dump(mode="json") for step in steps],
            }
        )
        return
    out().print(status_lines(line, status))
    if steps:
        out().print(steps_table(steps))


async def _known(agents: AgentClient, run_id: str) -> RunLine | None:
    """What a list shows of a run; None when only the archive knows it."""
    from client.errors import UnknownRun

    try:
        return await agents.describe(run_id)
    except UnknownRun:
        return None


async def _failure(agents: AgentClient, line: RunLine) -> RunFailed | None:
    """Why a run that is over has no result, which needs no worker."""
    if line.progress == "running":
        return None
    try:
        await agents.result(line.id)
    except RunFailed as error:
        return error
    return None


async def log(
    place: Place,
    run_id: Run,
    since: Annotated[int, typer.Option("--since", min=0, help="First sequence number.")] = 0,
    full: Annotated[bool, typer.Option("--full", help="Patches too, and no value cut.")] = False,
    as_json: Json = False,
) -> None:
    """Print every record of a run: what happened, why, and what it changed."""
    from client.finding import find_any
    from client.view import change_block, escaped, notes, out, plain, record_block

    async with place.client() as agents:
        run = await find_any(agents, run_id)
        records = await agents.records(run, since, full=full)
        line = None if records else await _known(agents, run)
        why = await _failure(agents, line) if line else None
        cut_off = await agents.cut_off(run)
    if not records and not as_json:
        notes().print(plain(str(why or f"run {run} has no record{f' from {since} on' if since else ' yet'}")))
    for before, record in zip((None, *records), records, strict=False):
        if as_json:
            typer.echo(escaped(record.model_dump_json()))
        else:
            out().print(record_block(record, before))
            if changed := change_block(record, full=full):
                out().print(changed)
    if cut_off:
        notes().print(
            f"here the archive ends; Temporal does not know run {plain(run)} (any more): its end is missing"
        )


async def watch(place: Place, run_id: Run, as_json: Json = False) -> int:
    """Follow a run as it happens, to its result."""
    from client.finding import find_any
    from client.running import follow

    try:
        async with place.client() as agents:
            return await follow(agents, await find_any(agents, run_id), as_json=as_json)
    except asyncio.CancelledError:
        return INTERRUPTED


async def list_runs(
    place: Place,
    running: Annotated[bool, typer.Option("--running", help="Only runs that are not over.")] = False,
    machine: Annotated[str | None, typer.Option("--machine", help="Only of this machine.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Only of this agent.")] = None,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    from client.view import WIDE, listing, notes, out

    async with place.client() as agents:
        lines = await agents.list(running=running, machine=machine, agent=agent)
    if as_json:
        _print_json([line.model_dump(mode="json") for line in lines])
    elif lines:
        console = out()
        console.print(listing(lines, console.width))
        if console.width < WIDE:
            more = f"agent, start, deadline: with a wider terminal ({WIDE} columns) or --json"
            notes().print(more, style="dim")
    else:
        notes().print("no runs")


async def result(place: Place, run_id: Run, as_json: Json = False) -> int:
    """Print what came out of a run that is over; 1 when it did not reach its goal."""
    from client.finding import find_any
    from client.view import escaped, out, result_text

    async with place.client() as agents:
        run = await find_any(agents, run_id)
        line = await _known(agents, run)
        if line is not None and line.progress == "running":
            waits = f"; it waits for a person ({line.waiting})" if line.waiting else ""
            raise RatchetError(f"run {run} is not over yet{waits}; `ratchet watch {run}` waits for its end")
        found = await agents.result(run)
    if as_json:
        typer.echo(escaped(found.model_dump_json(indent=2)))
    else:
        out().print(result_text(found, out()))
    return 0 if found.ok else 1


async def cancel(place: Place, run_id: Run, as_json: Json = False) -> None:
    """Stop a run; it ends with the exit reason `cancelled`."""
    from client.finding import find_any
    from client.view import plain

    async with place.client() as agents:
        run = await find_any(agents, run_id)
        line = await agents.describe(run)
        if line.progress != "running":
            raise RatchetError(
                f"run {run} is over already ({line.exit_reason or line.progress}); nothing was stopped"
            )
        await agents.cancel(run)
        has_worker = await agents.has_worker()
    if as_json:
        _print_json({"id": run, "asked_to_stop": True, "has_worker": has_worker})
        return
    typer.echo(plain(f"asked run {run} to stop"))
    if not has_worker:
        typer.echo("no worker runs; it stops when one does (`ratchet run --resume`)")


def _print_line(line: Any, as_json: bool) -> None:
    from client.view import listing, out

    if as_json:
        _print_json({"run": line.model_dump(mode="json"), "status": None, "steps": None})
    else:
        console = out()
        console.print(listing([line], console.width))


def _print_json(value: object) -> None:
    from client.view import escaped

    typer.echo(escaped(json.dumps(value, indent=2, ensure_ascii=False)))


COMMANDS: dict[str, Callable[..., Coroutine[Any, Any, int | None]]] = {
    "show": show,
    "log": log,
    "watch": watch,
    "list": list_runs,
    "result": result,
    "cancel": cancel,
}
