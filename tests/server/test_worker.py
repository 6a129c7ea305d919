"""A worker as production configures it: slots, cache, rate limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.settings import RateLimit, Settings
from client.follow import heartbeat_in
from tests.server.conftest import TOOLS, real_server
from tests.server.trials import Run, begin, calls, decide, eventually, open_request, task
from worker import build_worker
from workflows.people import Approvals, People


def settings_of(folder: Path, **more: Any) -> Settings:
    """Of a worker with a folder of its own."""
    return Settings(
        data_dir=folder / ".ratchet", files_root=folder, modules=(str(TOOLS),), shutdown_seconds=0, **more
    )


ASKED: dict[str, Any] = {"people": People(), "approvals": Approvals(), "tools": ("mark_once",)}


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(
            {"target_memory": 0.95, "target_cpu": 1.0, "max_activities": 5}, id="slots by resources"
        ),
        pytest.param({"max_cached_runs": 1, "max_activities": 1, "max_workflow_tasks": 2}, id="smallest"),
    ],
)
async def test_worker_of_any_size_serves_several_runs(tmp_path: Path, given: dict[str, Any]) -> None:
    own = settings_of(tmp_path, **given)
    async with real_server(own) as client, build_worker(client, own):
        waiting = []
        for _ in range(3):
            run = await begin(client, task(calls(("mark_once", {"line": "paid"})), "done", **ASKED))
            waiting.append((run, await open_request(run)))
        for run, request in waiting:
            await decide(run, "approve", request)
            assert (await run.result()).answer == "done"


async def waiting_text(client: Client, run: Run) -> str | None:
    """What people see of a run that waits for a rate limit."""
    found = await heartbeat_in(client, (await run.describe()).raw_description)
    return found.text if "rate limit" in found.text else None


@pytest.mark.parametrize("fuse", ["auto", "off"])
async def test_run_waits_for_a_rate_limit_until_it_is_cancelled(tmp_path: Path, fuse: str) -> None:
    own = settings_of(tmp_path, rate_limits={"scripted/*": RateLimit(requests_per_minute=1)})
    async with real_server(own) as client, build_worker(client, own):
        run = await begin(client, task(calls(("mark", {"line": "one"})), "done", fuse=fuse))
        assert (
            await eventually(lambda: waiting_text(client, run)) == "(waiting for the rate limit scripted/*)"
        )
        assert (tmp_path / "marks.txt").read_text().startswith("one")
        await run.cancel()
        result = await run.result()
        assert result.exit_reason == "cancelled"
