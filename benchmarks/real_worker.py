"""Many runs at once on a real worker: steps per second, CPU and memory of processes of their own.

The server has its database in a file. Each figure is measured on new workers that have done a few runs.
"""

from __future__ import annotations

import time
from collections import defaultdict

from benchmarks.processes import Server, server, workers
from benchmarks.sides import KINDS, Row, heading, medians, run_together

STEPS = 3


async def measure(server: Server, kind: str, runs: int, processes: int) -> dict[str, float]:
    """One round, by what is measured."""
    async with workers(server, kind, processes) as working:
        began, cpu = time.perf_counter(), working.cpu_seconds()
        await run_together(server.agents.temporal, kind, runs, STEPS)
        steps = runs * STEPS
        return {
            "steps per second": steps / (time.perf_counter() - began),
            "worker CPU, ms per step": (working.cpu_seconds() - cpu) * 1000 / steps,
            "MiB of a worker": working.mib(),
        }


TARGETS = {"steps per second": "0.9 / 1.5", "worker CPU, ms per step": "1.5"}


async def real_worker(quick: bool = False) -> None:
    """Print the table."""
    sizes = {20: 1} if quick else {50: 2, 200: 1, 1000: 1}
    """Runs at once -> rounds."""
    fewer = sizes if quick else {200: 1}
    for processes, chosen, title in ((1, sizes, "A real worker"), (2, fewer, "Two workers on one store")):
        print(heading(f"{title}: runs of {STEPS} steps, database in a file"), flush=True)
        for runs, rounds in chosen.items():
            found = defaultdict(list)
            async with server() as running:
                for _ in range(rounds):
                    for kind in KINDS:
                        for what, value in (await measure(running, kind, runs, processes)).items():
                            found[what].append((kind, value))
            for what, values in found.items():
                print(
                    Row(f"{what}, {runs:,} runs at once", medians(values), TARGETS.get(what, "")), flush=True
                )
