"""Calls of chat completions over the `openai` client: asking, reading, checking."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import httpx2
import structlog
from openai import APIStatusError, AsyncOpenAI, AsyncStream, OpenAIError
from openai.types.chat import ChatCompletionChunk
from pydantic import SecretStr

from activities.contracts import ErrorClass, ModelReplied, ModelSpec, Setup, Usage
from activities.pricing import cost_of
from activities.provider import ProviderCall, ProviderError
from activities.providers._openai_endpoint import Endpoint, Endpoints
from activities.providers._openai_errors import (
    Server,
    bad_response,
    classify,
    explain,
    problem_of,
)
from activities.providers._openai_reply import Gathered, Piece
from activities.providers._openai_request import header_key, refused_field, request_body
from activities.transcript import Transcript

__all__ = ["ChatCompletions"]

CONNECT_SECONDS = 10.0
LOOK_SECONDS = 10.0
"""For a look at what models a server has."""

BROKEN = (OpenAIError, httpx2.HTTPError, httpx2.StreamError, ValueError, RecursionError)
"""What the client library raises, and what reading an answer does."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Question:
    """One call with all that belongs to it."""

    endpoint: Endpoint
    server: Server
    setup: Setup
    transcript: Transcript
    call: ProviderCall

    @property
    def model(self) -> ModelSpec:
        return self.setup.model

    def failed(self, error: ErrorClass, cause: str, text: str) -> ProviderError:
        return ProviderError(error, cause, f"model {self.model.name} at {self.server.url}: {text}")


class ChatCompletions:
    """What `OpenAIProvider` does, apart from it so that the client library is loaded when needed.

    Raises a fatal `ProviderError` if one of the URLs is none.
    """

    def __init__(
        self, key: SecretStr | None, base_url: str | None, allowed: Iterable[str], max_reply_bytes: int
    ) -> None:
        self._endpoints = Endpoints(key, base_url, allowed, max_reply_bytes)
        self._left_out: dict[tuple[str, str], frozenset[str]] = {}

    async def complete(self, setup: Setup, transcript: Transcript, call: ProviderCall) -> ModelReplied:
        """The next message. Raises `ProviderError`."""
        endpoint = self._endpoints.of(setup.model)
        server = endpoint.server(setup.model.name)
        question = _Question(endpoint, server, setup, transcript, call)
        async with self._explained(endpoint, server):
            return _reply(await self._ask(question), question)
        raise AssertionError("unreachable")  # for mypy: the context never swallows an exception

    async def check(self, spec: ModelSpec) -> str | None:
        """What is wrong with key, base URL, server or model name; None when all is well."""
        try:
            endpoint = self._endpoints.of(spec)
            server = endpoint.server(spec.name)
            async with self._explained(endpoint, server):
                names = await self._models(endpoint)
        except ProviderError as error:
            not_offered = error.type in ("HTTP404", "HTTP405", "HTTP501", "model_not_found")
            return None if not_offered else error.message
        if not names or {spec.name, f"{spec.name}:latest"} & set(names):
            return None
        return f"{server.url} has no model {spec.name}; {_known_models(spec.name, names)}"

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        await self._endpoints.close()

    async def _ask(self, question: _Question) -> Gathered:
        """Ask, leaving out what this model turns out not to take (a temperature, say)."""
        known = (question.endpoint.url, question.model.name)
        while True:
            left_out = self._left_out.get(known, frozenset())
            body = request_body(question.setup, question.transcript, question.call, left_out)
            try:
                return await self._once(question, body)
            except APIStatusError as error:
                refused = refused_field(error, body)
                if refused is None:
                    raise
                log.warning("model.field_left_out", model=question.model.name, field=refused)
                self._left_out[known] = left_out | {refused}

    async def _once(self, question: _Question, body: dict[str, Any]) -> Gathered:
        seconds = question.model.timeout_seconds
        timeout = httpx2.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds))
        options: dict[str, Any] = {"timeout": timeout}
        if question.call.key:
            options["extra_headers"] = {"Idempotency-Key": header_key(question.call.key)}
        chat = self._client(question.endpoint).chat.completions
        if not question.model.stream:
            raw = await chat.with_raw_response.create(**body, **options)
            return _whole(raw.text, question.server)
        stream: AsyncStream[ChatCompletionChunk] = await chat.create(**body, **options)
        async with stream:
            kind = stream.response.headers.get("content-type", "")
            if "json" in kind or "html" in kind:  # it does not stream, or it is no such server
                text = (await stream.response.aread()).decode(errors="replace")
                return _whole(text, question.server)
            return await _pieces(stream, question)

    @asynccontextmanager
    async def _explained(self, endpoint: Endpoint, server: Server) -> AsyncIterator[None]:
        """Turn what the client library raises into a `ProviderError` that holds nothing of it."""
        try:
            yield
            return
        except ProviderError as error:
            failure = error
        except BROKEN as error:
            failure = explain(error, server)
        message = failure.message
        if failure.type == "model_not_found":
            message += await self._hint(endpoint, server.model)
        # Raised here, without a cause: the library's errors hold the key in their request.
        raise ProviderError(failure.error, failure.type, message, failure.retry_after_seconds)

    async def _hint(self, endpoint: Endpoint, model: str) -> str:
        """The server's own models, if it tells them."""
        try:
            names = await self._models(endpoint)
        except BROKEN:
            names = []
        return f"; {_known_models(model, names)}" if names else ""

    async def _models(self, endpoint: Endpoint) -> list[str]:
        models = self._client(endpoint).models.with_raw_response
        body = json.loads((await models.list(timeout=LOOK_SECONDS)).text)
        listed = body.get("data") if isinstance(body, dict) else None
        return [str(m["id"]) for m in listed or [] if isinstance(m, dict) and "id" in m]

    def _client(self, endpoint: Endpoint) -> AsyncOpenAI:
        return self._endpoints.client(endpoint)


