"""The MCP servers of a worker: one task owns each connection, and opens it again when it is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import structlog
from pydantic import ValidationError

from activities.contracts import visible
from activities.installed import missing_extra
from activities.mcp.config import SEPARATOR, VARIABLE, McpConfig, NotSet, expanded, tool_name
from activities.mcp.http import Sent, http_client, sent
from activities.mcp.results import arguments_model, effect_of, path_problem, returned, schema_problem
from activities.mcp.stdio import ServerProcess
from activities.text import problems_text, readable
from activities.tools import OutcomeUnknown, Tool, ToolCallContext, ToolReturn, TransientError

if TYPE_CHECKING:
    import mcp_types as types
    from mcp import Client

__all__ = ["KEY_IN_META", "McpServer", "McpServers", "Unusable"]

KEY_IN_META = "ratchet/idempotency-key"
"""Where a call's `_meta` has its idempotency key. MCP knows no such thing: a server may read it or not."""
MAX_BYTES = 4 * 2**20
"""Of one message; parsed, it takes a hundred times as much memory."""
MAX_TOOLS = 1_000
MAX_PAGES = 100
OPEN_SECONDS = 60.0
"""To start a server and learn its tools."""
ANSWER_SECONDS = 5.0
"""In which a server answers that has let a call run out of time; else it is started again."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Before a server that was lost, or did not start, is started again; each pause is twice the one before,
until a call is answered."""
PROGRESS_SECONDS = 0.25
"""Between two messages of a call's progress that are passed on as heartbeats; those between are dropped."""
REASON_CHARS = 500

PERMANENT = (FileNotFoundError, PermissionError, NotADirectoryError, ImportError, NotSet)
"""Opening a connection raises these for what is wrong with the worker, not with the server."""

log = structlog.get_logger("ratchet")


class Unusable(Exception):
    """The server cannot be used before the worker's configuration is changed."""


