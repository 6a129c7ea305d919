"""The functions in which a worker's time goes, of a bare loop's and of agents': `make profile`.

Each worker runs twice. The first run counts the CPU of its threads, from /proc. The second runs under py-spy,
which looks 200 times a second who holds Python's lock: that is CPU, never waiting, of all threads. Shares of
what it saw, times the CPU of Python's threads in the first run, are milliseconds per step. What was seen
while modules were imported is left out.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.processes import Server, server, workers
from benchmarks.sides import KINDS, run_together

NAMES = ("bare", "unfused", "fused")
"""Of `KINDS`."""
STEPS = 10
RATE = 200
ROWS = 25
OURS = ("activities", "workflows", "client", "ratchet", "benchmarks")
CORE = ("tokio", "temporal-real", "workflow-proces")
"""How the names of the threads of the SDK's core begin, which is Rust."""
IMPORTING = "importlib._bootstrap"
Stack = tuple[str, ...]
"""Functions from the outermost to the innermost, each `name (file:line)`."""


class Profile:
    """What a worker of one kind did, in milliseconds per step."""

    def __init__(self, python: float, core: float, stacks: Counter[Stack]) -> None:
        self.threads = {"Python": python, "the SDK's core (Rust)": core}
        self.itself: defaultdict[str, float] = defaultdict(float)
        """By function."""
        self.inclusive: defaultdict[str, float] = defaultdict(float)
        """By function, with all that it called."""
        self.packages: defaultdict[str, float] = defaultdict(float)
        scale = python / (stacks.total() or 1)
        for stack, seen in stacks.items():
            self.itself[stack[-1]] += seen * scale
            self.packages[package_of(stack[-1])] += seen * scale
            for function in set(stack):
                self.inclusive[function] += seen * scale


def package_of(function: str) -> str:
    """The package that a function is in; one name for all of Python's own."""
    file = function.rpartition("(")[2].partition(":")[0].rstrip(")")
    package = file.partition("/")[0].removesuffix(".py")
    return "Python" if package.startswith("<") or package in sys.stdlib_module_names else package


def read_stacks(file: Path) -> Counter[Stack]:
    """What py-spy wrote: a line is `outer;inner count`."""
    found: Counter[Stack] = Counter()
    for line in file.read_text().splitlines():
        stack, _, seen = line.rpartition(" ")
        if stack and IMPORTING not in stack:
            found[tuple(stack.split(";"))] += int(seen)
    return found


def thread_seconds(worker: psutil.Process) -> tuple[float, float]:
    """CPU so far of Python's threads, and of all others: those of the SDK's core."""
    python = 0.0
    for thread in worker.threads():
        with suppress(FileNotFoundError):  # it has just ended, as threads of the core do
            name = Path(f"/proc/{worker.pid}/task/{thread.id}/comm").read_text()
            python += 0 if name.startswith(CORE) else thread.user_time + thread.system_time
    both = worker.cpu_times()
    return python, both.user + both.system - python


def profiler() -> str:
    """The program py-spy: beside this Python, else on PATH."""
    found = shutil.which("py-spy", path=Path(sys.executable).parent) or shutil.which("py-spy")
    if found is None:
        sys.exit("py-spy is not installed; `make profile` installs it")
    return found


async def profile_of(server: Server, kind: str, runs: int, spy: str, file: Path) -> Profile:
    """Run a worker without py-spy, then one with it, which writes the file."""
    client = server.agents.temporal
    async with workers(server, kind) as working:
        before = thread_seconds(working.processes[0])
        await run_together(client, kind, runs, STEPS)
        after = thread_seconds(working.processes[0])
    python, core = ((end - start) * 1000 / runs / STEPS for start, end in zip(before, after, strict=True))
    options = f"record --gil --function --format raw --rate {RATE} --output".split()
    async with workers(server, kind, under=(spy, *options, str(file), "--")):
        await run_together(client, kind, runs, STEPS)
    return Profile(python, core, read_stacks(file))


def print_table(title: str, rows: Iterable[str], columns: Sequence[Mapping[str, float]]) -> None:
    """Milliseconds per step; nothing where it is below a hundredth. One or two columns for each kind."""
    width = len(columns) // len(KINDS) * 9
    print(f"\n{title}, ms per step\n\n" + "".join(f"{name:>{width}}" for name in NAMES))
    if width > 9:
        print("    incl.     self" * len(KINDS))
    for row in rows:
        cells = (column.get(row, 0) for column in columns)
        print("".join(f"{cell:9.2f}" if cell >= 0.005 else " " * 9 for cell in cells), f" {row}")


def most(by: Mapping[str, float], rows: Iterable[str]) -> list[str]:
    """The rows with the largest figures."""
    return sorted(rows, key=lambda row: -by.get(row, 0))[:ROWS]


def print_profiles(profiles: Sequence[Profile]) -> None:
    """All tables, of the kinds in their order; sorted by unfused agents."""
    agents = profiles[KINDS.index("off")]
    print_table("CPU by thread", agents.threads, [p.threads for p in profiles])
    packages = most(agents.packages, {name for p in profiles for name in p.packages})
    print_table("Python by package (self)", packages, [p.packages for p in profiles])
    columns = [column for p in profiles for column in (p.inclusive, p.itself)]
    functions = {name for p in profiles for name in p.inclusive}
    ours = {name for name in functions if package_of(name) in OURS}
    print_table("Our functions, by all that they take", most(agents.inclusive, ours), columns)
    print_table("Others, by what they take themselves", most(agents.itself, functions - ours), columns)


async def profile(quick: bool = False) -> None:
    """Print the tables, and where the full data is."""
    if not sys.platform.startswith("linux"):
        sys.exit("the profile needs Linux: it reads the CPU of threads from /proc; run it in a container")
    spy, folder = profiler(), Path(tempfile.mkdtemp(prefix="ratchet-profile-"))
    files = {kind: folder / f"{kind}.txt" for kind in KINDS}
    async with server() as running:
        profiles = []
        for name, (kind, file) in zip(NAMES, files.items(), strict=True):
            print(f"profiling {name} ...", file=sys.stderr, flush=True)
            profiles.append(await profile_of(running, kind, 20 if quick else 100, spy, file))
    print_profiles(profiles)
    print(f"\nAll stacks: {folder}/*.txt (with imports; https://www.speedscope.app draws them)")
