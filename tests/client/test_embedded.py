"""The embedded server: one per data directory, whoever starts it, whatever is killed."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from client.errors import ServerError, UsageError
from client.server.embedded import (
    EmbeddedServer,
    Ports,
    ServerRecord,
    data_directory,
    running_server,
    stop_server,
)
from client.server.namespace import RETENTION, missing_attributes
from client.server.ownership import adopt, claim
from client.server.ui import UNREACHABLE
from tests.client.conftest import ROOT
from tests.conftest import Environ

USER = """
import asyncio, sys
from pathlib import Path
from client.server.embedded import EmbeddedServer

async def use():
    await EmbeddedServer.attach(Path(sys.argv[1]))
    print("attached", flush=True)
    await asyncio.sleep(600)

asyncio.run(use())
"""
RECORD: dict[str, Any] = {"pid": 2**22, "host": socket.gethostname(), "port": 1, "ui_port": 2}


def write_record(home: Path, **fields: Any) -> None:
    """The record that another process left."""
    (home / "server.json").write_text(json.dumps(RECORD | fields))


def open_to_others(home: Path) -> list[str]:
    """Files that not only their owner may read."""
    return [path.name for path in home.rglob("*") if path.stat().st_mode & 0o077]


def delete_content(home: Path) -> None:
    """Delete a directory, and create it again, as a worker does that writes its cache."""
    shutil.rmtree(home)
    home.mkdir()


async def test_users_share_one_server_and_the_last_stops_it(data_dir: Path) -> None:
    first, second = await asyncio.gather(EmbeddedServer.attach(data_dir), EmbeddedServer.attach(data_dir))
    assert first.record == second.record
    with pytest.raises(UsageError, match="port"):
        await EmbeddedServer.attach(data_dir, Ports(grpc=1))
    assert not await first.release()
    assert second.alive()
    assert await second.release()
    assert not second.alive()
    assert running_server(data_dir) is None


async def test_killed_server_returns_with_its_ports_and_runs(data_dir: Path) -> None:
    first = await EmbeddedServer.attach(data_dir)
    client = await Client.connect(first.record.address)
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
        kept = await (await Client.connect(second.record.address)).get_workflow_handle("kept").describe()
        assert kept.id == "kept"
        await first.release()
        assert not second.stopped()
        assert await stop_server(data_dir) == second.record
        assert second.stopped()
    assert open_to_others(data_dir) == []


async def test_killed_user_leaves_a_server_to_the_next(data_dir: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    user = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", USER, str(data_dir)), stdout=PIPE, env=environment
    )
    assert user.stdout is not None
    await user.stdout.readline()
    left = running_server(data_dir)
    assert left is not None
    user.kill()
    await user.wait()
    next_user = await EmbeddedServer.attach(data_dir)
    assert next_user.record == left
    assert await next_user.release()
    assert running_server(data_dir) is None


@pytest.mark.parametrize("again", [False, True])
async def test_server_of_a_deleted_directory_is_stopped(data_dir: Path, again: bool) -> None:
    user = await EmbeddedServer.attach(data_dir)
    delete_content(data_dir)
    if again:
        async with await EmbeddedServer.attach(data_dir) as later:
            assert await user.release()
            assert later.alive()
    else:
        assert await user.release()
    assert not user.alive()


async def test_foreign_process_is_never_stopped(data_dir: Path) -> None:
    foreign = await asyncio.create_subprocess_exec("sleep", "600")
    write_record(data_dir, pid=foreign.pid)
    assert running_server(data_dir) is None
    assert await stop_server(data_dir) is None
    assert foreign.returncode is None
    foreign.kill()
    assert await foreign.wait() == -signal.SIGKILL


async def test_port_in_use_is_named(data_dir: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=str(port)):
            await EmbeddedServer.attach(data_dir, Ports(grpc=port))


async def start_while_port_is_taken(data_dir: Path) -> tuple[EmbeddedServer, int] | None:
    """A server whose port another took after it was seen to be free, and that port. None: the server was
    faster."""
    with socket.socket() as other:
        # bound with this option and not listening: it counts as free until it listens
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        write_record(data_dir, port=port, stopped=True)
        starting = asyncio.create_task(EmbeddedServer.attach(data_dir))
        while json.loads((data_dir / "server.json").read_text())["stopped"]:  # noqa: ASYNC110  # a file has no event
            await asyncio.sleep(0.001)
        try:
            other.listen()
        except OSError:
            async with await starting:
                return None
        return await starting, port


async def test_port_taken_during_start_is_replaced(data_dir: Path) -> None:
    while (found := await start_while_port_is_taken(data_dir)) is None:
        await stop_server(data_dir)
    server, port = found
    async with server:
        assert server.record.port != port
        await Client.connect(server.record.address)


async def test_failed_start_shows_the_log(data_dir: Path) -> None:
    (data_dir / "temporal.db").write_text("no database\n" * 100)
    adopt(data_dir)
    with pytest.raises(ServerError, match=r"(?s)server\.log.*not a database"):
        await EmbeddedServer.attach(data_dir)
    assert running_server(data_dir) is None


async def test_crash_shows_its_message_without_stack(data_dir: Path) -> None:
    async with await EmbeddedServer.attach(data_dir) as server:
        (data_dir / "server.log").write_text(
            "panic: too bad\n\ngoroutine 1 [running]:\nmain.main()\n\t/home/main.go:18 +0x8e\n"
        )
        assert server.log_end().splitlines()[1:] == ["  panic: too bad"]


async def test_server_of_another_host_is_left_alone(data_dir: Path) -> None:
    server = await EmbeddedServer.attach(data_dir)
    write_record(data_dir, pid=1, host="elsewhere")
    with pytest.raises(ServerError, match="elsewhere"):
        await EmbeddedServer.attach(data_dir)
    write_record(data_dir, **server.record.model_dump())
    assert await server.release()


@pytest.mark.parametrize("text", ['{"pid": 12', '{"pid": "x"}', json.dumps(RECORD | {"pid": -1})])
def test_damaged_record_counts_as_none(data_dir: Path, text: str) -> None:
    (data_dir / "server.json").write_text(text)
    assert running_server(data_dir) is None


async def test_unreadable_record_is_named(data_dir: Path) -> None:
    (data_dir / "server.json").mkdir()
    with pytest.raises(ServerError, match=r"server\.json"):
        await EmbeddedServer.attach(data_dir)
    (data_dir / "server.json").rmdir()


@pytest.mark.parametrize("name", ["start.lock", "server.lock", "server.log", "users.lock"])
async def test_link_in_the_directory_leads_nowhere(data_dir: Path, name: str) -> None:
    outside = data_dir.parent / "outside"
    outside.write_text("mine\n")
    (data_dir / name).symlink_to(outside)
    try:
        await (await EmbeddedServer.attach(data_dir)).release()
    except (UsageError, ServerError):
        (data_dir / name).unlink()
    assert outside.read_text() == "mine\n"


def test_unusable_data_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file/data"):
        data_directory(tmp_path / "file" / "data")
    with pytest.raises(ServerError, match=str(tmp_path)):
        data_directory(tmp_path, needed=10**18)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to somebody else")
def test_data_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(UsageError, match="12345"):
        data_directory(tmp_path)


# -- whose runs a directory holds --------------------


@pytest.fixture
async def own(data_dir: Path) -> Path:
    """A directory with the database of an earlier command."""
    await (await EmbeddedServer.attach(data_dir)).release()
    return data_dir


async def refused(home: Path, why: str = "adopt") -> None:
    """Nothing is started there."""
    before = (home / "temporal.db").stat().st_mtime_ns
    with pytest.raises(UsageError, match=why) as error:
        await EmbeddedServer.attach(home)
    assert str(home) in str(error.value)
    assert running_server(home) is None
    assert (home / "temporal.db").stat().st_mtime_ns == before


async def test_database_that_came_with_other_files_is_refused_until_adopted(
    own: Path, state_home: Path, environ: Environ
) -> None:
    environ["XDG_STATE_HOME"] = str(own.parent / "another-user")
    await refused(own, "MB, last written")
    (own / "id").unlink()
    await refused(own)
    environ["XDG_STATE_HOME"] = str(state_home)
    (own / "id").symlink_to("../other/id")
    await refused(own)
    adopt(own)
    await (await EmbeddedServer.attach(own)).release()


class FixedMode(type(Path())):  # type: ignore[misc]  # the class depends on the system
    """A directory on a mount of WSL or SMB: `chmod` changes nothing."""

    def chmod(self, mode: int, *, follow_symlinks: bool = True) -> None: ...


def test_directory_whose_mode_is_fixed_is_refused_until_adopted(own: Path) -> None:
    own.chmod(0o777)
    home = FixedMode(own)
    with pytest.raises(UsageError, match="adopt"):
        claim(home)
    adopt(home)
    claim(home)
    assert os.stat(own).st_mode & 0o777 == 0o777


@pytest.mark.parametrize(
    "text",
    [
        "../../known",
        "0" * 32,
        *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("", "\udcff", "x" * 10_000)),
    ],
)
async def test_made_up_id_is_no_id(own: Path, state_home: Path, text: str) -> None:
    (state_home / "ratchet" / "known").touch()
    (own / "id").write_bytes(os.fsencode(text))
    await refused(own)


@pytest.mark.exhaustive
async def test_link_to_id_of_own_directory_is_no_id(own: Path, tmp_path: Path) -> None:
    cloned = tmp_path / "cloned"
    cloned.mkdir()
    (cloned / "temporal.db").write_bytes((own / "temporal.db").read_bytes())
    (cloned / "id").symlink_to(own / "id")
    await refused(cloned)


@pytest.mark.parametrize(
    "name",
    [
        "temporal.db-wal",
        pytest.param("store.secret", marks=pytest.mark.exhaustive),
        pytest.param("temporal.db", marks=pytest.mark.exhaustive),
        pytest.param("calls.db", marks=pytest.mark.exhaustive),
    ],
)
async def test_database_that_git_keeps_is_refused(own: Path, name: str) -> None:
    """A pull replaces files that git ignores, without a word: the next command would continue its runs."""
    git(own, "init", "--quiet", "..")
    await (await EmbeddedServer.attach(own)).release()
    (own / name).touch()
    git(own, "add", "--force", name)
    await refused(own, rf"git keeps {re.escape(name)}.*git rm --cached")
    git(own, "rm", "--cached", "--quiet", "--force", name)
    await (await EmbeddedServer.attach(own)).release()


async def test_nothing_that_a_repository_names_is_run(own: Path) -> None:
    """Its settings may have come with it, and git runs programs of them, as to fetch what the index lacks."""
    mark = own.parent / "executed"
    (own / "left out").mkdir()
    (own / "left out" / "file").write_text("text")
    git(own, "init", "--quiet", "..")
    git(own, "add", "--force", "left out")
    git(own.parent, "-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "--quiet", "-m", "all")
    git(own.parent, "sparse-checkout", "set", "--cone", "--sparse-index", f"{own.name}/kept")
    for tree in (own.parent / ".git" / "objects").glob("??/*"):
        tree.unlink()
    settings = {
        "core.repositoryFormatVersion": "1", "extensions.partialClone": "origin",
        "remote.origin.promisor": "true", "remote.origin.url": "ssh://x/y",
        "remote.origin.fetch": "+refs/heads/*:refs/remotes/origin/*",
        "core.sshCommand": f"touch '{mark}'; false", "core.fsmonitor": f"touch '{mark}'; false",
    }  # fmt: skip
    for name, value in settings.items():
        git(own.parent, "config", name, value)
    await (await EmbeddedServer.attach(own)).release()
    assert not mark.exists()


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True)


async def test_moved_or_copied_directory_stays_known(own: Path, tmp_path: Path) -> None:
    shutil.copytree(own, tmp_path / "copy")
    shutil.move(own, tmp_path / "moved")
    for home in (tmp_path / "copy", tmp_path / "moved"):
        await (await EmbeddedServer.attach(home)).release()


async def test_directory_is_closed_to_others(own: Path) -> None:
    os.chmod(own, 0o755)
    await (await EmbeddedServer.attach(own)).release()
    assert open_to_others(own.parent / "data") == []
    assert os.stat(own).st_mode & 0o077 == 0
    os.chmod(own, 0o777)
    await refused(own, "other users may write")


async def test_state_folder_that_cannot_be_written_is_named(data_dir: Path, environ: Environ) -> None:
    environ["XDG_STATE_HOME"] = os.devnull
    with pytest.raises(UsageError, match="XDG_STATE_HOME"):
        await EmbeddedServer.attach(data_dir)
    assert not (data_dir / "temporal.db").exists()


# -- the Web UI --------------------


def asked(port: int, method: str = "GET", path: str = "/api/v1/namespaces", **fields: str) -> tuple[int, str]:
    """Status and text of the answer to an HTTP request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    names = {name.replace("_", "-"): value.replace("PORT", str(port)) for name, value in fields.items()}
    connection.request(method, path, "{}" if method == "POST" else None, names)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerRecord]:
    """A server that runs, and its UI has found it."""
    async with await EmbeddedServer.attach(tmp_path_factory.mktemp("served")) as server:
        while asked(server.record.ui_port)[0] == 503:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.05)
        yield server.record


