"""Records the histories that `test_replay.py` replays: `python -m tests.server.record`, after a change of the
workflow's commands. From the first release on, a history that no longer replays is a bug instead.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from temporalio.client import Client

from activities.settings import Settings
from tests.server.conftest import OUTER_MACHINE, TOOLS, real_server
from tests.server.fakes import FakeWorld, decision, fake_worker, play
from tests.server.scenarios import SCENARIOS
from tests.server.trials import Run, begin, calls, command, decide, open_request, task, until
from worker import build_worker
from workflows.api import WORKFLOW_TYPE, RunResult
from workflows.people import Approvals, Decided, People, RequestSettings

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
    nobody = People(requests=RequestSettings(deadline_seconds=1))
    late = await begin(client, task(ONCE, "done", tools=("mark_once",), **{**CAREFUL, "people": nobody}))
    cancelled = await begin(client, task(calls(("mark", {"line": "slow", "seconds": 30})), "done"))
    await until(cancelled, lambda status: status.doing.startswith("calling mark"))
    await cancelled.cancel()
    found = {"edit": edited, "signals": signalled, "commands": commanded, "unknown": unknown}
    found |= {"cancelled": cancelled, "deadline": late}
    for run in found.values():
        await run.result()
    return found


async def family(client: Client) -> dict[str, Run]:
    """An outer run that is paused with two inner ones: one asks a person, the other is terminated."""
    inner = {"machine": "tools", "goal": "inside", "give": ["mark_once"]}
    options = {"inner": [inner, inner], "together": True}
    given = task(ONCE, "done", tools=("mark_once",), machine="nester", options=options, **CAREFUL)
    outer = await begin(client, given)
    status = await until(outer, lambda status: len(status.children) == 2)
    asks, ended = (client.get_workflow_handle(name, result_type=RunResult) for name in status.children)
    request = await open_request(asks)
    await open_request(ended)
    await command(outer, "pause")
    await command(outer, "resume")
    await ended.terminate("somebody did")
    await decide(asks, "approve", request)
    await outer.result()
    return {"outer": outer, "inner": asks}


async def chain_runs(client: Client) -> dict[str, Run]:
    """All executions of a chain: a standing approval, a command that comes twice, and a rollback to a step
    that only the archive has."""
    lines = ["first", *(f"paid{number}" for number in range(3)), "last"]
    replies = [calls(("mark_once", {"line": line})) for line in lines]
    begun = await begin(client, task(*replies, "all", tools=("mark_once",), **CAREFUL))
    run: Run = client.get_workflow_handle(begun.id, result_type=RunResult)

    async def asks(line: str, branch: int = 0) -> None:
        await until(run, lambda s: s.requests > 0 and f'"{line}"' in s.doing and s.branch == branch)

    await command(run, "limits", limits={"tool_calls": 50}, id="c1")
    await decide(run, "approve")
    await asks("paid0")
    await decide(run, "approve", standing_approval={"arguments": {"line": {"pattern": "^paid"}}})
    await asks("last")
    await command(run, "limits", limits={"tool_calls": 50}, id="c1")
    await command(run, "rollback", step=2)
    await asks("last", branch=1)
    await decide(run, "reject")
    await run.result()
    found = [one.run_id async for one in client.list_workflows(f"WorkflowId='{run.id}'")]
    return {
        f"chain {number}": client.get_workflow_handle(run.id, run_id=one)
        for number, one in enumerate(reversed(found), start=1)
    }


def scrubbed(value: Any) -> Any:
    """A history without names of the machine and the folders that it was made in."""
    if isinstance(value, dict):
        return {key: scrubbed(one) for key, one in value.items() if key != "stackTrace"}
    if isinstance(value, list):
        return [scrubbed(one) for one in value]
    return re.sub(r"^\d+@.*", "recorder", value) if isinstance(value, str) else value


async def recorded(runs: Recording, *flags: str) -> dict[str, Any]:
    """Workflow id and history of runs that are made on a server with these flags."""
    home = Path(tempfile.mkdtemp())
    modules = (str(TOOLS), str(OUTER_MACHINE))
    settings = Settings(data_dir=home / ".ratchet", files_root=home, modules=modules, shutdown_seconds=1)
    async with real_server(settings, *flags) as client, build_worker(client, settings):
        # The workflow id belongs to a history: digests of requests and keys of calls are made of it.
        return {
            name: [run.id, scrubbed((await run.fetch_history()).to_json_dict())]
            for name, run in (await runs(client)).items()
        }


async def record() -> None:
    """Write all histories."""
    histories = {
        **await recorded(scenario_runs),
        **await recorded(people_runs),
        **await recorded(family),
        **await recorded(chain_runs, "limit.historyCount.suggestContinueAsNew=40"),
    }
    text = json.dumps(histories, sort_keys=True).encode()
    HISTORIES.write_bytes(gzip.compress(text, mtime=0))
    print(f"{len(histories)} histories, {HISTORIES.stat().st_size:,} bytes")


if __name__ == "__main__":
    asyncio.run(record())
