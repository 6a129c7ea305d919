"""The embedded server: one real `temporal server start-dev` per data directory.

The first user starts it, others attach, the last one to leave stops it. Who lives is known by locks, which
the system takes back from a process that was killed, too. In the data directory:

    start.lock    held while somebody starts, joins, leaves or stops the server; shared while a command looks
                  whether there are users (`client/runs/files.py`), which would seem to be one
    server.lock   held by the server's own process
    users.lock    shared by all users: processes, or parts of one; who gets it alone is the last
    server.json   which process serves, on which ports (`ServerRecord`)
    server.log    what the server wrote since its last start; server.log.1: before that
    temporal.db   Temporal's database
    id            which directory this is (`client/server/ownership.py`)
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import psutil
from filelock import AsyncFileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from activities.installed import missing_extra
from client.errors import ServerError, UsageError
from client.server.environment import write_private
from client.server.ownership import DATABASE, claim
from client.server.ui import UNREACHABLE
from client.server.ui import __file__ as ui_program

__all__ = [
    "DYNAMIC_CONFIG", "EmbeddedServer", "Ports", "ServerRecord", "data_directory", "running_server",
    "stop_server", "temporal_binary",
]  # fmt: skip

READY_SECONDS = 60
LOCK_SECONDS = 90
"""Longer than a start takes."""
LASTING = range(20_000, 32_000)
"""Ports that whoever asks for any is not given (by default, Linux gives from 32,768, macOS from 49,152)."""
STOP_SECONDS = 0.5
"""The server drains for 1.5 s, but nobody is connected any more; then it is killed. SQLite is made for it."""
START_ATTEMPTS = 5
"""Starts, each with other ports, when another program takes a free port in the meantime."""
SPACE_BYTES = 64 * 1024 * 1024
LOG_LINES = 8
"""Of its log, in a message."""
DYNAMIC_CONFIG = (
    # as shipped the server makes 20 steps per second, and every timer takes a second
    "history.transferProcessorMaxPollRPS=2000",
    "history.timerProcessorMaxPollRPS=2000",
    'history.timerProcessorMaxTimeShift="10ms"',
    # one partition: limits and priorities of a task queue are exact
    "matching.numTaskqueueReadPartitions=1",
    "matching.numTaskqueueWritePartitions=1",
    # a worker that stands still keeps its polls open, and the server gives each of them a task, which is lost
    # for 10 s: so it asks connections sooner than after a minute whether somebody is there
    'frontend.keepAliveTime="10s"',
    'frontend.keepAliveTimeout="10s"',
    # no web page may reach the server's HTTP API through a name that resolves to this machine
    'frontend.httpAllowedHosts=["nobody.invalid"]',
)


@dataclass(frozen=True)
class Ports:
    """Ports of the embedded server; None is any free one."""

    grpc: int | None = None
    ui: int | None = None
    codec: bool = False
    """The one who starts the server runs a codec server for its Web UI, too (`client/server/codec.py`)."""


class ServerRecord(BaseModel):
    """The server of a data directory, running or not."""

    model_config = ConfigDict(frozen=True)

    pid: int = Field(gt=0)
    host: str
    """Where the process runs: a pid means nothing on another host or in another container."""
    port: int = Field(ge=1, le=65535)
    ui_port: int = Field(ge=1, le=65535)
    codec_port: int = Field(default=0, ge=0, le=65535)
    """Where the Web UI expects a codec server; 0: nowhere."""
    stopped: bool = False
    """Somebody stopped it: its end is no accident."""

    @property
    def address(self) -> str:
        """Where Temporal's clients connect."""
        return f"127.0.0.1:{self.port}"

    @property
    def ui(self) -> str:
        """Address of Temporal's Web UI."""
        return f"http://127.0.0.1:{self.ui_port}"

    @property
    def origins(self) -> tuple[str, ...]:
        """The Web UI's pages, by each of its names."""
        return self.ui, f"http://localhost:{self.ui_port}"


