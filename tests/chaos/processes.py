"""The processes of chaos and what is between them: disk, server, network, clocks, workers."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from activities.settings import Settings
from client.server.embedded import DYNAMIC_CONFIG, temporal_binary
from client.server.namespace import prepare
from tests.chaos import tools
from tests.chaos.actors import eventually
from tests.link import Link
from tests.server.conftest import OUTER_MACHINE, ROOT
from workflows.api import ATTRIBUTES

__all__ = ["Disk", "Server", "WorkerPool", "older_source"]

DISK_SIZE = "1g"
FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
"""Moves the clock of a process; Debian's package `faketime` has it."""


class Disk:
    """Where server and workers keep all they have: a file system of its own, where one can be mounted."""

    def __init__(self, home: Path) -> None:
        self.path = home / "disk"
        self.path.mkdir()
        self.settings = Settings(data_dir=self.path / ".ratchet", files_root=self.path, shutdown_seconds=1)
        self.is_mounted = self._mount(f"size={DISK_SIZE}", "tmpfs")

    def _mount(self, options: str, *source: str) -> bool:
        command = ("mount", "-t", "tmpfs", "-o", options, *source, str(self.path))
        with suppress(OSError):
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        return False

    def fill(self) -> None:
        """Leave no byte free."""
        at = os.statvfs(self.path)
        self._mount(f"remount,size={(at.f_blocks - at.f_bfree) * at.f_frsize}")

    def empty(self) -> None:
        """As it was."""
        self._mount(f"remount,size={DISK_SIZE}")

    def close(self, keep: Path) -> None:
        """Unmount it; what was on it is kept there."""
        if self.is_mounted:
            self.empty()
            shutil.copytree(self.path, keep)
            subprocess.run(("umount", "--lazy", str(self.path)), check=False)


