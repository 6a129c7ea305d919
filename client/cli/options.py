"""What all commands share: options as dataclasses, and running a function as a command.

    app = typer.Typer(rich_markup_mode=None)

    @command(app)
    async def show(common: CommonOptions, run: RunId, as_json: Json = False) -> int | None: ...

A parameter whose type is a dataclass means one option for each of its fields. What the function returns is
the exit code; None is 0. One that waits for nothing need not be `async`.

A command that reads runs (`READS`) begins without an event loop. It gets one where it connects to a server;
until then it must wait for nothing.
"""

from __future__ import annotations

import inspect
import re
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from types import coroutine
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints

import typer

from client.cli import quick
from client.cli.plain_params import PlainCommand
from client.errors import UsageError

if TYPE_CHECKING:
    from activities.settings import Settings
    from client.agents.agentfile import Choice
    from client.runs.reader import RunReader
    from client.sdk.agent import AgentClient
    from client.server.workerconfig import Allowed

__all__ = [
    "INTERRUPTED", "AgentName", "AgentNames", "AgentOptions", "BaseUrl", "By", "CommonOptions",
    "DirectoryOptions", "Json", "MaybeRun", "RunName", "Starting", "Verbose", "command", "moment",
]  # fmt: skip

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""
AGES = {"min": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}

ExitCode = int | None
Work = TypeVar("Work", bound=Callable[..., Coroutine[Any, Any, ExitCode] | ExitCode])

Json = Annotated[bool, typer.Option("--json", help="Print JSON; of a list one line for each.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show each transition as the log has it, not the steps.")
]
_RUN = typer.Argument(help="Id of the run; its beginning or end if that is unique.", metavar="RUN")
RunName = Annotated[str, _RUN]
MaybeRun = Annotated[str | None, _RUN]
By = Annotated[
    str | None,
    typer.Option("--by", envvar="RATCHET_BY", help="Your name; default: the login.", rich_help_panel="Who"),
]


def _where(*names: str, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel="Where", **more)


@dataclass(frozen=True)
class DirectoryOptions:
    """Where a command works that needs no server."""

    data_dir: Annotated[
        Path,
        _where("--data-dir", envvar="RATCHET_DATA_DIR", help="Database, logs and archive of these runs."),
    ] = Path(".ratchet")
    debug: Annotated[bool, _where("--debug", help="Show tracebacks.")] = False

    def worker_settings(self, allowed: Allowed, *, alone: bool = False) -> Settings:
        """Settings of a worker that starts now, with what an agent needs. Raises UsageError.

        Modules that earlier commands named and that are broken now are left out, with a message; all of them
        for a run whose worker serves it `alone`.
        """
        from client.agents.catalog import without_broken_modules
        from client.cli.output import note
        from client.server.workerconfig import load_settings, settings_from_environment

        settings = load_settings(self.data_dir, allowed)
        own = settings_from_environment(self.data_dir).modules
        named = tuple(dict.fromkeys((*own, *allowed.modules)))
        if alone:
            return settings.model_copy(update={"modules": named})
        settings, messages = without_broken_modules(settings, named)
        for message in messages:
            note(message)
        return settings


