"""Who takes part in chaos: the runs, and the people who decide what they ask and command them."""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from tests.chaos.runs import task_of
from tests.chaos.world import World, place
from tests.server.trials import Run
from workflows.api import TASK_QUEUE, WORKFLOW_TYPE, PageQuery, RunResult, RunStatus
from workflows.people import Request, RequestsPage

__all__ = ["AWAY", "SOON", "People", "Runs", "eventually"]

ODD_MESSAGES = 0.6
"""Part of people's messages that come twice, late or both."""
ODD = ("twice", "twice and by signal", "again later", "contradicted later")
"""How a message may come."""
LOST_SECONDS = 15
"""A run that asks for so long after it has taken the answer has lost it."""
PAUSED_SECONDS = 2.0
"""How long a run stays paused."""
AWAY = (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError, TimeoutError, OSError)
"""What a client meets while the server is away."""
SOON = timedelta(seconds=10)
RUNNING = (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW)


async def eventually(call: Callable[[], Awaitable[Any]], seconds: float = 60) -> Any:
    """Try until it works."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                return await call()
            except (RuntimeError, *AWAY):
                await asyncio.sleep(0.2)


@dataclass
class Runs:
    """The runs that have begun."""

    client: Client
    names: Iterator[str]
    at_a_time: int = 10
    begun: list[str] = field(default_factory=list)
    open: set[str] = field(default_factory=set)
    resets: Counter[str] = field(default_factory=Counter)
    stopped: dict[str, str] = field(default_factory=dict)
    """Run -> `cancelled` or `terminated`: somebody wanted it to end so."""
    sent_back: set[str] = field(default_factory=set)
    """Runs that were told to roll back; whether they took it may be lost with the answer."""
    rolled_back: set[str] = field(default_factory=set)
    """Those that have said that they did."""

    def handle(self, name: str) -> Run:
        """Of the newest execution."""
        return self.client.get_workflow_handle(name, result_type=RunResult)

    async def begin(self, name: str) -> None:
        """Start it, once."""

        async def start() -> None:
            with suppress(WorkflowAlreadyStartedError):
                await self.client.start_workflow(
                    WORKFLOW_TYPE, task_of(name.partition("-")[0], name), id=name, task_queue=TASK_QUEUE,
                    id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                )  # fmt: skip

        await eventually(start)
        self.begun.append(name)
        self.open.add(name)

    async def look(self) -> None:
        """See which have ended."""
        for name in sorted(self.open):
            with suppress(*AWAY):
                status = (await self.handle(name).describe()).status
                if status not in RUNNING:
                    self.open.discard(name)

    async def keep(self) -> None:
        """Keep so many at work, for ever."""
        while True:
            while len(self.open) < self.at_a_time:
                await self.begin(next(self.names))
            await self.look()
            await asyncio.sleep(0.5)


@dataclass
class People:
    """They decide what runs ask, and send some of their messages twice, late, or by both ways."""

    client: Client
    world: World
    runs: Runs
    seed: str
    odd_part: float = ODD_MESSAGES
    odd: Counter[str] = field(default_factory=Counter)
    heard: dict[tuple[Any, ...], float] = field(default_factory=dict)
    """What was decided -> when the run has taken it."""
    decided: dict[tuple[str, str], str] = field(default_factory=dict)
    """Run and request -> how it was decided."""
    tries: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Run and request -> how often it was decided."""
    lost: list[str] = field(default_factory=list)
    retried: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """Place of a call -> when the requests were made that led to its being made again."""
    later: set[asyncio.Task[None]] = field(default_factory=set)
    paused: dict[str, float] = field(default_factory=dict)
    """Run -> when it goes on."""
    commanded: list[tuple[str, str]] = field(default_factory=list)
    """Run and event that its log must have: commands that it has said were obeyed."""

    async def work(self) -> None:
        """Look after all runs, for ever."""
        while True:
            with suppress(*AWAY, WorkflowQueryFailedError):
                query = "AgentWaiting IS NOT NULL AND ExecutionStatus='Running'"
                waiting = [one.id async for one in self.client.list_workflows(query)]
                await asyncio.gather(*map(self.look_after, waiting))
            for name in [
                n for n in self.runs.open if n.startswith("rolled") and n not in self.runs.rolled_back
            ]:
                await self.roll_back(name)
            for name in [name for name, until in self.paused.items() if until <= time.monotonic()]:
                await self.resume(name)
            await asyncio.sleep(0.3)

    async def look_after(self, run: str) -> None:
        """Decide what it asks."""
        with suppress(*AWAY, WorkflowQueryFailedError):
            asked = time.monotonic()
            for request in await self.open_requests(run):
                await self.decide(run, request, asked)

    async def open_requests(self, run: str) -> Sequence[Request]:
        """What it asks now."""
        page: RequestsPage = await self.client.get_workflow_handle(run).query(
            "requests", PageQuery(full=True), result_type=RequestsPage, rpc_timeout=SOON
        )
        return page.open

    async def decide(self, run: str, request: Request, asked: float) -> None:
        """Once for each request; a run that goes on asking for it has lost the decision."""
        root = run.partition("/")[0]
        again = self.runs.resets[root]  # inner runs of a run that was reset ask again
        what = (run, request.digest) if request.kind == "approval" else (run, request.id, request.created)
        key = (*what, again if run != root else 0)
        if key in self.heard:
            if asked - self.heard[key] > LOST_SECONDS:
                await asyncio.sleep(1)  # one answer may be from before; a run that has lost it asks on
                if request in await self.open_requests(run):
                    self.lost.append(f"{run} {request.id} {request.kind}")
                    self.heard.pop(key)
                else:
                    self.odd["query: shown once more as open"] += 1
            return
        verb, more = await self.verdict(run, request)
        decision = {"request": request.id, "digest": request.digest, "decision": verb, "by": "ann", **more}
        chance = Random(f"{self.seed} {run} {request.id} {request.digest}")
        odd = chance.choice(ODD) if chance.random() < self.odd_part else ""
        self.tries[run, request.id] += 1
        name = f"{self.seed} {run} {request.id} {self.tries[run, request.id]}"
        decision["id"] = hashlib.sha256(name.encode()).hexdigest()[:32]
        if await self.send(run, "decide", decision, odd, chance.random() < 0.3):
            self.heard[key] = time.monotonic()
            self.decided[run, request.id] = verb

    async def verdict(self, run: str, request: Request) -> tuple[str, dict[str, Any]]:
        """What a person decides."""
        if request.kind == "approval":
            return "approve", {}
        if request.kind == "outcome":
            line, at = str((request.arguments or {})["line"]), place(run, request.activity_id)
            # after a rollback the same line is to be done again: only this call counts
            known = "" if run.startswith("rolled") else line
            retried = self.retried.setdefault(at, [])
            again = retried.index(request.created) if request.created in retried else len(retried)
            if self.world.made_or_barred(at, again, known):
                return "answer", {"text": f"done {line}"}
            retried[again:] = [request.created]
            return "retry", {}
        for verb in ("retry", "resume", "answer"):
            if verb in request.options:
                return verb, {"text": "go on"}
        raise AssertionError(f"nobody expected {request.kind} of {run}: {request.text}")

    async def send(self, run: str, name: str, message: dict[str, Any], odd: str, by_signal: bool) -> bool:
        """Send a message in this manner; True: the run, or the server, has taken it."""
        handle = self.client.get_workflow_handle(run)
        if odd:
            self.odd[f"message: {odd}"] += 1
        ways = [by_signal, *([by_signal] if "twice" in odd else []), *([True] if "signal" in odd else [])]
        sent = await asyncio.gather(*(self.deliver(handle, name, message, way) for way in ways))
        if "later" in odd:
            other = {**message, "decision": "reject", "id": uuid.uuid4().hex} if "contra" in odd else message
            task = asyncio.create_task(self.deliver_later(handle, name, other))
            self.later.add(task)
            task.add_done_callback(self.later.discard)
        return any(sent)

    async def deliver(self, handle: Any, name: str, message: dict[str, Any], by_signal: bool) -> bool:
        """One message."""
        try:
            if by_signal:
                await handle.signal(name, message, rpc_timeout=SOON)
            else:
                await handle.execute_update(name, message, rpc_timeout=SOON)
        except (WorkflowUpdateFailedError, *AWAY):
            return False
        return True

    async def deliver_later(self, handle: Any, name: str, message: dict[str, Any]) -> None:
        await asyncio.sleep(Random(str(message)).uniform(1, 6))
        await self.deliver(handle, name, message, False)

    async def roll_back(self, name: str) -> None:
        """Once it has come far enough; the command comes twice."""
        with suppress(*AWAY, WorkflowQueryFailedError):
            status: RunStatus = await self.runs.handle(name).query(
                "status", result_type=RunStatus, rpc_timeout=SOON
            )
            if status.step >= 4 and status.finished is None:
                message = {"command": "rollback", "step": 3, "id": "back", "by": "ann"}
                self.runs.sent_back.add(name)
                if await self.send(name, "command", message, "twice", False):
                    self.runs.rolled_back.add(name)

    async def pause(self, name: str, *, at_once: bool) -> None:
        """Tell a run to pause, and its inner runs; it goes on after a while."""
        self.paused[name] = time.monotonic() + PAUSED_SECONDS
        if await self._obeyed(name, {"command": "pause", "at_once": at_once}):
            self.commanded.append((name, "Paused"))

    async def resume(self, name: str) -> None:
        """Again and again until the run is over: a pause that nobody answered may come late."""
        if name not in self.runs.open:
            del self.paused[name]
            return
        obeyed = await self._obeyed(name, {"command": "resume"})
        if obeyed is not None:
            self.paused[name] = time.monotonic() + LOST_SECONDS
        if obeyed:
            self.commanded.append((name, "Resumed"))

    async def _obeyed(self, name: str, command: dict[str, Any]) -> bool | None:
        """False: it was refused; None: nobody knows."""
        message = {**command, "by": "ann"}
        try:
            await self.runs.handle(name).execute_update("command", message, rpc_timeout=SOON)
        except WorkflowUpdateFailedError:
            return False
        except RPCError as error:
            return False if error.status is RPCStatusCode.NOT_FOUND else None  # it is over
        except AWAY:
            return None
        return True
