"""Chat completions of OpenAI, or of any server that speaks the same protocol.

The client library is imported, and its client made, in a thread: a second of CPU on the worker's
event loop costs heartbeats. The request goes out as bytes, because the library's own way walks through
every message of the conversation: 330 ms of CPU for 2,000 messages, 10 ms this way. How replies are
read is in `openai_reply.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from difflib import get_close_matches
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit
from weakref import WeakKeyDictionary

import structlog
from pydantic import SecretStr

from activities.contracts import JsonObject, Message, ModelReplied, ModelSpec, ToolCall, Usage
from activities.pricing import cost_of, estimated_usage
from activities.provider import ModelCall, ProviderError, reply_too_large
from activities.providers.openai_errors import Server, problem_of, with_plain_errors, without_secrets
from activities.providers.openai_reply import Piece, Reply
from activities.settings import Settings

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    import httpx2
    from openai import APIStatusError, AsyncOpenAI, AsyncStream

    Clients = dict[tuple[str, str], AsyncOpenAI]
    """By URL and key."""

__all__ = ["PROVIDER", "OpenAIProvider", "request_body"]

OFFICIAL_URL = "https://api.openai.com/v1"
PLACEHOLDER = "none-needed"
"""Sent where no key belongs; many servers want to see the header."""
PLAIN_HEADERS = frozenset(
    ("accept", "accept-encoding", "authorization", "connection", "content-length", "content-type",
     "host", "idempotency-key", "transfer-encoding", "user-agent")
)  # fmt: skip
"""All that a server is sent that only a task names: the library adds others from the environment."""
MAX_BODY_BYTES = 16 * 2**20
"""Of an answer that comes whole, and of one event of a stream. Parsed, it may take twenty times as much
memory."""
EVENTS = 8
"""How many such bodies a stream may have: 128,000 tokens are some 40 MB."""
EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
CONNECT_SECONDS = 10.0
LIST_SECONDS = 10.0
"""For the list of a server's models."""
NAME_LIMIT = 64
"""Characters of a function's name."""

OPTIONAL_FIELDS = ("temperature", "seed", "stream_options", "max_completion_tokens", "max_tokens")
"""Fields that are left out for a model that refuses them."""
REFUSAL_WORDS = re.compile(
    r"not support|unsupported|unknown|unrecognized|unexpected|not permitted|not allowed"
    r"|extra (field|input)|deprecated",
    re.IGNORECASE,
)

log = structlog.get_logger(__name__)


