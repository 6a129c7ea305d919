"""Models of OpenAI, or of any server that speaks the same protocol: where a call goes, and one call. Each
provider of `activities/endpoints.py` is one object of `OpenAIProvider`.

The client library is imported, and its client made, in a thread: a second of CPU on the worker's
event loop costs heartbeats. The request goes out as bytes, because the library's own way walks through
every message of the conversation: 330 ms of CPU for 2,000 messages, 10 ms this way. What is posted and how
replies are read is in `openai_chat.py` and `openai_responses.py`, what servers refuse in `openai_quirks.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import structlog
from pydantic import SecretStr

from activities.contracts import REFUSAL, JsonObject, ModelReplied, ModelSpec, NativeCall, Usage
from activities.endpoints import (
    BASE_URL,
    ENDPOINTS,
    OPENAI,
    Endpoint,
    endpoint_at,
    key_in_environment,
    no_key,
    normal_url,
)
from activities.installed import missing_extra
from activities.pricing import cost_of, estimated_usage
from activities.provider import ModelCall, ProviderError, out_of_requests, reply_too_large
from activities.providers import openai_chat, openai_responses
from activities.providers.openai_chat import ChatReply
from activities.providers.openai_errors import Server, reported_error, with_plain_errors, without_secrets
from activities.providers.openai_quirks import (
    MOST_QUIRKS,
    NATIVE,
    NO_TOOLS,
    asks_by_tool,
    complaint,
    fitted,
    holds_json,
    read,
    together,
    unusable,
    way,
)
from activities.providers.openai_reply import Reply, as_kept
from activities.providers.openai_responses import ResponsesReply
from activities.settings import Settings
from activities.trust import trusted

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    import httpx2
    from openai import APIStatusError, AsyncOpenAI, AsyncStream, RequestOptions

    Clients = dict[tuple[str, str], AsyncOpenAI]
    """By URL and key."""

__all__ = ["PROVIDERS", "OpenAIProvider"]

Asked = tuple[str, str, str]
"""URL, model and API."""
Slip = tuple[Asked, str | None]
"""With the quirk that two such replies in a row show."""
PLACEHOLDER = "none-needed"
"""Sent where no key belongs; many servers want to see the header."""
PLAIN_HEADERS = frozenset(
    ("accept", "accept-encoding", "authorization", "connection", "content-length", "content-type",
     "host", "idempotency-key", "transfer-encoding", "user-agent")
)  # fmt: skip
"""All that others than OpenAI and the server of OPENAI_BASE_URL are sent: the library adds OpenAI's own from
the environment."""
MAX_BODY_BYTES = 16 * 2**20
"""Of an answer that comes whole, and of one event of a stream. Parsed, it may take twenty times as much
memory."""
MAX_LARGE_EVENTS = 8
"""How many such bodies a stream may have: 128,000 tokens are some 40 MB."""
EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
CONNECT_SECONDS = 10.0
LIST_SECONDS = 10.0
"""For the list of a server's models."""

log = structlog.get_logger("ratchet")


