"""Workers of a product with a fault in it, which the judge of chaos must find:
`python -m tests.chaos.sabotage NAME`.

The product is whole; what it does is changed on its way by interceptors of Temporal's SDK.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Interceptor as ClientInterceptor
from temporalio.common import RetryPolicy
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
    HandleSignalInput,
    HandleUpdateInput,
    Interceptor,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)
from temporalio.workflow import ActivityHandle

from activities.logs import configure
from client.server.connection import open_client
from client.server.workerconfig import settings_from_environment
from tests.chaos.world import SLOW
from worker import build_worker

__all__ = ["SABOTAGES"]

ODDS = 4
"""One call or message in so many meets the fault."""
KEPT = 7
"""One record in so many is dropped."""
FREE, UNSAFE = {"tell"}, {"send", "move"}
"""Tools that do nothing outside, and that may be called once."""


def _is_hit(text: object) -> bool:
    """Follows from the text alone, so a replay does the same."""
    return hashlib.sha256(repr(text).encode()).digest()[0] % ODDS == 0


class Changed(ActivityInboundInterceptor):
    """Activities whose requests or answers are changed."""

    before: dict[str, Any]
    """By run: what it was given last."""

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        name, run = activity.info().activity_type, activity.info().workflow_id or ""
        return await self.change(input, name, run)

    async def change(self, input: ExecuteActivityInput, name: str, run: str) -> Any:
        """What the activity gives."""
        return await self.next.execute_activity(input)

    def __init__(self, next: ActivityInboundInterceptor) -> None:
        super().__init__(next)
        self.before = BEFORE


BEFORE: dict[str, Any] = {}
"""An interceptor is made for each call."""


class FirstAttempt(ActivityOutboundInterceptor):
    """What an activity learns of itself: that it was never tried before."""

    def info(self) -> activity.Info:
        return dataclasses.replace(super().info(), attempt=1)


class CalledAgain(Changed):
    """An unsafe call whose worker has died is made again. To have some, the worker dies in the first attempt
    of those that take a while."""

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        self.attempt = outbound.info().attempt
        super().init(FirstAttempt(outbound))

    async def change(self, input: ExecuteActivityInput, name: str, run: str) -> Any:
        if name != "call_tool" or input.args[0].tool not in UNSAFE:
            return await self.next.execute_activity(input)
        if self.attempt > 1:
            (request,) = input.args
            input.args = [request.model_copy(update={"key": f"{request.key}+9"})]
            return await self.next.execute_activity(input)
        dies = asyncio.get_running_loop().call_later(SLOW, os.kill, os.getpid(), signal.SIGKILL)
        try:
            return await self.next.execute_activity(input)
        finally:
            dies.cancel()


class StaleReply(Changed):
    """A model's reply is the one before, of the same run."""

    async def change(self, input: ExecuteActivityInput, name: str, run: str) -> Any:
        result = await self.next.execute_activity(input)
        if name == "ask_model":
            old, self.before[run] = self.before.get(run), result
            if old is not None and _is_hit((run, activity.info().activity_id.partition("@")[0])):
                calls = tuple(call.model_copy(update={"id": f"{call.id}-again"}) for call in old.tool_calls)
                return result.model_copy(update={"text": old.text, "tool_calls": calls})
        return result


class StaleResult(Changed):
    """A tool is not run; its result is that of the call before, of the same run."""

    async def change(self, input: ExecuteActivityInput, name: str, run: str) -> Any:
        if name != "call_tool" or input.args[0].tool in FREE:
            return await self.next.execute_activity(input)
        (request,) = input.args
        if (old := self.before.get(run)) is not None and _is_hit(request.key):
            return old.model_copy(update={"id": request.id, "tool": request.tool, "early": None})
        result = await self.next.execute_activity(input)
        if result.ok:
            self.before[run] = result
        return result


class DroppedRecords(Changed):
    """The archive is not given every record."""

    async def change(self, input: ExecuteActivityInput, name: str, run: str) -> Any:
        if name == "archive_log":
            (part,) = input.args
            kept = tuple(one for one in part.records if one["seq"] % KEPT != KEPT - 1)
            input.args = [part.model_copy(update={"records": kept})]
        return await self.next.execute_activity(input)


class Retrying(WorkflowOutboundInterceptor):
    """Every call of a tool is tried again when its worker dies."""

    def start_activity(self, input: StartActivityInput) -> ActivityHandle[Any]:
        if input.activity == "call_tool":
            input.retry_policy = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=10)
        return super().start_activity(input)


class Unguarded(WorkflowInboundInterceptor):
    """Runs in which unsafe calls are tried again."""

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(Retrying(outbound))


class Forgetful(WorkflowInboundInterceptor):
    """Runs that acknowledge a decision, and forget it."""

    async def handle_signal(self, input: HandleSignalInput) -> None:
        if input.signal != "decide" or not _is_hit(_said(input.args)):
            await super().handle_signal(input)

    async def handle_update_handler(self, input: HandleUpdateInput) -> Any:
        if input.update == "decide" and _is_hit(_said(input.args)):
            return {}
        return await super().handle_update_handler(input)


def _said(args: Any) -> list[Any]:
    """A decision's own id, whatever the converter made of it."""
    return [one.get("id") if isinstance(one, dict) else one.payload.data for one in args]


class Sabotage(ClientInterceptor, Interceptor):
    """One fault. A plugin lets a client hand on only what could intercept its own calls, too."""

    def __init__(
        self,
        calls: Callable[[ActivityInboundInterceptor], ActivityInboundInterceptor] | None = None,
        runs: type[WorkflowInboundInterceptor] | None = None,
    ) -> None:
        self.calls, self.runs = calls, runs

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See `Interceptor`."""
        return self.calls(next) if self.calls else next

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor] | None:
        """See `Interceptor`."""
        return self.runs


SABOTAGES = {
    "no guard of unsafe calls": Sabotage(CalledAgain, Unguarded),
    "forgotten decisions": Sabotage(runs=Forgetful),
    "stale replies": Sabotage(StaleReply),
    "stale results": Sabotage(StaleResult),
    "dropped records": Sabotage(DroppedRecords),
}


async def main(name: str) -> None:
    """Work until killed."""
    settings = settings_from_environment()
    configure(settings)
    config = {"target_host": os.environ["TEMPORAL_ADDRESS"], "interceptors": [SABOTAGES[name]]}
    async with build_worker(await open_client(settings, config), settings):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
