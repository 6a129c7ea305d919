"""How runs, records, requests and results look on a terminal: tables and blocks, drawn with rich.

What models, tools and people have written goes through `plain` before it is shown: it cannot steer the
terminal. In a pipe, tables have no trailing blanks, and no line is cut.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from client.cli.output import note, wrapped
from client.runs.readings import Reading, is_call
from client.runs.words import (
    clock,
    counted,
    indented,
    one_line,
    plain,
    spent,
    time_left,
    time_span,
)
from workflows.certificate import certificate_line
from workflows.kernel.log import STARTED, began

if TYPE_CHECKING:  # these import temporalio
    from activities.contracts import JsonObject
    from client.history.check import Checked
    from client.history.checkpoints import StepSnapshot
    from client.history.compare import Comparison, Side, StepOf
    from client.history.differences import Difference
    from client.history.replay import ReplayResult
    from client.history.resets import Reset
    from client.runs.listing import RunLine
    from client.runs.steps import CheckpointLine
    from workflows.kernel.log import Record
    from workflows.status import RunResult, RunStatus
    from workflows.steps import StepLine

__all__ = [
    "change_block", "checked_line", "checkpoint_table", "comparison_block", "hanging_text", "listing",
    "notes", "out", "pairs", "record_block", "replay_block", "reset_block", "result_text",
    "snapshot_block", "status_block", "steps_table", "wrapped_block",
]  # fmt: skip

REASON_LINES, REASON_CHARACTERS = 8, 900
LINE_CHARACTERS, TEXT_CHARACTERS, VALUE_CHARACTERS = 160, 480, 2_000
"""Characters: of a line, of a text in a table, of one field of a context."""
STEP_LINES = 6
"""Of what happened in a step."""
MAX_COMPARISON_COLUMNS = 160
"""Columns of a comparison; wider ones are hard to read."""
NAME_COLUMNS = 8
MIN_INDENT = 6
"""Least indent of what continues a line of a block."""


# -- consoles and texts --------------------


def out() -> Console:
    """Where a command prints what it was asked for."""
    return _console(sys.stdout.isatty(), stderr=False)


def notes() -> Console:
    """Where a command prints everything else: progress, hints, questions."""
    return _console(sys.stderr.isatty(), stderr=True)


def note_cut(result: RunResult) -> None:
    """Say of a result that is not the whole one where that may be."""
    if result.cut:
        said = result.cut.removesuffix(".")
        note(f"{said}. The workers' directory, named with --data-dir, may have the whole.")


def _console(terminal: bool, *, stderr: bool) -> Console:
    kind = Console if terminal else _Piped
    width = None if terminal else 10_000
    return kind(
        stderr=stderr, width=width, highlight=False, markup=False, emoji=False, soft_wrap=not terminal
    )


class _Piped(Console):
    """A console for files and pipes: lines end where their text ends."""

    def print(self, *objects: Any, **options: Any) -> None:
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write(re.sub(r" +$", "", captured.get(), flags=re.MULTILINE))
        self.file.flush()


def hanging_text(
    text: str, console: Console, indent: int = 0, mark: str = "", *, style: str = "", lines: int | None = None
) -> Text:
    """The text after a mark, wrapped so that its lines align.

    Lines are broken between words only: ids and links stay whole. Of more than `lines` the first are kept.
    """
    text = wrapped(text, console.width, indent, mark, lines)[indent + len(mark) :]
    return Text(" " * indent).append(mark, style=style).append(text, style=style)


def wrapped_block(block: Text, console: Console) -> Text:
    """Wrap each line of a block. Its continuation is indented like it, at least by `MIN_INDENT`."""
    if not console.is_terminal:
        return block
    lines: list[Text] = []
    for line in block.split("\n", allow_blank=True):
        line.expand_tabs(8)
        own = len(line.plain) - len(line.plain.lstrip(" "))
        first, *rest = line.wrap(console, console.width) or [line]
        lines.append(first)
        if rest:
            more = line[len(first.plain) :]
            more = more[len(more.plain) - len(more.plain.lstrip(" ")) :]
            by = min(max(own, MIN_INDENT), console.width // 2)
            lines += [Text(" " * by).append_text(one) for one in more.wrap(console, console.width - by)]
    return Text("\n").join(lines)


def pairs(rows: Iterable[tuple[str, str]], style: str = "bold") -> Table:
    """Names with texts beside them."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(Text(plain(name), style=style), Text(plain(text)))
    return table