class OpenAIProvider:
    """Answers through chat completions, or the Responses API where a model's `api` says so.

    `key` and `base_url` are the worker's own; without a base URL it is the endpoint itself. The key goes to
    that one server. A task may name the servers in `allowed` too; they never see the key.
    """

    def __init__(
        self,
        key: SecretStr | None = None,
        base_url: str | None = None,
        allowed: Iterable[str] = (),
        max_body_bytes: int = MAX_BODY_BYTES,
        *,
        endpoint: Endpoint = OPENAI,
    ) -> None:
        self.name = endpoint.provider
        self.description = f"{endpoint.title} at {endpoint.url}"
        if endpoint is OPENAI:
            self.description = "OpenAI or any compatible server (Ollama, vLLM, LM Studio)"
        self._endpoint = endpoint
        self._key, self._base_url, self._allowed = key, base_url, tuple(allowed)
        self._max_body_bytes = max_body_bytes
        self._clients: WeakKeyDictionary[AbstractEventLoop, Clients] = WeakKeyDictionary()
        self._quirks: dict[Asked, frozenset[str]] = {}
        self._slipped: set[Slip] = set()
        """Ways to ask for a schema that the newest reply to them did not follow."""

    async def complete(self, call: ModelCall) -> ModelReplied:
        """The next message. Raises `ProviderError`."""
        server = self._server(call.model)
        try:
            return await with_plain_errors(self._ask(call, server), server)
        except ProviderError as error:
            if error.type != "model_not_found":
                raise
            hint = await self._available_models(server)
            raise ProviderError(error.error, error.type, f"{error.message}{hint}") from None

    async def check(self, model: ModelSpec) -> str | None:
        """What is wrong with key, base URL, server or model name; None when all is well."""
        try:
            server = self._server(model)
            names = await with_plain_errors(self._model_names(server), server)
        except ProviderError as error:
            cannot_list = error.type in ("HTTP404", "HTTP405", "HTTP501", "model_not_found")
            return None if cannot_list else error.message
        if not names or any(_is_named(name, model.name) for name in names):
            return None
        return f"{server.shown} has no model {model.name}{_suggestion(model.name, names)}"

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        for client in self._clients.pop(asyncio.get_running_loop(), {}).values():
            await client.close()

    # -- where a call goes ---------------------------------------------------------------------------

    def _server(self, model: ModelSpec) -> Server:
        """The server for a model. Raises a fatal `ProviderError` if it may not be used."""
        endpoint = self._endpoint
        configured = _url(self._base_url, BASE_URL) if self._base_url else endpoint.url
        wanted = _url(model.base_url, "base_url") if model.base_url else configured
        if wanted != configured:
            if wanted not in (_url(url, "RATCHET_BASE_URLS") for url in self._allowed):
                raise ProviderError(
                    "fatal",
                    "base_url_not_allowed",
                    f"this worker may not send to {without_secrets(wanted)}: add it to RATCHET_BASE_URLS "
                    f"(a JSON list) or make it {BASE_URL} where the worker runs",
                )
            return Server(wanted, model.name, configured=False, api=model.api)
        key = self._key.get_secret_value().strip() if self._key else ""
        owner = endpoint_at(self._base_url) if self._base_url else endpoint
        if not key and owner is not None:
            raise ProviderError("fatal", "no_key", no_key(model, owner))
        if not (key.isascii() and key.isprintable() and " " not in key):
            names = (owner or endpoint).key_names
            words = f"{names} holds spaces or characters that no key has; set it again"
            raise ProviderError("fatal", "no_key", words)
        return Server(wanted, model.name, key, owner=owner, api=model.api)

    async def _client(self, server: Server) -> AsyncOpenAI:
        """The client of the running event loop for a server."""
        clients = self._clients.setdefault(asyncio.get_running_loop(), {})
        if (server.url, server.key) not in clients:
            made = await asyncio.to_thread(_connect, server, self._max_body_bytes)
            clients.setdefault((server.url, server.key), made)  # another call may have been faster
        return clients[server.url, server.key]

    async def _available_models(self, server: Server) -> str:
        try:
            names = await with_plain_errors(self._model_names(server), server)
        except ProviderError:
            return ""
        return _suggestion(server.model, names) if names else ""

    async def _model_names(self, server: Server) -> list[str]:
        from openai import Omit

        client = await self._client(server)
        options: RequestOptions = {"timeout": LIST_SECONDS}
        if server.owner is not None and server.owner.list_key:
            own = {server.owner.list_key: server.key, **server.owner.list_headers}
            options |= {"headers": {**own, "Authorization": Omit()}, "params": server.owner.list_params}
        body = await client.get("/models", cast_to=object, options=options)
        listed = body.get("data") if isinstance(body, dict) else None
        names = [str(one["id"]) for one in listed or [] if isinstance(one, dict) and "id" in one]
        return names if server.owner is None else [name.removeprefix("models/") for name in names]  # Google's

    # -- one call ------------------------------------------------------------------------------------

    async def _ask(self, call: ModelCall, server: Server) -> ModelReplied:
        """Ask, in another way where this model turns out to refuse something (a temperature, say)."""
        client = await self._client(server)
        from openai import APIStatusError

        api: Api = openai_responses if call.model.api == "responses" else openai_chat
        known, before = (server.url, server.model, api.PATH), list[ModelReplied]()
        quirks, once = self._quirks.get(known, frozenset()), frozenset[str]()
        while True:
            asked = fitted(call, quirks)
            request = await asyncio.to_thread(_request, api, asked, quirks, server)
            try:
                reply = _answer(await _post(client, api, request, call, server), asked, server)
            except APIStatusError as error:
                quirk = _quirk_in(error, request.body, quirks, by_tool=asks_by_tool(asked, call))
                if quirk is None or call.requests.is_used_up:
                    if before:
                        return together(before.pop(), before)  # it was paid for
                    raise error if quirk is None else out_of_requests(_took_no(quirk, server)) from None
            else:
                if reply.tool_calls:
                    quirks |= {NATIVE}
                # only what helped is kept: one complaint that was misread would change all later questions
                self._quirks[known] = self._quirks.get(known, frozenset()) | (quirks - once)
                reply = read(reply, asked, call, native=NATIVE in quirks or server.owner is not None)
                quirk = unusable(reply, asked, call)
                once |= self._first_slip((known, way(asked, call)), quirk, reply)
                if quirk is None or call.requests.is_used_up:
                    return together(reply, before)
                before.append(reply)
            call.requests.begin()
            log.warning("model.quirk", model=call.model.name, quirk=quirk)
            quirks |= {quirk}

    def _first_slip(self, slip: Slip, quirk: str | None, reply: ModelReplied) -> set[str]:
        """The quirk, if it was not shown the last time, too: any model may slip once."""
        if quirk is None:
            if holds_json(reply.text):
                self._slipped.discard(slip)
            return set()
        again = slip in self._slipped
        self._slipped.add(slip)
        return set() if again else {quirk}


