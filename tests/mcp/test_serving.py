"""Ratchet as an MCP server: what a client may start, see and decide."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from temporalio.client import Client as Temporal

from activities.contracts import ArchiveRequest, ModelSpec
from activities.settings import Settings
from activities.store.archive import Archive
from client.agents.agentfile import AgentFile, load_agent
from client.mcp_server import mcp_server
from client.sdk.agent import AgentClient
from client.server.connection import Connection
from tests.client.asking import opened
from tests.examplekit import ROOT
from tests.fake_openai import Answer, FakeOpenAI
from tests.server.conftest import real_server
from tests.server.trials import calls, eventually, task
from worker import build_worker
from workflows.api import AgentTask
from workflows.people import Approvals, People

THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
RESTART = """
from pydantic import BaseModel

from ratchet import Tool


class Params(BaseModel):
    \"\"\"Restart the shop.\"\"\"


async def run(params: Params) -> str:
    return "restarted"


TOOL = Tool("restart", Params, run, effect="unsafe", timeout_seconds=10, brings=(), sends="nowhere")
"""
PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    """A server of models."""
    with FakeOpenAI() as found:
        yield found


@pytest.fixture(scope="module")
async def agents(tmp_path_factory: pytest.TempPathFactory, server: FakeOpenAI) -> AsyncIterator[AgentClient]:
    """A client, and a worker beside it."""
    home = tmp_path_factory.mktemp("serving")
    shutil.copytree(ROOT / "examples" / "data", home / "examples" / "data")
    (home / "restart.py").write_text(RESTART)
    modules = (*load_agent("payments").modules, str(home / "restart.py"))
    settings = Settings(
        data_dir=home / ".ratchet",
        files_root=home,
        modules=modules,
        shutdown_seconds=1,
        base_urls=(server.base_url,),
    )
    async with real_server(settings) as temporal, build_worker(temporal, settings):
        yield client_of(temporal, settings)


def client_of(temporal: Temporal, settings: Settings) -> AgentClient:
    """A client of this server."""
    return AgentClient(Connection(temporal, settings, temporal.service_client.config.target_host))


@pytest.fixture(scope="module")
def payments() -> dict[str, AgentFile]:
    """An agent that needs an approval."""
    return {"payments": load_agent("payments")}


async def answer(client: Client, tool: str, **arguments: Any) -> Any:
    """What a tool answers; raises AssertionError with its error."""
    result = await client.call_tool(tool, arguments)
    text = "\n".join(getattr(block, "text", "") for block in result.content)
    assert not result.is_error, text
    return json.loads(text)


async def asks(agents: AgentClient, run: str, number: int) -> None:
    """Wait until the run asks so many requests at once."""

    async def check() -> bool:
        lines = [line for line in await agents.inbox() if line.id == run]
        return [len(await agents.requests(run)), *(len(line.requests) for line in lines)] == [number] * 2

    await eventually(check)


async def test_client_sees_a_request_and_cannot_decide_it(
    agents: AgentClient, payments: dict[str, AgentFile]
) -> None:
    async with Client(mcp_server(agents, payments)) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert "decide" not in names
        assert "You cannot decide" in (client.instructions or "")
        assert [one["agent"] for one in await answer(client, "list_agents")] == ["payments"]
        run = (await answer(client, "start_run", agent="payments", goal="Pay what is due."))["run"]
        found = await answer(client, "run_result", run=run, wait_seconds=120)
        assert (found["over"], found["requests"][0]["tool"]) == (False, "transfer")
        waiting = await answer(client, "open_requests")
        assert [one["run"] for one in waiting if one["run"] == run] == [run]
        held = [f"{label} text from read_file (action#3:0, step 1)" for label in ("untrusted", "private")]
        assert [one["requests"][0]["holds"] for one in waiting if one["run"] == run] == [held]
        refused = await client.call_tool("decide", {"run": run})
        assert refused.is_error
        assert (await answer(client, "run_status", run=run))["status"]["requests"] == 1
        await agents.command(run, "abort", by="ann")


async def test_decision_needs_digest_and_its_name_is_in_log(
    agents: AgentClient, payments: dict[str, AgentFile]
) -> None:
    async with Client(mcp_server(agents, payments, "assistant")) as client:
        run = (await answer(client, "start_run", agent="payments", goal="Pay what is due."))["run"]
        found = await answer(client, "run_result", run=run, wait_seconds=120)
        request = found["requests"][0]
        decision = {"run": run, "request": request["id"], "decision": "approve", "text": "she said so"}
        with pytest.raises(AssertionError, match="changed after you saw it"):
            await answer(client, "decide", digest="0" * 32, **decision)
        await answer(client, "decide", digest=request["digest"], **decision)
        result = await answer(client, "run_result", run=run, wait_seconds=120)
        assert result["exit_reason"] == "goal_achieved"
        assert [one["by"] for one in result["decisions"]] == [["assistant"]]
        log = (await answer(client, "run_log", run=run))["records"]
        assert any("assistant (claimed)" in json.dumps(record) for record in log)


async def test_runs_of_unnamed_agents_are_neither_seen_nor_decided(
    agents: AgentClient, payments: dict[str, AgentFile]
) -> None:
    run = await agents.start(payments["payments"].model_copy(update={"name": "other"}).task("Pay."))
    request = await opened(agents, run)
    decision = {"request": request.id, "digest": request.digest, "decision": "approve"}
    async with Client(mcp_server(agents, payments, "assistant")) as client:
        reading: dict[str, Any] = {
            tool: {} for tool in ("run_status", "run_log", "open_requests", "run_result")
        }
        for tool, given in {**reading, "decide": decision}.items():
            for name in (run, run[:-1], "no-such-run"):
                with pytest.raises(AssertionError, match=f"no run of payments has the id '{name}'"):
                    await answer(client, tool, run=name, **given)
        for tool in ("list_runs", "open_requests"):
            assert run not in json.dumps(await answer(client, tool))
    async with Client(mcp_server(agents, payments, "assistant", all_runs=True)) as client:
        assert run in [one["id"] for one in await answer(client, "list_runs")]
        await answer(client, "decide", run=run, **{**decision, "decision": "abort"})


async def test_runs_in_archive_alone_are_seen_by_their_agents_too(
    agents: AgentClient, payments: dict[str, AgentFile]
) -> None:
    archive = Archive(agents.settings.archive_file)
    for name in ("payments", "other"):
        source = (await agents.run(task("done", name=name, tools=("calculator",)))).workflow_id
        records = await asyncio.to_thread(archive.records, source)
        result = await asyncio.to_thread(archive.result, source)
        part = ArchiveRequest(workflow_id=f"old-{name}", run_id="r", after="", records=records, result=result)
        await asyncio.to_thread(archive.add, part)
    async with Client(mcp_server(agents, payments)) as client:
        assert (await answer(client, "run_result", run="old-payments"))["answer"] == "done"
        assert (await answer(client, "run_status", run="old-payments"))["status"]["agent"] == "payments"
        for tool in ("run_status", "run_log", "run_result"):
            with pytest.raises(AssertionError, match="no run of payments has the id 'old-other'"):
                await answer(client, tool, run="old-other")


async def test_list_has_newest_runs_of_agents_and_how_they_ended(agents: AgentClient) -> None:
    agent = load_agent("payments").model_copy(update={"name": "listed"})
    runs = [
        (await agents.run(task(text, name="listed", tools=("calculator",)))).workflow_id
        for text in ("first", "second")
    ]
    await agents.run(task("done", name="newer", tools=("calculator",)))

    async with Client(mcp_server(agents, {"listed": agent})) as client:

        async def listed() -> bool:  # Temporal's list comes a little later
            found = await answer(client, "list_runs", limit=1)
            return [(one["id"], one.get("ok")) for one in found] == [(runs[1], True)]

        await eventually(listed)


async def test_log_has_no_encrypted_reasoning_and_no_signatures(
    agents: AgentClient, server: FakeOpenAI
) -> None:
    model = ModelSpec(name="m", base_url=server.base_url, api="responses")
    server.queue(Answer("It rises.", reasoning=(THOUGHT,)))
    run = await agents.start(
        AgentTask(goal="What is it?", machine="tools", tools=("calculator",), models={"default": model}),
        images=[PNG],
    )
    assert (await agents.result(run)).ok
    assert "gAAA" in str(await agents.records(run))
    async with Client(mcp_server(agents, {}, all_runs=True)) as client:
        log = json.dumps(await answer(client, "run_log", run=run))
    assert "It rises." in log
    assert "[image " in log
    assert "gAAA" not in log
    assert not re.search(r"[0-9a-f]{32}", log)


async def test_call_too_long_to_be_shown_is_decided_elsewhere(agents: AgentClient) -> None:
    long = calls(("write_file", {"path": "long.txt", "content": "long " * 2_400}))
    asked = Approvals(tools={"write_file": "always"})
    given = task(long, "done", tools=("write_file",), people=People(), approvals=asked)
    run = await agents.start(given)
    async with Client(mcp_server(agents, {}, "assistant", all_runs=True)) as client:
        found = await answer(client, "run_result", run=run, wait_seconds=120)
        ((listed,),) = [one["requests"] for one in await answer(client, "open_requests") if one["run"] == run]
        assert (found["over"], listed["digest"]) == (False, "")
        (request,) = await agents.requests(run)
        decision = {"run": run, "request": request.id, "digest": request.digest}
        with pytest.raises(AssertionError, match="too long to be shown whole here"):
            await answer(client, "decide", decision="approve", **decision)
        await answer(client, "decide", decision="reject", **decision)


async def test_client_gets_no_digest_beside_arguments_it_is_not_shown(
    agents: AgentClient,
) -> None:
    """Twelve requests that do not fit one answer."""
    text = "word " * 360
    many = [calls(*(("write_file", {"path": f"many-{n}.txt", "content": text}) for n in range(4)))]
    asked = Approvals(tools={"write_file": "always"})
    given = task(*many, "done", tools=("write_file",), people=People(), approvals=asked)
    runs = [await agents.start(given) for _ in range(3)]
    for run in runs:
        await asks(agents, run, 4)
    digests = {one.digest: one for run in runs for one in await agents.requests(run)}
    async with Client(mcp_server(agents, {}, "assistant", all_runs=True)) as client:
        found = await answer(client, "open_requests")
        shown = {one["digest"]: one for line in found[:-1] for one in line["requests"] if one["digest"]}
        assert 0 < len(shown.keys() & digests.keys()) < len(digests)
        for digest in shown.keys() & digests.keys():
            assert shown[digest]["arguments"] == digests[digest].arguments
        assert re.match(r"\d+ of \d+ requests. Give `run` to see those of one run", found[-1]["left_out"])
        assert any(run in found[-1]["left_out"] for run in runs)
        of_one = await answer(client, "open_requests", run=runs[-1])
        assert [one["arguments"]["path"] for one in of_one] == [f"many-{n}.txt" for n in range(4)]
        for tool in ("list_runs", "run_log"):
            whole = json.dumps(
                await answer(client, tool, **({} if tool == "list_runs" else {"run": runs[0]}))
            )
            assert not digests.keys() & {*re.findall(r"[0-9a-f]{32}", whole)}
    for run in runs:
        await agents.command(run, "abort", by="ann")


async def test_requests_too_long_for_one_answer_are_left_out_whole(agents: AgentClient) -> None:
    text = "word " * 1_800
    made = calls(*(("write_file", {"path": f"long-{n}.txt", "content": text}) for n in range(3)))
    asked = Approvals(tools={"write_file": "always"})
    given = task(made, "done", tools=("write_file",), people=People(), approvals=asked)
    run = await agents.start(given)
    await asks(agents, run, 3)
    async with Client(mcp_server(agents, {}, "assistant", all_runs=True)) as client:
        for _ in range(2):
            waits = (await answer(client, "run_result", run=run, wait_seconds=0))["requests"]
            for found in (waits, await answer(client, "open_requests", run=run)):
                *shown, rest = found
                assert [one["arguments"]["content"] for one in shown] == [text] * len(shown)
                assert shown
                left = f"{3 - len(shown)} of 3 open requests. Decide those that are shown, and ask again; "
                assert rest == {"left_out": f"{left}or a person sees all with `ratchet inbox {run}`."}
    await agents.command(run, "abort", by="ann")


async def test_request_without_arguments_has_its_digest(agents: AgentClient) -> None:
    asked = Approvals(tools={"restart": "always"})
    given = task(calls(("restart", {})), "done", tools=("restart",), people=People(), approvals=asked)
    run = await agents.start(given)
    request = await opened(agents, run)
    await asks(agents, run, 1)
    assert request.arguments == {}
    async with Client(mcp_server(agents, {}, "assistant", all_runs=True)) as client:
        ((listed,),) = [one["requests"] for one in await answer(client, "open_requests") if one["run"] == run]
        assert listed["digest"] == request.digest
    await agents.command(run, "abort", by="ann")


async def test_output_of_a_run_is_structured_content(agents: AgentClient) -> None:
    output = {"properties": {"sum": {"type": "integer"}}}
    typed = await agents.start(task('The sum is {"sum": 3}.', output=output, tools=("calculator",)))
    plain = await agents.start(task("three", tools=("calculator",)))
    async with Client(mcp_server(agents, {}, all_runs=True)) as client:
        found = await client.call_tool("run_result", {"run": typed, "wait_seconds": 120})
        assert found.structured_content == {"ok": True, "exit_reason": "stop", "output": {"sum": 3}}
        assert json.loads(found.content[0].text)["output"] == {"sum": 3}  # type: ignore[union-attr]  # it is text
        in_words = await client.call_tool("run_result", {"run": plain, "wait_seconds": 120})
        assert in_words.structured_content is None


async def test_client_starts_named_agents_only_and_each_id_once(
    agents: AgentClient, payments: dict[str, AgentFile]
) -> None:
    async with Client(mcp_server(agents, payments)) as client:
        with pytest.raises(AssertionError, match="there is no agent 'log_detective'; there are: payments"):
            await answer(client, "start_run", agent="log_detective", goal="x")
        given = {"agent": "payments", "goal": "Pay what is due.", "run": "mine"}
        assert await answer(client, "start_run", **given) == {"run": "mine"}
        with pytest.raises(AssertionError, match="a run with the id mine exists already"):
            await answer(client, "start_run", **given)
        await agents.command("mine", "abort", by="ann")
    async with Client(mcp_server(agents, {}, all_runs=True)) as client:
        assert "start_run" not in [tool.name for tool in (await client.list_tools()).tools]


async def test_command_serves_on_standard_input_and_output(tmp_path: Path) -> None:
    environment = {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RATCHET_", "TEMPORAL_"))
        },
        "PYTHONPATH": str(ROOT),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    program = ("-c", "from client.start import main; main()", "mcp", "--agent", "log_detective")
    shutil.copytree(ROOT / "examples" / "data", tmp_path / "examples" / "data")
    server = StdioServerParameters(
        command=sys.executable, args=list(program), env=environment, cwd=str(tmp_path)
    )
    async with Client(server) as client:
        run = (await answer(client, "start_run", agent="log_detective", goal="Which service fails most?"))[
            "run"
        ]
        assert "payments" in (await answer(client, "run_result", run=run, wait_seconds=250))["answer"]
        assert [one["id"] for one in await answer(client, "list_runs")] == [run]
