"""Deciding and commanding by the command line, beside a worker that runs elsewhere."""

from __future__ import annotations

import asyncio
import json
import re
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from activities.settings import Settings
from client.agent import AgentClient
from client.connection import working
from client.keys import new_key
from tests.client.peoplekit import asking_task, attended, marks, opened, until_true
from tests.client.shell import Said, Shell
from tests.conftest import TOOLS
from tests.workflows.trials import act, final
from workflows.people import Approvals, Asking, Group, People

Say = Callable[..., Awaitable[Said]]


@pytest_asyncio.fixture(scope="module")
async def desk(served_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AgentClient]:
    """A client of the served directory, at which a worker runs."""
    root = tmp_path_factory.mktemp("files")
    settings = Settings(data_dir=served_dir, files_root=root, modules=(str(TOOLS),))
    async with AgentClient.connect(settings=settings) as agents, working(agents, settings):
        yield agents


@pytest.fixture(scope="module")
def say(served_dir: Path) -> Iterator[Say]:
    """The command line there, while the worker here goes on."""
    with Shell(served_dir) as shell:

        async def run(*words: str, stdin: str = "", **environment: str) -> Said:
            return await asyncio.to_thread(shell.run, *words, stdin=stdin, **environment)

        yield run


async def asked(agents: AgentClient, line: str, run_id: str | None = None, **more: Any) -> str:
    """The id of a run that waits for the approval of a call that writes the line."""
    started = await agents.start(asking_task(line, **more), run_id)
    await opened(agents, started)
    return started


async def test_what_is_decided_upon_is_shown_and_ids_may_be_shortened(desk: AgentClient, say: Say) -> None:
    run_id = await asked(desk, "cli-\x1b[31mred", "shop-20261121-abcd")
    (request,) = await desk.requests(run_id)
    for short in ("", "12345"):
        bad = await say("approve", "abcd", "--digest", short)
        assert (bad.code, "at least 6 characters" in bad.err) == (2, True), bad.err
    for words in (("approve", ""), ("approve", "abcd", "")):
        bad = await say(*words)
        assert (bad.code, "is empty" in bad.err) == (2, True), bad.err
    other = await say("approve", "abcd", "--digest", "zzzzzz", "--by", "Ada")
    assert other.code == 3
    assert f"r1 asks about {request.digest}, --digest zzzzzz came" in other.err
    done = await say("approve", "abcd", "-m", "well \x1b[2J", "--by", "Ada")
    assert done.code == 0, done.err
    for shown in (
        "r1 approval",
        run_id,
        "mark_once",
        '"line": "cli-',
        request.digest,
        "approved by Ada (claimed)",
    ):
        assert shown in done.out
    assert "\x1b" not in done.out
    assert f"`ratchet watch {run_id}` follows it" in done.err
    assert (await desk.result(run_id)).decisions[0].by == ("Ada",)
    again = await say("approve", run_id, "1", "--by", "Ada")
    assert (again.code, again.out) == (3, "")
    assert f"run {run_id} is over" in again.err
    over = await say("inbox", "abcd")
    assert (over.code, f"run {run_id} is over (goal_achieved), so it asks nothing" in over.err) == (
        3,
        True,
    ), over.err


async def test_a_shortened_id_that_fits_several_runs_or_requests_names_them(
    desk: AgentClient, say: Say
) -> None:
    runs = [await asked(desk, "cli-many", f"twins-{letter}") for letter in "ab"]
    vague = await say("reject", "twins", "-m", "no")
    assert vague.code == 2
    assert re.search("several runs.*\n  twins-a\n  twins-b", vague.err)
    unknown = await say("reject", "triplets")
    assert (unknown.code, "there is no run triplets" in unknown.err) == (1, True)
    nothing = await say("reject", "twins-a", "r9")
    assert (nothing.code, "has no request r9; there is r1" in nothing.err) == (3, True)
    wrong = await say("topup", "twins-a", "cost_usd=5")
    assert wrong.code == 2
    assert "asks nothing that `topup` answers; it asks:\n  approval r1: mark_once(line=" in wrong.err
    for run_id in runs:
        done = json.loads((await say("reject", run_id, "--json", "--by", "Ada", "-m", "no")).out)
        assert (done["run"], done["request"]["tool"], done["decided"]["outcome"]) == (
            run_id,
            "mark_once",
            "rejected",
        )
        await desk.result(run_id)
    # One that is over is meant as well as one that goes on, and an end as well as a beginning.
    last = await asked(desk, "cli-many", "late-twins")
    assert re.search("several runs.*\n  late-twins\n  twins-a\n  twins-b", (await say("abort", "twins")).err)
    assert (await say("show", "late-tw")).code == 0
    assert (await say("abort", "late-tw", "r1", "-m", "no more", "--by", "Ada")).code == 0
    assert (await desk.result(last)).decisions[0].outcome == "aborted"


