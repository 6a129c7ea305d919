"""What monitoring is told of a worker's activities.

Workflow code tells it nothing: what a replay runs again is in no trace and is counted nowhere. A call is a
span and a count for each attempt that ended, because each was really made. What is exact to the log comes
from the archive, once it has written a part of a log that it did not have.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import structlog

from activities.contracts import CompensateInput, JsonObject, ReconcileInput, ToolInput
from activities.provider import ModelCall, ProviderError
from activities.settings import Settings

if TYPE_CHECKING:
    from activities.telemetry.metrics import Metrics
    from activities.telemetry.tracing import Tracing

__all__ = [
    "CLOSED",
    "OPENED",
    "Archived",
    "Attempt",
    "Part",
    "Redact",
    "Telemetry",
    "ToolAttempt",
    "telemetry_of",
]

EXTRA = "pip install '.[telemetry]'"
OPENED, CLOSED = "Requested", {"Decided", "Expired", "Withdrawn"}
"""Events of a run's log about a request to people."""
FORKED = "Forked"
"""Event of the record behind those that a fork has taken from another run; see the kernel's log."""
Part = Literal["run", "reconcile", "compensate"]
"""A function of a tool."""
Redact = Callable[[dict[str, Any]], dict[str, Any]]
"""Gives texts by name without the secrets in them."""

log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One attempt of a call, in its activity; `result` is set by whoever makes it."""

    key: str
    """Of the call: `<workflow id>/<run id of the outermost run>/...`."""
    result: Any = None
    error: BaseException | None = None
    """What it raised."""
    began: int = field(default_factory=time.time_ns)
    """In nanoseconds since 1970."""
    seconds: float = 0

    @property
    def error_type(self) -> str:
        """Type of what went wrong; empty: nothing."""
        if isinstance(self.error, ProviderError):
            return self.error.type
        return type(self.error).__name__ if self.error else str(getattr(self.result, "error", None) or "")

    @property
    def error_text(self) -> str:
        """What went wrong, in words, which may repeat what was said; empty: there are none."""
        if self.error is not None:
            return str(self.error)
        return str(getattr(self.result, "output", "")) if self.error_type else ""


@dataclass(slots=True, kw_only=True)
class ToolAttempt(Attempt):
    """One attempt of a tool's function."""

    request: ToolInput | ReconcileInput | CompensateInput
    part: Part
    is_known: bool
    """The worker has such a tool; else its name may be anything."""


@dataclass(frozen=True, slots=True)
class Archived:
    """What is new in the archive about one run."""

    workflow_id: str
    run_id: str
    """Of the first execution."""
    records: tuple[JsonObject, ...]
    """Of the log, without those that the archive had."""
    result: JsonObject | None
    """The result with its task, if it is new."""

    def own(self, records: tuple[JsonObject, ...]) -> tuple[JsonObject, ...]:
        """The records without those that a fork has taken from another run."""
        forks = [number for number, record in enumerate(records) if record["event"] == FORKED]
        return records[forks[-1] :] if forks else records


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
            log.warning("telemetry.no_traces", error=f"{error}; install it: {EXTRA}")
    if settings.metrics_address is not None:
        try:
            from activities.telemetry.metrics import Metrics
        except ImportError as error:
            raise ValueError(f"RATCHET_METRICS: {error}; install it: {EXTRA}") from error
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
