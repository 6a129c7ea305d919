"""Runs of the real server as cassettes: live, over, with inner runs, forgotten by Temporal."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.client import Client

from activities.settings import Settings
from client.cassette.export import exported
from client.cassette.file import Cassette, cassette_text
from client.cassette.playing import play
from client.errors import RatchetError, RunFailed, UnknownRun
from client.sdk.agent import AgentClient
from client.server.connection import Connection
from tests.client.asking import asking, newer, opened, talk
from tests.conftest import Environ
from tests.server.conftest import real_server
from tests.server.trials import Run, boundaries, calls, eventually, reset, task
from workflows.people import Command


async def plays(agents: AgentClient, run: str) -> Cassette:
    """The cassette of a run; it plays."""
    cassette = await exported(agents, run)
    verdict = await play(cassette)
    assert verdict.difference == ""
    return cassette


async def decided(agents: AgentClient) -> str:
    """A run in which people approve, reject, edit and steer; its id."""
    run = await agents.start(asking("cassette-one", "cassette-two", "cassette-three"))
    first = await opened(agents, run)
    await agents.command(run, "steer", "be quick")
    await agents.decide(run, first, "approve")
    second = await eventually(lambda: newer(agents, run, first))
    await agents.decide(run, second, "reject", text="not this one")
    third = await eventually(lambda: newer(agents, run, second))
    await agents.decide(run, third, "edit", arguments={"line": "cassette-other"})
    await agents.result(run)
    return run


async def test_run_with_decisions_plays_although_its_tools_do_nothing(
    agents: AgentClient, settings: Settings
) -> None:
    run = await decided(agents)
    marks = settings.files_root / "marks.txt"
    before = await asyncio.to_thread(marks.read_text)
    cassette = await plays(agents, run)
    assert [entry["decision"] for entry in cassette.course if "decide" in entry] == [
        "approve",
        "reject",
        "edit",
    ]
    assert cassette.count("command") == 1
    assert await asyncio.to_thread(marks.read_text) == before


async def test_only_messages_that_counted_are_in_the_cassette(agents: AgentClient) -> None:
    """Those that came twice once, and none that was refused; but an edit that changed nothing and counted."""
    run = await agents.start(asking("cassette-twice", "cassette-same"))
    handle, first = agents.temporal.get_workflow_handle(run), await opened(agents, run)
    steer = Command(command="steer", text="be quick", id="steer-once", by="ann")
    given = {"decision": "approve", "id": "once", "by": "ann", "digest": first.digest}
    for _ in range(2):
        await handle.execute_update("command", steer)
    await handle.execute_update("decide", {**given, "request": first.id})
    for again in ({**given, "request": first.id}, {**given, "request": first.id, "id": "late"}):
        await handle.signal("decide", again)
    second = await eventually(lambda: newer(agents, run, first))
    edit = {"request": second.id, "digest": second.digest, "arguments": second.arguments}
    await handle.signal("decide", {**edit, "decision": "edit", "by": "ann"})
    await agents.result(run)
    cassette = await plays(agents, run)
    decisions = [entry["decision"] for entry in cassette.course if "decide" in entry]
    assert (decisions, cassette.count("command")) == (["approve", "edit"], 1)


async def test_live_run_plays_up_to_where_it_is(agents: AgentClient) -> None:
    run = await agents.start(asking("cassette-live"))
    await opened(agents, run)
    cassette = await plays(agents, run)
    assert not cassette.is_over
    assert cassette.final["waits_for"] == ["r1"]
    await agents.command(run, "abort")
    await agents.result(run)
    assert (await plays(agents, run)).final["exit_reason"] == "aborted"


async def test_rollback_plays(agents: AgentClient) -> None:
    run = await agents.start(asking("cassette-back", "cassette-again"))
    first = await opened(agents, run)
    await agents.decide(run, first, "approve")
    await eventually(lambda: newer(agents, run, first))
    await agents.command(run, "rollback", step=0)
    for _ in range(2):
        await agents.decide(run, await opened(agents, run), "approve")
        await asyncio.sleep(0)
    await agents.result(run)
    assert (await plays(agents, run)).count("command") == 1


async def test_fork_plays(agents: AgentClient) -> None:
    source = (await agents.run(talk())).workflow_id
    run = await agents.fork(source, 2)
    await agents.result(run)
    cassette = await plays(agents, run)
    assert cassette.task.fork is not None
    assert cassette.count("answer") < (await exported(agents, source)).count("answer")


async def test_run_that_was_refused_has_nothing_to_export(agents: AgentClient) -> None:
    run = await agents.start(talk(machine="nowhere"))
    with pytest.raises(RunFailed):
        await agents.result(run)
    with pytest.raises(RatchetError, match="never began"):
        await exported(agents, run)


async def test_cancelled_run_plays(agents: AgentClient) -> None:
    run = await agents.start(asking("cassette-cancelled"))
    await opened(agents, run)
    await agents.cancel(run)
    await agents.result(run)
    assert (await plays(agents, run)).final["exit_reason"] == "cancelled"


async def test_run_that_temporal_has_forgotten_comes_from_the_archive(
    agents: AgentClient, settings: Settings
) -> None:
    run = (await agents.run(talk())).workflow_id
    before = await exported(agents, run)
    async with real_server(settings) as empty:
        later = AgentClient(Connection(empty, settings, "a server that knows no run"))
        assert await plays(later, run) == before
        with pytest.raises(UnknownRun, match="retention"):
            await exported(later, "nobody-has-it")


async def test_forgotten_run_after_reset_is_exported_without_replaced_part(
    agents: AgentClient, temporal: Client, settings: Settings
) -> None:
    run = (await agents.run(talk())).workflow_id
    first: Run = temporal.get_workflow_handle(run, run_id=(await agents.description(run)).run_id)
    await (await reset(first, temporal, (await boundaries(first))[0])).result()
    before = await exported(agents, run)
    async with real_server(settings) as empty:
        assert (
            await plays(AgentClient(Connection(empty, settings, "a server that knows no run")), run) == before
        )


async def test_secrets_are_removed_and_the_run_still_plays(agents: AgentClient, environ: Environ) -> None:
    """By the environment, by name, by form, and by what people say."""
    environ["OPENAI_API_KEY"] = "key-of-the-environment"
    lines = [
        "key-of-the-environment",
        "token: tok-4711-abcd",
        "password=hunter2hunter2",
        "IBAN DE89370400440532013000",
    ]
    run = await agents.run(task(*(calls(("mark", {"line": line})) for line in lines), "done"))
    cassette = await exported(agents, run.workflow_id, [r"DE\d{20}"])
    text = cassette_text(cassette)
    for secret in ("key-of-the-environment", "tok-4711-abcd", "hunter2hunter2", "DE89370400440532013000"):
        assert secret not in text
    assert cassette.removed == 4
    assert (await play(cassette)).difference == ""
