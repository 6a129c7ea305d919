"""Spans by OpenTelemetry's conventions for generative AI, sent by OTLP.

A run may last days and outlive any process, so no span is ever held open. Each is made whole when its call
has ended, with true times, and its id is made from what it is about: the trace is the run id of the outermost
run, a run's span has an id made of the run, an attempt's span one made of the call's key and the attempt. So
each finds its parent, whichever worker made it. The span of a run itself is sent when its end is archived.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from opentelemetry import context, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from temporalio import activity

from activities.contracts import JsonObject, Message, ModelReplied, ModelSpec
from activities.contracts.record_events import REQUEST_CLOSED, REQUEST_OPENED, own_records
from activities.endpoints import provider_of
from activities.installed import installed_version
from activities.provider import ModelCall
from activities.telemetry.attempts import Archived, Attempt, Redact, ToolAttempt

__all__ = ["Tracing", "span_id", "trace_id"]

CLOSE_SECONDS = 5
"""For spans that are not sent yet, when the worker stops."""
CONTENT_CHARS = 32_000
"""Of one text in a span."""
SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
"""Version of the conventions that name the attributes."""
Attributes = dict[str, Any]


class Tracing:
    """Makes spans and sends them. With `redact` they hold what was said, called and returned."""

    def __init__(self, redact: Redact | None = None) -> None:
        """Raises ImportError: no exporter is installed for OTEL_EXPORTER_OTLP_PROTOCOL."""
        self._redact = redact
        self._batches = BatchSpanProcessor(_exporter())
        self._scope = InstrumentationScope("ratchet", installed_version() or None, SCHEMA)
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):  # the program has none
            trace.set_tracer_provider(_OfTools(resource=_resource(), shutdown_on_exit=False))
        if isinstance(of_tools := trace.get_tracer_provider(), _OfTools):
            of_tools.add_span_processor(self._batches)

    @contextmanager
    def current(self, attempt: Attempt) -> Iterator[None]:
        """Spans that a tool or a library makes meanwhile are children of the attempt's."""
        root, span, _ = _place(attempt)
        token = context.attach(trace.set_span_in_context(NonRecordingSpan(self._context(root, span))))
        try:
            yield
        finally:
            context.detach(token)

    def asked(self, call: ModelCall, attempt: Attempt) -> None:
        """`chat {model}`."""
        model = call.model
        address = urlsplit(model.base_url or "")
        attributes: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": model.provider,
            "gen_ai.request.model": model.name,
            "gen_ai.request.temperature": model.temperature,
            "gen_ai.request.seed": model.seed,
            "gen_ai.request.max_tokens": model.max_output_tokens,
            "gen_ai.output.type": "json" if call.setup.response_schema else None,
            "server.address": address.hostname,
            "server.port": address.port if address.hostname else None,
        }
        content: Attributes = {"gen_ai.input.messages": _new_messages(call)}
        if isinstance(reply := attempt.result, ModelReplied):
            attributes |= {
                "gen_ai.response.model": reply.model or None,
                "gen_ai.response.finish_reasons": [reply.finish_reason],
                "gen_ai.usage.input_tokens": reply.usage.input_tokens,
                "gen_ai.usage.output_tokens": reply.usage.output_tokens,
                "gen_ai.usage.cache_read.input_tokens": reply.usage.cached_tokens or None,
                "ratchet.cost_usd": reply.cost_usd if reply.cost_known else None,
            }
            content["gen_ai.output.messages"] = [
                {**_message(reply.message), "finish_reason": reply.finish_reason}
            ]
        self._send_attempt(f"chat {model.name}", SpanKind.CLIENT, attempt, attributes, content)

    def called(self, attempt: ToolAttempt) -> None:
        """`execute_tool {tool}`."""
        request, result = attempt.request, attempt.result
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": request.tool,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": getattr(request, "id", None),
            "ratchet.tool.part": attempt.part,
            "ratchet.cost_usd": getattr(result, "cost_usd", None) or None,
        }
        content = {
            "gen_ai.tool.call.arguments": request.arguments,
            "gen_ai.tool.call.result": getattr(result, "output", getattr(result, "text", None)),
        }
        name = f"execute_tool {request.tool[:64]}"
        self._send_attempt(name, SpanKind.INTERNAL, attempt, attributes, content)

    def archived(self, new: Archived, whole: Callable[[], tuple[JsonObject, ...]]) -> None:
        """`invoke_agent {agent}`, and `ask_person {kind}` for each request to people, once a run is over."""
        if (result := new.result) is None:
            return
        parents: Any = result.get("parents") or ()
        root = str(parents[0][1]) if parents else new.run_id
        run, records = span_id(root, new.workflow_id), own_records(whole())
        task: Any = result["task"]
        counters: Any = result["counters"]
        model = task["models"]["default"]
        common = {"gen_ai.conversation.id": new.workflow_id, "ratchet.run.id": new.run_id}
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": provider_of(ModelSpec.model_validate(model)),
            "gen_ai.request.model": model["name"],
            "gen_ai.agent.name": result["agent"],
            "gen_ai.usage.input_tokens": int(counters.get("input_tokens", 0)),
            "gen_ai.usage.output_tokens": int(counters.get("output_tokens", 0)),
            "ratchet.machine": f"{result['machine']} {result['machine_version']}",
            "ratchet.state": result["state"],
            "ratchet.steps": result["step"],
            "ratchet.exit_reason": result["exit_reason"],
            "ratchet.cost_usd": counters.get("cost_usd", 0.0),
        }
        content = {
            "gen_ai.input.messages": [_message(Message(role="user", content=task["goal"]))],
            "gen_ai.output.messages": [_message(Message(role="assistant", content=result["answer"] or ""))],
        }
        parent = span_id(root, str(parents[-1][0])) if parents else None
        times = (_nanoseconds(records[0]["at"]), _nanoseconds(records[-1]["at"]))
        error = ("", "") if result["ok"] else (str(result["exit_reason"]), str(result["error"] or ""))
        self._send(
            f"invoke_agent {result['agent']}", SpanKind.INTERNAL, (root, run, parent), times,
            {**common, **attributes, **self._content(content)}, error,
        )  # fmt: skip
        for about, began, ended in _requests(records):
            facts = {f"ratchet.request.{name}": about.get(name) for name in ("kind", "outcome")}
            facts |= {"ratchet.request.id": about["request"], "gen_ai.tool.name": about.get("tool")}
            place = (root, span_id(root, new.workflow_id, str(about["request"])), run)
            name = f"ask_person {about.get('kind')}"
            self._send(name, SpanKind.INTERNAL, place, (began, ended), {**common, **facts})

    def close(self) -> None:
        """Send what is left, for `CLOSE_SECONDS` at most: the collector may be away."""
        sending = threading.Thread(target=self._batches.shutdown, daemon=True)
        sending.start()
        sending.join(CLOSE_SECONDS)

    def _send_attempt(
        self, name: str, kind: SpanKind, attempt: Attempt, attributes: Attributes, content: Attributes
    ) -> None:
        info = activity.info()
        facts = {
            "gen_ai.conversation.id": info.workflow_id,
            "ratchet.run.id": info.workflow_run_id,
            "ratchet.activity.id": info.activity_id,
            "ratchet.attempt": info.attempt,
        }
        times = (attempt.began, attempt.began + int(attempt.seconds * 1e9))
        attributes = {**facts, **attributes, **self._content(content)}
        self._send(name, kind, _place(attempt), times, attributes, (attempt.error_type, attempt.error_text))

    def _send(
        self,
        name: str,
        kind: SpanKind,
        place: tuple[str, int, int | None],
        times: tuple[int, int],
        attributes: Attributes,
        error: tuple[str, str] = ("", ""),
    ) -> None:
        """Make a span.

        Args:
            place: the run id of the outermost run, the span's id and that of its parent.
            error: its type, and what it says, which may repeat what was said; an empty type: nothing failed.
        """
        kind_of_error, _ = error
        root, span, parent = place
        given = {key: value for key, value in attributes.items() if value is not None}
        given |= {"error.type": kind_of_error} if kind_of_error else {}
        made = self._context(root, span)
        if not made.trace_flags.sampled:
            return
        self._batches.on_end(
            ReadableSpan(
                name,
                context=made,
                parent=None if parent is None else self._context(root, parent),
                resource=self._provider.resource,
                attributes=given,
                kind=kind,
                instrumentation_scope=self._scope,
                status=self._status(*error),
                start_time=times[0],
                end_time=max(times),
            )
        )

    def _context(self, root: str, span: int) -> SpanContext:
        """Sampled as OTEL_TRACES_SAMPLER says: a run's whole trace, or nothing of it."""
        made = trace_id(root)
        decision = self._provider.sampler.should_sample(None, made, "").decision
        sampled = decision is Decision.RECORD_AND_SAMPLE
        return SpanContext(made, span, is_remote=False, trace_flags=TraceFlags(sampled))

    def _status(self, error: str, words: str) -> Status:
        """The words are content: without it the type has to do."""
        return Status(StatusCode.ERROR, self._content({"": words}).get("") or error) if error else Status()

    def _content(self, texts: Mapping[str, Any]) -> Attributes:
        if self._redact is None:
            return {}
        found = self._redact({name: value for name, value in texts.items() if value is not None})
        return {
            name: (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))[:CONTENT_CHARS]
            for name, value in found.items()
        }


