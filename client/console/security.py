"""Who may ask the console: the person with the link that was printed, from a page of the console itself.

Three checks stand before every page: the Host and origin of the request (`client/server/ui.py`), a session
that only the printed link gives, and for a write an Origin, which no form of another page can make up. A
browser gives a cookie to every port of a host's name. So the pages lie under a path that nobody can guess,
and the cookie is sent to that path alone. Every answer carries a policy under which a browser runs no script
and loads only what is the console's own.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client.server.ui import LOCAL_NAMES, check_page
from client.server.web import fields_of

__all__ = ["PLACE", "Guard"]

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with `no-referrer` a browser sends forms without their origin
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
LOGIN, STATIC = "/login", "/static/"
COOKIE = "ratchet-console"
PLACE = "ratchet.place"
"""In the scope of a request: what stands before the path of each page."""
UNKNOWN = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Ratchet console</title>
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/static/console.css">
<main class="plain"><h1>This page needs the link</h1>
<p>Open the link that <code>ratchet console</code> or <code>ratchet dev</code> printed when it started. Each
start makes a new one.</p><p>If you come from that link, <a href="">go on to the console</a>.</p></main>"""


class Guard:
    """Stands before the console's app."""

    def __init__(self, app: ASGIApp, names: Sequence[str] = LOCAL_NAMES) -> None:
        """`names` are those under which the console is open, without ports."""
        self._app, self._names = app, names
        self.token = secrets.token_urlsafe(32)
        """In the printed link alone."""
        self.place = f"/{secrets.token_urlsafe(16)}"
        """Before the path of each page."""
        self._session = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        inside = scope["path"].startswith(f"{self.place}/")
        if inside:
            scope = {**scope, "path": scope["path"].removeprefix(self.place), PLACE: self.place}
        refusal = self._refusal(scope, inside=inside)
        await (self._app if refusal is None else refusal)(scope, receive, sent)

    def _refusal(self, scope: Scope, *, inside: bool) -> Response | None:
        """What a request gets in place of a page; None: it may pass. `inside`: it knows the place."""
        fields = fields_of(scope)
        method, path = scope["method"], scope["path"]
        writes = method not in ("GET", "HEAD")
        try:
            check_page(method, fields, self._names)
            if writes and not any(name == "origin" for name, _ in fields):
                raise ValueError("a request that changes something must say which page it comes from")
        except ValueError as error:
            return PlainTextResponse(f"This is the console of Ratchet; {error}.\n", 403)
        given = dict(fields)
        if path == LOGIN:
            return self._login(scope, given)
        if path.startswith(STATIC) and not writes:
            return None
        if not (inside and hmac.compare_digest(_cookie(given), self._session.encode())):
            return Response(UNKNOWN, 401, media_type="text/html")
        return None

    def _login(self, scope: Scope, given: dict[str, str]) -> Response:
        """The printed link: its token leaves the address, and a cookie comes in its place.

        A proxy says whether it speaks TLS to the browser; of several the first one does. Who
        forges that gets a cookie of less use.
        """
        (token,) = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[:1]
        if scope["method"] != "GET" or not hmac.compare_digest(token.encode(), self.token.encode()):
            return Response(UNKNOWN, 401, media_type="text/html")
        answer = RedirectResponse(f"{self.place}/", 303)
        tls = given.get("x-forwarded-proto", "").partition(",")[0].strip().lower() == "https"
        answer.set_cookie(
            COOKIE, self._session, path=f"{self.place}/", httponly=True, samesite="strict", secure=tls
        )
        return answer


def _cookie(fields: dict[str, str]) -> bytes:
    return cookie_parser(fields.get("cookie", "")).get(COOKIE, "").encode()
