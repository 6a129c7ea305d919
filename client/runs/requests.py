"""Requests, decisions and commands in words, the same on terminal and console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client.runs.listing import RequestSummary
from client.runs.words import indented, json_line, plain, pretty_json
from workflows.people import (
    DEFAULT_EFFECT_MODES,
    Approvals,
    CommandDone,
    Decided,
    Decision,
    Kind,
    Request,
    StandingApproval,
    Verb,
)

if TYPE_CHECKING:
    from client.sdk.sending import SentSignal
    from workflows.api import AgentTask

__all__ = ["DECISIONS", "AnyRequest", "bound_lines", "command_text", "decision_text", "request_reason"]

AnyRequest = Request | RequestSummary
DECISIONS: dict[Verb, str] = {
    "approve": "approve",
    "reject": "reject, and say why",
    "edit": "edit the arguments, then the tool is called",
    "answer": "write an answer",
    "resume": "resume: go on",
    "retry": "retry: make the call again",
    "topup": "more: top it up",
    "finish": "finish now, as the limit would end the run",
    "abort": "abort: end the run",
}
"""What each decision does."""
_REASONS: dict[Kind, str] = {
    "question": "the machine asks it",
    "escalation": "the machine hands it to people",
    "interrupt": "people.interrupt_every or people.interrupt_states of the agent",
    "limit": "people.on_limit of the agent is `ask`",
    "outcome": "a call was interrupted, and its tool cannot tell whether it took effect",
    "trouble": "people.on_trouble of the agent is `ask`",
    "stuck": "the agent's `stuck`; the model was told first",
}


def request_reason(request: AnyRequest, task: AgentTask | None = None) -> str:
    """Why a run asks: the entry of the agent's approvals, in full if the task is known, or the event."""
    if request.kind != "approval":
        return _REASONS[request.kind]
    if not isinstance(request, Request):
        return request.because
    if not (rule := request.rule):
        return ""
    default = next((mode for effect, mode in DEFAULT_EFFECT_MODES.items() if rule == f"effects.{effect}"), "")
    entry = f"approvals.{rule}" + (f" (by default `{default}`)" if default else " of the agent")
    bound = f"; {request.bound.passed_text}" if request.bound else ""
    says = "" if task is None else _entry(task.approvals, rule)
    return f"{entry}{bound}" if says in {"", default} else f"{entry}: {says}{bound}"


def bound_lines(approvals: Approvals) -> list[str]:
    """What each rule with bounds lets pass unasked, and what follows."""
    lines = []
    for number, rule in enumerate(approvals.rules):
        if rule.at_most is not None:
            then = "people are asked" if rule.then == "always" else "calls are not made"
            lines.append(f"rules.{number} allows at most {rule.at_most.text} unasked in a run, then {then}")
    return lines


def _entry(approvals: Approvals, rule: str) -> str:
    """What the agent file says there."""
    section, _, name = rule.partition(".")
    if section == "rules":
        found = approvals.rules[int(name)]
        fields = found.model_dump(mode="json", exclude_defaults=True, exclude={"request"})
        return json_line({**fields, "ask": found.ask})
    if section == "tools":
        return approvals.tools[name]
    modes = {**DEFAULT_EFFECT_MODES, **approvals.effects}
    return next((mode for effect, mode in modes.items() if effect == name), "")


def decision_text(done: Decided | SentSignal, request: AnyRequest, decision: Decision | None = None) -> str:
    """The state of a request after a decision, and below it what the decision changed."""
    lines = [_decided_line(done, request)]
    if decision and decision.arguments is not None:
        lines += [f"  {request.tool or request.id} is called with", indented(pretty_json(decision.arguments))]
    if decision:
        lines += [f"  {name}: {_raised(request, name, more)}" for name, more in decision.amounts.items()]
    if decision and decision.standing_approval is not None:
        covered = _standing(request, decision.standing_approval)
        lines.append(f"  for the rest of this run it also approves {covered}")
    return plain("\n".join(lines))


def _decided_line(done: Decided | SentSignal, request: AnyRequest) -> str:
    if not isinstance(done, Decided):
        return f"{request.id}: {done.text}"
    if done.outcome == "open":
        return f"{request.id}: {done.votes} of {done.needed} have decided so; it stays open until the rest do"
    who, how = ", ".join(done.by) or "somebody", "verified" if done.verified else "claimed"
    text = f": {done.text}" if done.text else ""
    return f"{request.id} {done.outcome.replace('_', ' ')} by {who} ({how}){text}"


def _standing(request: AnyRequest, approval: StandingApproval) -> str:
    """Which later calls a standing approval covers."""
    calls = f"calls of {request.tool or 'this tool'}"
    if approval.same:
        return f"{calls} with the same arguments"
    if not approval.arguments:
        return f"{calls} with any arguments"
    return (
        f"{calls} where {' and '.join(f'{name}: {json_line(s)}' for name, s in approval.arguments.items())}"
    )


def _raised(request: AnyRequest, counter: str, more: float) -> str:
    """A limit after and before a top-up."""
    cap = (request.arguments or {}).get("cap")
    if not isinstance(cap, int | float):
        return f"{more:g} more"
    return f"at most {cap + more:g} now, {cap:g} before"


def command_text(done: CommandDone | SentSignal) -> str:
    """What a command did, in a few lines."""
    undone = done.undone if isinstance(done, CommandDone) else ()
    return plain("\n".join([done.text, *(f"  {what}" for what in undone)]))
