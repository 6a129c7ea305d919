"""The embedded server: the real `temporal server start-dev`, one per data directory.

The first command starts it, others attach, the last one to end stops it. After a kill -9 of a
command or of the server the next command finds it by its record and uses it or cleans up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from client.errors import ServerError, UsageError
from client.process import command_line, end_process, listens, started_at
from client.serverlock import ServerLock, ServerRecord
from client.serverprocess import Launch, launch, log_tail, port_taken

__all__ = ["EmbeddedServer", "Ports", "running_server", "stop_server"]

READY_SECONDS = 60
TRIES = 5
"""Starts of the server, each with other ports, when others take them meanwhile."""
STOP_SECONDS = 0.5
"""The server drains for a second and a half, but nobody is connected any more; then it is killed,
which its database is made for."""
SPACE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Ports:
    """Ports of the embedded server; None is any free one."""

    grpc: int | None = None
    ui: int | None = None


class EmbeddedServer:
    """This process's hold on the server of a data directory; an async context manager."""

    def __init__(self, data_dir: Path, lock: ServerLock, record: ServerRecord) -> None:
        self.data_dir = data_dir
        self.record = record
        self._lock = lock

    @classmethod
    async def attach(cls, data_dir: Path, ports: Ports | None = None) -> EmbeddedServer:
        """Attach to the server of `data_dir`; start it when it does not run.

        Raises:
            UsageError: a port is taken, or the server runs on another one.
            ServerError: it does not start; the message shows the end of its log.
        """
        home, ports = usable(data_dir), ports or Ports()
        lock = ServerLock(home)
        guard = contextlib.ExitStack()
        await asyncio.to_thread(guard.enter_context, lock.guarded())
        with guard, _leaving_on_error(lock):
            before = lock.read()
            record = await _join_running(home, lock, ports, before)
            if record is None:
                _refuse_other_host(lock, before)
                lock.join()
                record = await _start(home, lock, ports, before)
            return cls(home, lock, record)

    @property
    def address(self) -> str:
        """Where Temporal's clients connect."""
        return self.record.address

    @property
    def ui(self) -> str:
        """Address of Temporal's Web UI."""
        return self.record.ui

    def alive(self) -> bool:
        """The server's process still runs."""
        return _runs(self.record, self.data_dir)

    def stopped(self) -> bool:
        """Somebody has stopped it: it has not ended by itself."""
        record = self._lock.read()
        return record is not None and (record.pid is None or record.stopping)

    def log_end(self) -> str:
        """The last lines of the server's log."""
        return log_tail(self.data_dir)

    def release(self) -> bool:
        """Let go of the server; True when this was its last user, so that it was stopped."""
        if not self.data_dir.exists():
            self._end()
            return True
        with self._lock.guarded():
            ours = self._lock.in_place()
            if not self._lock.leave():
                return False
            if ours:
                _stop(self._lock, self.data_dir)
            if self.alive():  # the directory or the record was taken away meanwhile
                self._end()
            return True

    def _end(self) -> None:
        end_process(self.record.pid or 0, self.record.started, STOP_SECONDS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def running_server(data_dir: Path) -> ServerRecord | None:
    """The server of a data directory if it runs now; starts nothing."""
    home = data_dir.absolute()
    record = ServerLock(home).read() if home.is_dir() else None
    return record if record is not None and _runs(record, home) else None


def stop_server(data_dir: Path) -> ServerRecord | None:
    """Stop the server of a data directory, whoever uses it; None when there was none."""
    home = data_dir.absolute()
    if not home.is_dir():
        return None
    lock = ServerLock(home)
    with lock.guarded():
        return _stop(lock, home)


def usable(data_dir: Path) -> Path:
    """The data directory as an absolute path, made if it is missing, for its owner alone.

    Raises:
        UsageError: it cannot be made or written, or belongs to somebody else.
        ServerError: its disk is full.
    """
    home = data_dir.absolute()
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(home)
        os.close(os.open(home / "server.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        free = shutil.disk_usage(home).free
    except OSError as error:
        raise UsageError(
            f"the data directory {home} cannot be used: {error.strerror or error}; "
            "choose another with --data-dir or RATCHET_DATA_DIR"
        ) from error
    check_space(home, free)
    return home


def check_space(home: Path, free: int, needed: int = SPACE_BYTES) -> None:
    """Raise a ServerError when fewer bytes are free than the server's database needs."""
    if free < needed:
        raise ServerError(
            f"the disk of {home} has {free / 1e6:.1f} MB left; the server's database needs at "
            f"least {needed / 1e6:.0f} MB. Free some space, or choose another place with --data-dir"
        )


def _check_owner(home: Path) -> None:
    """What runs go on with lies here: it must not come from another user."""
    owner = home.stat().st_uid
    if owner != os.geteuid():
        raise UsageError(
            f"the data directory {home} belongs to user {owner}, not to you (user {os.geteuid()}), and "
            "runs in it could be another's; choose one of your own with --data-dir or RATCHET_DATA_DIR"
        )


@contextlib.contextmanager
def _leaving_on_error(lock: ServerLock) -> Iterator[None]:
    try:
        yield
    except BaseException:
        lock.leave()
        raise


def _runs(record: ServerRecord, home: Path) -> bool:
    """The record's process is alive and is the server of this directory, not a later one's pid."""
    if record.pid is None or record.host != socket.gethostname():
        return False
    if started_at(record.pid) != record.started:
        return False
    command = command_line(record.pid)
    return "start-dev" in command and str(home) in command


def _stop(lock: ServerLock, home: Path) -> ServerRecord | None:
    record = lock.read()
    if record is None or record.pid is None:
        return None
    running = _runs(record, home)
    if running:
        lock.write(record.model_copy(update={"stopping": True}))
        end_process(record.pid, record.started, STOP_SECONDS)
    lock.write(record.model_copy(update={"pid": None}))
    return record if running else None


def _check_ports(record: ServerRecord, ports: Ports) -> None:
    asked = [("port", ports.grpc, record.port), ("UI port", ports.ui, record.ui_port)]
    for what, wanted, real in asked:
        if wanted is not None and wanted != real:
            raise UsageError(
                f"the server of this data directory already runs with {what} {real}, not {wanted}: "
                "leave the port out, or end the server first with `ratchet down`"
            )


async def _join_running(
    home: Path, lock: ServerLock, ports: Ports, record: ServerRecord | None
) -> ServerRecord | None:
    """Join the server that runs; None when none does, or it dies meanwhile."""
    if record is None or not _runs(record, home):
        return None
    _check_ports(record, ports)
    lock.join()
    try:
        await _wait_ready(record, home)
    except ServerError:
        if _runs(record, home):
            raise
        lock.leave()
        return None
    return record


async def _start(home: Path, lock: ServerLock, ports: Ports, before: ServerRecord | None) -> ServerRecord:
    """Start the server; another try, with other ports, when one that was free is taken meanwhile."""
    for left in reversed(range(TRIES)):
        plan = Launch.choose(home, ports.grpc, ports.ui, before)
        pid = launch(plan)
        record = ServerRecord(
            pid=pid,
            started=started_at(pid) or "",
            host=socket.gethostname(),
            port=plan.port,
            ui_port=plan.ui_port,
        )
        try:
            lock.write(record)
            await _wait_ready(record, home)
        except BaseException as error:
            end_process(pid, record.started, STOP_SECONDS)
            if not left or not isinstance(error, ServerError) or not port_taken(home):
                raise
            before = None
        else:
            return record
    raise ServerError("the embedded server found no free port")


def _refuse_other_host(lock: ServerLock, record: ServerRecord | None) -> None:
    """Two servers on one database file would ruin it, and over there we cannot look."""
    if record is None or record.pid is None or record.host == socket.gethostname():
        return
    if lock.in_use():
        raise ServerError(
            f"the server of this data directory runs on host {record.host}; use it from there, or "
            "end it there with `ratchet down`"
        )


async def _wait_ready(record: ServerRecord, home: Path) -> None:
    """Wait until the server answers and has what Ratchet needs.

    Raises:
        ServerError: it ended, or did not answer in time.
    """
    from client.namespace import prepare

    until = time.monotonic() + READY_SECONDS
    problem = "no answer"
    while time.monotonic() < until:
        if record.pid is None or started_at(record.pid) != record.started:
            raise ServerError(f"the embedded server ended while starting. {log_tail(home)}")
        if not listens(record.pid, record.port):  # who answers there may be another server
            await asyncio.sleep(0.05)
            continue
        try:
            await prepare(record.address)
        except Exception as error:  # noqa: BLE001  # whatever it is, the server is not ready yet
            problem = str(error)
            await asyncio.sleep(0.05)
        else:
            return
    raise ServerError(
        f"the embedded server (pid {record.pid}) runs but was not ready within {READY_SECONDS} s "
        f"({problem}); `ratchet down` ends it. {log_tail(home)}"
    )
