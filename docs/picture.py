"""Makes the README's picture: its agent is killed with `kill -9` between two bills, and asks when resumed.

`python -m docs.picture` writes docs/images/killed.svg. It needs tmux; the agent follows a script.
Each reply is made to take seconds, so that the kill comes while the model is asked.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path

from rich.text import Text

from docs.terminal import ROOT, Terminal, picture

PICTURE = ROOT / "docs" / "images" / "killed.svg"
SECONDS = 4
"""How long the model is made to take for a reply."""
LEFT_OUT = re.compile(
    r"^(agent bills|run bills|The model `scripted`|Temporal 127|while this command|http://"
    r"|Not over|  bills-| +this step:|.* (digest|--digest) |$)"
)


def recorded(folder: Path) -> list[Text]:
    """The lines of the terminal, with the other terminal's command where it was typed."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    files, command, _ = re.split(r"^(ratchet run .*)$", _shell(readme), maxsplit=1, flags=re.MULTILINE)
    slow = files.replace("{reply: ", f"{{delay_seconds: {SECONDS}, reply: ")
    subprocess.run(["sh", "-c", slow], cwd=folder, check=True)
    with Terminal(folder, folder / ".state") as terminal:
        terminal.clear()
        terminal.type(command)
        terminal.sees("paid 1250 (.*\n)+.*asking the model 1 s")
        process = terminal.process()
        os.kill(process, signal.SIGKILL)
        assert terminal.end_of(command) == 128 + signal.SIGKILL
        first = terminal.lines()[:-1]
        terminal.type("ratchet run --resume")
        terminal.sees("if you like:")
        terminal.type("y")
        assert terminal.end_of("ratchet run --resume") == 0
        second = terminal.lines()[len(first) : -1]
    return [*kept(first[:-1]), *other(f"$ kill -9 {process}"), first[-1], *kept(shortened(second))]


def _shell(page: str) -> str:
    return page.partition("```sh\n")[2].partition("```")[0]


def kept(lines: list[Text]) -> list[Text]:
    """Without what says nothing here: addresses, digests, empty lines."""
    return [line for line in lines if not LEFT_OUT.match(line.plain.rstrip())]


def shortened(lines: list[Text]) -> list[Text]:
    """Without the step that was shown before the kill: the resumed run shows its whole log."""
    begin, end = (
        next(index for index, line in enumerate(lines) if line.plain.startswith(f"  {step}  "))
        for step in (1, 2)
    )
    return [*lines[:begin], Text("     \u22ee  step 1, as above\n", "dim"), *lines[end:]]


def other(line: str) -> list[Text]:
    """What was typed into another terminal, in a frame."""
    drawn = [f"┌─ another terminal {'─' * 32}┐", f"│ {line:<50}│", f"└{'─' * 51}┘"]
    return [Text(one, "bold red") for one in drawn]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        PICTURE.write_text(picture(recorded(Path(made)), "kill -9, resume, approve"), encoding="utf-8")
