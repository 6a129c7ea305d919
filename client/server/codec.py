"""A codec server: Temporal's Web UI, its CLI and SDKs of other languages ask it what they show and send.

Temporal's protocol: POST `.../decode`, `.../download` or `.../encode`, both ways `{"payloads": [...]}` as
protobuf's JSON. It decrypts, and fetches large values from the store, as a worker would; whoever may ask it
may read all runs. So it answers on this machine alone unless there is a token, and to web pages alone whose
addresses it was given.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from google.protobuf.json_format import MessageToJson, Parse, ParseError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.common import RawValue

from activities.settings import Settings
from activities.store.blobs import StoreError
from activities.store.codec import is_encrypted
from activities.store.converter import data_converter
from activities.store.stores import Stores
from client.errors import UsageError
from client.server.ui import LOCAL_NAMES, check_page
from client.server.web import CLOSE, body_of, fields_of, serving

__all__ = ["serving_codec"]

REQUEST_BYTES = 16 * 2**20
ANSWER_BYTES = 64 * 2**20
"""Values beyond are left as they are."""
SHOWN_BYTES = 2**20
"""Larger ones are left as references where the Web UI asks for that: it has a button that downloads them."""
AT_A_TIME = 8
"""Requests; others wait."""
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
Work = Callable[[Sequence[Payload]], Coroutine[Any, Any, list[Payload]]]


@asynccontextmanager
async def serving_codec(
    settings: Settings,
    address: tuple[str, int] = ("127.0.0.1", 0),
    *,
    origins: Iterable[str] = (),
    hosts: Iterable[str] = (),
) -> AsyncIterator[str]:
    """Serve meanwhile; gives the address.

    Args:
        settings: data directory, keys, and the token if there is one.
        address: host and port to listen at; port 0 is any free one.
        origins: of web pages that may ask, such as `http://localhost:8233`.
        hosts: names by which this machine is called, besides `localhost`.

    Raises:
        UsageError: the address cannot be used, others reach it and there is no token, a key is wrong, or
            the store cannot be used.
    """
    host, port = address
    codec = _Codec(settings)
    if not codec.token and not _is_local(host):
        raise UsageError(
            f"others can reach {host}, and whoever may ask a codec server reads all runs: set "
            "RATCHET_CODEC_TOKEN (16 characters or more), or listen at 127.0.0.1"
        )
    pages, names = tuple(origins), (*LOCAL_NAMES, "[::1]", host, *hosts)
    allowed = Middleware(
        CORSMiddleware, allow_origins=pages, allow_methods=["POST"], allow_headers=["*"],
        allow_credentials=True, allow_private_network=True,
    )  # fmt: skip
    app = Starlette(routes=[Route("/{path:path}", codec.answer, methods=["POST"])], middleware=[allowed])

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            check_page(scope["method"], fields_of(scope), names, pages)
        except ValueError as error:
            text = f"This is a codec server of Ratchet; {error}. See --host and --origin."
            await PlainTextResponse(text, 403, CLOSE)(scope, receive, send)
        else:
            await app(scope, receive, send)

    async with serving("the codec server", guarded, host, [port], "choose another port with --listen") as at:
        yield f"http://{host}:{at}"


def _is_local(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


class _Codec:
    """Answers requests that have passed the guard."""

    def __init__(self, settings: Settings) -> None:
        """Raises UsageError when a key is wrong, or the store cannot be used."""
        self.token = settings.codec_token.get_secret_value() if settings.codec_token else ""
        stores = Stores(settings)
        try:
            stores.check_keys()
        except StoreError as error:
            raise UsageError(str(error)) from error
        self._converter = data_converter((stores.blobs, stores.secret), stores.keys)
        self._places = asyncio.Semaphore(AT_A_TIME)

    async def answer(self, request: Request) -> Response:
        """Decode or encode. Raises HTTPException."""
        *before, kind = request.path_params["path"].strip("/").split("/")
        self._check_token(request, before)
        shown = request.query_params.get("preserveStorageRefs") == "true"
        kinds: dict[str, Work] = {
            "decode": partial(self._decoded, most=SHOWN_BYTES if shown else ANSWER_BYTES),
            "download": self._decoded,
            "encode": self._encoded,
        }
        if kind not in kinds:
            raise HTTPException(404, "a codec server has /decode, /download and /encode")
        body = await body_of(request, REQUEST_BYTES)
        async with self._places:
            # in a thread: large values must not hold up a worker in this loop
            text = await run_in_threadpool(_worked, kinds[kind], body)
        return Response(text, media_type="application/json", headers=HEADERS)

    def _check_token(self, request: Request, path: Sequence[str]) -> None:
        """Raise HTTPException without the token: as `Authorization`, or as a part of the path."""
        given = (request.headers.get("authorization", "").removeprefix("Bearer "), *path)
        wanted = self.token.encode()
        if wanted and not any(hmac.compare_digest(one.encode(), wanted) for one in given):
            advice = "the token is missing or wrong: Authorization: Bearer TOKEN"
            raise HTTPException(401, advice, CLOSE)

    async def _decoded(self, payloads: Sequence[Payload], most: int = ANSWER_BYTES) -> list[Payload]:
        """The payloads, one for one. One that cannot be decoded is left as it is: the reader of a language
        would take an explanation for the value. The log has the reason."""
        found, size = list(payloads), 0
        for number, payload in enumerate(payloads):
            stored = sum(one.size_bytes for one in payload.external_payloads)
            if stored > most:
                continue
            size += payload.ByteSize() + stored
            if size > ANSWER_BYTES:
                break
            with suppress(StoreError):
                (raw,) = await self._converter.decode([payload], [RawValue])
                if not raw.payload.metadata.get("encoding", b"").startswith(b"ratchet/"):
                    found[number] = raw.payload
        return found

    async def _encoded(self, payloads: Sequence[Payload]) -> list[Payload]:
        """The payloads, one for one, as a worker would send them."""
        return [
            one if is_encrypted(one) else (await self._converter.encode([RawValue(one)]))[0]
            for one in payloads
        ]


def _worked(work: Work, body: bytes) -> str:
    """The answer to a request's body. Raises HTTPException."""
    try:
        payloads = Parse(body, Payloads(), ignore_unknown_fields=True).payloads
    except (ParseError, UnicodeDecodeError):
        raise HTTPException(400, 'expected {"payloads": [...]} as JSON') from None
    try:
        return MessageToJson(Payloads(payloads=asyncio.run(work(payloads))), indent=None)
    except StoreError as error:
        raise HTTPException(503, str(error)) from error
