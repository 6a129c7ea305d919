"""The example agent `login_audit` says what is in the log, and something else when that changes."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tests.machines.examplekit import agent_says

ROOT = Path(__file__).resolve().parents[2]
LOG = ROOT / "examples" / "data" / "logins.txt"
QUESTION = "Did anyone break into an account?"


def folder_with(tmp_path: Path, text: str) -> Path:
    """A folder with this log where the agent looks."""
    (tmp_path / "examples" / "data").mkdir(parents=True)
    (tmp_path / "examples" / "data" / "logins.txt").write_text(text, encoding="utf-8")
    return tmp_path


def line(action: str, user: str = "ann", ip: str = "192.0.2.9", more: str = "") -> str:
    """One line of a log."""
    return f"2026-05-01T10:00:00Z {action} user={user} ip={ip}{more}\n"


async def test_it_finds_the_address_the_account_and_the_deeds_that_are_in_the_log(tmp_path: Path) -> None:
    text = LOG.read_text(encoding="utf-8")
    failures = Counter(re.findall(r"login FAIL \S+ ip=(\S+)", text))
    (ip, count), total = failures.most_common(1)[0], failures.total()
    since, user = re.findall(rf"(\S+) login OK user=(\S+) ip={re.escape(ip)}$", text, re.MULTILINE)[0]
    deeds = re.findall(rf"(?:export|change_\w+) user={user} ip={re.escape(ip)} (.*)", text)
    ended, used = await agent_says("login_audit", folder_with(tmp_path, text), QUESTION)
    assert (ended.ok, ended.reason) == (True, "answered")
    answer = str(ended.answer)
    assert f"{ip} failed to sign in {count} times ({round(100 * count / total, 1)} % of all {total}" in answer
    assert f"got in as {user} at {since}" in answer
    assert f"something {len(deeds)} times" in answer
    assert deeds[0] in answer
    assert used == ["search_files", "search_files", "calculator", "search_files"]
    assert ended.outcome["iterations"] == 5


async def test_a_log_without_failures_needs_one_look(tmp_path: Path) -> None:
    ended, used = await agent_says("login_audit", folder_with(tmp_path, line("login OK")), QUESTION)
    assert ended.answer == "No. examples/data/logins.txt has no failed sign-in at all."
    assert used == ["search_files"]


async def test_an_address_that_never_got_in_is_said_to(tmp_path: Path) -> None:
    text = line("login FAIL") * 3 + line("login OK", ip="192.0.2.90")
    ended, _ = await agent_says("login_audit", folder_with(tmp_path, text), QUESTION)
    assert ended.answer == "No. 192.0.2.9 failed most often (3 of 3 failed sign-ins), but it never got in."


async def test_an_intruder_who_took_nothing_is_said_to(tmp_path: Path) -> None:
    text = line("login FAIL") * 3 + line("login OK") + line("view", more=" report=1")
    ended, _ = await agent_says("login_audit", folder_with(tmp_path, text), QUESTION)
    assert "It took and changed nothing. Lock ann" in str(ended.answer)


async def test_a_log_that_is_not_there_halts_the_run(tmp_path: Path) -> None:
    """No failure was seen is another thing than no failure was there."""
    ended, _ = await agent_says("login_audit", tmp_path, QUESTION)
    assert (ended.ok, ended.reason, ended.raises) == (False, "tool_failure", "ExecutionError")
    assert "there is no such file" in str(ended.error)


def test_the_agent_file_is_where_the_command_in_it_says() -> None:
    text = (ROOT / "examples" / "agents" / "login_audit.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ratchet run --agent examples/agents/login_audit.yaml ")
