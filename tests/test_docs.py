"""The papers say what is true: their code runs, their commands exist, their pictures are the code's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from docs.generate import PAGE, page

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_machines_page_is_what_the_code_says() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"


def test_the_example_of_the_readme_runs_and_answers(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert found is not None
    environment = {**os.environ, "RATCHET_DATA_DIR": str(tmp_path / "data")}
    program = tmp_path / "example.py"
    program.write_text(found.group(1))
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "services.log" in done.stdout
    assert "GoalAchieved" in done.stdout


def test_every_command_of_the_readme_exists() -> None:
    told = subprocess.run(
        [str(Path(sys.executable).parent / "ratchet"), "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    there = set(re.findall(r"^  (\w+) ", told.stdout, re.MULTILINE))
    named = set(re.findall(r"^    ratchet (\w+)|\| (\w+) RUN", README, re.MULTILINE))
    assert {word for pair in named for word in pair if word} <= there


def test_every_link_of_the_papers_leads_somewhere() -> None:
    for paper in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\((?!http)([^)#]+)", paper.read_text()):
            assert (paper.parent / target).exists(), f"{paper.name} links to {target}"