class EmbeddedServer:
    """One user's hold on the server of a data directory; an async context manager."""

    def __init__(self, home: Path, record: ServerRecord, user: BinaryIO) -> None:
        self.home = home
        self.record = record
        self._user = user
        self._server = _opened(home / "server.lock")

    @classmethod
    async def attach(cls, data_dir: Path, ports: Ports | None = None) -> EmbeddedServer:
        """Join the server of `data_dir`; start it when it does not run.

        Raises:
            UsageError: a port is taken, or the server runs on another one; or the directory's database is not
                the user's own.
            ServerError: it does not start; the message shows the end of its log.
        """
        home, ports = data_directory(data_dir), ports or Ports()
        async with _guard(home):
            claim(home)
            running = _running(home)
            user = _opened(home / "users.lock")
            try:
                fcntl.flock(user, fcntl.LOCK_SH)
                return cls(home, await _join(home, ports, running) or await _start(home, ports), user)
            except BaseException:
                await _leave(home, user)
                raise

    def alive(self) -> bool:
        """The server's process still runs; False after `release`."""
        return not self._server.closed and _is_locked(self._server)

    def stopped(self) -> bool:
        """Somebody stopped it: it did not end by itself."""
        record = _read(self.home)
        return record is not None and record.stopped

    def log_end(self) -> str:
        """The last lines of the server's log, as part of a message."""
        return _log_end(self.home)

    async def release(self) -> bool:
        """Leave the server; True when nobody else uses it, so that it was stopped."""
        with self._server:
            if not _is_at(self._server, self.home / "server.lock"):
                # the directory was deleted: nobody else finds this server, and nobody else stops it
                self._user.close()
                await _terminate(self.record, self._server)
                return True
            async with _guard(self.home):
                return await _leave(self.home, self._user)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()


def running_server(data_dir: Path) -> ServerRecord | None:
    """The server of a data directory if it runs now; starts nothing."""
    return _running(data_dir.resolve())


async def stop_server(data_dir: Path) -> ServerRecord | None:
    """Stop the server of a data directory, even while others use it; None when there was none."""
    if not data_dir.is_dir():  # noqa: ASYNC240  # one look costs less than a thread
        return None
    home = data_dir.resolve()  # noqa: ASYNC240  # it costs less than a thread
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
        with contextlib.suppress(FileExistsError):
            home.mkdir(mode=0o700, parents=True)
            write_private(home / ".gitignore", "*")  # its id is not to be published
        if (owner := home.stat().st_uid) != os.geteuid():
            # runs continue from what lies here: it must not come from another user
            raise UsageError(
                f"the data directory {home} belongs to user {owner}, you are user {os.geteuid()}; {advice}"
            )
        _opened(home / "users.lock").close()
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
            f"the program `temporal` is neither beside {sys.executable} nor on PATH: "
            f"{missing_extra('temporal')}; or name a server with TEMPORAL_ADDRESS"
        )
    return found


# -- users and the record --------------------


class _StartLock(AsyncFileLock):
    """Is released where it was acquired. The library releases it once more when it is collected, in whatever
    event loop runs then; in one that ends, that is a coroutine which nobody awaits."""

    def __del__(self, *_: Any) -> None:
        """Nothing."""


@contextlib.asynccontextmanager
async def _guard(home: Path) -> AsyncIterator[None]:
    """Be the only one who starts, joins, leaves or stops."""
    path = home / "start.lock"
    lock = _StartLock(path, timeout=LOCK_SECONDS, mode=0o600, run_in_executor=False, thread_local=False)
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


def _private(path: str, flags: int) -> int:
    """Opener of files that only their owner may read, and that no link leads elsewhere."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _opened(path: Path) -> BinaryIO:
    """A file to lock; closing it, or dying, gives the lock back."""
    return open(path, "ab", opener=_private)


def _is_locked(file: BinaryIO, probe: int = fcntl.LOCK_SH) -> bool:
    """Somebody else holds a lock; with `LOCK_EX` also where it is shared."""
    try:
        fcntl.flock(file, probe | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _is_at(file: BinaryIO, path: Path) -> bool:
    """The path still leads to this file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _running(home: Path) -> ServerRecord | None:
    """The server if it runs. Raises ServerError when it runs on another host, where its pid counts."""
    record = _read(home)
    if record is None:
        return None
    with _opened(home / "server.lock") as file:
        if not _is_locked(file):
            return None
    if record.host != socket.gethostname():
        raise ServerError(
            f"the server of {home} runs on host {record.host}; use it there, or stop it there with "
            "`ratchet down`"
        )
    return record


