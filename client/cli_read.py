"""Commands that look at runs, and stop one: show, log, watch, list, result, cancel."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import typer

from client.errors import NoWorker, RatchetError
from client.place import INTERRUPTED, Json, Place

__all__ = ["COMMANDS"]

Run = Annotated[str, typer.Argument(help="Id of the run.", metavar="RUN")]


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


async def _show(place: Place, run_id: str, as_json: bool) -> None:
    from client.errors import UnknownRun
    from client.view import notes, out, status_lines, steps_table

    async with place.client() as agents:
        try:
            line = await agents.describe(run_id)
        except UnknownRun:
            line = None  # perhaps the archive knows it
        try:
            status, steps = await agents.status(run_id), await agents.steps(run_id)
        except NoWorker as error:
            if line is None:
                raise
            _print_line(line, as_json)
            notes().print(str(error))
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


async def log(
    place: Place,
    run_id: Run,
    since: Annotated[int, typer.Option("--since", min=0, help="First sequence number.")] = 0,
    full: Annotated[bool, typer.Option("--full", help="Patches too, and no value cut.")] = False,
    as_json: Json = False,
) -> None:
    """Print every record of a run: what happened, why, and what it changed."""
    from client.view import change_block, out, record_block

    async with place.client() as agents:
        records = await agents.records(run_id, since, full=full)
    for record in records:
        if as_json:
            typer.echo(record.model_dump_json())
        else:
            out().print(record_block(record))
            if changed := change_block(record, full=full):
                out().print(changed)


async def watch(place: Place, run_id: Run, as_json: Json = False) -> int:
    """Follow a run as it happens, to its result."""
    from client.running import follow

    try:
        async with place.client() as agents:
            return await follow(agents, run_id, as_json=as_json)
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
    from client.view import listing, notes, out

    async with place.client() as agents:
        lines = await agents.list(running=running, machine=machine, agent=agent)
    if as_json:
        _print_json([line.model_dump(mode="json") for line in lines])
    elif lines:
        console = out()
        console.print(listing(lines, console.width))
    else:
        notes().print("no runs")


async def result(place: Place, run_id: Run, as_json: Json = False) -> int:
    """Print what came out of a run that is over; 1 when it did not reach its goal."""
    from client.errors import UnknownRun
    from client.view import out, result_text

    async with place.client() as agents:
        try:
            line = await agents.describe(run_id)
        except UnknownRun:
            line = None  # perhaps the archive knows it
        if line is not None and line.progress == "running":
            raise RatchetError(f"run {run_id} is not over yet; `ratchet watch {run_id}` waits for its end")
        found = await agents.result(run_id)
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
    else:
        out().print(result_text(found, out()))
    return 0 if found.ok else 1


async def cancel(place: Place, run_id: Run, as_json: Json = False) -> None:
    """Stop a run; it ends with the exit reason `cancelled`."""
    async with place.client() as agents:
        line = await agents.describe(run_id)
        if line.progress != "running":
            raise RatchetError(f"run {run_id} is over already ({line.progress}); nothing was stopped")
        await agents.cancel(run_id)
        has_worker = await agents.has_worker()
    if as_json:
        _print_json({"id": run_id, "asked_to_stop": True, "has_worker": has_worker})
        return
    typer.echo(f"asked run {run_id} to stop")
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
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


COMMANDS: dict[str, Callable[..., Coroutine[Any, Any, int | None]]] = {
    "show": show,
    "log": log,
    "watch": watch,
    "list": list_runs,
    "result": result,
    "cancel": cancel,
}