async def test_a_refusal_says_why_and_ends_with_3(desk: AgentClient, say: Say, tmp_path: Path) -> None:
    group = Group(keys={"Ada": new_key(tmp_path / "ada.pem")})
    run_id = await asked(
        desk, "cli-refused", people=People(groups={"ops": group}, asking=Asking(group="ops"))
    )
    claimed = await say("approve", run_id, "--by", "Ada")
    assert claimed.code == 3
    assert "signed with the key of Ada" in claimed.err
    (tmp_path / "ada.pem").chmod(0o640)
    signed = await say("approve", run_id, "--by", "Ada", "--key", str(tmp_path / "ada.pem"))
    assert signed.code == 0, signed.err
    assert re.search(r"warning: others can read .*ada.pem \(mode 0640\).*`chmod 600 ", signed.err)
    assert "approved by Ada (verified)" in signed.out
    assert (await desk.result(run_id)).decisions[0].verified


async def test_new_arguments_are_given_where_there_is_no_terminal_for_an_editor(
    desk: AgentClient, say: Say
) -> None:
    other = await asked(desk, "cli-args")
    nowhere = await say("edit", other, EDITOR="sleep 100")
    assert (nowhere.code, "give the arguments with --args" in nowhere.err) == (4, True)
    wrong = await say("edit", other, "--args", "{lin: x}")
    assert (wrong.code, "do not fit mark_once" in wrong.err) == (3, True)
    given = await say("edit", other, "--args", '{"line": "cli-given"}')
    assert given.code == 0, given.err
    await desk.result(other)


async def test_an_approval_may_be_remembered_for_the_same_call_or_for_one_argument(
    desk: AgentClient, say: Say
) -> None:
    script = [act("mark_once", line="cli-again", text=text) for text in ("a", "a", "b", "c")]
    run_id = await desk.start(attended(*script, final("done"), tools=("mark_once",)))
    await opened(desk, run_id)
    first = await say("approve", run_id, "--remember")
    assert first.code == 0, first.err
    (other,) = await until_true(lambda: desk.requests(run_id))
    assert other.arguments["text"] == "b"
    both = await say("approve", run_id, "--remember", "--remember-any")
    assert both.code == 2
    misspelt = await say("approve", run_id, "--remember-where", "lin=cli-again")
    assert (misspelt.code, "did you mean `line`?" in misspelt.err) == (2, True), misspelt.err
    second = await say("approve", run_id, other.id, "--remember-where", "line=cli-again")
    assert second.code == 0, second.err
    assert 'it approves calls of mark_once where line is "cli-again", too' in second.out
    result = await desk.result(run_id)
    assert [decided.request for decided in result.decisions] == ["r1", "r2"]


async def test_resume_answers_what_waits_for_it_and_else_takes_a_pause_back(
    desk: AgentClient, say: Say
) -> None:
    script = [act("mark", line="cli-resume"), final("done")]
    run_id = await desk.start(attended(*script, tools=("mark",), people=People(interrupt_every=1)))
    await opened(desk, run_id)
    paused = await say("pause", run_id, "-m", "lunch", "--by", "Ada")
    assert (paused.code, f"run {run_id}, pause by Ada: the run stands still" in paused.out) == (0, True)
    vague = await say("resume", run_id)
    assert vague.code == 2
    assert f"`ratchet resume {run_id} --pause`" in (await say("inbox", run_id)).out
    for command in (f"ratchet resume {run_id} --pause", f"ratchet resume {run_id} r1"):
        assert f"`{command}`" in vague.err
    resumed = await say("resume", run_id, "r1")
    assert resumed.code == 0, resumed.err
    assert "r1 resumed by" in resumed.out
    assert f"it is paused; `ratchet resume {run_id}` lets it go on" in resumed.err
    shown = (await say("show", run_id)).out
    assert re.search(rf"waits for +paused.*ratchet resume {run_id}", shown)
    on = await say("resume", run_id)
    assert (on.code, f"run {run_id}, resume by tester: the run goes on" in on.out) == (0, True)
    assert (await desk.result(run_id)).ok


