"""What the queries answer: pages of log, steps and transcript, and the text for Temporal's UI. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from activities.contracts import Message
from workflows.api import (
    PAGE_BYTES,
    AgentStatus,
    EffectsQuery,
    LogPage,
    PageQuery,
    StepLine,
    StepsPage,
    TranscriptPage,
)
from workflows.kernel.log import Record
from workflows.people import EffectsPage, Request, RequestsPage

if TYPE_CHECKING:
    from workflows.loop import Loop

__all__ = [
    "details", "effects_page", "log_page", "requests_page", "steps_of", "steps_page", "transcript_page",
]  # fmt: skip

M = TypeVar("M", bound=BaseModel)
CLOSED = 5
"""Closed requests in the answer of `requests`."""
SHOWN_REQUESTS = 3
"""Requests in the text for Temporal's UI."""
ITEMS = 20
"""Items that are left of a long list or object in a page that is cut."""
FREE = {"arguments", "about"}
"""Fields of any JSON, in which a note on what is left out has room."""
CUT = 400
"""Characters that are left of a long text in a page that is cut."""


def _cut(value: Any, *, free: bool = False) -> Any:
    """The value with long texts and lists cut. Where it is `free` JSON, it says what is left out."""
    if isinstance(value, str):
        return value if len(value) <= CUT else f"{value[:CUT]} [... {len(value):,} characters]"
    more = len(value) - ITEMS if isinstance(value, dict | list | tuple) else 0
    if isinstance(value, dict):
        items = list(value.items())[:ITEMS]
        cut = {str(key)[:CUT]: _cut(item, free=free or key in FREE) for key, item in items}
        return {**cut, "...": f"{more} more; ask with `full`"} if free and more > 0 else cut
    if isinstance(value, list | tuple):
        kept = [_cut(item, free=free) for item in value[:ITEMS]]
        return [*kept, f"... {more} more; ask with `full`"] if free and more > 0 else kept
    return value


def _small(item: M) -> tuple[M, int]:
    """The item with its length; without its patch when that is still too much."""
    length = len(item.model_dump_json().encode())
    if length > PAGE_BYTES // 2 and isinstance(item, Record):
        names = {name: "too long for a page; ask with `full`" for name in item.patch}
        item = item.model_copy(update={"patch": names})
        length = len(item.model_dump_json().encode())
    return item, length


def _page(items: Sequence[M], query: PageQuery) -> tuple[tuple[M, ...], int]:
    """As many items from `since` on as fit; at least one. Returns them and where to go on."""
    page: list[M] = []
    size = 0
    for whole in items[query.since :]:
        item, length = whole, len(whole.model_dump_json().encode())
        if length > PAGE_BYTES // 2 and not query.full:
            item = type(item).model_validate(_cut(item.model_dump(mode="json")))
            item, length = _small(item)
        if page and size + length > PAGE_BYTES - 200:
            break
        page.append(item)
        size += length
    return tuple(page), query.since + len(page)


def log_page(records: Sequence[Record], query: PageQuery, finished: bool, first: int = 0) -> LogPage:
    """Records from sequence number `since` on; `first` is that of the first one here."""
    page, upto = _page(records, query.model_copy(update={"since": max(query.since - first, 0)}))
    return LogPage(
        records=page, next=first + upto, total=first + len(records), finished=finished, first=first
    )


def transcript_page(messages: Sequence[Message], query: PageQuery) -> TranscriptPage:
    """Messages from `since` on."""
    page, upto = _page(messages, query)
    return TranscriptPage(messages=page, next=upto, total=len(messages))


def steps_of(records: Sequence[Record]) -> tuple[StepLine, ...]:
    """The log by steps, one line each; the summary is what was said first in the step."""
    groups: dict[int, list[Record]] = {}
    for record in records:
        if record.step and not record.within:
            groups.setdefault(record.step, []).append(record)
    return tuple(_line(step, group) for step, group in sorted(groups.items()))


def _line(step: int, group: list[Record]) -> StepLine:
    moves = [record for record in group if record.to is not None] or group
    said = next((record.reason for record in moves if record.reason), "")
    return StepLine(
        step=step,
        states=tuple(record.state for record in moves),
        summary=said[:300],
        counters=group[-1].counters,
        started=group[0].started,
        finished=group[-1].finished,
    )


def steps_page(records: Sequence[Record], query: PageQuery) -> StepsPage:
    """Steps from index `since` on."""
    steps = steps_of(records)
    page, upto = _page(steps, query)
    return StepsPage(steps=page, next=upto, total=len(steps))


