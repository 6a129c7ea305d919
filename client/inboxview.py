"""How requests, decisions and commands look on a terminal, and the commands that answer them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from activities.contracts import JsonObject
from client.inbox import Ask, InboxLine
from client.listing import RunLine
from client.sending import Sent
from client.view import pairs, plain
from workflows.api import AgentTask
from workflows.people import (
    EFFECTS_ASKED,
    Approvals,
    CommandDone,
    Condition,
    Decided,
    Decision,
    DoneCall,
    Kind,
    Remember,
    Request,
    Verb,
)

__all__ = [
    "VERBS", "answers", "decided_text", "done_text", "effects_table", "inbox_table", "next_after",
    "next_decided", "request_block", "run_head", "span", "summary", "until", "why",
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
WIDE = 120
"""Columns from which on a list says when a deadline is; narrower ones say how long it is until then."""
_AFTER: dict[Verb, str] = {"answer": " <text>", "reject": " -m <why>", "edit": " [--args JSON]"}
"""Pasted as it stands, none of them is taken for what a person says: a shell refuses `<text>` at the end."""
_WHY: dict[Kind, str] = {
    "question": "the machine asks this and waits for what people say",
    "escalation": "the machine gives this up to people",
    "interrupt": "the agent's people.interrupt_every or people.interrupt_states says so",
    "limit": "the agent's people.on_limit is `ask`",
    "outcome": "nobody knows what became of the call, and its tool cannot tell",
    "trouble": "the agent's people.on_trouble is `ask`",
}
"""What brings a run to ask, apart from approvals: those name their rule."""
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def run_head(line: RunLine, children: Iterable[str], now: datetime, *, paused: bool = False) -> Table:
    """Whose requests these are: the run, its agent and goal, since when it waits, and what runs inside it."""
    since = f" for {span((now - line.waiting_since).total_seconds())}" if line.waiting_since else ""
    waits = f"waits for people{since}" if line.waiting else "waits for nobody"
    if line.waiting == "paused":
        waits = f"stands paused{since}; `ratchet resume {line.id}`"
    elif paused:  # without --pause it might answer what the run asks
        waits += f" and stands paused; `ratchet resume {line.id} --pause`"
    rows = [
        ("run", f"{line.id}, {waits}"),
        ("agent", f"{line.agent} (machine {line.machine})"),
        ("goal", line.goal),
        *(
            ("child run", f"{child} is under way; `ratchet inbox {child}` shows what it asks")
            for child in children
        ),
    ]
    return pairs((name, text) for name, text in rows if text)


def why(request: Request | Ask, task: AgentTask | None = None) -> str:
    """Which rule of the policy asks, in full where the run's task is at hand, or what happened; empty: not
    known."""
    if request.kind != "approval":
        return _WHY[request.kind]
    because = request.because if isinstance(request, Request) else ""
    if task is None or not because:
        return f"the agent's approvals.{because}" if because else ""
    return f"the agent's approvals.{because}: {_entry(task.approvals, because)}"


def _entry(approvals: Approvals, because: str) -> str:
    """What stands there in the agent file."""
    section, _, name = because.partition(".")
    if section == "rules":
        rule = approvals.rules[int(name)]
        said = rule.model_dump(mode="json", exclude_defaults=True, exclude={"asking"})
        return json.dumps({**said, "ask": rule.ask}, ensure_ascii=False)
    if section == "tools":
        return approvals.tools[name]
    return next(mode for effect, mode in {**EFFECTS_ASKED, **approvals.effects}.items() if effect == name)


def request_block(
    request: Request | Ask, run_id: str, now: float, *, full: bool = False, task: AgentTask | None = None
) -> Text:
    """A request as a person must see it before they decide: what, why, with which arguments, by when, who.

    Very long texts and arguments are cut, aloud, unless `full`. The `task` tells more of why.
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
    if request.arguments is not None and request.kind != "limit":  # there they are in the text
        block.append(f"\n{_indented(_pretty(request.arguments), most)}")
    elif isinstance(request, Ask) and request.tool is not None:
        block.append(
            "\n  (the arguments are too long to be read without a worker and its store)", style="dim"
        )
    because = "because of" if request.kind == "approval" else "because"
    asked_by = [f"asked {because} {why_}"] if (why_ := why(request, task)) else []
    for line in (*asked_by, *_terms(request, now), f"digest {request.digest}"):
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
    counter = (request.arguments or {}).get("counter", "COUNTER") if request.kind == "limit" else "COUNTER"
    after = {**_AFTER, "topup": f" {counter}=MORE"}
    return [
        shlex.join(["ratchet", verb, run_id, request.id, "--digest", request.digest[:8]])
        + after.get(verb, "")
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
    wide = width >= WIDE
    rows = [row for line in lines for row in _rows(line, now, wide)]
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


def _rows(line: InboxLine, now: datetime, wide: bool) -> list[tuple[str, str, str, str]]:
    run = plain(line.run)
    waits = span((now - line.since).total_seconds()) if line.since else ""

    def due(at: float | None) -> str:
        said = "" if at is None else until(at, now.timestamp())
        return said if wide else said.rpartition(", ")[2]

    deadline = due(line.deadline.timestamp() if line.deadline else None)
    if not line.asks:
        return [(run, waits, deadline, plain(f"{line.waiting}   {line.goal}"))]
    first, *others = line.asks
    rows = [(run, waits, deadline, summary(first, 500))]
    for ask in others:
        rows.append(("", "", due(ask.deadline), summary(ask, 500)))
    return rows


def effects_table(calls: Iterable[DoneCall]) -> Table:
    """Calls that changed something outside: which may be undone, and which may not."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("step", "tool", "arguments", "can be undone", "came back"):
        table.add_column(name, overflow="fold")
    for call in calls:
        undone = _undone(call.undone) if call.undone is not None else "yes" if call.undoable else "NO"
        given = json.dumps(call.arguments, ensure_ascii=False)
        row = (str(call.step), call.tool, given[:500], undone, call.error or call.output[:200])
        table.add_row(*(Text(plain(cell)) for cell in row))
    return table


def decided_text(done: Decided | Sent, request: Request | Ask, decision: Decision | None = None) -> str:
    """What has become of a request, in a line; with the decision, below it what that has changed."""
    lines = [_become(done, request)]
    if decision is not None and decision.arguments is not None:
        lines += [
            f"  {request.tool or request.id} is to be called with",
            _indented(_pretty(decision.arguments), None),
        ]
    if decision is not None and decision.amounts:
        lines += [f"  {name}: {_raised(request, name, more)}" for name, more in decision.amounts.items()]
    if decision is not None and decision.remember is not None:
        lines.append(f"  for the rest of this run it approves {_remembered(request, decision.remember)}, too")
    return plain("\n".join(lines))


def _become(done: Decided | Sent, request: Request | Ask) -> str:
    if isinstance(done, Sent):
        return f"{request.id}: {done.text}"
    if done.outcome == "open":
        return f"{request.id}: {done.votes} of {done.needed} have decided so; it stays open until the rest do"
    who = ", ".join(done.by) or "somebody"
    sure = "verified" if done.verified else "claimed"
    said = f": {done.text}" if done.text else ""
    return f"{request.id} {done.outcome.replace('_', ' ')} by {who} ({sure}){said}"


def _remembered(request: Request | Ask, memory: Remember) -> str:
    """Which later calls an approval is for."""
    calls = f"calls of {request.tool or 'this tool'}"
    if memory.same:
        return f"{calls} with the same arguments"
    if not memory.arguments:
        return f"{calls} whatever their arguments"
    fitting = [f"{name} {_condition(said)}" for name, said in memory.arguments.items()]
    return f"{calls} where {' and '.join(fitting)}"


def _condition(condition: Condition) -> str:
    said = condition.model_dump(mode="json", exclude_defaults=True)
    if list(said) == ["equals"]:
        return f"is {json.dumps(said['equals'], ensure_ascii=False)}"
    return f"fits {json.dumps(said, ensure_ascii=False)}"


def _raised(request: Request | Ask, counter: str, more: float) -> str:
    """A limit before and after, and what had been spent when it was reached."""
    cap = (request.arguments or {}).get("cap")
    if not isinstance(cap, int | float):
        return f"{more:g} more"
    spent = re.search(rf"{re.escape(counter)}: (\S+) of \S+ spent", request.text)
    used = f"; {spent[1]} spent" if spent else ""
    return f"at most {cap + more:g} now, {cap:g} before{used}"


def done_text(done: CommandDone | Sent) -> str:
    """What a command did, in a few lines."""
    if isinstance(done, Sent):
        return plain(done.text)
    return plain("\n".join([done.text, *(f"  {_undone(what)}" for what in done.undone)]))


def _undone(said: str) -> str:
    """What became of an undoing, which begins `undone: ` or `not undone: ` by itself."""
    return "undone" if said == "undone: undone" else said


def next_decided(
    done: Decided | Sent, run_id: str, others: Sequence[Request | Ask], *, paused: bool = False
) -> str:
    """What the person may want to do when a request is decided, in a line."""
    if isinstance(done, Sent):
        return next_after(done, run_id)
    if done.outcome == "open":
        return f"`ratchet inbox {run_id}` shows who has decided so far, and who may"
    if done.outcome == "aborted":
        return f"`ratchet result {run_id}` shows what came of it"
    if others:
        return (
            f"run {run_id} still asks {'; '.join(summary(one) for one in others)}: `ratchet inbox {run_id}`"
        )
    if paused:
        return f"it is paused; `ratchet resume {run_id}` lets it go on"
    return f"`ratchet watch {run_id}` follows it"


def next_after(done: CommandDone | Sent, run_id: str) -> str:
    """What the person may want to do when a command is obeyed, in a line."""
    if isinstance(done, Sent):
        return f"`ratchet log {run_id}` shows what became of it; `ratchet dev` starts a worker"
    if done.paused:
        return f"it is paused; `ratchet resume {run_id}` lets it go on"
    if done.command == "abort":
        return f"`ratchet result {run_id}` shows what came of it"
    return f"`ratchet watch {run_id}` follows it"


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