async def test_a_command_that_waits_for_a_call_says_for_which(desk: AgentClient, say: Say) -> None:
    approvals = Approvals(effects={"unsafe": "never"})
    script = [act("mark_once", line="cli-slow", seconds=3), final("done"), final("again")]
    run_id = await desk.start(attended(*script, tools=("mark_once",), approvals=approvals))

    async def at_work() -> bool:
        return "mark" in (await desk.status(run_id)).doing

    await until_true(at_work)
    more = await say("rollback", run_id, "--step", "1", "--yes")
    assert more.code == 0, more.err
    assert re.search("^sent; waits for .*mark.*, which is under way$", more.err, re.MULTILINE)
    await desk.abort(run_id)
    closed = await say("approve", run_id, "r1")
    assert (closed.code, "is over" in closed.err) == (3, True), closed.err


async def test_resume_never_makes_a_call_a_second_time(desk: AgentClient, say: Say) -> None:
    """`retry` says: it did not happen, make it again. Whoever takes a pause back says no such thing."""
    run_id = await asked(desk, "cli-retry")
    nothing = await say("resume", run_id)
    assert nothing.code == 2
    assert "asks nothing that `resume` answers; it asks:\n  approval r1: mark_once(" in nothing.err
    assert (await say("pause", run_id)).code == 0
    resumed = await say("resume", run_id)
    assert (resumed.code, f"run {run_id}, resume by tester: the run goes on" in resumed.out) == (0, True)
    assert [one.id for one in await desk.requests(run_id)] == ["r1"]
    await desk.abort(run_id)


async def test_a_rollback_shows_what_was_done_and_wants_a_yes(desk: AgentClient, say: Say) -> None:
    approvals, people = Approvals(effects={"unsafe": "never"}), People(interrupt_every=1)
    script = [act("mark_once", line="cli-\x1b[1mdone"), final("a"), final("b")]
    run_id = await desk.start(attended(*script, tools=("mark_once",), approvals=approvals, people=people))
    await opened(desk, run_id)
    unsure = await say("rollback", run_id, "--step", "1")
    assert unsure.code == 4
    assert re.search(r"1 +mark_once +\{\"line\": \"cli-.*NO", unsure.err)
    assert "say --yes" in unsure.err
    assert "\x1b" not in unsure.err
    wrong = await say("rollback", run_id, "--step", "99", "--yes")
    assert (wrong.code, "has no step 99 to go back to; it has steps 0 to" in wrong.err) == (2, True)
    done = await say("rollback", run_id, "--step", "1", "--yes", "-m", "once more", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["done"]["branch"], [call["tool"] for call in told["effects"]]) == (1, ["mark_once"])
    ended = await say("abort", run_id, "--reason", "seen enough", "--by", "Ada")
    assert ended.code == 0, ended.err
    assert "seen enough" in str((await desk.result(run_id)).error)


async def test_limits_are_topped_up_and_set(desk: AgentClient, say: Say) -> None:
    given: dict[str, Any] = {
        "people": People(on_limit="ask"),
        "limits": {"model_calls": 1},
        "tools": ("mark",),
    }
    run_id = await desk.start(attended(act("mark", line="cli-limit"), final("done"), **given))
    await opened(desk, run_id)
    for words, said in (("topup x=much", "'much' is no number"), ("limits model_calls", "COUNTER=NUMBER")):
        command, word = words.split()
        bad = await say(command, run_id, word)
        assert (bad.code, said in bad.err) == (2, True)
    set_ = await say("limits", run_id, "tool_calls=7", "tokens=none")
    assert set_.code == 0, set_.err
    assert (await desk.status(run_id)).caps["tool_calls"] == 7
    (anew,) = await opened(desk, run_id)  # with the limits as they are now
    other = await say("topup", run_id, "tokens=5")
    assert (other.code, f"{anew.id} is about model_calls, not tokens" in other.err) == (2, True), other.err
    more = await say("topup", run_id, anew.id, "model_calls=5", "-m", "go on")
    assert more.code == 0, more.err
    assert f"{anew.id} topped up by" in more.out
    assert "model_calls: at most 6 now, 1 before; 1 spent" in more.out
    assert (await desk.result(run_id)).ok


