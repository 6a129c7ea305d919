"""People, tools and a desk for the tests of the gate."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from activities.contracts import JsonObject, ToolEffect, ToolRun, ToolSpec
from workflows.gate.desk import Desk
from workflows.gate.signing import sign, signed_content
from workflows.gate.ticket import content_of
from workflows.people import Approvals, Asking, Command, Decision, Group, People, Request

RUN, ORIGIN = "run-1", "00000000-aaaa"
APPROVAL = ("approve", "reject", "edit", "abort")
PAY: JsonObject = {
    "type": "object",
    "properties": {"amount": {"type": "number", "minimum": 0}, "to": {"type": "string"}},
    "required": ["amount"],
}
KEYS = {name: Ed25519PrivateKey.from_private_bytes(name[:1].encode() * 32) for name in ("ann", "bob", "eve")}
"""Private keys of people, always the same."""


def public(name: str) -> str:
    """A person's public key as it stands in a group."""
    return base64.b64encode(KEYS[name].public_key().public_bytes_raw()).decode()


def spec(name: str = "pay", effect: ToolEffect = "unsafe", parameters: JsonObject | None = None) -> ToolSpec:
    """A tool; `pay` takes an amount and, if wanted, whom to."""
    return ToolSpec(name=name, description="", parameters=parameters or PAY, effect=effect)


def call(tool: str = "pay", **arguments: Any) -> ToolRun:
    """A call of a tool."""
    return ToolRun(id="c1", tool=tool, arguments=arguments)


PEOPLE = People(
    groups={
        "team": Group(members=("ann", "bob")),
        "two": Group(members=("ann", "bob", "cy"), quorum=2),
        "signed": Group(keys={"ann": public("ann"), "bob": public("bob")}),
        "signed_two": Group(keys={"ann": public("ann"), "bob": public("bob")}, quorum=2),
        "boss": Group(members=("eve",)),
    }
)


def desk(
    group: str | None = None,
    approvals: Approvals | None = None,
    *,
    people: People = PEOPLE,
    tools: Sequence[ToolSpec] = (),
    run: tuple[str, str] = (RUN, ORIGIN),
    **asking: Any,
) -> Desk:
    """A desk whose requests are put to this group."""
    how = {"asking": Asking(group=group, **asking)} if group or asking else {}
    specs = {one.name: one for one in (tools or (spec(), spec("read", "read"), spec("send", "keyed")))}
    return Desk(
        people.model_copy(update=how),
        approvals or Approvals(),
        workflow_id=run[0],
        origin=run[1],
        specs=specs,
    )


def again(old: Desk) -> Desk:
    """The desk of the next run of the chain."""
    workflow_id, origin = old.run
    return Desk.load(
        old.dump(), old.people, old.approvals, workflow_id=workflow_id, origin=origin, specs=old.specs
    )


def ask(at: Desk, place: str = "act#1:1", *, now: float = 0, **arguments: Any) -> Request:
    """Ask whether `pay` may be called."""
    run = call(**(arguments or {"amount": 5}))
    return at.ask(
        "approval", place, now=now, asking=at.asks(run, spent_usd=0), text="May it pay?", options=APPROVAL,
        machine="react", state="act", step=1, tool="pay", arguments=run.arguments,
    )  # fmt: skip


def ask_of(at: Desk, kind: Any, *options: str, now: float = 0, **matter: Any) -> Request:
    """Ask something that is no approval."""
    place = matter.pop("place", "act#1")
    return at.ask(
        kind,
        place,
        now=now,
        text="What now?",
        options=options,
        machine="react",
        state="act",
        step=1,
        **matter,
    )


def say(about: Request, verb: Any = "approve", by: str = "ann", **what: Any) -> Decision:
    """A decision on what is asked, or as `what` says instead."""
    values = {"request": about.id, "digest": about.digest, "decision": verb, "by": by, **what}
    return Decision.model_validate(values)


def signed(message: Decision, key: str = "", run: str = RUN) -> Decision:
    """Signed with the key of whom it names, or of another."""
    message = message.model_copy(update={"id": message.id or content_of(message)})
    content = signed_content(run, message)
    return message.model_copy(update={"signature": sign(KEYS[key or message.by], content)})


def ordered(message: Command, key: str = "", run: str = RUN, origin: str = ORIGIN) -> Command:
    """A signed command."""
    content = signed_content(run, message, origin)
    return message.model_copy(update={"signature": sign(KEYS[key or message.by], content)})


def events(at: Desk) -> list[str]:
    """What was told, in order."""
    return [one.event for one in at.told]
