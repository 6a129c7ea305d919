"""The least that a durable agent costs on Temporal: loops with two activities a step that carry nothing.

`TEMPORAL_ADDRESS=HOST:PORT python -m benchmarks.bare` is a worker for them.
"""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

__all__ = ["QUEUE", "BareLoop", "BareWait", "bare_worker"]

QUEUE = "bare"
LIMIT = timedelta(seconds=30)


@activity.defn
async def bare_model(step: int) -> str:
    """A model's reply of the size of the agent's."""
    return f'{{"id": "c{step}", "name": "text", "arguments": "{{\\"size\\": 1024}}"}}'


@activity.defn
async def bare_tool(size: int) -> str:
    """A tool's result."""
    return "x" * size


@workflow.defn(sandboxed=False)
class BareLoop:
    """Ask and call, step by step, then ask once more."""

    @workflow.run
    async def run(self, steps: int, size: int) -> int:
        """Loop; `size` of a result in characters."""
        for step in range(steps):
            await workflow.execute_activity(bare_model, step, start_to_close_timeout=LIMIT)
            await workflow.execute_activity(bare_tool, size, start_to_close_timeout=LIMIT)
        await workflow.execute_activity(bare_model, steps, start_to_close_timeout=LIMIT)
        return steps


@workflow.defn(sandboxed=False)
class BareWait:
    """Ask, wait for a person, call."""

    def __init__(self) -> None:
        self.decided = False

    @workflow.run
    async def run(self) -> None:
        """Wait."""
        await workflow.execute_activity(bare_model, 0, start_to_close_timeout=LIMIT)
        await workflow.wait_condition(lambda: self.decided)
        await workflow.execute_activity(bare_tool, 1, start_to_close_timeout=LIMIT)

    @workflow.signal
    def decide(self) -> None:
        """A person has decided."""
        self.decided = True


def bare_worker(client: Client) -> Worker:
    """A worker of these loops. Use with `async with`."""
    return Worker(
        client, task_queue=QUEUE, workflows=[BareLoop, BareWait], activities=[bare_model, bare_tool]
    )


async def main() -> None:
    """Work until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with bare_worker(await Client.connect(os.environ["TEMPORAL_ADDRESS"])):
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main())
    os._exit(0)  # threads of the SDK can abort the interpreter's own exit
