"""What goes wrong in chaos: a method for each fault, and how often each comes."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from temporalio.service import RPCError, RPCStatusCode

from tests.chaos.actors import SOON, People, Runs, eventually
from tests.chaos.processes import FAKETIME, Disk, Server, WorkerPool
from tests.link import Link
from tests.server.trials import Run, boundaries, reset
from workflows.api import RunResult

__all__ = ["FAULTS", "Faults"]

FAULTS = {
    "kill a worker": 30,
    "end a worker": 5,
    "kill all workers": 5,
    "stop a worker": 10,
    "begin an older worker": 5,
    "kill the server": 5,
    "cut the network": 8,
    "swallow what is sent": 8,
    "slow down the network": 4,
    "move a clock": 8,
    "delete the cache": 8,
    "lock a store": 8,
    "lock the server's store": 3,
    "slow down a store": 5,
    "fill the workers' disk": 5,
    "fill the disk": 5,
    "reset a run": 14,
    "cancel a run": 6,
    "terminate a run": 3,
    "pause a run": 8,
}
"""Kinds and their weights."""
STOPPED_SECONDS = 5.0
"""A heartbeat may be 3 seconds late."""
FULL_SECONDS = 3.0
LOCKED_SECONDS = (2.0, 34.0)
"""A store's writers wait for 30 seconds."""
NETWORK_SECONDS = (3.0, 12.0)
CLOCK_SECONDS = (30, 2 * 86_400)
"""How far a clock jumps, to both sides."""
STORES = ("archive.db", "calls.db", "cache.db")


