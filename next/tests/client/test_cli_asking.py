"""`ratchet run` when the run asks: on a terminal right there, otherwise the commands are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.client.commandline import Cli, Terminal, agent_file, running, until

PROMPT = r"letter, and a comment if you like: "


@pytest.fixture
def cli(data_dir: Path, tmp_path: Path) -> Cli:
    """Commands at a data directory of their own."""
    (tmp_path / "files").mkdir()
    return Cli(data_dir, tmp_path / "files")


def on_terminal(cli: Cli, *words: str, **variables: str) -> Terminal:
    return Terminal(cli.data_dir, *words, RATCHET_FILES_ROOT=str(cli.files), **variables)


def test_keys_before_the_question_never_answer_it(cli: Cli, tmp_path: Path) -> None:
    """They come before the terminal's answer that it has drawn the question, so they are older than it."""
    terminal = on_terminal(cli, "run", "--agent", agent_file(tmp_path, "first"), "--id", "early", "go")
    terminal.early = "a\ra\r"
    terminal.until(PROMPT)
    terminal.type("x\r")
    terminal.until("aborted")
    assert terminal.end() == 1
    assert cli.marks() == []
    assert [one["outcome"] for one in cli("result", "early", "--json").json["decisions"]] == ["aborted"]


def test_keys_behind_an_answer_never_answer_the_next_question(cli: Cli, tmp_path: Path) -> None:
    """prompt_toolkit would keep them for its next prompt."""
    agent = agent_file(tmp_path, "first", "second")
    terminal = on_terminal(cli, "run", "--agent", agent, "--id", "ahead", "go")
    terminal.until(PROMPT)
    terminal.type("a\ra\ra\r")
    terminal.until(r"r2 approval(?s:.*)" + PROMPT)
    terminal.type("r\r")
    assert terminal.end() == 0
    assert cli.marks() == ["first"]
    outcomes = [one["outcome"] for one in cli("result", "ahead", "--json").json["decisions"]]
    assert outcomes == ["approved", "rejected"]


def test_person_approves_edits_and_rejects_at_the_terminal(cli: Cli, tmp_path: Path) -> None:
    editor = tmp_path / "editor.sh"
    editor.write_text("#!/bin/sh\nsed -i 's/second/SECOND/' \"$1\"\n")
    editor.chmod(0o700)
    agent = agent_file(tmp_path, "first\u001b[2J", "second", "third")
    terminal = on_terminal(cli, "run", "--agent", agent, "--id", "asks", "go", EDITOR=str(editor))
    terminal.until(r"r1 approval   run asks(?s:.*)" + PROMPT)
    terminal.type("what?\r")
    terminal.until(r"a  approve(?s:.*)" + PROMPT)
    terminal.type("a looks fine\r")
    terminal.until(r"r2 approval(?s:.*)" + PROMPT)
    terminal.type("e\r")
    terminal.until(r"r3 approval(?s:.*)" + PROMPT)
    terminal.type("r never\r")
    assert terminal.end() == 0
    assert cli.marks()[1:] == ["SECOND"]
    decisions = cli("result", "asks", "--json").json["decisions"]
    assert [(one["outcome"], one["text"]) for one in decisions] == [
        ("approved", "looks fine"),
        ("edited", ""),
        ("rejected", "never"),
    ]


def test_interrupt_leaves_the_run_waiting_and_names_the_command(cli: Cli, tmp_path: Path) -> None:
    terminal = on_terminal(cli, "run", "--agent", agent_file(tmp_path, "first"), "--id", "kept", "go")
    terminal.until(PROMPT)
    terminal.type("\x03")
    terminal.until("ratchet approve kept r1")
    assert terminal.end() == 130
    sent = cli("approve", "kept", "--json")  # no worker runs now
    assert sent.json["sent"]["body"]["decision"] == "approve"
    resumed = cli("run", "--resume", "--json")
    assert "ratchet inbox kept" in resumed.err
    assert resumed.lines[-1]["decisions"][0]["by"] == ["Ada"]
    assert cli.marks() == ["first"]


def test_question_ends_when_somebody_else_decides(cli: Cli, tmp_path: Path) -> None:
    terminal = on_terminal(cli, "run", "--agent", agent_file(tmp_path, "first"), "--id", "both", "go")
    terminal.until(PROMPT)
    assert cli("approve", "both", "--by", "Bob").code == 0
    terminal.until("r1 is closed")
    assert terminal.end() == 0


def test_person_who_may_not_decide_is_told_who_may(cli: Cli, tmp_path: Path) -> None:
    people = "people: {groups: {ops: {members: [Bob]}}, requests: {group: ops}}"
    agent = agent_file(tmp_path, "first", more=people)
    terminal = on_terminal(cli, "run", "--agent", agent, "--id", "bobs", "go")
    terminal.until(r"Bob may decide it(?s:.*)ratchet approve bobs r1")
    terminal.until(r"waits for a person: approval r1")
    assert cli("approve", "bobs", "--by", "Bob").code == 0
    assert terminal.end() == 0


def test_limit_is_topped_up_and_rollback_confirmed_on_terminals(cli: Cli, tmp_path: Path) -> None:
    more = "limits: {model_calls: 1}\npeople: {on_limit: ask}\napprovals: {effects: {unsafe: never}}"
    agent = agent_file(tmp_path, "first", more=more)
    terminal = on_terminal(cli, "run", "--agent", agent, "--id", "more", "go")
    terminal.until(r"r1 limit(?s:.*)" + PROMPT)
    back = on_terminal(cli, "rollback", "more", "--step", "0")
    back.until(r"mark +.*first.*NO(?s:.*)\[y/N\] ")
    back.type("\r")
    assert back.end() == 4
    terminal.type("m\r")
    terminal.until(PROMPT)
    terminal.type("m model_calls=5\r")
    assert terminal.end() == 0
    assert cli.marks() == ["first"]


def test_without_a_terminal_each_request_is_announced_once(cli: Cli, tmp_path: Path) -> None:
    agent, files = agent_file(tmp_path, "first"), str(cli.files)
    words = ("run", "--agent", agent, "--id", "waits", "--json", "go")
    with running(cli.data_dir, *words, RATCHET_FILES_ROOT=files) as run:
        assert run.stderr is not None
        line = until(lambda: next((one for one in run.stderr or () if one.startswith("{")), None))
        request = json.loads(line)
        assert request["answers"][0].startswith("ratchet approve waits r1 --digest ")
        done = cli("reject", "waits", "r1", "--digest", request["request"]["digest"], "--json")
        assert done.json["decided"]["outcome"] == "rejected"
        out, err = run.communicate(timeout=60)
    assert "ratchet approve" not in err
    *records, result = map(json.loads, out.splitlines())
    assert [record["seq"] for record in records] == list(range(len(records)))
    assert result["decisions"][0]["outcome"] == "rejected"
    assert cli.marks() == []
