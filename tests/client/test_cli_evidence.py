"""Evidence by the command line: written, signed, checked, and checked again without a server."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
import stat
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from client.keys import new_key
from client.server.embedded import EmbeddedServer
from tests.client.commandline import Cli, agent_file

MACHINE = Path(__file__).parents[2] / "examples" / "new" / "my_machine.py"
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


def test_evidence_over_a_file_that_others_could_read_is_private(cli: Cli, done: str, tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text("x" * 10**6)
    path.chmod(0o644)
    written = cli("export", done, "--evidence", "--out", str(path), "--force")
    assert written.code == 0, written.err
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    json.loads(path.read_text())


def test_evidence_overwrites_nothing_but_that_of_its_run(
    cli: Cli, file: Path, done: str, tmp_path: Path
) -> None:
    agent = agent_file(tmp_path, "due", more=FREELY)
    assert cli("run", "--agent", agent, "--id", "other-1", "go").code == 0
    cassette = tmp_path / "run.json"
    assert cli("export", "other-1", "--out", str(cassette)).code == 0
    for there in (file, cassette):
        before = there.read_bytes()
        found = cli("export", "other-1", "--evidence", "--out", str(there))
        assert (found.code, found.out, there.read_bytes()) == (2, "", before)
        for part in (str(there), "no evidence of run other-1", "--force"):
            assert part in found.err
    assert cli("export", done, "--evidence", "--out", str(file)).code == 0
    assert cli("export", "other-1", "--evidence", "--out", str(cassette), "--force").code == 0
    assert json.loads(cassette.read_text())["run"]["workflow_id"] == "other-1"


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


CERTIFIED = """
machine: proven_machine
modules: [my_machine.py]
options: {words: 2, drafts: 2}
certificate: proof.json
models:
  default:
    provider: scripted
    script: [{reply: too many words}, {reply: few}]
"""


@pytest.fixture(scope="module")
def certified(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an agent whose machine has a certificate; the run `proven-1` of it is over."""
    folder = tmp_path_factory.mktemp("certified")
    (folder / MACHINE.name).write_text(MACHINE.read_text().replace('"my_machine"', '"proven_machine"'))
    (folder / "agent.yaml").write_text(CERTIFIED)
    written = cli(
        "verify", "machine", str(folder / MACHINE.name), "--certificate", str(folder / "proof.json")
    )
    assert written.code == 0, written.err
    assert cli("run", "--agent", str(folder / "agent.yaml"), "--id", "proven-1", "go").code == 0
    return folder


def test_certified_run_has_nothing_that_cannot_be_shown(cli: Cli, certified: Path, tmp_path: Path) -> None:
    proof, file = str(certified / "proof.json"), str(tmp_path / "run.json")
    assert cli("verify", "proven-1", "--strict").code == 1, "the certificate is not here"
    found = cli("verify", "proven-1", "--strict", "--certificate", proof)
    assert (found.code, "unknown" in found.out) == (0, False), found.out
    assert cli("export", "proven-1", "--evidence", "--certificate", proof, "--out", file).code == 0
    found = cli("verify", file, "--strict")
    digest = hashlib.sha256(Path(proof).read_bytes()).hexdigest()
    line = f"ok      certificate: the run began under it, and nothing differed: sha256 {digest}"
    assert (found.code, line in found.out.splitlines()) == (0, True), found.out
    pack = json.loads(Path(file).read_text())
    pack["certificate"] = pack["certificate"].replace("held", "hold", 1)
    Path(file).write_text(json.dumps(pack))
    assert "wrong   certificate: it is not the one that" in cli("verify", file).out


def test_certificate_is_shown_where_there_is_one(cli: Cli, certified: Path, done: str) -> None:
    shown = re.compile(r"certificate +[0-9a-f]{12}\.\.\.: what runs is what was verified")
    assert shown.search(cli("show", "proven-1").out)
    assert shown.search(cli("doctor", "--agent", str(certified / "agent.yaml")).out)
    assert "certificate" in cli("show", "proven-1", "--json").json
    for silent in (cli("show", done).out, cli("show", done, "--json").out, cli("log", done).out):
        assert "certificate" not in silent
    assert "certificate" not in cli("doctor").out


