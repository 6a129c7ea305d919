"""Commands by nothing but Temporal, on the real server: what each does, in which order, how fast."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from temporalio.client import Client

from activities.settings import Settings
from client.agent import AgentClient
from client.archived import ArchivedRuns
from client.fork import fork
from tests.people.temporalkit import (
    Handle,
    Person,
    asking_task,
    begun,
    calls,
    decision,
    listed,
    marks,
    noted,
    reached,
    refusal,
    replayed,
    requests,
    waits_for,
)
from tests.workflows.trials import act, begin, final, log_of, scripted, task
from workflows.api import AgentTask, Limits
from workflows.people import Approvals, People

SLOW = 30
"""Seconds that a model takes which is not waited for."""
HERE = People()


def thinking(delay: float = SLOW) -> AgentTask:
    """A run whose model answers late."""
    late = scripted(act("mark", line="srv-late"), final("slowly"), delay_seconds=delay)
    return task(tools=("mark",), people=HERE).model_copy(update={"models": {"default": late}})


async def busy(client: Client, given: AgentTask, state: str = "thought") -> Handle:
    """A run in the middle of its model call."""
    handle = await begin(client, given)

    async def under_way() -> bool:
        pending = (await handle.describe()).raw_description.pending_activities
        return any(
            one.activity_id.startswith(f"{state}#") and one.HasField("last_started_time") for one in pending
        )

    await reached(under_way)
    return handle


@pytest.mark.parametrize("way", ["signal", "update"])
async def test_an_abort_cuts_a_model_call_off_at_once(working: Client, settings: Settings, way: str) -> None:
    handle = await busy(working, thinking())
    person, said = Person.of(working), {"command": "abort", "by": "ann", "text": "wrong question"}
    began = time.monotonic()
    answer = await getattr(person, way)(handle, "command", said)
    result = await handle.result()
    took = time.monotonic() - began
    assert took < SLOW / 3, "it waited for the model"
    assert (result.exit_reason, result.state) == ("aborted", "thought")
    assert "ann (claimed) ended the run: wrong question" in str(result.error)
    assert answer is None or answer["text"] == "the run is ended"
    await listed(working, "AgentExit='aborted'", handle)
    await replayed(handle, settings)


async def test_a_paused_run_ends_what_it_does_and_begins_nothing(working: Client, settings: Settings) -> None:
    given = task(act("mark", line="srv-pause", seconds=2), final("later"), tools=("mark",), people=HERE)
    handle = await busy(working, given, "action")
    said = {"command": "pause", "by": "ann", "text": "lunch", "id": "lunch"}
    answers = await asyncio.gather(*(handle.execute_update("command", said) for _ in range(2)))
    told = [(answer["text"], answer["paused"]) for answer in answers]
    behind = 'the run stands still when what is under way has ended: mark("srv-pause", 2)'
    assert told == [(behind, True)] * 2, "a repeat is the same command"
    await listed(working, "AgentWaiting='paused'", handle)
    person = Person.of(working)
    assert "the run is paused already" in await said_no(person, handle, {"command": "pause"})

    async def stands() -> bool:
        return str((await person.query(handle, "status"))["state"]) == "thought"

    await reached(stands)
    status = await person.query(handle, "status")
    assert (status["waiting"], status["paused"]) == ("paused", True)
    assert marks(settings).count("srv-pause") == 1
    await person.signal(handle, "command", {"command": "resume"})
    assert (await handle.result()).answer == "later"
    await listed(working, "AgentWaiting='paused'", handle, there=False)
    assert [(r.event, r.by) for r in await log_of(handle) if r.event in {"Paused", "Resumed"}] == [
        ("Paused", "ann (claimed)"),
        ("Resumed", "somebody (claimed)"),
    ]


async def test_what_is_approved_in_a_paused_run_is_done_when_it_goes_on(
    working: Client, settings: Settings
) -> None:
    handle, request = await begun(working, asking_task("srv-held"))
    person = Person.of(working)
    await person.signal(handle, "command", {"command": "pause"})
    await listed(working, "AgentWaiting='approval'", handle)
    answer = await person.update(handle, "decide", decision(request, "approve"))
    assert answer["outcome"] == "approved"
    await listed(working, "AgentWaiting='paused'", handle)
    assert "srv-held" not in marks(settings)
    await person.update(handle, "command", {"command": "resume"})
    assert (await handle.result()).ok
    assert marks(settings).count("srv-held") == 1


async def said_no(person: Person, handle: Handle, said: dict[str, Any]) -> str:
    """What a command answers that cannot be obeyed as things are."""
    answer = await person.update(handle, "command", said)
    assert isinstance(answer, str)
    assert "Refused" in answer
    return answer


async def test_a_pause_at_once_gives_a_model_call_up_and_makes_it_again_later(working: Client) -> None:
    handle = await busy(working, thinking(2))
    began = time.monotonic()
    await handle.execute_update("command", {"command": "pause", "at_once": True})
    assert time.monotonic() - began < 2
    await handle.execute_update("command", {"command": "resume"})
    result = await handle.result()
    assert (result.answer, result.steps) == ("slowly", 2)


async def test_a_message_is_in_the_conversation_before_the_next_thought(working: Client) -> None:
    handle, request = await begun(working, asking_task("srv-steer"))
    person = Person.of(working)
    said = {"command": "steer", "text": "look at the second file", "by": "ann"}
    await person.signal(handle, "command", said)
    await person.signal(handle, "decide", decision(request, "approve"))
    assert (await handle.result()).answer == "done"
    assert [record.by for record in await noted(handle, "Steered")] == ["ann (claimed)"]
    messages = (await person.query(handle, "transcript"))["messages"]
    said_at = [n for n, message in enumerate(messages) if "look at the second file" in message["content"]]
    assert len(said_at) == 1
    assert messages[said_at[0]]["role"] == "user"
    assert "FINAL ANSWER" in messages[-1]["content"]


async def test_a_list_has_only_what_is_still_asked(working: Client) -> None:
    """Two calls ask at once; when one is decided, the other one stands there alone."""
    replies = (calls("mark_once", "srv-list-a", "srv-list-b"), "both")
    given = task(*replies, tools=("mark_once",), machine="tools", people=HERE, approvals=Approvals())
    handle, first = await begun(working, given)
    second = await waits_for(handle, besides=first.id)
    await handle.execute_update("decide", decision(first, "reject"))

    async def alone() -> bool:
        memo = await (await handle.describe()).memo()
        return [ask["id"] for ask in memo["asks"]] == [second.id]

    await reached(alone)
    await handle.execute_update("decide", decision(second, "reject"))
    await handle.result()


@pytest.mark.parametrize("way", ["signal", "update"])
async def test_a_rollback_does_a_step_again_on_a_new_branch_and_asks_anew(
    working: Client, settings: Settings, way: str
) -> None:
    """What was approved before the rollback approves nothing after it."""
    line = f"srv-back-{way}"
    replies = (act("mark_once", line=f"{line}-2"), final("twice"))
    handle, first = await begun(working, asking_task(f"{line}-1", *replies))
    await handle.execute_update("decide", decision(first, "approve"))
    second = await waits_for(handle, besides=first.id)
    person = Person.of(working)
    assert [c["tool"] for c in (await person.query(handle, "effects", {"step": 1}))["calls"]] == ["mark_once"]
    await getattr(person, way)(handle, "command", {"command": "rollback", "step": 1, "by": "ann"})
    again = await waits_for(handle, besides=second.id)
    assert (again.step, again.arguments, again.digest == first.digest) == (1, first.arguments, False)
    assert again.place != first.place
    for stale in (first, second):
        assert "is closed" in await refusal(handle, "decide", decision(stale, "approve", text="too late"))
    assert marks(settings).count(f"{line}-1") == 1
    await person.signal(handle, "decide", decision(again, "reject", text="it is done"))
    third = await waits_for(handle, besides=again.id)
    await person.update(handle, "decide", decision(third, "approve"))
    result = await handle.result()
    assert (result.answer, result.branch) == ("twice", 1)
    assert [one.outcome for one in result.decisions] == ["approved", "withdrawn", "rejected", "approved"]
    assert [marks(settings).count(f"{line}-{n}") for n in (1, 2)] == [1, 1]
    await replayed(handle, settings)


async def test_a_rollback_to_a_step_that_is_not_there_is_refused_and_says_which_are(working: Client) -> None:
    handle, _ = await begun(working, asking_task("srv-nowhere"))
    person = Person.of(working)
    refused = await said_no(person, handle, {"command": "rollback", "step": 9})
    assert "step 9" in refused
    await person.signal(handle, "command", {"command": "rollback"})
    records = await reached(lambda: twice(handle))
    assert [record.about["command"] for record in records] == ["rollback", "rollback"]
    assert "a rollback needs a `step`" in str(records[1].error)
    assert [r.id for r in await requests(handle)] == ["r1"], "what waited still waits"
    await person.update(handle, "command", {"command": "abort"})
    await handle.result()


async def twice(handle: Handle) -> Any:
    """Both refused commands."""
    found = await noted(handle, "RefusedCommand")
    return found if len(found) == 2 else None


async def test_a_limit_is_set_while_the_run_goes_on(working: Client) -> None:
    given = asking_task("srv-cap", act("mark", line="srv-cap"), final("all"), limits=Limits(model_calls=1))
    handle, request = await begun(working, given)
    person = Person.of(working)
    answer = await person.update(handle, "command", {"command": "limits", "limits": {"model_calls": 9}})
    assert answer["text"] == "limits now: model_calls 9"
    await person.signal(handle, "decide", decision(request, "approve"))
    result = await handle.result()
    assert (result.answer, result.counters["model_calls"]) == ("all", 3)
    assert (await noted(handle, "LimitsSet"))[0].reason == "model_calls 9"


async def test_commands_are_obeyed_in_the_order_in_which_they_came(working: Client) -> None:
    handle, _ = await begun(working, asking_task("srv-order"))
    person = Person.of(working)
    await person.signal(handle, "command", {"command": "pause", "text": "one"})
    await person.signal(handle, "command", {"command": "limits", "limits": {"model_calls": 7}})
    await person.signal(handle, "command", {"command": "resume", "text": "two"})
    await person.signal(handle, "command", {"command": "abort", "text": "three"})
    await handle.result()
    told = [r.event for r in await log_of(handle) if r.event in {"Paused", "LimitsSet", "Resumed", "aborted"}]
    assert told[:3] == ["Paused", "LimitsSet", "Resumed"]


async def test_a_command_under_one_id_counts_once_also_when_it_comes_by_both_ways(working: Client) -> None:
    handle, _ = await begun(working, asking_task("srv-once"))
    said = {"command": "pause", "id": "p-1", "by": "ann"}
    person = Person.of(working)
    await person.signal(handle, "command", said)
    await person.update(handle, "command", said)
    await person.signal(handle, "command", said)
    assert "another command came under the id" in await refusal(handle, "command", {**said, "text": "not it"})
    assert len(await noted(handle, "Paused")) == 1
    await person.update(handle, "command", {"command": "abort"})
    await handle.result()


async def test_a_fork_of_a_waiting_run_asks_for_itself(working: Client, settings: Settings) -> None:
    """The fork has the same step, tool and arguments; an approval of one releases nothing in the other."""
    handle, request = await begun(working, asking_task("srv-forked"))
    agents = AgentClient(working, ArchivedRuns(settings.data_dir / "archive.db"), ui=None, where="here")
    forked: Handle = agents.temporal.get_workflow_handle(
        await fork(agents, handle.id, 1), result_type=type(None)
    )
    own = await waits_for(forked)
    assert (own.arguments, own.tool) == (request.arguments, request.tool)
    assert own.digest != request.digest
    assert "what is asked is not what you saw" in await refusal(
        forked, "decide", decision(request, "approve")
    )
    await Person.of(working).signal(handle, "decide", decision(request, "reject"))
    await handle.result()
    assert [r.id for r in await requests(forked)] == ["r1"]
    await Person.of(working).update(forked, "decide", decision(own, "approve"))
    ended = await agents.result(forked.id)
    assert (ended.ok, marks(settings).count("srv-forked")) == (True, 1)
    assert ended.origin is not None
    assert (ended.origin.workflow_id, ended.origin.step) == (handle.id, 1)


async def test_who_may_command_is_a_group(working: Client) -> None:
    people = People.model_validate({"groups": {"lead": {"members": ["bob"]}}, "commands": "lead"})
    handle, _ = await begun(working, asking_task("srv-lead", people=people, approvals=Approvals()))
    assert "ann may not give commands" in await refusal(handle, "command", {"command": "pause", "by": "ann"})
    person = Person.of(working)
    await person.signal(handle, "command", {"command": "abort", "by": "ann"})
    (refused,) = await reached(lambda: noted(handle, "RefusedCommand"))
    assert (refused.by, refused.about["command"]) == ("ann (claimed)", "abort")
    assert "bob may" in str(refused.error)
    await person.update(handle, "command", {"command": "abort", "by": "bob"})
    assert (await handle.result()).exit_reason == "aborted"
