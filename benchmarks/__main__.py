"""What the framework costs: agent runs against bare Temporal loops, in one process and on one server.

`python -m benchmarks [quick]` prints a Markdown table of ratios, medians of interleaved rounds, with the
targets beside them. Both sides make one model call and one tool call per step with results of 1 KiB; the bare
loop carries no conversation, so it does the least that is possible. `fused` is `fuse: auto`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import structlog
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError
from temporalio.worker import Replayer, Worker

from activities.contracts import ModelSpec
from activities.settings import Settings
from benchmarks.bare import QUEUE, BareLoop, BareWait, bare_model, bare_tool
from client.agent import pinned
from client.listing import start_attributes, start_memo
from client.plugin import RatchetPlugin
from tests.server.conftest import real_server
from tests.server.trials import eventually, open_request
from worker import build_worker
from workflows.api import TASK_QUEUE, WORKFLOW_TYPE, AgentTask, Limits, RunStatus

Handle = WorkflowHandle[Any, Any]
Start = Callable[[int, int], Awaitable[Handle]]
"""From the steps and the size of a result in characters."""
KINDS = ("bare", "off", "auto")
"""The bare loop, and agents by their `fuse`."""
TOOLS = Path(__file__).with_name("tools.py")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    found: dict[str, float]
    """By kind."""
    target: str = ""
    ratio: bool = True
    """The targets are ratios to the bare loop."""

    def __str__(self) -> str:
        bare = self.found["bare"]
        cells = [self.what, f"{bare:,.1f}"]
        for value in (self.found["off"], self.found["auto"]):
            cells.append(f"{value:,.1f} ({value / bare:.2f})" if self.ratio else f"{value:,.1f}")
        return f"| {' | '.join([*cells, self.target])} |"


class Bench:
    """Both sides on one server."""

    def __init__(self, client: Client, settings: Settings, rounds: int) -> None:
        self.client, self.settings, self.rounds = client, settings, rounds

    def task(self, steps: int, size: int, tool: str = "text", fuse: str = "auto") -> AgentTask:
        """An agent that calls a tool so often, then answers."""
        model = ModelSpec(provider="steps", name=f"{tool} {steps} {size}")
        return AgentTask.model_validate({
            "goal": "measure", "machine": "tools", "tools": (tool,), "fuse": fuse,
            "options": {"max_iterations": steps + 2}, "limits": Limits(model_calls=steps + 2),
            "models": {"default": model},
        })  # fmt: skip

    async def start(self, kind: str, steps: int, size: int = 1024) -> Handle:
        """One run."""
        name = f"{kind}-{uuid.uuid4().hex}"
        if kind == "bare":
            return await self.client.start_workflow(
                BareLoop.run, args=[steps, size], id=name, task_queue=QUEUE
            )
        task = self.task(steps, size, fuse=kind)
        return await self.started(task, name)

    async def started(self, task: AgentTask, name: str) -> Handle:
        """A run as the SDK starts it: with its attributes and memo."""
        task = pinned(task)
        return await self.client.start_workflow(
            WORKFLOW_TYPE, task, id=name, task_queue=TASK_QUEUE, memo=start_memo(task),
            search_attributes=start_attributes(task),
        )  # fmt: skip

    async def interleaved(self, measure: Callable[[str], Awaitable[float]]) -> dict[str, float]:
        """The median of all rounds, by kind."""
        found: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(self.rounds):
            for kind in KINDS:
                found[kind].append(await measure(kind))
        return {kind: statistics.median(values) for kind, values in found.items()}

    async def alone(self, kind: str, steps: int) -> tuple[float, float]:
        """Milliseconds per step of one run alone, and this process' CPU milliseconds."""
        gc.collect()
        began, cpu = time.perf_counter(), time.process_time()
        await (await self.start(kind, steps)).result()
        took, worked = time.perf_counter() - began, time.process_time() - cpu
        return took * 1000 / steps, worked * 1000 / steps

    async def together(self, kind: str, runs: int, steps: int) -> float:
        """Steps per second of runs at once."""
        began = time.perf_counter()
        handles = await asyncio.gather(*(self.start(kind, steps) for _ in range(runs)))
        await asyncio.gather(*(handle.result() for handle in handles))
        return runs * steps / (time.perf_counter() - began)

    async def events(self, kind: str, steps: int, size: int = 1024) -> list[HistoryEvent]:
        """The history of one run."""
        handle = await self.start(kind, steps, size)
        await handle.result()
        return list((await handle.fetch_history()).events)

    async def bytes_per_step(self, kind: str, size: int) -> float:
        """Growth of history by a step."""
        short, long = [await self.events(kind, steps, size) for steps in (10, 40)]
        return (sum(e.ByteSize() for e in long[1:]) - sum(e.ByteSize() for e in short[1:])) / 30

    async def events_besides(self, kind: str) -> float:
        """Events of a run without those of its steps."""
        short, long = [len(await self.events(kind, steps)) for steps in (10, 20)]
        return short - (long - short)

    async def replay(self, kind: str) -> float:
        """Milliseconds to replay a run of 200 steps."""
        handle = await self.start(kind, 200)
        await handle.result()
        history = await handle.fetch_history()
        replayer = (
            Replayer(workflows=[BareLoop])
            if kind == "bare"
            else Replayer(workflows=[], plugins=[RatchetPlugin(self.settings)])
        )
        began = time.perf_counter()
        await replayer.replay_workflow(history)
        return (time.perf_counter() - began) * 1000

    async def waiting(self, kind: str, runs: int) -> float:
        """KiB of this process for each run that waits for a person."""
        gc.collect()
        before = psutil.Process().memory_info().rss
        handles = await asyncio.gather(*(self.start_waiting(kind) for _ in range(runs)))
        for handle in handles:
            await self.until_waiting(kind, handle)
        gc.collect()
        grown = psutil.Process().memory_info().rss - before
        await asyncio.gather(*(handle.terminate() for handle in handles))
        return grown / runs / 1024

    async def start_waiting(self, kind: str) -> Handle:
        """A run that will wait for a person."""
        name = f"waits-{uuid.uuid4().hex}"
        if kind == "bare":
            return await self.client.start_workflow(BareWait.run, id=name, task_queue=QUEUE)
        task = self.task(1, 10, "text_once", kind)
        return await self.started(task, name)

    async def until_waiting(self, kind: str, handle: Handle) -> None:
        """Wait until it waits."""

        async def waits() -> bool:
            if kind == "bare":
                events = (await handle.fetch_history()).events
                return any(e.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED for e in events)
            with suppress(WorkflowQueryFailedError):  # it has not begun
                status: RunStatus = await handle.query("status", result_type=RunStatus)
                return status.waiting == "approval"
            return False

        await eventually(waits)

    async def decision(self, kind: str) -> float:
        """Milliseconds from a decision by signal to the start of the next activity, by the server's clock."""
        handle = await self.start_waiting(kind)
        await self.until_waiting(kind, handle)
        if kind == "bare":
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


