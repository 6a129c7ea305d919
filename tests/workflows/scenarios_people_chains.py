"""Histories of people and runs of several workflows: one that goes on as new while it asks, one with a child.

`people-continues` is the first run of a chain, `people-continued` the one that goes on; `people-outer` is a
run that is commanded while its child asks, `people-inner` such a child.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from temporalio.client import Client

from tests.people.temporalkit import Handle, asking_task, begun, decision, reached, requests, waits_for
from tests.workflows.scenarios_people import order, signal, update
from tests.workflows.trials import act, begin, final, task, until
from workflows.api import AgentResult, AgentTask
from workflows.people import Approvals, People

__all__ = ["SCENARIOS"]


async def _chain(client: Client) -> tuple[Handle, str]:
    """A run that goes on as new while it asks, with what was approved, commanded and sent before; its id."""
    more = [act("mark_once", line=line) for line in ("again", "again", "last")]
    handle, first = await begun(client, asking_task("again", *more, final("done")))
    approval = decision(first, "approve", id="d1", remember={"same": True})
    await handle.signal("decide", approval)
    await order(handle, "steer", id="c1", text="carefully")
    last = await waits_for(handle, besides=first.id)  # two calls were let pass
    while (described := await handle.describe()).run_id == handle.first_execution_run_id:
        await handle.signal("junk", args=[])
        await reached(partial(_grown, handle, described.history_length))
    latest: Handle = client.get_workflow_handle(handle.id, result_type=AgentResult)
    run_id = described.run_id
    assert [one.digest for one in await requests(latest)] == [last.digest]
    await handle.signal("decide", approval)
    await order(latest, "steer", id="c1", text="carefully")
    await order(latest, "rollback", step=2)
    asked_anew = await waits_for(latest, besides=last.id)
    await signal(latest, asked_anew, "edit", arguments={"line": "other"})
    await latest.result()
    return latest, str(run_id)


async def _grown(handle: Handle, length: int) -> bool:
    """The history is longer, or another run's."""
    described = await handle.describe()
    return described.history_length > length + 2 or described.run_id != handle.first_execution_run_id


async def _continues(client: Client) -> Handle:
    handle, _ = await _chain(client)
    described = await handle.describe()
    first = described.raw_description.workflow_execution_info.first_run_id
    return client.get_workflow_handle(handle.id, run_id=first, result_type=AgentResult)


async def _continued(client: Client) -> Handle:
    handle, run_id = await _chain(client)
    return client.get_workflow_handle(handle.id, run_id=run_id, result_type=AgentResult)


def _holding(*replies: Any) -> AgentTask:
    """A run whose state is a child run, in which people are asked."""
    options = {"mode": "child", "tools": ["mark_once"]}
    asks = {"people": People(), "approvals": Approvals()}
    return task(*replies, tools=("mark_once",), machine="holding", options=options, **asks)


async def _child(client: Client, handle: Handle, number: int) -> Handle:
    """The child that is at work for the so manieth time, once it asks."""
    inner = f"{handle.id}/{str(handle.first_execution_run_id)[:8]}/hold#{number}:1"
    await until(handle, lambda status: any(inner in one for one in status.inside))

    async def there() -> bool:
        return bool((await handle.describe()).raw_description.pending_children)

    await reached(there)
    child: Handle = client.get_workflow_handle(inner, result_type=AgentResult)
    await waits_for(child)
    return child


async def _outer(client: Client) -> Handle:
    """Paused while its child goes on, rolled back while it asks, which stops it; aborted with the next."""
    handle = await begin(client, _holding(act("mark_once", line="in"), final("inside")))
    await _child(client, handle, 1)
    await order(handle, "pause", by_signal=True, at_once=True)
    await order(handle, "rollback", step=0)
    await order(handle, "resume", by_signal=True)
    await _child(client, handle, 2)
    await order(handle, "abort", text="enough")
    return handle


async def _inner(client: Client) -> Handle:
    handle = await begin(client, _holding(act("mark_once", line="in"), final("inside")))
    child = await _child(client, handle, 1)
    (asked,) = await requests(child)
    await order(child, "steer", by_signal=True, text="from outside")
    await update(child, asked, "approve")
    await handle.result()
    return child


SCENARIOS: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "people-continues": _continues,
    "people-continued": _continued,
    "people-outer": _outer,
    "people-inner": _inner,
}
