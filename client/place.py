"""What every command shares: where the data and Temporal are, and how it is run."""

from __future__ import annotations

import asyncio
import inspect
import signal
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

if TYPE_CHECKING:
    from activities.settings import Settings
    from client.agent import AgentClient
    from client.workerconfig import Allowed

__all__ = ["INTERRUPTED", "Json", "Place", "command"]

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

DataDir = Annotated[
    Path,
    typer.Option(
        "--data-dir",
        envvar="RATCHET_DATA_DIR",
        help="Database, logs and archive of this directory's runs.",
        rich_help_panel="Where",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="A Temporal server elsewhere (else TEMPORAL_ADDRESS, a profile, or our own).",
        rich_help_panel="Where",
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", help="Of the server elsewhere.", rich_help_panel="Where"),
]
Port = Annotated[
    int | None,
    typer.Option(
        "--port",
        envvar="RATCHET_PORT",
        min=1,
        max=65535,
        help="Of our own server; any free one if left out.",
        rich_help_panel="Where",
    ),
]
UiPort = Annotated[
    int | None,
    typer.Option(
        "--ui-port",
        envvar="RATCHET_UI_PORT",
        min=1,
        max=65535,
        help="Of our own server's Web UI.",
        rich_help_panel="Where",
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.", rich_help_panel="Where")]

R = TypeVar("R")
PLACE = ("data_dir", "address", "namespace", "port", "ui_port")


@dataclass(frozen=True)
class Place:
    """Where a command works."""

    data_dir: Path
    address: str | None
    namespace: str | None
    port: int | None = None
    ui_port: int | None = None

    def remote(self) -> dict[str, Any] | None:
        """How to connect to a server elsewhere; None when the embedded one is meant."""
        from client.connection import remote_config

        return remote_config(self.address, self.namespace)

    def settings(self, allowed: Allowed | None = None) -> Settings:
        """What a worker at this place may load and reach."""
        from client.workerconfig import load_settings

        return load_settings(self.data_dir, allowed)

    def worker_settings(self, allowed: Allowed) -> Settings:
        """The same for a worker that starts now; remembered modules that are broken are left out, aloud."""
        from activities.settings import Settings
        from client.view import notes
        from client.workerconfig import load_settings, loadable

        fixed = load_settings(self.data_dir, allowed)
        settings, left_out = loadable(fixed, (*Settings().modules, *allowed.modules))
        for words in left_out:
            notes().print(words)
        return settings

    def client(
        self, settings: Settings | None = None, logs: Literal["file", "terminal"] = "file"
    ) -> AbstractAsyncContextManager[AgentClient]:
        """A client of this place, without a worker; this process's logs go where `logs` says."""
        from client.connection import connected
        from client.logs import log_to_file, log_to_terminal
        from client.server import Ports, usable

        settings = settings or self.settings()
        usable(settings.data_dir)
        if logs == "file":
            log_to_file(settings)
        else:
            log_to_terminal(settings)
        return connected(
            settings=settings,
            remote=self.remote(),
            ports=Ports(self.port, self.ui_port),
        )


def command(
    app: typer.Typer, name: str
) -> Callable[[Callable[..., Coroutine[Any, Any, int | None]]], Callable[..., None]]:
    """Register a coroutine `work(place, ...)` as a command; what it returns is the exit code.

    The options that make the place are the same for every command, so they are added here.
    """

    def register(work: Callable[..., Coroutine[Any, Any, int | None]]) -> Callable[..., None]:
        def run(debug: bool, **options: Any) -> None:
            place = Place(**{name: options.pop(name) for name in PLACE})
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see client.start
                signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                code = asyncio.run(_stoppable(work(place, **options)))
            except (KeyboardInterrupt, asyncio.CancelledError):
                raise typer.Exit(INTERRUPTED) from None
            raise typer.Exit(code or 0)

        own = inspect.signature(work, eval_str=True)
        shared = [
            _option("data_dir", DataDir, Path(".ratchet")),
            _option("address", Address, None),
            _option("namespace", Namespace, None),
            _option("port", Port, None),
            _option("ui_port", UiPort, None),
            _option("debug", Debug, False),
        ]
        parameters = [*list(own.parameters.values())[1:], *shared]
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        run.__name__, run.__doc__ = work.__name__, work.__doc__
        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # what Typer reads
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return app.command(name)(run)

    return register


def _option(name: str, annotation: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


async def _stoppable(work: Coroutine[Any, Any, R]) -> R:
    """Let the signals that end a program end it in order, as Ctrl-C does."""
    this = asyncio.current_task()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            continue  # as `nohup` wants it
        loop.add_signal_handler(number, lambda: this.cancel() if this else None)
    return await work
