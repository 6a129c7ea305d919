"""Deciding and commanding by the SDK, on the real server."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

import client
from activities.contracts import ScriptedReply, ToolCall
from activities.settings import Settings
from client.agent import AgentClient
from client.archived import ArchivedRuns
from client.connection import working
from client.errors import NotAtHand, RatchetError, Refused, UnknownRun, UsageError
from client.inbox import Ask, InboxLine
from client.keys import Speaker, new_key
from client.plugin import connect
from client.sending import Sent
from tests.client.peoplekit import ATTENDED, asking_task, attended, marks, opened, until_true
from tests.conftest import TOOLS
from tests.workflows.test_subgraphs import holding
from tests.workflows.trials import act, final
from workflows.api import TASK_QUEUE, WORKFLOW_TYPE
from workflows.people import (
    Approvals,
    Asking,
    CommandDone,
    Decided,
    Decision,
    Group,
    People,
    Remember,
    Request,
)


async def test_all_that_programs_need_comes_from_one_place() -> None:
    for name in client.__all__:
        assert getattr(client, name).__name__ == name


async def test_an_approved_call_is_made_and_the_answer_says_who_approved(
    agents: AgentClient, settings: Settings
) -> None:
    run_id = await agents.start(asking_task("sdk-approve"))
    (request,) = await opened(agents, run_id)
    assert (request.kind, request.tool, request.arguments) == (
        "approval",
        "mark_once",
        {"line": "sdk-approve"},
    )
    assert "sdk-approve" not in marks(settings.files_root)
    done = await agents.approve(run_id, request, "looks well", by="Ada")
    assert isinstance(done, Decided)
    assert (done.outcome, done.by, done.verified, done.text) == ("approved", ("Ada",), False, "looks well")
    result = await agents.result(run_id)
    assert (result.ok, [(d.outcome, d.by) for d in result.decisions]) == (True, [("approved", ("Ada",))])
    assert marks(settings.files_root).count("sdk-approve") == 1


async def test_a_rejected_call_is_not_made_and_the_model_is_told_why(
    agents: AgentClient, settings: Settings
) -> None:
    run_id = await agents.start(asking_task("sdk-reject"))
    (request,) = await opened(agents, run_id)
    done = await agents.reject(run_id, request.id, "far too much", by="Ada")
    assert isinstance(done, Decided)
    assert done.outcome == "rejected"
    assert (await agents.result(run_id)).ok
    assert "far too much" in str([r.patch for r in await agents.records(run_id)])
    assert "sdk-reject" not in marks(settings.files_root)


async def test_edited_arguments_are_what_the_tool_gets(agents: AgentClient, settings: Settings) -> None:
    run_id = await agents.start(asking_task("sdk-before"))
    (request,) = await opened(agents, run_id)
    with pytest.raises(Refused, match="do not fit mark_once"):
        await agents.edit(run_id, request, {"lines": "sdk-after"})
    done = await agents.edit(run_id, request, {"line": "sdk-after"}, by="Ada")
    assert isinstance(done, Decided)
    assert done.outcome == "edited"
    await agents.result(run_id)
    assert ("sdk-before" in marks(settings.files_root), "sdk-after" in marks(settings.files_root)) == (
        False,
        True,
    )


async def test_what_the_caller_saw_is_what_is_decided_upon(agents: AgentClient) -> None:
    """A request object is never taken for another one, and an unknown id for none."""
    first, second = [await agents.start(asking_task(name)) for name in ("sdk-one", "sdk-two")]
    (seen,) = await opened(agents, first)
    await opened(agents, second)
    with pytest.raises(Refused, match="what is asked is not what you saw"):
        await agents.approve(second, seen)
    with pytest.raises(RatchetError, match="has no request r7; there is r1"):
        await agents.approve(first, "r7")
    for run_id in (first, second):
        await agents.reject(run_id, "r1")
        await agents.result(run_id)


async def test_what_cannot_be_sent_is_a_usage_error(agents: AgentClient) -> None:
    ask = Ask(id="r1", kind="approval", digest="d" * 32)
    deep: list[object] = []
    for _ in range(60):
        deep = [deep]
    for arguments in ({"x": float("nan")}, {"x": "\ud800"}, {"x": deep}):
        with pytest.raises(UsageError, match=r"cannot be sent as a decision: arguments"):
            await agents.edit("nobody", ask, arguments)  # type: ignore[arg-type]  # as a caller without types may
    with pytest.raises(UsageError, match="cannot be sent as a command: text"):
        await agents.steer("nobody", "x" * 30_000)


async def test_a_closed_request_and_a_run_that_is_over_refuse_in_words(agents: AgentClient) -> None:
    run_id = await agents.start(asking_task("sdk-late", people=People(interrupt_every=1)))
    (request,) = await opened(agents, run_id)
    await agents.approve(run_id, request, by="Ada")
    (stand,) = await until_true(lambda: agents.requests(run_id))
    with pytest.raises(Refused, match="r1 is closed: approved by Ada") as refused:
        await agents.reject(run_id, request)
    assert refused.value.exit_code == 3
    done = await agents.resume_request(run_id, stand)
    assert isinstance(done, Decided)
    assert done.outcome == "resumed"
    await agents.result(run_id)
    with pytest.raises(RatchetError, match=f"run {run_id} is over"):
        await agents.reject(run_id, request)
    with pytest.raises(UnknownRun):
        await agents.reject("nobody-knows-it", request)


async def test_a_decision_that_comes_twice_counts_once(agents: AgentClient, settings: Settings) -> None:
    run_id = await agents.start(asking_task("sdk-twice"))
    (request,) = await opened(agents, run_id)
    decision = Decision(request=request.id, digest=request.digest, decision="approve", id="mine", by="Ada")
    first, again = await asyncio.gather(*(agents.decide(run_id, decision) for _ in range(2)))
    assert first == again
    await agents.result(run_id)
    assert marks(settings.files_root).count("sdk-twice") == 1


async def test_forty_deciders_at_once_are_all_answered_and_one_of_them_wins(
    agents: AgentClient, settings: Settings
) -> None:
    """The server takes ten updates of a run at a time; the others come again."""
    run_id = await agents.start(asking_task("sdk-crowd"))
    (request,) = await opened(agents, run_id)

    async def decide(number: int) -> str:
        try:
            done = await agents.approve(run_id, request, by=f"person {number}")
        except RatchetError as refused:
            return "refused" if "closed" in str(refused) or "is over" in str(refused) else str(refused)
        return done.outcome if isinstance(done, Decided) else "sent"

    said = await asyncio.gather(*(decide(number) for number in range(40)))
    assert sorted(said) == ["approved"] + ["refused"] * 39
    await agents.result(run_id)
    assert marks(settings.files_root).count("sdk-crowd") == 1


async def test_a_quorum_of_two_stays_open_until_the_second(agents: AgentClient) -> None:
    people = People(groups={"ops": Group(members=("Ada", "Bob"), quorum=2)}, asking=Asking(group="ops"))
    run_id = await agents.start(asking_task("sdk-quorum", people=people))
    (request,) = await opened(agents, run_id)
    with pytest.raises(Refused, match="Eve is not among those"):
        await agents.approve(run_id, request, by="Eve")
    first = await agents.approve(run_id, request, by="Ada")
    assert isinstance(first, Decided)
    assert (first.outcome, first.votes, first.needed) == ("open", 1, 2)
    with pytest.raises(Refused, match="Ada has decided"):
        await agents.approve(run_id, request, by="Ada")
    second = await agents.approve(run_id, request, by="Bob")
    assert isinstance(second, Decided)
    assert (second.outcome, second.by) == ("approved", ("Ada", "Bob"))
    await agents.result(run_id)


async def test_a_remembered_approval_covers_the_same_call_alone(
    agents: AgentClient, settings: Settings
) -> None:
    script = [
        act("mark_once", line="sdk-same"),
        act("mark_once", line="sdk-same"),
        act("mark_once", line="sdk-other"),
    ]
    run_id = await agents.start(attended(*script, final("done"), tools=("mark_once",)))
    (request,) = await opened(agents, run_id)
    await agents.approve(run_id, request, remember=Remember(same=True))
    other = await until_true(lambda: agents.requests(run_id))
    assert other[0].arguments == {"line": "sdk-other"}
    await agents.reject(run_id, other[0])
    await agents.result(run_id)
    assert marks(settings.files_root).count("sdk-same") == 2


async def test_a_question_is_answered_and_a_limit_topped_up(agents: AgentClient) -> None:
    people = People(on_limit="ask")
    script = [act("mark", line="sdk-limit"), final("enough")]
    run_id = await agents.start(attended(*script, tools=("mark",), people=people, limits={"model_calls": 1}))
    (request,) = await opened(agents, run_id)
    assert request.kind == "limit"
    done = await agents.top_up(run_id, request, {"model_calls": 5})
    assert isinstance(done, Decided)
    assert done.outcome == "topped_up"
    assert (await agents.result(run_id)).ok
    stopped = await agents.start(attended(*script, tools=("mark",), people=people, limits={"model_calls": 1}))
    (request,) = await opened(agents, stopped)
    await agents.finish(stopped, request)
    assert (await agents.result(stopped)).exit_reason == "limit"


async def test_commands_pause_resume_steer_limit_and_abort_a_run(agents: AgentClient) -> None:
    run_id = await agents.start(asking_task("sdk-commands"))
    await opened(agents, run_id)
    paused = await agents.pause(run_id, "lunch", by="Ada")
    assert isinstance(paused, CommandDone)
    assert paused.paused
    with pytest.raises(Refused, match="paused already"):
        await agents.pause(run_id)
    assert isinstance(await agents.resume(run_id), CommandDone)
    assert isinstance(await agents.steer(run_id, "be quick"), CommandDone)
    assert isinstance(await agents.set_limits(run_id, {"model_calls": 50, "tokens": None}), CommandDone)
    assert (await agents.status(run_id)).caps["model_calls"] == 50
    done = await agents.abort(run_id, "enough", by="Ada")
    assert isinstance(done, CommandDone)
    result = await agents.result(run_id)
    assert (result.exit_reason, "enough" in str(result.error)) == ("aborted", True)


async def test_a_rollback_begins_the_step_again_and_tells_before_what_was_done(
    agents: AgentClient, settings: Settings
) -> None:
    approvals = Approvals(effects={"unsafe": "never"})
    script = [
        act("mark_once", line="sdk-back"),
        act("mark_once", line="sdk-on"),
        final("x"),
        final("y"),
        final("z"),
    ]
    people = People(interrupt_every=2)
    run_id = await agents.start(attended(*script, tools=("mark_once",), approvals=approvals, people=people))
    await opened(agents, run_id)
    calls = await agents.effects(run_id, 2)
    assert [(call.tool, call.arguments["line"], call.undoable) for call in calls] == [
        ("mark_once", "sdk-on", False)
    ]
    assert len(await agents.effects(run_id)) == 2
    done = await agents.rollback(run_id, 2, "again", by="Ada")
    assert isinstance(done, CommandDone)
    assert done.branch == 1
    await agents.abort(run_id)
    assert (await agents.result(run_id)).branch == 1


async def test_a_signal_does_the_same_without_an_answer(agents: AgentClient, settings: Settings) -> None:
    run_id = await agents.start(asking_task("sdk-signal"))
    (request,) = await opened(agents, run_id)
    sent = await agents.approve(run_id, request, by="Ada", signal=True)
    assert isinstance(sent, Sent)
    assert (sent.run, sent.message, sent.body["decision"]) == (run_id, "decide", "approve")
    assert re.search("takes effect when a worker takes it", sent.text)
    result = await agents.result(run_id)
    assert [decided.outcome for decided in result.decisions] == ["approved"]
    assert marks(settings.files_root).count("sdk-signal") == 1


async def test_the_inbox_lists_waiting_runs_oldest_first_with_what_they_ask(agents: AgentClient) -> None:
    before = datetime.now(UTC)
    asking = Asking(deadline_seconds=3600, at_deadline="abort")
    people = People(kinds={"approval": asking})
    runs = []
    for given in (people, People()):
        runs.append(await agents.start(asking_task("sdk-inbox", agent="inboxed", people=given)))
        await opened(agents, runs[-1])
    await agents.start(attended(final("at once"), agent="inboxed"))

    async def listed() -> list[InboxLine]:
        # What is asked comes into the list a moment after that something is.
        found = [line for line in await agents.inbox() if line.agent == "inboxed" and line.asks]
        return found if len(found) == 2 else []

    first, second = await until_true(listed)
    assert [first.run, second.run] == runs
    assert (first.waiting, first.machine, first.goal) == ("approval", "react", "try it")
    assert before <= first.since <= datetime.now(UTC)
    assert 3500 < (first.deadline - before).total_seconds() < 3700
    assert second.deadline is None
    (ask,) = first.asks
    assert (ask.id, ask.tool, ask.arguments) == ("r1", "mark_once", {"line": "sdk-inbox"})
    assert ask.options == ("approve", "reject", "edit", "abort")
    assert await agents.asks(runs[0]) == first.asks
    for run_id in runs:
        await agents.abort(run_id)
        await agents.result(run_id)

    async def gone() -> bool:
        return not [line for line in await agents.inbox() if line.agent == "inboxed"]

    await until_true(gone)


async def test_what_others_write_into_a_memo_hides_no_run(agents: AgentClient) -> None:
    strange = RawValue(Payload(metadata={"encoding": b"nobody/knows"}, data=b"?"))
    memos: dict[str, dict[str, object]] = {
        "sdk-memo-number": {"goal": 2024, "asks": 5},
        "sdk-memo-strange": {"goal": strange, "asks": strange},
    }
    for run_id, memo in memos.items():
        await agents.temporal.start_workflow(
            WORKFLOW_TYPE, asking_task("sdk-memo"), id=run_id, task_queue=TASK_QUEUE, memo=memo
        )
        line = await agents.describe(run_id)
        assert (line.id, line.goal) == (run_id, "2024" if "number" in run_id else "")
        assert await agents.asks(run_id) == () or "number" in run_id

    async def listed() -> bool:
        waiting = [line.run for line in await agents.inbox()]
        return "sdk-memo-number" in waiting and memos.keys() <= {line.id for line in await agents.list()}

    await until_true(listed)
    await agents.abort("sdk-memo-number")
    await agents.result("sdk-memo-number")


async def test_watch_all_gives_records_and_requests_as_they_open_and_close(agents: AgentClient) -> None:
    run_id = await agents.start(asking_task("sdk-watch"))
    seen: list[tuple[str, str]] = []
    records = []
    async for news in agents.watch_all(run_id):
        if isinstance(news, Request):
            seen.append((news.id, news.outcome))
            if news.outcome == "open":
                await agents.approve(run_id, news, by="Ada")
        else:
            records.append(news.seq)
    assert seen == [("r1", "open"), ("r1", "approved")]
    assert records == list(range((await agents.result(run_id)).records))
    late = [news async for news in agents.watch_all(run_id)]
    assert not any(isinstance(news, Request) for news in late), "what was over before is no news"
    assert [news.seq for news in late if not isinstance(news, Request)] == records


async def test_whoever_stops_watching_in_the_middle_leaves_nothing_behind(agents: AgentClient) -> None:
    run_id = await agents.start(asking_task("sdk-leave"))

    def following() -> list[str]:
        names = [str(task.get_coro()) for task in asyncio.all_tasks()]
        return [name for name in names if "_follow" in name or "_look_inside" in name]

    async with aclosing(agents.watch_all(run_id)) as watching:
        async for news in watching:
            if isinstance(news, Request):
                assert len(following()) == 3
                break
    assert following() == []
    await agents.abort(run_id)
    await agents.result(run_id)


async def test_of_many_requests_that_close_at_once_each_is_told(agents: AgentClient) -> None:
    """The run tells of the newest closed ones alone; the log tells of all."""
    calls = tuple(
        ToolCall(id=f"c{n}", name="mark_once", arguments=json.dumps({"line": f"sdk-bulk-{n}"}))
        for n in range(9)
    )
    script = (ScriptedReply(reply="", tool_calls=calls), ScriptedReply(reply="done"))
    run_id = await agents.start(attended(*script, machine="tools", tools=("mark_once",)))
    seen: dict[str, list[str]] = {}
    async for news in agents.watch_all(run_id):
        if isinstance(news, Request):
            seen.setdefault(news.id, []).append(news.outcome)
            if len(seen) == 9 and set(map(len, seen.values())) == {1}:
                found = await agents.requests(run_id)
                await asyncio.gather(*(agents.reject(run_id, one) for one in found))
    assert seen == {f"r{n}": ["open", "rejected"] for n in range(1, 10)}


async def test_requests_of_a_run_inside_are_told_with_its_id(agents: AgentClient) -> None:
    """The outer run's history says nothing of them."""
    script = (act("mark_once", line="sdk-inside"), final("inside"))
    run_id = await agents.start(holding(*script, tools=("mark_once",), options={"mode": "child"}, **ATTENDED))
    seen: list[tuple[str, str]] = []
    async for news in agents.watch_all(run_id):
        if isinstance(news, Request):
            seen.append((news.run.removeprefix(f"{run_id}/"), news.outcome))
            if news.outcome == "open":
                await agents.approve(news.run, news)
    assert seen[0][0].endswith("/hold#1:1")
    assert seen[0][1] == "open"
    assert (await agents.result(run_id)).answer == "inside"


