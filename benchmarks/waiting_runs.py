"""Runs that wait for a person, many on one real worker: until they wait, memory, inbox, a decision."""

from __future__ import annotations

import asyncio
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from temporalio.api.enums.v1 import EventType

from benchmarks.processes import ROOT, Server, server, workers
from benchmarks.sides import Handle, Row, bare_waits, gathered, heading, start_waiting
from client.runs.listing import list_filter
from tests.server.trials import eventually

INBOX = (sys.executable, "-c", "from client.start import main; main()", "inbox")
"""The command `ratchet inbox`."""
ROUNDS = 5


async def until_all_wait(server: Server, kind: str, handles: list[Handle]) -> None:
    """Until people see all of them; bare runs are looked at one by one."""
    if kind == "bare":
        for handle in handles:
            await eventually(lambda: bare_waits(handle))  # noqa: B023  # called in the same round
        return

    async def all_in_inbox() -> bool:
        query = list_filter(running=True, waiting=True)
        return (await server.agents.temporal.count_workflows(query)).count == len(handles)

    await eventually(all_in_inbox)


async def median_seconds(work: Callable[[], Awaitable[object]]) -> float:
    """Of some rounds."""
    took = []
    for _ in range(ROUNDS):
        gc.collect()
        began = time.perf_counter()
        await work()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


async def decided(server: Server, kind: str, handle: Handle) -> float:
    """Seconds from a person's decision to the end of the call, by the server's clock, which is ours."""
    agents, began = server.agents, time.time()
    if kind == "bare":
        await handle.signal("decide")
    else:
        await agents.decide(handle.id, "r1", "approve", by="ann")
    await handle.result()
    async for event in handle.fetch_history_events():
        ended = event.event_time.ToNanoseconds() / 1e9
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED and ended > began:
            return ended - began
    raise AssertionError("no activity followed the decision")


async def measure(kind: str, runs: int) -> dict[str, float]:
    """Everything about runs of one kind, by what is measured."""
    async with server() as running, workers(running, kind) as working:
        before, began = working.mib(), time.perf_counter()
        temporal = running.agents.temporal
        handles = await gathered([lambda: start_waiting(temporal, kind)] * runs)
        await until_all_wait(running, kind, handles)
        found = {"seconds until all wait": time.perf_counter() - began}
        found["KiB of the worker per run"] = (working.mib() - before) * 1024 / runs
        if kind != "bare":

            async def command() -> None:
                await asyncio.to_thread(
                    subprocess.run, INBOX, cwd=ROOT, env=running.environment, check=True, capture_output=True
                )

            found["seconds of the SDK's inbox"] = await median_seconds(running.agents.inbox)
            found["seconds of `ratchet inbox`"] = await median_seconds(command)
        found["seconds from approve to the call's end"] = statistics.median(
            [await decided(running, kind, handle) for handle in handles[:ROUNDS]]
        )
        return found


TARGETS = {
    "seconds until all wait": "60", "KiB of the worker per run": "150", "seconds of the SDK's inbox": "1",
    "seconds of `ratchet inbox`": "1", "seconds from approve to the call's end": "0.5",
}  # fmt: skip


async def waiting_runs(quick: bool = False) -> None:
    """Print the table."""
    runs = 50 if quick else 1000
    print(heading(f"{runs:,} runs that wait for an approval, one real worker"), flush=True)
    found = {kind: await measure(kind, runs) for kind in ("bare", "off")}
    for what, target in TARGETS.items():
        values = {kind: by_name[what] for kind, by_name in found.items() if what in by_name}
        print(Row(what, values, target, ratio=False), flush=True)
