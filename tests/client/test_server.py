"""The embedded server: one per data directory, whoever starts it, whatever is killed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from client.errors import ServerError, UsageError
from client.namespace import RETENTION, missing_attributes
from client.process import command_line, end_process, listens, started_at
from client.server import EmbeddedServer, Ports, check_space, running_server, stop_server
from client.serverlock import ServerLock, ServerRecord
from client.serverprocess import log_tail, port_taken
from tests.client.conftest import ROOT, bare_environment

USER = """
import asyncio, sys
from pathlib import Path
from client.server import EmbeddedServer

async def use():
    await EmbeddedServer.attach(Path(sys.argv[1]))
    print("attached", flush=True)
    await asyncio.sleep(600)

asyncio.run(use())
"""


RECORD: dict[str, Any] = {"pid": 1, "started": "then", "host": "here", "port": 1, "ui_port": 2}


async def test_users_share_one_server_and_the_last_one_stops_it(data_dir: Path) -> None:
    first, second = await asyncio.gather(EmbeddedServer.attach(data_dir), EmbeddedServer.attach(data_dir))
    assert first.record == second.record
    with pytest.raises(UsageError, match=r"already runs with port \d+, not 1"):
        await EmbeddedServer.attach(data_dir, Ports(grpc=1))
    assert not first.release()
    assert second.alive()
    assert second.release()
    assert not second.alive()
    assert running_server(data_dir) is None


async def test_a_killed_server_is_followed_by_one_with_the_same_ports_and_runs(data_dir: Path) -> None:
    first = await EmbeddedServer.attach(data_dir)
    client = await Client.connect(first.address)
    assert await missing_attributes(client) == []
    described = await client.workflow_service.describe_namespace(
        DescribeNamespaceRequest(namespace="default")
    )
    assert described.config.workflow_execution_retention_ttl.ToTimedelta() == RETENTION
    await client.start_workflow("AgentWorkflow", id="kept", task_queue="nobody")
    assert first.record.pid is not None
    os.kill(first.record.pid, signal.SIGKILL)
    assert not first.stopped(), "it ended by itself"
    async with await EmbeddedServer.attach(data_dir) as second:
        assert (second.record.port, second.record.ui_port) == (first.record.port, first.record.ui_port)
        assert second.record.pid != first.record.pid
        kept = await (await Client.connect(second.address)).get_workflow_handle("kept").describe()
        assert kept.id == "kept"
        first.release()
        assert not second.stopped()
        assert stop_server(data_dir) == second.record
        assert second.stopped()


async def test_a_killed_user_leaves_a_server_that_the_next_one_uses_and_stops(data_dir: Path) -> None:
    user = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", USER, str(data_dir)), stdout=PIPE, cwd=ROOT, env=bare_environment()
    )
    assert user.stdout is not None
    await user.stdout.readline()
    left = running_server(data_dir)
    assert left is not None
    user.kill()
    await user.wait()
    next_user = await EmbeddedServer.attach(data_dir)
    assert next_user.record == left
    assert next_user.release()
    assert running_server(data_dir) is None


@pytest.mark.parametrize("again", [False, True])
async def test_a_server_whose_directory_is_taken_away_is_stopped_by_its_last_user(
    data_dir: Path, again: bool
) -> None:
    user = await EmbeddedServer.attach(data_dir)
    shutil.rmtree(data_dir)
    await asyncio.to_thread(data_dir.mkdir)  # as a worker's cache does that is written meanwhile
    if again:
        async with await EmbeddedServer.attach(data_dir) as later:
            assert user.release()
            assert later.alive()
    else:
        assert user.release()
    assert not user.alive()


@pytest.mark.parametrize("mark", ["its own", "another's"])
def test_a_process_that_is_not_the_server_is_never_killed(made_dir: Path, mark: str) -> None:
    with subprocess.Popen(["sleep", "600"]) as foreign:
        started = started_at(foreign.pid)
        assert started is not None
        record = ServerRecord(
            pid=foreign.pid,
            started=started if mark == "its own" else "long ago",
            host=socket.gethostname(),
            port=1,
            ui_port=2,
        )
        ServerLock(made_dir).write(record)
        assert running_server(made_dir) is None
        assert stop_server(made_dir) is None
        assert foreign.poll() is None
        foreign.kill()


async def test_a_port_in_use_is_named(data_dir: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} is in use"):
            await EmbeddedServer.attach(data_dir, Ports(grpc=port))


async def test_a_port_that_is_taken_while_the_server_starts_is_left_for_another(made_dir: Path) -> None:
    lock, log = ServerLock(made_dir), made_dir / "server.log"
    with socket.socket() as other:
        # Bound and not listening it lets others bind: the port counts as free until it listens.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        lock.write(ServerRecord(**RECORD | {"pid": None, "port": port}))
        starting = asyncio.create_task(EmbeddedServer.attach(made_dir))
        while not (record := lock.read()) or record.pid is None:  # noqa: ASYNC110  # a file has no event
            await asyncio.sleep(0.001)
        assert record.port == port
        other.listen()
        async with await starting as server:
            assert server.record.port != port
            await Client.connect(server.address)
    assert f"127.0.0.1:{port}: bind: address already in use" in await asyncio.to_thread(log.read_text)


def test_of_a_crash_the_words_are_shown_and_not_the_greeting_or_the_stack(tmp_path: Path) -> None:
    stack = "goroutine 1 [running]:\n" + "main.main()\n\t/home/main.go:18 +0x8e\n" * 20
    taken = "listen tcp 127.0.0.1:1: bind: address already in use"
    (tmp_path / "server.log").write_text(
        "--- temporal\nelse\n--- temporal\nTemporal CLI 1.9.1 (Server 1.32.0, UI 2.54.1)\n\n"
        "Temporal Server:      localhost:1\nTemporal Persistence: /x/temporal.db\n"
        "Temporal UI:          http://localhost:2\nTemporal Metrics:     http://localhost:3/metrics\n"
        f"{taken}\npanic: {taken}\n\n{stack}"
    )
    assert log_tail(tmp_path).splitlines()[1:] == [f"  {taken}", f"  panic: {taken}"]
    assert port_taken(tmp_path)
    with (tmp_path / "server.log").open("a") as log:
        log.write("--- temporal\nno database\n")
    assert not port_taken(tmp_path)


def test_who_takes_connections_at_a_port_is_told_apart_from_others() -> None:
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        port = ours.getsockname()[1]
        assert not listens(os.getpid(), port)
        ours.listen()
        assert listens(os.getpid(), port)
        assert not listens(os.getppid(), port)


async def test_a_server_that_does_not_start_shows_the_end_of_its_log(made_dir: Path) -> None:
    await asyncio.to_thread((made_dir / "temporal.db").write_text, "no database\n" * 100)
    with pytest.raises(ServerError, match=r"(?s)ended while starting.*server\.log.*not a database"):
        await EmbeddedServer.attach(made_dir)
    assert running_server(made_dir) is None
    lock = ServerLock(made_dir)
    with lock.guarded():
        assert not lock.in_use()


async def test_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"file/data cannot be used: .*--data-dir"):
        await EmbeddedServer.attach(tmp_path / "file" / "data")


def test_a_full_disk_is_named_before_the_server_starts(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"3\.0 MB left.*at least 64 MB"):
        check_space(tmp_path, free=3_000_000, needed=64_000_000)


async def test_a_server_of_another_host_is_left_alone_while_it_is_used(made_dir: Path) -> None:
    lock = ServerLock(made_dir)
    lock.write(ServerRecord(pid=1, started="then", host="elsewhere", port=1, ui_port=2))
    lock.join()
    with pytest.raises(ServerError, match="runs on host elsewhere"):
        await EmbeddedServer.attach(made_dir)
    lock.leave()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"pid": 12', id="half written"),
        pytest.param(json.dumps({"pid": "x"}), id="other fields"),
        pytest.param(json.dumps(RECORD | {"port": 99_999_999}), id="no port"),
        pytest.param(json.dumps(RECORD | {"pid": -1}), id="every process"),
    ],
)
def test_a_record_that_makes_no_sense_counts_as_none(made_dir: Path, text: str) -> None:
    lock = ServerLock(made_dir)
    lock.record_path.write_text(json.dumps(RECORD))
    assert lock.read() is not None
    lock.record_path.write_text(text)
    assert lock.read() is None


async def test_a_record_that_cannot_be_read_is_named(made_dir: Path) -> None:
    record = made_dir / "server.json"
    await asyncio.to_thread(record.mkdir)
    with pytest.raises(ServerError, match=r"server\.json cannot be used: Is a directory; remove it"):
        await EmbeddedServer.attach(made_dir)
    with pytest.raises(ServerError, match=r"server\.json cannot be used: .*; remove it"):
        ServerLock(made_dir).write(ServerRecord(**RECORD))
    await asyncio.to_thread(record.rmdir)


def test_a_lock_that_is_held_for_too_long_is_an_error(made_dir: Path) -> None:
    with (
        ServerLock(made_dir).guarded(),
        pytest.raises(ServerError, match="another command has been starting"),
        ServerLock(made_dir).guarded(patience=0.1),
    ):
        pass


def test_a_process_is_known_by_its_start_and_its_command() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        started = started_at(process.pid)
        assert started is not None
        assert started_at(process.pid) == started
        while not (words := command_line(process.pid)):  # Linux shows none while a program is being loaded
            assert process.poll() is None
        assert words == "sleep 60"
        end_process(process.pid, "another start", 1)
        assert process.poll() is None
        end_process(process.pid, started, 1)
        assert started_at(process.pid) is None
        assert command_line(process.pid) == ""
