"""`ratchet gc`: delete what no run needs any more."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from client.cli.options import CommonOptions, Json, command
from client.cli.output import print_json
from client.errors import UsageError

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None)

UNITS = {"d": "days", "h": "hours", "w": "weeks"}


@command(app)
async def gc(
    common: CommonOptions,
    older_than: Annotated[
        str, typer.Option("--older-than", help="Delete nothing newer than this: 90d, 12w; at least 1d.")
    ] = "90d",
    archive: Annotated[
        bool, typer.Option("--archive", help="Also runs of the archive that ended before, and their blobs.")
    ] = False,
    forget: Annotated[
        list[str] | None,
        typer.Option(
            "--forget", help="Id of a namespace that is gone, or of a run: it needs nothing. Repeatable."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would go, delete nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Delete blobs that are old and that neither a run that Temporal knows nor the archive refers to."""
    from activities.store.cache import ConversationCache
    from client.server.garbage import delete_garbage, find_garbage

    age = _age(older_than)
    async with common.client() as client:
        stores = client.connection.stores
        found = await find_garbage(client.temporal, stores, age, archive=archive, forget=forget or ())
        size = sum(one.size for one in found.blobs)
        if not dry_run:
            size = await delete_garbage(stores, found)
            ConversationCache(client.connection.settings.cache_file).trim(age.total_seconds())
    oldest = datetime.fromtimestamp(found.blobs[0].at, UTC).isoformat(" ", "seconds") if found.blobs else None
    if as_json:
        print_json({
            "dry_run": dry_run, "blobs": len(found.blobs), "bytes": size, "oldest": oldest,
            "archived_runs": len(found.archived), "kept_blobs": found.kept, "kept_bytes": found.kept_bytes,
            "executions": found.executions,
        })  # fmt: skip
        return
    verb = "would delete" if dry_run else "deleted"
    since = f", the oldest of {oldest}" if oldest else ""
    typer.echo(f"{verb} blobs: {len(found.blobs):,} ({_bytes(size)}{since})")
    if archive:
        typer.echo(f"{verb} runs of the archive: {len(found.archived):,}")
    typer.echo(
        f"kept blobs: {found.kept:,} ({_bytes(found.kept_bytes)}); they are newer than {older_than}, or the "
        f"archive or one of {found.executions:,} executions in Temporal needs them"
    )


def _age(text: str) -> timedelta:
    """Raises UsageError."""
    from client.server.garbage import LEAST_AGE

    read = re.fullmatch(r"(\d{1,5})([dhw])", text)
    age = timedelta(**{UNITS[read[2]]: int(read[1])}) if read else None
    if age is None or age < LEAST_AGE:
        raise UsageError(
            f"--older-than {text}: expected hours, days or weeks such as 36h, 90d or 12w, at least "
            "1d: what was stored a moment ago may not be in any history yet"
        )
    return age


def _bytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size:,} bytes"