class Api(Protocol):
    """A module for one API."""

    PATH: str

    def body(self, call: ModelCall, quirks: Collection[str], by: str) -> JsonObject: ...


def _connect(server: Server, max_body_bytes: int) -> AsyncOpenAI:
    """A client that never retries. Slow when it is the first one: call it in a thread. Raises a fatal
    `ProviderError` where the library is not installed."""
    try:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient
    except ModuleNotFoundError as error:
        raise ProviderError("fatal", "not_installed", missing_extra("openai")) from error

    owner = server.owner
    plain = PLAIN_HEADERS | ({owner.list_key, *owner.list_headers} if owner else set())

    async def keep_plain_headers(request: httpx2.Request) -> None:
        for name in list(request.headers):
            if name.lower() not in plain:
                del request.headers[name]
        if not server.configured:
            request.headers["Authorization"] = f"Bearer {PLACEHOLDER}"

    cost_of(ModelSpec(), Usage(), base_url=server.url)  # loads the price list
    hooks: dict[str, list[Any]] = {
        "request": [] if server.configured and owner in (None, OPENAI) else [keep_plain_headers],
        "response": [_reading_limit(max_body_bytes, server)],
    }
    return AsyncOpenAI(
        api_key=server.key or PLACEHOLDER,
        base_url=server.url,
        max_retries=0,
        default_headers={"Accept-Encoding": "identity"},
        http_client=DefaultAsyncHttpxClient(verify=trusted(), follow_redirects=False, event_hooks=hooks),
    )


