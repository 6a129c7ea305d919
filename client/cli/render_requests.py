"""How requests, and what people decide about them, look on a terminal; see `render.py`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from client.cli.output import note
from client.cli.render import listing, notes, pairs
from client.runs.requests import DECISIONS, AnyRequest, request_reason
from client.runs.words import (
    indented,
    json_line,
    one_line,
    plain,
    pretty_json,
    request_line,
    time_left,
    time_span,
)
from workflows.people import CommandDone, Decided, Kind, Request, Verb

if TYPE_CHECKING:
    from client.history.fork import PastCall
    from client.runs.listing import RunLine
    from client.sdk.sending import SentSignal
    from workflows.api import AgentTask

__all__ = [
    "choices",
    "decision_commands",
    "is_cut",
    "keys_of",
    "next_step",
    "note_effects",
    "request_block",
    "run_block",
]

REQUEST_LINES = 60
_OF_A_KIND: dict[tuple[Kind, Verb], str] = {
    ("approval", "approve"): "approve: the tool is called",
    ("approval", "reject"): "reject: the tool is not called, and the model is told why",
    ("outcome", "answer"): "it took effect: say what the call returned",
    ("outcome", "retry"): "it did not take effect: make the call again",
    ("question", "abort"): "abort: the machine that asks is told to stop",
    ("stuck", "finish"): "finish: the run ends as stuck",
    ("escalation", "abort"): "abort: the machine that asks is told to stop",
}
"""Where a decision does something special for one kind of request."""
KEYS: Sequence[tuple[str, Sequence[Verb]]] = (
    ("y", ("approve", "resume", "topup", "retry")), ("n", ("reject", "finish")), ("a", ("answer",)),
)  # fmt: skip
"""Keys at a question on the terminal. A key means the first of its decisions that the request allows."""
OUTCOME_KEYS: Sequence[tuple[str, Sequence[Verb]]] = (("y", ("answer",)), ("r", ("retry",)))
"""Did the call take effect? No `n`: of an approval it means that nothing is called."""
_PLACEHOLDERS: dict[Verb, str] = {"answer": " <text>", "reject": " -m <why>", "edit": " [--args JSON]"}
"""What a person fills in; a shell refuses to take `<text>` for an answer."""


def run_block(line: RunLine, children: Iterable[str], now: datetime, *, paused: bool) -> Table:
    """Whose requests follow: the run, its agent and goal, since when it waits, and its child runs."""
    since = f" for {time_span((now - line.waiting_since).total_seconds())}" if line.waiting_since else ""
    waits = f"waits for people{since}" if line.waiting else "waits for nobody"
    if line.waiting == "paused":
        waits = f"paused{since}; `ratchet resume {line.id}`"
    elif paused:  # without --pause, `resume` might answer a request
        waits += f", and is paused; `ratchet resume {line.id} --pause`"
    rows = [("run", f"{line.id}, {waits}"), ("agent", f"{line.agent} (machine {line.machine})")]
    rows += [("goal", line.goal)] if line.goal else []
    rows += [("child run", f"{child}; `ratchet inbox {child}` shows what it asks") for child in children]
    return pairs(rows)


def request_block(
    request: AnyRequest, run_id: str, *, full: bool = False, task: AgentTask | None = None
) -> Text:
    """A request as a person must see it before deciding: what, why, which arguments, until when, who.

    Long texts and arguments are cut, and say so, unless `full`. With the `task` the rule is shown in full.
    """
    lines = None if full else REQUEST_LINES
    block = Text()
    block.append(f"{request.id} {request.kind}", style="bold yellow")
    block.append(f"   run {plain(run_id)}", style="dim")
    if isinstance(request, Request):
        block.append(f" · {request.machine}: {request.state}, step {request.step}", style="dim")
    repeats_arguments = request.kind == "approval" and request.arguments is not None
    if request.text and not repeats_arguments:
        block.append(f"\n{indented(request.text, lines)}")
    if request.tool is not None:
        block.append(f"\n  {plain(request.tool)}", style="bold")
    if request.arguments is not None and request.kind != "limit":  # a limit's are in its text
        block.append(f"\n{indented(pretty_json(request.arguments), lines)}")
    elif request.tool is not None and not isinstance(request, Request):
        block.append("\n  (the arguments are too long to be read without a worker)", style="dim")
    why = request_reason(request, task)
    facts = [f"because of {why}" if request.kind == "approval" else f"because {why}"] if why else []
    held = [f"the run holds {'; '.join(request.holds)}"] if request.holds else []
    for line in (*facts, *held, *_terms(request), f"digest {request.digest}"):
        block.append(f"\n  {plain(line)}", style="dim")
    return block


def is_cut(request: AnyRequest) -> bool:
    """`request_block` shows only a part of what is asked."""
    if request.tool is not None and request.arguments is None:
        return True
    texts = (request.text, pretty_json(request.arguments or {}))
    return any(indented(text, REQUEST_LINES) != indented(text) for text in texts)


def _terms(request: AnyRequest) -> list[str]:
    """Deadline, who may decide, and who has."""
    lines: list[str] = []
    if request.deadline is not None:
        after = f" (then: {request.at_deadline})" if isinstance(request, Request) else ""
        lines.append(f"deadline {time_left(request.deadline, time.time())}{after}")
    if not isinstance(request, Request):
        return lines
    who = ", ".join(request.approvers) or (f"anybody of {request.group}" if request.group else "")
    if who or request.quorum > 1 or request.signed:
        signed = ", signed" if request.signed else ""
        lines.append(f"to be decided by {request.quorum} of {who or 'anybody'}{signed}")
    return [*lines, *(f"{vote.by or 'somebody'}: {vote.verb} {vote.text}".rstrip() for vote in request.votes)]


def keys_of(request: Request) -> dict[str, Verb]:
    """The keys at a question on the terminal: yes, no, and an answer. Other decisions have commands alone."""
    keys = OUTCOME_KEYS if request.kind == "outcome" else KEYS
    found = {key: next((verb for verb in verbs if verb in request.options), None) for key, verbs in keys}
    return {key: verb for key, verb in found.items() if verb is not None}


def choices(request: Request) -> list[str]:
    """What the keys at a question do; one on a line."""
    texts = {
        key: _OF_A_KIND.get((request.kind, verb), DECISIONS[verb]) for key, verb in keys_of(request).items()
    }
    return [f"  {key}  {text}" for key, text in texts.items()]


def decision_commands(request: AnyRequest, run_id: str, without: Sequence[Verb] = ()) -> list[str]:
    """The commands that decide a request, but for some decisions."""
    counter = (request.arguments or {}).get("counter", "COUNTER") if request.kind == "limit" else "COUNTER"
    after = {**_PLACEHOLDERS, "topup": f" {counter}=MORE"}
    return [
        plain(shlex.join(["ratchet", verb, run_id, request.id, "--digest", request.digest[:8]]))
        + after.get(verb, "")
        for verb in request.options
        if verb not in without
    ]


def note_effects(calls: Sequence[PastCall], since: str, what_follows: str) -> None:
    """Print calls that changed something outside, and which of them can be undone."""
    if not calls:
        note(f"nothing was changed outside since {since} began")
        return
    rows = []
    for call in calls:
        undone = call.undone if call.undone is not None else "yes" if call.undoable else "NO"
        if call.run:
            undone = f"{call.undone or 'not from here'}: run {call.run} made it"
        returned = call.error or one_line(call.output, 200)
        rows.append((str(call.step), call.tool, one_line(json_line(call.arguments), 500), undone, returned))
    note(f"done since {since} began{what_follows}:")
    columns = ("step", "tool", "arguments", "can be undone", "returned")
    notes().print(listing(columns, rows, overflow="fold"))


# -- what a decision or a command did --------------------


def next_step(
    done: Decided | CommandDone | SentSignal,
    run_id: str,
    others: Sequence[AnyRequest] = (),
    *,
    paused: bool = False,
) -> str:
    """What the person may do next, on one line; `others` are requests that are still open."""
    if not isinstance(done, Decided | CommandDone):
        return f"`ratchet log {run_id}` shows what became of it"
    if isinstance(done, Decided) and done.outcome == "open":
        return f"`ratchet inbox {run_id}` shows who has decided so far, and who may"
    if "abort" in (done.command if isinstance(done, CommandDone) else done.outcome):
        return f"`ratchet result {run_id}` shows what came of it"
    if others:
        return f"run {run_id} also asks {'; '.join(map(request_line, others))}: `ratchet inbox {run_id}`"
    if paused or (isinstance(done, CommandDone) and done.paused):
        return f"it is paused; `ratchet resume {run_id}` lets it go on"
    return f"`ratchet watch {run_id}` follows it"