class _OfTools(TracerProvider):
    """Takes the spans that tools and libraries make by themselves."""


def trace_id(root: str) -> int:
    """Of the outermost run: its run id, which is a UUID, without the hyphens."""
    try:
        return UUID(root).int
    except ValueError:
        return int.from_bytes(hashlib.sha256(root.encode()).digest()[:16])


def span_id(*parts: str) -> int:
    """Always the same for the same parts."""
    return int.from_bytes(hashlib.sha256("\n".join(parts).encode()).digest()[:8])


def _place(attempt: Attempt) -> tuple[str, int, int]:
    """Run id of the outermost run, id of the attempt's span, id of its run's span."""
    info = activity.info()
    workflow_id = info.workflow_id or ""
    rest = attempt.key.removeprefix(f"{workflow_id}/")
    # the key of an inner run's call, which is undone here, has more before the run id
    root = next((part for part in rest.split("/") if len(part) == 36 and part.count("-") == 4), rest)
    made = (attempt.key, info.workflow_run_id or "", info.activity_id, str(info.attempt))
    return root, span_id(*made), span_id(root, workflow_id)


def _requests(records: Sequence[JsonObject]) -> Iterator[tuple[Mapping[str, Any], int, int]]:
    """Requests to people that were closed: what is known of each, and when it began and ended."""
    opened: dict[str, int] = {}
    for record in records:
        about: Any = record.get("about") or {}
        if record["event"] == REQUEST_OPENED:
            opened[about["request"]] = _nanoseconds(record["at"])
        elif record["event"] in REQUEST_CLOSED and about.get("request") in opened:
            yield about, opened.pop(about["request"]), _nanoseconds(record["at"])