@dataclass(slots=True)
class Connection:
    """An open connection, and the tools that the server has, by the name that agents use."""

    client: Client
    tools: dict[str, Tool[Any]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Tools that cannot be used, by their own name, and why."""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    reason: str = ""
    calls: int = 0

    def lose(self, reason: str) -> None:
        """It is of no use any more."""
        self.reason = self.reason or reason
        self.lost.set()


class McpServer:
    """One server. Its connection is opened when it is first needed; one task enters and leaves it, because
    the SDK demands that."""

    def __init__(self, name: str, config: McpConfig) -> None:
        self.name, self.config = name, config
        self._wait = config.timeout_seconds / 2
        """How long a call waits for a server that is away; then its attempt fails."""
        self._reason, self._is_unusable = "", False
        """Why it is away, and whether it will stay so."""
        self._connection: Connection | None = None
        self._owner: asyncio.Task[None] | None = None
        self._wanted, self._changed = asyncio.Event(), asyncio.Event()
        self._pause, self._next_try, self._failures = FIRST_PAUSE, 0.0, 0
        self._checks: set[asyncio.Task[None]] = set()

    async def tools(self) -> tuple[dict[str, Tool[Any]], dict[str, str]]:
        """The server's tools as it has them now, by the name that agents use; and those that cannot be used,
        with the reason. Raises TransientError while it is away, and Unusable."""
        connection = await self._open_connection()
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await self._learn(connection)
        except Exception as error:  # noqa: BLE001  # the SDK's streams raise many kinds when they are cut
            connection.lose(self._words(error))
            raise self._away(connection.reason) from None
        return connection.tools, connection.left_out

    async def tool(self, name: str) -> Tool[Any] | None:
        """One of its tools, as they were when last asked for. Raises as `tools`."""
        return (await self._open_connection(wait=self._wait)).tools.get(name)

    async def close(self) -> None:
        """End the connection, and the process if it is one."""
        tasks = [task for task in (self._owner, *self._checks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._owner = None

    # -- one call --------------------

    async def _call(
        self, tool: str, arguments: dict[str, Any], call: ToolCallContext, *, repeatable: bool
    ) -> ToolReturn:
        """Raises TransientError where the call was not made, OutcomeUnknown where nobody knows. One that may
        be repeated is made once more when the server was lost, as when a worker was: no tool has failed."""
        left = 1 if repeatable else 0
        until = time.monotonic() + self._wait
        while True:
            connection = await self._open_connection(call.heartbeat, until - time.monotonic())
            try:
                return await self._answer(connection, tool, arguments, call)
            except TransientError:
                if time.monotonic() > until:
                    raise
            except OutcomeUnknown:
                if not left:
                    raise
                left -= 1

    async def _answer(
        self, connection: Connection, tool: str, arguments: dict[str, Any], call: ToolCallContext
    ) -> ToolReturn:
        """Raises as `_call`."""

        shown = -PROGRESS_SECONDS

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            nonlocal shown
            now = time.monotonic()
            if now - shown < PROGRESS_SECONDS:
                return
            shown = now
            part = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
            call.heartbeat(f"{self.name} {tool}: {message or ''} ({part})")

        meta: Any = {KEY_IN_META: call.key}
        sent.set(made := Sent())
        connection.calls += 1
        try:
            found = await connection.client.call_tool(tool, arguments, progress_callback=progress, meta=meta)
        except asyncio.CancelledError:
            self._check(connection)
            raise
        except Exception as error:  # noqa: BLE001  # the SDK's streams raise many kinds when they are cut
            return self._failed(error, made, connection)
        finally:
            connection.calls -= 1
        self._pause = FIRST_PAUSE
        return returned(found)

    def _failed(self, error: Exception, made: Sent, connection: Connection) -> ToolReturn:
        """What a call that failed means. Raises as `_call`."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        if isinstance(error, ValidationError):
            return ToolReturn(f"the tool ran, but {self._words(error)}", failed=True)
        if isinstance(error, MCPError) and error.code != CONNECTION_CLOSED and not made.problem:
            return ToolReturn(self._words(error), failed=True)
        connection.lose(made.problem or self._words(error))
        if made.refused:
            raise self._away(connection.reason)
        raise OutcomeUnknown(
            f"the MCP server {self.name} was lost in the middle of the call: {connection.reason}"
        )

    def _check(self, connection: Connection) -> None:
        """A call ran out of time, or was cancelled: does the server hear at all?"""

        async def check() -> None:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await connection.client.list_tools()
            except Exception:  # noqa: BLE001  # whatever it is, the server is of no use
                if not connection.calls:  # else one that answers slowly would be ended in their middle
                    connection.lose("it did not answer any more")

        task = asyncio.create_task(check(), context=Context())
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    # -- the connection --------------------

    async def _open_connection(
        self, heartbeat: Callable[[str], None] = lambda text: None, wait: float = 0
    ) -> Connection:
        """The open connection. Raises TransientError where opening it failed, for `wait` seconds again and
        again, or takes too long; Unusable."""
        began, failures = time.monotonic(), self._failures
        while (connection := self._connection) is None or connection.lost.is_set():
            if self._owner is None or self._owner.done():
                # not in the context of a call: the connection outlives it
                self._owner = asyncio.create_task(self._own(), name=f"mcp {self.name}", context=Context())
            if self._failures != failures or time.monotonic() < self._next_try:
                heartbeat(f"waiting for the MCP server {self.name}: {self._reason}")
                if self._is_unusable or self._next_try > began + wait:
                    raise self._away(self._reason)
            changed = self._changed
            self._wanted.set()
            try:
                await asyncio.wait_for(changed.wait(), began + wait + OPEN_SECONDS - time.monotonic())
            except TimeoutError:
                raise self._away(self._reason or "it does not start") from None
        return connection

    async def _own(self) -> None:
        """Open the connection when it is wanted, keep it until it is lost, and so on."""
        while True:
            await self._wanted.wait()
            await asyncio.sleep(max(self._next_try - time.monotonic(), 0))
            self._wanted.clear()
            await self._keep()
            self._next_try = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            log.warning("mcp.lost", server=self.name, reason=self._reason)

    async def _keep(self) -> None:
        """One connection, from its opening to its loss."""
        connection = None
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(OPEN_SECONDS):
                    connection = await stack.enter_async_context(self._entered())
                    await self._learn(connection)
                self._set(connection)
                log.info("mcp.connected", server=self.name, tools=len(connection.tools))
                await connection.lost.wait()
                self._set(None, connection.reason)
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001  # of the process, the network or the SDK
            self._failures += self._connection is None
            self._is_unusable = isinstance(error, PERMANENT)
            known = connection.reason if connection else ""
            self._set(None, known or self._words(error))

    def _set(self, connection: Connection | None, reason: str = "") -> None:
        self._connection, self._reason = connection, reason
        self._is_unusable = self._is_unusable and connection is None
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    @asynccontextmanager
    async def _entered(self) -> AsyncIterator[Connection]:
        try:
            await asyncio.to_thread(import_module, "mcp")  # a second, in which heartbeats must go on
        except ImportError as error:
            raise ImportError(missing_extra("mcp")) from error
        from mcp import Client

        found: list[Connection] = []
        ended: list[str] = []

        def on_end(how: str) -> None:
            ended.append(self._clean(how))
            for connection in found:
                connection.lose(ended[0])

        async with AsyncExitStack() as stack:
            streams = await self._streams(stack, on_end)
            sent.set(made := Sent())
            try:
                client = await stack.enter_async_context(Client(streams, cache=None))
            except Exception as error:
                if isinstance(error, PERMANENT):
                    raise
                raise ConnectionError(next(iter(ended), made.problem) or self._words(error)) from None
            found.append(connection := Connection(client))
            for how in ended:
                connection.lose(how)
            yield connection

    async def _streams(self, stack: AsyncExitStack, on_end: Callable[[str], None]) -> Any:
        """What the SDK's client speaks through."""
        config = self.config
        if config.url is None:
            from mcp.client.stdio import get_default_environment

            args = [expanded(one) for one in config.args]
            process = ServerProcess(expanded(config.command or ""), args, MAX_BYTES, on_end)
            given = {name: expanded(value) for name, value in config.env.items()}
            return process.streams(get_default_environment() | given, config.cwd)
        from mcp.client.streamable_http import streamable_http_client

        headers = {name: expanded(value) for name, value in config.headers.items()}
        http = await stack.enter_async_context(http_client(headers, MAX_BYTES))
        return streamable_http_client(expanded(config.url), http_client=http, max_sse_event_size=MAX_BYTES)

    async def _learn(self, connection: Connection) -> None:
        """Ask for the server's tools."""
        found: list[types.Tool] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await connection.client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if cursor is None or len(found) > MAX_TOOLS:
                break
        tools: dict[str, Tool[Any]] = {}
        connection.left_out.clear()
        for tool in found[:MAX_TOOLS]:
            name = tool_name(self.name, tool.name)
            if not self.config.offers(tool.name):
                continue
            problem = f"another one is called {name}" if name in tools else schema_problem(tool.input_schema)
            problem = problem or path_problem(tool.input_schema, self.config.path_arguments(tool.name))
            if problem:
                connection.left_out[readable(tool.name)[:100]] = problem
            else:
                tools[name] = self._tool(name, tool)
        connection.tools = tools

    def _tool(self, name: str, tool: types.Tool) -> Tool[Any]:
        own_name, effect = tool.name, self.config.effect(tool.name) or effect_of(tool)
        brings, sends = self.config.labels(own_name)

        async def run(params: Any, call: ToolCallContext) -> ToolReturn:
            return await self._call(own_name, params.root, call, repeatable=effect != "unsafe")

        return Tool(
            name=name,
            params=arguments_model(tool, self.config.path_arguments(own_name)),
            run=run,
            effect=effect,
            timeout_seconds=self.config.timeout_seconds,
            brings=brings,
            sends=sends,
        )

    # -- words --------------------

    def _away(self, reason: str) -> Exception:
        if self._is_unusable:
            return Unusable(f"the MCP server {self.name} cannot be used: {reason}")
        return TransientError(f"the MCP server {self.name} is away: {reason}")

    def _words(self, error: BaseException) -> str:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, TimeoutError):
            return f"no answer within {OPEN_SECONDS:g} s"
        if isinstance(error, ValidationError):
            return self._clean(f"its answer is not one of MCP: {problems_text(error, 3)}")
        if isinstance(error, FileNotFoundError):
            return f"there is no program {self.config.command}"
        return self._clean(str(error) or type(error).__name__)

    def _clean(self, text: str) -> str:
        """A text of the server's, without the secrets that it was given, and without control characters."""
        config = self.config
        given = [*config.env.values(), *config.headers.values()]
        every = " ".join((*given, *config.args, config.command or "", config.url or ""))
        for value in (*given, *(found[0] for found in VARIABLE.finditer(every))):
            with suppress(NotSet):
                if len(known := expanded(value)) >= 8:
                    text = text.replace(known, "[secret]")
        return visible(readable(text), lambda _: " ")[:REASON_CHARS]


