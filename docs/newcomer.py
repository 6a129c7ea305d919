"""A newcomer's first quarter of an hour, in an empty folder: `python -m docs.newcomer OUTPUT`.

An agent, a tool, a machine of three states, their tests, and an approval in the browser. Writes a picture
of each step and `steps.md` with its time into OUTPUT. The exit code is 1 when a step fails. It needs tmux and
Chromium.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Error, Page, expect, sync_playwright

from docs.terminal import Terminal, picture

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
PATIENCE = 120_000
"""Milliseconds that the browser waits."""
GOAL = "How many words does agent.yaml have?"
AGENT = """\
machine: tools
instructions: Write what was decided into the notebook.
modules: [take_note.py]
tools: [take_note]
models:
  default:
    provider: scripted
    script:
      - reply: I write it down.
        tool_calls: [{id: note, name: take_note, arguments: '{"text": "The office moves in May."}'}]
      - reply: It is in the notebook.
"""
LINES = 60
"""The most that a machine of three states may take."""


class Failed(Exception):
    """A step did not do what it should."""


@dataclass
class Record:
    """The steps so far: what was done, in how many seconds, and its picture."""

    output: Path
    rows: list[tuple[str, float, str]] = field(default_factory=list)

    @contextmanager
    def step(self, what: str, draw: Callable[[Path], str]) -> Iterator[None]:
        """Time a step and take its picture, also if it fails. `draw` gets a path without suffix."""
        began = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            name = re.sub(r"[^a-z]+", "-", what.lower())
            drawn = draw(self.output / f"{len(self.rows) + 1:02}-{name}")
            self.rows.append((what, seconds, drawn))
            sys.stdout.write(f"{seconds:6.1f} s  {what}\n")
            sys.stdout.flush()

    def write(self) -> None:
        """Write `steps.md`."""
        lines = [f"| {what} | {seconds:.1f} | ![{what}]({drawn}) |" for what, seconds, drawn in self.rows]
        total = sum(seconds for _, seconds, _ in self.rows)
        head = ["# A newcomer's steps", "", "| step | seconds | picture |", "| --- | --- | --- |"]
        text = "\n".join([*head, *lines, f"| all | {total:.1f} | |", ""])
        (self.output / "steps.md").write_text(text, encoding="utf-8")


def walk(folder: Path, state: Path, record: Record) -> None:
    """Do every step in a folder that is empty.

    Raises:
        Failed: a command's exit code is not 0, or it did not do what it should.
        RuntimeError: a command does not end.
    """
    with Terminal(folder, state) as terminal, Terminal(folder, state, "second") as worker:

        def typed(what: str, *commands: str) -> None:
            terminal.clear()
            with record.step(what, lambda path: _drawn(terminal, path)):
                for command in commands:
                    if code := terminal.run(command):
                        raise Failed(f"`{command}` ended with {code}")

        try:
            _build(folder, terminal, typed)
            _decide(folder, terminal, worker, typed, record)
        finally:
            terminal.interrupt()
            worker.interrupt()
            terminal.run("ratchet down")


def _decide(
    folder: Path, terminal: Terminal, worker: Terminal, typed: Callable[..., None], record: Record
) -> None:
    """A run asks, a person approves in the browser."""
    (folder / "notes.yaml").write_text(AGENT, encoding="utf-8")
    with record.step("A server, a worker and the console", lambda path: _drawn(worker, path)):
        worker.type("ratchet dev --agent notes.yaml")
        worker.sees("A worker runs here")
        link = worker.sees(r"http://\S+token=\S+")[0]
    typed("Start a run that needs approval", 'ratchet run --detach --id move --agent notes.yaml "Note it."')
    with _browser() as page:
        _approve(page, link, record)
    if (folder / "notebook.txt").read_text(encoding="utf-8") != "The office moves in May.\n":
        raise Failed("the approved call did not write the notebook")
    typed("Read what was decided", "ratchet result move", "ratchet log move", "cat notebook.txt")


def _build(folder: Path, terminal: Terminal, typed: Callable[..., None]) -> None:
    """An agent, a tool and a machine, each with its test."""
    typed("Begin: an agent, a tool and a test", "ratchet init", "ls")
    typed("Run the agent", f'ratchet run --agent agent.yaml "{GOAL}"')
    typed("Test the agent", "pytest -q test_agent.py")
    typed("A tool of one's own", "ratchet new tool take_note", "cat take_note.py")
    typed("Test the tool", "pytest -q test_take_note.py")
    typed(
        "A machine of three states", "ratchet new machine brief", "ratchet diagram brief --agent brief.yaml"
    )
    length = len((folder / "brief.py").read_text(encoding="utf-8").splitlines())
    states = set(terminal.text().split()) & {"write", "check", "done"}
    if length > LINES or len(states) != 3:
        raise Failed(f"the machine has {length} lines and the states {sorted(states)}")
    typed("Run the machine", 'ratchet run --agent brief.yaml "Why do ships float?"')
    typed("Test the machine", "pytest -q test_brief.py")


def _approve(page: Page, link: str, record: Record) -> None:
    def drawn(path: Path) -> str:
        page.screenshot(path=path.with_suffix(".png"))
        return f"{path.name}.png"

    with record.step("Open the console", drawn):
        page.goto(link)
        waiting = page.locator('a[href*="move"].main')
        expect(waiting).to_be_visible()
    with record.step("Look at the request", drawn):
        waiting.click()
        approve = page.get_by_role("button", name="Approve", exact=True)
        expect(approve).to_be_visible()
    with record.step("Approve it in the browser", drawn):
        approve.click()
        expect(page.get_by_role("region", name="The decision")).to_contain_text("Approved by ann")
    with record.step("Follow the run to its end", drawn):
        page.locator('a[href*="/run?id=move"]').first.click()
        expect(page.get_by_role("region", name="Result")).to_contain_text("It is in the notebook.")


def _drawn(terminal: Terminal, path: Path) -> str:
    """Write what a terminal shows as SVG; the file's name."""
    lines = terminal.lines()
    if lines and lines[-1].plain.strip() == "$":
        lines.pop()
    path.with_suffix(".svg").write_text(picture(lines, "ratchet"), encoding="utf-8")
    return f"{path.name}.svg"


@contextmanager
def _browser() -> Iterator[Page]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = chromium.new_context(viewport={"width": 1100, "height": 800})
        context.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        yield context.new_page()
        chromium.close()


def main() -> int:
    """Walk, and write what came of it; the exit code."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m docs.newcomer OUTPUT\n")
        return 2
    record = Record(Path(sys.argv[1]))
    record.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as state:
        try:
            walk(Path(folder), Path(state), record)
        except (Failed, RuntimeError, AssertionError, Error, OSError) as error:
            sys.stderr.write(f"failed: {error}\n")
            return 1
        finally:
            record.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
