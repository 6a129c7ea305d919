"""The pages tell the truth: their programs run, their commands exist, their links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.examplekit import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
PATIENCE = 60
"""Seconds until a condition must hold."""


def text_of(page: str) -> str:
    """A page under docs/."""
    return (DOCS / page).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@dataclass
class Shell:
    """A folder in which the printed commands run."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """`ratchet` and the tools of this Python on the path; no settings and no server from outside."""
        ours = ("RATCHET_", "TEMPORAL_", "OPENAI_", "XDG_STATE_HOME")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        path = f"{self.folder / '.bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        state = str(self.folder / ".state")
        return {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": state}

    def start(self, command: str) -> subprocess.Popen[str]:
        """Start a command; its output is in `.run.txt`."""
        with (self.folder / ".run.txt").open("w") as output:
            return subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self.environment,
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def run(self, command: str, seconds: float = 100) -> str:
        """What a command prints; it must succeed."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def waiting(self) -> bool:
        """A run waits for a person."""
        found = subprocess.run(
            ["ratchet", "inbox", "--json"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return found.returncode == 0 and bool(json.loads(found.stdout or "[]"))


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.1)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """An empty folder, with the command `ratchet` of this checkout."""
    script = tmp_path / ".bin" / "ratchet"
    script.parent.mkdir()
    program = "from client.start import main; main()"
    script.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c '{program}' \"$@\"\n")
    script.chmod(0o755)
    made = Shell(tmp_path)
    yield made
    subprocess.run(["ratchet", "down"], cwd=tmp_path, env=made.environment, capture_output=True, check=False)


# -- the tutorial --------------------


def test_tutorial_works_as_printed(shell: Shell) -> None:
    text = text_of("tutorial.md")
    for block in (*blocks(text, "python"), *blocks(text, "yaml")):
        name = block.partition("\n")[0].removeprefix("# ")
        (shell.folder / name).write_text(block)
    printed: dict[str, str] = {}
    runs: list[subprocess.Popen[str]] = []
    for command in "".join(blocks(text, "sh")).splitlines():
        if command.startswith("ratchet run"):
            assert not runs or runs[-1].wait(PATIENCE) == 0
            runs.append(shell.start(command))
            continue
        if re.match("ratchet (inbox|approve|reject)", command):
            until(shell.waiting, command)
        printed[command] = shell.run(command)
    assert runs[-1].wait(PATIENCE) == 0
    assert (shell.folder / "outbox.txt").read_text().splitlines()[:2] == ["Your parcel comes tomorrow."] * 2
    assert "send --> write: Rejected" in printed["ratchet diagram reply_desk --agent desk.yaml"]
    assert "1 passed" in printed["pytest test_desk.py"]


def test_machine_and_test_of_the_tutorial_are_short() -> None:
    _, machine, test = blocks(text_of("tutorial.md"), "python")
    assert len(machine.splitlines()) <= 61
    assert len(test.splitlines()) <= 12


# -- programs, settings, links --------------------


@pytest.mark.parametrize("page", ["own-machine.md", "rules.md", "tools.md", "operations.md"])
def test_program_of_a_page_runs(page: str, shell: Shell) -> None:
    program = shell.folder / "program.py"
    program.write_text("\n".join(one for one in blocks(text_of(page), "python") if "Client.connect" not in one))
    shell.run(f"{shlex.quote(sys.executable)} program.py")