async def test_only_signed_decisions_and_commands_count_where_a_group_has_keys(
    agents: AgentClient, tmp_path: Path
) -> None:
    keys = {name: new_key(tmp_path / f"{name}.pem") for name in ("Ada", "Bob", "Eve")}
    group = Group(keys={name: keys[name] for name in ("Ada", "Bob")})
    people = People(groups={"ops": group}, asking=Asking(group="ops", quorum=2), commands="ops")
    ada, bob, eve = (Speaker.load(name, tmp_path / f"{name}.pem") for name in keys)
    run_id = await agents.start(asking_task("sdk-signed", people=people))
    (request,) = await opened(agents, run_id)
    assert (request.signed, request.approvers, request.quorum) == (True, ("Ada", "Bob"), 2)
    for other in ("Ada", eve, Speaker("Ada", eve.key)):
        with pytest.raises(Refused, match=r"signed with the key of Ada|Eve is not among"):
            await agents.approve(run_id, request, by=other)
    await agents.approve(run_id, request, by=ada)
    with pytest.raises(Refused):
        await agents.pause(run_id, by="Ada")
    assert isinstance(await agents.pause(run_id, by=ada), CommandDone)
    assert isinstance(await agents.resume(run_id, by=bob), CommandDone)
    done = await agents.approve(run_id, request, by=bob)
    assert isinstance(done, Decided)
    assert (done.outcome, done.by, done.verified) == ("approved", ("Ada", "Bob"), True)
    result = await agents.result(run_id)
    assert [(decided.by, decided.verified) for decided in result.decisions] == [(("Ada", "Bob"), True)]


