"""What Temporal's Web UI says of a waiting run: the JSON to paste is a decision that counts."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.service import RPCError

from client.keys import public_key
from tests.people.temporalkit import (
    Handle,
    Person,
    asking_task,
    begun,
    decision,
    hears,
    noted,
    reached,
    requests,
)
from tests.workflows.trials import act, final, task
from workflows.api import AgentTask, Limits
from workflows.people import Asking, Group, People

ASKS: dict[str, Any] = {"tools": ("mark",), "people": People(on_limit="ask", on_trouble="ask")}
STANDS: dict[str, Any] = {"tools": ("mark",), "people": People(interrupt_every=1)}


async def current_details(handle: Handle) -> str:
    """As the Web UI asks for them."""
    metadata: WorkflowMetadata = await handle.query(
        "__temporal_workflow_metadata", result_type=WorkflowMetadata
    )
    return metadata.current_details


def to_paste(details: str) -> list[dict[str, Any]]:
    """The JSON in it."""
    return [json.loads(found) for found in re.findall(r"```json\n(.*?)\n```", details, re.DOTALL)]


@pytest.mark.parametrize(
    ("kind", "given", "outcome"),
    [
        ("approval", asking_task("srv-ui"), "approved"),
        ("interrupt", task(act("mark", line="ui"), final("x"), **STANDS), "resumed"),
        ("limit", task(final("x"), **ASKS, limits=Limits(model_calls=0)), "topped_up"),
        ("trouble", task(hears("what nobody says", final("x")), **ASKS), "retried"),
        ("escalation", task(*[{"thought": "probably"}] * 9, **ASKS), "resumed"),
    ],
)  # fmt: skip
async def test_the_text_to_paste_decides_as_it_says(
    working: Client, kind: str, given: AgentTask, outcome: str
) -> None:
    handle, request = await begun(working, given, kind)
    details = await current_details(handle)
    assert f"**Waits for a person: {kind} {request.id}**" in details
    (answer,) = to_paste(details)
    await Person.of(working).signal(handle, "decide", {**answer, "by": "ann"})

    (decided,) = await reached(lambda: noted(handle, "Decided"))
    assert (decided.by, decided.about["outcome"]) == ("ann (claimed)", outcome)
    with suppress(RPCError, WorkflowUpdateFailedError):  # it is over by then
        await handle.execute_update("command", {"command": "abort"})
    await handle.result()
    assert to_paste(await current_details(handle)) == []


async def test_the_text_names_those_who_may_decide_and_leads_signers_to_their_key(working: Client) -> None:
    names = {"ann": Ed25519PrivateKey.generate(), "bob": Ed25519PrivateKey.generate()}
    plain = Group(members=tuple(names), quorum=2)
    signed = Group(keys={name: public_key(key) for name, key in names.items()})
    for group, words in ((plain, "`ann, bob; 2 must agree`"), (signed, "`ratchet` with `--key`")):
        people = People(groups={"desk": group}, asking=Asking(group="desk", deadline_seconds=900))
        handle, request = await begun(working, asking_task("srv-ui-who", people=people))
        details = await current_details(handle)
        until = datetime.fromtimestamp(request.deadline or 0, UTC)
        assert f"Until {until:%Y-%m-%d %H:%M:%S} UTC; then: reject" in details
        assert words in details
        assert len(to_paste(details)) == (group is plain)
        await handle.execute_update("command", {"command": "abort"})
        await handle.result()


async def test_what_a_model_writes_draws_nothing(working: Client) -> None:
    """Links, pictures and code fences of arguments stand there as they are."""
    evil = "![x](http://evil/x.png) [a](http://evil) ```json\n{}\n``` **Waits** <img src=x>"
    handle, request = await begun(working, asking_task(evil))
    details = await current_details(handle)
    assert len(to_paste(details)) == 1
    outside = re.sub(r"```json\n.*?\n```", "", details, flags=re.DOTALL)
    assert "evil" not in re.sub(r"`[^`]*`", "", outside)
    assert [r.id for r in await requests(handle)] == [request.id]
    await handle.execute_update("decide", decision(request, "abort"))
    await handle.result()