async def _leave(home: Path, user: BinaryIO) -> bool:
    """Leave; True when nobody else uses the server, so that it was stopped."""
    user.close()
    with _opened(home / "users.lock") as file:
        if _is_locked(file, fcntl.LOCK_EX):
            return False
    await _stop(home)
    return True


def _read(home: Path) -> ServerRecord | None:
    path = home / "server.json"
    try:
        return ServerRecord.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
    except OSError as error:
        raise _unusable(path, error) from error


def _write(home: Path, record: ServerRecord) -> None:
    path = home / "server.json"
    try:
        write_private(path, record.model_dump_json(indent=2))
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: OSError) -> ServerError:
    return ServerError(f"{path} cannot be used: {error.strerror or error}; remove it and try again")


# -- starting and stopping --------------------


async def _join(home: Path, ports: Ports, record: ServerRecord | None) -> ServerRecord | None:
    """The server that runs; None when none does, or it dies in the meantime."""
    if record is None:
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
        if _running(home):
            raise
        return None
    return record


async def _start(home: Path, ports: Ports) -> ServerRecord:
    """Start the server, if possible with the ports of the last time: other commands reconnect, and bookmarks
    of the UI stay good."""
    before = _read(home)
    last, ui_port = (before.port, before.ui_port) if before else (0, 0)
    codec = _codec_port(before.codec_port if before else 0) if ports.codec else 0
    attempt = 1
    while True:
        port = await _port("--port", ports.grpc, last)
        with await _ui_socket(ports.ui, ui_port) as ui:
            record = _launch(home, port, ui, codec)
        _write(home, record)
        try:
            await _wait_ready(home, record)
        except ServerError:
            if attempt == START_ATTEMPTS or "address already in use" not in _log(home):
                raise
            await _stop(home)
            last, ui_port, attempt = 0, record.ui_port, attempt + 1
        else:
            return record


def _launch(home: Path, port: int, ui: socket.socket, codec: int) -> ServerRecord:
    """Start the server, and its UI's guard (`client/server/ui.py`). The server inherits its lock."""
    from workflows.api import ATTRIBUTES

    command = [temporal_binary(), "server", "start-dev", "--ip", "127.0.0.1", "--log-level", "warn"]
    command += ["--port", str(port), "--ui-disable-news-fetch"]
    hidden = next(filter(_free, random.sample(UNREACHABLE, len(UNREACHABLE))), 0)
    command += ["--ui-port", str(hidden)] if hidden else ["--headless"]
    if codec:
        command += ["--ui-codec-endpoint", f"http://127.0.0.1:{codec}"]
    command += ["--db-filename", str(home / DATABASE)]
    command += ["--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=normal"]
    for setting in DYNAMIC_CONFIG:
        command += ["--dynamic-config-value", setting]
    for name, kind in ATTRIBUTES.items():
        command += ["--search-attribute", f"{name}={kind}"]
    path = home / "server.log"
    lifeline, held = os.pipe()
    try:
        if path.is_symlink() or path.exists():
            path.replace(home / "server.log.1")
        with open(path, "xb", opener=_private) as log, _opened(home / "server.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            pid = _spawn(command, home, log, [lock.fileno(), held])
            front = [sys.executable, "-I", ui_program, f"127.0.0.1:{hidden}", str(ui.fileno()), str(lifeline)]
            _spawn(front, home, log, [ui.fileno(), lifeline])
    except (OSError, subprocess.CalledProcessError) as error:
        raise ServerError(f"the embedded server cannot be started ({command[0]}): {error}") from error
    finally:
        os.close(lifeline)
        os.close(held)
    host, ui_port = socket.gethostname(), ui.getsockname()[1]
    return ServerRecord(pid=pid, host=host, port=port, ui_port=ui_port, codec_port=codec)


def _spawn(command: list[str], home: Path, log: BinaryIO, inherited: list[int]) -> int:
    """Start a process in a session of its own, so that Ctrl-C does not reach it; its pid.

    A shell puts it into the background and ends, so that nobody here has to reap it. It gets a bare
    environment: no keys, no settings of the user's own Temporal CLI. Raises OSError, CalledProcessError.
    """
    shell = subprocess.run(
        ["/bin/sh", "-c", '"$@" >&2 & echo $!', "sh", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        cwd=home,
        # no home: Temporal's own configuration would be read from there
        env={"PATH": os.environ.get("PATH", ""), "HOME": "/nonexistent"},
        umask=0o077,
        pass_fds=inherited,
        start_new_session=True,
        check=True,
    )
    return int(shell.stdout)


async def _wait_ready(home: Path, record: ServerRecord) -> None:
    """Wait until the server answers and its namespace has what Ratchet needs.

    Raises:
        ServerError: it ended, or did not answer in time.
    """
    from client.server.namespace import prepare

    deadline, problem = time.monotonic() + READY_SECONDS, "no answer"
    while _running(home):
        try:
            connections = psutil.Process(record.pid).net_connections("tcp")
            # its own port, or another server would answer
            if any(c.laddr.port == record.port for c in connections if c.status == psutil.CONN_LISTEN):
                return await prepare(record.address)
        except Exception as error:  # noqa: BLE001  # whatever it is, the server is not ready yet
            problem = str(error)
        if time.monotonic() > deadline:
            raise ServerError(
                f"the embedded server (pid {record.pid}) was not ready within {READY_SECONDS} s ({problem}). "
                f"{_log_end(home)}"
            )
        await asyncio.sleep(0.05)
    raise ServerError(f"the embedded server ended while starting. {_log_end(home)}")


async def _stop(home: Path) -> ServerRecord | None:
    record = _running(home)
    if record is not None:
        _write(home, record.model_copy(update={"stopped": True}))
        with _opened(home / "server.lock") as server:
            await _terminate(record, server)
    return record


async def _terminate(record: ServerRecord, server: BinaryIO) -> None:
    """Ask the server to end; kill it after half a second. While it holds its lock, the pid is its own."""
    for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, 10)):
        deadline = time.monotonic() + seconds
        if _is_locked(server):
            with contextlib.suppress(ProcessLookupError):
                os.kill(record.pid, number)
        while _is_locked(server) and time.monotonic() < deadline:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.02)


