"""The command line for tests: in this process, as a process, or on a terminal of its own."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client.cli.app import execute
from tests.client.conftest import FOREIGN, ROOT
from tests.forked import PIPE, RATCHET, Forked
from tests.server.conftest import TOOLS

__all__ = ["PROGRAM", "Cli", "Result", "Terminal", "agent_file", "environment", "running", "until", "within"]

PROGRAM = [sys.executable, "-c", RATCHET]
CODES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[=>])")
STATUS_QUERY = "\x1b[5n"
SECONDS = 120
AGENT = """
machine: tools
modules: [{module}]
tools: [mark_once]
models:
  default:
    provider: scripted
    script:
{replies}
    - {{reply: all done}}
{more}
"""


def agent_file(folder: Path, *lines: str, more: str = "") -> str:
    """An agent that wants to write each of these lines, in an unsafe call of its own."""
    path = folder / "marks.yaml"
    calls = [
        {"id": str(i), "name": "mark_once", "arguments": json.dumps({"line": line})}
        for i, line in enumerate(lines)
    ]
    replies = "\n".join(f"    - {json.dumps({'reply': '', 'tool_calls': [call]})}" for call in calls)
    path.write_text(AGENT.format(module=os.path.relpath(TOOLS, folder), replies=replies, more=more))
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


def environment(**variables: str) -> dict[str, str]:
    """The environment of a process that knows nothing of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    ours = {name: os.environ[name] for name in ("XDG_STATE_HOME", "TEMPORAL_CONFIG_FILE")}
    return {**kept, **ours, "RATCHET_BY": "Ada", "PYTHONPATH": str(ROOT), **variables}


@contextmanager
def within(variables: Mapping[str, str]) -> Iterator[None]:
    """This process has this environment meanwhile, and nothing else of its own."""
    before = dict(os.environ)
    _become(variables)
    try:
        yield
    finally:
        _become(before)


def _become(variables: Mapping[str, str]) -> None:
    os.environ.update(variables)  # first: other threads read it
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]


class Cli:
    """Commands with certain variables of the environment, run in this process."""

    def __init__(self, data_dir: Path, files: Path, variables: Mapping[str, str] | None = None) -> None:
        self.files = files
        places = {"RATCHET_DATA_DIR": str(data_dir), "RATCHET_FILES_ROOT": str(files)}
        self.variables = {**places, **(variables or {})}

    def __call__(self, *words: str, stdin: str = "", **variables: str) -> Result:
        """Run `ratchet WORDS`."""
        out, err = io.StringIO(), io.StringIO()
        stdin_before = sys.stdin
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
        try:
            with (
                within(environment(**self.variables, **variables)),
                redirect_stdout(out),
                redirect_stderr(err),
            ):
                code = execute(words)
        finally:
            sys.stdin = stdin_before
        return Result(code, out.getvalue(), err.getvalue())

    async def beside(self, *words: str, stdin: str = "", **variables: str) -> Result:
        """The same in a thread, while a worker of the test's own loop works."""
        return await asyncio.to_thread(self, *words, stdin=stdin, **variables)

    @contextmanager
    def terminal(self, *words: str, **variables: str) -> Iterator[Terminal]:
        """The same command on a terminal; it is killed at the end."""
        terminal = Terminal(*words, **{**self.variables, **variables})
        try:
            yield terminal
        finally:
            terminal.close()

    def marks(self) -> list[str]:
        """What calls have written, in order."""
        path = self.files / "marks.txt"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def until(holds: Callable[[], Any]) -> Any:
    """Wait until this gives something, and give it; what asks a command asks less and less often."""
    end, pause = time.monotonic() + SECONDS, 0.05
    while not (found := holds()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(pause)
        pause = min(1.5 * pause, 0.5)
    return found


def running(*words: str, **variables: str) -> Forked:
    """`ratchet WORDS` as a process; it is killed at the end."""
    return Forked(RATCHET, *words, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment(**variables))


class Terminal:
    """`ratchet WORDS` on a terminal, which this class is: it answers when it is asked for its status."""

    def __init__(self, *words: str, **variables: str) -> None:
        self._fd, inner = pty.openpty()
        env = environment(TERM="xterm", COLUMNS="120", **variables)
        self._process = Forked(
            RATCHET, *words, stdin=inner, stdout=inner, stderr=inner, env=env, terminal=True
        )
        os.close(inner)
        self.answers = True
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
        return self._process.wait(SECONDS)

    def close(self) -> None:
        """Kill the command if it still runs."""
        self._process.kill()
        self._process.wait(SECONDS)
        os.close(self._fd)

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
                answer = "\x1b[0n" if self.answers else ""
                os.write(self._fd, f"{self.early}{answer}".encode())
                self.early = ""
            self.shown = CODES.sub("", self.shown + found)
            return bool(found)
        return False
