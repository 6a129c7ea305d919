"""`ratchet init` and `ratchet new`: what they write works; and what a worker has loaded of a folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from activities.settings import Settings
from client.cli.reload import loaded_lines
from tests.client.commandline import Cli, environment
from tests.client.conftest import ROOT
from tests.forked import PYTEST, RATCHET, spoken


@pytest.fixture
def cli(data_dir: Path, tmp_path: Path) -> Iterator[Cli]:
    """Commands in an empty folder."""
    folder = tmp_path / "folder"
    folder.mkdir()
    with chdir(folder):
        yield Cli(data_dir, folder)


def passed(folder: Path) -> str:
    """How pytest ends in this folder."""
    code, out, err = spoken(PYTEST, "-q", "-p", "no:cacheprovider", env=environment(), cwd=folder)
    assert code == 0, out
    assert "Warning" not in out + err
    return out.splitlines()[-1]


def test_new_agent_runs_without_a_key_and_its_test_passes(cli: Cli) -> None:
    made = cli("init")
    assert made.code == 0, made.err
    assert "pip install pytest" in made.out
    misspelt = cli("run", "--agent", "agnet.yaml", "go")
    assert "agnet.yaml: no such file; did you mean agent.yaml?" in misspelt.err
    assert "count_words brings no label, sends nowhere" in cli("doctor", "--agent", "agent.yaml").out
    first, second, third, _ = made.out.partition("next:\n")[2].splitlines()
    assert "--model" in second
    assert "pytest" in third
    goal = re.findall(r'"(.*)"', first)[0]
    words = len(Path("agent.yaml").read_text().split())
    assert f"agent.yaml has {words} words." in cli("run", "--agent", "agent.yaml", goal).out
    assert ".ratchet/" in Path(".gitignore").read_text().splitlines()
    assert passed(cli.files).startswith("1 passed")


def test_run_without_an_agent_names_those_of_the_folder(cli: Cli) -> None:
    assert cli("init").code == 0
    found = cli("run", "How many words?")
    assert found.code == 2
    assert "needs its key" in found.err
    assert "`ratchet run --agent agent.yaml ...`" in found.err


def test_new_machine_runs_and_tests_of_machine_and_tool_pass(cli: Cli) -> None:
    assert cli("new", "machine", "brief_writer").code == cli("new", "tool", "jot_down").code == 0
    assert len(Path("brief_writer.py").read_text().splitlines()) <= 70
    ran = cli("run", "--agent", "brief_writer.yaml", "Why do ships float?")
    assert "The water that they push aside" in ran.out, ran.err
    assert "check --> write: Unfit" in cli("diagram", "brief_writer", "--agent", "brief_writer.yaml").out
    assert passed(cli.files).startswith("3 passed")
    Path("copy.py").write_text(Path("brief_writer.py").read_text())
    words = (RATCHET, "verify", "machine", "copy.py")  # the run has made the folder remember the first one
    code, _, err = spoken(*words, env=environment(**cli.variables), cwd=cli.files)
    assert code == 0, err
    assert re.search(r"left out \S+brief_writer.py, which an earlier command named", err)
    assert not [path for path in cli.files.glob("*.*") if "my_" in path.read_text()]


@pytest.mark.parametrize(
    ("words", "file"),
    [("init", "agent.yaml"), ("new tool mine", "mine.py"), ("new machine mine", "mine.yaml")],
)
def test_file_that_is_there_is_kept_and_nothing_written(cli: Cli, words: str, file: str) -> None:
    Path(file).write_text("mine")
    found = cli(*words.split())
    assert (found.code, Path(file).read_text()) == (2, "mine")
    assert file in found.err
    assert [path.name for path in cli.files.iterdir()] == [file]


def test_agent_in_another_folder_keeps_its_gitignore(cli: Cli) -> None:
    Path("made").mkdir()
    Path("made/.gitignore").write_text("dist/\n")
    made = cli("init", "made")
    assert "add the line .ratchet/" in made.out
    assert "cd made" in made.out
    assert Path("made/.gitignore").read_text() == "dist/\n"


@pytest.mark.parametrize("name", ["json", "client", "react", "Two", "a-b", "class", "../x"])
def test_name_that_cannot_work_is_refused(cli: Cli, name: str) -> None:
    found = cli("new", "machine", name)
    assert (found.code, list(cli.files.iterdir())) == (2, [])
    assert name in found.err


def test_examples_come_with_their_data(cli: Cli) -> None:
    shown = cli("init", "--examples")
    assert shown.code == 0
    shipped = {path.name for path in (ROOT / "examples" / "agents").iterdir()}
    assert {path.name for path in Path("examples/agents").iterdir()} == shipped
    agent = next(word for word in shown.out.split() if word.endswith("log_detective.yaml"))
    assert "payments" in cli("run", "--agent", agent, "Which service fails most?").out


def test_agent_files_that_a_worker_has_not_loaded_are_named(tmp_path: Path) -> None:
    with chdir(tmp_path):
        for name in ("one", "other"):
            Path(f"{name}_tool.py").write_text("")
            Path(f"{name}.yaml").write_text(f"machine: tools\nmodules: [{name}_tool.py]\n")
        settings = Settings(modules=(str(tmp_path / "one_tool.py"),))
        assert [*loaded_lines(["one.yaml"], settings)] == [
            "Agents    one.yaml",
            "Module    one_tool.py",
            "not loaded: other_tool.py of other.yaml; `ratchet dev --agent other.yaml` loads it",
        ]
