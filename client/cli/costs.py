"""`ratchet costs`: what runs have cost."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from client.cli import render
from client.cli.options import CommonOptions, Json, command
from client.cli.typed import moment
from client.errors import RatchetError
from client.runs.costs import By, Spending, archived_spending, cost_lines, live_spending
from client.runs.words import counted
from client.server.workerconfig import load_settings

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None)


@command(app)
async def costs(
    common: CommonOptions,
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
    from activities.store.blobs import StoreError
    from activities.store.stores import Stores

    begins = 0.0 if since is None else moment(since, datetime.now(UTC)).timestamp()
    timed = by == "day" or since is not None
    live = await _live(common, timed)
    stores = Stores(load_settings(common.data_dir))
    try:
        found = [*archived_spending(stores.archive, timed=timed, live=(one.run for one in live)), *live]
        broken = [*stores.archive.broken()]
    except StoreError as error:
        raise RatchetError(f"the archive cannot be read: {error}") from error
    finally:
        stores.close()
    lines = cost_lines(found, by, begins)
    if as_json:
        render.print_lines({by: line.name, **line.model_dump(exclude={"name"})} for line in lines)
    elif lines:
        render.out().print(render.cost_table(lines, by))
    else:
        render.note("no run has spent anything" if since is None else f"nothing was spent since {since}")
    for one in broken:
        render.note(str(one))
    return 1 if broken else 0


async def _live(common: CommonOptions, timed: bool) -> tuple[Spending, ...]:
    """Of runs that are not over, where a server is named or runs; none is started."""
    from client.server.embedded import running_server

    if common.remote() is None and running_server(common.data_dir) is None:
        return ()
    problems: list[str] = []
    try:
        async with common.client() as client:
            live = await live_spending(client, timed=timed, failed=problems.append)
            kept = await client.archive.ended()
            over = {line.id for line in await client.lines() if line.closed and line.exit_reason != "refused"}
    except RatchetError as error:
        render.note(f"runs that are under way are not counted in full: {error}")
        return ()
    if missing := over - kept:
        render.note(
            f"{counted(len(missing), 'run')} that Temporal knows to be over, such as {min(missing)}, "
            "left no result in the archive here and count only as far as it has their log; name the "
            "directory of their workers with --data-dir. Runs that were terminated have none anywhere"
        )
    if problems:
        render.note(f"{len(problems)} runs that are under way are not counted in full: {problems[0]}")
    return live
