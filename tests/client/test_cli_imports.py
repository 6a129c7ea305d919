"""What takes long to import is not imported by a command that does without it."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from client.agents.files import shipped_agents, shipped_facts
from client.cli.app import execute

PROGRAM = """
import sys
from client.cli.app import execute
SLOW = (
    "asyncio", "pydantic", "workflows.api", "pydantic_settings", "activities.tools", "workflows.registry",
    "rich.console", "structlog", "jsonschema", "cryptography", "temporalio", "workflows.engine.loop",
)
seen = set()
def shown(what, code):
    new = [name for name in SLOW if name in sys.modules and name not in seen]
    seen.update(new)
    print("loaded", what, code, *new)
for words in (
    "--help", "agents", "schema result", "run --agent below/wrong.yaml hi", "modules", "schema agent",
    "tools --json", "machines", "machines react", "diagram react", "run --tool nothing hi",
):
    shown(words, execute(words.split()))
import client.sdk.agent  # what doctor and whoever decides need to connect
shown("connecting", 0)
"""


def test_commands_import_no_more_than_they_show(tmp_path: Path) -> None:
    """One after the other in one process: each line names what was not imported before it."""
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "wrong.yaml").write_text("machine: react\ntolls: [calculator]\n")
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "RATCHET_"))
    }
    variables = {"PYTHONPATH": str(Path.cwd()), "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**own, **variables}, cwd=tmp_path, capture_output=True,
        text=True, timeout=300, check=True,
    )  # fmt: skip
    lines = [line.split(maxsplit=1)[1] for line in done.stdout.splitlines() if line.startswith("loaded ")]
    assert lines == [
        "--help 0",
        "agents 0",
        "schema result 0 pydantic workflows.api",
        "run --agent below/wrong.yaml hi 2 asyncio pydantic_settings",
        "modules 0",
        "schema agent 0",
        "tools --json 0 activities.tools",
        "machines 0 workflows.registry",
        "machines react 0",
        "diagram react 0",
        "run --tool nothing hi 2 rich.console structlog jsonschema",
        "connecting 0 cryptography temporalio",
    ], done.stdout + done.stderr


QUICK = """
import gc, os, sys
import typer
from client.cli import options, quick
app = typer.Typer()
def state():
    return gc.isenabled(), quick.NO_PLUGINS in os.environ, "asyncio" in sys.modules
@options.command(app, sys.argv[1])
async def work(connects: bool = False) -> None:
    print(*state())
    if connects:
        await options._event_loop()
        print(*state())
quick.begin(sys.argv[1])
app(sys.argv[2:], standalone_mode=False)
"""


@pytest.mark.parametrize(
    ("words", "states"),
    [
        ("show", ["False True False"]),
        ("show --connects", ["False True False", "True False True"]),
        ("watch --connects", ["True False True", "True False True"]),
    ],
)
def test_what_a_quick_start_leaves_out_comes_later(words: str, states: list[str]) -> None:
    """Whether garbage is looked for, pydantic is without plugins, and asyncio was imported."""
    own = {name: value for name, value in os.environ.items() if name != "PYDANTIC_DISABLE_PLUGINS"}
    done = subprocess.run(
        [sys.executable, "-c", QUICK, *words.split()], env={**own, "PYTHONPATH": str(Path.cwd())},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == states


def test_command_that_is_called_changes_nothing_of_its_program(tmp_path: Path) -> None:
    was, gc_was = dict(os.environ), gc.isenabled()
    gc.disable()
    try:
        for name in ("list", "modules"):
            assert execute([name, "--data-dir", str(tmp_path)]) == 0
        assert (gc.isenabled(), dict(os.environ)) == (False, was)
    finally:
        (gc.enable if gc_was else gc.disable)()


def test_list_shows_changed_shipped_agent_as_it_is(tmp_path: Path) -> None:
    known, changed = shipped_agents()[:2]
    copied = Path(shutil.copy(known, tmp_path))
    (tmp_path / changed.name).write_text(changed.read_text() + "\n")
    assert shipped_facts([copied, tmp_path / changed.name]) == {copied: shipped_facts([known])[known]}
