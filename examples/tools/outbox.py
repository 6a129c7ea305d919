"""A tool that must not act twice: it puts a message into an outbox, exactly once for each call.

A worker may die after it has stored the message and before this is recorded. Then the call is made again
with the same `call.key`, and the second attempt finds the key and does nothing. Give the key to your own
payment or mail service in the same way (often as a header named `Idempotency-Key`). A message that is
still in the outbox can be removed, so the tool can undo a call.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

from pydantic import BaseModel, Field

from ratchet import Tool, ToolCallContext, TransientError


class Params(BaseModel, frozen=True, extra="forbid"):
    """Send a message: put it into the outbox, from which it is delivered."""

    to: str = Field(min_length=1, max_length=200, description="Who gets it.")
    text: str = Field(min_length=1, max_length=10_000)


def run(params: Params, call: ToolCallContext) -> dict[str, object]:
    """The message's number in the outbox; raises `TransientError` while the outbox is locked."""
    try:
        with closing(sqlite3.connect(call.files_root / "outbox.sqlite", timeout=5)) as outbox:
            return {"queued": _queue(outbox, call.key, params), "to": params.to}
    except sqlite3.OperationalError as error:
        raise TransientError(f"the outbox cannot be used now: {error}") from error


def _queue(outbox: sqlite3.Connection, key: str, params: Params) -> int:
    with outbox:
        outbox.execute(
            "CREATE TABLE IF NOT EXISTS message"
            " (number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, recipient TEXT, text TEXT)"
        )
        outbox.execute(
            "INSERT INTO message (key, recipient, text) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (key, params.to, params.text),
        )
        row = outbox.execute("SELECT number FROM message WHERE key = ?", (key,)).fetchone()
    return int(row[0])


def compensate(params: Params, output: str, call: ToolCallContext) -> str:
    """Remove the message of the call `call.undoes`; raises `ValueError` if it was delivered already."""
    try:
        with closing(sqlite3.connect(call.files_root / "outbox.sqlite", timeout=5)) as outbox, outbox:
            outbox.execute("CREATE TABLE IF NOT EXISTS undone (key TEXT PRIMARY KEY)")
            if outbox.execute("DELETE FROM message WHERE key = ?", (call.undoes,)).rowcount:
                outbox.execute("INSERT INTO undone VALUES (?)", (call.key,))
            removed = outbox.execute("SELECT 1 FROM undone WHERE key = ?", (call.key,)).fetchone()
    except sqlite3.OperationalError as error:
        raise TransientError(f"the outbox cannot be used now: {error}") from error
    if not removed:
        raise ValueError(f"the message to {params.to} has left the outbox")
    return f"removed the message to {params.to}"


TOOL = Tool(
    name="outbox",
    params=Params,
    run=run,
    effect="keyed",
    compensate=compensate,
    brings=(),
    sends="external",
)
