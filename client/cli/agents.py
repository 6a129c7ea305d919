"""`ratchet agents`: which agents there are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from client.agents.files import SCRIPTED, agents_here, shipped_agents, shipped_facts
from client.cli.options import CommonOptions, Json, command
from client.cli.output import print_lines, print_pairs
from client.errors import UsageError

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None)


@command(app)
def agents(common: CommonOptions, as_json: Json = False) -> None:
    """List agents: those of the current folder, and those that come with Ratchet."""
    shipped = shipped_agents()
    known = shipped_facts(shipped)
    rows = [{"agent": str(path), "file": str(path), **_facts(path)} for path in agents_here()]
    rows += [{"agent": path.stem, "file": str(path), **(known.get(path) or _facts(path))} for path in shipped]
    if as_json:
        print_lines(rows)
    else:
        print_pairs((row["agent"], _text(row)) for row in rows)


def _facts(path: Path) -> dict[str, Any]:
    """What the file says, or what is wrong with it."""
    from client.agents.agentfile import listed_facts  # it takes longer to import than to list what is known

    try:
        return listed_facts(path)
    except UsageError as error:
        return {"error": str(error)}


def _text(row: Mapping[str, Any]) -> str:
    """What an agent is for, its machine, and whether it needs a model."""
    if "error" in row:
        return str(row["error"])
    models = row["models"].values()
    needs = (
        "needs no model: it follows a script" if set(models) == {SCRIPTED} else f"models: {', '.join(models)}"
    )
    return f"{row['description']}\nmachine {row['machine']} · {needs}".lstrip("\n")