@dataclass(frozen=True)
class CommonOptions(DirectoryOptions):
    """Where a command works; every command that needs a server has these options."""

    address: Annotated[
        str | None,
        _where(
            "--address", help="Temporal server (else TEMPORAL_ADDRESS, a profile, or the embedded server)."
        ),
    ] = None
    namespace: Annotated[str | None, _where("--namespace", help="Of that server.")] = None
    port: Annotated[
        int | None,
        _where(
            "--port", envvar="RATCHET_PORT", min=1, max=65535, help="Of the embedded server; default: free."
        ),
    ] = None
    ui_port: Annotated[
        int | None,
        _where(
            "--ui-port", envvar="RATCHET_UI_PORT", min=1, max=65535, help="Of the embedded server's Web UI."
        ),
    ] = None

    def remote(self) -> dict[str, Any] | None:
        """How to connect to a server elsewhere; None: the embedded one is meant. Raises UsageError."""
        from client.server.remote import remote_config

        return remote_config(self.address, self.namespace)

    @asynccontextmanager
    async def client(
        self,
        settings: Settings | None = None,
        logs: Literal["file", "terminal"] = "file",
        *,
        codec: bool = False,
    ) -> AsyncIterator[AgentClient]:
        """A client without a worker; `logs` says where this process writes its log, `codec` whether it runs a
        codec server for the embedded server's Web UI. Raises RatchetError."""
        await _event_loop()
        from client.cli.logs import log_to_file, log_to_terminal
        from client.sdk.agent import AgentClient
        from client.server.connection import connected
        from client.server.embedded import Ports, data_directory
        from client.server.workerconfig import load_settings

        settings = settings or load_settings(self.data_dir)
        data_directory(settings.data_dir)
        log = log_to_file if logs == "file" else log_to_terminal
        ports = Ports(self.port, self.ui_port, codec)
        with log(settings):
            async with connected(settings=settings, remote=self.remote(), ports=ports) as connection:
                yield AgentClient(connection)

    @asynccontextmanager
    async def runs(self) -> AsyncIterator[RunReader]:
        """Runs to read, of the server that is named, else of the data directory. Raises RatchetError.

        The embedded server is started only where the directory's files do not say what is asked. What a
        replay needs of users' modules is loaded when one is needed.
        """
        from client.runs.archived import ArchivedRuns, archive_opener
        from client.runs.files import RunFiles
        from client.runs.reader import RunReader

        @cache
        def modules() -> Sequence[str]:
            from client.server.workerconfig import Allowed

            return self.worker_settings(Allowed()).modules

        async with AsyncExitStack() as stack:
            server: list[AgentClient] = []

            async def connect() -> AgentClient:
                if not server:
                    server.append(await stack.enter_async_context(self.client()))
                    server[0].modules = modules
                return server[0]

            if self.remote() is not None:
                yield await connect()
                return
            archive = ArchivedRuns(archive_opener(self.data_dir), in_thread=False)
            where = str(self.data_dir.resolve())
            yield RunReader(archive, where, connect=connect, files=RunFiles(self.data_dir), modules=modules)


AgentName = Annotated[str | None, typer.Option("--agent", "-a", help="Agent file, or name of a shipped one.")]
AgentNames = Annotated[
    list[str] | None,
    typer.Option("--agent", "-a", help="Agent file or name whose modules are loaded; repeatable."),
]
BaseUrl = Annotated[str | None, typer.Option("--base-url", help="OpenAI-compatible server.")]


@dataclass(frozen=True)
class AgentOptions:
    """Which agent runs, and changes of it."""

    agent: AgentName = None
    machine: Annotated[str | None, typer.Option("--machine", help="Machine, such as react.")] = None
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Model, such as claude-sonnet-4-5, or `scripted`.")
    ] = None
    base_url: BaseUrl = None
    tool: Annotated[list[str] | None, typer.Option("--tool", "-t", help="One more tool; repeatable.")] = None
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A machine option (max_steps=5) or an agent key (limits.tokens=1000).",
        ),
    ] = None
    material: Annotated[
        Path | None,
        typer.Option("--material", help="Text file that the run is about, for machines that take it."),
    ] = None
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", help="Image file that the model sees with the goal; repeatable."),
    ] = None

    def chosen(self) -> Choice:
        """What these options mean together."""
        from client.agents.agentfile import Choice

        return Choice(self.agent, self.model, self.base_url, self.machine, self.tool or (), self.sets or ())


