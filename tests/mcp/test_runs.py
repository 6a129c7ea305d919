"""Runs with tools of MCP servers, on the real Temporal server: recorded tools, people, deaths, absence."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from activities.contracts import ScriptedReply
from activities.mcp.config import McpConfig
from activities.settings import Settings
from client.plugin import RatchetPlugin
from client.runs.readings import RecordReader
from tests.mcp.conftest import OWN, RUDE, own_config
from tests.server.conftest import real_server
from tests.server.trials import (
    FREELY,
    Run,
    begin,
    calls,
    decide,
    eventually,
    log_of,
    open_request,
    replayed,
    scripted,
    task,
)
from worker import build_worker
from workflows.api import PageQuery, TranscriptPage
from workflows.people import Approvals, People


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of our own server."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def settings(home: Path) -> Settings:
    """A worker's, with our own server and a rude one; a third is not there yet."""
    late = McpConfig(command=str(home / "late"), args=(str(OWN), str(home)))
    rude = McpConfig(command=sys.executable, args=(str(RUDE),))
    slow = own_config(home, timeout_seconds=120, effects={"slow_*": "read"})
    servers = {"own": own_config(home, timeout_seconds=120), "slow": slow, "rude": rude, "late": late}
    return Settings(data_dir=home / ".ratchet", files_root=home, mcp=servers, shutdown_seconds=1)


@pytest.fixture(scope="module")
async def temporal(settings: Settings) -> AsyncIterator[Client]:
    """A server."""
    async with real_server(settings) as client:
        yield client


@asynccontextmanager
async def worker(settings: Settings, temporal: Client) -> AsyncIterator[None]:
    """A worker with connections of its own."""
    config = temporal.config()
    config["plugins"] = [RatchetPlugin(settings)]
    async with build_worker(Client(**config), settings):
        yield


async def told(run: Run) -> list[Any]:
    """What the model was told by tools."""
    return [json.loads(text) for text in await texts(run)]


async def texts(run: Run) -> list[str]:
    """The same as it stands in the conversation."""
    page: TranscriptPage = await run.query("transcript", PageQuery(full=True), result_type=TranscriptPage)
    return [message.content for message in page.messages if message.role == "tool"]


async def noted(home: Path, line: str) -> None:
    """Wait until a tool of our own server has written this."""

    async def check() -> bool:
        with suppress(FileNotFoundError):
            return line in (home / "calls.txt").read_text()  # a small file
        return False

    await eventually(check)


async def test_run_keeps_its_tools_when_the_server_changes_them(
    settings: Settings, temporal: Client, home: Path
) -> None:
    given = task(
        calls(("own__add", {"a": 1, "b": 2})),
        calls(("own__pay", {"amount": 5})),
        calls(("own__add", {"a": 3, "b": 4})),
        "done",
        tools=("own__add", "own__pay"),
        people=People(),
        approvals=Approvals(),
    )
    async with worker(settings, temporal):
        run = await begin(temporal, given)
        request = await open_request(run)
        assert (request.tool, request.arguments) == ("own__pay", {"amount": 5})
    (home / "new-schema").touch()
    async with worker(settings, temporal):
        await decide(run, "approve", request)
        assert (await run.result()).answer == "done"
        outputs = await told(run)
        assert outputs[:2] == [3, "paid 5"]
        assert "first" in outputs[2]["error"], (
            "the server refuses what its new schema does not have, and the model is told"
        )
        await replayed(run, settings)
    (home / "new-schema").unlink()
    assert (home / "calls.txt").read_text().splitlines() == ["pay 5"]


@pytest.mark.parametrize(
    "server",
    [
        pytest.param("own", id="unsafe"),
        pytest.param("slow", id="read", marks=pytest.mark.exhaustive),  # as in test_servers.py
    ],
)
async def test_server_killed_in_the_middle_of_a_call(
    settings: Settings, temporal: Client, home: Path, server: str
) -> None:
    (home / "go").unlink(missing_ok=True)
    (home / "calls.txt").unlink(missing_ok=True)
    tool = f"{server}__slow_pay"
    given = task(calls((tool, {})), "done", tools=(tool,), people=People(), approvals=FREELY)
    async with worker(settings, temporal):
        run = await begin(temporal, given)
        await noted(home, "slow_pay begun")
        psutil.Process(int((home / "calls.txt").read_text().split()[-1])).kill()
        (home / "go").touch()
        if server == "own":  # nobody knows whether it has paid: a person says what happened
            request = await open_request(run, "outcome")
            assert "was lost in the middle of the call: it was ended by SIGKILL" in str(request.model_dump())
            assert (home / "calls.txt").read_text().count("begun") == 1
            await decide(run, "answer", request, text="it has paid")
        assert (await run.result()).answer == "done"
        expected = "it has paid" if server == "own" else "slow_pay done"
        assert expected in (await texts(run))[0]
        await replayed(run, settings)
    lines = [line.split(" ")[1] for line in (home / "calls.txt").read_text().splitlines()]
    assert lines == (["begun"] if server == "own" else ["begun", "begun", "done"])


async def test_progress_is_seen_in_the_activitys_heartbeat(
    settings: Settings, temporal: Client, home: Path
) -> None:
    (home / "go").unlink(missing_ok=True)
    given = task(calls(("slow__slow_read", {})), "done", tools=("slow__slow_read",))

    async def beat() -> bool:
        described = (await run.describe()).raw_description
        return any(
            b"still at it" in payload.data
            for activity in described.pending_activities
            for payload in activity.heartbeat_details.payloads
        )

    async with worker(settings, temporal):
        run = await begin(temporal, given)
        await eventually(beat)
        (home / "go").touch()
        assert (await run.result()).answer == "done"


async def test_server_that_is_away_is_waited_for_and_named(
    settings: Settings, temporal: Client, home: Path
) -> None:
    late = home / "late"
    late.write_text("#!/bin/sh\n(sleep 0.2; echo no disk >&2) >&- &\nexit 1\n")
    late.chmod(0o700)
    given = task(calls(("late__add", {"a": 1, "b": 2})), "done", tools=("late__add",))

    async def failure() -> str:
        with suppress(RPCError):
            pending = (await run.describe()).raw_description.pending_activities
            return next((one.last_failure.message for one in pending if one.last_failure.message), "")
        return ""

    async with worker(settings, temporal):
        run = await begin(temporal, given)
        reason = await eventually(failure)
        assert reason == "the MCP server late is away: it ended with exit code 1. Its last words: no disk"
        late.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        assert (await run.result()).answer == "done"
        assert await told(run) == [3]


async def test_tool_that_no_server_has_is_refused_at_the_start(settings: Settings, temporal: Client) -> None:
    async with worker(settings, temporal):
        run = await begin(temporal, task("never asked", tools=("rude__nothing",)))
        with pytest.raises(Exception) as failed:  # noqa: PT011  # the SDK's own
            await run.result()
        assert "unknown tools: rude__nothing" in str(failed.value.__cause__)


async def test_text_of_rude_server_reaches_log_and_model_as_text(
    settings: Settings, temporal: Client, home: Path
) -> None:
    script = ScriptedReply(reply="", tool_calls=calls(("own__show", {"kind": "escapes"})).tool_calls)
    given = task(tools=("own__show",), models={"default": scripted(script, "done")})
    async with worker(settings, temporal):
        run = await begin(temporal, given)
        assert (await run.result()).answer == "done"
        from client.cli import render

        for record in await log_of(run):
            assert "\x1b]" not in str(render.record_block(record, RecordReader().read(record)))
            assert "\x1b]" not in str(render.change_block(record, full=True))
