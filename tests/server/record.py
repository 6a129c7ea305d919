"""Records the histories that `test_replay.py` replays: `python -m tests.server.record`, after a change of the
workflow's commands. From the first release on, a history that no longer replays is a bug instead.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from temporalio.client import Client

from activities.settings import Settings
from tests.server.conftest import TOOLS, real_server
from tests.server.fakes import FakeWorld, decision, fake_worker, play
from tests.server.scenarios import SCENARIOS
from tests.server.trials import Run, begin, calls, command, decide, open_request, task, until
from worker import build_worker
from workflows.api import WORKFLOW_TYPE, RunResult
from workflows.people import Approvals, Decided, People

HISTORIES = Path(__file__).with_name("histories.json.gz")
"""Name -> workflow id, and history as JSON."""
Recording = Callable[[Client], Awaitable[dict[str, Run]]]
QUEUE = "fakes"
ONCE = calls(("mark_once", {"line": "paid"}))
CAREFUL: dict[str, Any] = {"people": People(), "approvals": Approvals(effects={"unsafe": "always"})}


async def scenario_runs(client: Client) -> dict[str, Run]:
    """One long run of each machine."""
    world, found = FakeWorld(), dict[str, Run]()
    async with fake_worker(client, QUEUE, world):
        for scenario in SCENARIOS:
            await play(scenario, scenario.name, world)
            run: Run = await client.start_workflow(
                WORKFLOW_TYPE, scenario.task, id=scenario.name, task_queue=QUEUE, result_type=RunResult
            )
            for verb, more in scenario.decisions:
                request = await open_request(run)
                await run.execute_update("decide", decision(request, verb, more), result_type=Decided)
            await run.result()
            found[scenario.name] = run
    return found


async def people_runs(client: Client) -> dict[str, Run]:
    """Decisions, commands, signals that cannot be used, an unknown outcome, a cancellation."""
    edited = await begin(client, task(ONCE, "done", tools=("mark_once",), **CAREFUL))
    await decide(edited, "edit", arguments={"line": "less"})
    signalled = await begin(client, task(ONCE, "done", tools=("mark_once",), **CAREFUL))
    request = await open_request(signalled)
    await signalled.signal("nonsense", 1)
    await signalled.signal("decide", {"request": request.id, "digest": request.digest, "decision": "reject"})
    slow = [calls(("mark", {"line": "x", "seconds": 0.3}))] * 2
    commanded = await begin(client, task(*slow, "done", people=People()))
    await until(commanded, lambda status: status.step > 0)
    await command(commanded, "pause")
    await command(commanded, "steer", text="be quick")
    await command(commanded, "rollback", step=1)
    await command(commanded, "limits", limits={"tool_calls": 50})
    await command(commanded, "resume")
    book = calls(("book", {"line": "trip", "seconds": 2, "found": "unknown"}))
    unknown = await begin(client, task(book, "done", tools=("book",), people=People()))
    await open_request(unknown, "outcome")
    await decide(unknown, "answer", text="it was booked")
    cancelled = await begin(client, task(calls(("mark", {"line": "slow", "seconds": 30})), "done"))
    await until(cancelled, lambda status: status.doing.startswith("mark"))
    await cancelled.cancel()
    found = {"edit": edited, "signals": signalled, "commands": commanded, "unknown": unknown}
    found |= {"cancelled": cancelled}
    for run in found.values():
        await run.result()
    return found


async def record() -> None:
    """Write all histories anew."""
    home = Path(tempfile.mkdtemp())
    settings = Settings(
        data_dir=home / ".ratchet", files_root=home, modules=(str(TOOLS),), shutdown_seconds=1
    )
    async with real_server(settings) as client, build_worker(client, settings):
        runs = {**await scenario_runs(client), **await people_runs(client)}
        # The workflow id belongs to a history: digests of requests and keys of calls are made of it.
        histories = {n: [run.id, (await run.fetch_history()).to_json_dict()] for n, run in runs.items()}
    text = json.dumps(histories, sort_keys=True).encode()
    HISTORIES.write_bytes(gzip.compress(text, mtime=0))
    print(f"{len(histories)} histories, {HISTORIES.stat().st_size:,} bytes")


if __name__ == "__main__":
    asyncio.run(record())