async def _port(option: str, wanted: int | None, before: int) -> int:
    """The port that is wanted, else that of the last time, else any free one."""
    await _until_free(wanted or before)
    if wanted is None:
        return _free(before) or _free(0)
    if not _free(wanted):
        raise _taken(option, wanted)
    return wanted


def _codec_port(before: int) -> int:
    """The port of the last time if it is free, else one that no other program gets by chance: its server
    begins later than Temporal's, and may begin again, while the UI knows one port for it."""
    free = filter(_free, random.sample(LASTING, len(LASTING)))
    return (_free(before) if before in LASTING else 0) or next(free, 0) or _free(0)


def _taken(option: str, port: int) -> UsageError:
    return UsageError(
        f"port {port} is in use by another program; choose another with {option}, or leave it out to get a "
        "free one"
    )


async def _ui_socket(wanted: int | None, before: int) -> socket.socket:
    """What listens for the UI's users: at the port that is wanted, else that of the last time, else any."""
    await _until_free(wanted or before)
    for port in (before, 0) if wanted is None else (wanted,):
        with contextlib.suppress(OSError):
            return socket.create_server(("127.0.0.1", port), backlog=100)
    raise _taken("--ui-port", wanted or 0)


async def _until_free(port: int) -> None:
    """Wait a moment: a killed process gives up its lock before its ports, and the UI's process ends last."""
    deadline = time.monotonic() + STOP_SECONDS
    while not _free(port) and time.monotonic() < deadline:  # noqa: ASYNC110  # another process
        await asyncio.sleep(0.02)


def _free(port: int) -> int:
    """The port if it is free, else 0; for 0 any free port."""
    with socket.socket() as probe:
        # as the server does: a port that waits out an old connection (TIME_WAIT) is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return 0
        found: int = probe.getsockname()[1]
        return found


def _log(home: Path) -> str:
    try:
        return (home / "server.log").read_text(errors="replace")
    except OSError:
        return ""


def _log_end(home: Path) -> str:
    """The end of the log; of a crash the message, not the stack."""
    message = re.split(r"^goroutine \d+ .*\[", _log(home), maxsplit=1, flags=re.MULTILINE)[0]
    written = [line.strip() for line in message.splitlines() if line.strip()]
    last = written[-LOG_LINES:] or ["(nothing)"]
    return f"Its log {home / 'server.log'} ends with:\n  " + "\n  ".join(last)
