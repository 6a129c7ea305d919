"""A run as it happens: a block for each step, and on a terminal a line below it that shows what goes on.

A block says what the model thinks, what is called, what came back, and what the step cost:

      2  The log is there. I count its errors by service.
         → search_files(path="services.log", pattern="ERROR +service=(\\S+)", count_by=true)
           265 lines match in 1 file; 7 different values, most frequent first:
           187  payments
           … 14 more lines
         this step: 1,130 tokens · $0.0021 · 1.4 s

Decisions and commands stand between the lines, with who sent them. The answer is printed once, at the end.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.status import Status
from rich.text import Text

from client.cli.render import hanging_text, record_block, result_text, wrapped_block
from client.errors import RatchetError
from client.runs.pending import Heartbeat, heartbeat_in, with_heartbeat
from client.runs.readings import Reading, RecordReader, ShownCall, is_said_by_its_call
from client.runs.words import plain, spent, time_span
from workflows.kernel.log import EXIT_REASON, STARTED, Record, seconds_called
from workflows.status import RunStatus

if TYPE_CHECKING:
    from client.sdk.agent import AgentClient
    from workflows.api import RunResult

__all__ = ["LiveView", "heartbeats"]

GUTTER_COLUMNS = 5
"""Columns of the step's number."""
THOUGHT_LINES, RESULT_LINES = 12, 6
SPOKEN_CHARACTERS = 100
"""Of the text that a model is producing, on the line below the blocks."""
LOOK_SECONDS = 1.0
"""How often it is fetched what the run does, and the model's newest words."""
CALM_SECONDS = 0.25
"""The same after a record, where none follows: what comes next takes long enough to be shown."""
WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


class LiveView:
    """Prints a run's records by steps; `verbose`: each record as the log has it."""

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self.console = console
        self._verbose = verbose
        self._blocks = _Blocks(console)
        self._reader = RecordReader()
        self._before: Record | None = None
        self._failed: set[str] = set()
        """Attempts whose failure has been printed."""
        self.news = asyncio.Event()
        """A record was shown."""
        self._progress = _Progress("starting")
        self._status = Status(self._progress, console=console) if console.is_terminal else None

    def show(self, record: Record) -> None:
        """Print a record, and wait for the next."""
        # on a terminal the request itself follows, in full
        repeats = record.event == "Requested" and self.console.is_terminal
        reading = self._reader.read(record)
        if self._verbose:
            block = record_block(record, reading, self._before, reason=not repeats)
            self._print([wrapped_block(block, self.console)])
        elif not repeats:
            self._print(self._blocks.add(record, reading))
        self._before = record
        self.news.set()
        before, self._progress = self._progress, _Progress(record.to or record.state)
        self._progress.request = before.request
        self._progress.paused = record.event == "Paused" or (before.paused and record.event != "Resumed")
        if self._status is not None:
            self._status.update(self._progress)

    def end(self, result: RunResult) -> None:
        """Print what came out."""
        if not self._verbose:
            said = {(text or "").strip() for text in (result.answer, result.error)}
            self._print(self._blocks.end(said, result.exit_reason))
        self.console.print()
        self._print(result_text(result, self.console))

    def waiting_for(self, request: str) -> None:
        """Show what people are asked; empty: nothing."""
        self._progress.request = request

    def show_activity(self, status: RunStatus) -> None:
        """Show what the run says that it does, and since when."""
        if status.doing_since is not None:
            self._progress.words, self._progress.since = status.doing, status.doing_since

    def show_heartbeat(self, beat: Heartbeat) -> None:
        """Show what the model has said so far in the call under way, and what is tried again when. A bug,
        whose key is its text, stands on the line below the blocks: the command may end with it."""
        self._progress.text, self._progress.attempt = beat.text, beat.attempt
        self._progress.next_try = beat.next_try
        news = {key: text for key, text in beat.failures.items() if key != text}
        self._progress.bug = next((text for key, text in beat.failures.items() if key == text), "")
        news |= {text: text for text in beat.paused_calls}
        for text in (text for key, text in news.items() if key not in self._failed):
            self._print([hanging_text(text, self.console, GUTTER_COLUMNS, "! ", style="yellow")])
        self._failed |= news.keys()

    @contextmanager
    def without_live_line(self) -> Iterator[Console]:
        """Nothing moves meanwhile, so that a person can read and type."""
        if self._status is not None:
            self._status.stop()
        try:
            yield self.console
        finally:
            if self._status is not None:
                self._status.start()

    def shown(self) -> AbstractContextManager[object]:
        """Meanwhile the line below the blocks shows what goes on."""
        return self._status or nullcontext()

    def _print(self, lines: Iterable[Text]) -> None:
        for line in lines:
            self.console.print(line, soft_wrap=True)


