"""Chaos: nothing twice, nothing lost, whatever dies. `python -m tests.chaos.harness --seed 7`

A real server with its database in a file, worker processes, people who decide, and a world outside that
writes down what was really done. A plan that follows from the seed says which runs begin and what goes
wrong; the judge compares in the end what was done with what was to be done. See docs/failures.md.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from activities.store.archive import Archive
from client.server.connection import open_client
from tests.chaos.actors import People, Runs, eventually
from tests.chaos.faults import FAULTS, Faults
from tests.chaos.judge import Verdict, judge, until_archived
from tests.chaos.processes import Disk, Server, WorkerPool, older_source
from tests.chaos.runs import KINDS
from tests.chaos.sabotage import SABOTAGES
from tests.chaos.world import World
from tests.link import Link

MODEL_FAULTS = 0.15
"""Part of the model's replies that are faults."""


@dataclass(frozen=True)
class Plan:
    """Faults in their order, each with the seconds until the next one; and runs in theirs."""

    seed: str
    faults: tuple[tuple[str, float], ...]
    workers: int = 3
    at_a_time: int = 10
    """Runs."""

    @classmethod
    def of(cls, seed: str, count: int, pause: float, only: Sequence[str], **more: int) -> Plan:
        """Each seed has one; of these kinds only, if some are named."""
        chance = Random(seed)
        weights = {kind: weight for kind, weight in FAULTS.items() if not only or kind in only}
        kinds = chance.choices(list(weights), list(weights.values()), k=count)
        return cls(seed, tuple((kind, chance.uniform(0.5, 1.5) * pause) for kind in kinds), **more)

    def runs(self) -> Iterator[str]:
        """Names of runs without end; each kind once in each round."""
        chance, number = Random(f"{self.seed} runs"), 0
        while True:
            for kind in chance.sample(KINDS, len(KINDS)):
                yield f"{kind}-{number}"
                number += 1


def table(faults: Faults, others: Counter[str], verdict: Verdict, seconds: float) -> str:
    """What was tried, and what came of it."""
    kinds = Counter(name.partition("-")[0] for name in faults.runs.begun)
    sections: dict[str, dict[str, int]] = {
        f"faults: {faults.done.total()} in {seconds:.0f} s": dict(sorted(faults.done.items())),
        f"beside them: {others.total()}": dict(sorted(others.items())),
        f"runs: {len(faults.runs.begun)}": dict(sorted(kinds.items())),
        "must be zero": {name.replace("_", " "): len(found) for name, found in vars(verdict).items()},
    }
    lines = [f"left out: {kind} ({why})" for kind, why in faults.skipped.items()]
    for title, rows in sections.items():
        lines += [title, *(f"  {name:<46} {count:>5}" for name, count in rows.items())]
    for name, found in vars(verdict).items():
        lines += [f"{name.replace('_', ' ')}: {one}" for one in found]
    return "\n".join(lines)


@asynccontextmanager
async def everything(
    plan: Plan, home: Path, command: Sequence[str], older: Path | None
) -> AsyncIterator[tuple[Faults, World]]:
    """All that takes part, at work; in the end all of it is gone, and `home` has what was on the disk."""
    disk = Disk(home)
    server = Server(home, disk.path)
    async with AsyncExitStack() as stack:
        stack.callback(disk.close, home / "kept")
        world = stack.enter_context(
            World(plan.seed, home / "effects.txt", MODEL_FAULTS if plan.faults else 0)
        )
        stack.push_async_callback(server.end)
        await server.start()
        client = await open_client(disk.settings, {"target_host": server.address})
        links = [await stack.enter_async_context(Link(server.port)) for _ in range(plan.workers)]
        keys = {"OPENAI_BASE_URL": world.base_url, "OPENAI_API_KEY": "chaos"}
        workers = WorkerPool(home, disk.settings, links, keys, command, older=older)
        stack.push_async_callback(workers.end)
        await workers.start()
        runs = Runs(client, plan.runs(), plan.at_a_time)
        people = People(client, world, runs, plan.seed)
        yield Faults(disk, server, links, workers, runs, people), world


async def chaos(
    plan: Plan, home: Path, patience: float, command: Sequence[str], older: Path | None
) -> tuple[Verdict, str]:
    """Carry out the plan, let all runs end, and judge. `patience`: seconds that they have to end; `command`:
    what Python runs as a worker; `older`: the source of an older one."""
    began = time.monotonic()
    async with everything(plan, home, command, older) as (faults, world):
        runs, people = faults.runs, faults.people
        async with asyncio.TaskGroup() as actors:
            keeping = actors.create_task(runs.keep())
            working = actors.create_task(people.work())
            await eventually(_true_when(lambda: len(runs.begun) >= plan.at_a_time))
            await faults.make(plan.faults, plan.seed)
            keeping.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    while runs.open:
                        await runs.look()
                        await faults.restore()
                        await asyncio.sleep(0.5)
            working.cancel()
        archive = Archive(faults.disk.settings.archive_file)
        await until_archived(runs, archive, patience)
        verdict = await judge(runs, people, world, archive)
        verdict.ended_workers = faults.workers.ended_alone
        return verdict, table(faults, world.faults + people.odd, verdict, time.monotonic() - began)


def _true_when(check: Callable[[], bool]) -> Callable[[], Awaitable[None]]:
    async def call() -> None:
        if not check():
            raise TimeoutError

    return call


def main() -> int:
    """Exit code 1 unless all that must be zero is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", default=str(Random().randrange(10**6)))
    parser.add_argument("--faults", type=int, default=150, help="those of models and messages come on top")
    parser.add_argument("--pause", type=float, default=2.0, help="mean seconds between them")
    parser.add_argument("--workers", type=int, default=3, help="processes")
    parser.add_argument("--runs", type=int, default=10, help="at a time")
    parser.add_argument("--patience", type=float, default=180, help="seconds for the last runs to end")
    parser.add_argument("--only", action="append", default=[], choices=FAULTS, help="faults of this kind")
    parser.add_argument("--older", default="HEAD", help="revision of the source that an older worker has")
    parser.add_argument("--sabotage", choices=SABOTAGES, help="a product with this fault, to try the judge")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the processes and the disk go, too
    home = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"seed {options.seed}; files in {home}", flush=True)
    size = {"workers": options.workers, "at_a_time": options.runs}
    plan = Plan.of(options.seed, options.faults, options.pause, options.only, **size)
    command = ("-m", "tests.chaos.sabotage", options.sabotage) if options.sabotage else ("worker.py",)
    older = older_source(options.older, home)
    verdict, text = asyncio.run(chaos(plan, home, options.patience, command, older))
    print(text)
    if not verdict.is_clean:
        print(f"again: make chaos SEED={options.seed} FAULTS={options.faults}; server and workers: {home}")
        return 1
    shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
