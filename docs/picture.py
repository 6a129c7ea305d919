"""Makes the README's picture: a real run is killed with `kill -9`, goes on, and asks a person.

`python -m docs.picture` writes docs/images/killed.svg. It needs tmux, and no model: the agent `payments`
follows a script. Each reply is made to take seconds, so that the kill comes while the model is asked.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
from pathlib import Path

from rich.text import Text

from docs.terminal import ROOT, Terminal, picture

PICTURE = ROOT / "docs" / "images" / "killed.svg"
AGENT = "examples/agents/payments.yaml"
SECONDS = 4
"""How long the model is made to take for a reply."""
LEFT_OUT = re.compile(r"^(agent payments|The model `scripted`|Temporal 127|http://|.* digest )")


def recorded(folder: Path) -> list[Text]:
    """The lines of the terminal, with the other terminal's command where it was typed."""
    with Terminal(folder, folder / ".state") as terminal:
        assert terminal.run("ratchet init --examples") == 0
        terminal.clear()
        text = (folder / AGENT).read_text(encoding="utf-8")
        slow = text.replace("delay_seconds: 0.2", f"delay_seconds: {SECONDS}")
        (folder / AGENT).write_text(slow, encoding="utf-8")
        command = f'ratchet run --agent {AGENT} "Pay what is due."'
        terminal.type(command)
        terminal.sees("payment 1: (.*\n)+.*thought 1 s")
        process = terminal.process()
        os.kill(process, signal.SIGKILL)
        assert terminal.end_of(command) == 128 + signal.SIGKILL
        first = terminal.lines()[:-1]
        terminal.type("ratchet run --resume")
        terminal.sees("if you like:")
        terminal.type("y")
        assert terminal.end_of("ratchet run --resume") == 0
        second = terminal.lines()[len(first) : -1]
    return [*kept(first[:-1]), *other(f"$ kill -9 {process}"), first[-1], Text(), *kept(shortened(second))]


def kept(lines: list[Text]) -> list[Text]:
    """Without what says nothing here: addresses and digests."""
    return [line for line in lines if not LEFT_OUT.match(line.plain)]


def shortened(lines: list[Text]) -> list[Text]:
    """Without the steps that were shown before the kill: the resumed run shows its whole log."""
    begin, end = (
        next(index for index, line in enumerate(lines) if line.plain.startswith(f"  {step}  "))
        for step in (1, 3)
    )
    return [*lines[:begin], Text("     \u22ee  steps 1 and 2, as above\n", "dim"), *lines[end:]]


def other(line: str) -> list[Text]:
    """What was typed into another terminal, in a frame."""
    drawn = [f"┌─ another terminal {'─' * 32}┐", f"│ {line:<50}│", f"└{'─' * 51}┘"]
    return [Text(one, "bold red") for one in drawn]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        PICTURE.write_text(picture(recorded(Path(made)), "kill -9, resume, approve"), encoding="utf-8")
