"""What the framework costs: agent runs against bare Temporal loops, as Markdown with the targets beside.

`python -m benchmarks [PART ...] [quick]`. Parts (default: all, but for `profile`):

    alone     one_process.py     one run: time, CPU, history, replay
    together  one_process.py     50 and 200 runs at once
    worker    real_worker.py     50, 200 and 1,000 runs at once; one and two worker processes
    waiting   waiting_runs.py    1,000 runs that wait for an approval
    commands  commands.py        the command line, with 1,000 runs
    profile   profile_worker.py  the functions in which a worker's time goes

`quick` measures less of each. docs/performance.md says how to read the figures.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time

import structlog

from benchmarks.commands import commands
from benchmarks.one_process import alone, together
from benchmarks.profile_worker import profile
from benchmarks.real_worker import real_worker
from benchmarks.waiting_runs import waiting_runs

PARTS = {
    "alone": alone, "together": together, "worker": real_worker, "waiting": waiting_runs,
    "commands": commands, "profile": profile,
}  # fmt: skip


async def main(words: list[str]) -> None:
    """Run the parts that the words name. Stopped by Ctrl-C or SIGTERM, it stops its server and workers."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    unknown = set(words) - {*PARTS, "quick"}
    if unknown:
        sys.exit(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}, and `quick`")
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    named = [part for part in PARTS if part in words] or [part for part in PARTS if part != "profile"]
    for part in named:
        began = time.perf_counter()
        await PARTS[part]("quick" in words)
        print(f"{part}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
    sys.stdout.flush()
    os._exit(0)  # threads of the SDK can abort the interpreter's own exit