class McpServers:
    """All of a worker's servers: `async with McpServers(settings.mcp) as servers`."""

    def __init__(self, configs: Mapping[str, McpConfig]) -> None:
        self.servers = {name: McpServer(name, config) for name, config in configs.items()}

    async def __aenter__(self) -> McpServers:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def has(self, name: str) -> bool:
        """A tool of this name would be one of a server here."""
        return self._server(name) is not None

    async def tool(self, name: str) -> Tool[Any] | None:
        """A server's tool. Raises TransientError while the server is away, and Unusable."""
        server = self._server(name)
        return None if server is None else await server.tool(name)

    async def tools(self, names: Iterable[str]) -> dict[str, Tool[Any]]:
        """Those of the names that are tools of servers, as these have them now. Raises as `tool`."""
        wanted = [name for name in names if self.has(name)]
        servers = {id(server): server for name in wanted if (server := self._server(name))}
        found: dict[str, Tool[Any]] = {}
        for tools, _ in await asyncio.gather(*(server.tools() for server in servers.values())):
            found |= tools
        return {name: found[name] for name in wanted if name in found}

    async def close(self) -> None:
        """End all connections."""
        await asyncio.gather(*(server.close() for server in self.servers.values()))

    def _server(self, name: str) -> McpServer | None:
        return self.servers.get(name.partition(SEPARATOR)[0]) if SEPARATOR in name else None