def _reading_limit(limit: int, server: Server) -> Callable[[httpx2.Response], Awaitable[None]]:
    """A hook that ends the reading of a body, or of one event of a stream, after `limit` bytes, and reads
    nothing that is compressed: a small one could unpack to any size."""
    import httpx2

    class Bounded(httpx2.AsyncByteStream):
        def __init__(self, response: httpx2.Response) -> None:
            self.stream: Any = response.stream
            self.encoding = response.headers.get("content-encoding", "identity").strip().lower()
            self.streams = "event-stream" in response.headers.get("content-type", "")

        async def __aiter__(self) -> AsyncIterator[bytes]:
            if self.encoding not in ("", "identity"):
                raise server.bad_response(f"data compressed by {self.encoding!r}, which was not asked for")
            whole = event = 0
            tail = b""
            async for piece in self.stream:
                seen = tail + piece
                end = max(map(seen.rfind, EVENT_ENDS)) if self.streams else -1
                event = len(seen) - end if end >= 0 else event + len(piece)
                whole, tail = whole + len(piece), seen[-3:]
                if event > limit or whole > MAX_LARGE_EVENTS * limit:
                    raise reply_too_large("bytes of data", limit)
                yield piece

        async def aclose(self) -> None:
            await self.stream.aclose()

    async def bound(response: httpx2.Response) -> None:
        response.stream = Bounded(response)

    return bound


async def _post(client: AsyncOpenAI, api: Api, request: Request, call: ModelCall, server: Server) -> Reply:
    import httpx2
    from openai import AsyncStream

    seconds = call.model.timeout_seconds
    stream = await client.post(
        api.PATH,
        content=request.content,
        cast_to=object,  # plain JSON: half the CPU of the library's own classes
        options={
            "timeout": httpx2.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds)),
            "headers": request.headers,
        },
        stream=True,
        stream_cls=AsyncStream[object],
    )
    reply: Reply = ResponsesReply() if api is openai_responses else ChatReply()
    async with stream:
        kind = stream.response.headers.get("content-type", "")
        if not call.model.stream or "json" in kind or "html" in kind:  # some servers never stream
            _whole(reply, (await stream.response.aread()).decode(errors="replace"), server)
        else:
            await _streamed(reply, stream, call, server)
    if reply.finish_reason == "content_filter":
        raise server.error("recoverable", "content_filter", "its filter stopped the reply")
    return reply


async def _streamed(reply: Reply, stream: AsyncStream[object], call: ModelCall, server: Server) -> None:
    secrets, waiting = server.long_secrets, ""
    longest = max(map(len, secrets), default=0)
    async for event in stream:
        waiting = server.without_keys(waiting + reply.add(event))
        if reply.error is not None:
            raise server.provider_error(reported_error({"error": reply.error}))
        # what may be the beginning of a key waits for more
        ends = range(max(len(waiting) - longest, 0), len(waiting))
        kept = next((n for n in ends if any(s.startswith(waiting[n:]) for s in secrets)), len(waiting))
        shown, waiting = waiting[:kept], waiting[kept:]
        if shown:
            call.on_text(shown)
    if waiting:
        call.on_text(waiting)
    if reply.finish_reason is None:  # the library takes a stream that was cut for a complete one
        raise server.error("transient", "stream_cut", "the stream ended in the middle of a reply")


def _whole(reply: Reply, text: str, server: Server) -> None:
    """A reply that came in one piece with status 200. Raises `ProviderError` for anything else."""
    try:
        body = json.loads(text)
    except ValueError:
        start = text.strip()[:120]
        if start.startswith("<"):
            raise server.web_page(start) from None
        raise server.bad_response(f"no JSON but {start!r}" if start else "nothing") from None
    reply.add(body)
    if reply.error is not None:
        raise server.provider_error(reported_error({"error": reply.error}))
    if not reply.answered:
        raise server.bad_response("JSON without choices")


