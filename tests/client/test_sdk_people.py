"""Deciding and commanding by the SDK, on the real server."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.contracts import ScriptedReply
from activities.settings import Settings
from client.errors import NoWorker, RatchetError, Refused, StoreNotShared, UsageError
from client.keys import new_key, signer
from client.plugin import RatchetPlugin
from client.runs.listing import RequestSummary
from client.sdk.agent import AgentClient
from client.sdk.people import command_from, decision_from
from client.sdk.sending import SentSignal
from client.server.connection import Connection
from tests.client.asking import asking, marks, newer, opened, without_worker
from tests.people import any_effect
from tests.server.conftest import TOOLS, real_server
from tests.server.trials import calls, eventually, task
from worker import build_worker
from workflows.api import TASK_QUEUE
from workflows.kernel.log import Record
from workflows.people import (
    Approvals,
    CommandDone,
    Decided,
    Decision,
    Group,
    People,
    Request,
    RequestSettings,
    StandingApproval,
)

INNER_TOOLS = '''
from pydantic import BaseModel
from activities.tools import Tool

class Looked(BaseModel):
    """Look at something."""
    x: str

TOOLS = [Tool(name=name, params=Looked, run=lambda p: p.x, effect="read") for name in ("look", "pay")]
'''

WIDE_TOOLS = """
from pydantic import Field, create_model
from activities.tools import Tool

