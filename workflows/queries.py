"""What the queries answer: pages of log, steps, requests, transcript; the text for Temporal's UI. Pure."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel
from pydantic_core import to_json

from activities.contracts import Conversation, Message, visible, without_digests
from workflows.api import (
    PAGE_BYTES,
    RESULT_BYTES,
    EffectsQuery,
    LogPage,
    PageQuery,
    RequestsQuery,
    ResultPage,
    RunResult,
    RunStatus,
    StepsPage,
    TranscriptPage,
)
from workflows.gate.texts import utc_text
from workflows.kernel.log import Record, lineage
from workflows.kernel.logged_calls import shortened
from workflows.people import EffectsPage, Request, RequestsPage
from workflows.steps import steps_of

if TYPE_CHECKING:
    from workflows.engine.loop import Drive

__all__ = [
    "details",
    "effects_page",
    "inline_result",
    "log_page",
    "requests_page",
    "result_page",
    "steps_page",
    "transcript",
    "transcript_page",
]

M = TypeVar("M", bound=BaseModel)
CLOSED_REQUESTS = 5
"""Closed requests in the answer of `requests`."""
UI_REQUESTS = 3
"""Requests in the text for Temporal's UI."""
UI_REQUEST_CHARS = 1000
"""Characters of what a request asks, there."""
CUT_KEY_CHARS = 400
"""Characters that are left of a long key in a page that is cut."""
CUT_LIST_ITEMS = 20
"""Items that are left of a long list or object in a page that is cut."""
CUT_TEXT_BYTES = 400, 100
"""Bytes that are left of a long text in a page that is cut; the fewer where a page would not hold it."""
ITEMS_BYTES = PAGE_BYTES - 200
"""Bytes for a page's items."""
RESULT_PARTS = {
    "answer": 40_000,
    "calls": 16_000,
    "output": 4000,
    "outcome": 8000,
    "decisions": 8000,
    "unheard": 4000,
    "error": 4000,
    "counters": 4000,
}
"""Bytes that are left of a field in a result that is cut: each that may be long. Together they leave room for
the others in `RESULT_BYTES`."""
RESULT_CHARS = 20_000
"""Characters in a page of a result: in JSON each takes at most four bytes."""
ANY_JSON = {"arguments", "about"}
"""Fields that may hold any JSON, so that a note on what is left out has room in them."""


def _cut(value: Any, most: int, *, free: bool = False) -> Any:
    """The value with long lists cut, and texts of more than `most` bytes of JSON. Where it is `free` JSON, it
    says what is left out."""
    if isinstance(value, str):
        start = _beginning(value, most)
        return value if len(start) == len(value) else f"{start} [... {len(value):,} characters]"
    more = len(value) - CUT_LIST_ITEMS if isinstance(value, dict | list | tuple) else 0
    if isinstance(value, dict):
        items = list(value.items())[:CUT_LIST_ITEMS]
        cut = {
            str(key)[:CUT_KEY_CHARS]: _cut(item, most, free=free or key in ANY_JSON) for key, item in items
        }
        return {**cut, "...": f"{more} more; ask with `full`"} if free and more > 0 else cut
    if isinstance(value, list | tuple):
        kept = [_cut(item, most, free=free) for item in value[:CUT_LIST_ITEMS]]
        return [*kept, f"... {more} more; ask with `full`"] if free and more > 0 else kept
    return value


def _beginning(text: str, most: int) -> str:
    """As much of the text as so many bytes of JSON hold."""
    start = text[:most]
    sizes = range(1, len(start) + 1)
    return start[: bisect_right(sizes, most + 2, key=lambda size: len(to_json(start[:size])))]


def _small(whole: M) -> tuple[M, int]:
    """The item with long values cut until a page holds it, and its length. A record keeps its counters and
    what was answered rather than long texts; its patch goes when it is still too long."""
    counts = {"counters": whole.counters, "answered": ()} if isinstance(whole, Record) else {}
    room = ITEMS_BYTES - len(to_json(whole.answered)) if isinstance(whole, Record) else ITEMS_BYTES
    data = whole.model_dump(mode="json", exclude=set(counts))
    for most in CUT_TEXT_BYTES:
        item = type(whole).model_validate(_cut(data, most)).model_copy(update=counts)
        length = _length(item)
        if length > PAGE_BYTES // 2 and isinstance(item, Record):
            names = {name: {"set": "too long for a page; ask with `full`"} for name in item.patch}
            item = item.model_copy(update={"patch": names})
            length = _length(item)
        if length <= room:
            break
    if isinstance(whole, Record):
        item = item.model_copy(update={"answered": shortened(whole.answered, ITEMS_BYTES - length)})
    return item, _length(item)


def _length(item: BaseModel) -> int:
    return len(item.model_dump_json().encode())


