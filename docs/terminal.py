"""A real terminal that a program types into, and pictures of what it shows. Needs tmux."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

__all__ = ["ROOT", "Terminal", "picture"]

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 92
LINES = 100
SHELL = "exec env PS1='$ ' bash --norc --noprofile"
SECONDS = 180
"""How long a command, or a text on the screen, may take."""
# Nothing is loaded from elsewhere: the reader's own font of equal widths will do.
FORMAT = re.sub(r"@font-face {{.*?}}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
THEME = TerminalTheme(
    (22, 27, 34),
    (230, 237, 243),
    [(72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34), (88, 166, 255), (188, 140, 255),
     (57, 197, 207), (177, 186, 196)],
    [(110, 118, 129), (255, 161, 152), (86, 211, 100), (227, 179, 65), (121, 192, 255), (210, 168, 255),
     (86, 212, 221), (255, 255, 255)],
)  # fmt: skip


class Terminal:
    """Bash in a folder, on a terminal of its own; `ratchet` is the command of this checkout."""

    def __init__(self, folder: Path, state: Path, name: str = "first", columns: int = COLUMNS) -> None:
        self._socket, self._codes, self._seen = state / f"{name}.tmux", state / f"{name}.codes", 1
        state.mkdir(parents=True, exist_ok=True)
        self._codes.touch()
        ours = ("RATCHET_", "TEMPORAL_", "OPENAI_", "PYTHONUNBUFFERED", "TMUX")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        self.environment = {
            **kept,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "XDG_STATE_HOME": str(state),
            "RATCHET_BY": "ann",
            "PROMPT_COMMAND": f'echo "$?" >> {self._codes}',
        }
        size = ("-x", str(columns), "-y", str(LINES))
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, "-c", str(folder), SHELL)
        self._wait(lambda: self._ended() == [0], "the shell has no prompt")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._tmux("kill-server")

    def type(self, text: str) -> None:
        """Type a line, with the return key."""
        self._tmux("send-keys", "-l", text)
        self._tmux("send-keys", "Enter")

    def run(self, command: str) -> int:
        """Type a command and wait for its end; its exit code."""
        self.type(command)
        return self.end_of(command)

    def end_of(self, command: str) -> int:
        """The exit code of a command that was typed, when it has ended."""
        before = self._seen
        self._wait(lambda: len(self._ended()) > before, f"`{command}` does not end")
        self._seen = len(self._ended())
        return self._ended()[-1]

    def interrupt(self) -> None:
        """Press Ctrl-C and wait for the prompt."""
        before = len(self._ended())
        self._tmux("send-keys", "C-c")
        self._wait(lambda: len(self._ended()) > before, "Ctrl-C ends nothing")
        self._seen = len(self._ended())

    def clear(self) -> None:
        """Forget what was shown; nothing may run."""
        self.run("clear")
        self._tmux("clear-history")

    def sees(self, pattern: str) -> re.Match[str]:
        """Wait until the screen shows what a regular expression finds, while a typed command runs."""
        found: list[re.Match[str]] = []

        def shown() -> bool:
            ended = len(self._ended()) > self._seen
            found[:] = re.finditer(pattern, self.text())
            return bool(found) or ended

        problem = f"the screen does not show {pattern}"
        self._wait(shown, problem)
        if not found:
            raise RuntimeError(f"{problem}, and the command has ended:\n{self.text()}")
        return found[-1]

    def lines(self) -> list[Text]:
        """What was shown so far, with its colours."""
        shown = list(AnsiDecoder().decode(self._tmux("capture-pane", "-p", "-e", "-S", "-")))
        while shown and not shown[-1].plain.strip():
            shown.pop()
        return shown

    def text(self) -> str:
        """What was shown so far, with the lines that the terminal broke in one piece."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-").rstrip()

    def process(self) -> int:
        """The process of the command that runs."""
        shell = self._tmux("display", "-p", "#{pane_pid}").strip()
        found = subprocess.run(["pgrep", "-P", shell], capture_output=True, text=True, check=True)
        return int(found.stdout.split()[0])

    def _ended(self) -> list[int]:
        return [int(code) for code in self._codes.read_text().split()]

    def _wait(self, holds: Callable[[], bool], problem: str) -> None:
        end = time.monotonic() + SECONDS
        while not holds():
            if time.monotonic() > end:
                raise RuntimeError(f"{problem}; the screen shows:\n{self.text()}")
            time.sleep(0.05)

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self._socket), *words],
            env=self.environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout


def picture(lines: Iterable[Text], title: str, columns: int = COLUMNS) -> str:
    """The lines of a terminal as an SVG."""
    console = Console(
        record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor",
        legacy_windows=False,
    )  # fmt: skip
    for line in lines:
        console.print(line, soft_wrap=True)
    console.print()  # the last line is cut off at its foot
    return console.export_svg(title=title, theme=THEME, code_format=FORMAT, unique_id="terminal")
