"""What people and models read about requests: the question of each kind, and what its outcome means. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import groupby

from activities.contracts import (
    AskPerson,
    EffectFailed,
    Frozen,
    JsonObject,
    LabelSource,
    ToolCall,
    ToolError,
    ToolResult,
)
from workflows.gate.approvals import agreeing_votes
from workflows.people import Bound, Kind, Request, Verb

__all__ = [
    "Topic",
    "abort_reason",
    "approval",
    "beyond_bound",
    "decided_by",
    "decision_text",
    "edit_note",
    "expiry",
    "interrupt",
    "limit",
    "outcome_text",
    "outcome_unknown",
    "question",
    "rejection",
    "result_without_call",
    "rule_rejection",
    "stuck",
    "stuck_warning",
    "trouble",
    "unattended_text",
    "utc_text",
    "within_bound",
]

MAX_SHOWN_CHARS = 2000
"""Characters of arguments, messages and comments in a text."""


class Topic(Frozen):
    """What a request asks, and which decisions answer it."""

    kind: Kind
    text: str
    options: tuple[Verb, ...]
    tool: str | None = None
    arguments: JsonObject | None = None

    @property
    def bound_to(self) -> JsonObject | None:
        """What a decision is bound to besides place and tool: a call's arguments, the words of a machine's
        own question."""
        if self.kind not in ("question", "escalation"):
            return self.arguments
        return {"text": self.text, "options": list(self.options)}


# -- one question per kind --------------------


def approval(run: ToolCall, bound: Bound | None = None) -> Topic:
    """May this tool be called? `bound`: the one that it would pass."""
    because = f" Asked because {bound.passed_text}." if bound else ""
    return Topic(
        kind="approval",
        text=f"May the agent call {run.tool} with {_arguments_text(run.arguments)}?{because}",
        options=("approve", "reject", "edit", "abort"),
        tool=run.tool,
        arguments=run.arguments,
    )


def question(effect: AskPerson) -> Topic:
    """A machine's own question."""
    return Topic(kind=effect.about, text=effect.text, options=effect.options)


def interrupt(state: str, step: int, last_event: str = "") -> Topic:
    """Continue? `last_event` is the reason of the newest transition."""
    before = f" Before this: {_cut(last_event)}" if last_event else ""
    text = f"Paused before {state} (step {step}). Continue?{before}"
    return Topic(kind="interrupt", text=text, options=("resume", "abort"))


def limit(counter: str, spent: float, cap: float) -> Topic:
    """More, or the end?"""
    return Topic(
        kind="limit",
        text=(
            f"The run has reached its limit: {counter} {_number(spent)} of {_number(cap)}. "
            "Top up by an amount, finish now as the limit would end the run, or abort?"
        ),
        options=("topup", "finish", "abort"),
        arguments={"counter": counter, "cap": cap},
    )


def outcome_unknown(run: ToolCall, why: str, until: float | None = None) -> Topic:
    """Did the call take effect? `until` then, in seconds since 1970, its lost worker may still make it."""
    look, again = "Look it up.", "now"
    if until is not None:
        at = utc_text(until)
        look = f"Its worker was lost, and may still make it until {at}: look it up after that."
        again = f"at {at}, not before"
    return Topic(
        kind="outcome",
        text=(
            f"Outcome unknown: {run.title} was interrupted, and may have taken effect or not. {look} "
            f"If it took effect, answer with its result. If it did not, retry: the call is made {again}. "
            f"Or abort.\n{_cut(why)}"
        ),
        options=("answer", "retry", "abort"),
        tool=run.tool,
        arguments=run.arguments,
    )