@pytest.mark.exhaustive
async def test_connection_whose_owner_stands_still_is_dropped_after_20_seconds(served: ServerRecord) -> None:
    """The server asks after 10 s whether somebody is there, and waits 10 s for an answer."""
    nothing_said = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    began = time.monotonic()
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + nothing_said)
    await asyncio.wait_for(reader.read(), 50)
    assert time.monotonic() - began > 19
    writer.close()


SIGNAL = "/api/v1/namespaces/default/workflows/none/signal/decide"
CROSS_SITE = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "image"}


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"Host": "evil.example:PORT"}, id="name that leads here"),
        pytest.param({"Host": "127.0.0.1.evil.example"}, id="name that begins right"),
        pytest.param({"Host": "localhost:PORT", "Origin": "http://evil.example"}, id="other origin"),
        pytest.param({"Host": "localhost:PORT", "Origin": "null"}, id="hidden origin"),
        pytest.param({"Host": "localhost:PORT", "Origin": "http://localhost:3000"}, id="other port"),
        pytest.param(CROSS_SITE, id="picture on another page"),
        pytest.param({**CROSS_SITE, "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"}, id="frame"),
        pytest.param({"X\n": "y"}, id="malformed"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_web_pages_reach_nothing_of_the_ui(
    served: ServerRecord, method: str, fields: dict[str, str]
) -> None:
    more = {"Content_Type": "text/plain"} if method == "POST" else {}
    if "X\n" in fields:
        with socket.create_connection(("127.0.0.1", served.ui_port)) as raw:
            raw.sendall(f"{method} / HTTP/1.1\r\nHost: localhost\r\nX: y\nHost: evil\r\n\r\n".encode())
            assert raw.recv(100).startswith(b"HTTP/1.1 403")
        return
    for path in ("/", "/api/v1/namespaces", SIGNAL):
        status, text = asked(served.ui_port, method, path, **fields, **more)
        assert (status, "Web UI of Ratchet; it" in text or "another web page" in text) == (403, True)


@pytest.mark.parametrize("field", ["X: a%sb\0", "X: %s\0"])
def test_no_header_holds_the_ui_up(served: ServerRecord, field: str) -> None:
    """To be checked, one of 60,000 blanks took minutes, in which nobody else was answered."""
    with socket.create_connection(("127.0.0.1", served.ui_port), timeout=30) as raw:
        raw.sendall(f"GET / HTTP/1.1\r\nHost: localhost\r\n{field % (' ' * 60_000)}\r\n\r\n".encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="typed"),
        pytest.param({"Host": "localhost:PORT", "Origin": "http://localhost:PORT"}, id="its own page"),
        pytest.param({"Host": "127.0.0.1:9", "Sec_Fetch_Site": "same-origin"}, id="forwarded port"),
        pytest.param(
            {**CROSS_SITE, "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}, id="link to it"
        ),
    ],
)
def test_ui_answers_people_and_its_own_pages(served: ServerRecord, fields: dict[str, str]) -> None:
    status, text = asked(served.ui_port, **fields)
    assert (status, '"name": "default"' in text) == (200, True), text
    assert "<html" in asked(served.ui_port, path="/namespaces/default/workflows/x", **fields)[1]
    if not fields:
        assert "of Ratchet" not in asked(served.ui_port, "POST", SIGNAL)[1]


def test_no_port_that_a_browser_reaches_answers_without_a_check(served: ServerRecord) -> None:
    """Browsers refuse `UNREACHABLE`; the rest, such as that of metrics, must not be an API of runs."""
    connections = psutil.Process(served.pid).net_connections("tcp")
    ports = {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN} - {served.port}
    assert len(ports & set(UNREACHABLE)) == 1
    for port in ports - set(UNREACHABLE):
        with suppress(http.client.HTTPException, OSError):
            assert '"name": "default"' not in asked(port, Host="evil.example")[1]


async def test_front_of_the_ui_ends_with_a_killed_server(data_dir: Path) -> None:
    async with await EmbeddedServer.attach(data_dir) as server:
        os.kill(server.record.pid, signal.SIGKILL)
        with pytest.raises(OSError, match="refused"):  # noqa: PT012  # it takes a moment
            while True:
                socket.create_connection(("127.0.0.1", server.record.ui_port)).close()
                await asyncio.sleep(0.05)


async def test_ui_port_in_use_is_named(data_dir: Path, served: ServerRecord) -> None:
    with pytest.raises(UsageError, match=rf"{served.ui_port}.*--ui-port"):
        await EmbeddedServer.attach(data_dir, Ports(ui=served.ui_port))