def _page(items: Sequence[M], query: PageQuery) -> tuple[tuple[M, ...], int]:
    """As many items from `since` on as fit, at least one; and where to go on."""
    page: list[M] = []
    size = 0
    for whole in items[query.since :]:
        item, length = whole, _length(whole)
        if length > PAGE_BYTES // 2 and not query.full:
            item, length = _small(item)
        if page and size + length > ITEMS_BYTES:
            break
        page.append(item)
        size += length
    return tuple(page), query.since + len(page)


def log_page(records: Sequence[Record], query: PageQuery, *, finished: bool) -> LogPage:
    """Records from sequence number `since` on; earlier executions' records are in the archive."""
    first = records[0].seq if records else 0
    page, end = _page(records, query.model_copy(update={"since": max(query.since - first, 0)}))
    return LogPage(records=page, next=first + end, total=first + len(records), finished=finished, first=first)


def transcript(records: Sequence[Record], conversation: Conversation) -> tuple[Message, ...]:
    """The conversation, and the questions beside it with their replies, in the order of the log."""
    if not any(record.beside for record in records):
        return conversation.messages
    kept = lineage(records)
    known = sum(len(record.messages) for record in kept)
    earlier = conversation.messages[: max(len(conversation) - known, 0)]
    return (*earlier, *(message for record in kept for message in (*record.messages, *record.beside)))


def transcript_page(messages: Sequence[Message], query: PageQuery) -> TranscriptPage:
    """Messages from `since` on."""
    shown = [
        message.model_copy(update={"kept": "", "content": without_digests(message.content)})
        for message in messages
    ]
    page, end = _page(shown, query)
    return TranscriptPage(messages=page, next=end, total=len(messages))


def steps_page(records: Sequence[Record], query: PageQuery) -> StepsPage:
    """Steps from index `since` on."""
    steps = steps_of(records)
    page, end = _page(steps, query)
    return StepsPage(steps=page, next=end, total=len(steps))


def requests_page(drive: Drive | None, query: RequestsQuery) -> RequestsPage:
    """Open requests from index `since` on; without any, the newest closed ones."""
    if drive is None:
        return RequestsPage(open=(), next=0, total=0)
    waiting = drive.run.requests.open_requests
    page, end = _page(waiting, query)
    closed: tuple[Request, ...] = ()
    if end == len(waiting) and not page:
        newest = tuple(reversed(drive.run.requests.closed_requests[-CLOSED_REQUESTS:]))
        closed, _ = _page(newest, PageQuery(full=query.full))
    specs = drive.run.requests.policy.specs if query.schemas else {}
    return RequestsPage(
        open=page,
        closed=closed,
        next=end,
        total=len(waiting),
        paused=drive.run.paused,
        tools={name: specs[name] for name in {one.tool or "" for one in page} & set(specs)},
    )


def effects_page(drive: Drive | None, query: EffectsQuery) -> EffectsPage:
    """Calls with outside effects from index `since` on."""
    calls = drive.calls.done.since(query.step) if drive else ()
    page, end = _page(calls, PageQuery(since=query.since))
    return EffectsPage(since_step=query.step, calls=page, next=end, total=len(calls))


def inline_result(whole: RunResult) -> RunResult:
    """The result, cut if it is longer than `RESULT_BYTES`: its longest fields first, and no more of them than
    is needed. Of calls, decisions and messages the newest are left, of counters the sums."""
    size = _length(whole)
    if size <= RESULT_BYTES:
        return whole
    data = whole.model_dump(mode="json")
    sizes = {name: len(to_json(data.get(name))) for name in RESULT_PARTS}
    long = [name for name, most in RESULT_PARTS.items() if sizes[name] > most]
    cut = list[str]()
    text = (
        f": cut here; the whole result has {size:,} bytes. The query `result` gives it as JSON by pages: ask "
        'with {"since": 0}, then with `next` until it is `total`, and join the texts; '
        f"`ratchet result {whole.workflow_id} --json` and the SDK do so"
    )
    for name in sorted(long, key=lambda name: -sizes[name]):
        cut.append(name)
        data |= {name: _part(name, data[name]), "cut": ", ".join(cut) + text, "cut_fields": cut}
        if len(to_json(data)) <= RESULT_BYTES:
            break
    return RunResult.model_validate(data)


def _part(name: str, value: Any) -> Any:
    """What is left of a result's field."""
    most = RESULT_PARTS[name]
    if isinstance(value, str):
        return _cut(value, most - 50)
    if name == "output":  # a part of it would not fit its schema
        return None
    if name == "counters":  # the sums come before those of each model and tool
        return dict(_fitting(sorted(value.items(), key=lambda item: ":" in item[0]), most))
    if isinstance(value, dict):
        for each in CUT_TEXT_BYTES:
            if len(to_json(cut := _cut(value, each, free=True))) <= most:
                return cut
        return {"...": "too long; `cut` says how to get it"}
    return _fitting(value[::-1], most)[::-1]


