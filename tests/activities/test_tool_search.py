"""`search_files`: what it finds, how it counts, and its limits in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from activities.contracts import compiled
from activities.files import MAX_FILE_BYTES, FilesRoot, PathError
from activities.tools import search_files
from tests.activities.toolkit import context_on, settings_on

LOG = """\
09:00 INFO start
09:01 ERROR payments failed
09:02 ERROR search failed
09:03 error payments late
09:04 ERROR payments failed
09:05 INFO end
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.log").write_text(LOG)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "other.log").write_text("10:00 ERROR search failed\r\n")
    (tmp_path / "sub" / "notes.txt").write_text("no ERROR here\n")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.log").write_text("ERROR hidden\n")
    return tmp_path


def search(folder: Path, pattern: str, **more: Any) -> list[str]:
    params = search_files.Params(pattern=pattern, **more)
    return search_files.run(params, context_on(folder)).splitlines()


def test_matches_come_as_path_line_and_text(folder: Path) -> None:
    assert search(folder, "ERROR") == [
        "app.log:2: 09:01 ERROR payments failed",
        "app.log:3: 09:02 ERROR search failed",
        "app.log:5: 09:04 ERROR payments failed",
        "sub/notes.txt:1: no ERROR here",
        "sub/other.log:1: 10:00 ERROR search failed",
        "[5 lines match in 3 files; 5 shown]",
    ]


def test_path_glob_case_and_limit_narrow_the_search(folder: Path) -> None:
    assert search(folder, "ERROR", glob="*.txt")[0].startswith("sub/notes.txt:1:")
    assert search(folder, "ERROR", path="sub", glob="sub/*.log")[-1].startswith("[1 line matches")
    assert search(folder, "ERROR", path="app.log")[-1] == "[3 lines match in 1 file; 3 shown]"
    assert search(folder, "ERROR", path="app.log", ignore_case=True)[-1].startswith("[4 lines match")
    assert search(folder, "ERROR", path="app.log", limit=1) == [
        "app.log:2: 09:01 ERROR payments failed",
        "[3 lines match in 1 file; 1 shown]",
    ]
    assert search(folder, "nowhere") == ["No line matches 'nowhere' in 3 files."]


def test_context_shows_each_line_once(folder: Path) -> None:
    assert search(folder, "search", path="app.log", context=1) == [
        "app.log-2- 09:01 ERROR payments failed",
        "app.log:3: 09:02 ERROR search failed",
        "app.log-4- 09:03 error payments late",
        "[1 line matches in 1 file; 1 shown]",
    ]
    shown = search(folder, "payments", path="app.log", context=3)[:-1]
    assert [line[8] for line in shown] == ["1", "2", "3", "4", "5", "6"]


def test_values_of_the_first_group_are_counted(folder: Path) -> None:
    assert search(folder, r"(?i)error (\w+)", path="app.log", count_by=True) == [
        "4 lines match in 1 file; 2 different values, most frequent first:",
        "3\tpayments",
        "\tfirst app.log:2: 09:01 ERROR payments failed",
        "\tlast  app.log:5: 09:04 ERROR payments failed",
        "1\tsearch",
        "\tfirst app.log:3: 09:02 ERROR search failed",
        "\tlast  app.log:3: 09:02 ERROR search failed",
    ]
    assert search(folder, r"ERROR (\w+)", count_by=True, limit=1)[-1] == "[2 more values not shown]"


def test_counting_needs_a_group(folder: Path) -> None:
    with pytest.raises(ValueError, match="put parentheses around the part to count by"):
        search(folder, "ERROR", count_by=True)


def test_binary_and_huge_files_are_skipped_and_counted(folder: Path) -> None:
    (folder / "image").write_bytes(b"ERROR\0")
    with (folder / "huge").open("wb") as huge:
        huge.truncate(MAX_FILE_BYTES + 1)
    assert search(folder, "ERROR")[-1].startswith("[2 files skipped: not text, too large")
    for named in ("image", "huge"):
        with pytest.raises(PathError):
            search(folder, "ERROR", path=named)


def test_long_line_is_shown_around_its_match(folder: Path) -> None:
    (folder / "app.log").write_text("a" * 5000 + "NEEDLE" + "b" * 5000)
    shown = search(folder, "NEEDLE", path="app.log")[0]
    assert "NEEDLE" in shown
    assert len(shown) < 500


def test_very_long_line_is_searched_to_its_end(folder: Path) -> None:
    (folder / "app.log").write_text("a" * 300_000 + " NEEDLE\nlast NEEDLE\n")
    first, last, summary = search(folder, "NEEDLE", path="app.log")
    assert first.startswith("app.log:1: ...")
    assert first.endswith("a NEEDLE")
    assert last == "app.log:2: last NEEDLE"
    assert summary == "[2 lines match in 1 file; 2 shown]"


def test_any_script_is_found_and_bad_bytes_are_replaced(folder: Path) -> None:
    lines = ["ÄRGER für søren".encode(), b"caf\xe9 gone", ("é" * 900 + "Ende").encode()]
    (folder / "app.log").write_bytes(b"\n".join(lines))
    assert search(folder, "(?i)ärger f(.)r", path="app.log")[0] == "app.log:1: ÄRGER für søren"
    assert search(folder, "f(.)r", path="app.log", count_by=True)[1] == "1\tü"
    assert search(folder, "caf. gone", path="app.log")[0] == "app.log:2: caf\ufffd gone"
    assert search(folder, "Ende", path="app.log")[0] == "app.log:3: ..." + "é" * 100 + "Ende"


@pytest.mark.parametrize("content", [b"ERROR", b"\0"], ids=["text", "binary"])
def test_search_that_nobody_waits_for_stops(folder: Path, content: bytes) -> None:
    (folder / "logs").mkdir()
    for number in range(3):
        (folder / "logs" / f"{number}").write_bytes(content)
    params = search_files.Params(pattern="ERROR", path="logs")
    stopped = search_files.run(params, context_on(folder, cancelled=True))
    assert "No line matches" in stopped
    assert "narrow path or glob" in stopped


def test_slow_pattern_in_one_long_line_ends_at_its_deadline(tmp_path: Path) -> None:
    """The whole line, of 23 pieces, would take about ten seconds."""
    (tmp_path / "line").write_bytes("é".encode() * 1_500_000)
    params, is_over = search_files.Params(pattern=r"(?:\pL?){50}y", path="line"), iter((False, True))
    root = FilesRoot.of(settings_on(tmp_path))
    search = search_files.Search(root, params, compiled(params.pattern), lambda: next(is_over))
    assert len(list(search.lines())) <= 2
    assert search.stopped


@pytest.mark.parametrize(
    "pattern",
    [r"(a+)+$", r"(a|aa)+$", r"((a*)*)*b", r"(x+x+)+y", r"(?:a?){200}a{200}b", r"(.*,){20}P"],
)
def test_pattern_that_explodes_elsewhere_takes_no_time(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "a.txt").write_text("a" * 100_000 + "!\n")
    assert search(tmp_path, pattern) == [f"No line matches {pattern!r} in 1 files."]


@pytest.mark.parametrize("pattern", ["[", "(", "a**", r"(?=a)", r"(a)\1", "((a{1,900}){1,900})"])
def test_unusable_pattern_is_an_error(folder: Path, pattern: str) -> None:
    with pytest.raises(ValueError, match=r"the pattern .* cannot be used"):
        search(folder, pattern)
