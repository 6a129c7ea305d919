"""What the framework costs: an agent run against a bare Temporal loop, in the same process and server.

`python -m benchmarks.loop [STEPS] [ROUNDS]` prints milliseconds per step and bytes of history per step,
as medians, and their ratios. Both make one model activity and one tool activity per step; the bare loop
keeps the conversation in the workflow and passes a step number only, so it does the least that is possible.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

from activities.contracts import ModelSpec, ScriptedReply
from activities.settings import Settings
from tests.server.conftest import TOOLS, real_server
from worker import build_worker
from workflows.api import TASK_QUEUE, AgentTask, Limits

QUEUE = "bare"
RESULT = "x" * 1024


@activity.defn
async def bare_model(step: int) -> str:
    """A model's reply of the size of the agent's."""
    return f'{{"thought": "Step {step}.", "action": "mark", "action_input": {{"line": "{step}"}}}}'


@activity.defn
async def bare_tool(step: int) -> str:
    """A tool's result of 1 KiB."""
    return RESULT


@workflow.defn(sandboxed=False)
class BareLoop:
    """The same two activities per step, and nothing else."""

    @workflow.run
    async def run(self, steps: int) -> int:
        """Loop."""
        limit = timedelta(seconds=30)
        for step in range(steps - 1):
            await workflow.execute_activity(bare_model, step, start_to_close_timeout=limit)
            await workflow.execute_activity(bare_tool, step, start_to_close_timeout=limit)
        await workflow.execute_activity(bare_model, steps, start_to_close_timeout=limit)
        return steps


def _task(steps: int) -> AgentTask:
    act: dict[str, Any] = {
        "thought": "Next.",
        "action": "mark",
        "action_input": {"line": "1", "text": RESULT},
    }
    last: dict[str, Any] = {"thought": "FINAL ANSWER: done"}
    script = tuple(ScriptedReply(reply=reply) for reply in [*[act] * (steps - 1), last])
    return AgentTask(
        goal="measure",
        tools=("mark",),
        options={"max_steps": steps + 1},
        limits=Limits(model_calls=steps + 1),
        models={"default": ModelSpec(provider="scripted", name="script", script=script)},
    )


async def _measure(start: Callable[[], Awaitable[Any]], steps: int) -> tuple[float, float]:
    """Milliseconds and history bytes per step of one run."""
    began = time.perf_counter()
    handle = await start()
    await handle.result()
    seconds = time.perf_counter() - began
    history = await handle.fetch_history()
    size = sum(event.ByteSize() for event in history.events)
    return seconds * 1000 / steps, size / steps


async def _compare(client: Client, steps: int, rounds: int) -> None:
    agent: list[tuple[float, float]] = []
    bare: list[tuple[float, float]] = []

    def run_agent() -> Awaitable[Any]:
        name = f"agent-{uuid.uuid4().hex}"
        return client.start_workflow("AgentWorkflow", _task(steps), id=name, task_queue=TASK_QUEUE)

    def run_bare() -> Awaitable[Any]:
        return client.start_workflow(BareLoop.run, steps, id=f"bare-{uuid.uuid4().hex}", task_queue=QUEUE)

    await _measure(run_agent, steps)
    for _ in range(rounds):  # interleaved: both see the same noise
        bare.append(await _measure(run_bare, steps))
        agent.append(await _measure(run_agent, steps))
    for index, unit in enumerate(("ms", "bytes of history")):
        ours, floor = (statistics.median(one[index] for one in kind) for kind in (agent, bare))
        line = f"agent {ours:8.1f}   bare {floor:8.1f}   ratio {ours / floor:.2f}"
        print(f"{steps:4} steps: {unit} per step: {line}")


async def main(steps: list[int], rounds: int) -> None:
    """Compare for each number of steps."""
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    home = Path(tempfile.mkdtemp())
    settings = Settings(data_dir=home / ".ratchet", files_root=home, modules=(str(TOOLS),))
    async with (
        real_server(settings) as client,
        build_worker(client, settings),
        Worker(client, task_queue=QUEUE, workflows=[BareLoop], activities=[bare_model, bare_tool]),
    ):
        for count in steps:
            await _compare(client, count, rounds)


if __name__ == "__main__":
    counts = [int(word) for word in sys.argv[1].split(",")] if len(sys.argv) > 1 else [10, 50, 200]
    asyncio.run(main(counts, int(sys.argv[2]) if len(sys.argv) > 2 else 3))
