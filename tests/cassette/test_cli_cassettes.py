"""`ratchet export`, `ratchet test`, and the same in pytest."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from client.server.embedded import EmbeddedServer
from tests import forked
from tests.cassette.injection import CASSETTE
from tests.client.commandline import Cli, agent_file, environment

PYTEST = """
import pytest


@pytest.mark.cassettes
def test_course_holds(cassette):
    cassette.check()
"""
FREELY = "approvals: {effects: {unsafe: never}}"
POLITE = f"{FREELY}\ninstructions: Be polite."


@pytest.fixture(scope="module")
async def cli(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cli]:
    """Commands at a server that runs all the time."""
    home, files = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("files")
    async with await EmbeddedServer.attach(home):
        yield Cli(home, files)


@pytest.fixture(scope="module")
def recorded(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cassette of a run that wrote two lines."""
    folder = tmp_path_factory.mktemp("recorded")
    found = cli("run", "--agent", agent_file(folder, "uno", "due", more=FREELY), "--id", "taped-1", "go")
    assert found.code == 0, found.err
    path = folder / "cassettes" / "taped.yaml"
    found = cli("export", "taped", "--out", str(path))
    assert found.code == 0, found.err
    assert "5 calls, 0 decisions, 0 secrets removed" in found.err
    return path


@pytest.fixture
def alone(tmp_path: Path) -> Cli:
    """Commands where there is no server and no data."""
    return Cli(tmp_path / "nothing", tmp_path)


def test_export_prints_the_same_without_a_file(cli: Cli, recorded: Path) -> None:
    assert cli("export", "taped-1").out == recorded.read_text()


def test_export_overwrites_nothing_but_the_same_run(cli: Cli, recorded: Path, tmp_path: Path) -> None:
    agent = agent_file(tmp_path, "tre", more=FREELY)
    assert cli("run", "--agent", agent, "--id", "taped-other", "go").code == 0
    notes, kept = tmp_path / "notes.txt", tmp_path / "kept.yaml"
    notes.write_text("mine")
    kept.write_bytes(recorded.read_bytes())
    for file in (notes, kept):
        before = file.read_bytes()
        found = cli("export", "taped-other", "--out", str(file))
        assert (found.code, found.out, file.read_bytes()) == (2, "", before)
        for part in (str(file), "no cassette of run taped-other", "--force"):
            assert part in found.err
    assert cli("export", "taped-1", "--out", str(kept)).code == 0
    assert kept.read_bytes() == recorded.read_bytes()
    assert cli("export", "taped-other", "--out", str(kept), "--force").code == 0
    assert kept.read_text() == cli("export", "taped-other").out


def test_passing_file_is_one_line_and_needs_no_server(alone: Cli, recorded: Path) -> None:
    found = alone("test", str(recorded.parent))
    assert (found.code, found.out) == (0, f"ok      {recorded}: 5 calls, 0 decisions\n")
    assert not (alone.files / "nothing").exists()
    assert alone.marks() == []


def test_first_difference_is_named_with_its_step(alone: Cli, recorded: Path, tmp_path: Path) -> None:
    altered = tmp_path / "altered.yaml"
    altered.write_text(recorded.read_text().replace("done due", "done six", 1))
    found = alone("test", str(recorded), str(altered))
    assert found.code == 1
    passed, failed, *diff = found.out.splitlines()
    assert passed.startswith(f"ok      {recorded}")
    assert failed.startswith(f"FAILED  {altered}: step 2, ")
    assert [line[0] for line in diff if "done" in line] == ["-", "+"]
    assert "1 passed, 1 failed" in found.err
    lines = alone("test", "--json", str(recorded), str(altered)).lines
    assert [line["ok"] for line in lines] == [True, False]


def test_another_prompt_is_a_change_and_another_policy_a_failure(
    alone: Cli, recorded: Path, tmp_path: Path
) -> None:
    polite = agent_file(tmp_path, more=POLITE)
    found = alone("test", str(recorded), "--agent", polite)
    assert (found.code, found.err) == (0, "")
    assert found.out.endswith("5 calls, 0 decisions; 1 question put in another way\n")
    assert "Be polite." in alone("test", str(recorded), "--agent", polite, "--show").out
    asking = agent_file(tmp_path, more="")
    found = alone("test", str(recorded), "--agent", asking)
    assert found.code == 1
    assert "+request: r1" in found.out


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("name: x\n", "is no cassette"),
        ("cassette: 7\n", "format version 7, expected 2"),
        ("cassette: 2\nrun: x\n", "is missing"),
        ("a: &a [x]\nb: *a\n", "aliases"),
        ("{", "not valid JSON"),
    ],
)
def test_file_that_is_no_cassette_says_why(alone: Cli, tmp_path: Path, content: str, named: str) -> None:
    path = tmp_path / "other.yaml"
    path.write_text(content)
    found = alone("test", str(path))
    assert found.code == 1
    assert named in found.out


def test_pytest_plays_each_file_of_a_folder(recorded: Path, tmp_path: Path) -> None:
    """The ten lines of the documentation."""
    folder = tmp_path / "cassettes"
    folder.mkdir()
    for path in (recorded, CASSETTE):
        shutil.copy(path, folder / path.name)
    (tmp_path / "test_courses.py").write_text(PYTEST)

    def passed() -> str:
        # named here, and not by its entry point, which a checkout that is not installed lacks
        words = ("-q", "-p", "ratchet.testing", "-p", "no:cacheprovider", ".")
        own = {**environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        return forked.spoken(forked.PYTEST, *words, env=own, cwd=tmp_path)[1]

    assert "2 passed" in passed()
    text = CASSETTE.read_text()
    assert "decision: reject" in text
    (folder / CASSETTE.name).write_text(text.replace("decision: reject", "decision: approve", 1))
    failed = passed()
    assert "1 failed, 1 passed" in failed
    assert "+call: EXECUTING_TOOLS#5:0" in failed
