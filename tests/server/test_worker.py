"""A worker as production configures it: rate limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.settings import RateLimit, Settings
from client.follow import heartbeat_in
from tests.server.conftest import TOOLS, real_server
from tests.server.trials import Run, begin, calls, eventually, task
from worker import build_worker


def settings_of(folder: Path, **more: Any) -> Settings:
    """Of a worker with a folder of its own."""
    return Settings(
        data_dir=folder / ".ratchet", files_root=folder, modules=(str(TOOLS),), shutdown_seconds=0, **more
    )


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
