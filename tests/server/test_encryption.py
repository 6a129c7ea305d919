"""Encryption on a real server: nothing plain on the disk, keys change under a run, a missing one is named."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr
from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RawValue
from temporalio.converter import DataConverter
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.contracts import ToolInput, ToolResult
from activities.settings import Settings
from activities.store.converter import data_converter
from activities.store.encryption import WrongKey
from activities.store.stores import Stores
from client.cassette.export import exported
from client.errors import RatchetError, RunRefused, Unreadable
from client.history.check import check_runs
from client.plugin import RatchetPlugin
from client.runs.pending import bug_in
from client.sdk.agent import AgentClient
from client.sdk.material import material_for
from client.server.connection import Connection
from client.server.garbage import find_garbage
from tests.server.conftest import real_server
from tests.server.trials import (
    FREELY,
    Run,
    begin,
    calls,
    command,
    decide,
    eventually,
    log_of,
    open_request,
    replayed,
    scripted,
    task,
    told_by_history,
    tool_calls,
)
from worker import build_worker
from workflows.api import TASK_QUEUE, AgentTask, OnEnd, RunResult
from workflows.people import Approvals, People
from workflows.workflow import AgentWorkflow

OLD, NEW = [SecretStr(base64.b64encode(os.urandom(64)).decode()) for _ in range(2)]
TOOLS = '''
from pydantic import BaseModel
from activities.tools import Tool, TransientError

class Words(BaseModel):
    """Say something secret."""
    text: str
    times: int = 1

async def say(params: Words) -> str:
    return f"Marker-{'output'} {params.text} " * params.times

async def fail(params: Words) -> str:
    raise TransientError(f"Marker-{'failure'}")

TOOLS = [
    Tool(name="say_secret", params=Words, run=say, effect="unsafe"),
    Tool(name="fail_secret", params=Words, run=fail, effect="read"),
]
'''
MARKERS = ("goal", "material", "argument", "output", "failure", "reply", "decision", "steering")
CODE = """```repl
print(context_slice(0, 30))
FINAL(len(context_slice(0, 9)))
```"""


def settings_of(home: Path, **keys: SecretStr) -> Settings:
    """Of a worker with these keys."""
    tools = home / "secret_tools.py"
    tools.write_text(TOOLS)
    return Settings(
        data_dir=home / ".ratchet",
        files_root=home,
        modules=(str(tools),),
        shutdown_seconds=1,
        encryption_keys=keys,
    )


async def client_of(server: Client, settings: Settings) -> Client:
    """Of a process with these settings."""
    address = server.service_client.config.target_host
    return await Client.connect(address, plugins=[RatchetPlugin(settings)])


async def two_runs(client: Client, settings: Settings) -> list[Run]:
    """Runs in which each marker appears, small and large."""
    asks = {"people": People(), "approvals": Approvals(effects={"unsafe": "always"})}
    told = await begin(
        client,
        task(
            calls(("fail_secret", {"text": "Marker-argument"})),
            calls(("say_secret", {"text": "Marker-argument", "times": 2000})),
            "Marker-reply " * 10,
            tools=("say_secret", "fail_secret"),
            goal="Marker-goal " * 5,
            on_end=OnEnd(failed="fail_workflow"),
            **asks,
        ),
        static_summary="Marker-goal",
    )
    request = await open_request(told)
    await command(told, "steer", text="Marker-steering")
    await decide(told, "approve", request, text="Marker-decision")
    text = "Marker-material\n" * 20_000
    read = await begin(
        client,
        AgentTask(
            goal="Marker-goal",
            machine="code",
            material=await material_for(text, Stores(settings).sealed),
            models={"default": scripted(CODE, "Marker-reply"), "sub": scripted("Marker-reply")},
            approvals=FREELY,
        ),
    )
    return [told, read]


def shown(home: Path) -> set[str]:
    """The markers that are somewhere below the folder in the clear."""
    files: Iterable[Path] = (one for one in home.rglob("*") if one.is_file() and one.suffix != ".py")
    content = b"".join(one.read_bytes() for one in files)
    return {one for one in MARKERS if f"Marker-{one}".encode() in content}


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({}, id="plain", marks=pytest.mark.exhaustive),
        pytest.param({"k2026": NEW}, id="encrypted"),
    ],
)
async def test_disk_holds_nothing_plain(keys: dict[str, SecretStr], tmp_path: Path) -> None:
    settings = settings_of(tmp_path, **keys)
    database = tmp_path / "temporal.db"
    async with real_server(settings, database=database) as client, build_worker(client, settings):
        for run in await two_runs(client, settings):
            assert (await run.result()).archived
            (log, told) = (await log_of(run), await told_by_history(client, run))
            assert tool_calls(told) == tool_calls(log), "where the code is broken, people read the history"
            blobs = sorted(settings.blobs_dir.rglob("*"))
            await replayed(run, settings)
            assert sorted(settings.blobs_dir.rglob("*")) == blobs
    assert {path.name for path in settings.data_dir.iterdir()} > {"archive.db", "cache.db", "blobs"}
    assert shown(tmp_path) == (set() if keys else set(MARKERS))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rotation")


@pytest.fixture(scope="module")
async def server(home: Path) -> AsyncIterator[Client]:
    """A server, and a client with the old key."""
    async with real_server(settings_of(home, k2025=OLD)) as client:
        yield client


async def waiting_run(server: Client, settings: Settings) -> Run:
    """A run that waits for an approval; its worker is gone."""
    asks = {"people": People(), "approvals": Approvals(effects={"unsafe": "always"})}
    script = calls(("say_secret", {"text": "it", "times": 2000})), "done"
    async with build_worker(server, settings):
        run = await begin(server, task(*script, tools=("say_secret",), **asks))
        await open_request(run)
    return run


async def test_run_continues_under_new_key_and_waits_for_missing_one(server: Client, home: Path) -> None:
    run = await waiting_run(server, settings_of(home, k2025=OLD))
    for keys, problem in (({"k2026": NEW}, "'k2025', which this process lacks (it has k2026)"), ({}, "none")):
        hasty = settings_of(home, **keys)
        client = await client_of(server, hasty)
        async with build_worker(client, hasty):
            await client.get_workflow_handle(run.id).signal("nothing")

            async def named(client: Client = client, problem: str = problem) -> bool:
                return problem in (await bug_in(client, run.id) or "")

            await eventually(named)
    rotated = settings_of(home, k2026=NEW, k2025=OLD)
    client = await client_of(server, rotated)
    async with build_worker(client, rotated):
        run = client.get_workflow_handle(run.id, result_type=RunResult)
        await decide(run, "approve")
        assert (await run.result()).answer == "done"
    await replayed(run, rotated)
    history = (await run.fetch_history()).to_json()
    assert all(base64.b64encode(name).decode() in history for name in (b"k2025", b"k2026"))


async def test_another_key_of_known_name_is_refused_when_it_connects(server: Client, home: Path) -> None:
    with pytest.raises(
        WrongKey, match=r"'k2025' in RATCHET_ENCRYPTION_KEYS is not the key that .*blobs knows"
    ):
        await client_of(server, settings_of(home, k2026=NEW, k2025=NEW))
    await client_of(server, settings_of(home, k2025=OLD))


@activity.defn(name="call_tool")
async def never_called(request: ToolInput) -> ToolResult:
    raise AssertionError("its worker cannot read what it is asked to do")


async def test_call_unreadable_to_its_worker_was_not_made_and_waits(server: Client, home: Path) -> None:
    rotated = settings_of(home, k2026=NEW, k2025=OLD)
    client = await client_of(server, rotated)
    run = await waiting_run(client, rotated)
    of_workflows, of_calls = [
        Client(
            server.service_client,
            data_converter=data_converter((stores.blobs, stores.secret), stores.keys),
        )
        for stores in (Stores(rotated), Stores(settings_of(home, k2025=OLD)))
    ]
    moves = Worker(
        of_workflows,
        task_queue=TASK_QUEUE,
        workflows=[AgentWorkflow],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    async with moves, Worker(of_calls, task_queue=TASK_QUEUE, activities=[never_called]):
        await decide(run, "approve")

        async def waits() -> bool:
            events = (await run.fetch_history()).events
            return any(event.HasField("timer_started_event_attributes") for event in events[-3:])

        await eventually(waits)
    async with build_worker(client, rotated):
        result = await run.result()
    assert (result.answer, [call.tool for call in result.calls]) == ("done", ["say_secret"])
    assert not any(one.kind == "outcome" for one in result.decisions)
    await replayed(run, rotated)


async def test_plain_messages_count_and_strangers_encrypted_ones_are_recorded(
    server: Client, home: Path
) -> None:
    settings = settings_of(home, k2025=OLD)
    run = await waiting_run(server, settings)
    plain = Client(server.service_client, data_converter=DataConverter.default).get_workflow_handle(run.id)
    async with build_worker(server, settings):
        marks = {"encoding": b"binary/encrypted", "encryption-key-id": b"k2030"}
        await plain.signal("command", RawValue(Payload(metadata=marks, data=b"x" * 50)))
        await plain.signal("command", {"command": "abort", "text": "typed in the UI"})
        assert (await run.result()).exit_reason == "aborted"
        (record,) = [one for one in await log_of(run) if one.event == "UnusableSignal"]
        assert "an encrypted value that this store's workers and clients did not make" in str(record.error)


async def test_history_without_encryption_replays_with_keys(server: Client, home: Path) -> None:
    plain = settings_of(home)
    client = await client_of(server, plain)
    async with build_worker(client, plain):
        run = await begin(client, task("done", tools=("say_secret",)))
        await run.result()
    await replayed(run, settings_of(home, k2025=OLD))


async def test_reader_without_the_key_is_told_which(server: Client, home: Path) -> None:
    settings = settings_of(home, k2025=OLD)
    async with build_worker(server, settings):
        run = await begin(server, task("Marker-reply", tools=("say_secret",)))
        await run.result()
    (home / "other").mkdir()
    plain, other = settings_of(home), settings_of(home / "other")
    stranger = AgentClient(Connection(await client_of(server, other), other, "the test server"))
    with pytest.raises(Unreadable, match=r"it is encrypted, .*: name .*--data-dir, or set RATCHET_ENC"):
        await stranger.result(run.id)
    agents = AgentClient(Connection(await client_of(server, plain), plain, "the test server"))
    for reading in (agents.result, agents.records, agents.status, agents.replay, partial(exported, agents)):
        with pytest.raises(RatchetError, match=r"^[^;]* with the key 'k2025', which this process lacks"):
            await reading(run.id)
    (line,) = [one for one in await agents.list() if one.id == run.id]
    assert (line.exit_reason, line.goal) == ("stop", "")


async def test_query_of_a_run_that_was_refused_says_why(server: Client, home: Path) -> None:
    settings = settings_of(home, k2025=OLD)
    async with build_worker(server, settings):
        run = await begin(server, task("done", tools=("absent",)))
        with suppress(WorkflowFailureError):
            await run.result()
        agents = AgentClient(Connection(server, settings, "the test server", queues=(TASK_QUEUE,)))
        with pytest.raises(RunRefused, match="unknown tools: absent"):
            await agents.status(run.id)


async def test_run_nobody_can_decrypt_is_named_and_can_be_ended(server: Client, home: Path) -> None:
    """It was started with a key that is gone, in the store of the others."""
    lost = settings_of(home, lost=NEW)
    run = await begin(await client_of(server, lost), task("done", tools=("say_secret",)))
    settings = settings_of(home, k2025=OLD, k2026=NEW)
    client = await client_of(server, settings)
    agents = AgentClient(Connection(client, settings, "the test server"))
    agents.connection.stores.blobs.put(b"where nothing is old, no run is read")

    async def blocks() -> bool:
        with suppress(RatchetError):
            await find_garbage(client, agents.connection.stores, timedelta())
            return False
        return True

    await eventually(blocks)
    with pytest.raises(RatchetError, match=f"what run {run.id} needs cannot be seen: .*'lost'.*--forget"):
        await find_garbage(client, agents.connection.stores, timedelta())
    checked = [one async for one, _ in check_runs(agents) if one.run == run.id]
    assert [(one.verdict, "'lost', which this process lacks" in one.reason) for one in checked] == [
        ("unknown", True)
    ]
    async with build_worker(client, settings):

        async def fails() -> bool:
            return "'lost', which this process lacks" in (await bug_in(client, run.id) or "")

        await eventually(fails)
        await agents.cancel(run.id)
        assert (await agents.describe(run.id)).progress == "running"
        await agents.cancel(run.id, force=True)
    assert (await agents.describe(run.id)).progress == "terminated"
    await find_garbage(client, agents.connection.stores, timedelta(), forget=[run.id])
