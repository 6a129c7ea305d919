"""How requests, decisions and commands look on a terminal, and the commands that answer them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from activities.contracts import JsonObject
from client.inbox import Ask, InboxLine
from client.sending import Sent
from client.view import plain
from workflows.people import CommandDone, Decided, DoneCall, Request, Verb

__all__ = [
    "VERBS", "answers", "decided_text", "done_text", "effects_table", "inbox_table", "request_block", "span",
    "summary", "until",
]  # fmt: skip

VERBS: dict[Verb, tuple[str, str]] = {
    "approve": ("a", "approve: let it be called"),
    "reject": ("r", "reject: the model is told so, and why"),
    "edit": ("e", "edit the arguments, then let it be called"),
    "answer": ("w", "write an answer"),
    "resume": ("g", "go on"),
    "retry": ("t", "try again"),
    "topup": ("m", "more: top up, such as `m model_calls=20`"),
    "finish": ("f", "finish now, as the limit would have it"),
    "abort": ("x", "end the run"),
}
"""What may be decided: the letter for it on a terminal, and what it means."""
MOST_LINES = 60
_AFTER: dict[Verb, str] = {"answer": " 'TEXT'", "topup": " COUNTER=MORE", "reject": " -m 'WHY'"}
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def request_block(request: Request | Ask, run_id: str, now: float, *, full: bool = False) -> Text:
    """A request as a person must see it before they decide: what, with which arguments, by when, who.

    Very long texts and arguments are cut, aloud, unless `full`.
    """
    most = None if full else MOST_LINES
    block = Text()
    block.append(f"{request.id} {request.kind}", style="bold yellow")
    block.append(f"   run {plain(run_id)}", style="dim")
    if isinstance(request, Request):
        block.append(f" · {request.machine}: {request.state}, step {request.step}", style="dim")
    said_below = request.kind == "approval" and request.arguments is not None
    block.append(f"\n{_indented(request.text, most)}" if request.text and not said_below else "")
    if request.tool is not None:
        block.append(f"\n  {plain(request.tool)}", style="bold")
    if request.arguments is not None:
        block.append(f"\n{_indented(_pretty(request.arguments), most)}")
    elif isinstance(request, Ask) and request.tool is not None:
        block.append(
            "\n  (the arguments are too long to be read without a worker and its store)", style="dim"
        )
    for line in (f"digest {request.digest}", *_terms(request, now)):
        block.append(f"\n  {plain(line)}", style="dim")
    return block


def _terms(request: Request | Ask, now: float) -> list[str]:
    """Deadline, who may decide, and who has."""
    lines: list[str] = []
    if request.deadline is not None:
        at = f" ({request.at_deadline})" if isinstance(request, Request) else ""
        lines.append(f"deadline {until(request.deadline, now)}{at}")
    if isinstance(request, Ask):
        return lines
    who = ", ".join(request.approvers) or (f"anybody of {request.group}" if request.group else "")
    if who or request.quorum > 1 or request.signed:
        signed = ", signed" if request.signed else ""
        lines.append(f"to be decided by {request.quorum} of {who or 'anybody'}{signed}")
    lines += [f"{vote.by or 'somebody'}: {vote.verb} {vote.text}".rstrip() for vote in request.votes]
    return lines


def answers(request: Request | Ask, run_id: str) -> list[str]:
    """The commands that decide a request."""
    return [
        shlex.join(["ratchet", verb, run_id, request.id, "--digest", request.digest[:8]])
        + _AFTER.get(verb, "")
        if verb != "abort"
        else shlex.join(["ratchet", verb, run_id])
        for verb in request.options
    ]


def summary(request: Request | Ask, most: int = 80) -> str:
    """A request in one line: `approval r1: refund(order=1)`."""
    given = ", ".join(
        f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in (request.arguments or {}).items()
    )
    said = f"{request.tool}({given})" if request.tool else request.text
    line = " ".join(f"{request.kind} {request.id}: {plain(said)}".split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def inbox_table(lines: Iterable[InboxLine], now: datetime, width: int = 200) -> Table:
    """Waiting runs, a line for each open request: only what is asked is cut."""
    rows = [row for line in lines for row in _rows(line, now)]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    names = ("run", "waits", "deadline", "for")
    taken = [max(len(row[i]) for row in [*rows, names]) + 2 for i in range(3)]
    for name in names:
        table.add_column(name, no_wrap=True)
    for *facts, asked in rows:
        text = Text(asked)
        text.truncate(max(width - sum(taken) - 2, 20), overflow="ellipsis")
        table.add_row(*map(Text, facts), text)
    return table


def _rows(line: InboxLine, now: datetime) -> list[tuple[str, str, str, str]]:
    run = plain(line.run)
    waits = span((now - line.since).total_seconds()) if line.since else ""
    deadline = until(line.deadline.timestamp(), now.timestamp()) if line.deadline else ""
    if not line.asks:
        return [(run, waits, deadline, plain(f"{line.waiting}   {line.goal}"))]
    first, *others = line.asks
    rows = [(run, waits, deadline, summary(first, 500))]
    for ask in others:
        due = until(ask.deadline, now.timestamp()) if ask.deadline is not None else ""
        rows.append(("", "", due, summary(ask, 500)))
    return rows


def effects_table(calls: Iterable[DoneCall]) -> Table:
    """Calls that changed something outside: which may be undone, and which may not."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("step", "tool", "arguments", "can be undone", "came back"):
        table.add_column(name, overflow="fold")
    for call in calls:
        undone = f"undone: {call.undone}" if call.undone is not None else "yes" if call.undoable else "NO"
        given = json.dumps(call.arguments, ensure_ascii=False)
        row = (str(call.step), call.tool, given[:500], undone, call.error or call.output[:200])
        table.add_row(*(Text(plain(cell)) for cell in row))
    return table


def decided_text(done: Decided | Sent, request: Request | Ask) -> str:
    """What has become of a request, in a line."""
    if isinstance(done, Sent):
        return plain(f"{request.id}: {done.text}")
    if done.outcome == "open":
        return f"{request.id}: {done.votes} of {done.needed} have decided so; it stays open until the rest do"
    who = ", ".join(done.by) or "somebody"
    sure = "verified" if done.verified else "claimed"
    said = f": {done.text}" if done.text else ""
    return plain(f"{request.id} {done.outcome.replace('_', ' ')} by {who} ({sure}){said}")


def done_text(done: CommandDone | Sent) -> str:
    """What a command did, in a few lines."""
    if isinstance(done, Sent):
        return plain(done.text)
    return plain("\n".join([done.text, *(f"  undone: {what}" for what in done.undone)]))


def until(at: float, now: float) -> str:
    """A deadline as the local time and the time that is left."""
    left = at - now
    clock = datetime.fromtimestamp(at, UTC).astimezone()
    return f"{clock:%Y-%m-%d %H:%M:%S}, {f'in {span(left)}' if left > 0 else 'now'}"


def span(seconds: float) -> str:
    """A length of time, roughly: `40 s`, `3 min`, `2 h`."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _pretty(arguments: JsonObject) -> str:
    return json.dumps(arguments, ensure_ascii=False, indent=2)


def _indented(text: str, most: int | None) -> str:
    """Every line behind two blanks."""
    lines = plain(text).strip().splitlines()
    kept: Sequence[str] = lines[:most]
    more = [f"… {len(lines) - len(kept)} more lines"] if len(kept) < len(lines) else []
    return "\n".join(f"  {line}" for line in [*kept, *more])
