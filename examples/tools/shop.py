"""The tools of the refund desk: a small shop with its orders, its tickets and its books.

Orders and tickets are JSON lines in `examples/data/shop`. Refunds are kept in `shop.sqlite` in the
worker's data directory, one row for each call. The tool `refund` is `keyed`: a call that is made again
after a crash finds its own key and does nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from ratchet import Tool, ToolCallContext, TransientError

SHOP = Path(__file__).parents[1] / "data" / "shop"
TABLE = """
CREATE TABLE IF NOT EXISTS refund (key TEXT PRIMARY KEY, sale TEXT, customer TEXT, cents INTEGER, why TEXT)
"""


class ListTickets(BaseModel, frozen=True, extra="forbid"):
    """List the open tickets, oldest first."""

    limit: int = Field(default=20, ge=1, le=200)


class FindOrder(BaseModel, frozen=True, extra="forbid"):
    """Find an order: what was bought, when it came, what was paid back before."""

    order: str = Field(min_length=1, max_length=40)


class Refund(BaseModel, frozen=True, extra="forbid"):
    """Pay money back for an order; never more than was paid for it."""

    order: str = Field(min_length=1, max_length=40)
    cents: int = Field(gt=0)
    why: str = Field(max_length=1_000)


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SHOP / name).read_text().splitlines() if line.strip()]


def _order(number: str) -> dict[str, Any]:
    found = next((order for order in _lines("orders.jsonl") if order["order"] == number), None)
    if found is None:
        raise ValueError(f"no order {number}")
    return found


@contextmanager
def _books(call: ToolCallContext) -> Iterator[sqlite3.Connection]:
    """One transaction. Raises `TransientError` while another one takes too long."""
    try:
        with closing(sqlite3.connect(call.settings.data_dir / "shop.sqlite", timeout=5)) as books:
            books.execute(TABLE)
            books.isolation_level = None
            books.execute("BEGIN IMMEDIATE")
            yield books
            books.execute("COMMIT")
    except sqlite3.OperationalError as error:
        raise TransientError(f"the shop's books cannot be used now: {error}") from error


def _number(books: sqlite3.Connection, query: str, *values: str) -> int:
    return int(books.execute(query, values).fetchone()[0])


def _refunded(books: sqlite3.Connection, order: dict[str, Any]) -> int:
    query = "SELECT coalesce(sum(cents), 0) FROM refund WHERE sale = ?"
    return int(order["refunded_cents"]) + _number(books, query, order["order"])


def open_tickets(params: ListTickets) -> list[dict[str, Any]]:
    """The tickets in the order of their arrival."""
    return _lines("tickets.jsonl")[: params.limit]


def order_facts(params: FindOrder, call: ToolCallContext) -> dict[str, Any]:
    """The order, with what the books say today."""
    order = _order(params.order)
    other = "SELECT count(*) FROM refund WHERE customer = ? AND sale <> ?"
    with _books(call) as books:
        earlier = _number(books, other, order["customer"], params.order)
        refunded = _refunded(books, order)
    return {**order, "refunded_cents": refunded, "earlier_refunds": order["earlier_refunds"] + earlier}


def refund(params: Refund, call: ToolCallContext) -> dict[str, Any]:
    """Pay, unless this call has paid already."""
    order = _order(params.order)
    with _books(call) as books:
        if not _number(books, "SELECT count(*) FROM refund WHERE key = ?", call.key):
            left = order["goods_cents"] + order["shipping_cents"] - _refunded(books, order)
            if params.cents > left:
                raise ValueError(
                    f"{params.cents} cents are too much: order {params.order} has {left} cents left"
                )
            paid = (call.key, params.order, order["customer"], params.cents, params.why)
            books.execute("INSERT INTO refund VALUES (?, ?, ?, ?, ?)", paid)
    return {"order": params.order, "paid_cents": params.cents}


TOOLS = (
    Tool(
        name="open_tickets",
        params=ListTickets,
        run=open_tickets,
        effect="read",
        brings=("untrusted", "private"),  # customers write them
        sends="nowhere",
    ),
    Tool(
        name="order_facts",
        params=FindOrder,
        run=order_facts,
        effect="read",
        brings=("private",),
        sends="nowhere",
    ),
    Tool(name="refund", params=Refund, run=refund, effect="keyed", brings=(), sends="external"),
)
