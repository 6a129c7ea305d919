"""The command line with a server elsewhere: whose worker runs what, and what doctor mends."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.server import EmbeddedServer
from client.serverprocess import temporal_binary
from tests.client.conftest import PROGRAM, ROOT, bare_environment, run_ratchet

RUN = ("run", "--agent", "log_detective", "--json")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[str]:
    """The address of a server that nobody has used yet."""
    server = asyncio.run(EmbeddedServer.attach(tmp_path / "server"))
    yield server.address
    server.release()


def test_a_run_elsewhere_needs_a_worker_and_uses_that_of_dev(elsewhere: str, data_dir: Path) -> None:
    where = ("--address", elsewhere)
    refused = run_ratchet(data_dir, *RUN, *where, "Which?")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "nothing was started" in refused.stderr
    assert json.loads(run_ratchet(data_dir, "list", "--json", *where).stdout) == []

    detached = run_ratchet(data_dir, *RUN, *where, "--detach", "--id", "waits", "Which?")
    assert json.loads(detached.stdout) == {"id": "waits"}
    assert "no worker runs" in detached.stderr
    unknown = run_ratchet(data_dir, "log", "waits", *where)
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "no worker polls the task queue" in unknown.stderr

    environment = bare_environment(TEMPORAL_ADDRESS=elsewhere, RATCHET_DATA_DIR=str(data_dir))
    with subprocess.Popen(
        [*PROGRAM, "dev"], stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as dev:
        assert dev.stderr is not None
        said = ""
        while "A worker runs here" not in said:
            said = dev.stderr.readline()
            assert said, "dev ended"
        watched = run_ratchet(data_dir, "watch", "waits", "--json", *where)
        assert watched.returncode == 0, watched.stderr
        assert "fails most" in json.loads(watched.stdout.splitlines()[-1])["answer"]
        refused_there(data_dir, where)
        dev.send_signal(signal.SIGTERM)
        assert "stopped" in dev.stderr.read()
    assert dev.returncode == 0


def refused_there(data_dir: Path, where: tuple[str, ...]) -> None:
    """A worker that lacks the agent's modules refuses a run: told at once, and whenever it is asked for."""
    why = "unknown tools: transfer. This worker has: calculator"
    words = ("run", "--agent", "payments", "--detach", "--id", "lacking", "Pay.")
    refused = run_ratchet(data_dir, *words, *where)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"run lacking was refused, so nothing was done: the task cannot be run: {why}" in refused.stderr
    assert "Its id is used up all the same" in refused.stderr
    assert "transfer.py: start that worker with `ratchet dev --agent FILE`" in refused.stderr
    shown = run_ratchet(data_dir, "show", "lack", "--json", *where)
    status = json.loads(shown.stdout)["status"]
    assert (status["exit_reason"], why in status["error"]) == ("refused", True)
    for command in ("result", "log"):
        asked = run_ratchet(data_dir, command, "lack", *where)
        assert (asked.stdout, why in asked.stderr) == ("", True)
    stopped = run_ratchet(data_dir, "cancel", "lack", *where)
    assert "run lacking is over already (refused); nothing was stopped" in stopped.stderr


def test_doctor_registers_the_search_attributes_that_are_missing(tmp_path: Path, data_dir: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        temporal_binary(),
        "server",
        "start-dev",
        "--headless",
        "--ip",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    log = tmp_path / "server.log"
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as server:
        address = f"127.0.0.1:{port}"
        while "Temporal Server:" not in log.read_text():
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
        ill = run_ratchet(data_dir, "doctor", "--agent", "log_detective", "--address", address)
        assert ill.returncode == 1
        assert re.search(r"BAD +search attributes +missing: AgentName.*ratchet doctor --fix", ill.stdout)
        mended = run_ratchet(data_dir, "doctor", "--fix", "--address", address)
        assert re.search(r"ok +search attributes +registered AgentName", mended.stdout)
        server.terminate()
