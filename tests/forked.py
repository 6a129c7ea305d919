"""Python processes that start at once: forked from one that has imported all of Ratchet.

An import costs a second of one core. What it costs and does, and the entry points themselves, are shown by
processes that begin with nothing (`tests/client/test_cli_process.py`, `tests/test_docs.py`).
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios
from collections.abc import Mapping
from multiprocessing import get_context, reduction
from pathlib import Path
from subprocess import PIPE, TimeoutExpired
from threading import Thread
from types import TracebackType
from typing import IO, Any, Self

import worker
from client import start
from client.cli import following, reload, run  # noqa: F401  # what most commands need is loaded before the fork
from client.history import replayer  # noqa: F401  # the engine and the machines, for the same reason
from client.sdk import agent  # noqa: F401  # and what connects

__all__ = ["PIPE", "PYTEST", "RATCHET", "WORKER", "Forked", "spoken"]

ROOT = Path(__file__).parents[1]
RATCHET = f"from {start.__name__} import main; main()"
WORKER = f"from {worker.__name__} import main; main()"
PYTEST = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
SECONDS = 120
"""Until a process has ended."""
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload([__name__])


class Forked:
    """A process that runs a program in Python; as `subprocess.Popen`, and killed at the end of `with`.

    `stdin`, `stdout` and `stderr` are files, descriptors, PIPE or None, which is nothing; `terminal`: `stdin`
    is the one that the process is on.
    """

    def __init__(
        self, program: str, *words: str, env: Mapping[str, str], cwd: Path = ROOT, terminal: bool = False,
        **files: IO[Any] | int | None,
    ) -> None:  # fmt: skip
        nothing = os.open(os.devnull, os.O_RDWR)
        ours, theirs, closed = {}, [], [nothing]
        for name, mode in (("stdin", "w"), ("stdout", "r"), ("stderr", "r")):
            file = files.get(name)
            if file == PIPE:
                ends = os.pipe()
                closed.append(ends[mode == "r"])
                ours[name] = os.fdopen(ends[mode == "w"], mode)
                theirs.append(closed[-1])
            else:
                theirs.append(nothing if file is None else file if isinstance(file, int) else file.fileno())
        self.stdin: IO[str] | None = ours.get("stdin")
        self.stdout: IO[str] | None = ours.get("stdout")
        self.stderr: IO[str] | None = ours.get("stderr")
        passed = [_Passed(fd) for fd in theirs]
        self._process = FORKS.Process(target=_run, args=(passed, program, words, dict(env), cwd, terminal))
        self._process.start()
        for fd in closed:
            os.close(fd)
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code; None: it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The same."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended."""
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """The rest of what it prints, on both, until it has ended."""
        found = {"stdout": "", "stderr": ""}

        def read(name: str) -> None:
            file = getattr(self, name)
            found[name] = file.read() if file else ""

        threads = [Thread(target=read, args=(name,)) for name in found]
        for thread in threads:
            thread.start()
        self.wait(timeout)
        for thread in threads:
            thread.join(timeout)
        return found["stdout"], found["stderr"]

    def send_signal(self, number: int) -> None:
        """Send it, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.kill()
        self.wait()
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                file.close()


def spoken(program: str, *words: str, env: Mapping[str, str], cwd: Path = ROOT) -> tuple[int, str, str]:
    """Its exit code and what it has printed, on both."""
    with Forked(program, *words, env=env, cwd=cwd, stdout=PIPE, stderr=PIPE) as process:
        out, err = process.communicate(SECONDS)
        return process.wait(), out, err


class _Passed:
    """A descriptor, which becomes one of the process."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _taken, (reduction.DupFd(self.fd),)


def _taken(passed: Any) -> int:
    fd: int = passed.detach()
    return fd


def _run(
    files: list[int], program: str, words: tuple[str, ...], env: dict[str, str], cwd: Path, terminal: bool
) -> None:
    """In the process."""
    for number, fd in enumerate(files):
        os.dup2(fd, number)
    for fd in set(files):
        os.close(fd)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if terminal:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115  # for ever
    sys.argv = ["-c", *words]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    exec(program, {"__name__": "__main__"})  # as `python -c`