@dataclass(frozen=True)
class Starting:
    """How a run is started and followed; shared by `run` and `fork`."""

    run_id: Annotated[str | None, typer.Option("--id", help="Id of the new run; made up if left out.")] = None
    detach: Annotated[bool, typer.Option("--detach", help="Start it and do not wait for it.")] = False
    worker: Annotated[
        bool, typer.Option("--worker", help="Run a worker here although the server is elsewhere.")
    ] = False
    verbose: Verbose = False
    as_json: Json = False

    def check(self) -> None:
        """Raise a UsageError for options that exclude each other."""
        if self.detach and self.worker:
            raise UsageError(
                "--worker runs a worker here until the run is over, --detach does not wait for the run: "
                "leave one out. Nothing was started; `ratchet dev` is a worker that stays"
            )


def command(app: typer.Typer, name: str | None = None) -> Callable[[Work], Work]:
    """Register a function as a command under its own name, or `name`."""

    def register(work: Work) -> Work:
        signature = inspect.signature(work, eval_str=True)
        groups: dict[str, Any] = {
            one.name: one.annotation for one in signature.parameters.values() if is_dataclass(one.annotation)
        }

        def run(**options: Any) -> None:
            for group, kind in groups.items():
                options[group] = kind(**{field.name: options.pop(field.name) for field in fields(kind)})
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # set by client/start.py
                signal.signal(signal.SIGINT, signal.default_int_handler)
            reads = (name or work.__name__) in quick.READS
            if not reads:
                quick.end()
            try:
                ended = work(**options)
                code = _run(ended, reads) if isinstance(ended, Coroutine) else ended
            except KeyboardInterrupt:
                raise typer.Exit(INTERRUPTED) from None
            raise typer.Exit(code or 0)

        parameters = [one for one in signature.parameters.values() if one.name not in groups]
        for kind in reversed(groups.values()):
            parameters += _options(kind)
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        run.__name__, run.__doc__ = work.__name__, work.__doc__
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # what Typer reads
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        app.command(name or work.__name__, cls=PlainCommand)(run)
        return work

    return register


def _options(kind: Any) -> Iterable[inspect.Parameter]:
    """One parameter for each field of a dataclass."""
    types = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name]
        )


def _run(work: Coroutine[Any, Any, ExitCode], reads: bool) -> ExitCode:
    """Run it to its end. SIGTERM and SIGHUP end the command in order, as Ctrl-C does; while it only reads
    files, at once."""
    if reads:
        try:
            work.send(None)
        except StopIteration as ended:
            return ended.value  # type: ignore[no-any-return]  # a StopIteration may hold anything
        quick.end()
    import asyncio

    async def stoppable() -> ExitCode:
        this, loop = asyncio.current_task(), asyncio.get_running_loop()
        if threading.current_thread() is not threading.main_thread():
            return await _rest_of(work)  # a program's thread, where signals do not come
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` ignores SIGHUP
                loop.add_signal_handler(number, lambda: this.cancel() if this else None)
        return await _rest_of(work)

    try:
        return asyncio.run(stoppable())
    except asyncio.CancelledError:
        return INTERRUPTED
    finally:
        work.close()  # where there can be no event loop: it may have begun


@coroutine
def _event_loop() -> Generator[None, None, None]:
    """Wait until there is one: `_run` begins it. In one, this is `asyncio.sleep(0)`."""
    yield


@coroutine
def _rest_of(work: Coroutine[Any, Any, ExitCode]) -> Generator[Any, Any, ExitCode]:
    """Go on with a coroutine, which may have begun: that cannot be awaited itself."""
    return (yield from work.__await__())


def moment(text: str, now: datetime) -> datetime:
    """A time in the past: a date, a date with time, or how long ago. Raises UsageError."""
    read = re.fullmatch(r"(\d{1,5})\s*(min|h|d|w)", text.strip())
    if read:
        return now - int(read[1]) * AGES[read[2]]
    with suppress(ValueError):
        return datetime.fromisoformat(text.strip()).astimezone()
    raise UsageError(
        f"--since {text}: expected a time ago such as 90min, 12h, 7d or 2w, or a date such as 2026-11-22"
    )
