"""Histories of runs that people decide and command: every kind of request, decision and order.

Names begin with `people-`: what is said comes from outside the script, at moments that no script knows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.service import RPCError

from activities.contracts import ModelSpec
from client.agent import AgentClient
from client.archived import ArchivedRuns
from client.fork import Changes, forked_task
from client.keys import public_key
from tests.people.temporalkit import (
    Handle,
    asking_task,
    begun,
    calls,
    decision,
    hears,
    reached,
    requests,
    waits_for,
)
from tests.workflows.trials import act, begin, final, scripted, task, until
from workflows.api import Limits
from workflows.gate.signing import sign, signed_content
from workflows.people import Approvals, Asking, Decision, Group, People, Request

__all__ = ["SCENARIOS", "order", "signal", "update"]

HERE, ASKED = People(), Approvals()
KEYS = {name: Ed25519PrivateKey.from_private_bytes(name.encode() * 8) for name in ("anna", "bert")}


async def signal(handle: Handle, request: Request, verb: str, **more: Any) -> None:
    """Decide by signal."""
    await handle.signal("decide", decision(request, verb, **more))


async def update(handle: Handle, request: Request, verb: str, **more: Any) -> None:
    """Decide by update."""
    await handle.execute_update("decide", decision(request, verb, **more))


async def order(handle: Handle, command: str, *, by_signal: bool = False, **more: Any) -> None:
    """A command; one that is refused, or comes too late, is passed over."""
    said = {"command": command, "by": "ann", **more}
    with suppress(WorkflowUpdateFailedError, RPCError):
        if by_signal:
            await handle.signal("command", said)
        else:
            await handle.execute_update("command", said)


async def _under_way(handle: Handle, name: str) -> None:
    """Wait until an activity is under way whose id begins so."""

    async def there() -> bool:
        found = (await handle.describe()).raw_description.pending_activities
        return any(one.activity_id.startswith(name) and one.HasField("last_started_time") for one in found)

    await reached(there)


def _late(*replies: Any, seconds: float = 2) -> dict[str, ModelSpec]:
    return {"default": scripted(*replies, delay_seconds=seconds)}


# -- decisions --------------------


async def _decided(client: Client) -> Handle:
    """Approved by update, for later calls too; approved beforehand; rejected, edited, by signal."""
    more = [act("mark_once", line=line) for line in ("one", "two", "three")]
    handle, one = await begun(client, asking_task("one", *more, final("done")))
    await update(handle, one, "approve", text="fine", remember={"same": True})
    two = await waits_for(handle, besides=one.id)
    await signal(handle, two, "reject", text="not that")
    three = await waits_for(handle, besides=two.id)
    await signal(handle, three, "edit", arguments={"line": "other"})
    return handle


async def _refused(client: Client) -> Handle:
    """Junk, decisions that do not count, commands of those who may not."""
    desk = {"desk": Group(members=("ann", "bob"))}
    people = People(groups=desk, asking=Asking(group="desk"), commands="desk")
    handle, request = await begun(client, asking_task("refused", people=people))
    for name, values in (
        ("decide", []),
        ("decide", [5]),
        ("command", [{"command": "dance"}]),
        ("no", [1, 2]),
    ):
        await handle.signal(name, args=values)
    await signal(handle, request, "approve", by="zed")
    await signal(handle, request, "edit", arguments={"lime": 1})
    await signal(handle, request, "topup")
    await handle.signal("decide", {**decision(request, "approve"), "request": "r9"})
    await order(handle, "abort", by_signal=True, by="zed")
    await order(handle, "rollback", by_signal=True, step=8)
    await order(handle, "resume")
    await update(handle, request, "approve", text="at last")
    return handle


async def _quorum(client: Client) -> Handle:
    group = Group(members=("ann", "bob", "eve"), quorum=2)
    people = People(groups={"desk": group}, asking=Asking(group="desk"))
    handle, request = await begun(client, asking_task("quorum", people=people))
    await signal(handle, request, "approve")
    await signal(handle, request, "approve", text="again")
    await update(handle, request, "edit", by="bob", arguments={"line": "less"})
    await update(handle, request, "approve", by="eve")
    return handle


async def _signed(client: Client) -> Handle:
    group = Group(keys={name: public_key(key) for name, key in KEYS.items()}, quorum=2)
    people = People(groups={"desk": group}, asking=Asking(group="desk"))
    handle, request = await begun(client, asking_task("signed", people=people))
    for number, (name, key) in enumerate((("anna", "bert"), ("anna", "anna"), ("bert", "bert"))):
        said = decision(request, "approve", by=name, id=f"d-{number}")
        content = signed_content(handle.id, Decision.model_validate(said))
        await handle.signal("decide", {**said, "signature": sign(KEYS[key], content)})
    return handle


async def _deadlines(client: Client) -> Handle:
    """Warned, escalated to another group and back, expired; people are told each time."""
    desks = {"desk": Group(members=("ann",)), "boss": Group(members=("bob",))}
    last = ("boss", "desk")
    asking = Asking(
        group="desk", deadline_seconds=0.6, warn_seconds=0.3, at_deadline="escalate", escalate_to=last
    )
    people = People(groups=desks, asking=asking, notify=("opened", "expiring", "closed"))
    handle, _ = await begun(client, asking_task("late", people=people))
    return handle


# -- what else is asked --------------------


async def _outcomes(client: Client) -> Handle:
    """Calls of which nobody knows: found out by the tool, made again, told by a person."""
    kinds = ("happened", "not_happened", "unknown")
    replies = [act("book", line=found, found=found, seconds=2) for found in kinds]
    handle, lost = await begun(
        client, task(*replies, final("booked"), tools=("book",), people=HERE), "outcome"
    )
    await update(handle, lost, "answer", text="it is in the book")
    last = await waits_for(handle, "outcome", besides=lost.id)
    await signal(handle, last, "retry")
    again = await waits_for(handle, "outcome", besides=last.id)
    await signal(handle, again, "abort", text="enough")
    return handle


async def _limits(client: Client) -> Handle:
    """Topped up, set, and let end the run."""
    replies = [act("mark", line=f"l{n}") for n in range(3)]
    people = People(on_limit="ask")
    given = task(*replies, tools=("mark",), people=people, limits=Limits(model_calls=1))
    handle, first = await begun(client, given, "limit")
    await update(handle, first, "topup", amounts={"model_calls": 1})
    second = await waits_for(handle, "limit", besides=first.id)
    await order(handle, "limits", by_signal=True, limits={"model_calls": 2, "tokens": None})
    third = await waits_for(handle, "limit", besides=second.id)  # asked anew, with the new limits
    await signal(handle, third, "finish")
    return handle


async def _trouble(client: Client) -> Handle:
    given = task(hears("what nobody says", final("x")), people=People(on_trouble="ask"))
    handle, first = await begun(client, given, "trouble")
    await update(handle, first, "retry")
    second = await waits_for(handle, "trouble", besides=first.id)
    await signal(handle, second, "abort")
    return handle


async def _escalation(client: Client) -> Handle:
    """The machine itself asks, and hears what is said."""
    replies = [{"thought": "probably"}] * 4
    handle, request = await begun(client, task(*replies, final("sure"), people=HERE), "escalation")
    await signal(handle, request, "resume", text="look it up")
    return handle


async def _interrupts(client: Client) -> Handle:
    people = People(interrupt_every=2, interrupt_states=("action",), notify=("opened", "closed"))
    replies = [act("mark", line=f"i{n}") for n in range(3)]
    handle, request = await begun(
        client, task(*replies, final("on"), tools=("mark",), people=people), "interrupt"
    )
    for text in ("", "mind the gap", ""):
        await signal(handle, request, "resume", text=text)
        request = await waits_for(handle, "interrupt", besides=request.id)
    await update(handle, request, "abort")
    return handle


# -- commands --------------------


async def _paused(client: Client) -> Handle:
    """While a call is asked about, and at once in the middle of a model call."""
    handle, request = await begun(
        client,
        asking_task("p").model_copy(update={"models": _late(act("mark_once", line="p"), final("done"))}),
    )
    await order(handle, "pause", by_signal=True, text="lunch")
    await signal(handle, request, "approve")
    await order(handle, "resume")
    await _under_way(handle, "thought#")
    await order(handle, "pause", at_once=True)
    await order(handle, "pause", by_signal=True)
    await order(handle, "resume", id="once")
    await order(handle, "resume", id="once")
    return handle


async def _aborted(client: Client) -> Handle:
    """In the middle of a model call; what comes behind it is too late."""
    given = task(tools=("mark",), people=HERE).model_copy(update={"models": _late(final("x"), seconds=30)})
    handle = await begin(client, given)
    await _under_way(handle, "thought#")
    await order(handle, "abort", by_signal=True, text="wrong question")
    await order(handle, "pause", by_signal=True)
    return handle


async def _steered(client: Client) -> Handle:
    """In the middle of a model call, which is asked for anew, and while a tool runs."""
    models = _late(act("mark", line="s", seconds=2), final("heard"), seconds=1.5)
    given = task(tools=("mark",), people=HERE).model_copy(update={"models": models})
    handle = await begin(client, given)
    await _under_way(handle, "thought#")
    await order(handle, "steer", text="in English")
    await _under_way(handle, "action#")
    await order(handle, "steer", by_signal=True, text="and briefly")
    return handle


async def _rolled_back(client: Client) -> Handle:
    """With what was done undone; then to the start, in the middle of a call that is let end."""
    replies = [act("book", line="a"), act("mark", line="b"), act("mark", line="c", seconds=2), final("all")]
    handle = await begin(client, task(*replies, tools=("book", "mark"), people=HERE))
    await until(handle, lambda status: status.step == 3 and status.state == "action")
    await order(handle, "rollback", step=1, compensate=True)
    await order(handle, "rollback", by_signal=True, step=0)
    return handle


async def _forked(client: Client) -> Handle:
    """From the second step of a run that waits there."""
    replies = (act("mark_once", line="g"), final("forked"))
    given = asking_task("f", *replies)
    source, first = await begun(client, given)
    await update(source, first, "approve")
    await waits_for(source, besides=first.id)
    agents = AgentClient(client, ArchivedRuns(Path("no-archive.db")), ui=None, where="here")
    forked = await forked_task(agents, source.id, 2, Changes())
    await order(source, "abort")
    handle, own = await begun(client, forked)
    await signal(handle, own, "approve")
    return handle


async def _side_by_side(client: Client) -> Handle:
    """Several calls of one reply ask at once, are decided in another order, and one ends the run."""
    replies = (calls("mark_once", "x", "y", "z"), calls("mark_once", "v"), "all")
    given = task(*replies, tools=("mark_once",), machine="tools", people=HERE, approvals=ASKED)
    handle, first = await begun(client, given)
    second = await waits_for(handle, besides=first.id)
    await signal(handle, second, "reject")
    await update(handle, first, "approve")
    third = next(r for r in await requests(handle) if r.id not in {first.id, second.id})
    await signal(handle, third, "edit", arguments={"line": "w"})
    last = await waits_for(handle, besides=third.id)
    await signal(handle, last, "abort")
    return handle


SCENARIOS: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "people-decided": _decided,
    "people-refused": _refused,
    "people-quorum": _quorum,
    "people-signed": _signed,
    "people-deadlines": _deadlines,
    "people-outcomes": _outcomes,
    "people-limits-set": _limits,
    "people-trouble": _trouble,
    "people-escalation": _escalation,
    "people-interrupts": _interrupts,
    "people-paused": _paused,
    "people-aborted": _aborted,
    "people-steered": _steered,
    "people-rolled-back": _rolled_back,
    "people-forked": _forked,
    "people-side-by-side": _side_by_side,
}