def _fitting(items: Sequence[Any], most: int) -> list[Any]:
    """The first items, as many as a list of so many bytes holds."""
    sizes = list(accumulate((len(to_json(item)) + 1 for item in items), initial=1))
    return list(items[: bisect_right(sizes, most) - 1])


def result_page(result: RunResult, query: PageQuery) -> ResultPage:
    """The whole result as JSON, from character `since` on."""
    text = result.model_dump_json()
    page = text[query.since : query.since + RESULT_CHARS]
    return ResultPage(text=page, next=query.since + len(page), total=len(text))


def details(status: RunStatus, goal: str, records: Sequence[Record], open_requests: Sequence[Request]) -> str:
    """What the agent is doing, in Markdown, for Temporal's UI: open requests, then the newest records.

    Texts of models and tools are shown as code, so that they cannot draw links or pictures.
    """
    spent = ", ".join(f"{name} {amount:g}" for name, amount in sorted(status.counters.items()))
    shown, more = open_requests[:UI_REQUESTS], len(open_requests) - UI_REQUESTS
    word = "Next" if status.doing_since is None else "Doing"
    doing = f"{word}: {_code(status.doing)}" if status.doing else f"Ended: **{status.exit_reason}**"
    machine = f"{status.machine} {status.machine_version}"
    newest = [record for record in reversed(records[-10:]) if not _opens(record, shown)]
    lines = [
        f"**{status.agent}** ({machine}), state {_code(status.state)}, step {status.step}",
        *(f"Inner run: {_code(child)}" for child in status.children),
        *(['**Paused.** Signal `command` with `{"command": "resume"}` goes on.'] if status.paused else []),
        *(_request_lines(request) for request in shown),
        *([f"{more} more requests are open: the query `requests` has them."] if more > 0 else []),
        _code(goal, 300),
        doing,
        *([f"Failing: {_code(status.failing)}"] if status.failing else []),
        f"Spent: {spent or 'nothing yet'}",
        "\n".join(_record_line(record) for record in newest),
    ]
    return "\n\n".join(lines)


def _opens(record: Record, shown: Sequence[Request]) -> bool:
    """The record only says that a request was opened that is shown in full."""
    opened = record.about.get("request") if record.event == "Requested" else None
    return any(request.id == opened for request in shown)


def _request_lines(request: Request) -> str:
    """A request, and the JSON that answers it: to be pasted as the input of the signal `decide`."""
    in_text = request.arguments is None or request.kind == "approval"  # its text has the arguments
    arguments = "" if in_text else json.dumps(request.arguments, ensure_ascii=False)
    if request.signed:
        how = "Only signed decisions count: use `ratchet` with `--key`, or the SDK."
    else:
        first, note = _first_decision(request), ""
        if first["decision"] == "approve" and max(len(request.text), len(arguments)) > UI_REQUEST_CHARS:
            first["digest"] = "DIGEST"  # nobody approves what is not shown
            note = "Not all of it is shown here: `ratchet inbox RUN` shows it, and the digest. "
        how = (
            f"{note}To answer, send the update or the signal `decide` with this input; replace the capitals."
            f"\n\n```json\n{json.dumps(first, ensure_ascii=False, indent=1)}\n```"
        )
    lines = [
        f"**Waits for a person: {request.kind} {request.id}**. {_code(request.text, UI_REQUEST_CHARS)}",
        f"Arguments: {_code(arguments, UI_REQUEST_CHARS)}" if arguments else "",
        f"Who may decide: {_code(_deciders(request), 500)}"
        if request.approvers or request.quorum > 1
        else "",
        ""
        if request.deadline is None
        else f"Until {utc_text(request.deadline)}; then: {request.at_deadline}",
        f"One of: {', '.join(request.options)}. {how}",
    ]
    return "\n\n".join(line for line in lines if line)


def _first_decision(request: Request) -> dict[str, Any]:
    """The decision with the request's first option, and all that it needs."""
    verb, about = request.options[0], request.arguments or {}
    decision = {"request": request.id, "digest": request.digest, "decision": verb, "by": "YOUR NAME"}
    if verb == "answer":
        return {**decision, "text": "YOUR ANSWER" if request.kind != "outcome" else "WHAT THE CALL RETURNED"}
    if verb == "topup":
        return {**decision, "amounts": {about.get("counter", "model_calls"): about.get("cap") or 1}}
    return decision


def _deciders(request: Request) -> str:
    names = ", ".join(request.approvers) or "anybody"
    return f"{names}; {request.quorum} must agree" if request.quorum > 1 else names


def _code(text: str, limit: int = 200) -> str:
    line = " ".join(text.replace("`", "'").split())
    line = visible(line, lambda _: "\N{REPLACEMENT CHARACTER}")
    return f"`{line[:limit]}{'…' if len(line) > limit else ''}`" if line else ""


def _record_line(record: Record) -> str:
    path = f"{_code(record.state)} → {_code(record.to)}" if record.to else _code(record.state)
    return f"- {record.seq}: {path} {record.event} {_code(record.summary)}"
