"""Messages and queries in a run's first moments, while it finds out what its tools are."""

from __future__ import annotations

import asyncio

from temporalio.client import Client

from client.witness import replayed
from tests.people.temporalkit import Handle
from tests.workflows.trials import act, begin, final, task
from workflows.api import AgentResult, AgentStatus
from workflows.people import People

RUNS = 8


async def _interrupted(client: Client, number: int) -> tuple[Handle, AgentResult]:
    """A run that is looked at and spoken to before it has begun."""
    given = task(act("mark", line=f"early-{number}"), final("done"), tools=("mark",), people=People())
    handle = await begin(client, given)
    looking = [asyncio.create_task(handle.query("status", result_type=AgentStatus)) for _ in range(2)]
    await asyncio.sleep(number * 0.006)
    await handle.signal("command", {"command": "pause", "by": "ann"})
    await handle.signal("command", {"command": "resume", "by": "ann"})
    await asyncio.gather(*looking)
    return handle, await handle.result()


async def test_a_run_that_is_interrupted_from_its_first_moment_replays_to_the_same_log(
    working: Client,
) -> None:
    for number, (handle, result) in enumerate(
        await asyncio.gather(*[_interrupted(working, number) for number in range(RUNS)])
    ):
        again = await replayed(working, await handle.fetch_history())
        assert again.failure is None, number
        assert again.run is not None
        assert again.run.book.head == result.log_head, number