def listing(columns: Iterable[str], rows: Iterable[Iterable[str]] = (), **options: Any) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in columns:
        table.add_column(name, **options)
    for cells in rows:
        table.add_row(*(Text(plain(cell)) for cell in cells))
    return table


# -- records and results --------------------


def record_block(
    record: Record, reading: Reading, before: Record | None = None, *, reason: bool = True
) -> Text:
    """A record: when it happened, where it led, why, what was called and what came of it, how long it took,
    what had been spent by then, and who caused it unless it was the machine.

    The date and what had been spent are left out where the record `before` says the same.
    """
    day, time_of_day = _day_and_time(record.at)
    block = Text()
    if before is None or day != _day_and_time(before.at)[0]:
        block.append(f"{day}\n", style="dim")
    block.append(f"{record.seq:>4}  {time_of_day}  ", style="dim")
    block.append(plain(record.state), style="bold cyan")
    if record.to is not None and record.event != STARTED:
        block.append(" → ", style="dim")
        block.append(plain(record.to), style="bold cyan")
    block.append(f"  {plain(record.event)}", style="magenta")
    took = record.at - began(record, before)
    now = spent(record.counters)
    marks = [f"step {record.step}"] if record.step else []
    marks += [f"{took:.1f} s"] if took >= 0.05 else []
    marks += [f"so far {now}"] if now and (before is None or now != spent(before.counters)) else []
    block.append(f"   {' · '.join(marks)}" if marks else "", style="dim")
    for words in (reading.thought, reading.words if reason else ""):
        block.append(_beginning(words) if words else "")
    for call in reading.calls:
        block.append(_beginning(call.heading, "→ "), style="cyan")
        if call.text:
            block.append(_beginning(call.text, "← "), style="red" if call.error else "dim")
    if record.error:
        block.append(_beginning(f"refused: {record.error}"), style="bold red")
    if record.by != "machine":
        block.append(_beginning(f"by {record.by}"), style="dim")
    return block


def reset_block(reset: Reset) -> Text:
    """A reset: when, by whom, how far back, and what stands of the part that it dropped."""
    block = Text(f"reset {clock(datetime.fromtimestamp(reset.at, UTC))}", style="bold yellow")
    block.append(f"{' by ' if reset.by else ''}{plain(reset.by)}: {plain(reset.reason)}")
    step = "" if reset.step is None else f", in step {reset.step}"
    block.append(f"\n      back to {clock(datetime.fromtimestamp(reset.back_to, UTC))}{step}")
    for call in reset.calls:
        begun = clock(datetime.fromtimestamp(call.begun, UTC))
        block.append(f"\n      stands: {plain(call.title)} of {begun}: {plain(call.outcome)}")
    if reset.unknown:
        block.append(f"\n      what stands of the dropped part is not known: {plain(reset.unknown)}")
    elif not reset.calls:
        block.append("\n      the dropped part has made no call of a keyed or unsafe tool")
    return block


def _day_and_time(at: float) -> tuple[str, str]:
    """The date and the time of the day, as the local clock has them."""
    day, time_of_day = clock(datetime.fromtimestamp(at, UTC)).split()
    return day, time_of_day


def _beginning(text: str, mark: str = "") -> str:
    """The first lines of a text after a mark, below the head of a block."""
    text = plain(text).strip()
    kept = "\n".join(text[:REASON_CHARACTERS].splitlines()[:REASON_LINES])
    lines = indented(kept if len(kept) == len(text) else f"{kept} …", by=6 + len(mark))
    return f"\n{' ' * 6}{mark}{lines.lstrip(' ')}"


def change_block(record: Record, *, full: bool) -> Text:
    """What a record says beyond its block: reads and writes; `full`: the changes themselves."""
    rows = {
        "effects": ", ".join(one.title for one in record.answered if not is_call(one)),
        "reads": ", ".join(record.reads),
        "writes": ", ".join(record.patch),
        "patch": json.dumps(record.patch, ensure_ascii=False, indent=1) if full and record.patch else "",
    }
    lines = [f"      {name} {plain(value)}" for name, value in rows.items() if value]
    return Text("\n".join(lines), style="dim")


def shown_output(output: Mapping[str, Any]) -> str:
    """An answer that is data, as people read it."""
    return json.dumps(output, ensure_ascii=False, indent=2)


