"""Wrong decisions and commands on the real server: by signal recorded and ignored, by update refused."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from activities.settings import Settings
from tests.people.temporalkit import (
    Handle,
    Person,
    asking_task,
    begun,
    decision,
    marks,
    noted,
    reached,
    refusal,
    replayed,
    requests,
    waits_for,
)
from tests.workflows.trials import act, final, log_of
from workflows.api import TASK_QUEUE, AgentResult
from workflows.people import Approvals, Asking, Group, People, Request

DESK = People(
    groups={"desk": Group(members=("ann", "bob", "eve"), quorum=2)},
    asking=Asking(group="desk"),
)
"""Two must agree on a request."""


def said(asked: Request, verb: str = "approve", **more: Any) -> dict[str, Any]:
    """A decision; a field that is None is left out."""
    whole = {**decision(asked, verb), **more}
    return {key: value for key, value in whole.items() if value is not None}


def wrong(request: Request) -> dict[str, tuple[dict[str, Any], str]]:
    """Decisions that cannot count, and what is said of each."""
    return {
        "no such request": (said(request, request="r9"), "there is no request 'r9' in this run"),
        "another digest": (said(request, digest="0" * 32), "what is asked is not what you saw"),
        "no digest": (said(request, digest=""), "the decision is on nothing"),
        "not an approver": (said(request, by="zed"), "zed is not among those who may decide on r1"),
        "no name": (said(request, by=None), "say who you are"),
        "no option": (said(request, "topup", amounts={"steps": 1}), "cannot be answered by 'topup'"),
        "edit without arguments": (said(request, "edit"), "an edit needs `arguments`"),
        "edit that does not fit": (said(request, "edit", arguments={"lime": "x"}), "do not fit mark_once"),
        "edit of a wrong type": (said(request, "edit", arguments={"line": 5}), "do not fit mark_once"),
        "approve with arguments": (said(request, arguments={"line": "x"}), "`arguments` goes with edit"),
    }  # fmt: skip


async def test_a_wrong_decision_is_refused_with_the_reason_or_recorded_and_changes_nothing(
    working: Client, settings: Settings
) -> None:
    handle, request = await begun(working, asking_task("srv-wrong", people=DESK))
    table = wrong(request)
    for name, (given, reason) in table.items():
        assert reason in await refusal(handle, "decide", given), name
    assert await noted(handle, "RefusedDecision") == [], "what an update refuses is not in the log"
    for given, _ in table.values():
        await handle.signal("decide", given)

    async def all_noted() -> Any:
        found = await noted(handle, "RefusedDecision")
        return found if len(found) == len(table) else None

    for record, (name, (given, reason)) in zip(await reached(all_noted), table.items(), strict=True):
        assert reason in str(record.error), name
        assert record.by == f"{given.get('by', 'somebody')} (claimed)"
        assert record.about["decision"] == given["decision"]
        assert (record.to, record.patch) == (None, {})
    assert await requests(handle) == (request,)
    for by in ("ann", "bob"):
        await handle.execute_update("decide", said(request, by=by))
    assert (await handle.result()).ok
    assert marks(settings).count("srv-wrong") == 1
    await replayed(handle, settings)


async def test_a_second_vote_and_a_decision_after_the_end_are_refused_in_words(working: Client) -> None:
    replies = ({"thought": "probably"}, final("done"))
    handle, request = await begun(working, asking_task("srv-twice", *replies, people=DESK))
    person = Person.of(working)
    first = await person.update(handle, "decide", said(request))
    assert (first["outcome"], first["votes"], first["needed"]) == ("open", 1, 2)
    assert first == await person.update(handle, "decide", said(request)), "a repeat is no second vote"
    assert "has decided on r1 already; each person has one vote" in await person.update(
        handle, "decide", said(request, "reject")
    )
    await person.signal(handle, "decide", said(request, text="once more"))
    (refused,) = await reached(lambda: noted(handle, "RefusedDecision"))
    assert "each person has one vote" in str(refused.error)
    await person.signal(handle, "command", {"command": "pause", "by": "ann"})
    await person.update(handle, "decide", said(request, "reject", by="eve"))
    late = await person.update(handle, "decide", said(request, by="bob"))
    assert "r1 is closed: rejected by eve" in late
    await person.signal(handle, "command", {"command": "resume", "by": "ann"})
    await handle.result()
    assert "already completed" in await person.update(handle, "decide", said(request, by="bob"))


SENSELESS: list[Any] = [
    {"command": "limits", "limits": {"model_calls": -5}}, {"command": "limits", "limits": {"no_such": 5}},
    {"command": "limits"}, {"command": "resume"}, {"command": "steer", "text": " "}, {"command": "rollback"},
    {"command": "rollback", "step": 7},
]  # fmt: skip
"""Commands that anybody may give, and that make no sense: the loop refuses them when it comes to them."""
JUNK: list[Any] = [
    None, 5, "approve", [], {}, "x" * 200_000, [[[[[[]]]]]], {"a": {"b": {"c": ["d"] * 1000}}},
    {"request": "r1"}, {"request": "r1", "digest": 5, "decision": "approve"},
    {"request": "r1", "digest": "", "decision": "perhaps"},
    {"request": "r1", "digest": "", "decision": "edit", "arguments": 1},
    {"command": "dance"}, {"command": "pause", "step": -1}, {"command": "pause", "why": "unknown field"},
]  # fmt: skip
RAW = [
    b'{"request": "r1", "digest": "", "decision": "approve", "text": "\\ud800"}',
    b'{"request": "r1", "digest": "", "decision": "edit", "arguments": {"line": NaN}}',
    b'{"request": "r1", "digest": "", "decision": "edit", "arguments": {"line": "\\ud800"}}',
    b'{"request": "r1", "digest": "", "decision": "edit", "arguments": {"line": 1e999}}',
    b'{"command": "limits", "limits": {"model_calls": 1e999}}',
    b'{"command": "steer", "text": "\\ud83d"}',
    b"{" * 500, b"[" * 100_000, b"\xff\xfe", b"", b'{"request": "r1"', b'"' + b"y" * 100_000 + b'"',
    b'{"request": "r1", "request": "r2", "digest": "", "decision": "approve"}',
]  # fmt: skip


async def test_junk_by_signal_is_in_the_log_and_the_run_goes_on(working: Client, settings: Settings) -> None:
    handle, request = await begun(working, asking_task("srv-junk"))
    for name in ("decide", "command", "deside"):
        for value in JUNK + SENSELESS:
            await handle.signal(name, value)
        for raw in RAW:
            payload = Payload(metadata={"encoding": b"json/plain"}, data=raw)
            await handle.signal(name, RawValue(payload))
        await handle.signal(name, args=[])
        await handle.signal(name, args=[1, 2])
    sent = 3 * (len(JUNK) + len(SENSELESS) + len(RAW) + 2)

    async def all_noted() -> bool:
        events = {"UnusableSignal", "RefusedDecision", "RefusedCommand"}
        return len([r for r in await log_of(handle) if r.event in events]) == sent

    await reached(all_noted)
    await handle.execute_update("decide", said(request))
    assert (await handle.result()).answer == "done"
    await replayed(handle, settings)


async def test_junk_by_update_is_refused_and_costs_no_event(working: Client) -> None:
    handle, request = await begun(working, asking_task("srv-junk-update"))
    before = (await handle.describe()).history_length
    for name in ("decide", "command"):
        for value in JUNK:
            with pytest.raises(WorkflowUpdateFailedError):
                await handle.execute_update(name, value)
        for raw in RAW[:-1]:
            with pytest.raises(WorkflowUpdateFailedError):
                await handle.execute_update(
                    name, RawValue(Payload(metadata={"encoding": b"json/plain"}, data=raw))
                )
        for args, words in (([], "0 values came"), ([1, 2], "2 values came"), ([5], "a value of type int")):
            with pytest.raises(WorkflowUpdateFailedError) as unreadable:
                await handle.execute_update(name, args=args)
            assert f"one JSON object is expected as input, {words}" in str(unreadable.value.cause)
    assert (await handle.describe()).history_length == before
    for value in SENSELESS:
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update("command", value)
        assert isinstance(refused.value.cause, ApplicationError)
        assert refused.value.cause.type == "Refused"
    assert len(await noted(handle, "RefusedCommand")) == len(SENSELESS)
    await handle.execute_update("decide", said(request))
    assert (await handle.result()).answer == "done"


# -- what an approval is bound to --------------------


async def test_an_approval_does_not_release_the_same_call_when_it_comes_again(
    working: Client, settings: Settings
) -> None:
    """The same arguments, a step later: another place, another request."""
    handle, first = await begun(
        working, asking_task("srv-again", act("mark_once", line="srv-again"), final("x"))
    )
    approval = said(first)
    await handle.execute_update("decide", approval)
    second = await waits_for(handle, besides=first.id)
    assert (second.arguments, second.tool) == (first.arguments, first.tool)
    assert second.digest != first.digest
    assert (await handle.execute_update("decide", approval))["request"] == first.id, "a repeat, of the first"
    moved = {**approval, "request": second.id}
    assert "what is asked is not what you saw" in await refusal(handle, "decide", moved)
    await handle.signal("decide", moved)
    await reached(lambda: noted(handle, "RefusedDecision"))
    assert [r.id for r in await requests(handle)] == [second.id]
    assert marks(settings).count("srv-again") == 1
    await handle.execute_update("decide", said(second, "reject"))
    assert (await handle.result()).ok
    assert marks(settings).count("srv-again") == 1


async def test_an_approval_does_not_release_the_same_call_of_another_run(
    working: Client, settings: Settings
) -> None:
    """Same task, same step, same request id; also under the same workflow id, which may be used again."""
    task = asking_task("srv-other")
    one, first = await begun(working, task)
    other, second = await begun(working, task)
    assert (first.place, first.arguments, first.id) == (second.place, second.arguments, second.id)
    assert "what is asked is not what you saw" in await refusal(other, "decide", said(first))
    await one.execute_update("decide", said(first, "reject"))
    await one.result()
    again: Handle = await working.start_workflow(
        "AgentWorkflow", task, id=one.id, task_queue=TASK_QUEUE, result_type=AgentResult
    )
    third = await waits_for(again)
    assert (third.run, third.place) == (first.run, first.place)
    assert "what is asked is not what you saw" in await refusal(again, "decide", said(first))
    for handle, request in ((other, second), (again, third)):
        await handle.execute_update("decide", said(request, "abort"))
        await handle.result()
    assert "srv-other" not in marks(settings)


async def test_what_was_approved_is_what_is_called_whatever_others_say_afterwards(
    working: Client, settings: Settings
) -> None:
    """An approval and an edit of the same request, in one batch: the first counts, the other does nothing."""
    handle, request = await begun(working, asking_task("srv-first"))
    await handle.signal("command", {"command": "pause"})
    await handle.signal("decide", said(request))
    await handle.signal("decide", said(request, "edit", by="bob", arguments={"line": "srv-changed"}))
    await handle.signal("decide", said(request, "reject", by="eve"))
    await handle.signal("command", {"command": "resume"})
    assert (await handle.result()).ok
    assert [mark for mark in marks(settings) if mark in {"srv-first", "srv-changed"}] == ["srv-first"]
    assert len(await noted(handle, "RefusedDecision")) == 2


async def test_votes_for_different_arguments_do_not_add_up(working: Client, settings: Settings) -> None:
    handle, request = await begun(working, asking_task("srv-votes", people=DESK, approvals=Approvals()))
    await handle.execute_update("decide", said(request))
    edits = {by: said(request, "edit", by=by, arguments={"line": f"srv-{by}"}) for by in ("bob", "eve")}
    for edit in edits.values():
        assert (await handle.execute_update("decide", edit))["outcome"] == "open"
    assert not {"srv-votes", "srv-bob", "srv-eve"} & {*marks(settings)}
    assert (await requests(handle))[0].outcome == "open"
    await handle.execute_update("command", {"command": "abort", "by": "ann"})
    await handle.result()
