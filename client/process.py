"""Who a process is: its pid alone says little, since pids are used again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

__all__ = ["command_line", "end_process", "listens", "started_at"]

PROC = Path("/proc")
KILL_SECONDS = 10


def started_at(pid: int) -> str | None:
    """A mark of when the process began; None when there is none, or it is dead and not yet reaped.

    On Linux the boot's id and the start in clock ticks, elsewhere what `ps` prints.
    """
    if (PROC / "self" / "stat").exists():
        return _started_in_proc(pid)
    return _ps(pid, "lstart") if not _ps(pid, "state").startswith("Z") else None


def command_line(pid: int) -> str:
    """The command line, words parted by blanks; empty when there is no such process."""
    if not (PROC / "self" / "stat").exists():
        return _ps(pid, "command")
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace").strip()


def listens(pid: int, port: int) -> bool:
    """The process itself takes connections at the port of 127.0.0.1; True where that cannot be told."""
    try:
        rows = [row.split() for row in (PROC / str(pid) / "net" / "tcp").read_text().splitlines()[1:]]
        files = list((PROC / str(pid) / "fd").iterdir())
    except OSError:
        return not (PROC / "self" / "net" / "tcp").exists()
    taking = {f"socket:[{row[9]}]" for row in rows if row[1] == f"0100007F:{port:04X}" and row[3] == "0A"}
    return any(_link(file) in taking for file in files)


def _link(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:
        return ""  # closed meanwhile


def end_process(pid: int, started: str, patience: float) -> None:
    """End the process that began at `started`: asked first, killed after `patience` seconds."""
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, KILL_SECONDS)):
        if started_at(pid) != started:
            return
        os.kill(pid, number)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            _reap(pid)
            if started_at(pid) != started:
                return
            time.sleep(0.02)


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # another's child: that one reaps it
        os.waitpid(pid, os.WNOHANG)


def _started_in_proc(pid: int) -> str | None:
    try:
        stat = (PROC / str(pid) / "stat").read_text()
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold blanks and brackets
    state, ticks = fields[0], fields[19]
    return None if state in "ZX" else f"{boot}:{ticks}"


def _ps(pid: int, column: str) -> str:
    done = subprocess.run(
        ["ps", "-o", f"{column}=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