async def table(bench: Bench, quick: bool) -> None:
    """Measure everything, line by line."""
    print("| what | bare | unfused (ratio) | fused (ratio) | targets |\n| --- | --- | --- | --- | --- |")
    for kind in KINDS:
        await bench.alone(kind, 20)  # warm up
    targets = {10: "1.2 / 0.75", 50: "1.1 / 0.6", 200: "1.1 / 0.6"}
    for steps in (10, 50) if quick else (10, 50, 200):
        cpu: dict[str, list[float]] = {kind: [] for kind in KINDS}

        async def alone(kind: str) -> float:
            took, worked = await bench.alone(kind, steps)  # noqa: B023  # called in the same round
            cpu[kind].append(worked)  # noqa: B023  # called in the same round
            return took

        print(Row(f"ms per step, one run of {steps}", await bench.interleaved(alone), target=targets[steps]))
        worked = {kind: statistics.median(values) for kind, values in cpu.items()}
        print(Row(f"worker CPU, ms per step of {steps}", worked, target="1.5" if steps == 200 else ""))
    for runs in (50,) if quick else (50, 200):
        rates = await bench.interleaved(lambda kind: bench.together(kind, runs, 10))  # noqa: B023  # the same
        print(Row(f"steps per second, {runs} runs at once", rates, target="0.9 / 1.5"))
    sizes = {1024: "3,500 / 2,600", 4096: "6,500 / 5,700"}
    for size, target in sizes.items():
        grown = {kind: await bench.bytes_per_step(kind, size) for kind in KINDS}
        print(Row(f"bytes of history per step, {size} per result", grown, target=target, ratio=False))
    besides = {kind: await bench.events_besides(kind) for kind in KINDS}
    print(Row("events besides the steps", besides, target="12", ratio=False))
    print(Row("decision to next activity, ms", await bench.interleaved(bench.decision), target="1.3"))
    print(Row("replay of 200 steps, ms", await bench.interleaved(bench.replay), target="1.3"))
    waiting = {kind: await in_process_of_its_own(kind, 100 if quick else 200) for kind in KINDS}
    print(Row("KiB per waiting run", waiting, target="150", ratio=False))


async def in_process_of_its_own(kind: str, runs: int) -> float:
    """KiB per waiting run, where no other run has used memory before."""
    command = [sys.executable, "-m", "benchmarks", "waiting", kind, str(runs)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return float(out.split()[-1])


async def main(words: list[str]) -> None:
    """Print the table, or one figure of memory."""
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    home = Path(tempfile.mkdtemp())
    settings = Settings(data_dir=home / ".ratchet", files_root=home, modules=(str(TOOLS),))
    bare = {"workflows": [BareLoop, BareWait], "activities": [bare_model, bare_tool]}
    async with (
        real_server(settings) as client,
        build_worker(client, settings),
        Worker(client, task_queue=QUEUE, **bare),  # type: ignore[arg-type]  # keywords of two kinds
    ):
        quick = "quick" in words
        bench = Bench(client, settings, 2 if quick else 5)
        if words[:1] == ["waiting"]:
            await bench.waiting(words[1], 10)  # what all runs share
            print(await bench.waiting(words[1], int(words[2])))
        else:
            await table(bench, quick)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
    sys.stdout.flush()
    os._exit(0)  # threads of the SDK can abort the interpreter's own exit
