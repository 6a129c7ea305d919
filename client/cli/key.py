"""`ratchet key`: keys that decisions are signed with, and keys that encrypt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from client.cli.options import By, CommonOptions, command
from client.keys import name_of, new_encryption_key, new_key, public_key, signer, warning_if_exposed

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None)


@command(app)
async def key(
    common: CommonOptions,
    action: Annotated[
        Literal["new", "show", "encryption"],
        typer.Argument(help="Make one, show its public half, or add one to the encryption keys of a file."),
    ],
    file: Annotated[Path, typer.Argument(help="Of the private key, or of the encryption keys.")],
    by: By = None,
) -> None:
    """Print the line for the agent file, under people.groups.GROUP.keys; of an encryption key the name."""
    if action == "encryption":
        name = new_encryption_key(file)
        typer.echo(
            f"wrote {file}, which only you may read; name it with RATCHET_ENCRYPTION_KEYS. The file's first "
            f"key encrypts, all decrypt",
            err=True,
        )
        typer.echo(name)
        return
    if action == "new":
        name, public = name_of(by), new_key(file)
        typer.echo(f"wrote {file}, which only you may read; sign with --key {file}, or RATCHET_KEY", err=True)
    else:
        who = signer(by, file)
        name, public = who.name, public_key(who.key) if who.key else ""
        if warning := warning_if_exposed(file):
            typer.echo(warning, err=True)
    typer.echo(f"{json.dumps(name, ensure_ascii=False)}: {public}")
