"""Scripts of the example machine `examples/machines/refund_desk.py`: together they take every row."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from activities.contracts import CallTools, ErrorClass, ModelReplied, ToolResult, ToolsReturned
from tests.machines.answers import decided, failed, said, tool_failed, tool_said
from tests.machines.script import Script
from workflows.machines.declined import DECLINED

__all__ = ["REPLIES", "SCRIPTS", "TEXT", "answers", "facts", "paid", "sign", "tickets"]

TEXT = "The mug came broken and two days late, so I changed my mind."


def tickets(*orders: str) -> Callable[[CallTools], ToolsReturned]:
    """Open tickets about these orders."""
    found = [
        {"id": f"T-{n}", "received": "2026-03-20", "customer": "ann", "order": order, "text": TEXT}
        for n, order in enumerate(orders, start=1)
    ]
    return tool_said(json.dumps(found))


def facts(goods: int = 2000, **more: Any) -> Callable[[CallTools], ToolsReturned]:
    """What the books say of an order of this price."""
    known = {
        "customer": "ann", "what": "mug", "goods_cents": goods, "shipping_cents": 500, "refunded_cents": 0,
        "earlier_refunds": 0, "promised": "2026-03-10", "delivered": "2026-03-12",
    }  # fmt: skip
    return tool_said(json.dumps({**known, **more}))


def sign(kind: str = "damaged", quote: str = "mug came broken") -> ModelReplied:
    """The model sorts the ticket."""
    return said(json.dumps({"signs": [{"kind": kind, "quote": quote}]}))


def paid(cents: int | None = None) -> Callable[[CallTools], ToolsReturned]:
    """The shop pays what was asked for, or what a person has made of it."""

    def answer(effect: CallTools) -> ToolsReturned:
        (run,) = effect.runs
        made = run.arguments["cents"] if cents is None else cents
        return tool_said(json.dumps({"order": run.arguments["order"], "paid_cents": made}))(effect)

    return answer


ONE, PAID = tickets("A-1"), paid()
WHOLE = (sign(), facts(), PAID)
DEAR = (ONE, sign(), facts(90_000))
"""A case that needs a person."""

SCRIPTS = (
    Script("pays a small amount", (ONE, *WHOLE)),
    Script("has no reply", (ONE, said("?"))),
    Script("believes no false quote", (ONE, sign(quote="I am the boss"))),
    Script("has nothing to do", (tool_said("[]"),)),
    Script("has no tickets", (tool_failed("failed"),)),
    Script("cannot read the tickets", (tool_said("[{}]"),)),
    Script("has no model", (ONE, failed("fatal"))),
    Script("reaches no model", (ONE, failed("transient"))),
    Script("has no books", (ONE, sign(), failed("fatal"))),
    Script("does not know the order", (ONE, sign(), tool_failed("failed"))),
    Script("finds another's order", (ONE, sign(), facts(customer="bob"))),
    Script("owes nothing", (ONE, sign("late", "two days late"), facts(delivered="2026-03-10"))),
    Script("is out of budget", DEAR, {"budget_cents": 10_000}),
    Script("is approved", (*DEAR, decided("resume"), PAID)),
    Script("is declined", (*DEAR, decided("abort"))),
    Script("finds nobody", (*DEAR, decided("unavailable"))),
    Script("loses the person", (*DEAR, failed("fatal"))),
    Script("cannot pay", (ONE, sign(), facts(), tool_failed("failed"))),
    Script("pays, nobody knows", (ONE, sign(), facts(), tool_failed("unknown_outcome"))),
    Script("pays, nobody knows how much", (ONE, sign(), facts(), tool_said("done"))),
    Script("has two", (tickets("A-1", "A-2"), *WHOLE, *WHOLE)),
)


REPLIES = st.sampled_from(
    [
        sign(),
        sign("late", "two days late"),
        sign("changed_mind", "changed my mind"),
        sign("late", "no"),
        said("?"),
    ]
)
"""What a model may say in random runs."""


def answers(effect: Any) -> st.SearchStrategy[Any] | None:
    """What the shop's tools may answer; None for effects of other kinds."""
    if not isinstance(effect, CallTools):
        return None
    (run,) = effect.runs
    texts = {
        "open_tickets": [tickets("A-1", "A-2", "A-3"), tickets("A-1"), tool_said("[]"), tool_said("?")],
        "order_facts": [facts(), facts(90_000), facts(earlier_refunds=9), facts(customer="bob")],
        "refund": [PAID, paid(1)],
    }
    good = st.sampled_from(texts[run.tool]).map(lambda answer: answer(effect))
    errors = st.sampled_from(
        ["failed", "transient", "timeout", "bad_arguments", "unknown_outcome", *DECLINED]
    )
    bad = st.builds(
        ToolResult, id=st.just(run.id), tool=st.just(run.tool), output=st.just("no"), error=errors
    )
    returned = bad.map(lambda result: ToolsReturned(results=(result,)))
    kinds: st.SearchStrategy[ErrorClass] = st.sampled_from(
        ["transient", "recoverable", "fatal", "unknown_outcome"]
    )
    return st.one_of(good, good, good, good, returned, kinds.map(failed))
