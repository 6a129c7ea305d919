"""Rate limits of models, shared by all workers that have one data directory.

What was used is counted in a SQLite file, in slices of a hundredth of a minute: a question costs the same
however many came before it. The last 60 seconds never hold more than a limit allows, as far as that is known:
the tokens of a question are estimated before it is asked, and what it really used is counted when its reply
has come.

A question for which there is no room waits: in one worker after those of the same limits that came before it,
else after those that are considerably older. One that is larger than a whole limit waits until nothing else
is counted.

The file may be deleted at any time, a damaged one is replaced, and while it cannot be used questions are not
counted, with a warning in the log: a counter is not worth a stop of all agents.
"""

from __future__ import annotations

import asyncio
import json
import math
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import structlog

from activities.contracts import bytes_of_images
from activities.provider import MUST_WAIT, ModelCall, ProviderError
from activities.settings import RateLimit
from activities.store.disposable import DisposableFile

__all__ = ["NoRoom", "RateLimits", "Use", "estimated_tokens"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS used(
    name TEXT NOT NULL, slice INTEGER NOT NULL, requests INTEGER NOT NULL, tokens INTEGER NOT NULL,
    PRIMARY KEY (name, slice)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS waiting(
    name TEXT NOT NULL, question TEXT NOT NULL, since REAL NOT NULL, until REAL NOT NULL,
    PRIMARY KEY (name, question)) WITHOUT ROWID;
"""
SLICES_PER_WINDOW = 100
BYTES_PER_TOKEN = 4
PAUSE_SECONDS = tuple(0.002 * 2**number for number in range(9))
"""While another process writes, which takes it a tenth of a millisecond; about a second in all."""
LITERAL = str.maketrans({"?": "[?]", "[": "[[]"})
"""Only `*` stands for other text in a limit's name."""

log = structlog.get_logger("ratchet")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Use:
    """What a question was counted as, when it was asked."""

    names: tuple[str, ...]
    slice: int
    tokens: int


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A model call for which there must be room."""

    limits: Mapping[str, RateLimit]
    tokens: int
    waits: bool
    since: float = field(default_factory=time.time)
    id: str = field(default_factory=lambda: uuid4().hex)


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Which limits have no room for a question, and when to look again. No names: the file is locked."""

    names: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        if not self.names:
            return "the counter of rate limits, which is busy"
        return f"the rate limit {' and '.join(self.names)}"


class RateLimits:
    """The `limits` by name (`Settings.rate_limits`), counted in the file `path`.

    It belongs to one event loop, and never blocks it: a file that another process writes to is tried again.
    At most `most_waiting` questions may wait. The window is a minute, except in tests.
    """

    def __init__(
        self, path: Path, limits: Mapping[str, RateLimit], most_waiting: int, window_seconds: float = 60
    ) -> None:
        self.limits = limits
        self._most_waiting = most_waiting
        self._slice = window_seconds / SLICES_PER_WINDOW
        self._pause = window_seconds / 60
        """The longest between two looks: a question may turn out to have used less."""
        self._ahead = window_seconds / 10
        """By how much a question of another worker must be older to come first."""
        self._lines: dict[tuple[str, ...], asyncio.Lock] = {}
        """By the names of the limits. Who has the lock looks for room, the others follow in order."""
        self._waiting: Counter[tuple[str, ...]] = Counter()
        """How many are in each line."""
        self._file = DisposableFile(path, SCHEMA, busy_seconds=0)

    def unknown(self, providers: Collection[str]) -> list[str]:
        """Names of limits that are for none of these providers."""
        parts = {name: name.partition("/")[0] for name in self.limits}
        return [name for name, part in parts.items() if not any(_is_for(part, one) for one in providers)]

    async def admit(self, model: str, tokens: int) -> Use | NoRoom | None:
        """Count a question to `model` (`provider/name`) if there is room; None if it is not to be counted."""
        question = self._question(model, tokens, waits=False)
        names = tuple(question.limits)
        return NoRoom(names, 0) if self._waiting[names] else await self._looked(question)

    def wait(self, model: str, tokens: int) -> asyncio.Future[Use | None]:
        """The same as soon as there is room. From this call on the question is in line: none of the same
        limits that comes later is let pass before it.

        Raises `ProviderError` of type `MUST_WAIT` when as many as may wait do so already.
        """
        question = self._question(model, tokens, waits=True)
        names = tuple(question.limits)
        if self._waiting.total() >= self._most_waiting:
            words = f"{model} must wait for {NoRoom(names, 0)}, and no more questions may wait in this worker"
            raise ProviderError("recoverable", MUST_WAIT, words)
        self._waiting[names] += 1
        waiting = asyncio.ensure_future(self._let_pass(question))
        waiting.add_done_callback(lambda _: self._waiting.subtract((names,)))
        return waiting

    async def _let_pass(self, question: WaitingCall) -> Use | None:
        async with self._lines.setdefault(tuple(question.limits), asyncio.Lock()):
            found = await self._looked(question)
            while isinstance(found, NoRoom):
                await asyncio.sleep(found.seconds)
                found = await self._looked(question)
        return found

    async def settle(self, use: Use, tokens: int) -> None:
        """Count what a question has really used, if that takes no longer than about a second."""
        try:
            await self._transaction(self._settle, use, tokens)
        except TimeoutError:  # the reply is worth more
            log.warning("model.not_counted", rate_limits=use.names, tokens=tokens)

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self._file.close()

    def _question(self, model: str, tokens: int, *, waits: bool) -> WaitingCall:
        limits = {name: limit for name, limit in self.limits.items() if _is_for(name, model)}
        return WaitingCall(limits, tokens, waits)

    async def _looked(self, question: WaitingCall) -> Use | NoRoom | None:
        if not question.limits:
            return None
        try:
            return await self._transaction(self._admitted, question)
        except TimeoutError:
            return NoRoom((), PAUSE_SECONDS[-1])

    # -- in a transaction ----------------------------------------------------------------------------

    def _admitted(self, file: sqlite3.Connection, now: float, question: WaitingCall) -> Use | NoRoom:
        current = int(now / self._slice)
        # far ahead: from before the clock was set back
        file.execute(
            "DELETE FROM used WHERE slice NOT BETWEEN ? AND ?",
            (current - SLICES_PER_WINDOW, current + SLICES_PER_WINDOW),
        )
        file.execute(
            "DELETE FROM waiting WHERE question=? OR until NOT BETWEEN ? AND ?",
            (question.id, now, now + 4 * self._pause),
        )
        waits = {name: self._seconds_to_room(file, now, name, question) for name in question.limits}
        blocked = {name: seconds for name, seconds in waits.items() if seconds > 0}
        if not blocked:
            use = Use(tuple(question.limits), current, question.tokens)
            _count(file, use.names, current, 1, question.tokens)
            return use
        if question.waits:  # who stops waiting no longer says so
            until = now + 3 * self._pause
            rows = [(name, question.id, question.since, until) for name in blocked]
            file.executemany("INSERT INTO waiting VALUES(?,?,?,?)", rows)
        return NoRoom(tuple(blocked), min(max(blocked.values()), self._pause))

    def _seconds_to_room(
        self, file: sqlite3.Connection, now: float, name: str, question: WaitingCall
    ) -> float:
        """Until this limit may have room for the question; 0: it has."""
        rows = file.execute("SELECT slice, requests, tokens FROM used WHERE name=? ORDER BY slice", (name,))
        leaving = _last_to_leave(rows.fetchall(), question.limits[name], question.tokens)
        if leaving is not None:
            return max((leaving + SLICES_PER_WINDOW + 1) * self._slice - now, self._slice / 10)
        older = "SELECT 1 FROM waiting WHERE name=? AND since < ? LIMIT 1"
        overtaken = file.execute(older, (name, question.since - self._ahead)).fetchone()
        return self._pause / 10 if overtaken else 0

    def _settle(self, file: sqlite3.Connection, now: float, use: Use, tokens: int) -> None:
        if tokens < use.tokens:
            given_back = "UPDATE used SET tokens = tokens - ? WHERE name=? AND slice=?"
            file.executemany(given_back, [(use.tokens - tokens, name, use.slice) for name in use.names])
        else:
            _count(file, use.names, int(now / self._slice), 0, tokens - use.tokens)

    async def _transaction(self, work: Callable[..., T], *values: object) -> T | None:
        """What `work` returns for the file, the time and these values. All of it happens, or nothing.

        None, and a warning in the log: the file cannot be used. Raises `TimeoutError` when it is locked.
        """
        for pause in PAUSE_SECONDS:
            try:
                with self._file.opened() as file:
                    file.execute("BEGIN IMMEDIATE")
                    return work(file, time.time(), *values)
            except (sqlite3.Error, OSError) as error:
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if code != sqlite3.SQLITE_BUSY:
                    log.warning("rate_limits.unusable", file=str(self._file.path), error=str(error))
                    if not self._file.failed(error):
                        return None
            await asyncio.sleep(pause)
        raise TimeoutError


def _is_for(name: str, model: str) -> bool:
    return fnmatchcase(model, name.translate(LITERAL))


def estimated_tokens(call: ModelCall) -> int:
    """Of what the model is sent: a quarter of its bytes."""
    tools = (tool.name + tool.description + json.dumps(tool.parameters) for tool in call.setup.tools)
    texts = [*tools, json.dumps(call.setup.response_schema)]
    for message in call.messages:
        texts += [message.content, message.kept, *(one.name + one.arguments for one in message.tool_calls)]
    size = sum(len(text) if text.isascii() else len(text.encode(errors="replace")) for text in texts)
    size += sum(bytes_of_images(message.content) for message in call.messages)
    return -(-size // BYTES_PER_TOKEN)


def _last_to_leave(rows: Sequence[tuple[int, int, int]], limit: RateLimit, tokens: int) -> int | None:
    """The newest slice that must no longer count so that the question fits; None: it fits now."""
    requests, used = sum(row[1] for row in rows), sum(row[2] for row in rows)
    most_requests = (limit.requests_per_minute or math.inf) - 1
    most_tokens = max((limit.tokens_per_minute or math.inf) - tokens, 0)
    leaving = None
    for slice, of_requests, of_tokens in rows:
        if requests <= most_requests and used <= most_tokens:
            break
        leaving, requests, used = slice, requests - of_requests, used - of_tokens
    return leaving


def _count(file: sqlite3.Connection, names: Iterable[str], slice: int, requests: int, tokens: int) -> None:
    file.executemany(
        "INSERT INTO used VALUES(?,?,?,?) ON CONFLICT (name, slice) DO UPDATE "
        "SET requests = requests + excluded.requests, tokens = tokens + excluded.tokens",
        [(name, slice, requests, tokens) for name in names],
    )
