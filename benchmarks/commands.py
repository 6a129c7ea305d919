"""How long commands take, as processes: those that list and read with no server, and with one.

CPU is the robust figure: the time that the process itself had, user and system. Commands take turns, so that
a busy machine is as busy for each.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from activities.contracts import ModelSpec, ScriptedReply
from activities.settings import Settings
from client.sdk.agent import AgentClient
from workflows.api import AgentTask

__all__ = ["commands"]

RUNS = 1_000
AT_ONCE = 50
TASK = AgentTask(
    goal="answer it",
    machine="tools",
    tools=("calculator",),
    models={"default": ModelSpec(provider="scripted", script=(ScriptedReply(reply="done"),))},
)


async def commands(quick: bool) -> None:
    """Print a table of medians: seconds of CPU and of the clock."""
    rounds, runs = (3, 100) if quick else (5, RUNS)
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder, "data"), history_seconds=0)
        async with AgentClient.connect(settings=settings, worker=True) as agents:
            run = await _runs(agents, runs)
            few = await _measured(folder, settings.data_dir, run, rounds)
        stopped = await _measured(folder, settings.data_dir, run, rounds)
    print(f"### Commands, {runs:,} runs, medians of {rounds}\n")
    print("| command | no server: CPU s | clock s | server runs: CPU s | clock s |")
    print("| --- | --- | --- | --- | --- |")
    for command, (cpu, clock) in stopped.items():
        with_server = few[command]
        print(f"| `{command}` | {cpu:.2f} | {clock:.2f} | {with_server[0]:.2f} | {with_server[1]:.2f} |")


async def _runs(agents: AgentClient, number: int) -> str:
    """The id of the last of so many runs, all of them over and listed."""
    run = ""
    for begin in range(0, number, AT_ONCE):
        started = [agents.run(TASK) for _ in range(min(AT_ONCE, number - begin))]
        run = (await asyncio.gather(*started))[-1].workflow_id
    while await agents.list(running=True):  # noqa: ASYNC110  # visibility is written a little later
        await asyncio.sleep(0.5)
    return run


async def _measured(folder: str, data_dir: Path, run: str, rounds: int) -> dict[str, tuple[float, float]]:
    plain = ("--help", "agents", "tools", "machines", "list", "inbox", "costs")
    lines: list[tuple[str, ...]] = [(name,) for name in plain]
    lines += [(name, run) for name in ("show", "steps", "log", "result")]
    found: dict[str, list[tuple[float, float]]] = {line[0]: [] for line in lines}
    for turn in range(rounds + 1):
        for line in lines:
            taken = await asyncio.to_thread(_taken, folder, data_dir, line)
            if turn:  # the first one fills the disk's cache
                found[line[0]].append(taken)
    return {
        name: (statistics.median(cpu for cpu, _ in all_), statistics.median(clock for _, clock in all_))
        for name, all_ in found.items()
    }


def _taken(folder: str, data_dir: Path, words: tuple[str, ...]) -> tuple[float, float]:
    """Seconds of CPU and of the clock of one command, whose modules are compiled as where it is installed."""
    ours = {"PYTHONPATH": str(Path(__file__).parents[1]), "RATCHET_DATA_DIR": str(data_dir)}
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", "from client.start import main; main()", *words],
        cwd=folder,
        env={**own, **ours},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"ratchet {' '.join(words)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - began
