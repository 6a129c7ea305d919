"""People and runs of several workflows: child runs, and runs that continue as new."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.service import RPCError

from activities.settings import Settings
from client.keys import public_key
from tests.people.temporalkit import Handle, marks, replayed
from tests.workflows.test_hard_moments import _archive_waits, _first_archive, _long_run, own
from tests.workflows.test_subgraphs import _started, child_of, holding
from tests.workflows.trials import act, begin, final, log_of, task, until
from workflows.api import AgentResult, AgentStatus, Carry
from workflows.gate.signing import sign, signed_content
from workflows.people import Command, CommandDone, Group, People

__all__ = ["own"]  # a fixture

SOON = 25


async def _with_a_slow_child(working: Client) -> WorkflowHandle[Any, AgentResult]:
    """An outer run whose child is in the middle of a long call."""
    slow = act("mark", line="in", seconds=30)
    handle = await begin(working, holding(slow, final("inside"), tools=("mark",), options={"mode": "child"}))
    child: WorkflowHandle[Any, AgentResult] = working.get_workflow_handle(
        child_of(handle), result_type=AgentResult
    )
    await _started(child)
    await until(child, lambda status: status.state == "action")
    return handle


async def _status(handle: Handle) -> AgentStatus:
    status: AgentStatus = await handle.query("status", result_type=AgentStatus)
    return status


async def _child(client: Client, handle: Handle) -> Handle:
    """The child run of this run, once it is at work."""
    await _started(handle)
    await until(handle, lambda status: status.child != "")
    return client.get_workflow_handle((await _status(handle)).child, result_type=AgentResult)


async def test_an_abort_ends_a_run_whose_child_is_at_work_as_aborted(working: Client) -> None:
    handle = await _with_a_slow_child(working)
    await handle.signal("command", {"command": "abort", "by": "ann"})
    result = await asyncio.wait_for(handle.result(), SOON)
    assert result.exit_reason == "aborted"
    child: AgentResult = await working.get_workflow_handle(child_of(handle), result_type=AgentResult).result()
    assert child.exit_reason == "cancelled"


async def test_a_rollback_stops_the_child_and_begins_the_step_anew(working: Client) -> None:
    handle = await _with_a_slow_child(working)
    done = await asyncio.wait_for(
        handle.execute_update("command", {"command": "rollback", "step": 0}, result_type=CommandDone), SOON
    )
    assert done.branch == 1
    assert not (await handle.query("status", result_type=AgentStatus)).finished
    await handle.signal("command", {"command": "abort"})
    assert (await asyncio.wait_for(handle.result(), SOON)).exit_reason == "aborted"


async def test_a_signed_pause_reaches_the_childs_child_in_its_call_and_so_does_the_resume(
    working: Client, settings: Settings
) -> None:
    key = Ed25519PrivateKey.generate()
    people = People(groups={"ops": Group(keys={"ann": public_key(key)})}, commands="ops")
    inner = {"machine": "holding", "options": {"mode": "child", "tools": ["mark"]}, "mode": "child"}
    slow = act("mark", line="lowest", seconds=1.5)
    given = holding(slow, final("inside"), tools=("mark",), options=inner, people=people)
    handle = await begin(working, given)
    child = await _child(working, handle)
    lowest = await _child(working, child)
    await until(lowest, lambda status: status.state == "action")

    async def ordered(name: str) -> CommandDone:
        said = Command.model_validate({"command": name, "by": "ann", "id": name})
        signature = sign(key, signed_content(handle.id, said, handle.result_run_id or ""))
        signed = said.model_copy(update={"signature": signature})
        update = handle.execute_update("command", signed, result_type=CommandDone)
        return await asyncio.wait_for(update, SOON)

    done = await ordered("pause")
    assert (done.paused, done.text) == (True, f"the run stands still; child run {child.id} was told")
    assert (await _status(handle)).child == child.id
    await until(lowest, lambda status: status.paused)  # its call has ended
    assert [(await _status(one)).paused for one in (handle, child)] == [True, True]
    await ordered("resume")
    assert (await asyncio.wait_for(handle.result(), SOON)).answer == "inside"
    assert marks(settings).count("lowest") == 1
    await replayed(handle, settings)
    await replayed(child, settings)


async def test_a_pause_that_is_handed_to_the_child_hides_no_cancellation(working: Client) -> None:
    handle = await _with_a_slow_child(working)
    await asyncio.gather(handle.signal("command", {"command": "pause", "by": "ann"}), handle.cancel())
    assert (await asyncio.wait_for(handle.result(), SOON)).exit_reason == "cancelled"


async def test_a_refused_rollback_leaves_the_child_at_work_whose_calls_the_run_above_reports(
    working: Client,
) -> None:
    inner = (act("mark", line="reported", seconds=1), final("inside"))
    handle = await begin(working, holding(*inner, tools=("mark",), options={"mode": "child"}))
    child: WorkflowHandle[Any, AgentResult] = working.get_workflow_handle(
        child_of(handle), result_type=AgentResult
    )
    await _started(child)
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await handle.execute_update("command", {"command": "rollback", "step": 99}, result_type=CommandDone)
    assert "step 99" in str(refused.value.cause)
    result = await asyncio.wait_for(handle.result(), SOON)
    (call,) = result.calls
    assert (result.ok, call.tool, call.arguments["line"]) == (True, "mark", "reported")
    assert call.place == f"{child.id}: action#3:1"


async def test_a_command_that_comes_while_the_log_is_archived_is_obeyed(own: Settings) -> None:
    async with _long_run(own) as (client, handle):
        await _first_archive(own, client)
        async with _archive_waits(own, handle):
            given = {"command": "abort", "by": "ann"}
            said = asyncio.create_task(handle.execute_update("command", given, result_type=CommandDone))
            await asyncio.sleep(0.5)
        result = await asyncio.wait_for(handle.result(), SOON)
        assert result.exit_reason == "aborted"
        assert (await asyncio.wait_for(said, SOON)).command == "abort"


async def test_a_pause_that_comes_while_the_log_is_archived_lets_nothing_begin(own: Settings) -> None:
    async with _long_run(own) as (client, handle):
        await _first_archive(own, client)
        async with _archive_waits(own, handle):
            marks = len((own.files_root / "marks.txt").read_text().splitlines())
            await handle.signal("command", {"command": "pause", "by": "ann"})
            await asyncio.sleep(0.5)
        await until(handle, lambda status: status.paused)
        await asyncio.sleep(0.5)
        assert len((own.files_root / "marks.txt").read_text().splitlines()) <= marks + 1
        await handle.cancel()
        await asyncio.wait_for(handle.result(), SOON)


async def test_what_is_no_state_of_peoples_requests_is_refused_readably(working: Client) -> None:
    carry = Carry(origin_run_id="x", snapshot={}, ledger={}, effect={}, people={"desk": {"opened": "many"}})
    given = task(final("x")).model_copy(update={"carry": carry})
    handle = await begin(working, given)
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(handle.result(), SOON)
    assert "carry" in str(failure.value.cause)


async def test_a_command_to_a_run_that_is_over_is_refused(working: Client) -> None:
    handle = await begin(working, task(final("x")))
    await handle.result()
    with pytest.raises(RPCError, match="completed"):
        await handle.execute_update("command", {"command": "pause"}, result_type=CommandDone)


async def test_what_comes_while_a_run_that_is_over_is_archived_is_refused_or_passed_over(
    working: Client, settings: Settings
) -> None:
    await _first_archive(settings, working)
    handle = await begin(working, task(final("x")))
    async with _archive_waits(settings, handle):
        await handle.signal("command", {"command": "abort"})
        await handle.signal("junk", args=[])
        for name, said in (
            ("command", {"command": "pause"}),
            ("decide", {"request": "r1", "digest": "", "decision": "approve"}),
        ):
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await asyncio.wait_for(handle.execute_update(name, said), SOON)
            assert "the run is over" in str(refused.value.cause)
        status = await handle.query("status", result_type=AgentStatus)
        assert (status.exit_reason, status.unusable_messages) == ("goal_achieved", ())
    result = await asyncio.wait_for(handle.result(), SOON)
    assert (result.answer, len(await log_of(handle))) == ("x", result.records)
