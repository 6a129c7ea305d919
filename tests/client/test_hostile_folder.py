"""A command that is given in a stranger's folder runs nothing of it that nobody named."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

from tests.client.commandline import Cli
from tests.client.conftest import ROOT

NAMES = (
    "sitecustomize.py", "usercustomize.py", "client/__init__.py", "workflows/__init__.py", "worker.py",
    "typer.py", "json.py", "temporalio.py", "conftest.py", "tools.py", "temporal", "git",
)  # fmt: skip
SETTINGS = (
    'RATCHET_MODULES=["tools.py"]\nOPENAI_BASE_URL=http://evil.invalid\nTEMPORAL_ADDRESS=evil.invalid:7233\n'
)


def test_nothing_in_the_folder_of_a_command_is_executed(tmp_path: Path) -> None:
    """A run with its server, its worker, its sandbox for machines, and a look at its tools."""
    folder, mark = tmp_path / "cloned", tmp_path / "executed"
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"#!/usr/bin/env python3\nopen({str(mark)!r}, 'a').write({name!r})\n")
        (folder / name).chmod(0o755)
    (folder / ".env").write_text(SETTINGS)
    (folder / "temporal.toml").write_text('[profile.default]\naddress = "evil.invalid:7233"\n')
    command = tmp_path / "bin" / "ratchet"  # as pip makes it
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom client.start import main\n\nmain()\n")
    ours = ("RATCHET_", "TEMPORAL_", "OPENAI_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    kept |= {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path / "state")}
    for words in (["run", "What is here?", "--model", "scripted"], ["tools"], ["down"]):
        done = subprocess.run(
            [sys.executable, str(command), *words], cwd=folder, env=kept, capture_output=True, check=False
        )
        assert done.returncode == 0, (words, done.stderr)
        assert b"evil" not in done.stderr
    assert not mark.exists(), mark.read_text()
    assert (folder / ".ratchet" / "temporal.db").exists()


def test_agents_of_folder_are_listed_without_reading_large_files(tmp_path: Path) -> None:
    """Nobody named these files: YAML's parser would take seconds for each, or for ever."""
    agent = "machine: tools\ntools: [calculator]\n"
    for name, text in {
        "agent": agent,
        "large": agent + "#" * 64_000,
        "values": f"replicas: 3\nargs: [{'1,' * 30_000}]\n",
        "merges": f"{agent}a: &a {{}}\n" + "".join(f"k{n}: {{<<: *a}}\n" for n in range(2000)),
        "wrong": f"{agent}limits: [\n",
    }.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    with chdir(tmp_path):
        listed = Cli(tmp_path / "data", tmp_path)("agents", "--json").lines
    problems = {row["agent"]: row.get("error", "") for row in listed if row["agent"].endswith(".yaml")}
    assert list(problems) == ["agent.yaml", "merges.yaml", "wrong.yaml"]
    assert problems["agent.yaml"] == ""
    assert "more than 100 merge keys" in problems["merges.yaml"]
    assert "not valid YAML" in problems["wrong.yaml"]


def test_list_of_agents_executes_none_of_their_modules(tmp_path: Path) -> None:
    """To look for the model that `output` names is to run the module: only who chose the agent does so."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    (tmp_path / "agent.yaml").write_text("machine: tools\nmodules: [evil.py]\noutput: Refund\n")
    with chdir(tmp_path):
        listed = Cli(tmp_path / "data", tmp_path)("agents", "--json").lines
    (found,) = [row for row in listed if row["agent"] == "agent.yaml"]
    assert "error" not in found
    assert not (tmp_path / "executed").exists()