fields = {f"field_{n}": (str, Field("", description="what this field of the call means")) for n in range(250)}
Wide = create_model("Wide", __doc__="Pay by a long form.", **fields)
TOOLS = [Tool(name="wide", params=Wide, run=lambda p: "paid", effect="unsafe")]
"""


async def test_approved_call_is_made_and_the_result_names_the_approver(
    agents: AgentClient, settings: Settings
) -> None:
    run = await agents.start(asking("sdk-approve"))
    request = await opened(agents, run)
    assert (request.kind, request.tool, marks(settings, "sdk-approve")) == ("approval", "mark_once", 0)
    done = await agents.decide(run, request, "approve", "looks good", by="ada")
    assert isinstance(done, Decided)
    assert (done.outcome, done.by, done.verified, done.text) == ("approved", ("ada",), False, "looks good")
    result = await agents.result(run)
    assert [(one.outcome, one.by) for one in result.decisions] == [("approved", ("ada",))]
    assert marks(settings, "sdk-approve") == 1


async def test_rejected_and_edited_calls(agents: AgentClient, settings: Settings) -> None:
    run = await agents.start(asking("sdk-reject", "sdk-before"))
    request = await opened(agents, run)
    await agents.decide(run, request.id, "reject", "far too much", by="ada")
    again = await eventually(lambda: newer(agents, run, request))
    with pytest.raises(Refused, match="line"):
        await agents.decide(run, again, "edit", arguments={"lines": "sdk-after"})
    with pytest.raises(Refused, match="approve"):
        await agents.decide(run, again, "edit", arguments={"line": "sdk-before"})
    assert (await agents.requests(run))[0].votes == ()
    await agents.decide(run, again, "edit", arguments={"line": "sdk-after"})
    await agents.result(run)
    written = [marks(settings, line) for line in ("sdk-reject", "sdk-before", "sdk-after")]
    assert written == [0, 0, 1]
    assert any("far too much" in message.content for message in await agents.transcript(run))


async def test_decision_counts_only_for_what_was_seen(agents: AgentClient) -> None:
    first, second = [await agents.start(asking(name)) for name in ("sdk-one", "sdk-two")]
    seen = await opened(agents, first)
    await opened(agents, second)
    with pytest.raises(Refused, match="digest"):
        await agents.decide(second, seen, "approve")
    with pytest.raises(RatchetError, match="no request r7; it has r1"):
        await agents.decide(first, "r7", "approve")
    with pytest.raises(Refused, match="options"):
        await agents.decide(first, seen, "topup", amounts={"tokens": 1})
    done = await agents.decide(first, Decision(request="r1", digest=seen.digest, decision="abort", by="ada"))
    assert isinstance(done, Decided)
    assert done.by == ("ada",)
    assert (await agents.result(first)).exit_reason == "aborted"
    with pytest.raises(Refused, match="is over"):
        await agents.decide(first, seen, "approve")
    with pytest.raises(Refused, match="is over"):
        await agents.command(first, "pause")
    await agents.command(second, "abort")


def test_what_cannot_be_sent_is_a_usage_error() -> None:
    request = RequestSummary(id="r1", kind="approval", digest="d" * 32)
    deep: list[Any] = []
    for _ in range(60):
        deep = [deep]
    for value in (float("nan"), "\ud800", deep):
        with pytest.raises(UsageError, match="decision: arguments"):
            decision_from(request, "edit", arguments={"x": value})
    with pytest.raises(UsageError, match="command: text"):
        command_from("steer", "x" * 30_000)
    with pytest.raises(UsageError, match="no limit 'modelcalls'; did you mean model_calls"):
        command_from("limits", limits={"modelcalls": 5})


async def test_closed_request_says_who_decided(agents: AgentClient) -> None:
    run = await agents.start(asking("sdk-late", people=People(interrupt_every=1)))
    request = await opened(agents, run)
    await agents.decide(run, request, "approve", by="ada")
    await eventually(lambda: newer(agents, run, request))
    with pytest.raises(Refused, match="approved by ada"):
        await agents.decide(run, request, "reject")
    closed = await agents.request(run, request.id)
    assert isinstance(closed, Request)
    assert closed.outcome == "approved"
    await agents.command(run, "abort")


async def test_forty_people_at_once_are_all_answered(agents: AgentClient, settings: Settings) -> None:
    run = await agents.start(asking("sdk-crowd"))
    request = await opened(agents, run)
    names = [f"p{number}" for number in range(40)]
    sending = (agents.decide(run, request, "approve", by=name) for name in names)
    found = await asyncio.gather(*sending, return_exceptions=True)
    decided = [one for one in found if isinstance(one, Decided)]
    assert all(isinstance(one, Decided | Refused) for one in found), found
    assert len(decided) == 1
    assert (await agents.result(run)).ok
    assert marks(settings, "sdk-crowd") == 1


async def test_commands_pause_steer_limit_roll_back_and_resume(agents: AgentClient) -> None:
    run = await agents.start(asking("sdk-commands"))
    await opened(agents, run)
    paused = await agents.command(run, "pause", "lunch", by="ada")
    assert isinstance(paused, CommandDone)
    assert paused.paused
    assert (await agents.requests_page(run)).paused
    assert (await eventually(agents.inbox))[0].waiting
    await agents.command(run, "steer", "be quick")
    await agents.command(run, "limits", limits={"tokens": 10**6, "cost_usd": None})
    back = await agents.command(run, "rollback", step=1)
    assert isinstance(back, CommandDone)
    assert (back.step, back.branch) == (1, 1)
    with pytest.raises(Refused, match="No step 9"):
        await agents.command(run, "rollback", step=9)
    await agents.command(run, "resume")
    await agents.decide(run, await opened(agents, run), "approve")
    assert (await agents.result(run)).branch == 1
    assert [call.tool for call in (await agents.effects(run))] == ["mark_once"]


async def test_signal_does_the_same_without_an_answer(agents: AgentClient) -> None:
    run = await agents.start(asking("sdk-signal"))
    request = await opened(agents, run)
    sent = await agents.decide(run, request, "approve", by="ada", signal=True)
    assert isinstance(sent, SentSignal)
    assert (sent.message, sent.body["decision"]) == ("decide", "approve")
    assert (await agents.result(run)).ok


async def test_inbox_lists_the_longest_wait_first(agents: AgentClient) -> None:
    people = People(requests=RequestSettings(deadline_seconds=3600))
    runs = []
    for number in range(2):
        runs.append(await agents.start(asking(f"sdk-inbox-{number}", name="inboxer", people=people)))
        await opened(agents, runs[-1])

    async def listed() -> list[Any]:
        lines = [line for line in await agents.inbox() if line.agent == "inboxer"]
        return lines if len(lines) == 2 else []

    lines = await eventually(listed)
    assert [line.id for line in lines] == runs
    (summary,) = lines[0].requests
    assert (summary.kind, summary.tool, summary.arguments["line"]) == ("approval", "mark_once", "sdk-inbox-0")
    assert lines[0].deadline is not None
    for run in runs:
        await agents.command(run, "abort")


async def test_foreign_memo_hides_no_run(agents: AgentClient) -> None:
    for memo in ({"requests": "nonsense", "goal": 7}, {"requests": [{"id": 1}]}):
        run = f"memo-{len(memo)}"
        await agents.temporal.start_workflow(
            "AgentWorkflow", asking("x"), id=run, task_queue="ratchet", memo=memo
        )
        assert (await agents.describe(run)).id == run
        await opened(agents, run)
        assert (await agents.describe(run)).requests[0].id == "r1"
        await agents.command(run, "abort")


async def test_watch_all_gives_each_request_as_it_changes(agents: AgentClient) -> None:
    group = People(
        groups={"both": Group(members=("ada", "bob"), quorum=2)}, requests=RequestSettings(group="both")
    )
    run = await agents.start(asking("sdk-watch", people=group))
    seen: list[Record | Request] = []
    async for news in agents.watch_all(run):
        seen.append(news)
        if isinstance(news, Request) and news.is_open:
            await agents.decide(run, news, "approve", by=("ada", "bob")[len(news.votes)])
    requests = [one for one in seen if isinstance(one, Request)]
    assert [(one.outcome, len(one.votes)) for one in requests] == [("open", 0), ("open", 1), ("approved", 2)]
    records = [one.seq for one in seen if isinstance(one, Record)]
    assert records == list(range((await agents.result(run)).records))
    again = [one async for one in agents.watch_all(run)]
    assert not any(isinstance(one, Request) for one in again)  # it is over: from the archive


async def test_watch_all_gives_requests_of_inner_runs(tmp_path: Path) -> None:
    script = (
        ScriptedReply(expect="^begin$", reply="child inner", otherwise="ask well?"),
        ScriptedReply(reply="answer done"),
    )
    given = task(*script, machine="boss", tools=("look", "pay"), people=People())
    tools, machine = tmp_path / "inner_tools.py", tmp_path / "boss.py"
    await asyncio.to_thread(tools.write_text, INNER_TOOLS)
    # other names than those that other tests of this process may have made known
    source = inspect.getsource(any_effect).replace('"any_effect"', '"boss"').replace("RULES", "OTHERS")
    await asyncio.to_thread(machine.write_text, source)
    settings = Settings(data_dir=tmp_path / "data", modules=(str(machine), str(tools)))
    async with real_server(settings) as temporal, build_worker(temporal, settings):
        agents = AgentClient(Connection(temporal, settings, "the test server", queues=(TASK_QUEUE,)))
        run = await agents.start(given.model_copy(update={"goal": "begin"}))
        seen: list[Request] = []
        async for news in agents.watch_all(run):
            if isinstance(news, Request):
                seen.append(news)
                if news.is_open:
                    await agents.decide(news.run, news, "answer", "well")
        assert [(one.run.startswith(f"{run}/"), one.outcome) for one in seen] == [
            (True, "open"),
            (True, "answered"),
        ]
        assert (await agents.result(run)).answer == "done"
        assert (await agents.replay(run)).same


async def test_request_with_long_tool_schema_is_read_without_workers_store(
    tmp_path: Path,
) -> None:
    tools = tmp_path / "wide_tools.py"
    await asyncio.to_thread(tools.write_text, WIDE_TOOLS)
    settings = Settings(data_dir=tmp_path / "data", modules=(str(tools),))
    elsewhere = Settings(data_dir=tmp_path / "elsewhere")
    given = task(calls(("wide", {})), "done", tools=("wide",), people=People(), approvals=Approvals())
    async with real_server(settings) as temporal, build_worker(temporal, settings):
        config = temporal.config()
        config["plugins"] = [RatchetPlugin(elsewhere)]
        agents = AgentClient(Connection(Client(**config), elsewhere, "the test server", queues=(TASK_QUEUE,)))
        run = await agents.start(given)
        request = await opened(agents, run)
        with pytest.raises(StoreNotShared):
            await agents.requests_page(run, schemas=True)
        await agents.decide(run, request, "approve")
        assert (await agents.result(run)).ok


async def test_watcher_may_leave_in_the_middle(agents: AgentClient) -> None:
    run = await agents.start(asking("sdk-leave"))
    async with aclosing(agents.watch_all(run)) as news:
        async for one in news:
            if isinstance(one, Request):
                break
    assert not any("Follower" in repr(one.get_coro()) for one in asyncio.all_tasks())
    await agents.command(run, "abort")


async def test_watch_all_tells_every_request_that_closes_at_once(agents: AgentClient) -> None:
    """More than the run itself still names as closed."""
    many = calls(*(("mark_once", {"line": f"sdk-many-{n}"}) for n in range(8)))
    run = await agents.start(task(many, "done", tools=("mark_once",), people=People(), approvals=Approvals()))
    await eventually(lambda: agents.requests(run))
    requests: list[Request] = []
    async for news in agents.watch_all(run):
        if isinstance(news, Request):
            requests.append(news)
            if len(requests) == 8:
                await agents.command(run, "abort")
    assert [one.outcome for one in requests] == ["open"] * 8 + ["withdrawn"] * 8
    assert len({one.id for one in requests}) == 8


async def test_only_signed_messages_count_where_a_group_has_keys(agents: AgentClient, tmp_path: Path) -> None:
    path = tmp_path / "ada.pem"
    keys = {"ada": await asyncio.to_thread(new_key, path)}
    people = People(
        groups={"keys": Group(keys=keys)}, requests=RequestSettings(group="keys"), commands="keys"
    )
    run = await agents.start(asking("sdk-signed", people=people))
    request = await opened(agents, run)
    ada = await asyncio.to_thread(signer, "ada", path)
    with pytest.raises(Refused, match="signed"):
        await agents.decide(run, request, "approve", by="ada")
    with pytest.raises(Refused, match="signed"):
        await agents.command(run, "pause", by="ada")
    await agents.command(run, "pause", by=ada)
    await agents.command(run, "resume", by=ada)
    done = await agents.decide(run, request, "approve", by=ada)
    assert isinstance(done, Decided)
    assert (done.outcome, done.verified) == ("approved", True)
    await agents.result(run)


async def test_decision_without_a_worker_counts_when_one_comes(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", files_root=tmp_path, modules=(str(TOOLS),))
    async with real_server(settings) as temporal:
        agents = AgentClient(Connection(temporal, settings, "the test server"))
        async with build_worker(temporal, settings.model_copy(update={"shutdown_seconds": 0})):
            run = await agents.start(asking("sdk-absent"))
            await opened(agents, run)
        await eventually(lambda: without_worker(agents))
        with pytest.raises(NoWorker):
            await agents.requests(run)
        (summary,) = await agents.request_summaries(run)
        with pytest.raises(Refused, match=r"r9 of run .* is not among those that its memo names .r1."):
            await agents.request(run, "r9")
        with pytest.raises(Refused, match="options"):
            await agents.decide(run, summary, "retry")
        with pytest.raises(Refused, match=r"'lnie' was unexpected.*its arguments are: line"):
            await agents.decide(run, summary, "edit", arguments={"line": "x", "lnie": "x"})
        with pytest.raises(Refused, match="approve"):
            await agents.decide(run, summary, "edit", arguments={"line": "sdk-absent"})
        standing = StandingApproval(arguments={"lnie": {"const": "x"}})
        with pytest.raises(Refused, match="no argument 'lnie'; its arguments are: line"):
            await agents.decide(run, summary, "approve", standing_approval=standing)
        assert isinstance(await agents.decide(run, summary.id, "approve"), SentSignal)
        assert await agents.effects_to_repeat(run, 0) == await agents.effects_to_repeat(run, 1)
        async with build_worker(temporal, settings):
            assert (await agents.result(run)).ok
    assert marks(settings, "sdk-absent") == 1


async def test_client_that_cannot_read_the_store_decides_by_the_memo(
    working: Client, agents: AgentClient, tmp_path: Path
) -> None:
    run = await agents.start(asking("x" * 300_000))
    await opened(agents, run)
    settings = Settings(data_dir=tmp_path)
    stranger = AgentClient(Connection(await _other_client(working, settings), settings, "there"))
    summary = await stranger.request(run, "r1")
    assert isinstance(summary, RequestSummary)
    assert isinstance(await stranger.decide(run, summary, "reject"), Decided)
    await agents.result(run)


async def _other_client(working: Client, settings: Settings) -> Client:
    from client.server.connection import open_client

    return await open_client(settings, {"target_host": working.service_client.config.target_host})
