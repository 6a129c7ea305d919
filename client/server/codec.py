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
import re
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from google.protobuf.json_format import MessageToJson, Parse, ParseError
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.common import RawValue

from activities.settings import Settings
from activities.store.blobs import StoreError
from activities.store.codec import is_encrypted
from activities.store.converter import data_converter
from activities.store.stores import Stores
from client.errors import UsageError

__all__ = ["CodecServer"]

REQUEST_BYTES = 16 * 2**20
ANSWER_BYTES = 64 * 2**20
"""Values beyond are left as they are."""
SHOWN_BYTES = 2**20
"""Larger ones are left as references where the Web UI asks for that: it has a button that downloads them."""
AT_A_TIME = 8
"""Requests; others wait."""
IDLE_SECONDS = 30
LOCAL = ("localhost", "127.0.0.1", "::1")
HEADER_NAMES = re.compile(r"[A-Za-z0-9, _-]{0,500}")


class CodecServer(ThreadingHTTPServer):
    """Serves in a thread of its own from `__enter__` to `__exit__`."""

    daemon_threads = True

    def __init__(
        self,
        settings: Settings,
        address: tuple[str, int] = ("127.0.0.1", 0),
        *,
        origins: Iterable[str] = (),
        hosts: Iterable[str] = (),
    ) -> None:
        """Listen.

        Args:
            settings: data directory, keys, and the token if there is one.
            address: host and port to listen at; port 0 is any free one.
            origins: of web pages that may ask, such as `http://localhost:8233`.
            hosts: names by which this machine is called, besides `localhost`.

        Raises:
            UsageError: the address cannot be used, others reach it and there is no token, a key is wrong, or
                the store cannot be used.
        """
        self.token = settings.codec_token.get_secret_value() if settings.codec_token else ""
        if not self.token and not _is_local(address[0]):
            raise UsageError(
                f"others can reach {address[0]}, and whoever may ask a codec server reads all runs: set "
                "RATCHET_CODEC_TOKEN (16 characters or more), or listen at 127.0.0.1"
            )
        self.origins, self.hosts = frozenset(origins), frozenset((*LOCAL, address[0], *hosts))
        stores = Stores(settings)
        try:
            stores.check_keys()
        except StoreError as error:
            raise UsageError(str(error)) from error
        self.converter = data_converter((stores.blobs, stores.secret), stores.keys)
        self.places = threading.BoundedSemaphore(AT_A_TIME)
        try:
            super().__init__(address, _Handler)
        except OSError as error:
            raise UsageError(
                f"the codec server cannot listen at {address[0]}:{address[1]}: {error.strerror or error}; "
                "choose another port with --listen"
            ) from error

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def __enter__(self) -> CodecServer:
        threading.Thread(target=self.serve_forever, name="codec", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    async def decoded(self, payloads: Sequence[Payload], most: int = ANSWER_BYTES) -> list[Payload]:
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
                (raw,) = await self.converter.decode([payload], [RawValue])
                if not raw.payload.metadata.get("encoding", b"").startswith(b"ratchet/"):
                    found[number] = raw.payload
        return found

    async def encoded(self, payloads: Sequence[Payload]) -> list[Payload]:
        """The payloads, one for one, as a worker would send them."""
        return [
            one if is_encrypted(one) else (await self.converter.encode([RawValue(one)]))[0]
            for one in payloads
        ]


def _is_local(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


class _Refused(Exception):
    """A request that is not served: the status and the reason."""


class _Handler(BaseHTTPRequestHandler):
    server: CodecServer
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS

    def do_OPTIONS(self) -> None:  # the name that the library calls
        """A browser asks whether a page may ask."""
        try:
            self._check_page()
        except _Refused as error:
            return self._answer(*error.args)
        return self._answer(HTTPStatus.NO_CONTENT, "")

    def do_POST(self) -> None:
        """Decode or encode."""
        kinds: dict[str, Callable[[Sequence[Payload]], Coroutine[Any, Any, list[Payload]]]]
        kinds = {
            "decode": self.server.decoded,
            "download": self.server.decoded,
            "encode": self.server.encoded,
        }
        try:
            self._check_page()
            parts = urlsplit(self.path)
            *before, kind = parts.path.strip("/").split("/")
            if parts.query == "preserveStorageRefs=true":
                kinds["decode"] = partial(self.server.decoded, most=SHOWN_BYTES)
            self._check_token(before)
            if kind not in kinds:
                raise _Refused(HTTPStatus.NOT_FOUND, "a codec server has /decode, /download and /encode")
            payloads = self._payloads()
            with self.server.places:
                made = asyncio.run(kinds[kind](payloads))
                text = MessageToJson(Payloads(payloads=made), indent=None)
        except _Refused as error:
            return self._answer(*error.args)
        except StoreError as error:
            return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        return self._answer(HTTPStatus.OK, text, "application/json")

    def _check_page(self) -> None:
        """Raise `_Refused` for what another web page sends, or one whose name was made to lead here."""
        host = self.headers.get("Host", "")
        name = None
        with suppress(ValueError):  # brackets that are no IPv6 address
            name = urlsplit(f"//{host}").hostname
        if name not in self.server.hosts:
            raise _Refused(HTTPStatus.FORBIDDEN, f"this codec server is not called {host!r}; see --host")
        origin = self.headers.get("Origin")
        if origin is not None and origin not in self.server.origins:
            raise _Refused(HTTPStatus.FORBIDDEN, f"pages of {origin} may not ask; see --origin")

    def _check_token(self, path: Sequence[str]) -> None:
        """Raise `_Refused` without the token: as `Authorization`, or as a part of the path."""
        given = (self.headers.get("Authorization", "").removeprefix("Bearer "), *path)
        wanted = self.server.token.encode()
        if wanted and not any(hmac.compare_digest(one.encode(), wanted) for one in given):
            raise _Refused(
                HTTPStatus.UNAUTHORIZED, "the token is missing or wrong: Authorization: Bearer TOKEN"
            )

    def _payloads(self) -> Sequence[Payload]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > REQUEST_BYTES:
            self.close_connection = True
            raise _Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"a request has a length, of at most {REQUEST_BYTES:,} bytes",
            )
        try:
            return Parse(self.rfile.read(int(length)), Payloads(), ignore_unknown_fields=True).payloads
        except (ParseError, UnicodeDecodeError):
            raise _Refused(HTTPStatus.BAD_REQUEST, 'expected {"payloads": [...]} as JSON') from None

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        body = text.encode()
        if status is HTTPStatus.FORBIDDEN or status is HTTPStatus.UNAUTHORIZED:
            self.close_connection = True  # its body was not read
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if (origin := self.headers.get("Origin")) in self.server.origins:
            wanted = self.headers.get("Access-Control-Request-Headers", "")
            self.send_header("Access-Control-Allow-Origin", str(origin))
            self.send_header("Access-Control-Allow-Credentials", "true")
            self.send_header("Access-Control-Allow-Methods", "POST")
            self.send_header("Access-Control-Allow-Private-Network", "true")
            self.send_header("Vary", "Origin")
            if HEADER_NAMES.fullmatch(wanted):
                self.send_header("Access-Control-Allow-Headers", wanted)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: an address may hold the token."""