class _Progress:
    """The line below the blocks: what goes on, and for how long nothing has come of it."""

    def __init__(self, state: str) -> None:
        self.words, self.since = state.replace("_", " ").lower(), time.time()
        """What goes on; the state, until the run says more. Since when, in seconds since 1970."""
        self.text = ""
        """What the model says; its end is shown."""
        self.attempt = 0
        """Of what fails: the one that comes next."""
        self.next_try: float | None = None
        """When it comes, in seconds since 1970."""
        self.request = ""
        """What people are asked; shown instead."""
        self.paused = False
        self.bug = ""
        """Why the run itself fails and is tried again; shown instead of all else."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield self.line(options.max_width)

    def line(self, room: int) -> Text:
        """At most `room` columns."""
        words, style, more = self.words, "dim", ""
        if self.bug:
            words, style = f"cannot go on, and is tried again: {self.bug}", "yellow"
        elif self.request or self.paused:
            words, style = f"waits for a person: {self.request}" if self.request else "paused", "yellow"
        elif self.next_try is not None and not self.text:
            left = time_span(self.next_try - time.time())
            style, more = "yellow", f"  failed, attempt {self.attempt} in {left}"
        end = f" {max(time.time() - self.since, 0):.0f} s{more}"
        text = Text(" ".join(plain(words).split()), style=style)
        text.truncate(max(room - len(end), 1), overflow="ellipsis")
        text.append(end)
        if style == "dim":
            tail = " ".join(plain(self.text).split())[-SPOKEN_CHARACTERS:]
            while tail and cell_len(tail) > room - text.cell_len - 4:  # wide characters take two columns
                tail = tail[1:]
            text.append(f"  … {tail}" if tail else "")
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


@asynccontextmanager
async def heartbeats(client: AgentClient, run: str, view: LiveView) -> AsyncIterator[None]:
    """Meanwhile the view shows what the run does, what the model says, and what fails and is tried again."""

    async def look() -> None:
        length, status = -1, None
        looked, pause = time.monotonic(), LOOK_SECONDS
        while True:
            view.news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await view.news.wait()
            if view.news.is_set() and time.monotonic() - looked < LOOK_SECONDS:
                pause = CALM_SECONDS
                continue
            looked, pause = time.monotonic(), min(2 * pause, LOOK_SECONDS)
            with suppress(RatchetError):
                about = await client.description(run)
                beat = await heartbeat_in(client.temporal, about.raw_description)
                view.show_heartbeat(beat)
                if length != about.history_length:  # only then has the run anything new to say
                    status = None
                    status = await client.query(run, "status", RunStatus)
                    length = about.history_length  # a query that fails is asked again
                if status is not None:
                    view.show_activity(with_heartbeat(status, beat))

    task = asyncio.create_task(look())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


# -- records by steps --------------------


class _Blocks:
    """Turns records into the lines of blocks.

    A text is held until the next record comes, because the last one may be the answer. A call is shown when
    its result comes, above it: as it was made. The model may have asked for another one.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._before: Record | None = None
        self._open: tuple[int, int] | None = None
        """Branch and step of the block that is open."""
        self._place = (0, 0)
        """Branch and step of what is shown next."""
        self._base: dict[str, float] = {}
        """What had been spent before the open block."""
        self._seconds = 0.0
        self._held: Text | None = None
        self._held_text = ""
        self._is_end = False
        """What is held says how the run ended, as its result does."""

    def add(self, record: Record, reading: Reading) -> Iterator[Text]:
        """The lines that a record adds."""
        before, self._before = self._before, record
        if before is None and record.seq:
            self._base = record.counters
        place = record.branch, record.of_step
        if place != self._place and (place > self._place or place[0] != self._place[0] or record.back_to):
            yield from self._close(before)
            self._place = place
        self._seconds += seconds_called(record, before)
        if record.event != STARTED:
            yield from self._lines(record, reading)
        elif record.reason:  # what runs is not what was verified, or not all of it was
            yield self._hang(record.reason, "! ", "yellow")

    def end(self, said: set[str], reason: str) -> Iterator[Text]:
        """The last lines, without what the result says, and without an exit reason after other words."""
        held = self._held_text
        is_reason = held == reason and self._open == self._place
        if self._is_end or is_reason or held in said:
            self._held = None
        yield from self._close(self._before)

    # -- one record --------------------

    def _lines(self, record: Record, reading: Reading) -> Iterator[Text]:
        for call in reading.calls:
            yield from self._result(call)
        yield from self._say(reading.thought.strip())
        if record.by == "machine":
            again = record.to == record.state  # the words say why, often an error of the reply
            yield from self._say(reading.words.strip(), *(("↻ ", "yellow") if again else ()))
        if reading.asked:  # people may be asked before, so the text is no answer
            yield from self._release()
        if record.by != "machine" and not is_said_by_its_call(record):
            yield from self._remark(record)
        elif record.by == "machine" and record.error:
            yield from self._put(self._hang(f"refused: {record.error}", "✗ ", "bold red"))

    def _say(self, text: str, mark: str = "", style: str = "") -> Iterator[Text]:
        if text:
            if text != self._held_text:
                yield from self._release()
            self._held, self._held_text = self._hang(text, mark, style, THOUGHT_LINES), text

    def _result(self, call: ShownCall) -> Iterator[Text]:
        """A call that has ended, above what came back."""
        yield from self._put(self._call(call))
        if not call.text.strip():
            return
        line = self._hang(call.text, "  ", "red" if call.error else "dim", RESULT_LINES)
        if call.error and call.arguments is None:  # the run may end with it, and say so
            self._held, self._held_text = line, f"{call.error}: {call.result}"
        else:
            yield from self._put(line)

    def _remark(self, record: Record) -> Iterator[Text]:
        """What the run itself, or a person, did to it."""
        by = "" if record.by == "kernel" else f" by {record.by}"
        name = WORD.sub(" ", record.event).capitalize()
        is_question = record.event == "Requested"
        text = record.why if is_question else f"{name}{by}: {record.why}"
        text = f"{text.strip().rstrip(':')}{f': {record.error}' if record.error else ''}"
        line = self._hang(text, "? " if is_question else "• ", "yellow")
        is_breach = record.by == "kernel" and record.error and record.to is None
        if EXIT_REASON in record.about or is_breach:
            yield from self._release()
            self._held, self._is_end = line, True
        else:
            yield from self._put(line)

    # -- lines --------------------

    def _hang(self, text: str, mark: str, style: str, lines: int | None = None) -> Text:
        return hanging_text(text, self._console, GUTTER_COLUMNS, mark, style=style, lines=lines)

    def _call(self, call: ShownCall) -> Text:
        line = self._hang(" ".join(call.heading.split()), "→ ", "")
        line.stylize("cyan", GUTTER_COLUMNS, GUTTER_COLUMNS + 2)
        line.stylize("bold", GUTTER_COLUMNS + 2, GUTTER_COLUMNS + 2 + len(call.tool or call.title))
        return line

    def _put(self, line: Text) -> Iterator[Text]:
        """A line after what is held; the first one of a block has its number."""
        yield from self._release()
        if self._open != self._place:
            self._open = self._place
            number = Text(f"{self._place[1]:>{GUTTER_COLUMNS - 2}}  ", style="bold cyan")
            line = number.append_text(line[GUTTER_COLUMNS:])
            yield Text()
        yield line

    def _release(self) -> Iterator[Text]:
        line, self._held, self._held_text, self._is_end = self._held, None, "", False
        if line is not None:
            yield from self._put(line)

    def _close(self, last: Record | None) -> Iterator[Text]:
        """End the open block with what it cost."""
        yield from self._release()
        counters = last.counters if last else {}
        if self._open == self._place:
            more = {name: now - self._base.get(name, 0) for name, now in counters.items()}
            more["tool_calls"] = 0  # each has its line
            more["model_calls"] = 0 if more.get("model_calls", 0) <= 1 else more["model_calls"]
            took = f"{self._seconds:.1f} s" if self._seconds >= 0.05 else ""
            if words := " · ".join(filter(None, (spent(more, nothing=""), took))):
                yield self._hang(f"this step: {words}", "", "dim")
        self._base, self._seconds = counters, 0.0