async def test_what_is_decided_while_no_worker_runs_is_in_force_when_one_comes(data_dir: Path) -> None:
    """The memo tells what is asked, and the decision goes as a signal, also right after a worker went."""
    settings = Settings(data_dir=data_dir, files_root=data_dir.parent, modules=(str(TOOLS),))
    async with AgentClient.connect(settings=settings) as agents:
        async with working(agents, settings):
            run_id = await agents.start(asking_task("sdk-away"))
            (request,) = await opened(agents, run_id)

        async def listed() -> list[InboxLine]:
            return [line for line in await agents.inbox() if line.asks]

        (line,) = await until_true(listed)
        assert (line.run, line.asks[0].digest) == (run_id, request.digest)
        with pytest.raises(Refused, match=r"r1 of run .* cannot be answered by 'topup'"):
            await agents.top_up(run_id, line.asks[0], {"tokens": 1})
        with pytest.raises(RatchetError, match=r"r7 of run .* is not among r1; more may be open"):
            await agents.request(run_id, "r7")
        sent = await agents.approve(run_id, line.asks[0], by="Ada")
        assert isinstance(sent, Sent)
        assert "takes effect when a worker takes it" in sent.text
        assert marks(data_dir.parent) == []
        async with working(agents, settings):
            result = await agents.result(run_id)
        assert [(d.outcome, d.by) for d in result.decisions] == [("approved", ("Ada",))]
        assert marks(data_dir.parent) == ["sdk-away"]


