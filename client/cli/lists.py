"""`ratchet list` and `inbox`: one line for each run or request.

They import as little as possible: people type them often, and their own work takes a few milliseconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from client.cli.options import CommonOptions, Json, command, moment
from client.cli.output import Cell, columns, note, print_lines, print_table
from client.runs.words import one_line, plain, request_line, time_left, time_span

if TYPE_CHECKING:
    from client.runs.listing import RunLine

__all__ = ["app", "print_inbox", "print_runs"]

app = typer.Typer(rich_markup_mode=None)
WIDE_COLUMNS = 120
"""Columns from which on the inbox shows the hour of a deadline, too."""


@dataclass(frozen=True)
class Filters:
    """Which runs are listed."""

    running: Annotated[bool, typer.Option("--running", help="Only runs that are not over.")] = False
    machine: Annotated[str | None, typer.Option("--machine", help="Only of this machine.")] = None
    agent: Annotated[str | None, typer.Option("--agent", help="Only of this agent.")] = None
    since: Annotated[
        str | None, typer.Option("--since", help="Only runs that began since: 90min, 12h, 7d, or a date.")
    ] = None


@command(app, "list")
async def list_runs(
    common: CommonOptions,
    which: Filters,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="So many at most; 0: all.")] = 20,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    now = datetime.now(UTC)
    filters = {**asdict(which), "since": None if which.since is None else moment(which.since, now)}
    async with common.runs() as runs:
        lines = await runs.list(**filters, limit=limit or None)
        known = await runs.count(**filters) if len(lines) == limit else len(lines)
        problem = "" if as_json else await runs.missing_worker(lines)
    if as_json:
        print_lines(lines)
    elif lines:
        print_runs(lines, now)
    if known > len(lines) > 0:
        note(f"the newest {len(lines)} of {known:,} runs; --limit 0 lists all")
    elif not lines and not as_json:
        note(_nowhere(common, "no runs"))
    if problem:
        note(problem)


@command(app)
async def inbox(
    common: CommonOptions,
    run: Annotated[str | None, typer.Argument(help="Show all that this run asks, in full.")] = None,
    as_json: Json = False,
) -> None:
    """List the runs that wait for people, those that have waited longest first."""
    if run is not None:
        from client.cli.inbox import show_requests

        async with common.client() as client:
            await show_requests(client, await client.find(run), as_json=as_json)
        return
    async with common.runs() as runs:
        lines = await runs.inbox()
        problem = "" if as_json else await runs.missing_worker(lines)
    if as_json:
        print_lines(lines)
    elif lines:
        print_inbox(lines, datetime.now(UTC))
        note("`ratchet inbox RUN` shows all that a run asks, and the commands that decide it")
    else:
        note(f"{_nowhere(common, 'no run waits for anybody')}; `ratchet list` shows all runs")
    if problem:
        note(f"{problem}, and then decisions that were sent take effect")


def _nowhere(common: CommonOptions, what: str) -> str:
    """With the directory that was looked into: a person may be in another folder."""
    return what if common.remote() is not None else f"{what} in {plain(str(common.data_dir.resolve()))}"


def print_runs(lines: Iterable[RunLine], now: datetime) -> None:
    """Runs, one line each: only goals are cut."""
    print_table(("", "run", "", "began", "goal"), [_run_cells(line, now) for line in lines])


def _run_cells(line: RunLine, now: datetime) -> tuple[Cell, ...]:
    """A run in a list: its mark, and the texts after it."""
    began = f"{time_span((now - line.started).total_seconds())} ago"
    mark, colour, words = "●", "blue", line.state or line.progress
    if not line.is_running:
        mark, colour = {True: ("✓", "green"), False: ("✗", "red"), None: ("·", "dim")}[line.ok]
        words = "" if line.ok else line.exit_reason or line.progress
    elif line.waiting:
        until = f", {time_span((line.deadline - now).total_seconds())} left" if line.deadline else ""
        mark, colour, words = "?", "yellow", f"waits: {line.waiting}{until}"
        if line.waiting == "paused":
            mark, words = "‖", "paused"
    texts = (plain(line.id), plain(words), began, one_line(line.goal, len(line.goal) + 1))
    return (mark, colour), *((text, "") for text in texts)


def print_inbox(lines: Iterable[RunLine], now: datetime) -> None:
    """Waiting runs, one line for each open request; only what is asked is cut."""
    is_wide = columns(sys.stdout) >= WIDE_COLUMNS
    rows = [row for line in lines for row in _inbox_rows(line, now, wide=is_wide)]
    cells = [[(text, "") for text in (*facts, one_line(what, len(what) + 1))] for *facts, what in rows]
    print_table(("run", "waits", "deadline", "for"), cells)


def _inbox_rows(line: RunLine, now: datetime, *, wide: bool) -> list[tuple[str, str, str, str]]:
    def due(at: float | None) -> str:
        words = "" if at is None else time_left(at, now.timestamp())
        return words if wide else words.rpartition(", ")[2]

    waits = time_span((now - line.waiting_since).total_seconds()) if line.waiting_since else ""
    run = plain(line.id)
    if not line.requests:
        deadline = due(line.deadline.timestamp() if line.deadline else None)
        return [(run, waits, deadline, plain(f"{line.waiting}   {line.goal}"))]
    firsts = [(run, waits), *[("", "")] * (len(line.requests) - 1)]
    return [
        (*first, due(request.deadline), request_line(request, 500))
        for first, request in zip(firsts, line.requests, strict=True)
    ]