def result_text(result: RunResult, console: Console) -> list[Text]:
    """What came out of a run: the answer, then how it ended and what it cost."""
    mark, style = ("✓", "green") if result.ok else ("✗", "red")
    answer = result.answer if result.output is None else shown_output(result.output)
    parts = [hanging_text(answer, console)] if answer else []
    if result.error:
        parts.append(hanging_text(result.error, console, style="red"))
    words = [result.exit_reason, counted(result.step, "step"), spent(result.counters)]
    line = " · ".join(plain(word) for word in words if word)
    parts.append(Text(f"{mark} ", style=f"bold {style}").append(line, style=style))
    parts += [
        hanging_text(f"not heard by the model: {text}", console, style="yellow") for text in result.unheard
    ]
    if not result.archived:
        text = "the archive lacks the end of this run until a worker can write it; its log says why"
        parts.append(hanging_text(text, console, style="yellow"))
    return parts


# -- runs --------------------


def status_block(line: RunLine | None, status: RunStatus, certificate: JsonObject) -> Table:
    """Where a run is, as names and values; `certificate` is what its first record says of one."""
    run = line.id if line else "RUN"
    over = status.exit_reason or ("yes" if status.finished else "")
    rows = {
        "run": line.id if line else "",
        "goal": line.goal if line else "",
        "agent": f"{status.agent} (machine {status.machine} {status.machine_version})",
        "state": "" if over else status.state,
        "step": str(status.step),
        "doing": _doing(status.doing, status.doing_since),
        "next": "" if over or status.doing_since else status.doing,
        "failing": status.failing or "",
        "next try": _next_try(status.attempt, status.next_try) if status.failing else "",
        "paused call": "\n".join(status.paused_calls),
        "child runs": "\n".join(status.children),
        "progress": "" if over else _progress(run, line, status),
        "over": f"{over}{_ended(line, status)}" if over else "",
        "answer": status.answer or "",
        "why": status.error or "",
        "spent in all": spent(status.counters),
        "of at most": ", ".join(f"{name} {cap:g}" for name, cap in status.caps.items()),
        "unasked": "\n".join(f"{bound.rule}: {bound.text}" for bound in status.bounds),
        "records": str(status.records or ""),
        "branch": f"{status.branch} (times rolled back)" if status.branch else "",
        "forked from": f"{status.origin.workflow_id}, step {status.origin.step}" if status.origin else "",
        "holds": "; ".join(one.text for one in status.labels),
        "certificate": certificate_line(certificate),
        "reset": "by Temporal, see below" if status.was_reset else "",
        "not heard yet": counted(status.inbox, "message") if status.inbox else "",
        "unusable": "\n".join(status.unusable_messages),
    }
    return pairs(((name, value) for name, value in rows.items() if value), style="dim")


def _doing(words: str, since: float | None) -> str:
    return "" if since is None else f"{words}, for {time_span(time.time() - since)}"


def _next_try(attempt: int, at: float | None) -> str:
    return f"attempt {attempt}, {'under way' if at is None else time_left(at, time.time())}"


def _ended(line: RunLine | None, status: RunStatus) -> str:
    """When a run ended, and how Temporal shows that where it is no plain end."""
    at = f", {clock(datetime.fromtimestamp(status.finished, UTC))}" if status.finished else ""
    return f"{at}, {line.progress} in Temporal" if line and line.progress != "completed" else at


def _progress(run: str, line: RunLine | None, status: RunStatus) -> str:
    """Whether it runs; of a run that waits: since when, until when, and the command that shows more."""
    if not status.waiting:
        return line.progress if line else "running"
    words = "paused" if status.waiting == "paused" else f"waits for a person: {status.waiting}"
    if line and line.waiting_since:
        words += f" since {clock(line.waiting_since)}"
    if line and line.deadline:
        words += f", deadline {clock(line.deadline)}"
    if status.requests:
        words += f" ({counted(status.requests, 'open request')}: `ratchet inbox {run}`)"
    if status.waiting == "paused":
        words += f" (`ratchet resume {run}`)"
    elif status.paused:
        words += ", and paused"
    return words


def steps_table(steps: Iterable[StepLine]) -> Table:
    """Steps of a run, one row each."""
    rows = ((str(one.step), " → ".join(one.states), one.summary, spent(one.counters)) for one in steps)
    return listing(("step", "states", "what", "spent by its end"), rows, overflow="fold")


# -- the past of a run --------------------