class OpenAIProvider:
    """Answers through chat completions.

    `key` and `base_url` are the worker's own; without a base URL it is OpenAI itself. The key goes to
    that one server. A task may name the servers in `allowed` too; they never see the key.
    """

    name = "openai"
    description = "chat completions of OpenAI or any compatible server (Ollama, vLLM, LM Studio)"

    def __init__(
        self,
        key: SecretStr | None = None,
        base_url: str | None = None,
        allowed: Iterable[str] = (),
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._key, self._base_url, self._allowed = key, base_url, tuple(allowed)
        self._max_body_bytes = max_body_bytes
        self._clients: WeakKeyDictionary[AbstractEventLoop, Clients] = WeakKeyDictionary()
        self._left_out: dict[tuple[str, str], frozenset[str]] = {}

    async def complete(self, call: ModelCall) -> ModelReplied:
        """The next message. Raises `ProviderError`."""
        server = self._server(call.model)
        try:
            reply = await with_plain_errors(self._ask(call, server), server)
        except ProviderError as error:
            if error.type != "model_not_found":
                raise
            hint = await self._available_models(server)
            raise ProviderError(error.error, error.type, f"{error.message}{hint}") from None
        return _answer(reply, call, server)

    async def check(self, model: ModelSpec) -> str | None:
        """What is wrong with key, base URL, server or model name; None when all is well."""
        try:
            server = self._server(model)
            names = await with_plain_errors(self._model_names(server), server)
        except ProviderError as error:
            cannot_list = error.type in ("HTTP404", "HTTP405", "HTTP501", "model_not_found")
            return None if cannot_list else error.message
        if not names or {model.name, f"{model.name}:latest"} & set(names):
            return None
        return f"{server.shown} has no model {model.name}{_suggestion(model.name, names)}"

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        for client in self._clients.pop(asyncio.get_running_loop(), {}).values():
            await client.close()

    # -- where a call goes ---------------------------------------------------------------------------

    def _server(self, model: ModelSpec) -> Server:
        """The server for a model. Raises a fatal `ProviderError` if it may not be used."""
        configured = _normal(self._base_url, "OPENAI_BASE_URL") if self._base_url else OFFICIAL_URL
        wanted = _normal(model.base_url, "base_url") if model.base_url else configured
        if wanted != configured:
            if wanted not in (_normal(url, "RATCHET_BASE_URLS") for url in self._allowed):
                raise ProviderError(
                    "fatal",
                    "base_url_not_allowed",
                    f"this worker may not send to {without_secrets(wanted)}: add it to RATCHET_BASE_URLS "
                    "(a JSON list) or make it OPENAI_BASE_URL where the worker runs",
                )
            return Server(wanted, model.name, configured=False)
        key = self._key.get_secret_value().strip() if self._key else ""
        if not key and configured == OFFICIAL_URL:
            raise ProviderError(
                "fatal",
                "no_key",
                f"model {model.name} needs a key: set OPENAI_API_KEY, or name your own server with "
                "--base-url or OPENAI_BASE_URL (Ollama: http://localhost:11434/v1); "
                "--model scripted needs neither",
            )
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise ProviderError(
                "fatal", "no_key", "OPENAI_API_KEY holds spaces or characters that no key has; set it again"
            )
        return Server(wanted, model.name, key)

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
        client = await self._client(server)
        body = await client.get("/models", cast_to=object, options={"timeout": LIST_SECONDS})
        listed = body.get("data") if isinstance(body, dict) else None
        return [str(one["id"]) for one in listed or [] if isinstance(one, dict) and "id" in one]

    # -- one call ------------------------------------------------------------------------------------

    async def _ask(self, call: ModelCall, server: Server) -> Reply:
        """Ask, leaving out the fields that this model turns out to refuse (a temperature, say)."""
        client = await self._client(server)
        from openai import APIStatusError

        known = (server.url, server.model)
        while True:
            left_out = self._left_out.get(known, frozenset())
            body, content = await asyncio.to_thread(_request, call, left_out)
            try:
                return await _post(client, content, call, server)
            except APIStatusError as error:
                refused = _refused_field(error, body)
                if refused is None:
                    raise
                log.warning("model.field_left_out", model=call.model.name, field=refused)
                self._left_out[known] = left_out | {refused}


def _connect(server: Server, max_body_bytes: int) -> AsyncOpenAI:
    """A client that never retries. Slow when it is the first one: call it in a thread."""
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    async def keep_plain_headers(request: httpx2.Request) -> None:
        for name in list(request.headers):
            if name.lower() not in PLAIN_HEADERS:
                del request.headers[name]
        request.headers["Authorization"] = f"Bearer {PLACEHOLDER}"

    cost_of(ModelSpec(), Usage(), base_url=server.url)  # loads the price list
    hooks: dict[str, list[Any]] = {
        "request": [] if server.configured else [keep_plain_headers],
        "response": [_bounded(max_body_bytes, server)],
    }
    return AsyncOpenAI(
        api_key=server.key or PLACEHOLDER,
        base_url=server.url,
        max_retries=0,
        default_headers={"Accept-Encoding": "identity"},
        http_client=DefaultAsyncHttpxClient(follow_redirects=False, event_hooks=hooks),
    )


def _bounded(limit: int, server: Server) -> Callable[[httpx2.Response], Awaitable[None]]:
    """A hook that ends the reading of a body, or of one event of a stream, behind `limit` bytes, and reads
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
                if event > limit or whole > EVENTS * limit:
                    raise reply_too_large("bytes of data", limit)
                yield piece

        async def aclose(self) -> None:
            await self.stream.aclose()

    async def bound(response: httpx2.Response) -> None:
        response.stream = Bounded(response)

    return bound


async def _post(client: AsyncOpenAI, content: bytes, call: ModelCall, server: Server) -> Reply:
    import httpx2
    from openai import AsyncStream

    seconds = call.model.timeout_seconds
    key = {"Idempotency-Key": sha256(call.key.encode(errors="surrogatepass")).hexdigest()} if call.key else {}
    stream = await client.post(
        "/chat/completions",
        content=content,
        cast_to=object,  # plain JSON: half the CPU of the library's own classes
        options={"timeout": httpx2.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds)), "headers": key},
        stream=True,
        stream_cls=AsyncStream[object],
    )
    async with stream:
        kind = stream.response.headers.get("content-type", "")
        if not call.model.stream or "json" in kind or "html" in kind:  # some servers never stream
            reply = _whole((await stream.response.aread()).decode(errors="replace"), server)
        else:
            reply = await _streamed(stream, call, server)
    if reply.finish_reason == "content_filter":
        raise server.error("recoverable", "content_filter", "its filter stopped the reply")
    return reply


async def _streamed(stream: AsyncStream[object], call: ModelCall, server: Server) -> Reply:
    reply, secrets, waiting = Reply(), server.long_secrets, ""
    longest = max(map(len, secrets), default=0)
    async for event in stream:
        waiting = server.without_keys(waiting + reply.add(Piece.model_validate(event)))
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
    return reply


def _whole(text: str, server: Server) -> Reply:
    """A reply that came in one piece with status 200. Raises `ProviderError` for anything else."""
    try:
        body = json.loads(text)
    except ValueError:
        start = text.strip()[:120]
        raise server.bad_response(f"no JSON but {start!r}" if start else "nothing") from None
    piece, reply = Piece.model_validate(body), Reply()
    if piece.error is not None:
        raise server.reported(problem_of(body))
    reply.add(piece)
    if not reply.answered:
        raise server.bad_response("JSON without choices")
    return reply


def _answer(reply: Reply, call: ModelCall, server: Server) -> ModelReplied:
    """The reply with what it cost, and without the key."""
    model, usage, clean = call.model, reply.usage, server.without_keys
    calls = tuple(
        ToolCall(id=clean(one.id), name=clean(one.name), arguments=clean(one.arguments))
        for one in reply.tool_calls
    )
    if usage is None:
        usage = estimated_usage(call.messages, reply.text, calls)
        log.warning("model.usage_estimated", model=model.name)
    cost, known = cost_of(model, usage, reply.model, server.url)
    return ModelReplied(
        text=clean(reply.text),
        tool_calls=calls,
        finish_reason="refusal" if reply.refused else clean(reply.finish_reason or "stop"),
        model=clean(reply.model) or model.name,
        usage=usage,
        cost_usd=cost,
        cost_known=known and reply.usage is not None,
    )


# -- the request ---------------------------------------------------------------------------------------


def _request(call: ModelCall, left_out: Collection[str]) -> tuple[JsonObject, bytes]:
    body = request_body(call, left_out)
    return body, json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def request_body(call: ModelCall, left_out: Collection[str] = ()) -> JsonObject:
    """What to post, without the fields in `left_out` and those that the task leaves open."""
    model, setup = call.model, call.setup
    body: dict[str, Any] = {
        "model": model.name,
        "messages": [_message(message) for message in call.messages],
        "temperature": model.temperature,
        "seed": model.seed,
        "stream": model.stream,
        "stream_options": {"include_usage": True} if model.stream else None,
    }
    for name in ("max_completion_tokens", "max_tokens"):  # the second is the older name
        if name not in left_out:
            body[name] = model.max_output_tokens
            break
    if setup.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": t.name, "description": t.description, "parameters": t.parameters},
            }
            for t in setup.tools
        ]
        body["tool_choice"] = call.tool_choice
    if setup.response_schema is not None:
        schema = setup.response_schema
        wanted = {"name": "reply", "schema": schema, "strict": _is_closed(schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": wanted}
    return {name: value for name, value in body.items() if value is not None and name not in left_out}


def _message(message: Message) -> dict[str, Any]:
    shaped: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        shaped["content"] = message.content or None
        shaped["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": _name(call.name), "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        shaped["tool_call_id"] = message.tool_call_id
    return shaped


def _name(name: str) -> str:
    """A function's name as OpenAI accepts it; a model may have made up another one."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:NAME_LIMIT] or "unnamed"


def _arguments(text: str) -> str:
    """Arguments as one JSON object: vLLM, llama-server and SGLang refuse the whole conversation for
    one slip in an old message. The model can still read what it wrote."""
    if not text.strip():
        return "{}"
    try:
        value = json.loads(text)
        # Python reads more than JSON has: NaN, numbers without bounds, half a character pair.
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        value = None
    return text if isinstance(value, dict) else json.dumps({"invalid": text}, ensure_ascii=False)


def _is_closed(schema: object) -> bool:
    """Servers enforce a schema strictly only if no object in it leaves anything open."""
    if isinstance(schema, list):
        return all(_is_closed(part) for part in schema)
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties")
        names = set(properties) if isinstance(properties, dict) else set()
        if schema.get("additionalProperties") is not False or names != set(schema.get("required", [])):
            return False
    return all(_is_closed(part) for part in schema.values())


def _refused_field(error: APIStatusError, body: JsonObject) -> str | None:
    """The optional field that the server does not know or accept, if that is its complaint."""
    words = f"{error.message} {error.body}"
    if error.status_code not in (400, 422):
        return None
    if not REFUSAL_WORDS.search(words):
        return None
    for name in OPTIONAL_FIELDS:
        if name in body and (error.param == name or re.search(rf"(?<!\w){name}(?!\w)", words)):
            return name
    return None


# -- addresses and models ------------------------------------------------------------------------------


def _normal(url: str, where: str) -> str:
    """The URL in the one form in which URLs are compared. Raises `ProviderError`."""
    parts = urlsplit(url.strip())
    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number
        usable = False
    if not usable:
        raise ProviderError(
            "fatal", "bad_base_url", f"{where} is no http(s) URL, such as http://localhost:8000/v1"
        )
    user, at, host = parts.netloc.rpartition("@")
    host = host.lower().removesuffix(":443" if parts.scheme == "https" else ":80")
    return urlunsplit((parts.scheme, f"{user}{at}{host}", parts.path.rstrip("/"), parts.query, ""))


def _suggestion(model: str, names: list[str]) -> str:
    near = get_close_matches(model, names, n=3, cutoff=0.5)
    listed = ", ".join(near or sorted(names)[:10])
    return f"; it has {len(names)}, {'nearest' if near else 'such as'}: {listed}"


def from_environment(settings: Settings) -> OpenAIProvider:
    """The provider of this worker: key and server from the variables of OpenAI's own tools."""
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    return OpenAIProvider(
        key=SecretStr(key) if key else None,
        base_url=os.environ.get("OPENAI_BASE_URL", "").strip() or None,
        allowed=settings.base_urls,
    )


PROVIDER = from_environment
