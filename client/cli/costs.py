"""`ratchet costs`: what runs have cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from client.cli.options import CommonOptions, Json, command, moment
from client.cli.output import note, print_lines, print_table
from client.errors import UsageError
from client.runs.costs import By, CostLine, all_spending, cost_lines
from client.runs.words import counted, plain

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None)


@command(app)
async def costs(
    common: CommonOptions,
    run: Annotated[str | None, typer.Argument(hidden=True)] = None,
    by: Annotated[By, typer.Option("--by", help="One line for each of these; days are UTC.")] = "agent",
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only what was spent since: 36h, 7d, 4w, or a date."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Show what runs have cost: those in the archive, and those that are under way where a server runs.

    Exit code 1: the archive has runs whose log was changed; they are counted, and named on standard error.
    """
    if run is not None:
        raise UsageError(
            f"costs takes no run, but sums up many; `ratchet show {plain(run)}` shows what one spent"
        )
    begins = 0.0 if since is None else moment(since, datetime.now(UTC)).timestamp()
    missing: list[str] = []
    async with common.runs() as runs:
        found = await all_spending(runs, timed=by == "day" or since is not None, note=missing.append)
        broken = await runs.archive.broken()
    for text in missing:
        note(text)
    lines = cost_lines(found, by, begins)
    if as_json:
        print_lines(_json(line, by) for line in lines)
    elif lines:
        print_costs(lines, by)
    else:
        what, other = ("nothing else", "no other run") if missing else ("nothing", "no run")
        note(f"{other} has spent anything" if since is None else f"{what} was spent since {since}")
    for one in broken:
        note(str(one))
    return 1 if broken else 0


def print_costs(lines: Sequence[CostLine], by: str) -> None:
    """Costs, one line each, then the sum of all; numbers to the right."""
    names = ("day (UTC)" if by == "day" else by, "runs", "calls", "input", "output", "USD")
    rows = [(one.runs, one.model_calls, one.input_tokens, one.output_tokens, one.cost_usd) for one in lines]
    cells = [(plain(line.name), *_amounts(row)) for line, row in zip(lines, rows, strict=True)]
    table = [[(text, "") for text in row] for row in cells]
    if len(lines) > 1:
        totals = ("all", "", *_amounts([sum(column) for column in zip(*rows, strict=True)])[1:])
        table.append([(text, "bold") for text in totals])  # a run may be in several lines
    print_table(names, table, right=True)
    if unpriced := sum(line.unpriced_calls for line in lines):
        text = f"{counted(unpriced, 'call')} had no known price; `price` of the model sets one"
        print_table((text,), ())


def _amounts(row: Sequence[float]) -> list[str]:
    return [*(f"{number:,.0f}" for number in row[:-1]), f"{row[-1]:,.4f}"]


def _json(line: CostLine, by: str) -> dict[str, Any]:
    values = asdict(line)
    return {by: values.pop("name"), **values}