def checkpoint_table(lines: Sequence[CheckpointLine]) -> Table:
    """Steps as a table; those that the run cannot go back to say so."""
    branches = any(line.branch for line in lines)
    columns = [
        "step",
        *["branch"][:branches],
        "in the log",
        "states, and what happened first",
        "spent by its end",
    ]
    rows = []
    for line in lines:
        path = " → ".join(line.states) or line.state
        path += ": the end; a fork goes on behind it" if line.is_end else ""
        what = "\n".join(
            filter(
                None,
                (path if line.holds else f"left behind: {path}", one_line(line.summary, LINE_CHARACTERS)),
            )
        )
        place = f"{'after' if line.holds else 'from'} record {line.seq}"
        rows.append((str(line.step), *[str(line.branch)][:branches], place, what, spent(line.counters)))
    return listing(columns, rows, overflow="fold")


def snapshot_block(snapshot: StepSnapshot) -> Group:
    """State, cost, every field of the context, and what came next."""
    branch = f" (branch {snapshot.branch})" if snapshot.branch else ""
    head = {
        "run": snapshot.run,
        "machine": f"{snapshot.machine} {snapshot.version}",
        "step": f"{snapshot.step}{branch}, after record {snapshot.records - 1}",
        "state": snapshot.state,
        "spent": spent(snapshot.counters) or "nothing yet",
        "so far": f"{counted(snapshot.transitions, 'transition')}, {counted(snapshot.messages, 'message')}",
    }
    came = "what came next" if snapshot.next else "nothing came next in this step"
    return Group(
        pairs(head.items(), style="dim"),
        Text("\ncontext", style="dim"),
        pairs((name, _value(value)) for name, value in snapshot.context.items()),
        Text(f"\n{came}", style="dim"),
        pairs((f"{record.seq:>4}", _record_text(record)) for record in snapshot.next),
    )


def _value(value: object) -> str:
    text = value if value and isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    return (
        text
        if len(text) <= VALUE_CHARACTERS
        else f"{text[:VALUE_CHARACTERS]} [... {len(text):,} characters; --json shows all]"
    )


def _record_text(record: Record) -> str:
    head = f"{record.state}: {record.event}{f' → {record.to}' if record.to else ''}"
    return f"{head}\n{one_line(record.summary, LINE_CHARACTERS)}".rstrip("\n")


def checked_line(checked: Checked) -> Text:
    """What would become of a run."""
    colour = {"goes on": "green", "breaks": "bold red", "unknown": "yellow"}[checked.verdict]
    line = Text(f"{checked.verdict:8}", style=colour).append(f" {plain(checked.run)}", style="default")
    version = f" {checked.version}" if checked.version else ""
    state = f", in {checked.state}" if checked.state else ""
    build = f", pinned to {checked.build}" if checked.build else ""
    line.append(plain(f"  {checked.machine}{version}{state}{build}"), style="dim")
    if checked.reason:
        line.append(f"\n         {one_line(checked.reason, TEXT_CHARACTERS)}", style="default")
    return line


def replay_block(found: ReplayResult) -> Group:
    """The verdict, the first difference, and what could not be compared."""
    verdict = Text(f"run {plain(found.run)}: ")
    if found.same and not found.notes:
        verdict.append("today's code does the same", style="green")
    elif found.same:
        verdict.append("nothing differs in what could be compared", style="yellow")
    else:
        verdict.append("today's code does something else", style="bold red")
    upto = "" if found.before is None else f" before record {found.before}"
    parts: list[RenderableType] = [
        verdict,
        Text(f"{counted(found.records, 'record')}{upto} compared; nothing was called", style="dim"),
    ]
    if found.can_continue is False:
        parts.append(Text("the run cannot go on with today's code", style="bold red"))
    if found.failure:
        parts.append(Text(f"Temporal: {one_line(found.failure, TEXT_CHARACTERS)}", style="red"))
    if found.difference is not None:
        one = found.difference
        parts.append(Text(f"First difference: record {one.seq} (step {one.step})", style="bold"))
        parts.append(Text(plain(f"  was {one.recorded or 'nothing'}, now {one.today or 'nothing'}")))
        if one.difference is not None:
            parts.append(_difference_table(one.difference, "recorded", "today"))
    return Group(*parts, *(Text(one_line(note, TEXT_CHARACTERS), style="yellow") for note in found.notes))


def _difference_table(difference: Difference, left: str, right: str) -> Table:
    """What differs, below whose it is."""
    rows = {"in": difference.at, left: difference.left or "(nothing)", right: difference.right or "(nothing)"}
    return pairs(
        ((f"  {name}", one_line(text, LINE_CHARACTERS)) for name, text in rows.items() if text), style="dim"
    )