async def test_what_is_too_long_for_this_client_is_decided_by_what_the_memo_says(
    agents: AgentClient, tmp_path: Path
) -> None:
    """The arguments lie in the workers' store, which a client elsewhere may not share."""
    call = ToolCall(id="c", name="mark_once", arguments=json.dumps({"line": "sdk-" + "x" * 30_000}))
    script = (ScriptedReply(reply="", tool_calls=(call,)), ScriptedReply(reply="done"))
    run_id = await agents.start(attended(*script, machine="tools", tools=("mark_once",)))
    await opened(agents, run_id)
    target = agents.temporal.service_client.config.target_host
    temporal = await connect(Settings(data_dir=tmp_path / "other"), target_host=target)
    elsewhere = AgentClient(temporal, ArchivedRuns(tmp_path / "archive.db"), where=target)
    with pytest.raises(NotAtHand, match=f"what run {run_id} answers is too long"):
        await elsewhere.requests(run_id)
    seen = await elsewhere.request(run_id, "r1")
    assert isinstance(seen, Ask)
    assert (seen.tool, seen.arguments) == ("mark_once", None)
    for signal in (False, True):  # what it says itself must not lie in its own store either
        await elsewhere.steer(run_id, f"{signal} " + "words " * 3000, signal=signal)
    (asked,) = await until_true(lambda: elsewhere.asks(run_id))
    done = await elsewhere.edit(run_id, asked, {"line": "sdk-" + "z" * 30_000})
    assert isinstance(done, Decided)
    assert done.outcome == "edited"
    await agents.result(run_id)
