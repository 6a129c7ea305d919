"""The least that a durable agent costs on Temporal: loops with two activities a step that carry nothing."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity, workflow

__all__ = ["QUEUE", "BareLoop", "BareWait", "bare_model", "bare_tool"]

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
