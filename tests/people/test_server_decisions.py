"""Decisions by nothing but Temporal, on the real server: its command line and the SDK's plain handles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from temporalio.client import Client

from activities.settings import Settings
from client.keys import public_key
from tests.people.temporalkit import (
    Handle,
    Person,
    asking_task,
    begun,
    decision,
    hears,
    listed,
    marks,
    noted,
    reached,
    refusal,
    replayed,
    requests,
    waits_for,
)
from tests.workflows.trials import act, final, log_of, task
from workflows.api import Limits
from workflows.gate.signing import sign, signed_content
from workflows.people import Asking, Decision, Group, People, Request

Say = Callable[[Client, Handle, dict[str, Any]], Awaitable[Any]]


async def by_signal(client: Client, handle: Handle, said: dict[str, Any]) -> None:
    """`temporal workflow signal`."""
    await Person.of(client).signal(handle, "decide", said)


async def by_update(client: Client, handle: Handle, said: dict[str, Any]) -> Any:
    """`temporal workflow update execute`."""
    return await Person.of(client).update(handle, "decide", said)


async def by_handle(client: Client, handle: Handle, said: dict[str, Any]) -> Any:
    """`handle.execute_update`, without any model of ours."""
    return await handle.execute_update("decide", said)


WAYS = [
    pytest.param(by_signal, id="signal-by-cli"),
    pytest.param(by_update, id="update-by-cli"),
    pytest.param(by_handle, id="update-by-handle"),
]
every_way = pytest.mark.parametrize("say", WAYS)


def told(outcome: str, answer: Any, **more: Any) -> None:
    """What an update answers says the same; a signal has no answer."""
    if answer is not None:
        assert {key: answer[key] for key in ("outcome", *more)} == {"outcome": outcome, **more}


@every_way
async def test_an_approved_call_is_made_once(working: Client, settings: Settings, say: Say) -> None:
    handle, request = await begun(working, asking_task(line := f"srv-approve-{say.__name__}"))
    assert line not in marks(settings)
    told("approved", await say(working, handle, decision(request, "approve", text="fine")), by=["ann"])
    result = await handle.result()
    assert (result.ok, marks(settings).count(line)) == (True, 1)
    (decided,) = await noted(handle, "Decided")
    assert (decided.by, decided.about["decision"]) == ("ann (claimed)", "approve")
    assert decided.reason == f"{request.id} approval mark_once approved by ann (claimed): fine"
    assert [(one.outcome, one.by) for one in result.decisions] == [("approved", ("ann",))]
    await replayed(handle, settings)


@every_way
async def test_a_rejected_call_is_not_made_and_the_model_sees_the_comment(
    working: Client, settings: Settings, say: Say
) -> None:
    line = f"srv-reject-{say.__name__}"
    heard = hears("too much for one day", final("then not"))
    handle, request = await begun(working, asking_task(line, heard))
    told("rejected", await say(working, handle, decision(request, "reject", text="too much for one day")))
    result = await handle.result()
    assert (result.answer, line in marks(settings)) == ("then not", False)


@every_way
async def test_edited_arguments_are_what_is_called_and_the_model_hears_of_them(
    working: Client, settings: Settings, say: Say
) -> None:
    line = f"srv-edit-{say.__name__}"
    heard = hears("A person changed the arguments", final("as you like"))
    handle, request = await begun(working, asking_task(line, heard))
    told("edited", await say(working, handle, decision(request, "edit", arguments={"line": f"{line}-less"})))
    assert (await handle.result()).answer == "as you like"
    assert [mark for mark in marks(settings) if mark.startswith(line)] == [f"{line}-less"]


@every_way
async def test_an_abort_ends_the_run_where_it_is(working: Client, settings: Settings, say: Say) -> None:
    handle, request = await begun(working, asking_task(line := f"srv-abort-{say.__name__}"))
    told("aborted", await say(working, handle, decision(request, "abort", text="stop it")))
    result = await handle.result()
    assert (result.exit_reason, "ann (claimed) ended the run" in str(result.error)) == ("aborted", True)
    assert "stop it" in str(result.error)
    assert line not in marks(settings)


async def test_temporals_query_and_list_show_what_is_asked_as_long_as_it_is(working: Client) -> None:
    people = People(asking=Asking(deadline_seconds=900))
    handle, request = await begun(working, asking_task("srv-shown", people=people))
    person = Person.of(working)
    page = await person.query(handle, "requests")
    (shown,) = page["open"]
    assert (shown["digest"], shown["arguments"], page["total"]) == (
        request.digest,
        {"line": "srv-shown"},
        1,
    )
    assert Request.model_validate({k: v for k, v in shown.items() if v is not None}) == request
    await listed(working, "AgentWaiting='approval' AND AgentDeadline > '2020-01-01T00:00:00Z'", handle)
    (run,) = [
        run
        for run in await person.listed("AgentWaiting='approval' AND AgentWaitingSince IS NOT NULL")
        if run["execution"]["workflowId"] == handle.id
    ]
    (ask,) = run["memo"]["fields"]["asks"]
    assert ask == {
        "id": "r1", "kind": "approval", "text": request.text, "tool": "mark_once", "digest": request.digest,
        "options": ["approve", "reject", "edit", "abort"], "deadline": request.deadline,
        "arguments": {"line": "srv-shown"},
    }  # fmt: skip
    await handle.execute_update("decide", decision(request, "reject"))
    await handle.result()
    await listed(working, "AgentWaiting='approval'", handle, there=False)
    assert await requests(handle) == ()
    (closed,) = (await person.query(handle, "requests"))["closed"]
    assert (closed["outcome"], closed["settled"]["by"]) == ("rejected", "ann")


@pytest.mark.parametrize(
    ("at_deadline", "reason", "made"),
    [("reject", "goal_achieved", 0), ("approve", "goal_achieved", 1), ("abort", "expired", 0)],
)
async def test_a_deadline_brings_what_the_agent_file_says(
    working: Client, settings: Settings, at_deadline: Any, reason: str, made: int
) -> None:
    people = People(asking=Asking(deadline_seconds=1, at_deadline=at_deadline))
    handle, request = await begun(working, asking_task(line := f"srv-{at_deadline}-late", people=people))
    result = await handle.result()
    assert (result.exit_reason, marks(settings).count(line)) == (reason, made)
    assert [one.outcome for one in result.decisions] == ["expired"]
    (expired,) = await noted(handle, "Expired")
    assert (expired.by, expired.about["outcome"]) == ("deadline", "expired")
    assert request.deadline is not None
    assert expired.started >= request.deadline


async def test_an_escalated_request_belongs_to_the_next_group_alone(
    working: Client, settings: Settings
) -> None:
    people = People(
        groups={"desk": Group(members=("ann",)), "boss": Group(members=("bob",))},
        asking=Asking(group="desk", deadline_seconds=2, at_deadline="escalate", escalate_to=("boss",)),
    )
    handle, _ = await begun(working, asking_task("srv-escalated", people=people))

    async def now_asked() -> bool:
        return (await requests(handle))[0].approvers == ("bob",)

    await reached(now_asked)
    (asked,) = await requests(handle)
    assert "ann is not among those who may decide" in await refusal(
        handle, "decide", decision(asked, "approve")
    )
    answer = await by_update(working, handle, decision(asked, "approve", by="bob"))
    assert (answer["outcome"], answer["by"]) == ("approved", ["bob"])
    assert (await handle.result()).ok
    assert marks(settings).count("srv-escalated") == 1
    assert [record.by for record in await noted(handle, "Escalated")] == ["deadline"]


async def test_two_of_three_must_agree_and_each_has_one_vote(working: Client, settings: Settings) -> None:
    people = People(
        groups={"desk": Group(members=("ann", "bob", "eve"), quorum=2)}, asking=Asking(group="desk")
    )
    handle, request = await begun(working, asking_task("srv-quorum", people=people))
    await by_signal(working, handle, decision(request, "approve"))

    async def voted() -> bool:
        return len((await requests(handle))[0].votes) == 1

    await reached(voted)
    assert "each person has one vote" in await refusal(
        handle, "decide", decision(request, "approve", text="again")
    )
    assert "mark_once" not in str([r.event for r in await log_of(handle)])
    answer = await by_update(working, handle, decision(request, "approve", by="eve"))
    assert (answer["outcome"], answer["by"], answer["votes"]) == ("approved", ["ann", "eve"], 2)
    assert (await handle.result()).ok
    assert marks(settings).count("srv-quorum") == 1


async def test_a_group_with_keys_hears_only_what_its_people_have_signed(
    working: Client, settings: Settings
) -> None:
    keys = {name: Ed25519PrivateKey.generate() for name in ("ann", "bob")}
    group = Group(keys={name: public_key(key) for name, key in keys.items()}, quorum=2)
    people = People(groups={"desk": group}, asking=Asking(group="desk"))
    handle, request = await begun(working, asking_task("srv-signed", people=people))

    def signed(name: str, key: Ed25519PrivateKey, **more: Any) -> dict[str, Any]:
        said = decision(request, "approve", **{"by": name, "id": f"d-{name}", **more})
        return {**said, "signature": sign(key, signed_content(handle.id, Decision.model_validate(said)))}

    plain = decision(request, "approve")
    assert "must be signed with the key of ann; this one has no signature" in await refusal(
        handle, "decide", plain
    )
    forged = signed("ann", keys["bob"])
    assert "a signature that is not theirs" in await refusal(handle, "decide", forged)
    changed = {**signed("ann", keys["ann"]), "decision": "reject"}
    assert "a signature that is not theirs" in await refusal(handle, "decide", changed)
    await by_signal(working, handle, forged)
    (refused,) = await reached(lambda: noted(handle, "RefusedDecision"))
    assert (refused.by, "signature" in refused.about) == ("ann (claimed)", False)
    await by_signal(working, handle, signed("ann", keys["ann"]))
    answer = await by_handle(working, handle, signed("bob", keys["bob"]))
    assert (answer["outcome"], answer["by"], answer["verified"]) == ("approved", ["ann", "bob"], True)
    assert (await handle.result()).decisions[0].verified
    assert marks(settings).count("srv-signed") == 1
    assert [r.by for r in await noted(handle, "Decided")] == ["bob (verified)"]


@every_way
async def test_a_limit_is_topped_up_and_the_run_goes_on(
    working: Client, settings: Settings, say: Say
) -> None:
    replies = (act("mark", line="srv-limit"), final("enough"))
    people = People(on_limit="ask")
    given = task(*replies, tools=("mark",), people=people, limits=Limits(model_calls=1))
    handle, request = await begun(working, given, "limit")
    assert (request.options, request.arguments) == (
        ("topup", "finish", "abort"),
        {"counter": "model_calls", "cap": 1},
    )
    assert "a top-up needs `amounts`" in await refusal(handle, "decide", decision(request, "topup"))
    more = {"amounts": {"model_calls": 3}}
    told("topped_up", await say(working, handle, decision(request, "topup", **more)))
    result = await handle.result()
    assert (result.answer, result.counters["model_calls"]) == ("enough", 2)


async def test_a_limit_may_be_let_end_the_run_as_it_would_have(working: Client) -> None:
    replies = (act("mark", line="srv-finish"), final("never"))
    people = People(on_limit="ask")
    given = task(*replies, tools=("mark",), people=people, limits=Limits(model_calls=1))
    handle, request = await begun(working, given, "limit")
    await by_signal(working, handle, decision(request, "finish"))
    assert (await handle.result()).exit_reason == "limit"


async def test_a_run_that_stands_still_every_second_step_asks_each_time_and_hears_what_is_said(
    working: Client,
) -> None:
    replies = [act("mark", line=f"srv-stand{n}") for n in range(4)]
    heard = hears("mind the gap", replies[2])
    script = (*replies[:2], heard, replies[3], final("over"))
    given = task(*script, tools=("mark",), people=People(interrupt_every=2))
    handle, first = await begun(working, given, "interrupt")
    assert (first.step, first.options) == (3, ("resume", "abort"))
    await listed(working, "AgentWaiting='interrupt'", handle)
    await by_signal(working, handle, decision(first, "resume", text="mind the gap"))
    second = await waits_for(handle, "interrupt", besides=first.id)
    assert second.step == 5
    answer = await by_update(working, handle, decision(second, "resume"))
    assert answer["outcome"] == "resumed"
    assert (await handle.result()).answer == "over"
