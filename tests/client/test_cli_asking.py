"""`ratchet run` when the run asks: on a terminal right there, otherwise the commands are named."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2 as httpx
import pytest

from client.server.embedded import EmbeddedServer
from tests.client.commandline import Cli, agent_file, running

PROMPT = r"\?\s[a-z/]+,\s+and a comment if you like:"
OUTCOME = r"take effect\?\s[a-z/]+:"


@pytest.fixture(scope="module")
async def cli(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cli]:
    """Commands at a server that runs all the time; workers come and go with the commands."""
    home, files = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("files")
    async with await EmbeddedServer.attach(home):
        yield Cli(home, files)


@pytest.mark.exhaustive
@pytest.mark.parametrize("answers", [True, False], ids=["terminal answers", "terminal never answers"])
def test_keys_before_the_question_never_answer_it(cli: Cli, tmp_path: Path, answers: bool) -> None:
    """They come before the terminal's answer that it has drawn the question, so they are older than it."""
    run = f"early-{answers}"
    with cli.terminal("run", "--agent", agent_file(tmp_path, run), "--id", run, "go") as terminal:
        terminal.answers, terminal.early = answers, "y\ry\r"
        terminal.until(PROMPT)
        terminal.type("n in doubt\r")
        assert terminal.end() == 0
    assert run not in cli.marks()
    assert [one["outcome"] for one in cli("result", run, "--json").json["decisions"]] == ["rejected"]


def test_keys_before_question_and_behind_answer_answer_no_question(cli: Cli, tmp_path: Path) -> None:
    """prompt_toolkit would keep those behind an answer for its next prompt."""
    agent = agent_file(tmp_path, "once", "twice")
    with cli.terminal("run", "--agent", agent, "--id", "ahead", "go") as terminal:
        terminal.early = "n\rn\r"
        terminal.until(PROMPT)
        terminal.type("y\ry\ry\r")
        terminal.until(r"r2 approval(?s:.*)" + PROMPT)
        terminal.type("n\r")
        terminal.until(r"why\? \(enter: no reason\):")
        terminal.type("once is enough\r")
        assert terminal.end() == 0
        assert ("once" in cli.marks(), "twice" in cli.marks()) == (True, False)
        decisions = cli("result", "ahead", "--json").json["decisions"]
        assert [(one["outcome"], one["text"]) for one in decisions] == [
            ("approved", ""),
            ("rejected", "once is enough"),
        ]


def test_person_approves_and_rejects_and_commands_do_the_rest(cli: Cli, tmp_path: Path) -> None:
    agent = agent_file(tmp_path, "first\u001b[2J", "middle", "third", "fourth")
    with cli.terminal("run", "--agent", agent, "--id", "asks", "go") as terminal:
        terminal.until(r"r1 approval   run asks(?s:.*)" + PROMPT)
        terminal.type("what?\r")
        terminal.until(r"y  approve(?s:.*)" + PROMPT)
        terminal.type("y looks fine\r")
        named = terminal.until(r"r2 approval(?s:.*)(ratchet edit asks r2 --digest \w+)(?s:.*)" + PROMPT)[1]
        assert cli(*named.split()[1:], "--args", "line: MIDDLE").code == 0
        terminal.until(r"r3 approval(?s:.*)" + PROMPT)
        terminal.type("n\r")
        terminal.until(r"why\?")
        terminal.type("\x04")  # the end of input decides nothing
        terminal.until(PROMPT)
        terminal.type("n never\r")
        named = terminal.until(r"r4 approval(?s:.*)(ratchet abort asks r4 --digest \w+)(?s:.*)" + PROMPT)[1]
        assert cli(*named.split()[1:]).code == 0
        assert terminal.end() == 1
        assert ("MIDDLE" in cli.marks(), "third" in cli.marks()) == (True, False)
        decisions = cli("result", "asks", "--json").json["decisions"]
        assert [(one["outcome"], one["text"]) for one in decisions] == [
            ("approved", "looks fine"),
            ("edited", ""),
            ("rejected", "never"),
            ("aborted", ""),
        ]


def test_browser_decides_by_the_link_at_the_prompt(cli: Cli, tmp_path: Path) -> None:
    with cli.terminal("run", "--agent", agent_file(tmp_path, "linked"), "--id", "linked", "go") as terminal:
        terminal.until(PROMPT)
        terminal.type("b\r")
        link = terminal.until(r"(http://\S+/login\?token=\S+)\s+Who has this link acts as Ada")[1]
        terminal.until(PROMPT)
        with httpx.Client(follow_redirects=True) as browser:
            assert "mark_once" in browser.get(link).text
        terminal.type("y\r")
        assert terminal.end() == 0
        assert cli.marks().count("linked") == 1


