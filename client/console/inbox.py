"""The inbox: what waits for people, and one request with all that a person needs to decide it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from markupsafe import Markup
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from activities.contracts import JsonObject
from client.console.blast_radius import RadiusQuestion, question_of_run
from client.console.forms import Field, arguments_in, field_key, fields_of
from client.console.page import Console, Handler, PageParts, form_of, link
from client.console.run_views import RunView
from client.console.steps import request_history, steps_of
from client.errors import RatchetError, Refused, UsageError
from client.runs.amounts import amounts_from
from client.runs.listing import RequestSummary
from client.runs.requests import DECISIONS, AnyRequest, decision_text, request_reason
from client.sdk.people import decision_from
from workflows.api import RunStatus
from workflows.people import Request, StandingApproval

__all__ = ["ROUTES"]

MAX_SHOWN_REQUESTS = 100
"""Requests on the page; who decides them sees the others."""
MAX_CLOSED_REQUESTS = 20
STEPS_BEFORE = 3
"""Steps before a request that its page shows."""


class _RecentlyClosed:
    """Requests that were open when somebody looked, and are closed now."""

    def __init__(self) -> None:
        self.open: dict[tuple[str, str], None] = {}
        self.closed: deque[Request] = deque(maxlen=MAX_CLOSED_REQUESTS)

    async def update(self, console: Console, now: dict[tuple[str, str], None]) -> None:
        gone, self.open = [key for key in self.open if key not in now], now
        for run, name in gone:
            with suppress(RatchetError):
                found = await console.agents.request(run, name)
                if isinstance(found, Request) and not found.is_open:
                    self.closed.appendleft(found)


_RECENTLY_CLOSED: WeakKeyDictionary[Console, _RecentlyClosed] = WeakKeyDictionary()


async def _parts(console: Console) -> PageParts:
    lines = await console.agents.inbox()
    rows = [(line, request) for line in lines for request in line.requests or (None,)]
    recent = _RECENTLY_CLOSED.setdefault(console, _RecentlyClosed())
    await recent.update(console, {(line.id, one.id): None for line, one in rows if one is not None})
    shown, more = rows[:MAX_SHOWN_REQUESTS], max(len(rows) - MAX_SHOWN_REQUESTS, 0)
    return {
        "inbox": console.part("_inbox.html", rows=shown, more=more, closed=tuple(recent.closed)),
    }


async def inbox(console: Console, request: HttpRequest) -> Response:
    """What waits, the oldest first; below it what was decided lately."""
    return console.page(request, "inbox.html", title="Inbox", parts=await _parts(console), live="live/inbox")


async def live_inbox(console: Console, request: HttpRequest) -> Response:
    """The same while the page is open."""
    return console.stream(request, lambda: _parts(console))


# -- one request --------------------


async def _find(console: Console, run: str, name: str) -> AnyRequest:
    if not run or not name:
        raise UsageError("the address names no request; the inbox has those that wait")
    return await console.agents.request(run, name)


async def request_page(
    console: Console,
    request: HttpRequest,
    *,
    error: str = "",
    typed: Mapping[str, str] | None = None,
    status: int = 200,
) -> Response:
    """A request: what led to it, what it asks, and the ways to decide it."""
    given = typed or request.query_params
    run, name = given.get("run", ""), given.get("id", "")
    asked = await _find(console, run, name)
    view = await console.views.view(run)
    values: dict[str, Any] = {
        "asked": asked,
        "full": isinstance(asked, Request),
        "open": not isinstance(asked, Request) or asked.is_open,
        "view": view,
        "reason": request_reason(asked, view.task),
        "fields": await _fields(console, run, asked),
        "verbs": _verbs(asked),
        "steps": steps_of(view.records, last=STEPS_BEFORE),
        "before": [one for one in request_history(view.records) if one.id != asked.id],
        "error": error,
        "typed": typed or {},
        "next": await _next(console, run, name),
    }
    is_open = bool(values["open"])
    return console.page(
        request,
        "request.html",
        title=_title(asked),
        status=status,
        parts={"news": Markup(""), "alone": Markup("")} if is_open else {},
        live=link("/live/request", run=run, id=name, digest=asked.digest) if is_open else "",
        **values,
    )


async def request_or_log(console: Console, request: HttpRequest) -> Response:
    """A request; one that is closed, and that the run cannot answer for, as its log tells of it."""
    try:
        return await request_page(console, request)
    except RatchetError as error:
        run, name = request.query_params.get("run", ""), request.query_params.get("id", "")
        with suppress(RatchetError):
            records = (await console.views.view(run)).records
            if any(past.id == name for past in request_history(records)):
                last = max(at for at, one in enumerate(records) if one.about.get("request") == name)
                note = f"{error}. The log says what {name} asked, and who decided."
                return console.go("/run", note, id=run, view="log", before=last + 1)
        raise


async def live_request(console: Console, request: HttpRequest) -> Response:
    """Says while a request is open on a page that somebody else has decided it, or that it has changed."""
    run, name = request.query_params.get("run", ""), request.query_params.get("id", "")
    digest = request.query_params.get("digest", "")
    alone = _WithoutPerson(console, run, name)

    async def news() -> PageParts:
        short = await console.agents.request_summaries(run)
        if any((one.id, one.digest) == (name, digest) for one in short):
            return {"news": Markup(""), "alone": await alone.part()}
        asked = await _find(console, run, name)
        changed = asked.digest != digest or (isinstance(asked, Request) and not asked.is_open)
        return {"news": console.part("_news.html", asked=asked, run=run) if changed else Markup("")}

    return console.stream(request, news)


class _WithoutPerson:
    """What a run could do without the person who is asked, while its request is open."""

    def __init__(self, console: Console, run: str, name: str) -> None:
        self._console, self._run, self._name = console, run, name
        self._status: RunStatus | None = None
        self._question: RadiusQuestion | None = None

    async def part(self) -> Markup:
        """One sentence, as the run is now; empty while nobody knows it."""
        view = await self._console.views.view(self._run)
        if view.status is not self._status:
            before, self._status, self._question = self._question, view.status, None
            with suppress(RatchetError):  # no worker, or no store
                self._question = await self._radius_question(view)
            if before is not None and before != self._question:
                self._console.radii.drop(before)
        found = self._console.radii.answer_if_known(self._question) if self._question else None
        return self._console.part("_alone.html", sentence=found.sentence if found else "")

    async def _radius_question(self, view: RunView) -> RadiusQuestion | None:
        page = await self._console.agents.requests_page(self._run, schemas=True)
        asked = next((one for one in page.open if one.id == self._name), None)
        if asked is None or asked.kind != "approval" or asked.tool not in page.tools:
            return None
        modules = self._console.agents.connection.settings.modules
        return question_of_run(view, asked.tool, page.tools, modules)


def _title(asked: AnyRequest) -> str:
    return f"{asked.kind} {asked.id}: {asked.tool or asked.text[:60]}"


async def _fields(console: Console, run: str, asked: AnyRequest) -> tuple[Field, ...]:
    """The arguments of a call, by the schema that its run has recorded: it may be no tool of this process."""
    if asked.arguments is None or asked.kind == "limit":
        return ()
    schema: JsonObject | None = None
    with suppress(RatchetError):  # no worker, or no store: each field is of its value's type
        spec = (await console.agents.requests_page(run, schemas=True)).tools.get(asked.tool or "")
        schema = spec.parameters if spec else None
    return fields_of(asked.arguments, schema)


def _verbs(asked: AnyRequest) -> Sequence[str]:
    """The decisions that a request takes; nobody approves what cannot be shown."""
    hidden = asked.tool is not None and asked.arguments is None
    return [verb for verb in asked.options if not (hidden and verb in ("approve", "edit"))]


async def _next(console: Console, run: str, name: str) -> tuple[str, str] | None:
    """Another request that waits, the oldest one."""
    for line in await console.agents.inbox():
        for one in line.requests:
            if (line.id, one.id) != (run, name):
                return line.id, one.id
    return None


async def decide(console: Console, request: HttpRequest) -> Response:
    """Send a decision on what the person saw; the run checks it."""
    form = await form_of(request)
    run, name = form.get("run", ""), form.get("id", "")
    try:
        asked = await _find(console, run, name)
        seen = RequestSummary(id=name, kind=asked.kind, digest=form.get("digest", ""))
        if asked.digest != seen.digest:
            raise Refused(f"Request {name} changed after you saw it. This is how it is now; decide again.")
        fields = await _fields(console, run, asked)
        decision = decision_from(
            seen, _verb(form), form.get("text", "").strip(), **_content(form, fields, asked)
        )
        decision = decision.model_copy(update={"id": form.get("decision_id", "")[:100]})
        done = await console.agents.decide(run, decision, by=console.signer)
    except RatchetError as error:
        if not isinstance(error, Refused | UsageError):
            raise
        status = 409 if isinstance(error, Refused) else 400
        with suppress(RatchetError):
            return await request_page(console, request, error=str(error), typed=form, status=status)
        raise
    return console.go("/request", decision_text(done, asked), run=run, id=name)


def _verb(form: Mapping[str, str]) -> Any:
    verb = form.get("verb", "").removesuffix("_later")
    if verb not in DECISIONS:
        raise UsageError(f"{verb[:40]!r} is no decision; choose one of the buttons")
    return verb


def _content(form: Mapping[str, str], fields: Sequence[Field], asked: AnyRequest) -> dict[str, Any]:
    """What only some decisions have."""
    match form.get("verb"):
        case "edit":
            return {"arguments": arguments_in(fields, form)}
        case "topup":
            counter = str((asked.arguments or {}).get("counter", "model_calls"))
            return {"amounts": amounts_from([f"{counter}={form.get('amount', '').strip()}"])}
        case "approve_later":  # its own button: a choice in the fold counts for no other
            return {"standing_approval": _standing(form, asked.arguments or {})}
        case "answer" if not form.get("text", "").strip():
            raise UsageError("the answer is blank; write it into the field")
    return {}


def _standing(form: Mapping[str, str], arguments: JsonObject) -> StandingApproval | None:
    """The approval of later calls, only where a person has chosen one."""
    match form.get("later", ""):
        case "same":
            return StandingApproval(same=True)
        case "any":
            return StandingApproval()
        case "where":
            chosen = {name for name in arguments if form.get(f"where.{field_key(name)}")}
            kept = {name: {"const": value} for name, value in arguments.items() if name in chosen}
            if not kept:
                raise UsageError("choose which arguments later calls must share, or another kind of approval")
            return StandingApproval(arguments=kept)
    return None


ROUTES: Sequence[tuple[str, str, Handler]] = (
    ("GET", "/", inbox),
    ("GET", "/live/inbox", live_inbox),
    ("GET", "/request", request_or_log),
    ("GET", "/live/request", live_request),
    ("POST", "/decide", decide),
)
