"""kill -9 in the middle of a block of code: what it has called is not called again, the answer is right."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle

from activities.contracts import ScriptedReply
from activities.settings import Settings
from client.plugin import connect
from client.server import EmbeddedServer, Ports
from tests.workflows.scenarios_code import SQUARE, code_task, wrote
from tests.workflows.trials import begin, until
from workflows.api import AgentResult, AgentStatus

ROOT = Path(__file__).parents[2]
KILLS = 5
BLOCK = """\
total = 0
for line in context.strip().split("\\n"):
    square = int(llm_query(line).split(" -> ")[1])
    mark(line=str(square))
    total += square
print("the sum is", total)"""
"""Ten sub-queries with ten different answers, and ten calls of a tool that writes them down."""
LAST = ScriptedReply(expect=r"the sum is (?P<sum>\d+)", reply="FINAL({sum})")


@asynccontextmanager
async def _worker(address: str, home: Path) -> AsyncIterator[None]:
    """A worker process, killed when it is no longer needed."""
    command = [sys.executable, "-m", "tests.workflows.crash_worker", address, str(home)]
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=pipe, stderr=nothing)
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        await process.communicate()


async def _activities(handle: WorkflowHandle[Any, Any]) -> tuple[Counter[str], Counter[str], int]:
    """How many activities of each type were wanted, how many ended, and how many attempts were lost."""
    wanted: dict[int, str] = {}
    ended: Counter[str] = Counter()
    lost = 0
    for event in (await handle.fetch_history()).events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            wanted[event.event_id] = scheduled.activity_type.name
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            lost += event.activity_task_started_event_attributes.attempt - 1
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            ended[wanted[event.activity_task_completed_event_attributes.scheduled_event_id]] += 1
    return Counter(wanted.values()), ended, lost


def _came(records: int, status: AgentStatus) -> bool:
    """Has the run come so far?"""
    return status.records >= records or status.finished


async def test_a_block_with_ten_sub_queries_whose_worker_is_killed_five_times_asks_each_once(
    tmp_path: Path,
) -> None:
    """A kill costs at most the call in flight: everything before it is in the run's history."""
    (tmp_path / ".ratchet").mkdir()
    slowly = SQUARE.model_copy(update={"delay_seconds": 0.2})
    async with await EmbeddedServer.attach(tmp_path / ".ratchet", Ports()) as server:
        settings = Settings(data_dir=tmp_path / ".ratchet", files_root=tmp_path)
        client = await connect(settings, target_host=server.address)
        handle = await begin(client, code_task(wrote(BLOCK), LAST, sub=(slowly,), tools=("mark",)))
        for kill in range(KILLS):
            async with _worker(server.address, tmp_path):
                await until(handle, partial(_came, 3 * kill + 2))
                await asyncio.sleep(0.05 * kill)
        async with _worker(server.address, tmp_path):
            result: AgentResult = await asyncio.wait_for(handle.result(), 60)
        wanted, ended, lost = await _activities(handle)
    assert (result.answer, result.exit_reason) == ("385", "stop")
    calls = {"call_model": 2 + 10, "call_tool": 10, "run_code": 1 + 20, "archive_log": 1}
    assert {name: wanted[name] for name in calls} == calls, "each was asked for once"
    assert ended == wanted
    assert 0 < lost <= KILLS, "only what was in flight was begun again"
    marks = Counter(line.split()[0] for line in (tmp_path / "marks.txt").read_text().splitlines())
    assert set(marks) == {str(n * n) for n in range(1, 11)}
    assert sum(marks.values()) <= 10 + KILLS
    assert result.counters["model_calls"] == 12
