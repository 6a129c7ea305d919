"""The plugin and the worker: users' machines on a real server, in the sandbox, and the worker's process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Replayer

from activities.settings import Settings
from activities.store.archive import Archive
from client.agents.agentfile import AgentFile
from client.errors import run_failed
from client.plugin import RatchetPlugin
from client.server.connection import Connection, connected, has_worker
from client.server.embedded import temporal_binary
from client.server.worker import build_worker
from tests import forked
from tests.server.conftest import STARTS_WITHIN
from workflows.api import TASK_QUEUE, WORKFLOW_TYPE, AgentTask, RunResult

USER_MODULE = Path(__file__).with_name("user_module.py")
IMPURE = {
    "clock": ("from datetime import datetime", "datetime.now()", "datetime.datetime.now"),
    "seconds": ("from time import monotonic", "monotonic()", "time.monotonic"),
    "sleep": ("import time", "time.sleep(0)", "time.sleep"),
    "chance": ("from random import randint", "randint(1, 6)", "random.randint"),
    "identity": ("from uuid import uuid4", "uuid4()", "uuid.uuid4"),
    "secret": ("import secrets", "secrets.token_hex()", "secrets.token_hex"),
    "file": ("", "open('/dev/null').read()", "open"),
    "path": ("from pathlib import Path", "Path('/dev/null').read_text()", "pathlib.Path.read_text"),
    "environment": ("import os", "os.environ['HOME']", "os.environ.HOME"),
    "network": ("import socket", "socket.create_connection(('::1', 1))", "socket.create_connection"),
    "thread": ("from threading import Thread", "Thread(target=len).start()", "threading.Thread"),
    "process": ("import subprocess", "subprocess.run(['true'])", "subprocess.run"),
}
LIBRARIES = ("httpx2", "openai", "jinja2", "structlog")
"""What a tool beside a machine may need."""
"""Name of a machine -> import at the top of its file, what its state does, and what is refused."""
GUARDED = """
from ratchet import StateMachine
class E(Enum):
    A, B = "a", "b"
def late(event, context):
    return time.time() > 0
PLAIN = StateMachine().state(E.A).transition(E.A, str, E.B, guard=late).terminal(E.B)
MACHINE ="""


def source_of(name: str) -> str:
    """The file of a machine that does something impure: in its state, in a guard, or when it is imported."""
    given, done, _ = IMPURE.get(name, ("import time", "1", ""))
    if name == "guard":
        done = "PLAIN.run(E.A, {}, lambda s, c: 'x')"
    text = USER_MODULE.read_text().replace('name="poet"', f'name="{name}"').replace("HOOKS", "OTHER")
    text = text.replace("reply.text}", f"str({done})}}").replace("TOOL =", "UNUSED =")
    text = text.replace("from enum", f"{given}\nfrom enum", 1)
    text = text.replace("\nMACHINE =", GUARDED if name == "guard" else "\nMACHINE =")
    text = text.replace("from enum", f"import {name}\nfrom enum", 1) if name in LIBRARIES else text
    text = text + f"\ndef run(params):\n    import {name[7:]}\n" if name.startswith("within-") else text
    return text + ("\nSTARTED = time.time()\n" if name == "imported" else "")


def task(machine: str) -> AgentTask:
    """A run of a machine with a script for its model."""
    script = {"provider": "scripted", "script": [{"reply": "roses"}]}
    return AgentFile(name="poet", machine=machine, models={"default": script}).task("Write.")


@pytest.fixture(scope="module")
async def connection(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Connection]:
    """A worker with users' modules: a good one, and some that are not deterministic."""
    folder, modules = tmp_path_factory.mktemp("modules"), [str(USER_MODULE)]
    within = (f"within-{name}" for name in LIBRARIES)
    for name in (*IMPURE, "guard", "imported", *LIBRARIES, *within):
        path = folder / f"{name}.py"
        path.write_text(source_of(name))
        modules.append(str(path))
    settings = Settings(data_dir=tmp_path_factory.mktemp("data"), modules=tuple(modules))
    async with connected(settings=settings, worker=True) as found:
        yield found


async def result(connection: Connection, machine: str) -> RunResult:
    """How a run of the machine ends."""
    found: RunResult = await connection.temporal.execute_workflow(
        WORKFLOW_TYPE, task(machine), id=machine, task_queue=TASK_QUEUE, result_type=RunResult
    )
    return found


async def test_machine_of_a_user_runs_and_replays(connection: Connection) -> None:
    assert (await result(connection, "poet")).answer == "roses"
    assert await has_worker(connection.temporal)
    history = await connection.temporal.get_workflow_handle("poet").fetch_history()
    replayer = Replayer(workflows=[], plugins=[RatchetPlugin(connection.settings)])
    replayed = await replayer.replay_workflow(history)
    assert replayed.replay_failure is None