class Server:
    """A server process with its database in a file."""

    def __init__(self, home: Path, disk: Path) -> None:
        self.home, self.database = home, disk / "temporal.db"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it and wait until it answers."""
        await eventually(self._answer, seconds=120)

    async def _answer(self) -> None:
        if self.process is None or self.has_ended:
            await self._begin()
        await prepare(self.address)

    async def _begin(self) -> None:
        command = [temporal_binary(), "server", "start-dev", "--ip", "127.0.0.1", "--port", str(self.port)]
        command += ["--headless", "--log-level", "error", "--db-filename", str(self.database)]
        command += ["--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=normal"]
        for value in (*DYNAMIC_CONFIG, "limit.historyCount.suggestContinueAsNew=60"):
            command += ["--dynamic-config-value", value]
        for name, kind in ATTRIBUTES.items():
            command += ["--search-attribute", f"{name}={kind}"]
        with (self.home / "server.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)

    @property
    def has_ended(self) -> bool:
        """It was killed, or ended by itself, as on a full disk."""
        return self.process is not None and self.process.returncode is not None

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.kill()

    async def end(self) -> None:
        """kill -9, and wait until it is gone: its pipes close in the loop that opened them."""
        self.kill()
        if self.process is not None:
            await self.process.wait()


def older_source(revision: str, home: Path) -> Path | None:
    """The source of a revision; None where there is no repository that has it."""
    folder = home / "older"
    try:
        archive = subprocess.run(("git", "archive", revision), cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    folder.mkdir()
    subprocess.run(("tar", "-x", "-C", str(folder)), input=archive.stdout, check=True)
    return folder


def _piped(path: Path) -> subprocess.Popen[bytes]:
    """A pipe into a file, for a process that may not write files."""
    with path.open("wb") as file:
        return subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file)


@dataclass
class WorkerPool:
    """Worker processes; one that is gone is replaced, as any platform does."""

    home: Path
    settings: Settings
    """Data directory, files and seconds for the end."""
    links: Sequence[Link]
    environment: Mapping[str, str]
    command: Sequence[str] = ("worker.py",)
    """For Python; another one is a product with a fault in it."""
    ended_alone: list[str] = field(default_factory=list)
    """Which ended though nobody ended them, how, and their last words. One that does not even start on a disk
    that is full is none of them: it says so, and a platform starts it again."""
    older: Path | None = None
    """Source of an older worker."""
    next_older: set[int] = field(default_factory=set)
    """Which are started from that when they are missing."""

    def __post_init__(self) -> None:
        self.processes: list[asyncio.subprocess.Process | None] = [None] * len(self.links)
        self._ending: list[asyncio.subprocess.Process] = []
        self._logs: dict[int, tuple[Path, subprocess.Popen[bytes]]] = {}
        self._disk_is_full = False
        self._met_full_disk: set[int] = set()

    def note_full_disk(self, is_full: bool) -> None:
        """From now on the disk of all is full, or no longer."""
        self._disk_is_full = is_full
        if is_full:
            self._met_full_disk |= set(range(len(self.processes)))

    async def start(self) -> None:
        """Start those that are missing."""
        for number, process in enumerate(self.processes):
            if process is not None and process.returncode is not None:
                self._note_end(number, process)
            if process is None or process.returncode is not None:
                self.processes[number] = await self._started(number)

    def _note_end(self, number: int, process: asyncio.subprocess.Process) -> None:
        path, _ = self._logs[process.pid]
        text = path.read_text()
        if number in self._met_full_disk and "worker.started" not in text:
            return
        if text.startswith("libfaketime: "):  # the clock's library met the limit on files before Python began
            return
        last = next(iter(text.splitlines()[-1:]), "it said nothing")
        self.ended_alone.append(f"worker {number} ended by itself, code {process.returncode}, {path}: {last}")

    async def _started(self, number: int) -> asyncio.subprocess.Process:
        is_older = self.older is not None and number in self.next_older
        self.next_older.discard(number)
        if not self._disk_is_full:
            self._met_full_disk.discard(number)
        path = self.home / f"worker-{number}-{len(self._logs)}.log"
        log = _piped(path)
        assert log.stdin is not None
        clock = self.clock(number)
        clock.write_text("+0")
        faketime = {
            "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_CACHE_DURATION": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        } if FAKETIME else {}  # fmt: skip
        environment = {
            **os.environ, **self.environment, **faketime,
            "TEMPORAL_ADDRESS": self.links[number].address,
            "RATCHET_DATA_DIR": str(self.settings.data_dir),
            "RATCHET_FILES_ROOT": str(self.settings.files_root),
            "RATCHET_MODULES": json.dumps([str(tools.__file__), str(OUTER_MACHINE)]),
            "RATCHET_SHUTDOWN_SECONDS": str(self.settings.shutdown_seconds),
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            sys.executable, *(("worker.py",) if is_older else self.command),
            cwd=self.older if is_older else ROOT, env=environment,
            stdin=subprocess.DEVNULL, stdout=log.stdin, stderr=log.stdin,
            restore_signals=False,  # else SIGXFSZ kills one that meets the full disk before Python ignores it
        )  # fmt: skip
        log.stdin.close()  # the worker has it, and its end is the log's
        self._logs[process.pid] = path, log
        return process

    def clock(self, number: int) -> Path:
        """A file that says how wrong a worker's clock is."""
        return self.home / f"clock-{number}"

    def send(self, number: signal.Signals, *which: int) -> None:
        """A signal to those processes. One that ends them is no surprise later."""
        for one in which:
            process = self.processes[one]
            if process is not None and process.returncode is None:
                process.send_signal(number)
            if process is not None and number in (signal.SIGKILL, signal.SIGTERM):
                self.processes[one] = None
                self._ending.append(process)

    def may_write(self, can: bool, *which: int) -> None:
        """Let them write files, or not."""
        for one in which:
            process = self.processes[one]
            if process is not None and process.returncode is None:
                _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most if can else 0, most))

    async def end(self) -> None:
        """kill -9."""
        every = [*self._ending, *(one for one in self.processes if one is not None)]
        living = [one for one in every if one.returncode is None]
        for process in living:
            process.kill()
        for process in living:
            await process.wait()
        for _, log in self._logs.values():
            log.wait()