async def _pieces(stream: AsyncStream[ChatCompletionChunk], question: _Question) -> Gathered:
    """Read a stream to its end."""
    gathered = Gathered()
    async for chunk in stream:
        if not isinstance(chunk, ChatCompletionChunk):  # the client library passes on any JSON
            raise bad_response(f"an event that is no chunk: {str(chunk)[:80]!r}", question.server)
        before = len(gathered.text)
        gathered.add(Piece.model_validate(chunk.to_dict(warnings=False)))
        if len(gathered.text) != before:
            question.call.on_text(gathered.text)
    if gathered.finish_reason is None:  # the client library takes a cut stream for a complete one
        raise question.failed("transient", "stream_cut", "the stream ended in the middle of a reply")
    return gathered


def _whole(text: str, server: Server) -> Gathered:
    """A reply that came in one piece with status 200, or what came instead."""
    try:
        body = json.loads(text)
    except ValueError:
        start = text.strip()[:120]
        raise bad_response(f"no JSON but {start!r}" if start else "nothing", server) from None
    piece = Piece.model_validate(body)
    if piece.error is not None:
        raise classify(problem_of(body), server)
    gathered = Gathered()
    gathered.add(piece)
    if not gathered.answered:
        raise bad_response("JSON without choices", server)
    return gathered


def _reply(gathered: Gathered, question: _Question) -> ModelReplied:
    """The reply with what it cost."""
    if gathered.finish_reason == "content_filter":
        raise question.failed("recoverable", "content_filter", "its filter stopped the reply")
    spec, transcript = question.model, question.transcript
    text, calls = gathered.whole_text(), gathered.tool_calls(len(transcript))
    usage = gathered.usage
    if usage is None:
        usage = _estimated(transcript, text + "".join(call.arguments for call in calls))
        log.warning("model.usage_estimated", model=spec.name)
    cost, known = cost_of(spec, usage, gathered.model, question.endpoint.url)
    return ModelReplied(
        text=text,
        tool_calls=calls,
        finish_reason="refusal" if gathered.refused else gathered.finish_reason or "stop",
        model=gathered.model or spec.name,
        usage=usage,
        cost_usd=cost,
        cost_known=known and gathered.usage is not None,
    )


def _estimated(transcript: Transcript, reply: str) -> Usage:
    """Tokens at four characters each, for servers that do not count: limits must still hold."""
    asked = sum(len(message.content) for message in transcript)
    return Usage(input_tokens=-(-asked // 4), output_tokens=-(-len(reply) // 4))


def _known_models(model: str, names: list[str]) -> str:
    near = get_close_matches(model, names, n=3, cutoff=0.5)
    shown = ", ".join(near or sorted(names)[:10])
    return f"it has {len(names)}, {'nearest' if near else 'such as'}: {shown}"
