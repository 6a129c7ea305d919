"""`ratchet docs` lists and prints the pages; what Ratchet prints and writes names pages that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from client.cli.docs import pages
from tests.client.commandline import Cli
from tests.client.conftest import ROOT
from tests.test_docs import texts_of

ROOMS = ("activities", "client", "examples", "ratchet", "workflows")
FILE = re.compile(r"\bdocs/([\w-]+)\.md")
"""How a page names another one; who has only the wheel sees no such folder."""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "data", tmp_path)


def test_every_page_is_listed_with_what_it_says(cli: Cli) -> None:
    listed = cli("docs").out
    rows = dict(re.findall(r"^([\w-]+) {2,}(.+)$", listed, re.MULTILINE))
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    assert sorted(rows) == sorted(file.stem.lower() for file in files)
    assert rows["people"].startswith("People. A run asks a person when it may not continue alone")
    assert all(re.search(r"\w\. ?\S", row) for row in rows.values())


@pytest.mark.parametrize("name", ["people", "People", "docs/people.md", "people.md#the-request"])
def test_page_is_printed_as_it_is(cli: Cli, name: str) -> None:
    assert cli("docs", name).out == (ROOT / "docs" / "people.md").read_text()


def test_path_says_where_files_lie(cli: Cli) -> None:
    assert cli("docs", "agents", "--path").out == f"{ROOT / 'AGENTS.md'}\n"
    assert cli("docs", "--path").out == f"{ROOT / 'docs'}\n"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("peple", "did you mean `ratchet docs people`?"),
        ("", "`ratchet docs` lists them"),
        ("quorum", "the word is found most often in `ratchet docs people`"),
        ("xyzzyx", "`ratchet docs` lists them"),
    ],
)
def test_page_that_is_not_there_suggests_one(cli: Cli, name: str, hint: str) -> None:
    found = cli("docs", name)
    assert found.code == 2
    assert f"there is no page {name!r}; {hint}" in found.err


def test_terminal_gets_the_pager_of_its_reader(cli: Cli) -> None:
    with cli.terminal("docs", "agents", PAGER="sed 's/^# /paged: /'") as terminal:
        assert terminal.end() == 0
        assert "paged: For coding agents" in terminal.shown


def test_pages_that_texts_of_ratchet_name_exist() -> None:
    files = [
        path for room in ROOMS for kind in ("py", "yaml", "json") for path in (ROOT / room).rglob(f"*.{kind}")
    ]
    files += [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / ".env.example"]
    named = {name for file in files for name in re.findall(r"\bratchet docs ([a-z][\w-]*)", file.read_text())}
    assert len(named) > 10
    assert named <= set(pages())


def test_texts_that_reach_users_name_no_file_of_the_checkout() -> None:
    """Messages, help, and what is written to begin with."""
    hidden = {ROOT / "client" / "start.py", ROOT / "ratchet" / "__init__.py"}
    """They tell of a checkout whose packages are hidden: there is its folder, and no command starts."""
    files = {path for room in ROOMS for path in (ROOT / room).rglob("*.py")} - hidden
    named = [path for path in files if FILE.search(path.read_text())]  # for most in a comment
    assert [text for path in named for text in texts_of(path) if FILE.search(text)] == []
    written = [path for path in (ROOT / "examples").rglob("*.*") if path.suffix in (".py", ".yaml", ".json")]
    commands = ROOT / "docs" / "reference-commands.md"  # the help of every command
    assert [path for path in (*written, commands) if FILE.search(path.read_text())] == []
