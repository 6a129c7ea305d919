"""What is said to people and models about requests, in one place."""

from __future__ import annotations

import json

from activities.contracts import EffectFailed, ToolError, ToolResult, ToolRun
from workflows.gate.ticket import Told, agreeing
from workflows.people import Request

__all__ = [
    "aborted", "approval", "expired", "interrupt", "limit", "not_run", "outcome", "rejected", "told",
    "trouble", "unattended", "who",
]  # fmt: skip

SHOWN = 2000


def who(request: Request) -> str:
    """Who decided: `ann (claimed)`, `ann, bob (verified)`; `deadline` when nobody did."""
    vote = request.settled
    if vote is None:
        return "deadline"
    same = agreeing(request, vote)
    names = ", ".join(v.by or "somebody" for v in same)
    return f"{names} ({'verified' if all(v.verified for v in same) else 'claimed'})"


def told(one: Told) -> str:
    """What the log says of something that happened to a request."""
    request = one.request
    if one.event != "Decided" or request.settled is None:
        return f"{request.id} {request.kind}: {one.reason}"
    vote, what = request.settled, ""
    if vote.arguments is not None:
        what = f" to {json.dumps(vote.arguments, ensure_ascii=False)[:SHOWN]}"
    if vote.amounts:
        what = " by " + ", ".join(f"{name} {amount:g}" for name, amount in sorted(vote.amounts.items()))
    said = f": {vote.text}" if vote.text else ""
    about = f"{request.id} {request.kind} {request.tool or ''}".strip()
    outcome_ = request.outcome.replace("_", " ")
    return f"{about} {outcome_}{what} by {who(request)}{said}"


def approval(run: ToolRun) -> str:
    """May it be called?"""
    given = json.dumps(run.arguments, ensure_ascii=False, sort_keys=True)
    return f"May the agent call {run.tool} with {given[:SHOWN]}{'…' if len(given) > SHOWN else ''}?"


def interrupt(state: str, step: int, last: str) -> str:
    """Shall it go on? `last` is what was said before."""
    said = f" Before it: {last[:SHOWN]}" if last else ""
    return f"The run stands still before {state}, step {step}. Shall it go on?{said}"


def limit(breach: str) -> str:
    """More, or the end?"""
    return f"A limit is reached, {breach}. Top it up, by how much? Finish now as the limit says? Or abort?"


def outcome(run: ToolRun) -> str:
    """Did it happen?"""
    return (
        f"Nobody knows whether {run.title} took effect: its worker died or was stopped in the middle. "
        "Look what became of it. It happened: answer with its result. It did not: retry, and it is made now. "
        "Or abort."
    )


def trouble(failure: EffectFailed) -> str:
    """Mend it?"""
    return (
        f"The model refuses for good: {failure.type}: {failure.message[:SHOWN]}. Mend it and retry, or abort."
    )


def aborted(request: Request) -> str:
    """Why the run ended; a long comment is cut, and whole at the request."""
    said = request.settled.text[:SHOWN] if request.settled else ""
    return f"{who(request)} ended the run at request {request.id}{f': {said}' if said else ''}"


def rejected(request: Request) -> str:
    """What the model is told of a call that a person did not want."""
    said = request.settled.text if request.settled else ""
    return f"A person rejected this call, so it was not made{f': {said}' if said else '.'}"


def expired(request: Request) -> str:
    """Nobody decided."""
    return f"nobody decided on request {request.id} in time"


def not_run(run: ToolRun, error: ToolError, text: str) -> ToolResult:
    """The result of a call that was not made."""
    words = text if error == "rejected" else f"This call was not made: {text}."
    return ToolResult(
        id=run.id, tool=run.tool, output=words, error=error, attempts=0, bytes=len(words.encode())
    )


def unattended(run: ToolRun) -> ToolResult:
    """The result of a call that needs a person where nobody is there."""
    text = f"{run.tool} needs a person's approval, and the run is unattended: it was not called."
    return ToolResult(id=run.id, tool=run.tool, output=text, error="rejected", attempts=0)