def requests_page(loop: Loop | None, query: PageQuery) -> RequestsPage:
    """Open requests from index `since` on; where none is left, the newest closed ones."""
    if loop is None:
        return RequestsPage(open=(), next=0, total=0)
    waiting = loop.desk.open
    page, upto = _page(waiting, query)
    closed: tuple[Request, ...] = ()
    if upto == len(waiting) and not page:
        newest = tuple(reversed(loop.desk.closed[-CLOSED:]))
        closed, _ = _page(newest, PageQuery(full=query.full))
    return RequestsPage(open=page, closed=closed, next=upto, total=len(waiting), paused=loop.paused)


def effects_page(loop: Loop | None, query: EffectsQuery) -> EffectsPage:
    """Calls with outside effects from index `since` on."""
    calls = loop.calls.since(query.step) if loop else ()
    page, upto = _page(calls, PageQuery(since=query.since))
    return EffectsPage(since_step=query.step, calls=page, next=upto, total=len(calls))


def details(status: AgentStatus, goal: str, records: Sequence[Record], asked: Sequence[Request] = ()) -> str:
    """What the agent is doing, in Markdown, for Temporal's UI: what it asks, then the newest transitions.

    Texts of models and tools are shown as code, so that they cannot draw links or pictures.
    """
    spent = ", ".join(f"{name} {amount:g}" for name, amount in sorted(status.counters.items()))
    shown, more = asked[:SHOWN_REQUESTS], len(asked) - SHOWN_REQUESTS
    now = f"Doing: {_code(status.doing)}" if status.doing else f"Ended: **{status.exit_reason}**"
    machine = f"{status.machine} {status.machine_version}"
    lines = [
        f"**{status.agent}** ({machine}), state {_code(status.state)}, step {status.step}",
        *([f"Inside: {_code(' / '.join(status.inside))}"] if status.inside else []),
        *(['**Paused.** Signal `command` with `{"command": "resume"}` goes on.'] if status.paused else []),
        *(_asked(request) for request in shown),
        *([f"{more} more requests are open: the query `requests` has them."] if more > 0 else []),
        _code(goal, 300),
        now,
        f"Spent: {spent or 'nothing yet'}",
        "\n".join(_told(record) for record in reversed(records[-10:]) if not _asks(record, shown)),
    ]
    return "\n\n".join(lines)


def _asks(record: Record, shown: Sequence[Request]) -> bool:
    """It says of a request that is shown that it is asked."""
    asked = record.about.get("request") if record.event == "Requested" else None
    return any(request.id == asked for request in shown)


def _asked(request: Request) -> str:
    """A request, and the JSON that answers it: to be pasted as the input of the signal `decide`."""
    told = request.arguments is None or request.kind == "approval"  # whose text has them
    given = "" if told else json.dumps(request.arguments, ensure_ascii=False)
    if request.signed:
        how = "Only signed decisions count: use `ratchet` with `--key`, or the SDK"
    else:
        how = (
            "To answer, send the update or the signal `decide` with this input; what is in capitals you fill "
            "in.\n\n"
            f"```json\n{json.dumps(_answer(request), ensure_ascii=False, indent=1)}\n```"
        )
    lines = [
        f"**Waits for a person: {request.kind} {request.id}**. {_code(request.text, 1000)}",
        f"Arguments: {_code(given, 1000)}" if given else "",
        f"Who may decide: {_code(_who(request), 500)}" if request.approvers or request.quorum > 1 else "",
        "" if request.deadline is None else f"Until {_utc(request.deadline)}; then: {request.at_deadline}",
        f"One of: {', '.join(request.options)}. {how}",
    ]
    return "\n\n".join(line for line in lines if line)


def _answer(request: Request) -> dict[str, Any]:
    """The decision of the request's first option, with all that it needs."""
    verb, about = request.options[0], request.arguments or {}
    answer = {"request": request.id, "digest": request.digest, "decision": verb, "by": "YOUR NAME"}
    if verb == "answer":
        return {**answer, "text": "YOUR ANSWER" if request.kind != "outcome" else "WHAT CAME OF IT"}
    if verb == "topup":
        return {**answer, "amounts": {about.get("counter", "model_calls"): about.get("cap") or 1}}
    return answer


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _who(request: Request) -> str:
    names = ", ".join(request.approvers) or "anybody"
    return f"{names}; {request.quorum} must agree" if request.quorum > 1 else names


def _code(text: str, most: int = 200) -> str:
    line = " ".join(text.replace("`", "'").split())
    return f"`{line[:most]}{'…' if len(line) > most else ''}`" if line else ""


def _told(record: Record) -> str:
    way = f"{_code(record.state)} → {_code(record.to)}" if record.to else _code(record.state)
    return f"- {record.seq}: {way} {record.event} {_code(record.error or record.reason)}"
