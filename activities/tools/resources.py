"""What tools share in a worker: objects of the application, such as a database pool or an HTTP client.

    @asynccontextmanager
    async def open_database() -> AsyncIterator[Database]:
        async with connect(os.environ["DATABASE_URL"]) as database:
            yield database

    async def run(params: Params, database: Annotated[Database, Resource(open_database)]) -> str: ...

Each is opened when a call needs it for the first time, and once: a worker holds no connection for tools that
nobody calls, and it starts while a server is away. All calls share it. It is closed when the worker ends,
after the last call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from activities.tools import Open, Resource, resources_of

__all__ = ["ResourceNotOpen", "Resources"]

CLOSE_SECONDS = 10.0
"""How long a resource may take to be closed; then it is left."""

log = structlog.get_logger("ratchet")


class ResourceNotOpen(Exception):
    """A resource could not be opened; `__cause__` says why."""


class Resources:
    """The resources of a worker that are open."""

    def __init__(self, given: Mapping[Callable[[], Any], Any] | None = None) -> None:
        """`given`: objects in the place of what these functions open; they are not closed."""
        self._given: Mapping[Any, Any] = dict(given or {})
        self._held: dict[Open, _Held] = {}

    async def of(self, function: Callable[..., object], seconds: float) -> tuple[dict[str, Any], float]:
        """What a function is given, by parameter, and how many of the seconds are left, more than 0; opened
        now where it is not open. Raises ResourceNotOpen."""
        clock, given = asyncio.get_running_loop().time, {}
        until, left = clock() + seconds, seconds
        late = TimeoutError(f"it was not open within {seconds:g} s")
        for name, resource in resources_of(function).items():
            try:
                given[name] = await self._value(resource, left, late)
            except Exception as error:
                raise ResourceNotOpen(resource.place) from error
            left = until - clock()
            if left <= 0:
                raise ResourceNotOpen(resource.place) from late
        return given, left

    async def _value(self, resource: Resource, seconds: float, late: TimeoutError) -> Any:
        if resource.open in self._given:
            return self._given[resource.open]
        held = self._held.get(resource.open)
        if held is None or held.failed:  # what could not be opened is tried again
            self._held.pop(resource.open, None)  # as the newest
            held = self._held[resource.open] = _Held(resource)
        return await held.within(seconds, late)

    async def close(self) -> None:
        """Close all, the newest first. What fails then, or takes too long, is logged."""
        while self._held:
            _, held = self._held.popitem()
            await held.close()


class _Held:
    """One resource: opened and closed in a task of its own, as many context managers want it."""

    def __init__(self, resource: Resource) -> None:
        self._resource, self._over = resource, asyncio.Event()
        self.value: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.value.add_done_callback(lambda value: value.cancelled() or value.exception())  # all may be gone
        self._task = asyncio.create_task(self._hold())
        self._began, self._patience = time.monotonic(), 0.0

    @property
    def failed(self) -> bool:
        """It could not be opened."""
        return self.value.done() and (self.value.cancelled() or self.value.exception() is not None)

    async def within(self, seconds: float, late: TimeoutError) -> Any:
        """What was opened. Raises what went wrong, and `late`. To open it is given up when it has taken as
        long as the most patient call would wait: one that hangs is in nobody's way for longer."""
        self._patience = max(self._patience, seconds)
        done, _ = await asyncio.wait({self.value}, timeout=seconds)
        if not done and time.monotonic() - self._began >= self._patience:
            self.value.set_exception(late)
            self._over.set()  # it may open nevertheless
            self._task.cancel()
            _left_behind.add(self._task)
            self._task.add_done_callback(_left_behind.discard)
        if not done:
            raise late
        return self.value.result()

    async def _hold(self) -> None:
        place = self._resource.place
        try:
            manager = self._resource.open()
            if not hasattr(manager, "__aenter__"):
                raise TypeError(
                    f"it returned a {type(manager).__name__}, not an async context manager; decorate it with "
                    "@asynccontextmanager"
                )
            async with manager as value:
                log.info("resource.opened", resource=place)
                if not self.value.done():
                    self.value.set_result(value)
                await self._over.wait()
        except BaseException as error:  # noqa: BLE001  # told to the calls that wait for it, else to the log
            if not self.value.done():
                self.value.set_exception(_exception(error))
            elif not self.failed:
                log.warning("resource.not_closed", resource=place, error=type(error).__name__)

    async def close(self) -> None:
        """Leave its context."""
        self._over.set()
        if not self.value.done():
            self._task.cancel()
        _, late = await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)
        if late:
            log.warning("resource.not_closed", resource=self._resource.place, seconds=CLOSE_SECONDS)
            self._task.cancel()


_left_behind: set[asyncio.Task[None]] = set()
"""Those that were given up: asyncio needs a reference to them until they end."""


def _exception(error: BaseException) -> Exception:
    """What a future can hold, and does not end a worker: no `SystemExit`, no cancellation."""
    return error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__} was raised")