def _answer(reply: Reply, call: ModelCall, server: Server) -> ModelReplied:
    """The reply with what it cost, and without the key."""
    model, usage, clean = call.model, reply.usage, server.without_keys
    calls = tuple(
        NativeCall(id=clean(one.id), name=clean(one.name), arguments=clean(one.arguments))
        for one in reply.tool_calls
    )
    if usage is None:
        usage = estimated_usage(call.messages, reply.text, calls)
        log.warning("model.usage_estimated", model=model.name)
    cost, known = cost_of(model, usage, reply.model, server.url)
    return ModelReplied(
        text=clean(reply.text),
        tool_calls=calls,
        kept=clean(as_kept(reply.kept, _by(call, server))),
        finish_reason=REFUSAL if reply.refused else clean(reply.finish_reason or "stop"),
        model=clean(reply.model) or model.name,
        usage=usage,
        cost_usd=cost,
        cost_known=known and reply.usage is not None,
    )


def _by(call: ModelCall, server: Server) -> str:
    """Whose reply it is: nobody else understands what is kept with it."""
    return sha256(f"{call.model.api} {server.model} {server.shown}".encode()).hexdigest()[:16]


class Request(NamedTuple):
    """What is posted; its key is that of the question and of these very bytes."""

    body: JsonObject
    content: bytes
    headers: Mapping[str, str]


def _request(api: Api, call: ModelCall, quirks: Collection[str], server: Server) -> Request:
    found = api.body(call, quirks, _by(call, server)).items()
    body: JsonObject = {name: value for name, value in found if value is not None and name not in quirks}
    content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    key = sha256(call.key.encode(errors="surrogatepass") + b"\0" + content).hexdigest()
    return Request(body, content, {"Idempotency-Key": key} if call.key else {})


def _quirk_in(
    error: APIStatusError, body: JsonObject, known: Collection[str], *, by_tool: bool
) -> str | None:
    """What the server does not take, if that is its complaint. llama-server says 500 of its templates."""
    if error.status_code not in (400, 422, 500) or len(known) >= MOST_QUIRKS:
        return None
    words = f"{error.message} {error.body}"
    if (found := complaint(words, error.param, body, known)) is not None:
        return found
    return NO_TOOLS if by_tool and "tool" in words.lower() else None


def _took_no(quirk: str, server: Server) -> str:
    return f"model {server.model} at {server.shown}: the server refused the question ({quirk})"


# -- addresses and models ------------------------------------------------------------------------------


def _url(url: str, where: str) -> str:
    """The URL in its normal form. Raises `ProviderError` that says where it comes from."""
    try:
        return normal_url(url)
    except ValueError as error:
        raise ProviderError("fatal", "bad_base_url", f"{where}: {error}") from None


def _is_named(listed: str, model: str) -> bool:
    """The listed model has this name: its own, Ollama's without the tag, Anthropic's without the date."""
    if listed in (model, f"{model}:latest"):
        return True
    return bool(re.fullmatch(re.escape(model.removesuffix("-latest")) + r"-20\d{6}", listed))


def _suggestion(model: str, names: list[str]) -> str:
    near = get_close_matches(model, names, n=3, cutoff=0.5)
    listed = ", ".join(near or sorted(names)[:10])
    return f"; it has {len(names)}, {'nearest' if near else 'such as'}: {listed}"


def from_environment(settings: Settings, endpoint: Endpoint = OPENAI) -> OpenAIProvider:
    """The provider of this worker: key and server from the variables of the provider's own tools. Where
    OPENAI_BASE_URL is a server of another one, the key is that one's."""
    base_url = os.environ.get(BASE_URL, "").strip() if endpoint is OPENAI else ""
    key = key_in_environment((endpoint_at(base_url) if base_url else None) or endpoint)
    return OpenAIProvider(
        key=SecretStr(key) if key else None,
        base_url=base_url or None,
        allowed=settings.base_urls,
        endpoint=endpoint,
    )


PROVIDERS = tuple(partial(from_environment, endpoint=one) for one in ENDPOINTS.values())