def comparison_block(found: Comparison) -> Group:
    """Two runs beside each other: who they are, their steps, and where they differ first."""
    width = min(_terminal_columns(), MAX_COMPARISON_COLUMNS)
    heads, body = _columns(width), _columns(width)
    left, right = _side(found.left), _side(found.right)
    for name in left:
        if left[name] or right[name]:
            cells = (one_line(left[name], TEXT_CHARACTERS), one_line(right[name], TEXT_CHARACTERS))
            heads.add_row(Text(name, style="dim"), *map(Text, cells))
    for pair in found.steps:
        if not pair.step and pair.difference is None:
            continue  # both have begun
        number = Text(f"step {pair.step}", style="dim")
        if pair.difference is None and pair.left is not None:
            body.add_row(number, _short_step(pair.left), Text("the same", style="dim"))
        else:
            body.add_row(number, _path(pair.left), _path(pair.right))
            for texts in _step_cells(pair.left, pair.right):
                body.add_row("", *texts)
    return Group(heads, Text(""), body, Text(""), *_ending(found))


def _terminal_columns() -> int:
    """Of the terminal, also where standard output is a pipe, such as to a pager."""
    for stream in (sys.__stdout__, sys.__stderr__, sys.__stdin__):
        with suppress(OSError, ValueError, AttributeError):  # it is none, or closed
            return os.get_terminal_size(stream.fileno()).columns  # type: ignore[union-attr]  # None: see above
    return MAX_COMPARISON_COLUMNS


def _columns(width: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, width=width)
    table.add_column(no_wrap=True, width=NAME_COLUMNS)
    for _ in range(2):
        table.add_column(width=(width - NAME_COLUMNS - 6) // 2, overflow="fold")
    return table


def _side(side: Side) -> dict[str, str]:
    origin = side.origin
    return {
        "run": side.run,
        "agent": f"{side.agent} (machine {side.machine} {side.machine_version})",
        "goal": side.goal,
        "ended": f"{side.exit_reason or 'not over'} in state {side.state}",
        "answer": side.answer or side.error or "",
        "steps": f"{side.step}{f', branch {side.branch}' if side.branch else ''}",
        "spent": spent(side.counters),
        "from": f"step {origin.step} of {origin.workflow_id}" if origin else "",
    }


def _short_step(step: StepOf) -> Text:
    """A step that both did, on one line."""
    first = next((line for line in step.summary if line.strip()), "")
    return Text(one_line(first or " → ".join(step.path), LINE_CHARACTERS // 2))


def _path(step: StepOf | None) -> Text:
    if step is None:
        return Text("-", style="dim")
    return Text(plain(" → ".join(step.path)), style="cyan")


def _step_cells(left: StepOf | None, right: StepOf | None) -> Iterator[tuple[Text, Text]]:
    """What was done in a step that differs: lines that are equal stand once, several of them as a number."""
    mine, theirs = left.summary if left else (), right.summary if right else ()
    for change, start, end, other, other_end in SequenceMatcher(None, mine, theirs, False).get_opcodes():
        if change == "equal":
            many = f"… {end - start} lines"
            same = (
                Text(one_line(mine[start], LINE_CHARACTERS)) if end == start + 1 else Text(many, style="dim")
            )
            yield same, Text("the same", style="dim")
        else:
            yield _lines(mine[start:end]), _lines(theirs[other:other_end])
    costs = spent(left.spent) if left else "", spent(right.spent) if right else ""
    if any(costs):
        yield Text(costs[0], style="dim"), Text(costs[1], style="dim")


def _lines(lines: Sequence[str]) -> Text:
    """The first of them."""
    shown = [one_line(line, LINE_CHARACTERS) for line in lines[:STEP_LINES]]
    more = [f"… {len(lines) - STEP_LINES} more"] if len(lines) > STEP_LINES else []
    return Text("\n".join(shown)).append("\n".join(["", *more]), style="dim")


def _ending(found: Comparison) -> Iterable[RenderableType]:
    if found.shared:
        yield Text(f"They have a common origin: {counted(found.shared, 'record')} are the same.")
    first = found.first_different
    if first is None or first.difference is None:
        yield Text("They do the same, step by step.", style="green")
        return
    yield Text(f"First difference, in step {first.step}:", style="bold")
    yield _difference_table(first.difference, found.left.run, found.right.run)