def test_person_says_whether_a_call_took_effect(cli: Cli, tmp_path: Path) -> None:
    """`r` makes it again, `n` is nothing. `y` wants what it returned: no reflex decides."""
    path = Path(agent_file(tmp_path, "trip", more="approvals: {effects: {unsafe: never}}"))
    call = json.dumps({"line": "trip", "seconds": 2, "found": "unknown"})
    text = path.read_text().replace("mark_once", "book")
    path.write_text(text.replace(json.dumps(json.dumps({"line": "trip"}))[1:-1], json.dumps(call)[1:-1]))
    with cli.terminal("run", "--agent", str(path), "--id", "booked", "go") as terminal:
        terminal.until(r"r1 outcome(?s:.*)y  it took effect(?s:.*)r  it did not(?s:.*)" + OUTCOME)
        terminal.type("n\r")
        terminal.until(r"r  it did not(?s:.*)" + OUTCOME)
        terminal.type("r\r")
        terminal.until(r"r2 outcome(?s:.*)" + OUTCOME)
        terminal.type("y\r")
        terminal.until("what it returned:")
        terminal.type("\r")
        terminal.until(OUTCOME)
        terminal.type("y looks right\r")
        terminal.until("what it returned:")
        terminal.type("it was booked\r")
        assert terminal.end() == 0
    decisions = cli("result", "booked", "--json").json["decisions"]
    assert [(one["outcome"], one["text"]) for one in decisions] == [
        ("retried", ""),
        ("answered", "it was booked"),
    ]


def test_machines_question_offers_exactly_what_it_takes(cli: Cli) -> None:
    words = ("run", "--agent", "refund_desk", "--id", "desk", "Work through the open tickets")
    with cli.terminal(*words) as terminal:
        offered = terminal.until(r"r1 question(?s:(.*))" + PROMPT)[1]
        assert re.findall(r"^ +(\w)  (\w+)", offered, re.MULTILINE) == [
            ("y", "approve"), ("n", "reject"), ("b", "in"), ("l", "later"),
        ]  # fmt: skip
        terminal.type("yes\r")
        terminal.until("'yes' is none of the keys(?s:.*)" + PROMPT)
        terminal.type("n not now\r")
        terminal.until(r"r2 question(?s:.*)" + PROMPT)
        assert cli("approve", "desk").code == 0
        terminal.until("desk")
        terminal.end()
    decided = cli("result", "desk", "--json").json
    assert [(one["outcome"], one["text"]) for one in decided["decisions"]][:2] == [
        ("rejected", "not now"), ("approved", ""),
    ]  # fmt: skip
    assert "not now" in decided["answer"]


def test_interrupt_leaves_the_run_waiting_and_names_the_command(cli: Cli, tmp_path: Path) -> None:
    with cli.terminal("run", "--agent", agent_file(tmp_path, "kept"), "--id", "kept", "go") as terminal:
        terminal.until(PROMPT)
        terminal.type("\x03")
        terminal.until("ratchet approve kept r1")
        assert terminal.end() == 130
        waiting = cli("show", "kept")
        assert "`ratchet run --resume` continues it" in waiting.err
        assert [one["step"] for one in cli("show", "kept", "--json").json["steps"]] == [1]
        shown = cli("log", "kept")  # no worker runs now
        assert "replayed" in shown.err
        assert ("Requested" in shown.out, "1 tool call" in shown.out) == (True, False)
        sent = cli("approve", "kept", "--json")
        assert sent.json["sent"]["body"]["decision"] == "approve"
        assert "no worker runs: it takes effect when one does (`ratchet run --resume`)" in sent.out
        assert "r1: `approve` by Ada was sent, and waits for a worker" in cli("inbox", "kept").err
        resumed = cli("run", "--resume", "--json")
        assert "ratchet inbox kept" in resumed.err
        assert resumed.lines[-1]["decisions"][0]["by"] == ["Ada"]
        assert cli.marks().count("kept") == 1


def test_resumed_run_shows_its_log_before_what_it_asks(cli: Cli, tmp_path: Path) -> None:
    agent = Path(agent_file(tmp_path, "later"))
    agent.write_text(agent.read_text().replace('"reply": ""', '"reply": "I write it."'))
    assert cli("run", "--agent", str(agent), "--id", "later", "--detach", "go").code == 0
    with cli.terminal("run", "--resume") as terminal:
        terminal.until(r"I write it\.(?s:.*)r1 approval   run later(?s:.*)" + PROMPT)
        terminal.type("l\r")
        terminal.until("ratchet approve later r1")
        terminal.until("left for later; later is kept. `ratchet run --resume` continues")
        assert terminal.end() == 130
    assert terminal.shown.count("ratchet approve later r1") == 1
    assert "while this command or `ratchet dev` runs: http://" in terminal.shown
    assert cli("abort", "later").code == 0
    assert cli("run", "--resume").code == 1


