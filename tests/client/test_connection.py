"""Connecting: where to, with which settings, and what is said when it fails."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.service import RPCError, RPCStatusCode

from activities.contracts import ModelSpec
from activities.settings import Settings
from client import errors, keys
from client.agents.agentfile import AgentFile
from client.plugin import RatchetPlugin
from client.server import connection, remote
from client.server.embedded import EmbeddedServer, running_server
from client.server.workerconfig import Allowed, forget, load_settings, memory_file, recalled, remember
from tests.conftest import Environ

Code = RPCStatusCode
GONE = "no poller seen for task queue recently, worker may be down"

# -- errors --------------------


@pytest.mark.parametrize(
    ("status", "message", "kind", "culprit"),
    [
        pytest.param(Code.NOT_FOUND, "workflow not found", errors.UnknownRun, "r1", id="unknown run"),
        pytest.param(Code.NOT_FOUND, "no namespace x", errors.RatchetError, "-n NAME", id="namespace"),
        pytest.param(Code.NOT_FOUND, "workflow execution already completed", errors.Refused, "r1", id="over"),
        pytest.param(Code.CANCELLED, "Timeout expired", errors.ServerBusy, "host:1 is busy", id="crowd"),
        pytest.param(Code.RESOURCE_EXHAUSTED, "rps limit", errors.ServerBusy, "host:1 is busy", id="limit"),
        pytest.param(Code.UNAVAILABLE, "tcp", errors.Unreachable, "host:1", id="server gone"),
        pytest.param(Code.UNAUTHENTICATED, "no", errors.RatchetError, "TEMPORAL_API_KEY", id="no key"),
        pytest.param(Code.INVALID_ARGUMENT, "search attribute", errors.RatchetError, "doctor", id="search"),
        pytest.param(Code.INTERNAL, "broken", errors.RatchetError, "broken", id="any other"),
    ],
)  # fmt: skip
async def test_server_errors_become_plain(
    status: Code, message: str, kind: type[Exception], culprit: str
) -> None:
    with pytest.raises(errors.RatchetError, match=culprit) as raised:
        async with errors.clear_errors("host:1", "r1"):
            raise RPCError(message, status, b"")
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("status", "message", "kind", "culprit"),
    [
        pytest.param(Code.CANCELLED, "Timeout expired", errors.WorkersBusy, "its workers", id="slow"),
        pytest.param(
            Code.FAILED_PRECONDITION, GONE, errors.NoWorker, "ratchet.worker", id="worker was killed"
        ),
    ],
)
async def test_error_of_a_query_speaks_of_workers(
    status: Code, message: str, kind: type[Exception], culprit: str
) -> None:
    with pytest.raises(errors.NoWorker, match=culprit) as raised:
        async with errors.clear_errors("host:1", "r1", query=True):
            raise RPCError(message, status, b"")
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (ApplicationError("no tool x", type="InvalidTask"), errors.RunRefused),
        (ApplicationError("boom"), errors.RunFailed),
        (TerminatedError("by ops"), errors.RunFailed),
        (CancelledError(), errors.RunFailed),
    ],
)
def test_failed_run_says_why(cause: Exception, kind: type[Exception]) -> None:
    error = WorkflowFailureError(cause=cause)
    found = errors.run_failed("r1", error)
    assert type(found) is kind
    assert "r1" in str(found)


# -- where to --------------------


def test_temporal_configuration_names_the_server(environ: Environ, tmp_path: Path) -> None:
    assert remote.remote_config() is None, "the embedded server is meant"
    file = tmp_path / "temporal.toml"
    file.write_text('[profile.default]\naddress = "a:1"\nnamespace = "n"\napi_key = "k"\n')
    environ["TEMPORAL_CONFIG_FILE"] = str(file)
    found = remote.remote_config()
    assert found is not None
    assert (found["target_host"], found["namespace"], found["api_key"]) == ("a:1", "n", "k")
    environ["TEMPORAL_ADDRESS"] = "b:2"
    assert (remote.remote_config() or {})["target_host"] == "b:2"
    assert (remote.remote_config("c:3", "m") or {})["target_host"] == "c:3"
    file.write_text("[profile")
    with pytest.raises(errors.UsageError, match=r"temporal\.toml"):
        remote.remote_config()


@pytest.mark.parametrize(
    ("address", "kind"),
    [("127.0.0.1:1", errors.Unreachable), ("no address", errors.UsageError)],
)
async def test_bad_address_is_named(tmp_path: Path, address: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=address):
        await connection.open_client(Settings(data_dir=tmp_path), {"target_host": address})


async def test_connection_starts_the_embedded_server(data_dir: Path) -> None:
    async with connection.connected(settings=Settings(data_dir=data_dir)) as found:
        running = running_server(data_dir)
        assert running is not None
        assert (found.where, found.ui) == (running.address, running.ui)
        assert isinstance(found.temporal.config()["plugins"][0], RatchetPlugin)
        async with connection.connected(
            settings=found.settings, remote={"target_host": found.where}
        ) as other:
            assert other.ui is None
    assert running_server(data_dir) is None


async def kill_inside(server: EmbeddedServer) -> None:
    """Kill the server, and wait."""
    async with connection.while_alive(server):
        os.kill(server.record.pid or 0, signal.SIGKILL)
        await asyncio.sleep(60)


async def test_dead_embedded_server_ends_its_users(data_dir: Path) -> None:
    async with await EmbeddedServer.attach(data_dir) as server:
        with pytest.raises(errors.ServerError, match="ended"):
            await kill_inside(server)
        current = asyncio.current_task()
        assert current is not None
        assert not current.cancelling()


async def test_no_worker_polls_a_fresh_server(data_dir: Path) -> None:
    async with await EmbeddedServer.attach(data_dir) as server:
        assert not await connection.has_worker(await Client.connect(server.record.address))


# -- what a command's worker may load --------------------


def test_named_modules_are_remembered_for_one_directory(tmp_path: Path) -> None:
    module = tmp_path / "mine.py"
    module.touch()
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    models = {"default": ModelSpec(base_url="http://localhost:1/v1"), "sub": ModelSpec()}
    agent = AgentFile(name="mine", machine="rlm", models=models, modules=(str(module),))
    remember(home, Allowed.of_agents(agent, agent))
    (tmp_path / "link").symlink_to(home)
    for again in (home, tmp_path / "other" / ".." / "home", tmp_path / "link"):
        settings = load_settings(again)
        assert (settings.modules, settings.base_urls) == ((str(module),), ("http://localhost:1/v1",))
    assert load_settings(other).modules == ()
    assert list(home.iterdir()) == [], "a data directory may come from others, and modules are executed"
    assert stat.S_IMODE(memory_file(home).stat().st_mode) == 0o600
    module.unlink()
    assert load_settings(home).modules == ()


def test_module_named_again_is_newest_and_can_be_forgotten(tmp_path: Path) -> None:
    one, two = (str(tmp_path / name) for name in ("one.py", "two.py"))
    for name in (one, two, one):
        Path(name).touch()
        remember(tmp_path, Allowed(modules=(name,)))
    assert recalled(tmp_path).modules == (two, one)
    with pytest.raises(errors.UsageError, match="not remembered"):
        forget(tmp_path, ["three.py"])
    assert forget(tmp_path, [two]) == (two,)
    assert recalled(tmp_path).modules == (one,)
    assert forget(tmp_path) == (one,)
    assert recalled(tmp_path) == Allowed()


def test_settings_combine_all_that_is_allowed(environ: Environ, tmp_path: Path) -> None:
    environ["RATCHET_MODULES"] = '["a.b"]'
    settings = load_settings(tmp_path, Allowed(modules=("c.d", "a.b")))
    assert (settings.data_dir, settings.modules) == (tmp_path, ("a.b", "c.d"))
    environ["RATCHET_OUTPUT_CAP"] = "much"
    environ["RATCHET_RATE_LIMITS"] = '{"openai/*": {"tokens_per_minute": -1}}'
    with pytest.raises(errors.UsageError) as refused:
        load_settings(tmp_path)
    assert "RATCHET_OUTPUT_CAP: " in str(refused.value)
    wrong = "RATCHET_RATE_LIMITS: openai/*.tokens_per_minute: expected a number greater than 0"
    assert wrong in str(refused.value)


def test_misspelt_variable_of_the_environment_is_named(environ: Environ, tmp_path: Path) -> None:
    environ["RATCHET_OF_SOMEBODY_ELSE"] = "x"
    load_settings(tmp_path)
    environ["RATCHET_DATADIR"] = "/srv/runs"
    with pytest.raises(errors.UsageError, match=r"RATCHET_DATADIR .* did you mean RATCHET_DATA_DIR"):
        load_settings(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OUTPUT_CAP", "abc", "RATCHET_OUTPUT_CAP: expected a whole number"),
        ("WRITE_ANY_NAME", "maybe", "RATCHET_WRITE_ANY_NAME: expected true or false"),
        ("ENCRYPTION_KEYS", '{"a b": ""}', "RATCHET_ENCRYPTION_KEYS: a b: a key's name has 1 to 40"),
        ("MCP", '{"mcpServers": {"a": {"comand": "x"}}}', "RATCHET_MCP: a.comand: unknown key"),
    ],
)
def test_wrong_value_of_a_variable_is_named(environ: Environ, name: str, value: str, said: str) -> None:
    environ[f"RATCHET_{name}"] = value
    with pytest.raises(errors.UsageError, match=said):
        load_settings()


def test_unwritable_state_folder_is_named(environ: Environ, tmp_path: Path) -> None:
    environ["XDG_STATE_HOME"] = str(tmp_path)
    (tmp_path / "ratchet").touch()
    with pytest.raises(errors.UsageError, match="XDG_STATE_HOME"):
        remember(tmp_path, Allowed(base_urls=("http://x",)))


# -- who signs --------------------


@pytest.mark.parametrize("passphrase", ["", "secret"])
def test_new_key_signs_for_its_owner(environ: Environ, tmp_path: Path, passphrase: str) -> None:
    environ[keys.PASSPHRASE] = passphrase
    path = tmp_path / "ada.pem"
    public = keys.new_key(path)
    ada = keys.signer("Ada", path)
    assert ada.name == "Ada"
    assert ada.key is not None
    assert keys.public_key(ada.key) == public
    assert keys.warning_if_exposed(path) == ""
    with pytest.raises(errors.UsageError, match="exists"):
        keys.new_key(path)
    if passphrase:
        environ[keys.PASSPHRASE] = "wrong"
        with pytest.raises(errors.UsageError, match=keys.PASSPHRASE):
            keys.signer("Ada", path)
    else:
        assert isinstance(load_pem_private_key(path.read_bytes(), None), Ed25519PrivateKey)
        path.chmod(0o644)
        assert "0644" in keys.warning_if_exposed(path)


def test_signer_comes_from_the_environment(environ: Environ, tmp_path: Path) -> None:
    environ["RATCHET_BY"] = "Ada"
    assert keys.signer() == keys.Signer("Ada")
    assert keys.signer("Bo").name == "Bo"
    environ["RATCHET_KEY"] = str(tmp_path / "none.pem")
    with pytest.raises(errors.UsageError, match=r"none\.pem"):
        keys.signer()
    (tmp_path / "none.pem").write_text("no key")
    with pytest.raises(errors.UsageError, match=r"none\.pem"):
        keys.signer()
