"""`ratchet codec`: the codec server."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from client.cli.options import CommonOptions, command

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None)
PORT = 8888
"""Where it listens unless told otherwise; the embedded server's ports are above."""


@command(app)
async def codec(
    common: CommonOptions,
    listen: Annotated[
        str, typer.Option("--listen", help="Address and port, ADDRESS:PORT.")
    ] = f"127.0.0.1:{PORT}",
    origin: Annotated[
        list[str] | None,
        typer.Option("--origin", help="A Web UI that may ask, as http://localhost:8233; repeatable."),
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option("--host", help="Name of this machine in addresses; repeatable.")
    ] = None,
) -> int:
    """Decode for Temporal's Web UI, CLI and other SDKs until Ctrl-C. RATCHET_CODEC_TOKEN is asked for."""
    from client.cli import render
    from client.cli.logs import log_to_terminal
    from client.errors import UsageError
    from client.server.codec import serving_codec
    from client.server.embedded import running_server
    from client.server.workerconfig import load_settings

    settings = load_settings(common.data_dir)
    address, _, port = listen.rpartition(":")
    if not address or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen is {listen!r}; expected ADDRESS:PORT, such as 127.0.0.1:{PORT}")
    embedded = running_server(common.data_dir)
    origins = [*(origin or ()), *(embedded.origins if embedded else ())]
    note = render.notes()
    with log_to_terminal(settings):
        async with serving_codec(settings, (address, int(port)), origins=origins, hosts=host or ()) as url:
            note.print(f"codec server  {url}")
            note.print(f"Temporal's command line: temporal workflow show --codec-endpoint {url} ...")
            note.print(f"Web UIs that may ask: {', '.join(origins) or 'none; name them with --origin'}")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                note.print("stopped")
    return 0