@pytest.mark.exhaustive  # `test_person_approves_...` has two that are decided elsewhere
def test_question_ends_when_somebody_else_decides(cli: Cli, tmp_path: Path) -> None:
    with cli.terminal("run", "--agent", agent_file(tmp_path, "both"), "--id", "both", "go") as terminal:
        terminal.until(PROMPT)
        assert cli("approve", "both", "--by", "Bob", "-m", "mine").code == 0
        terminal.until(r"\s1\s+• Decided by Bob .*: r1 .*approved: mine")
        assert terminal.end() == 0
    asked, _, since = terminal.shown.partition("• Decided by Bob")
    assert re.search(
        PROMPT + r"\s+(\S [^\r\n]+ \d+ s\s+)?1\s+$", asked
    )  # beside the line that says what is done
    assert not re.search(PROMPT, since)
    assert terminal.shown.count("mine") == 1
    assert cli("result", "both", "--json").json["decisions"][0]["by"] == ["Bob"]


def test_prompt_stands_again_below_what_others_do(cli: Cli, tmp_path: Path) -> None:
    with cli.terminal("run", "--agent", agent_file(tmp_path, "calm"), "--id", "calm", "go") as terminal:
        terminal.until(PROMPT)
        assert cli("pause", "calm").code == 0
        terminal.until("Paused(?s:.*)" + PROMPT)
        assert cli("steer", "calm", "Be quick.").code == 0
        terminal.until("Steered(?s:.*)" + PROMPT)
        assert cli("resume", "calm").code == 0
        terminal.until("Resumed(?s:.*)" + PROMPT)
        terminal.type("y\r")
        assert terminal.end() == 0


def test_person_who_may_not_decide_is_told_who_may(cli: Cli, tmp_path: Path) -> None:
    people = "people: {groups: {ops: {members: [Bob]}}, requests: {group: ops}}"
    agent = agent_file(tmp_path, "bobs", more=people)
    with cli.terminal("run", "--agent", agent, "--id", "bobs", "go") as terminal:
        terminal.until(r"Bob may decide it(?s:.*)ratchet approve bobs r1")
        terminal.until(r"waits for a person: approval r1")
        assert cli("approve", "bobs", "--by", "Bob").code == 0
        assert terminal.end() == 0


def test_limit_is_topped_up_and_rollback_confirmed_on_terminals(cli: Cli, tmp_path: Path) -> None:
    more = "limits: {model_calls: 1}\npeople: {on_limit: ask}\napprovals: {effects: {unsafe: never}}"
    agent = agent_file(tmp_path, "more", more=more)
    with cli.terminal("run", "--agent", agent, "--id", "more", "go") as terminal:
        terminal.until(r"r1 limit(?s:.*)" + PROMPT)
        with cli.terminal("rollback", "more", "--step", "0") as back:
            back.until(r"mark_once +.*more.*NO(?s:.*)\[y/N\]")
            back.type("\r")
            assert back.end() == 4
            terminal.type("y tokens=5\r")
            terminal.until(r"r1 is about model_calls, not tokens(?s:.*)" + PROMPT)
            terminal.type("y\r")
            terminal.until("how much more model_calls:")
            terminal.type("5\r")
            assert terminal.end() == 0
            assert cli.marks().count("more") == 1


def test_second_worker_claims_no_run_of_the_first(cli: Cli, tmp_path: Path) -> None:
    words = ("run", "--agent", agent_file(tmp_path, "mine"), "--id", "mine", "go")
    with running(*words, **cli.variables) as run:
        assert run.stderr is not None
        assert "for ever" in next(line for line in run.stderr if "nobody can be asked here" in line)
        free = agent_file(tmp_path, "other", more="approvals: {effects: {unsafe: never}}")
        other = cli("run", "--agent", free, "go")
        left = "left alone: 1 other run of this directory not over; `ratchet list --running` shows"
        assert (other.code, left in other.err, "agent marks: go" in other.err) == (0, True, False), other.err
        assert cli("reject", "mine").code == 0
        assert run.wait(60) == 0


def test_without_a_terminal_each_request_is_announced_once(cli: Cli, tmp_path: Path) -> None:
    words = ("run", "--agent", agent_file(tmp_path, "waits"), "--id", "waits", "--json", "go")
    with running(*words, **cli.variables) as run:
        assert run.stderr is not None
        request = json.loads(next(line for line in run.stderr if line.startswith("{")))
        assert request["answers"][0].startswith("ratchet approve waits r1 --digest ")
        done = cli("reject", "waits", "r1", "--digest", request["request"]["digest"], "--json")
        assert done.json["decided"]["outcome"] == "rejected"
        out, err = run.communicate(timeout=60)
    assert "ratchet approve" not in err
    *records, result = map(json.loads, out.splitlines())
    assert [record["seq"] for record in records] == list(range(len(records)))
    assert result["decisions"][0]["outcome"] == "rejected"
    assert "waits" not in cli.marks()
