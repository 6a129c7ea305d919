"""Deciding and commanding by the command line, beside a worker that runs elsewhere."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.settings import Settings
from client.errors import UsageError
from client.keys import new_key
from client.runs.amounts import amounts_from, caps_from
from client.sdk.agent import AgentClient
from tests.client.asking import asking, bounded, marks, opened
from tests.client.commandline import Cli, Result
from tests.server.conftest import TOOLS
from tests.server.trials import calls, eventually, task
from workflows.kernel.labels import Labels
from workflows.people import Approvals, Group, People, RequestSettings

UNTRUSTED = "the run holds untrusted text from what the run began with"
Say = Callable[..., Awaitable[Result]]


@pytest.fixture
def say(working: Client, settings: Settings) -> Say:
    """The command line at the shared server."""
    address = working.service_client.config.target_host
    variables = {"TEMPORAL_ADDRESS": address, "RATCHET_MODULES": json.dumps([str(TOOLS)])}
    return Cli(settings.data_dir, settings.files_root, variables).beside


async def asked(agents: AgentClient, *lines: str, run: str | None = None, **more: Any) -> str:
    """The id of a run that waits for the approval of a call that writes the first line."""
    started = await agents.start(asking(*lines, **more), run)
    await opened(agents, started)
    return started


async def test_request_is_shown_and_decided_by_a_short_id(agents: AgentClient, say: Say) -> None:
    labels = Labels(input=("untrusted",))
    run = await asked(agents, "cli-\x1b[31mred", run="shop-20261121-abcd", labels=labels)
    request = await opened(agents, run)
    done = await say("approve", "abcd", "-m", "well \x1b[2J")
    assert done.code == 0, done.err
    for part in (run, "mark_once", "cli-", request.digest, "Ada (claimed)", UNTRUSTED):
        assert part in done.out
    assert "\x1b" not in done.out
    assert (await agents.result(run)).decisions[0].by == ("Ada",)


async def test_bound_that_asks_is_named_everywhere(agents: AgentClient, say: Say) -> None:
    run = await agents.start(bounded("cli-one", "cli-two", calls=1))
    await opened(agents, run)
    why = "rules.0 allows at most 1 call unasked; 1 made"
    assert why in " ".join((await say("inbox", run)).out.split())
    assert "unasked" in (shown := (await say("show", run)).out)
    assert "rules.0: 1 of 1 call" in shown
    (waiting,) = [line for line in await agents.inbox() if line.id == run]
    assert [request.because for request in waiting.requests] == [why]
    assert (await say("reject", run)).code == 0
    log = (await say("log", run)).out
    assert "WithinBound" in log


@pytest.mark.parametrize(
    ("words", "code", "culprit"),
    [
        pytest.param(["approve", "RUN", "--digest", "12345"], 2, "--digest", id="short digest"),
        pytest.param(
            ["approve", "RUN", "--digest", "zzzzzz"], 3, "is zzzzzz: it is mistyped, or", id="other digest"
        ),
        pytest.param(["approve", ""], 2, "empty", id="no run"),
        pytest.param(["approve", "RUN", ""], 2, "empty", id="no request"),
        pytest.param(["approve", "no-such-run"], 1, "no-such-run", id="unknown run"),
        pytest.param(["approve", "RUN", "r9"], 3, "r9", id="unknown request"),
        pytest.param(["answer", "RUN", "r1", "and", "more"], 2, "3 words", id="unquoted answer"),
        pytest.param(["answer", "RUN", " "], 2, "blank", id="blank answer"),
        pytest.param(["answer", "RUN", "r1", "forty-two"], 2, "approve, reject", id="wrong verb"),
        pytest.param(["topup", "RUN", "model_cals=5"], 2, "`topup`", id="nothing to top up"),
        pytest.param(["topup", "RUN", "tokens="], 2, "tokens=", id="no amount"),
        pytest.param(["limits", "RUN", "tokens=many"], 2, "many", id="no number"),
        pytest.param(["topup", "RUN", "cost_usd=0,50"], 2, "cost_usd=0.50", id="decimal comma in an amount"),
        pytest.param(["limits", "RUN", "cost_usd=0,50"], 2, "cost_usd=0.50", id="decimal comma in a limit"),
        pytest.param(["edit", "RUN"], 4, "--args", id="edit without terminal"),
        pytest.param(["edit", "RUN", "--args", '{"line": 1, "line": 2}'], 2, "`line`", id="key twice"),
        pytest.param(["edit", "RUN", "--args", "[1]"], 2, "--args", id="no object"),
        pytest.param(["edit", "RUN", "--args", '{"lin": "x"}'], 3, "lin", id="arguments that do not fit"),
        pytest.param(["approve", "RUN", "--remember-where", "lin=x"], 2, "`line`", id="unknown argument"),
        pytest.param(["approve", "RUN", "--remember-where", "line"], 2, "NAME=VALUE", id="no value"),
        pytest.param(["approve", "RUN", "--remember", "--remember-any"], 2, "--remember-any", id="both"),
        pytest.param(["resume", "RUN", "r1", "--pause"], 2, "--pause", id="request and pause"),
        pytest.param(["abort", "RUN", "--digest", "abcdef"], 2, "--digest", id="digest without request"),
        pytest.param(["rollback", "RUN", "--step", "7", "--yes"], 2, "No step 7", id="unknown step"),
        pytest.param(["rollback", "RUN", "--step", "0"], 4, "--yes", id="rollback unconfirmed"),
        pytest.param(["steer", "RUN", ""], 2, "blank", id="empty message"),
        pytest.param(["approve", "RUN", "--key", "no.pem"], 2, "no.pem", id="no key file"),
    ],
)
async def test_wrong_words_change_nothing(
    agents: AgentClient, say: Say, words: Sequence[str], code: int, culprit: str
) -> None:
    name = "waits-for-right-words"
    if name not in {line.id for line in await agents.list(running=True)}:
        await asked(agents, "never", run=name)
    found = await say(*(name if word == "RUN" else word for word in words))
    assert (found.code, found.out) == (code, ""), found.err
    assert culprit in found.err
    assert "Traceback" not in found.err
    assert (await opened(agents, name)).votes == ()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5), ("0.5", 0.5), (".5", 0.5), ("1_000", 1000), ("1,000", 1000),
        ("12,345,678.25", 12_345_678.25), ("1e6", 1e6),
    ],
)  # fmt: skip
def test_amount_is_the_number_that_was_typed(text: str, number: float) -> None:
    assert amounts_from([f"tokens={text}"]) == {"tokens": number}
    assert caps_from([f"tokens={text}"]) == {"tokens": number}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("0,50", "0.50"), ("2,5", "2.5"), ("0,500", "0.500"), ("1,0000", "1.0000"), (",5", "0.5"),
        ("1,", "0.5"), ("1.000,00", "0.5"), ("10,00,000", "0.5"), ("1.5,000", "0.5"), ("1,000_000", "0.5"),
    ],
)  # fmt: skip
def test_comma_that_may_be_a_decimal_point_is_refused(text: str, meant: str) -> None:
    for read in (amounts_from, caps_from):
        with pytest.raises(UsageError) as refused:
            read([f"cost_usd={text}"])
        assert str(refused.value) == (
            f"cost_usd={text}: the comma in '{text}' may be a decimal point; write cost_usd={meant} with a "
            "point, and thousands as 1,000 or 1000"
        )


async def test_approval_of_what_is_shown_in_part_needs_the_digest(
    agents: AgentClient, say: Say, settings: Settings
) -> None:
    lines = [f"cli-long-{number}" for number in range(100)]
    long = task(
        calls(("mark_all", {"lines": lines})),
        "done",
        tools=("mark_all",),
        people=People(),
        approvals=Approvals(),
    )
    run = await agents.start(long)
    request = await opened(agents, run)
    for words in (("approve", run), ("approve", run, "--json"), ("approve", run, "r1", "--remember")):
        refused = await say(*words)
        assert (refused.code, refused.out) == (4, ""), refused.err
        assert f"ratchet inbox {run}" in refused.err
        assert "--digest" in refused.err
        assert request.digest[:6] not in refused.err, "it is read where all is shown"
    assert (await opened(agents, run)).votes == ()
    assert '"cli-long-99"' in (await say("inbox", run)).out
    assert (await say("approve", run, "--digest", request.digest[:8])).code == 0
    assert (await agents.result(run)).ok
    assert marks(settings, "cli-long-99") == 1


async def test_edited_arguments_and_comments_reach_the_run(
    agents: AgentClient, say: Say, settings: Settings
) -> None:
    run = await asked(agents, "cli-before")
    done = await say("edit", run, "--args", "line: cli-after", "-m", "better so", "--json")
    assert done.json["decided"]["outcome"] == "edited", done.err
    assert (await agents.result(run)).decisions[0].text == "better so"
    assert (marks(settings, "cli-before"), marks(settings, "cli-after")) == (0, 1)
    late = await say("approve", run)
    assert (late.code, run in late.err) == (3, True)


async def test_edited_arguments_are_shown_and_sent_with_tools_types(agents: AgentClient, say: Say) -> None:
    run = await asked(agents, "cli-typed")
    seen = (await agents.requests(run))[0].arguments
    for same in (json.dumps(seen), '{line: cli-typed, seconds: "0"}'):
        none = await say("edit", run, "--args", same)
        assert (none.code, none.out, "nothing was changed" in none.err) == (4, "", True), none.err
    wrong = await say("edit", run, "--args", "{line: cli-typed, seconds: soon}")
    assert (wrong.code, "seconds: 'soon' is not of type 'number'" in wrong.err) == (3, True), wrong.err
    assert "a number is written bare" in wrong.err
    done = await say("edit", run, "--args", '{line: cli-typed, seconds: "0.01"}', "-m", "at once")
    assert '"seconds": 0.01' in done.out, done.err
    assert (await agents.result(run)).ok


@pytest.mark.parametrize(
    ("options", "asked_again"),
    [
        (["--remember"], True),
        (["--remember-any"], False),
        (["--remember-where", "line={pattern: ^cli-}"], False),
        pytest.param(["--remember-where", "line=cli-other"], False, marks=pytest.mark.exhaustive),
        pytest.param(["--remember-where", "line={maxLength: 3}"], True, marks=pytest.mark.exhaustive),
    ],
)
async def test_standing_approval_covers_later_calls(
    agents: AgentClient, say: Say, options: Sequence[str], asked_again: bool
) -> None:
    run = await asked(agents, "cli-one", "cli-other")
    first = await opened(agents, run)
    assert (await say("approve", run, *options)).code == 0
    if asked_again:
        again = await say("reject", run, "r2", "--json")
        while again.code == 3:  # it is not open yet
            again = await say("reject", run, "r2", "--json")
        assert again.json["request"]["arguments"] != first.arguments
    decisions = (await agents.result(run)).decisions
    assert [one.request for one in decisions] == (["r1", "r2"] if asked_again else ["r1"])


async def test_commands_pause_steer_limit_and_abort(agents: AgentClient, say: Say) -> None:
    run = await asked(agents, "cli-commands")
    assert (await say("pause", run, "--json")).json["done"]["paused"] is True
    assert (await say("limits", run, "model_calls=7", "tokens=none")).code == 0
    status = (await say("show", run, "--json")).json["status"]
    assert (status["paused"], status["caps"]["model_calls"], "tokens" in status["caps"]) == (True, 7, False)
    assert (await say("steer", run, "-", stdin="be brief\n")).code == 0
    aborted = await say("abort", run, "--reason", "wrong customer")
    assert aborted.code == 0, aborted.err
    result = await agents.result(run)
    assert (result.exit_reason, result.unheard) == ("aborted", ("be brief",))
    steered = [one for one in await agents.records(run) if one.event == "Steered"]
    assert [one.by for one in steered] == ["Ada (claimed)"]


async def test_resume_takes_a_pause_back_or_names_both_meanings(agents: AgentClient, say: Say) -> None:
    people = People(interrupt_every=1)
    run = await agents.start(task(calls(("mark", {"line": "cli-resume"})), "done", people=people))
    request = await opened(agents, run)
    assert (await say("pause", run)).code == 0
    either = await say("resume", run)
    assert (either.code, "--pause" in either.err, f"{run} r1" in either.err) == (2, True, True)
    assert (await say("resume", run, "--pause", "--json")).json["done"]["paused"] is False
    answered = await say("resume", run, "--json")
    assert (answered.json["request"]["id"], answered.json["decided"]["outcome"]) == (request.id, "resumed")
    assert (await agents.result(run)).ok


async def test_rollback_shows_what_was_done_and_begins_the_step_again(agents: AgentClient, say: Say) -> None:
    run = await asked(agents, "cli-back", "cli-stop")
    assert (await say("approve", run)).code == 0
    while (await opened(agents, run)).id != "r2":
        pass
    back = await say("rollback", run, "--step", "1", "--yes", "--json")
    assert back.code == 0, back.err
    assert [call["arguments"]["line"] for call in back.json["effects"]] == ["cli-back"]
    assert back.json["done"]["branch"] == 1
    await agents.command(run, "abort")


async def test_rollback_of_a_fork_names_what_its_source_did(agents: AgentClient, say: Say) -> None:
    source = await asked(agents, "cli-source", "cli-later")
    assert (await say("approve", source)).code == 0
    await eventually(lambda: agents.requests(source))
    middle = await agents.fork(source, 2)
    await opened(agents, middle)
    run = await agents.fork(middle, 2)
    await opened(agents, run)
    back = await say("rollback", run, "--step", "1", "--compensate")
    assert back.code == 4, back.err
    shown = " ".join(back.err.split())
    for part in ("done since step 1 began", "cli-source", f"not from here: run {source} made it"):
        assert part in shown
    assert "--compensate undoes" not in shown
    assert "nothing was changed" not in shown
    done = (await say("rollback", run, "--step", "1", "--yes", "--json")).json
    assert [(call["arguments"]["line"], call["run"]) for call in done["effects"]] == [("cli-source", source)]
    for one in (source, middle, run):
        await agents.command(one, "abort")


async def test_signal_needs_no_answer(agents: AgentClient, say: Say) -> None:
    run = await asked(agents, "cli-signal")
    sent = (await say("approve", run, "--signal", "--json")).json["sent"]
    assert (sent["message"], sent["body"]["decision"]) == ("decide", "approve")
    assert (await agents.result(run)).decisions[0].outcome == "approved"


async def test_signed_decision_is_verified(agents: AgentClient, say: Say, tmp_path: Path) -> None:
    path = tmp_path / "bea.pem"
    group = Group(keys={"bea": new_key(path)})
    people = People(groups={"board": group}, requests=RequestSettings(group="board"))
    run = await asked(agents, "cli-signed", people=people)
    assert (await say("approve", run, "--by", "bea")).code == 3
    assert (await say("approve", run, "--by", "bea", "--key", str(path))).code == 0
    assert (await agents.result(run)).decisions[0].verified


async def test_inbox_lists_waiting_runs_and_shows_one_in_full(agents: AgentClient, say: Say) -> None:
    people = People(kinds={"approval": RequestSettings(deadline_seconds=3600)})
    run = await asked(agents, "cli-inbox", run="listed-1", people=people, approvals=Approvals())
    rows: list[Any] = []
    while not rows:  # lists lag behind
        rows = [row for row in (await say("inbox", "--json")).lines if row["id"] == run and row["requests"]]
    assert (rows[0]["waiting"], rows[0]["requests"][0]["id"]) == ("approval", "r1")
    assert 'mark_once(line="cli-inbox"' in (await say("inbox")).out
    shown = (await say("inbox", "listed")).out
    for part in (run, "effects.unsafe", "always", "ratchet approve listed-1 r1 --digest "):
        assert part in shown
    found = (await say("inbox", "listed", "--json")).json
    assert (found["run"]["id"], found["children"], found["requests"][0]["id"]) == (run, [], "r1")
    assert (await say("result", run)).code == 1
    assert "waits for a person: approval" in (await say("show", run)).out
    await agents.command(run, "abort")
    await agents.result(run)
    assert (await say("inbox", run)).code == 3


async def test_key_is_made_for_its_owner_and_never_overwritten(say: Say, tmp_path: Path) -> None:
    path = tmp_path / "no folder yet" / "my.pem"
    made = await say("key", "new", str(path), "--by", "Ada Łęcka", RATCHET_KEY=str(path))
    assert (made.code, stat.S_IMODE(path.stat().st_mode)) == (0, 0o600)
    assert made.out.startswith('"Ada Łęcka": ')
    assert (await say("key", "show", str(path), "--by", "Ada Łęcka")).out == made.out
    again = await say("key", "new", str(path))
    assert (again.code, "exists already" in again.err) == (2, True)


@pytest.mark.parametrize("kind", ["new", "encryption"])
def test_no_key_is_made_where_tools_read(tmp_path: Path, kind: str) -> None:
    """A model could sign with it."""
    files = tmp_path / "files"
    files.mkdir()
    (tmp_path / "link").symlink_to("files")
    say = Cli(tmp_path / "data", files)
    for place in ("files/ann.key", "files/sub/ann", "link/ann.pem"):
        refused = say("key", kind, str(tmp_path / place))
        assert (refused.code, list(files.iterdir())) == (2, [])
        assert "RATCHET_FILES_ROOT): a model could get the key; name a file elsewhere" in refused.err
    assert say("key", kind, str(files / ".config" / "ratchet" / "ann.pem")).code == 0


async def test_key_below_what_is_no_folder_is_refused_as_that(say: Say, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for kind in ("new", "encryption"):
        for inside in ("k", "sub/k"):
            refused = await say("key", kind, str(tmp_path / "file" / inside))
            assert (refused.code, "exists already" in refused.err) == (2, False)
            assert f"the folder {(tmp_path / 'file' / inside).parent} cannot be made" in refused.err


async def test_encryption_key_is_added_to_file_of_relative_path(say: Say, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    names = [(await say("key", "encryption", relative(file))).out.strip() for _ in range(2)]
    assert list(json.loads(file.read_text())) == names


def relative(path: Path) -> str:
    """The path from the working directory."""
    return os.path.relpath(path)


async def test_encryption_key_is_added_behind_the_one_that_encrypts(say: Say, tmp_path: Path) -> None:
    path = tmp_path / "no folder yet" / "keys.json"
    names = [(await say("key", "encryption", str(path))).out.strip() for _ in range(2)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(json.loads(path.read_text())) == names
    assert list(Settings(encryption_keys=str(path)).encryption_keys) == names
    path.write_text("[]")
    assert (await say("key", "encryption", str(path))).code == 2
    assert path.read_text() == "[]"
