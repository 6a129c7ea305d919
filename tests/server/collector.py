"""An OpenTelemetry collector for tests: real HTTP on 127.0.0.1, OTLP as protobuf."""

from __future__ import annotations

import gzip
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

__all__ = ["Collector", "Span"]


@dataclass(frozen=True)
class Span:
    """One span as it came; ids are hexadecimal."""

    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    began: float
    ended: float
    failed: bool
    why: str
    """Description of the status."""
    scope: tuple[str, str, str]
    """Name, version, schema of what made it."""
    service: str


class Collector:
    """`with Collector() as collector: ... collector.endpoint ... collector.spans`."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._server = _Server(("127.0.0.1", 0), _Connection)
        self._server.collector = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def endpoint(self) -> str:
        """What goes into OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def named(self, name: str) -> list[Span]:
        """Spans of this name, in the order of their beginnings."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.began)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    collector: Collector


class _Connection(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        sent = ExportTraceServiceRequest.FromString(body)
        for one in sent.resource_spans:
            service = _values(one.resource.attributes).get("service.name", "")
            for scope in one.scope_spans:
                self.server.collector.spans += [_span(span, scope, service) for span in scope.spans]
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200 if self.path == "/v1/traces" else 404)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def _span(span: Any, scope: Any, service: str) -> Span:
    return Span(
        span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
        _values(span.attributes), span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9,
        span.status.code == 2, span.status.message,
        (scope.scope.name, scope.scope.version, scope.schema_url), service,
    )  # fmt: skip


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    if value.HasField("array_value"):
        return [_value(one) for one in value.array_value.values]
    return getattr(value, value.WhichOneof("value"))
