"""Chaos: nothing twice, nothing lost, whatever dies. `python -m tests.chaos.harness --seed 7`

A real server with its database in a file, worker processes, people who decide, and a world outside that
writes down what was really done. A plan that follows from the seed says which runs begin and what goes
wrong; the judge compares in the end what was done with what was to be done. See docs/operations.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from activities.settings import Settings
from client.connection import open_client
from client.embedded import DYNAMIC_CONFIG, temporal_binary
from client.namespace import prepare
from tests.chaos import tools
from tests.chaos.runs import KINDS, answer_of, lines_of, names_in, task_of
from tests.chaos.world import World, place
from tests.server.conftest import NESTER, Workers, worker_processes
from tests.server.trials import Run, boundaries, reset
from workflows.api import ATTRIBUTES, TASK_QUEUE, WORKFLOW_TYPE, PageQuery, RunResult, RunStatus
from workflows.people import Request, RequestsPage

# -- the plan: what follows from the seed --------------------

FAULTS = {
    "kill a worker": 40,
    "kill all workers": 5,
    "stop a worker for longer than its heartbeat": 12,
    "kill the server": 5,
    "delete the cache": 14,
    "fill the disk": 8,
    "reset a run": 16,
}
"""Kinds and their weights."""
AT_A_TIME, WORKERS = 10, 3
MODEL_FAULTS, ODD_MESSAGES = 0.15, 0.6
"""Part of the model's replies that are faults, and of people's messages that come twice, late or both."""
STOPPED_SECONDS, FULL_SECONDS = 5.0, 3.0
"""A heartbeat may be 3 seconds late."""
LOST_SECONDS = 15
"""A run that asks for so long after it has taken the answer has lost it."""
ODD = ("twice", "twice and by signal", "again later", "contradicted later")
"""How a message may come."""


@dataclass(frozen=True)
class Plan:
    """Faults in their order, each with the seconds until the next one; and runs in theirs."""

    seed: str
    faults: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, seed: str, count: int, pause: float) -> Plan:
        """Each seed has one."""
        chance = Random(seed)
        kinds = chance.choices(list(FAULTS), list(FAULTS.values()), k=count)
        return cls(seed, tuple((kind, chance.uniform(0.5, 1.5) * pause) for kind in kinds))

    def runs(self) -> Iterator[str]:
        """Names of runs without end; each kind once in each round."""
        chance, number = Random(f"{self.seed} runs"), 0
        while True:
            for kind in chance.sample(KINDS, len(KINDS)):
                yield f"{kind}-{number}"
                number += 1


# -- actors: server, workers, runs, people --------------------

AWAY = (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError, TimeoutError, OSError)
"""What a client meets while the server is away."""
SOON = timedelta(seconds=10)
ENDED = (WorkflowExecutionStatus.COMPLETED, WorkflowExecutionStatus.FAILED)


class Server:
    """A server process with its database in a file."""

    def __init__(self, home: Path) -> None:
        self.home = home
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it and wait until it answers."""
        command = [temporal_binary(), "server", "start-dev", "--ip", "127.0.0.1", "--port", str(self.port)]
        command += ["--headless", "--log-level", "error", "--db-filename", str(self.home / "temporal.db")]
        command += ["--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=normal"]
        for value in (*DYNAMIC_CONFIG, "limit.historyCount.suggestContinueAsNew=60"):
            command += ["--dynamic-config-value", value]
        for name, kind in ATTRIBUTES.items():
            command += ["--search-attribute", f"{name}={kind}"]
        with (self.home / "server.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        await eventually(lambda: prepare(self.address), seconds=120)

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.kill()

    async def end(self) -> None:
        """kill -9, and wait until it is gone: its pipes close in the loop that opened them."""
        self.kill()
        if self.process is not None:
            await self.process.wait()


async def eventually(call: Callable[[], Awaitable[Any]], seconds: float = 60) -> Any:
    """Try until it works."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                return await call()
            except (RuntimeError, *AWAY):
                await asyncio.sleep(0.2)


class WorkerPool:
    """Worker processes; one that is gone is replaced, as any platform does."""

    def __init__(self, processes: Workers) -> None:
        self.processes, self.pids = processes, [0] * WORKERS
        self.ended_alone = 0

    async def start(self) -> None:
        """Start those that are missing."""
        for number, pid in enumerate(self.pids):
            if pid and not _lives(pid):
                self.ended_alone += 1
            if not (pid and _lives(pid)):
                self.pids[number] = await self.processes.start()

    def send(self, number: signal.Signals, *which: int) -> int:
        """A signal to those processes; the id of the last."""
        for one in which:
            pid = self.pids[one]
            _send(pid, number)
            if number is signal.SIGKILL:
                self.pids[one] = 0
        return pid


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@dataclass
class Runs:
    """The runs that have begun."""

    client: Client
    names: Iterator[str]
    begun: list[str] = field(default_factory=list)
    open: set[str] = field(default_factory=set)
    resets: Counter[str] = field(default_factory=Counter)
    rolled_back: set[str] = field(default_factory=set)

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
                if status in ENDED:
                    self.open.discard(name)

    async def keep(self) -> None:
        """Keep so many at work, for ever."""
        while True:
            while len(self.open) < AT_A_TIME:
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
    lost: list[str] = field(default_factory=list)
    retried: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """Place of a call -> when the requests were made that led to its being made again."""
    later: set[asyncio.Task[None]] = field(default_factory=set)

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
            await asyncio.sleep(0.3)

    async def look_after(self, run: str) -> None:
        """Decide what it asks."""
        with suppress(*AWAY, WorkflowQueryFailedError):
            asked = time.monotonic()
            page: RequestsPage = await self.client.get_workflow_handle(run).query(
                "requests", PageQuery(full=True), result_type=RequestsPage, rpc_timeout=SOON
            )
            for request in page.open:
                await self.decide(run, request, asked)

    async def decide(self, run: str, request: Request, asked: float) -> None:
        """Once for each request; a run that asks for it again has lost the decision."""
        root = run.partition("/")[0]
        again = self.runs.resets[root]  # inner runs of a run that was reset ask again
        what = (run, request.digest) if request.kind == "approval" else (run, request.id, request.created)
        key = (*what, again if run != root else 0)
        if key in self.heard:
            if asked - self.heard[key] > LOST_SECONDS:
                self.lost.append(f"{run} {request.id} {request.kind}")
                self.heard.pop(key)
            return
        verb, more = await self.verdict(run, request)
        decision = {"request": request.id, "digest": request.digest, "decision": verb, "by": "ann", **more}
        chance = Random(f"{self.seed} {run} {request.id} {request.digest}")
        odd = chance.choice(ODD) if chance.random() < self.odd_part else ""
        if await self.send(run, "decide", {**decision, "id": uuid.uuid4().hex}, odd, chance.random() < 0.3):
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
                if await self.send(name, "command", message, "twice", False):
                    self.runs.rolled_back.add(name)


# -- faults --------------------


@dataclass
class Faults:
    """What goes wrong; `done` counts it."""

    seed: str
    home: Path
    server: Server
    workers: WorkerPool
    runs: Runs
    done: Counter[str] = field(default_factory=Counter)
    ends: set[asyncio.Task[None]] = field(default_factory=set)
    """Of faults that last."""

    async def make(self, plan: Plan) -> None:
        """All of the plan, one after the other; workers that died come back before the next one."""
        chance = Random(f"{plan.seed} which")
        for kind, pause in plan.faults:
            await getattr(self, kind.replace(" ", "_").split("_for_")[0])(chance)
            self.done[kind] += 1
            await asyncio.sleep(pause)
            await self.workers.start()
        await asyncio.gather(*self.ends)

    def _until(self, seconds: float, end: Callable[[], None]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            end()

        task = asyncio.create_task(wait())
        self.ends.add(task)
        task.add_done_callback(self.ends.discard)

    async def kill_a_worker(self, chance: Random) -> None:
        self.workers.send(signal.SIGKILL, chance.randrange(WORKERS))

    async def kill_all_workers(self, chance: Random) -> None:
        self.workers.send(signal.SIGKILL, *range(WORKERS))

    async def stop_a_worker(self, chance: Random) -> None:
        pid = self.workers.send(signal.SIGSTOP, chance.randrange(WORKERS))
        self._until(STOPPED_SECONDS + chance.random(), lambda: _send(pid, signal.SIGCONT))

    async def kill_the_server(self, chance: Random) -> None:
        self.server.kill()
        await asyncio.sleep(2 * chance.random())
        await self.server.start()

    async def delete_the_cache(self, chance: Random) -> None:
        for file in (self.home / ".ratchet").glob("cache.db*"):
            file.unlink(missing_ok=True)

    async def fill_the_disk(self, chance: Random) -> None:
        """No worker can write a byte into any file."""
        pids = [pid for pid in self.workers.pids if _may_write(pid, False)]
        self._until(FULL_SECONDS, lambda: _write_again(pids))

    async def reset_a_run(self, chance: Random) -> None:
        """To any event of its newest execution, as Temporal's UI does; also one that has ended. A rollback
        is a command that Temporal hands on at another moment, so that such runs may come out otherwise."""
        names = [name for name in self.runs.begun if not name.startswith("rolled")]

        async def one() -> None:
            name = chance.choice(names[-2 * AT_A_TIME :])
            described = await self.runs.handle(name).describe()
            newest = self.runs.client.get_workflow_handle(
                name, run_id=described.run_id, result_type=RunResult
            )
            if not (events := await boundaries(newest)):
                raise TimeoutError(f"{name} has done nothing yet")
            await reset(newest, self.runs.client, chance.choice(events))
            self.runs.resets[name] += 1
            self.runs.open.add(name)

        await eventually(one)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        if pid:
            os.kill(pid, number)


def _may_write(pid: int, can: bool) -> bool:
    with suppress(ProcessLookupError):
        if pid:
            _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most if can else 0, most))
            return True
    return False


def _write_again(pids: list[int]) -> None:
    for pid in pids:
        _may_write(pid, True)


# -- the judge --------------------


@dataclass
class Verdict:
    """What must not be; all lists are to be empty."""

    repeated_unsafe: list[str] = field(default_factory=list)
    repeated_keyed: list[str] = field(default_factory=list)
    lost_effects: list[str] = field(default_factory=list)
    lost_decisions: list[str] = field(default_factory=list)
    wrong_answers: list[str] = field(default_factory=list)
    stuck_runs: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Nothing of all that."""
        return not any(vars(self).values())


async def judge(runs: Runs, people: People, world: World) -> Verdict:
    """Compare what was done with what was to be done."""
    found = Verdict(lost_decisions=list(people.lost))
    results = {name: result for name in runs.begun if (result := await judge_run(runs, name, found))}
    judge_effects(results, world, found)
    for (run, request), verb in people.decided.items():
        if run in results and not runs.resets[run]:
            outcome = {one.request: one.outcome for one in results[run].decisions}.get(request)
            if outcome != OUTCOMES[verb]:
                found.lost_decisions.append(f"{run} {request}: {verb} became {outcome}")
    return found


async def judge_run(runs: Runs, name: str, found: Verdict) -> RunResult | None:
    """Its result, if it has one."""
    if name in runs.open:
        found.stuck_runs.append(f"{name}: {await where_it_is(runs, name)}")
        return None
    try:
        result: RunResult = await runs.handle(name).result()
    except WorkflowFailureError as error:
        found.wrong_answers.append(f"{name} failed: {error.cause}")
        return None
    missing = [one for one in names_in(*_kind(name)) if answer_of(one) not in (result.answer or "")]
    if missing or not result.ok:
        found.wrong_answers.append(f"{name}: {result.exit_reason}: {result.answer or result.error}")
    if result.branch != (name in runs.rolled_back):
        found.lost_decisions.append(f"{name} was rolled back {result.branch} times")
    return result


OUTCOMES = {
    "approve": "approved", "retry": "retried", "answer": "answered", "resume": "resumed"
}  # fmt: skip


def judge_effects(results: dict[str, RunResult], world: World, found: Verdict) -> None:
    """Each line once in each branch of its run; and all of them."""
    times = Counter((one.tool, one.line, one.branch) for one in world.effects)
    for (tool, line, branch), count in times.items():
        if count > 1 and tool != "mark":
            repeated = found.repeated_keyed if tool == "pay" else found.repeated_unsafe
            repeated.append(f"{tool} {line} {count} times in branch {branch}")
    made = {(tool, line) for tool, line, _ in times}
    for name in results:
        for inner in names_in(*_kind(name)):
            wanted = {call for group in lines_of(inner) for call in group}
            found.lost_effects += [" ".join(call) for call in sorted(wanted - made)]


def _kind(name: str) -> tuple[str, str]:
    return name.partition("-")[0], name


async def where_it_is(runs: Runs, name: str) -> str:
    """For the one who has to find out why."""
    with suppress(*AWAY, WorkflowQueryFailedError):
        handle = runs.handle(name)
        pending = (await handle.describe()).raw_description.pending_activities
        calls = [f"{one.activity_id} attempt {one.attempt} {one.last_failure.message}" for one in pending]
        status: RunStatus = await handle.query("status", result_type=RunStatus, rpc_timeout=SOON)
        return f"{status.state} {status.doing} waits for {status.waiting or calls or 'nothing'}"
    return "it does not answer"


# -- the table --------------------


def table(faults: Counter[str], runs: Runs, verdict: Verdict, seconds: float) -> str:
    """What was tried, and what came of it."""
    kinds = Counter(name.partition("-")[0] for name in runs.begun)
    sections: dict[str, dict[str, int]] = {
        f"faults: {faults.total()} in {seconds:.0f} s": dict(sorted(faults.items())),
        f"runs: {len(runs.begun)}": dict(sorted(kinds.items())),
        "must be zero": {name.replace("_", " "): len(found) for name, found in vars(verdict).items()},
    }
    lines = []
    for title, rows in sections.items():
        lines += [title, *(f"  {name:<46} {count:>5}" for name, count in rows.items())]
    for name, found in vars(verdict).items():
        lines += [f"{name.replace('_', ' ')}: {one}" for one in found]
    return "\n".join(lines)


async def chaos(plan: Plan, home: Path, patience: float) -> tuple[Verdict, str]:
    """Carry out the plan, let all runs end, and judge. `patience`: seconds that they have to end."""
    began = time.monotonic()
    server, settings = Server(home), Settings(data_dir=home / ".ratchet", files_root=home)
    async with AsyncExitStack() as stack:
        world = stack.enter_context(World(plan.seed, home / "effects.txt", MODEL_FAULTS))
        stack.push_async_callback(server.end)
        await server.start()
        client = await open_client(settings, {"target_host": server.address})
        processes = await stack.enter_async_context(
            worker_processes(
                server.address, home, Path(tools.__file__), NESTER,
                OPENAI_BASE_URL=world.base_url, OPENAI_API_KEY="chaos",
            )
        )  # fmt: skip
        workers, runs = WorkerPool(processes), Runs(client, plan.runs())
        people = People(client, world, runs, plan.seed)
        await workers.start()
        faults = Faults(plan.seed, home, server, workers, runs)
        async with asyncio.TaskGroup() as actors:
            keeping = actors.create_task(runs.keep())
            working = actors.create_task(people.work())
            await eventually(_true_when(lambda: len(runs.begun) >= AT_A_TIME))
            await faults.make(plan)
            keeping.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    while runs.open:
                        await runs.look()
                        await workers.start()
                        await asyncio.sleep(0.5)
            working.cancel()
        verdict = await judge(runs, people, world)
        counted = faults.done + world.faults + people.odd
        if workers.ended_alone:
            verdict.stuck_runs.append(f"{workers.ended_alone} workers ended by themselves")
        return verdict, table(counted, runs, verdict, time.monotonic() - began)


def _true_when(check: Callable[[], bool]) -> Callable[[], Awaitable[None]]:
    async def call() -> None:
        if not check():
            raise TimeoutError

    return call


def main() -> int:
    """Exit code 1 unless all that must be zero is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", default=str(Random().randrange(10**6)))
    parser.add_argument("--faults", type=int, default=150, help="of processes; those of models come on top")
    parser.add_argument("--pause", type=float, default=2.0, help="mean seconds between them")
    parser.add_argument("--patience", type=float, default=180, help="seconds for the last runs to end")
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"seed {options.seed}; files in {home}", flush=True)
    plan = Plan.of(options.seed, options.faults, options.pause)
    verdict, text = asyncio.run(chaos(plan, home, options.patience))
    print(text)
    if not verdict.is_clean:
        print(f"again: make chaos SEED={options.seed} FAULTS={options.faults}; server and workers: {home}")
        return 1
    shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
