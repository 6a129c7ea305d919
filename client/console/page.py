"""What all pages of the console share: who acts through them, templates, live parts, forms."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from client.agents.catalog import Catalog
from client.console import texts
from client.console.blast_radius import Radii
from client.console.forms import field_key
from client.console.run_views import RunViews
from client.console.security import PLACE
from client.errors import NoWorker, RatchetError, Refused, UnknownRun, Unreachable, UsageError
from client.keys import Signer
from client.runs.words import counted, spent, time_span
from client.sdk.agent import AgentClient
from client.server.web import body_of

__all__ = ["Console", "Handler", "PageParts", "form_of", "link"]

TEMPLATES = Path(__file__).parent / "templates"
FORM_BYTES = 2 * 2**20
MAX_NOTES = 100
LOOK_SECONDS, BEAT_SECONDS = 1.0, 15.0
"""How often an open page is compared with what there is; how often a silent stream says that it lives."""
STREAMS, TURN_SECONDS = 4, 5
"""A browser has six connections to one server, and some must stay free: so many streams stay open at a time;
every other one tells its page how things are, ends, and comes again after so long."""
PageParts = Mapping[str, Markup | None]
"""Parts of a page that change while it is open: id of an element -> its content; None: it is gone."""
Handler = Callable[["Console", Request], Awaitable[Response]]
STATUS: Sequence[tuple[type[RatchetError], int]] = (
    (UnknownRun, 404), (Refused, 409), (UsageError, 400), (NoWorker, 503), (Unreachable, 503),
)  # fmt: skip


@cache
def _environment() -> Environment:
    """The templates; each is compiled once in a process."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=texts.shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "typed": texts.typed, "pretty": texts.pretty, "short_id": texts.short_id, "moment": texts.moment,
        "clock": texts.clock, "span": time_span, "counted": counted, "spent": spent, "key": field_key,
    }  # fmt: skip
    made.globals |= {"link": link, "new_id": lambda: secrets.token_hex(8)}
    return made


class Console:
    """What the pages need: a client, and who acts through them."""

    def __init__(self, agents: AgentClient, signer: Signer) -> None:
        self.agents, self.signer = agents, signer
        self.views = RunViews(agents)
        self.radii = Radii()
        self.own_key = secrets.token_bytes(32)
        self._notes: dict[str, str] = {}
        self._streams: set[_Stream] = set()

    @cached_property
    def catalog(self) -> Catalog:
        """The machines and tools that this process knows. Raises UsageError."""
        return Catalog.load(self.agents.connection.settings)

    def part(self, template: str, **values: Any) -> Markup:
        """A template as a part of a page."""
        return Markup(_environment().get_template(template).render(values))

    def page(
        self,
        request: Request,
        template: str,
        *,
        title: str,
        parts: PageParts | None = None,
        live: str = "",
        status: int = 200,
        **values: Any,
    ) -> Response:
        """A whole page; `live` is the path of the stream that keeps its parts up to date."""
        note = self._notes.pop(request.query_params.get("note", ""), "")
        parts = {name: _identified(name, part) for name, part in (parts or {}).items() if part is not None}
        values |= {"title": title, "parts": parts, "live": live, "note": note, "path": request.url.path}
        values |= {"me": self.signer, "place": request.scope[PLACE]}
        return HTMLResponse(self.part(template, **values), status)

    def go(self, path: str, note: str = "", *, part: str = "", **query: Any) -> Response:
        """The answer to a form: the page (and the part of it) that shows what came of it, with a note that is
        shown once."""
        if note:
            name = secrets.token_urlsafe(8)
            self._notes[name] = note
            query["note"] = name
            while len(self._notes) > MAX_NOTES:
                del self._notes[next(iter(self._notes))]
        return RedirectResponse(f"{link(path, **query)}{f'#{part}' if part else ''}", 303)

    def failure(self, request: Request, error: RatchetError) -> Response:
        """The page for something that a person can do something about."""
        status = next((code for kind, code in STATUS if isinstance(error, kind)), 500)
        return self.page(request, "error.html", title="That did not work", status=status, error=str(error))

    def stream(self, request: Request, parts: Callable[[], Awaitable[PageParts]]) -> Response:
        """The parts of a page whenever they change, as server-sent events of `{id: [hash, content]}`.

        The first event names every part that there is, later ones what is new; null is one that is gone.
        """

        async def events() -> AsyncIterator[str]:
            sent: dict[str, str] = {}
            found: PageParts
            silent = BEAT_SECONDS  # the first event comes at once
            while not await request.is_disconnected():
                began = time.monotonic()
                now, found = sent, {}
                with suppress(RatchetError):  # the worker or the server is away: what is shown stays
                    found = await parts()
                    now = {name: _digest(part) for name, part in found.items()}
                news = {
                    name: [digest, found[name]] for name, digest in now.items() if sent.get(name) != digest
                }
                gone = {name: None for name in sent if name not in now}
                if news or gone:
                    yield f"data: {json.dumps({**news, **gone})}\n\n"
                    sent, silent = now, 0.0
                elif silent >= BEAT_SECONDS:
                    yield ":\n\n"
                    silent = 0.0
                # a long list is looked at less often
                pause = max(LOOK_SECONDS, 4 * (time.monotonic() - began))
                silent += pause
                await asyncio.sleep(pause)

        return _Stream(events(), self._streams)


class _Stream(StreamingResponse):
    """Server-sent events; the first one alone while `STREAMS` others are `opened`."""

    def __init__(self, events: AsyncIterator[str], opened: set[_Stream]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._events, self._opened = events, opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self._opened) >= STREAMS:
            self.body_iterator = self._turn()
        self._opened.add(self)
        try:
            await super().__call__(scope, receive, send)
        finally:  # also where the client goes away while an event is on its way
            self._opened.remove(self)

    async def _turn(self) -> AsyncIterator[str]:
        async for event in self._events:
            yield event
            yield f"retry: {1000 * TURN_SECONDS}\n\n"
            return


def link(path: str, **query: Any) -> str:
    """The address of a page as others of the console name it; values that are empty or None are left out."""
    path = path.removeprefix("/") or "./"
    kept = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(kept, quote_via=quote)}" if kept else path


def _digest(part: Markup | None) -> str:
    return sha256((part or "").encode()).hexdigest()[:12]


def _identified(name: str, part: Markup) -> Markup:
    """A part in the element of its name."""
    return Markup('<div id="{}" data-hash="{}">{}</div>').format(name, _digest(part), part)


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form; of a name that comes several times the last one.

    Raises:
        HTTPException: it is too long, or takes too long.
    """
    body = await body_of(request, FORM_BYTES)
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=2000)
    except ValueError as error:
        raise HTTPException(400, "the form is not UTF-8") from error
    return dict(pairs)
