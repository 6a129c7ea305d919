"""`ratchet console`: the web page for the people who decide and the people who look."""

from __future__ import annotations

import asyncio
import ipaddress
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from client.cli import render
from client.cli.options import By, CommonOptions, command
from client.errors import UsageError
from client.keys import signer
from client.runs.words import plain
from client.server.ui import LOCAL_NAMES
from client.server.workerconfig import Allowed

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None)


@command(app)
async def console(
    common: CommonOptions,
    by: By = None,
    key: Annotated[
        Path | None,
        typer.Option("--key", envvar="RATCHET_KEY", help="Private key (PEM) to sign.", rich_help_panel="Who"),
    ] = None,
    console_port: Annotated[
        int | None,
        typer.Option(
            "--console-port",
            envvar="RATCHET_CONSOLE_PORT",
            min=1,
            max=65535,
            help="Of the console; default: 8260, else a free one.",
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="ADDRESS", help="IPv4 address to listen at; 0.0.0.0 is all.")
    ] = "127.0.0.1",
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="NAME", help="A name under which browsers reach it, without port; repeatable."
        ),
    ] = None,
) -> int:
    """Serve the console until Ctrl-C: decide what runs ask, follow and command them, start agents.

    It needs no worker. Whoever has the link acts under your name (--by), with your key if there is one.
    """
    from client.console.app import serving_console

    names = _names(listen, hosts or ())
    person = signer(by, key)
    note = render.notes()
    try:
        async with (
            common.client(common.worker_settings(Allowed())) as client,
            serving_console(client, person, host=listen, port=console_port, names=names) as link,
        ):
            note.print(f"Console   {link}", soft_wrap=True)
            note.print(f"Who has this link acts as {plain(person.name) or 'nobody'}. Until Ctrl-C.")
            if names != LOCAL_NAMES:
                note.print(
                    "Others can reach it, and it speaks plain HTTP: put a proxy with TLS before it, and give "
                    "the link only to people who may act under this name."
                )
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        note.print("stopped")
    return 0


def _names(listen: str, hosts: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """The names under which browsers reach the console."""
    with suppress(ValueError):
        address = ipaddress.IPv4Address(listen)
        if address.is_loopback:
            return (*hosts, *LOCAL_NAMES)
        if hosts or not address.is_unspecified:
            return (*hosts, *([] if address.is_unspecified else [listen]))
        raise UsageError(
            "--listen 0.0.0.0 opens the console to every network of this machine: name with --host under "
            "which name browsers reach it, such as --host console.example.org"
        )
    raise UsageError(f"--listen {listen}: expected an IPv4 address, such as 127.0.0.1")
