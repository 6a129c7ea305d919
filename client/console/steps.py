"""A run's log as people read it: one block for each step, and what people decided in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from activities.contracts.record_events import REQUEST_CLOSED
from activities.contracts.titles import call_title
from client.runs.readings import Reading, RecordReader, ShownCall, is_call, is_said_by_its_call, plan_of
from workflows.kernel.log import STARTED, Record, began, by_step, lineage

__all__ = ["Item", "PastRequest", "Row", "Step", "log_rows", "path_of", "request_history", "steps_of"]


@dataclass
class Item:
    """One thing in a step."""

    kind: Literal["thought", "call", "person", "error", "note"]
    text: str = ""
    plan: str = ""
    """thought: the calls that it plans."""
    calls: Sequence[ShownCall] = ()
    by: str = ""
    event: str = ""
    at: float = 0
    request: str = ""
    """person: the request that it is about."""


@dataclass
class Step:
    """One step that holds."""

    number: int
    branch: int
    items: list[Item] = field(default_factory=list)
    path: list[str] = field(default_factory=list)
    """The states that it went through."""
    spent: dict[str, float] = field(default_factory=dict)
    """In this step alone."""
    started: float = 0
    """In seconds since 1970."""
    seconds: float = 0
    """In which models and tools were called."""

    @property
    def called(self) -> bool:
        """A tool was called in it."""
        return any(item.calls for item in self.items)


def steps_of(records: Iterable[Record], *, last: int | None = None) -> list[Step]:
    """The steps that hold, in order; `last`: the newest ones alone."""
    steps: list[Step] = []
    reader = RecordReader()
    for found in by_step(records):
        step = Step(found.number, found.branch, path=list(found.path), spent=found.spent,
                    started=found.started, seconds=found.seconds)  # fmt: skip
        if found.begins_with:
            step.items.append(Item("thought", plan=plan_of(found.begins_with), at=found.started))
        for record in found.records:
            _add(step.items, _items(record, reader.read(record)))
        if step.number or step.items:
            steps.append(step)
    return steps if last is None else steps[-last:]


def _items(record: Record, reading: Reading) -> list[Item]:
    """What a record says."""
    common: dict[str, Any] = {"event": record.event, "at": record.at}
    found: list[Item] = []
    if record.error:
        found.append(Item("error", record.error, **common))
    if record.by not in ("machine", "kernel") or "request" in record.about:
        about = str(record.about.get("request", ""))
        if about and record.event in CLOSED_BY:
            common["event"] = _closed_how(record)
        text = _details(record) if about and record.event in CLOSED_BY else record.why
        found.append(Item("person", text, by=record.by, request=about, **common))
        return found
    if reading.calls:
        found.append(Item("call", calls=reading.calls, **common))
    if reading.thought or reading.asked:
        found.append(Item("thought", reading.thought, reading.plan, **common))
    if reading.words and not is_said_by_its_call(record):
        found.append(Item("note", reading.words, **common))
    return found


def _add(items: list[Item], more: Sequence[Item]) -> None:
    """Put calls that come next beside the thought before them."""
    for item in more:
        if items and items[-1].kind == item.kind == "thought" and not (item.text or items[-1].plan):
            items[-1] = replace(items[-1], plan=item.plan)
        else:
            items.append(item)


# -- the log --------------------


@dataclass(frozen=True)
class Row:
    """A record as the table of the log shows it."""

    record: Record
    reading: Reading
    seconds: float
    """How long it took."""
    effects: Sequence[str]
    """What was answered beside calls."""


def log_rows(records: Sequence[Record]) -> list[Row]:
    """The log from its beginning; rollbacks leave nothing out."""
    reader = RecordReader()
    return [
        Row(
            record,
            reader.read(record),
            record.at - began(record, before),
            [one.title for one in record.answered if not is_call(one)],
        )
        for record, before in zip(records, (None, *records), strict=False)
    ]


def path_of(records: Iterable[Record]) -> list[tuple[str, str]]:
    """The transitions that hold, in order: (from, to)."""
    kept = (record for record in lineage(records) if record.to is not None and record.event != STARTED)
    return [(record.state, str(record.to)) for record in kept]


# -- what people decided --------------------

CLOSED_BY = {*REQUEST_CLOSED, "Voted"}
"""Events by which people, or their absence, come to the end of a request."""


def _closed_how(record: Record) -> str:
    """In a word: `Edited`, `Voted: approve`."""
    about = record.about
    word = f"Voted: {about.get('verb')}" if record.event == "Voted" else str(about.get("outcome", ""))
    return word.replace("_", " ").capitalize()


def _details(record: Record) -> str:
    """What was decided beyond that word: new arguments, amounts, a comment, what a deadline led to."""
    about: Mapping[str, Any] = record.about
    given, amounts = about.get("arguments"), about.get("amounts", {})
    lines = [
        call_title(str(about.get("tool")), given) if about.get("verb") == "edit" and given else "",
        ", ".join(f"{name} {amount:g} more" for name, amount in amounts.items()),
        f"at the deadline: {about.get('at_deadline')}" if record.event == "Expired" else "",
        str(about.get("text", "")),
    ]
    return "\n".join(filter(None, lines))


@dataclass
class PastRequest:
    """A request as the log tells it."""

    id: str
    kind: str = ""
    tool: str = ""
    arguments: Any = None
    outcome: str = "open"
    by: str = ""
    """Who closed it, and whether that is verified or claimed."""
    text: str = ""
    """What was decided beyond the outcome, and why."""
    at: float = 0


def request_history(records: Iterable[Record]) -> list[PastRequest]:
    """Requests that are closed, oldest first, also those that a rollback has left behind."""
    found: dict[str, PastRequest] = {}
    for record in records:
        about = record.about
        name = about.get("request")
        if not isinstance(name, str) or record.event.startswith(("Refused", "Repeated", "Unusable")):
            continue
        past = found.setdefault(name, PastRequest(name))
        past.kind, past.tool = str(about.get("kind") or past.kind), str(about.get("tool") or past.tool)
        past.arguments = about.get("arguments", past.arguments)
        outcome = about.get("outcome")
        if outcome not in (None, "open"):
            past.outcome, past.by, past.at = str(outcome), record.by, record.at
            past.text = _details(record)
    return [one for one in found.values() if one.outcome != "open"]
