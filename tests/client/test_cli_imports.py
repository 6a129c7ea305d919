"""What takes long to import is not imported by a command that does without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from client.agents.files import shipped_agents, shipped_facts

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


def test_list_shows_changed_shipped_agent_as_it_is(tmp_path: Path) -> None:
    known, changed = shipped_agents()[:2]
    copied = Path(shutil.copy(known, tmp_path))
    (tmp_path / changed.name).write_text(changed.read_text() + "\n")
    assert shipped_facts([copied, tmp_path / changed.name]) == {copied: shipped_facts([known])[known]}
