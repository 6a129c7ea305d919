"""Reports a worker's activities to monitoring.

Workflow code reports nothing, so a replay adds no span and no count. Each attempt of a call that ended is a
span and a count: it was really made. Figures that match the log exactly come from the archive, once it has
written new records.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import structlog

from activities.contracts import JsonObject
from activities.installed import missing_extra
from activities.provider import ModelCall
from activities.settings import Settings
from activities.telemetry.attempts import Archived, Attempt, Redact, ToolAttempt

if TYPE_CHECKING:
    from activities.telemetry.metrics import Metrics
    from activities.telemetry.tracing import Tracing

__all__ = ["Telemetry", "telemetry_of"]

log = structlog.get_logger("ratchet")


class Telemetry:
    """Traces and metrics, as far as they are on; by default nothing is."""

    def __init__(self, tracing: Tracing | None = None, metrics: Metrics | None = None) -> None:
        self.tracing, self.metrics = tracing, metrics
        self._on: tuple[Any, ...] = tuple(one for one in (tracing, metrics) if one is not None)

    @contextmanager
    def asking(self, call: ModelCall) -> Iterator[Attempt]:
        """Around one question to a provider."""
        attempt = Attempt(key=call.key)
        with self._measured(attempt, lambda one: one.asked(call, attempt)):
            yield attempt

    @contextmanager
    def calling(self, attempt: ToolAttempt) -> Iterator[ToolAttempt]:
        """Around one attempt of a tool's function."""
        with self._measured(attempt, lambda one: one.called(attempt)):
            yield attempt

    @contextmanager
    def _measured(self, attempt: Attempt, report: Callable[[Any], None]) -> Iterator[None]:
        if not self._on:
            yield
            return
        began = time.monotonic()
        try:
            with self.tracing.current(attempt) if self.tracing else nullcontext():
                yield
        except BaseException as error:
            attempt.error = error
            raise
        finally:
            attempt.seconds = time.monotonic() - began
            self._report(report)

    @contextmanager
    def waiting(self, model: str) -> Iterator[None]:
        """While a question to `provider/name` waits for a rate limit."""
        began = time.monotonic()
        try:
            yield
        finally:
            if self.metrics is not None:
                self.metrics.waited(model, time.monotonic() - began)

    def archived(self, new: Archived, whole: Callable[[], tuple[JsonObject, ...]]) -> None:
        """A part of a log was written; `whole` reads all of it."""
        self._report(lambda one: one.archived(new, whole))

    def close(self) -> None:
        """Send what is left; blocks for some seconds at most."""
        self._report(lambda one: one.close())

    def _report(self, report: Callable[[Any], None]) -> None:
        for one in self._on:
            try:
                report(one)
            except Exception as error:  # noqa: BLE001  # what cannot be watched must not fail
                log.warning(
                    "telemetry.failed", of=type(one).__name__, error=f"{type(error).__name__}: {error}"
                )


def telemetry_of(settings: Settings, redact: Redact) -> Telemetry:
    """What settings and OpenTelemetry's own variables turn on; only then are its libraries loaded.

    Raises ValueError: the library of what a setting asks for is not installed.
    """
    tracing = metrics = None
    if traces_are_wanted():
        try:
            from activities.telemetry.tracing import Tracing

            tracing = Tracing(redact if settings.trace_content else None)
        except (
            ImportError
        ) as error:  # platforms set OTEL_... for every program: the worker works all the same
            log.warning("telemetry.no_traces", error=f"{error}; {missing_extra('opentelemetry')}")
    if settings.metrics_address is not None:
        try:
            from activities.telemetry.metrics import Metrics
        except ImportError as error:
            raise ValueError(f"RATCHET_METRICS: {missing_extra('prometheus_client')}") from error
        metrics = Metrics(*settings.metrics_address)
    return Telemetry(tracing, metrics)


def traces_are_wanted() -> bool:
    """OpenTelemetry's variables name a place to send traces to."""
    given = {name: os.environ.get(name, "").strip().lower() for name in _VARIABLES}
    endpoint = given["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] or given["OTEL_EXPORTER_OTLP_ENDPOINT"]
    is_off = given["OTEL_SDK_DISABLED"] == "true" or given["OTEL_TRACES_EXPORTER"] not in ("", "otlp")
    return bool(endpoint) and not is_off


_VARIABLES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED",
    "OTEL_TRACES_EXPORTER",
)  # fmt: skip
