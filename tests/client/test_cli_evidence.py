"""Evidence by the command line: written, signed, checked, and checked again without a server."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from client.keys import new_key
from client.server.embedded import EmbeddedServer
from tests.client.commandline import Cli, agent_file

FREELY = "approvals: {effects: {unsafe: never}}"


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A file with a key, and its public half."""
    path = tmp_path_factory.mktemp("key") / "worker.pem"
    return path, new_key(path)


@pytest.fixture(scope="module")
async def cli(tmp_path_factory: pytest.TempPathFactory, key: tuple[Path, str]) -> AsyncIterator[Cli]:
    """Commands at a server that runs all the time, with a key that signs."""
    home, files = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("files")
    async with await EmbeddedServer.attach(home):
        yield Cli(home, files, {"RATCHET_SIGNING_KEY": str(key[0])})


@pytest.fixture(scope="module")
def done(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The id of a run that is over."""
    agent = agent_file(tmp_path_factory.mktemp("agent"), "uno", more=FREELY)
    assert cli("run", "--agent", agent, "--id", "done-1", "go").code == 0
    return "done-1"


@pytest.fixture
def file(cli: Cli, done: str, tmp_path: Path) -> Path:
    """Its evidence."""
    path = tmp_path / "done-1.evidence.json"
    written = cli("export", done, "--evidence", "--out", str(path))
    assert (written.code, written.out) == (0, "")
    assert "signed with " in written.err
    return path


def test_run_and_its_file_are_right(cli: Cli, done: str, file: Path, key: tuple[Path, str]) -> None:
    assert file.stat().st_mode & 0o077 == 0, "whoever reads it reads what the run read and wrote"
    for what in (done, str(file)):
        found = cli("verify", what)
        assert found.code == 0, found.out
        for part in ("log", "completeness", "attestation 0", "result", "agent"):
            assert f"ok      {part}: " in found.out, (part, found.out)
        assert "nothing is wrong: " in found.err
    assert "ok      signature: signed with " in cli("verify", str(file)).out
    assert "signature" not in cli("verify", done).out, "there is no file"
    assert cli("verify", done, "--key", key[1]).code == 0
    assert cli("verify", done, "--key", f"{'A' * 42}8=").code == 1, "nobody has signed with that"
    assert cli("verify", str(file), "--strict").code == 1, "no certificate"
    anywhere = Cli(file.parent / "nothing", cli.files)
    named = anywhere("verify", str(file), "--key", f'"worker": {key[1]}')
    assert (named.code, "ok      signature" in named.out) == (0, True)
    assert "whose key that is you must know" in anywhere("verify", str(file)).out
    assert not (file.parent / "nothing").exists()


def test_changed_file_and_changed_archive_are_named(cli: Cli, done: str, file: Path, tmp_path: Path) -> None:
    pack = json.loads(file.read_text())
    pack["log"]["records"][2] = pack["log"]["records"][2].replace("uno", "due")
    file.write_text(json.dumps(pack))
    found = cli("verify", str(file), "--json")
    assert found.code == 1
    assert {"head", "signature", "record 2"} <= {o["what"] for o in found.lines if o["verdict"] == "wrong"}
    with closing(sqlite3.connect(Path(cli.variables["RATCHET_DATA_DIR"]) / "archive.db")) as archive:
        copy = tmp_path / "copy" / "archive.db"
        copy.parent.mkdir(mode=0o700)
        with closing(sqlite3.connect(copy)) as target:
            archive.backup(target)
            change = "UPDATE records SET json=replace(json, 'uno', 'due') WHERE seq=2"
            with target:
                target.execute(change)
    found = Cli(copy.parent, cli.files)("verify", done)
    assert (found.code, "wrong   log: the log of run done-1" in found.out) == (1, True), found.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param(["verify"], "RUN|FILE", id="nothing"),
        pytest.param(["verify", "no-such-run"], "there is no run no-such-run", id="no run"),
        pytest.param(["verify", os.devnull], "no run /dev/null", id="no file"),
        pytest.param(["verify", __file__], "cannot be read as evidence", id="another file"),
        pytest.param(["verify", "done-1", "--key", "junk"], "not an Ed25519 public key", id="no key"),
        pytest.param(["export", "done-1", "--evidence", "--remove", "x"], "--remove", id="nothing removed"),
        pytest.param(["export", "done-1", "--certificate", "x"], "--evidence", id="of cassettes"),
    ],
)
def test_wrong_usage_is_told(cli: Cli, done: str, words: list[str], told: str) -> None:
    found = cli(*words)
    assert found.code != 0
    assert told in found.err + found.out


def test_help_names_both_ways(cli: Cli) -> None:
    assert "RUN|FILE  Was anything changed" in cli("verify", "--help").out
    assert "RUN|FILE" in cli("verify", "evidence", "--help").out


@pytest.mark.parametrize("name", ["worker.pem", "missing.pem"])
def test_key_that_cannot_be_used_is_refused(cli: Cli, done: str, tmp_path: Path, name: str) -> None:
    (tmp_path / "worker.pem").write_text("no key")
    data_dir = Path(cli.variables["RATCHET_DATA_DIR"])
    other = Cli(data_dir, cli.files, {"RATCHET_SIGNING_KEY": str(tmp_path / name)})
    found = other("export", done, "--evidence")
    assert (found.code, "RATCHET_SIGNING_KEY" in found.err, name in found.err) == (2, True, True), found.err
    relative = Cli(data_dir, cli.files, {"RATCHET_SIGNING_KEY": name})
    assert "whole path" in relative("verify", done).err