@dataclass
class Faults:
    """What goes wrong; `done` counts it."""

    disk: Disk
    server: Server
    links: list[Link]
    workers: WorkerPool
    runs: Runs
    people: People
    done: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, str] = field(default_factory=dict)
    """Kinds that this machine cannot have -> why."""
    ends: set[asyncio.Task[None]] = field(default_factory=set)
    """Of faults that last."""

    def __post_init__(self) -> None:
        if FAKETIME is None:
            self.skipped["move a clock"] = "libfaketime is missing; on Debian: apt install faketime"
        if not self.disk.is_mounted:
            self.skipped["fill the disk"] = "a file system of its own cannot be mounted here"
        if self.workers.older is None:
            self.skipped["begin an older worker"] = "there is no such revision of the source"

    async def make(self, faults: tuple[tuple[str, float], ...], seed: str) -> None:
        """All of the plan, one after the other; what died comes back before the next one."""
        chance = Random(f"{seed} which")
        for kind, pause in faults:
            if kind not in self.skipped:
                name = kind.replace("'", "").replace(" ", "_")
                await getattr(self, name)(chance)
                self.done[kind] += 1
                await asyncio.sleep(pause)
                await self.restore()
        await asyncio.gather(*self.ends)

    async def restore(self) -> None:
        """Start what is gone."""
        if self.server.has_ended:
            await self.server.start()
        await self.workers.start()

    def _last(self, doing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(doing)
        self.ends.add(task)
        task.add_done_callback(self.ends.discard)

    def _until(self, seconds: float, end: Callable[[], object]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            end()

        self._last(wait())

    def _one(self, chance: Random) -> int:
        return chance.randrange(len(self.links))

    # -- processes --------------------

    async def kill_a_worker(self, chance: Random) -> None:
        self.workers.send(signal.SIGKILL, self._one(chance))

    async def end_a_worker(self, chance: Random) -> None:
        self.workers.send(signal.SIGTERM, self._one(chance))

    async def kill_all_workers(self, chance: Random) -> None:
        self.workers.send(signal.SIGKILL, *range(len(self.links)))

    async def stop_a_worker(self, chance: Random) -> None:
        """For longer than its heartbeat."""
        process = self.workers.processes[number := self._one(chance)]
        self.workers.send(signal.SIGSTOP, number)

        def go_on() -> None:
            if process is not None and process.returncode is None:
                process.send_signal(signal.SIGCONT)

        self._until(STOPPED_SECONDS + chance.random(), go_on)

    async def begin_an_older_worker(self, chance: Random) -> None:
        number = self._one(chance)
        self.workers.next_older.add(number)
        self.workers.send(signal.SIGKILL, number)

    async def kill_the_server(self, chance: Random) -> None:
        self.server.kill()
        await asyncio.sleep(2 * chance.random())
        await self.server.start()

    # -- network and clocks --------------------

    async def cut_the_network(self, chance: Random) -> None:
        self.links[self._one(chance)].cut()

    async def swallow_what_is_sent(self, chance: Random) -> None:
        link = self.links[self._one(chance)]
        link.passes.clear()
        self._until(chance.uniform(*NETWORK_SECONDS), link.passes.set)

    async def slow_down_the_network(self, chance: Random) -> None:
        link = self.links[self._one(chance)]
        link.seconds = chance.uniform(0.1, 0.5)

        def fast() -> None:
            link.seconds = 0

        self._until(chance.uniform(*NETWORK_SECONDS), fast)

    async def move_a_clock(self, chance: Random) -> None:
        clock, seconds = self.workers.clock(self._one(chance)), chance.randint(*CLOCK_SECONDS)
        clock.write_text(f"{chance.choice('+-')}{seconds}")
        self._until(chance.uniform(*NETWORK_SECONDS), lambda: clock.write_text("+0"))

    # -- stores --------------------

    async def delete_the_cache(self, chance: Random) -> None:
        for file in (self.disk.settings.data_dir).glob("cache.db*"):
            file.unlink(missing_ok=True)

    async def lock_a_store(self, chance: Random) -> None:
        file = self.disk.settings.data_dir / chance.choice(STORES)
        self._last(asyncio.to_thread(_lock, file, chance.uniform(*LOCKED_SECONDS)))

    async def lock_the_servers_store(self, chance: Random) -> None:
        self._last(asyncio.to_thread(_lock, self.server.database, chance.uniform(*NETWORK_SECONDS)))

    async def slow_down_a_store(self, chance: Random) -> None:
        """It is locked most of the time."""
        file = self.disk.settings.data_dir / chance.choice(STORES)

        def lock_often() -> None:
            for _ in range(10):
                _lock(file, 0.8)
                time.sleep(0.1)

        self._last(asyncio.to_thread(lock_often))

    async def fill_the_workers_disk(self, chance: Random) -> None:
        """No worker can write a byte into any file."""
        which = range(len(self.links))
        self.workers.may_write(False, *which)
        self._until(FULL_SECONDS, lambda: self.workers.may_write(True, *which))

    async def fill_the_disk(self, chance: Random) -> None:
        """Neither can the server."""

        def free() -> None:
            self.disk.empty()
            self.workers.note_full_disk(False)

        self.disk.fill()
        self.workers.note_full_disk(True)
        self._until(FULL_SECONDS, free)

    # -- what people and operators do to runs --------------------

    async def _open_run(self, chance: Random) -> str:
        """One that nobody has reset or stopped."""

        async def one() -> str:
            names = sorted(self.runs.open - self.runs.resets.keys() - self.runs.stopped.keys())
            if not names:
                raise TimeoutError("there is no such run yet")
            return chance.choice(names)

        return str(await eventually(one))

    async def cancel_a_run(self, chance: Random) -> None:
        await self._stop(chance, "cancelled", lambda run: run.cancel(rpc_timeout=SOON))

    async def terminate_a_run(self, chance: Random) -> None:
        await self._stop(chance, "terminated", lambda run: run.terminate("chaos", rpc_timeout=SOON))

    async def _stop(self, chance: Random, how: str, stop: Callable[[Run], Coroutine[Any, Any, None]]) -> None:
        name = await self._open_run(chance)
        self.runs.stopped[name] = how

        async def once() -> None:
            try:
                await stop(self.runs.handle(name))
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:  # it is over
                    raise

        await eventually(once)

    async def pause_a_run(self, chance: Random) -> None:
        await self.people.pause(await self._open_run(chance), at_once=chance.random() < 0.5)

    async def reset_a_run(self, chance: Random) -> None:
        """To any event of its newest execution, as Temporal's UI does; also one that has ended. A rollback
        is a command that Temporal hands on at another moment, so that such runs may come out otherwise; so
        is a cancellation."""
        names = [
            name
            for name in self.runs.begun
            if not name.startswith("rolled") and name not in self.runs.stopped
        ]

        async def one() -> None:
            name = chance.choice(names[-2 * self.runs.at_a_time :])
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


def _lock(file: Path, seconds: float) -> None:
    """Nobody can write into this database meanwhile."""
    with suppress(sqlite3.Error):
        if file.exists():
            with closing(sqlite3.connect(file, timeout=5, isolation_level=None)) as locked:
                locked.execute("BEGIN IMMEDIATE")
                time.sleep(seconds)
                locked.rollback()