def _nanoseconds(seconds: Any) -> int:
    return int(float(seconds) * 1e9)


def _new_messages(call: ModelCall) -> list[JsonObject]:
    """What the model is told with this question; what it was told before is in the spans before."""
    messages = call.messages
    last = max((n for n, one in enumerate(messages) if one.role == "assistant"), default=-1)
    return [_message(one) for one in messages[last + 1 :]]


def _message(message: Message) -> JsonObject:
    """In the conventions' form."""
    if message.role == "tool":
        response = {"type": "tool_call_response", "id": message.tool_call_id, "response": message.content}
        return {"role": "tool", "parts": [dict(response)]}
    parts: list[Any] = [{"type": "text", "content": message.content}] if message.content else []
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
        for call in message.tool_calls
    ]
    return {"role": message.role, "parts": parts}


def _resource() -> Resource:
    """What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say; else the service is `ratchet`."""
    is_named = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    return Resource.create({} if is_named else {"service.name": "ratchet"})


def _exporter() -> SpanExporter:
    """For the protocol of OpenTelemetry's variables. Raises ImportError."""
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if os.environ.get(name) == "grpc":
            made: SpanExporter = import_module(
                "opentelemetry.exporter.otlp.proto.grpc.trace_exporter"
            ).OTLPSpanExporter()
            return made
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
