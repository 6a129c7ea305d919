"""What the framework costs where nothing else does: runs and worker in one process, a server in memory.

Both sides make one model call and one tool call per step with results of 1 KiB; the bare loop carries no
conversation, so it does the least that is possible. Figures are medians of interleaved rounds.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.worker import Replayer

from activities.settings import Settings
from benchmarks.bare import BareLoop, bare_worker
from benchmarks.sides import (
    KINDS,
    TOOLS,
    Row,
    bare_waits,
    heading,
    medians,
    run_together,
    start,
    start_waiting,
)
from client.plugin import RatchetPlugin
from tests.server.conftest import real_server
from tests.server.trials import eventually, open_request
from worker import build_worker

ACTIVITY = 6
"""Events of an activity and of the workflow task behind it."""


class OneProcess:
    """Both sides' workers in this process."""

    def __init__(self, client: Client, settings: Settings, rounds: int) -> None:
        self.client, self.settings, self.rounds = client, settings, rounds

    async def interleaved(self, measure: Callable[[str], Awaitable[float]]) -> dict[str, float]:
        """The median of all rounds, by kind."""
        return medians([(kind, await measure(kind)) for _ in range(self.rounds) for kind in KINDS])

    async def alone(self, kind: str, steps: int) -> tuple[float, float]:
        """Milliseconds per step of one run alone, and this process' CPU milliseconds."""
        gc.collect()
        began, cpu = time.perf_counter(), time.process_time()
        await (await start(self.client, kind, steps)).result()
        took, worked = time.perf_counter() - began, time.process_time() - cpu
        return took * 1000 / steps, worked * 1000 / steps

    async def together(self, kind: str, runs: int, steps: int) -> float:
        """Steps per second of runs at once."""
        began = time.perf_counter()
        await run_together(self.client, kind, runs, steps)
        return runs * steps / (time.perf_counter() - began)

    async def events(self, kind: str, steps: int, size: int = 1024) -> list[HistoryEvent]:
        """The history of one run."""
        handle = await start(self.client, kind, steps, size)
        await handle.result()
        return list((await handle.fetch_history()).events)

    async def bytes_per_step(self, kind: str, size: int) -> float:
        """Growth of history by a step."""
        short, long = [await self.events(kind, steps, size) for steps in (10, 40)]
        return (sum(e.ByteSize() for e in long[1:]) - sum(e.ByteSize() for e in short[1:])) / 30

    async def events_besides(self, kind: str) -> float:
        """Events of a run without those of its steps; the question that is one more than the calls is one."""
        short, long = [len(await self.events(kind, steps)) for steps in (10, 20)]
        return short - (long - short) - ACTIVITY

    async def replay(self, steps: int) -> dict[str, float]:
        """Milliseconds to replay a run of so many steps, by kind."""
        handles = {kind: await start(self.client, kind, steps) for kind in KINDS}
        for handle in handles.values():
            await handle.result()
        histories = {kind: await handle.fetch_history() for kind, handle in handles.items()}

        async def once(kind: str) -> float:
            bare = kind == "bare"
            plugins = [] if bare else [RatchetPlugin(self.settings)]
            replayer = Replayer(workflows=[BareLoop] if bare else [], plugins=plugins)
            began = time.perf_counter()
            await replayer.replay_workflow(histories[kind])
            return (time.perf_counter() - began) * 1000

        return await self.interleaved(once)

    async def decision(self, kind: str) -> float:
        """Milliseconds from a decision by signal to the start of the next activity, by the server's clock."""
        handle = await start_waiting(self.client, kind)
        if kind == "bare":
            await eventually(lambda: bare_waits(handle))
            await handle.signal("decide")
        else:
            request = await open_request(handle)
            given = {"request": request.id, "digest": request.digest, "decision": "approve", "by": "ann"}
            await handle.signal("decide", given)
        await handle.result()
        signalled = 0.0
        async for event in handle.fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
                signalled = event.event_time.ToNanoseconds() / 1e6
            if signalled and event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
                return event.event_time.ToNanoseconds() / 1e6 - signalled
        raise AssertionError("no activity followed the decision")


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """What processes that are started now print goes to standard error."""
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@asynccontextmanager
async def one_process(rounds: int) -> AsyncIterator[OneProcess]:
    """Server and workers, warm."""
    with tempfile.TemporaryDirectory(prefix="ratchet-bench-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        settings = Settings(data_dir=home / ".ratchet", files_root=home, modules=(str(TOOLS),))
        async with AsyncExitStack() as stack:
            with stdout_to_stderr():  # the server greets
                client = await stack.enter_async_context(real_server(settings))
            await stack.enter_async_context(build_worker(client, settings))
            await stack.enter_async_context(bare_worker(client))
            bench = OneProcess(client, settings, rounds)
            for kind in KINDS:
                await bench.alone(kind, 20)
            yield bench


async def alone(quick: bool = False) -> None:
    """Print what one run costs."""
    print(heading("One run alone, in one process, server in memory"), flush=True)
    async with one_process(2 if quick else 3) as bench:
        targets = {10: "1.2 / 0.75", 50: "1.1 / 0.6", 200: "1.1 / 0.6"}
        for steps in (10, 50) if quick else (10, 50, 200):
            rounds = [(kind, await bench.alone(kind, steps)) for _ in range(bench.rounds) for kind in KINDS]
            took = medians((kind, took) for kind, (took, _) in rounds)
            worked = medians((kind, worked) for kind, (_, worked) in rounds)
            print(Row(f"ms per step, one run of {steps}", took, targets[steps]), flush=True)
            print(Row(f"CPU, ms per step of {steps}", worked, "1.5" if steps == 200 else ""), flush=True)
        for size, target in {1024: "3,500 / 2,600", 4096: "6,500 / 5,700"}.items():
            grown = {kind: await bench.bytes_per_step(kind, size) for kind in KINDS}
            print(
                Row(f"bytes of history per step, {size} per result", grown, target, ratio=False), flush=True
            )
        besides = {kind: await bench.events_besides(kind) for kind in KINDS}
        print(Row("events besides the steps", besides, "12", ratio=False), flush=True)
        print(
            Row("decision to next activity, ms", await bench.interleaved(bench.decision), "1.3"), flush=True
        )
        print(Row("replay of 200 steps, ms", await bench.replay(200), "1.3"), flush=True)


async def together(quick: bool = False) -> None:
    """Print how fast many runs are."""
    print(heading("Runs at once, in one process, server in memory"), flush=True)
    async with one_process(1) as bench:
        for runs, steps, rounds in ((20, 10, 1),) if quick else ((50, 10, 2), (200, 5, 1)):
            bench.rounds = rounds
            rates = await bench.interleaved(partial(bench.together, runs=runs, steps=steps))
            print(Row(f"steps per second, {runs} runs at once", rates, "0.9 / 1.5"), flush=True)
