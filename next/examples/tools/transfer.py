"""A tool that must not act twice and has no key to prevent it: a bank that pays every order it gets.

So it is `unsafe`: when its worker dies in the middle, it is never run again by itself. But the bank
writes the reference of each order on its statement. `reconcile` looks there whether an order was
paid, and a person need not be asked; `compensate` pays the money back when a run is rolled back.

RATCHET_MODULES='["examples/tools/transfer.py"]' ratchet tools
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from pydantic import BaseModel, Field

from activities.toolbox import Happened, NotHappened, Tool, ToolCallContext, TransientError

US = "us"


class Params(BaseModel, frozen=True, extra="forbid"):
    """Send money to somebody's account."""

    to: str = Field(min_length=1, max_length=100, description="Whose account.")
    cents: int = Field(gt=0, le=10_000_000)


def run(params: Params, call: ToolCallContext) -> str:
    """Order the payment, with the call's key as its reference."""
    with _bank(call) as bank:
        return _pay(bank, US, params.to, params.cents, call.key)


def reconcile(key: str, params: Params, call: ToolCallContext) -> Happened | NotHappened:
    """Look for the reference on the statement; this bank writes it there at the moment it pays."""
    with _bank(call) as bank:
        found = _found(bank, key)
    return Happened(found) if found else NotHappened(f"no payment to {params.to} has this reference")


def compensate(params: Params, output: str, call: ToolCallContext) -> str:
    """Pay it back; `call.undoes` is the reference of the payment, `call.key` that of the way back."""
    with _bank(call) as bank:
        if not _found(bank, call.undoes):
            raise ValueError(f"the statement has no such payment to {params.to}")
        return _found(bank, call.key) or _pay(bank, params.to, US, params.cents, call.key)


@contextmanager
def _bank(call: ToolCallContext) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(call.files_root / "bank.sqlite", timeout=5)) as bank, bank:
            bank.execute(
                "CREATE TABLE IF NOT EXISTS statement"
                " (number INTEGER PRIMARY KEY, source TEXT, target TEXT, cents INTEGER, reference TEXT)"
            )
            yield bank
    except sqlite3.OperationalError as error:
        raise TransientError(f"the bank cannot be reached just now: {error}") from error


def _pay(bank: sqlite3.Connection, source: str, target: str, cents: int, reference: str) -> str:
    bank.execute(
        "INSERT INTO statement (source, target, cents, reference) VALUES (?, ?, ?, ?)",
        (source, target, cents, reference),
    )
    return _found(bank, reference)


def _found(bank: sqlite3.Connection, reference: str) -> str:
    """The payment with this reference, in words; empty if there is none."""
    query = "SELECT number, cents, source, target FROM statement WHERE reference = ?"
    row = bank.execute(query, (reference,)).fetchone()
    return "payment {}: {} cents from {} to {}".format(*row) if row else ""


TOOL = Tool(
    name="transfer",
    params=Params,
    run=run,
    effect="unsafe",
    reconcile=reconcile,
    compensate=compensate,
)
