"""People, tools and requests for the tests of the gate."""

from __future__ import annotations

import base64
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from activities.contracts import JsonObject, ToolCall, ToolEffect, ToolSpec
from workflows.gate.approvals import ApprovalPolicy
from workflows.gate.decisions import content_digest, sign, signed_content
from workflows.gate.requests import RequestPlace, Requests
from workflows.gate.texts import Topic, approval
from workflows.people import Approvals, Command, Decision, Group, People, Request, RequestSettings

RUN, ORIGIN = "run-1", "00000000-aaaa"
PAY: JsonObject = {
    "type": "object",
    "properties": {"amount": {"type": "number", "minimum": 0}, "to": {"type": "string"}},
    "required": ["amount"],
}
KEYS = {name: Ed25519PrivateKey.from_private_bytes(name[:1].encode() * 32) for name in ("ann", "bob", "eve")}


def public(name: str) -> str:
    """A person's public key, as a group lists it."""
    return base64.b64encode(KEYS[name].public_key().public_bytes_raw()).decode()


PEOPLE = People(
    groups={
        "team": Group(members=("ann", "bob")),
        "two": Group(members=("ann", "bob", "cy"), quorum=2),
        "signed": Group(keys={"ann": public("ann"), "bob": public("bob")}),
        "signed_two": Group(keys={"ann": public("ann"), "bob": public("bob")}, quorum=2),
        "boss": Group(members=("eve",)),
    }
)


def spec(name: str = "pay", effect: ToolEffect = "unsafe", parameters: JsonObject | None = None) -> ToolSpec:
    """A tool; `pay` takes an amount and, if wanted, a receiver."""
    return ToolSpec(name=name, description="", parameters=parameters or PAY, effect=effect)


def call(tool: str = "pay", **arguments: Any) -> ToolCall:
    """A call of a tool."""
    return ToolCall(id="c1", tool=tool, arguments=arguments)


def policy(approvals: Any = None, people: People = PEOPLE, **settings: Any) -> ApprovalPolicy:
    """Approvals as the agent file has them, for the tools `pay` (unsafe), `read` and `send` (keyed)."""
    if settings:
        people = people.model_copy(update={"requests": RequestSettings(**settings)})
    specs = {one.name: one for one in (spec(), spec("read", "read"), spec("send", "keyed"))}
    return ApprovalPolicy(Approvals.model_validate(approvals or {}), people, specs)


def requests(group: str | None = None, approvals: Any = None, **settings: Any) -> Requests:
    """The requests of a run whose settings name this group."""
    return Requests(policy(approvals, group=group, **settings), workflow_id=RUN, origin=ORIGIN)


def carried(old: Requests) -> Requests:
    """The requests of the next execution."""
    return Requests.load(old.dump(), old.policy, workflow_id=RUN, origin=ORIGIN)


def ask(at: Requests, activity: str = "act#1:1", *, now: float = 0, **arguments: Any) -> Request:
    """Ask whether `pay` may be called."""
    run = call(**(arguments or {"amount": 5}))
    required = at.approval_for(run, spent_usd=0)[0]
    assert required is not None
    return at.open(approval(run), request_place(activity), now=now, required=required)


def ask_topic(at: Requests, topic: Topic, activity: str = "act#1", *, now: float = 0) -> Request:
    """Ask something that is not an approval."""
    return at.open(topic, request_place(activity), now=now)


def request_place(activity: str, step: int = 1) -> RequestPlace:
    """Where the run is."""
    return RequestPlace(machine="react", state="act", step=step, activity_id=activity)


def say(about: Request, verb: Any = "approve", by: str = "ann", **fields: Any) -> Decision:
    """A decision on the request as it is now."""
    values = {"request": about.id, "digest": about.digest, "decision": verb, "by": by, **fields}
    return Decision.model_validate(values)


def signed(decision: Decision, key: str = "", run: str = RUN) -> Decision:
    """The decision with an id, signed with the sender's key or another."""
    decision = decision.model_copy(update={"id": decision.id or content_digest(decision)})
    signature = sign(KEYS[key or decision.by], signed_content(run, decision))
    return decision.model_copy(update={"signature": signature})


def signed_command(command: Command, key: str = "", run: str = RUN, origin: str = ORIGIN) -> Command:
    """The command, signed with the sender's key or another."""
    signature = sign(KEYS[key or command.by], signed_content(run, command, origin))
    return command.model_copy(update={"signature": signature})


def events(at: Requests) -> list[str]:
    """Names of the events since the last look."""
    return [event.event for event in at.take_events()]
