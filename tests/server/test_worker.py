"""A worker as production configures it: slots, cache, rate limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.contracts import ModelSpec
from activities.settings import RateLimit, Settings
from client.runs.pending import heartbeat_in
from client.server.connection import has_worker, open_client
from tests.server.conftest import TOOLS, real_server
from tests.server.trials import PATIENCE, Run, begin, calls, decide, eventually, open_request, scripted, task
from worker import build_worker
from workflows.people import Approvals, People


def settings_of(folder: Path, **more: Any) -> Settings:
    """Of a worker with a folder of its own."""
    given = {"data_dir": folder / ".ratchet", "files_root": folder, "modules": (str(TOOLS),)}
    return Settings(**{**given, "shutdown_seconds": 0, **more})


@pytest.fixture(scope="module")
async def address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Of a server for the workers of this file, one after another."""
    async with real_server(settings_of(tmp_path_factory.mktemp("server"))) as client:
        yield client.service_client.config.target_host


ASKED: dict[str, Any] = {"people": People(), "approvals": Approvals(), "tools": ("mark_once",)}


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(
            {"target_memory": 0.95, "target_cpu": 1.0, "max_activities": 5},
            id="slots by resources",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param({"max_cached_runs": 10, "max_activities": 1, "max_workflow_tasks": 2}, id="smallest"),
    ],
)
async def test_worker_of_any_size_serves_several_runs(
    address: str, tmp_path: Path, given: dict[str, Any]
) -> None:
    own = settings_of(tmp_path, **given)
    client = await open_client(own, {"target_host": address})
    async with build_worker(client, own):
        waiting = []
        for _ in range(11):  # more than the smallest cache holds
            run = await begin(client, task(calls(("mark_once", {"line": "paid"})), "done", **ASKED))
            waiting.append((run, await open_request(run)))
        for run, request in waiting:
            await decide(run, "approve", request)
            assert (await run.result()).answer == "done"


@pytest.mark.parametrize("queue", ["first", "second"])
async def test_worker_following_another_in_its_process_is_seen_at_once(
    temporal: Client, settings: Settings, queue: str
) -> None:
    """Both have one identity, and the new one is not among the server's workers for a minute."""
    async with build_worker(temporal, settings, "first"):
        await eventually(lambda: has_worker(temporal, "first"))
    assert not await has_worker(temporal, "first")
    async with build_worker(temporal, settings, queue), asyncio.timeout(30):
        await eventually(lambda: has_worker(temporal, queue))
    assert not await has_worker(temporal, queue)


async def waiting_text(client: Client, run: Run) -> str | None:
    """What people see of a run that waits for a rate limit."""
    found = await heartbeat_in(client, (await run.describe()).raw_description)
    text = found.failure or found.text
    return text if "rate limit" in text else None


@pytest.mark.parametrize("fuse", ["auto", pytest.param("off", marks=pytest.mark.exhaustive)])
async def test_run_waits_for_a_rate_limit_until_it_is_cancelled(
    address: str, tmp_path: Path, fuse: str
) -> None:
    own = settings_of(tmp_path, rate_limits={"scripted/*": RateLimit(requests_per_minute=1)})
    client = await open_client(own, {"target_host": address})
    async with build_worker(client, own):
        run = await begin(client, task(calls(("mark", {"line": "one"})), "done", fuse=fuse))
        assert (
            await eventually(lambda: waiting_text(client, run)) == "(waiting for the rate limit scripted/*)"
        )
        assert (tmp_path / "marks.txt").read_text().startswith("one")
        await run.cancel()
        result = await run.result()
        assert result.exit_reason == "cancelled"


LIMITED = ModelSpec(provider="scripted", name="limited", script=scripted("done").script)
ONE = {"scripted/limited": RateLimit(requests_per_minute=1)}


async def test_waiting_questions_leave_slots_to_others(address: str, tmp_path: Path) -> None:
    own = settings_of(tmp_path, rate_limits=ONE, max_activities=2)
    limited = task(models={"default": LIMITED})
    client = await open_client(own, {"target_host": address})
    async with build_worker(client, own):
        assert (await (await begin(client, limited)).result()).answer == "done"
        waiting = [await begin(client, limited) for _ in range(3)]
        for run in waiting:
            await eventually(partial(waiting_text, client, run))
        free = await begin(client, task("done"))
        assert (await asyncio.wait_for(free.result(), PATIENCE)).answer == "done"
        for run in waiting:
            await run.cancel()


async def test_stopping_worker_hands_waiting_questions_to_another(address: str, tmp_path: Path) -> None:
    own = settings_of(tmp_path, rate_limits=ONE, shutdown_seconds=3600)
    limited, others = task(models={"default": LIMITED}), settings_of(tmp_path)
    client = await open_client(own, {"target_host": address})
    async with asyncio.timeout(PATIENCE), build_worker(client, own):
        assert (await (await begin(client, limited)).result()).answer == "done"
        run = await begin(client, limited)
        await eventually(partial(waiting_text, client, run))
    other = await open_client(others, {"target_host": address})
    async with build_worker(other, others):
        assert (await asyncio.wait_for(run.result(), PATIENCE)).answer == "done"
