"""What every command shares: where the data and Temporal are, and how it is run."""

from __future__ import annotations

import asyncio
import inspect
import signal
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints

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


@dataclass(frozen=True)
class Place:
    """Where a command works."""

    data_dir: DataDir = Path(".ratchet")
    address: Address = None
    namespace: Namespace = None
    port: Port = None
    ui_port: UiPort = None

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

    A parameter whose type is a dataclass, such as `Place`, stands for options that several commands share:
    one for each of its fields.
    """

    def register(work: Callable[..., Coroutine[Any, Any, int | None]]) -> Callable[..., None]:
        own = inspect.signature(work, eval_str=True)
        groups: dict[str, Any] = {
            one.name: one.annotation for one in own.parameters.values() if is_dataclass(one.annotation)
        }

        def run(debug: bool, **options: Any) -> None:
            for group, kind in groups.items():
                options[group] = kind(**{field.name: options.pop(field.name) for field in fields(kind)})
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see client.start
                signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                code = asyncio.run(_stoppable(work(**options)))
            except (KeyboardInterrupt, asyncio.CancelledError):
                raise typer.Exit(INTERRUPTED) from None
            raise typer.Exit(code or 0)

        parameters = [one for one in own.parameters.values() if one.name not in groups]
        parameters += [option for name in reversed(groups) for option in _options(groups[name])]
        parameters.append(_option("debug", Debug, False))
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        run.__name__, run.__doc__ = work.__name__, work.__doc__
        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # what Typer reads
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return app.command(name)(run)

    return register


def _options(kind: Any) -> list[inspect.Parameter]:
    """The options for which a dataclass stands."""
    types = get_type_hints(kind, include_extras=True)
    return [_option(field.name, types[field.name], field.default) for field in fields(kind)]


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
