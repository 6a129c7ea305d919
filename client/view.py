"""How runs look on a terminal."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group
from rich.panel import Panel
from rich.status import Status
from rich.table import Table
from rich.text import Text

from client.listing import RunLine
from workflows.api import AgentResult, AgentStatus, StepLine
from workflows.kernel.log import STARTED, Record

__all__ = [
    "WIDE", "LiveView", "escaped", "listing", "notes", "out", "pairs", "plain", "record_block", "result_text",
    "spent", "status_lines", "steps_table",
]  # fmt: skip

WIDE = 120
"""Columns from which on a list has when a run began, of which agent it is, and until when it waits."""
REASON_LINES = 8
SAID_CHARACTERS = 100
"""Of the text that a model is producing, in the line below the records; fewer on a narrow terminal."""
REASON_CHARACTERS = 900


def out() -> Console:
    """Where a command prints what was asked for."""
    return _console(sys.stdout.isatty(), stderr=False)


def notes() -> Console:
    """Where a command prints what it does meanwhile, and what went wrong."""
    return _console(sys.stderr.isatty(), stderr=True)


def plain(text: str) -> str:
    """Text without characters that would steer a terminal; a tool or a model may have sent them."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def escaped(text: str) -> str:
    """JSON text that means the same, without characters that would steer a terminal (C1, bidi, format)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def record_block(record: Record, before: Record | None = None, *, told: bool = False) -> Text:
    """A record as a block: where it led, why, and what had been spent by then.

    What has been spent is left out when the record `before` says the same; the reason when it is `told`
    otherwise. The time is that since the record before.
    """
    block = Text()
    block.append(f"{record.seq:>4}  ", style="dim")
    if record.within:
        block.append(f"{plain(record.within)} · {plain(record.machine)} · ", style="dim")
    block.append(plain(record.state), style="bold cyan")
    if record.to is not None and record.event != STARTED:
        block.append(" → ", style="dim")
        block.append(plain(record.to), style="bold cyan")
    block.append(f"  {plain(record.event)}", style="magenta")
    # Not since it began, where people were waited for meanwhile: what they said is in the record before.
    took = record.finished - max(record.started, before.finished if before else 0)
    marks = [f"step {record.step}"] if record.step else []
    marks += [f"{took:.1f} s"] if took >= 0.05 else []
    now = spent(record.counters)
    marks += [now] if now and (before is None or now != spent(before.counters)) else []
    block.append(f"   {' · '.join(marks)}" if marks else "", style="dim")
    if record.reason and not told:
        block.append(_indented(record.reason))
    for content in _returned(record):
        block.append(_indented(f"← {content}"), style="dim")
    if record.error:
        block.append(_indented(f"refused: {record.error}"), style="bold red")
    return block


def _returned(record: Record) -> list[str]:
    """What tools returned to the model in this record, where the machine keeps a conversation."""
    said: Any = record.patch.get("transcript")
    messages = [one for one in said if isinstance(one, dict)] if isinstance(said, list) else []
    return [str(one.get("content", "")) for one in messages if one.get("role") == "tool"]


def result_text(result: AgentResult, console: Console) -> Group:
    """What came out of a run; in a frame on a terminal, in plain lines for a file."""
    answer = plain(result.answer or "(no answer)")
    title, style = ("answer", "green") if result.ok else ("no success", "red")
    if console.is_terminal:
        framed = Panel(Text(answer), title=title, border_style=style, title_align="left")
        parts: list[Panel | Text] = [framed]
    else:
        parts = [Text(f"{title}: {answer}")]
    if result.error:
        parts.append(Text(plain(result.error), style="red"))
    line = f"{result.exit_reason} in state {result.state} · {_counted(result.steps, 'step')}"
    parts.append(Text(plain(f"{line} · {spent(result.counters)}".rstrip(" ·"))))
    return Group(*parts)


def status_lines(line: RunLine | None, status: AgentStatus) -> Table:
    """Where a run is, as name and value."""
    table = Table.grid(padding=(0, 2))
    rows = {
        "run": line.id if line else "",
        "goal": line.goal if line else "",
        "agent": f"{status.agent} (machine {status.machine} {status.machine_version})",
        "state": status.state,
        "step": str(status.step),
        "inside": " / ".join(status.inside),
        "doing": "" if status.finished else status.doing,
        "waits for": _waits(line, status),
        "progress": line.progress if line else ("finished" if status.finished else "running"),
        "exit": status.exit_reason or "",
        "answer": status.answer or "",
        "why": status.error or "",
        "spent": spent(status.counters),
        "of at most": ", ".join(f"{name} {cap:g}" for name, cap in status.caps.items()),
        "records": str(status.records or ""),
        "branch": f"{status.branch} (rolled back as often)" if status.branch else "",
        "forked from": _origin(status),
        "not understood": "\n".join(status.unusable_messages),
    }
    for name, value in rows.items():
        if value:
            table.add_row(Text(name, style="dim"), Text(plain(value)))
    return table


def _waits(line: RunLine | None, status: AgentStatus) -> str:
    """For what people are waited for, since when, and where to read on."""
    if not status.waiting or status.finished:
        return ""
    run = line.id if line else "RUN"
    since = f" since {_clock(line.waiting_since)}" if line and line.waiting_since else ""
    deadline = f", deadline {_clock(line.deadline)}" if line and line.deadline else ""
    asked = (
        f" ({_counted(status.requests, 'open request')}: `ratchet inbox {run}`)" if status.requests else ""
    )
    paused = f" (`ratchet resume {run}`)" if status.waiting == "paused" else ", and paused"
    return f"{status.waiting}{since}{deadline}{asked}{paused if status.paused else ''}"


def _origin(status: AgentStatus) -> str:
    origin = status.origin
    return f"{origin.workflow_id}, step {origin.step}" if origin else ""


def _clock(at: datetime) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}"


def change_block(record: Record, *, full: bool) -> Text:
    """What a record says beyond its block: reads, writes, who caused it; with `full` the patch too."""
    rows = {"reads": ", ".join(record.reads), "writes": ", ".join(record.writes)}
    rows["resets"] = ", ".join(record.reset)
    rows["by"] = "" if record.by == "machine" else record.by
    rows["patch"] = json.dumps(record.patch, ensure_ascii=False, indent=1) if full and record.patch else ""
    lines = [f"      {name} {plain(value)}" for name, value in rows.items() if value]
    return Text("\n".join(lines), style="dim")


def listing(lines: Iterable[RunLine], width: int = 200) -> Table:
    """Runs as a table of one line each: only the goal is cut, and a narrow terminal gets fewer columns."""
    rows = [_row(line, width >= WIDE) for line in lines]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    names = list(rows[0]) if rows else []
    taken = [max(len(row[name]) for row in rows) + 2 for name in names if name != "goal"]
    room = max(width - sum(taken), 10)
    for name in names:
        table.add_column(name, no_wrap=True)
    for row in rows:
        goal = Text(row["goal"])
        goal.truncate(room - 2, overflow="ellipsis")
        table.add_row(*(goal if name == "goal" else Text(row[name]) for name in names))
    return table


def _row(line: RunLine, wide: bool) -> dict[str, str]:
    waits = f"waits: {line.waiting}" if line.waiting and line.progress == "running" else ""
    if waits and wide and line.deadline:
        waits += f" until {_clock(line.deadline)}"
    row = {"run": plain(line.id), "progress": plain(line.exit_reason or waits or line.state or line.progress)}
    if wide:
        row["started"] = _clock(line.started)
        agent = line.agent if line.machine in line.agent else f"{line.agent} ({line.machine})"
        row["agent"] = plain(agent)
    return {**row, "goal": plain(line.goal[:80])}


def steps_table(steps: Iterable[StepLine]) -> Table:
    """Steps as a table."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("step", "states", "what", "spent"):
        table.add_column(name, overflow="fold")
    for step in steps:
        table.add_row(
            Text(str(step.step)),
            Text(plain(" → ".join(step.states))),
            Text(plain(step.summary)),
            Text(spent(step.counters)),
        )
    return table


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    """Names with texts beside them."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for name, text in rows:
        table.add_row(Text(plain(name), style="bold"), Text(plain(text)))
    return table


def spent(counters: dict[str, float]) -> str:
    """What a run has spent, in a few words."""
    tokens = counters.get("input_tokens", 0) + counters.get("output_tokens", 0)
    calls = counters.get("model_calls", 0)
    tools = counters.get("tool_calls", 0)
    words = [_counted(calls, "model call")] if calls else []
    words += [_counted(tools, "tool call")] if tools else []
    words += [f"{tokens:,.0f} tokens"] if tokens else []
    cost = counters.get("cost_usd", 0)
    dollars = f"${cost:.4f}" if cost else "$0"
    priced = not counters.get("unpriced_calls")
    words += [dollars if priced else f"cost unknown ({dollars} known)"] if cost or tokens else []
    return " · ".join(words)


def _counted(number: float, noun: str) -> str:
    return f"{number:g} {noun}" if number == 1 else f"{number:g} {noun}s"


class _Waiting:
    """In which state a run is, and for how long nothing has been heard of it."""

    def __init__(self, state: str) -> None:
        self._state, self._since = state, time.monotonic()
        self.text = ""
        """What a model is saying; the end of it is shown."""
        self.person = ""
        """What people are asked meanwhile; it is shown instead."""
        self.paused = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield self.line(options.max_width)

    def line(self, room: int) -> Text:
        """One line of so many columns: of what is said the end, of what is asked the beginning."""
        seconds = f"{time.monotonic() - self._since:.0f} s"
        if self.person or self.paused:
            waits = f"waits for a person: {plain(self.person)}" if self.person else "paused"
            text = Text(" ".join(waits.split()), style="yellow")
            text.truncate(max(room - len(seconds) - 2, 1), overflow="ellipsis")
            text.append(f"  {seconds}")
        else:
            text = Text(f"{plain(self._state)} {seconds}", style="dim")
            tail = " ".join(plain(self.text).split())[-SAID_CHARACTERS:]
            while tail and cell_len(tail) > room - text.cell_len - 4:  # wide characters take two columns
                tail = tail[1:]
            text.append(f"  … {tail}" if tail else "")
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


class LiveView:
    """Prints a block for each record; a line below it says what is going on meanwhile."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._waiting = _Waiting("starting")
        self._status = Status(self._waiting, console=console) if console.is_terminal else None
        self._shown: Record | None = None

    def show(self, record: Record) -> None:
        """Print a record, and wait for what comes after it."""
        # The request itself comes next, whole: on a terminal it would be read twice.
        told = record.event == "Requested" and self._console.is_terminal
        self._console.print(record_block(record, self._shown, told=told))
        self._shown = record
        before, self._waiting = self._waiting, _Waiting(record.to or record.state)
        self._waiting.person = before.person
        self._waiting.paused = record.event == "Paused" or (before.paused and record.event != "Resumed")
        if self._status is not None:
            self._status.update(self._waiting)

    def asking(self, what: str) -> None:
        """Show what people are asked; empty: nothing any more."""
        self._waiting.person = what

    @contextmanager
    def still(self) -> Iterator[Console]:
        """Meanwhile nothing moves, so that a person can type; what they read is printed there."""
        if self._status is not None:
            self._status.stop()
        try:
            yield self._console
        finally:
            if self._status is not None:
                self._status.start()

    def saying(self, text: str) -> None:
        """Show what a model has said so far in the call under way."""
        self._waiting.text = text

    def trouble(self, text: str) -> None:
        """Say what fails and is tried again."""
        self._console.print(Text(f"      {plain(text)}", style="yellow"))

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()


def _indented(text: str) -> str:
    """The text cut to a few lines, each on a line of its own behind the block's head."""
    text = plain(text).strip()
    kept = "\n".join(text[:REASON_CHARACTERS].splitlines()[:REASON_LINES])
    cut = "" if len(kept) == len(text) else " …"
    return "".join(f"\n      {line}" for line in f"{kept}{cut}".splitlines())


def _console(terminal: bool, *, stderr: bool) -> Console:
    # a pipe has no width: long lines stay whole for grep
    kind = Console if terminal else _Piped
    return kind(
        stderr=stderr,
        width=None if terminal else 200,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=not terminal,
    )


class _Piped(Console):
    """For a file or a pipe: rows of a table end where their text ends."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As a console prints, but without the blanks that fill a table's last column."""
        if not any(isinstance(one, Table) for one in objects):
            super().print(*objects, **options)
            return
        with self.capture() as caught:
            super().print(*objects, **options)
        self.file.write(re.sub(r" +$", "", caught.get(), flags=re.MULTILINE))
        self.file.flush()
