"""The command line for tests: in this process, as a process, or on a terminal of its own."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client.cli.app import execute
from tests.client.conftest import FOREIGN, ROOT

__all__ = ["PROGRAM", "Cli", "Result", "Terminal", "agent_file", "environment", "running", "until"]

PROGRAM = [sys.executable, "-c", "from client.start import main; main()"]
ON_TERMINAL = [
    sys.executable,
    "-c",
    "import fcntl, os, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "from client.start import main; main()",
]
CODES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[=>])")
STATUS_QUERY = "\x1b[5n"
SECONDS = 60
AGENT = """
machine: tools
modules: [{module}]
tools: [mark]
models:
  default:
    provider: scripted
    script:
{replies}
    - {{reply: all done}}
{more}
"""


def agent_file(folder: Path, *lines: str, more: str = "") -> str:
    """An agent that wants to write each of these lines in a call of its own."""
    path = folder / "marks.yaml"
    module = os.path.relpath(Path(__file__).with_name("mark.py"), folder)
    calls = [
        {"reply": "", "tool_calls": [{"id": str(i), "name": "mark", "arguments": json.dumps({"line": line})}]}
        for i, line in enumerate(lines)
    ]
    replies = "\n".join(f"    - {json.dumps(call)}" for call in calls)
    path.write_text(AGENT.format(module=module, replies=replies, more=more))
    return str(path)


@dataclass(frozen=True)
class Result:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed with --json."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """What it printed with --json, when it is one value on each line."""
        return [json.loads(line) for line in self.out.splitlines()]


def environment(data_dir: Path, **more: str) -> dict[str, str]:
    """The environment of a process that knows nothing of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    ours = {name: os.environ[name] for name in ("XDG_STATE_HOME", "TEMPORAL_CONFIG_FILE")}
    paths = {"PYTHONPATH": str(ROOT), "RATCHET_DATA_DIR": str(data_dir)}
    return {**kept, **ours, **paths, "RATCHET_BY": "Ada", **more}


class Cli:
    """Commands in this process, at one data directory."""

    def __init__(self, data_dir: Path, files: Path) -> None:
        self.data_dir, self.files = data_dir, files

    def __call__(self, *words: str, stdin: str = "", **variables: str) -> Result:
        """Run `ratchet WORDS`."""
        out, err = io.StringIO(), io.StringIO()
        before, stdin_before = dict(os.environ), sys.stdin
        more = {"RATCHET_FILES_ROOT": str(self.files), **variables}
        os.environ.update({k: v for k, v in environment(self.data_dir, **more).items() if k != "PYTHONPATH"})
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
        try:
            with redirect_stdout(out), redirect_stderr(err):
                code = execute(words)
        finally:
            sys.stdin = stdin_before
            os.environ.clear()
            os.environ.update(before)
        return Result(code, out.getvalue(), err.getvalue())

    def waiting(self, run: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until a run asks `count` things; its requests."""

        def asked() -> Any:
            found = self("inbox", run, "--json")
            return (
                found.json["requests"] if found.code == 0 and len(found.json["requests"]) == count else None
            )

        return list(until(asked))

    def marks(self) -> list[str]:
        """What the tool has written."""
        path = self.files / "marks.txt"
        return path.read_text().split() if path.exists() else []


def until(holds: Callable[[], Any]) -> Any:
    """Wait until this gives something, and give it."""
    end = time.monotonic() + SECONDS
    while not (found := holds()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
    return found


@contextmanager
def running(data_dir: Path, *words: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """`ratchet WORDS` as a process; it is killed at the end."""
    with subprocess.Popen(
        [*PROGRAM, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(data_dir, **variables),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


class Terminal:
    """`ratchet WORDS` on a terminal, which this class is: it answers when it is asked for its status."""

    def __init__(self, data_dir: Path, *words: str, **variables: str) -> None:
        self._fd, inner = pty.openpty()
        more = {"TERM": "xterm", "COLUMNS": "120", **variables}
        self._process = subprocess.Popen(
            [*ON_TERMINAL, *words],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            cwd=ROOT,
            env=environment(data_dir, **more),
        )
        os.close(inner)
        self.early = ""
        """Keys that are pressed before the next question is drawn: they come before the terminal's answer."""
        self.shown = ""
        """All that was printed, without the codes that draw it."""
        self._raw, self._seen = "", 0

    def until(self, pattern: str) -> re.Match[str]:
        """Read until the pattern shows, behind what was waited for last."""
        end = time.monotonic() + SECONDS
        while not (found := re.search(pattern, self.shown[self._seen :])):
            assert self._read(end), f"{pattern!r} did not come; shown is:\n{self.shown}"
        self._seen += found.end()
        return found

    def type(self, keys: str) -> None:
        """Type at a prompt that shows."""
        os.write(self._fd, keys.encode())

    def end(self) -> int:
        """Read to the end; the exit code."""
        while self._read(time.monotonic() + SECONDS):
            pass
        os.close(self._fd)
        return self._process.wait(SECONDS)

    def _read(self, end: float) -> bool:
        while time.monotonic() < end:
            if not select.select([self._fd], [], [], 0.5)[0]:
                continue
            try:
                found = os.read(self._fd, 65536).decode(errors="replace")
            except OSError:
                return False  # Linux says so when the other side is closed
            self._raw += found
            while STATUS_QUERY in self._raw:
                self._raw = self._raw.partition(STATUS_QUERY)[2]
                os.write(self._fd, f"{self.early}\x1b[0n".encode())
                self.early = ""
            self.shown = CODES.sub("", self.shown + found)
            return bool(found)
        return False