@pytest.mark.parametrize(
    ("machine", "used", "line"),
    [(name, used, f"str({done})}}") for name, (_, done, used) in IMPURE.items()]
    + [("guard", "time.time", "return time.time()"), ("imported", "time.time", "STARTED =")],
)
async def test_impure_machine_is_refused_naming_what_and_where(
    connection: Connection, machine: str, used: str, line: str
) -> None:
    with pytest.raises(WorkflowFailureError) as failed:
        await result(connection, machine)
    source = source_of(machine)
    number = source[: source.index(line)].count("\n") + 1
    text = str(run_failed(machine, failed.value))
    assert f"uses {used} (" in text
    assert f"{machine}.py, line {number}, in " in text
    assert ("inside the tool's function" if machine == "imported" else "into a tool") in text
    if machine != "imported":  # that run has not begun
        kept = Archive(connection.settings.archive_file).result(machine)
        assert kept is not None
        assert kept["exit_reason"] == "broken_rule"


@pytest.mark.parametrize("library", LIBRARIES)
async def test_library_at_top_of_machine_file_is_told_its_place(connection: Connection, library: str) -> None:
    """It is only needed by the tool, and inside the tool's function it does no harm."""
    with pytest.raises(WorkflowFailureError) as failed:
        await result(connection, library)
    text = str(run_failed(library, failed.value))
    assert f"{library}.py, line " in text
    assert "Import a library that a tool needs inside the tool's function" in text
    assert (await result(connection, f"within-{library}")).ok


SHARING = """
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated
from pydantic import BaseModel
from ratchet import Resource, Tool

FILE = Path(__file__).with_suffix(".log")

@asynccontextmanager
async def open_log():
    number = FILE.read_text().count("open") if FILE.exists() else 0
    with FILE.open("a") as file:
        print("open", number, file=file, flush=True)
        yield number
        print("close", number, file=file, flush=True)

class Params(BaseModel):
    "Say which it is."

def run(params: Params, number: Annotated[int, Resource(open_log)]) -> str:
    return f"resource {number}"

TOOL = Tool(name="which", params=Params, run=run, effect="read")
"""


async def test_end_of_worker_closes_nothing_of_another_with_same_plugin(
    connection: Connection, tmp_path: Path
) -> None:
    module = tmp_path / "sharing.py"
    module.write_text(SHARING)
    settings = Settings(data_dir=tmp_path / "data", modules=(str(module),), shutdown_seconds=1)
    config = connection.temporal.config()
    config["plugins"] = [RatchetPlugin(settings)]
    client = Client(**config)
    call = {"reply": "", "tool_calls": [{"id": "1", "name": "which"}]}
    script = {"provider": "scripted", "script": [call, {"reply": "done"}]}
    asks = AgentFile(name="asks", machine="tools", tools=("which",), models={"default": script})

    async def run_on(queue: str, number: int) -> None:
        of: Any = {"task_queue": queue, "id": f"which-{queue}-{number}", "result_type": RunResult}
        assert (await client.execute_workflow(WORKFLOW_TYPE, asks.task("Which?"), **of)).ok

    log = module.with_suffix(".log")
    first, second = build_worker(client, settings, "first"), build_worker(client, settings, "second")
    async with second:
        async with first:
            await run_on("first", 0)
            await run_on("second", 0)
        assert log.read_text().splitlines() == ["open 0", "open 1", "close 0"]
        await run_on("second", 1)
    assert log.read_text().splitlines() == ["open 0", "open 1", "close 0", "close 1"]


async def test_worker_polls_until_it_is_stopped(tmp_path: Path) -> None:
    async with connected(settings=Settings(data_dir=tmp_path)) as alone:
        places = {"TEMPORAL_ADDRESS": alone.where, "RATCHET_DATA_DIR": str(tmp_path)}
        env = {**os.environ, **places, "RATCHET_MODULES": json.dumps([str(USER_MODULE)])}
        with forked.Forked(forked.WORKER, env=env, stderr=forked.PIPE) as worker:
            assert (await result(alone, "poet")).answer == "roses"
            worker.send_signal(signal.SIGTERM)
            _, stderr = await asyncio.to_thread(worker.communicate, forked.SECONDS)
            assert worker.returncode == 0, stderr
        assert not await has_worker(alone.temporal), "it announced its end"


async def test_worker_refuses_a_bare_namespace(tmp_path: Path) -> None:
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=temporal_binary(),
        dev_server_log_level="error",
        dev_server_startup_timeout=STARTS_WITHIN,
    ) as environment:
        address = environment.client.service_client.config.target_host
        env = {**os.environ, "TEMPORAL_ADDRESS": address, "RATCHET_DATA_DIR": str(tmp_path)}
        code, _, err = await asyncio.to_thread(forked.spoken, forked.WORKER, env=env)
    assert (code, "AgentName" in err) == (1, True)
