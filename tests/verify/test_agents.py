"""What `ratchet verify agent` says of each agent in `examples`: `agents.txt` has it, but for the calls that
the solver has picked as examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from client.cli.app import execute

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples").glob("*/*.yaml"))
TEXT = Path(__file__).with_name("agents.txt").read_text(encoding="utf-8")
SAID = dict(block.split("\n", 1) for block in TEXT.split("\n\n"))
"""`FILE: exit code with --strict` -> what is printed."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_verdict_on_each_example_is_as_it_was(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = execute(["verify", "agent", str(file), "--strict", "--data-dir", str(tmp_path)])
    lines = [line for line in capsys.readouterr().out.splitlines() if line and "    such as" not in line]
    said = re.sub(r", such as .*", "", "\n".join(lines))
    assert said == SAID[f"{file.relative_to(ROOT / 'examples')}: {code}"].strip()


def test_each_example_has_its_verdict() -> None:
    named = [line.split(":")[0] for line in SAID]
    assert named == [str(file.relative_to(ROOT / "examples")) for file in FILES]