def utc_text(seconds: float) -> str:
    """A time as people read it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def trouble(failure: EffectFailed) -> Topic:
    """Can the cause be fixed?"""
    return Topic(
        kind="trouble",
        text=(
            f"The model call failed permanently: {failure.type}: {_cut(failure.message)}. "
            "Fix the cause and retry, or abort."
        ),
        options=("retry", "abort"),
    )


def stuck(problem: str) -> Topic:
    """Shall it go on?"""
    return Topic(
        kind="stuck",
        text=(
            f"The run is stuck: {problem}. The model was told, and did not find another way. "
            "Resume (a text goes to the model), finish the run now, or abort?"
        ),
        options=("resume", "finish", "abort"),
    )


def stuck_warning(problem: str) -> str:
    """The same for the model."""
    return (
        f"(From the system that runs you, not from a person:) You are going round in circles: {problem}. "
        "Do not do the same again. Try another way; if there is none, say what is missing and end."
    )


# -- what an outcome means --------------------


def decided_by(request: Request) -> str:
    """Who decided: `ann (claimed)`, `ann, bob (verified)`; `deadline` when nobody did."""
    vote = request.deciding_vote
    if vote is None:
        return "deadline"
    votes = agreeing_votes(request, vote)
    names = ", ".join(one.by or "somebody" for one in votes)
    return f"{names} ({'verified' if all(one.verified for one in votes) else 'claimed'})"


def outcome_text(request: Request) -> str:
    """How a decided request was closed, for the log; the record itself names one person, not several."""
    vote = request.deciding_vote
    is_one = vote is not None and len(agreeing_votes(request, vote)) == 1
    return _outcome(request, "" if is_one else decided_by(request))


def _outcome(request: Request, who: str) -> str:
    vote = request.deciding_vote
    change = comment = ""
    if vote is not None:
        change = f" to {_arguments_text(vote.arguments)}" if vote.arguments is not None else ""
        amounts = ", ".join(f"{name} {_number(amount)}" for name, amount in sorted(vote.amounts.items()))
        change = f" by {amounts}" if amounts else change
        comment = f": {vote.text}" if vote.text else ""
    about = f"{request.id} {request.kind} {request.tool or ''}".strip()
    return f"{about} {request.outcome.replace('_', ' ')}{change}{who and f', {who}'}{comment}"


def decision_text(request: Request) -> str:
    """How it was decided and what was asked, for a model. A JSON string: a model may have written that."""
    asked = json.dumps(_cut(request.text), ensure_ascii=False)
    return f"{_outcome(request, decided_by(request))} (asked: {asked})"


def abort_reason(request: Request) -> str:
    """Why the run ended."""
    return f"{decided_by(request)} aborted the run at request {request.id}{_comment(request)}"


def edit_note(run: ToolCall) -> str:
    """For the model: these are not the arguments that it gave."""
    called = f"{run.tool} {json.dumps(run.arguments, ensure_ascii=False)}"
    return f"A person changed the arguments of a call before it was made. What was called: {called}"


def rejection(request: Request) -> str:
    """For the model: a person rejected its call."""
    return f"A person rejected this call, and it was not made{_comment(request) or '.'}"


def expiry(request: Request) -> str:
    """Nobody decided."""
    return f"nobody decided on request {request.id} in time"


def rule_rejection(tool: str, rule: str, labels: Iterable[LabelSource]) -> str:
    """For the model: a rule rejects its call."""
    held = "; ".join(one.text for one in labels)
    text = f"The agent's approvals reject {tool} ({rule}): the call was not made, and nobody was asked."
    return f"{text} The run holds {held}." if held else text


def unattended_text(tool: str, bound: Bound | None) -> str:
    """For the model: its call needs a person, because it would pass a bound if there is one, and there is
    nobody."""
    why = f" ({bound.passed_text})" if bound else ""
    return f"{tool} needs a person's approval{why}, and this run is unattended: the call was not made."


def beyond_bound(tool: str, bound: Bound) -> str:
    """For the model: nobody is asked about its call."""
    return f"This call of {tool} was not made: {bound.passed_text}."


def within_bound(what: str, bounds: Iterable[Bound]) -> str:
    """`pay(cents=500) may pass unasked (rules.0: 1 of 5 calls)`, for the log."""
    rules = groupby(bounds, lambda one: one.rule)
    used = (f"{rule}: {', '.join(one.text for one in its)}" for rule, its in rules)
    return f"{what} ({'; '.join(used)})"


def result_without_call(run: ToolCall, error: ToolError, text: str) -> ToolResult:
    """The result of a call that was not made; `text` is for the model."""
    size = len(text.encode())
    return ToolResult(id=run.id, tool=run.tool, output=text, error=error, attempts=0, bytes=size)


def _comment(request: Request) -> str:
    text = request.deciding_vote.text if request.deciding_vote else ""
    return f": {_cut(text)}" if text else ""


def _arguments_text(arguments: JsonObject) -> str:
    return _cut(json.dumps(arguments, ensure_ascii=False, sort_keys=True))


def _number(amount: float) -> str:
    return f"{amount:.15g}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"