async def test_a_message_to_the_model_may_come_from_standard_input(desk: AgentClient, say: Say) -> None:
    run_id = await asked(desk, "cli-steer")
    steered = await say("steer", run_id, "-", stdin="be brief\n", RATCHET_BY="Ada")
    assert steered.code == 0, steered.err
    (said,) = [record for record in await desk.records(run_id) if record.event == "Steered"]
    assert (said.about["text"], said.about["by"]) == ("be brief", "Ada")
    await desk.abort(run_id)


async def test_a_signal_needs_no_answer(desk: AgentClient, say: Say) -> None:
    run_id = await asked(desk, "cli-signal")
    sent = await say("approve", run_id, "--signal", "--by", "Ada", "--json")
    assert sent.code == 0, sent.err
    told = json.loads(sent.out)["sent"]
    assert (told["message"], told["body"]["decision"]) == ("decide", "approve")
    assert (await desk.result(run_id)).decisions[0].outcome == "approved"


async def test_the_inbox_says_what_waits_how_long_and_until_when(desk: AgentClient, say: Say) -> None:
    empty = await say("inbox")
    assert (empty.code, empty.out) == (0, "")
    assert "no run waits for anybody" in empty.err
    people = People(kinds={"approval": Asking(deadline_seconds=3600)})
    run_id = await asked(desk, "cli-inbox", "listed-1", people=people)

    async def listed() -> str:
        shown = (await say("inbox")).out
        return shown if "r1" in shown else ""

    shown = await until_true(listed)
    assert re.search(r"listed-1 +\d+ s +.*in 60 min +approval r1: mark_once\(line=\"cli-inbox\"\)", shown)
    (line,) = json.loads((await say("inbox", "--json")).out)
    assert (line["run"], line["waiting"], line["asks"][0]["id"]) == (run_id, "approval", "r1")
    whole = await say("inbox", "listed")
    for part in (
        "run    listed-1, waits for people for",
        "goal   ",
        "(machine react)",
        "asked because of the agent's approvals.effects.unsafe: always",
        "ratchet approve listed-1 r1",
        "ratchet abort listed-1 r1 --digest ",
    ):
        assert part in whole.out
    told = json.loads((await say("inbox", "listed", "--json")).out)
    assert (told["run"]["id"], told["children"], told["requests"][0]["id"]) == (run_id, [], "r1")
    assert re.search("waits: approval until", (await say("list")).out)
    assert re.search(
        r"waits for +approval since .*deadline .*1 open request", (await say("show", run_id)).out
    )
    await desk.abort(run_id)
    await desk.result(run_id)


async def test_a_question_is_answered_with_a_text(desk: AgentClient, say: Say) -> None:
    run_id = await asked(desk, "cli-answer")
    for words in (["answer", run_id, "r1", "and", "more"], ["answer", run_id, " "], ["answer", run_id, "r1"]):
        bad = await say(*words)
        assert bad.code == 2, bad.out
    refused = await say("answer", run_id, "r1", "forty-two")
    assert refused.code == 2
    assert re.search(
        r"cannot be answered by `answer`, it is approval r1: mark_once\(.*\n  approve, reject", refused.err
    )
    await desk.abort(run_id)


async def test_a_key_is_made_for_its_owner_alone_and_never_overwritten(say: Say, tmp_path: Path) -> None:
    path = tmp_path / "my.pem"
    made = await say("key", "new", str(path), "--by", "Ada Łęcka")
    assert made.code == 0, made.err
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert re.fullmatch(r'"Ada Łęcka": [A-Za-z0-9+/]{43}=\n', made.out)
    assert (await say("key", "show", str(path), "--by", "Ada Łęcka")).out == made.out
    again = await say("key", "new", str(path))
    assert (again.code, "never overwritten" in again.err) == (2, True)
    locked = await say("key", "new", str(tmp_path / "locked.pem"), RATCHET_KEY_PASSPHRASE="open sesame")
    assert locked.code == 0, locked.err
    for words, said in (({}, "is encrypted"), ({"RATCHET_KEY_PASSPHRASE": "x"}, "is not its passphrase")):
        shut = await say("key", "show", str(tmp_path / "locked.pem"), **words)
        assert (shut.code, said in shut.err) == (2, True), shut.err
    opened_ = await say("key", "show", str(tmp_path / "locked.pem"), RATCHET_KEY_PASSPHRASE="open sesame")
    assert opened_.out == locked.out
    assert marks(tmp_path) == []