def test_run_of_edited_code_says_so_and_older_do_not(cli: Cli, certified: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(certified, tmp_path / "edited"))
    machine = folder / MACHINE.name
    machine.write_text(machine.read_text().replace('"proven_machine"', '"edited_machine"'))
    agent = folder / "agent.yaml"
    agent.write_text(agent.read_text().replace("machine: proven_machine", "machine: edited_machine"))
    assert cli("verify", "machine", str(machine), "--certificate", str(folder / "proof.json")).code == 0
    assert cli("run", "--agent", str(agent), "--id", "edited-1", "go").code == 0
    machine.write_text(f"{machine.read_text()}# a line more\n")
    differs = "and what runs differs: code my_machine.py; the options: no scenario has these"
    ran = cli("run", "--agent", str(agent), "--set", "words=3", "--id", "edited-2", "go")
    for said in (ran.out, cli("show", "edited-2").out, cli("log", "edited-2").out):
        assert differs in " ".join(said.split())
    found = cli("doctor", "--agent", str(agent))
    assert (found.code, "BAD  certificate" in found.out) == (1, True)
    assert "today's code does the same" in cli("replay", "edited-1").out
    assert "what runs is what was verified" in cli("show", "edited-1").out
    proof = str(folder / "proof.json")
    found = cli("verify", "edited-2", "--certificate", proof)
    assert (found.code, "and what ran differs from it: code my_machine.py; the opt" in found.out) == (0, True)
    assert cli("verify", "edited-2", "--certificate", proof, "--strict").code == 1


def test_evidence_takes_only_the_certificate_of_the_run(
    cli: Cli, certified: Path, done: str, file: Path
) -> None:
    proof = str(certified / "proof.json")
    found = cli("export", done, "--evidence", "--certificate", proof)
    assert (found.code, f"run {done} did not begin under the certificate" in found.err) == (1, True)
    assert "its first record names none" in found.err
    found = cli("export", done, "--evidence", "--certificate", __file__)
    assert (found.code, "not a certificate" in found.err) == (2, True)
    found = cli("verify", str(file), "--certificate", proof)
    assert (found.code, "--certificate is for runs" in found.err) == (2, True)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{}", "it has no `format`, expected 'ratchet evidence 1'"),
        ("[]", "it has no `format`, expected 'ratchet evidence 1'"),
        ('{"format": "ratchet certificate 1"}', "its format is 'ratchet certificate 1', expected"),
    ],
)
def test_file_of_something_else_is_told_in_one_line(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "other.json").write_text(content)
    found = Cli(tmp_path / "data", tmp_path)("verify", str(tmp_path / "other.json"))
    assert found.code == 1
    (line,) = found.out.splitlines()
    assert line.startswith(f"wrong   file: it is no evidence of a run: {told}")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param(["verify"], "RUN|FILE", id="nothing"),
        pytest.param(["verify", "no-such-run"], "there is no run no-such-run", id="no run"),
        pytest.param(["verify", "no.json"], "there is no file no.json, and no run has this id", id="no json"),
        pytest.param(["verify", os.devnull], "no run /dev/null", id="no file"),
        pytest.param(["verify", __file__], "cannot be read as evidence", id="another file"),
        pytest.param(["verify", "done-1", "--key", "junk"], "not an Ed25519 public key", id="no key"),
        pytest.param(["verify", "done-1", "--key", "A" * 43 + "="], "small order", id="anybody's key"),
        pytest.param(["export", "done-1", "--evidence", "--remove", "x"], "--remove", id="nothing removed"),
        pytest.param(["export", "done-1", "--certificate", "x"], "--evidence", id="of cassettes"),
    ],
)
def test_wrong_usage_is_told(cli: Cli, done: str, words: list[str], told: str) -> None:
    found = cli(*words)
    assert (found.code, told in found.err + found.out) == (2, True)


def test_nothing_that_could_not_be_checked_counts_as_wrong(cli: Cli, tmp_path: Path) -> None:
    waiting = agent_file(tmp_path, "uno")
    assert cli("run", "--detach", "--agent", waiting, "--id", "waiting-1", "go").code == 0
    found = cli("verify", "waiting-1")
    assert (found.code, "run waiting-1 is not over" in found.err, found.out) == (2, True, "")
    found = cli("verify", "waiting-1", "--address", "127.0.0.1:1")
    assert (found.code, "does not answer" in found.err, found.out) == (2, True, "")


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
