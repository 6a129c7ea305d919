"""A tool that must not act twice, for a service that knows no keys: this bank pays every order that it gets.

So the tool is `unsafe`: when its worker dies in the middle of a call, the call is not made again. But the
bank writes the reference of each order on its statement. `reconcile` looks there for the payment, so that no
person has to. Where it finds none, it has the bank block the reference, in the same transaction: a worker
that only stood still, and goes on with its call later, is refused. The call that is made instead has another
key. `compensate` pays the money back when a run is rolled back.

RATCHET_MODULES='["examples/tools/transfer.py"]' ratchet tools
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from pydantic import BaseModel, Field

from ratchet import Happened, NotHappened, Tool, ToolCallContext, TransientError

US = "us"


class Params(BaseModel, frozen=True, extra="forbid"):
    """Send money to an account."""

    to: str = Field(min_length=1, max_length=100, description="The account's owner.")
    cents: int = Field(gt=0, le=10_000_000)


def run(params: Params, call: ToolCallContext) -> str:
    """Order the payment. The call's key is its reference."""
    with _bank(call) as bank:
        return _pay(bank, US, params.to, params.cents, call.key)


def reconcile(key: str, params: Params, call: ToolCallContext) -> Happened | NotHappened:
    """Look for the reference on the statement, where the bank writes it when it pays; else block it."""
    with _bank(call) as bank:
        if payment := _payment(bank, key):
            return Happened(payment)
        bank.execute("INSERT INTO blocked VALUES (?) ON CONFLICT DO NOTHING", (key,))
    return NotHappened(f"no payment to {params.to} has this reference, and none can have it any more")


def compensate(params: Params, output: str, call: ToolCallContext) -> str:
    """Pay it back. `call.undoes` is the reference of the payment, `call.key` that of the repayment."""
    with _bank(call) as bank:
        if not _payment(bank, call.undoes):
            raise ValueError(f"the statement has no such payment to {params.to}")
        return _payment(bank, call.key) or _pay(bank, params.to, US, params.cents, call.key)


@contextmanager
def _bank(call: ToolCallContext) -> Iterator[sqlite3.Connection]:
    """One transaction: nobody pays between a look at the statement and what follows from it."""
    try:
        path = call.files_root / "bank.sqlite"
        with closing(sqlite3.connect(path, timeout=5, isolation_level=None)) as bank, bank:
            bank.execute("BEGIN IMMEDIATE")
            bank.execute(
                "CREATE TABLE IF NOT EXISTS statement"
                " (number INTEGER PRIMARY KEY, source TEXT, target TEXT, cents INTEGER, reference TEXT)"
            )
            bank.execute("CREATE TABLE IF NOT EXISTS blocked (reference TEXT PRIMARY KEY)")
            yield bank
    except sqlite3.OperationalError as error:
        raise TransientError(f"the bank cannot be reached now: {error}") from error


def _pay(bank: sqlite3.Connection, source: str, target: str, cents: int, reference: str) -> str:
    if bank.execute("SELECT 1 FROM blocked WHERE reference = ?", (reference,)).fetchone():
        raise ValueError("this order came too late: its reference is blocked, and nothing was paid")
    bank.execute(
        "INSERT INTO statement (source, target, cents, reference) VALUES (?, ?, ?, ?)",
        (source, target, cents, reference),
    )
    return _payment(bank, reference)


def _payment(bank: sqlite3.Connection, reference: str) -> str:
    """The payment with this reference, for people; empty if the statement has none."""
    query = "SELECT number, cents, source, target FROM statement WHERE reference = ?"
    row = bank.execute(query, (reference,)).fetchone()
    return "payment {}: {} cents from {} to {}".format(*row) if row else ""


TOOL = Tool(
    name="transfer",
    params=Params,
    run=run,
    effect="unsafe",
    timeout_seconds=10,
    reconcile=reconcile,
    compensate=compensate,
    brings=(),
    sends="external",
)
