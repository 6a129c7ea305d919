"""Counts for Prometheus, served by HTTP. No label holds what is different for each run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.request import ProxyHandler, build_opener

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, start_http_server
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from temporalio import activity

from activities.contracts import JsonObject, ModelReplied
from activities.contracts.record_events import REQUEST_CLOSED, REQUEST_OPENED, own_records
from activities.provider import ModelCall, ProviderError
from activities.telemetry.attempts import Archived, Attempt, ToolAttempt

__all__ = ["Metrics"]

MAX_LABEL_VALUES = 200
"""Different values of one label; further ones are counted as `other`."""
MAX_SDK_METRICS_BYTES = 4 * 2**20
"""Of the metrics of Temporal's SDK."""
CALL_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
LONG_SECONDS = (0.1, 1, 10, 60, 300, 1800, 3600, 6 * 3600, 86_400, 7 * 86_400)
ENTERED = {"Started", "Forked", "RolledBack", "Migrated"}
"""Events of records that end no stay in a state."""

log = structlog.get_logger("ratchet")


class Metrics:
    """What a worker counts, served at http://HOST:PORT/metrics with what Temporal's SDK counts."""

    def __init__(self, host: str, port: int) -> None:
        self.registry = made = CollectorRegistry()
        self._values: defaultdict[str, set[str]] = defaultdict(set)
        model = ("provider", "model")
        self._model_calls = Counter(
            "ratchet_model_calls", "Questions to models, each attempt", (*model, "outcome"), registry=made
        )
        self._model_seconds = Histogram(
            "ratchet_model_call_seconds", "Time of a question", model, registry=made, buckets=CALL_SECONDS
        )
        self._tokens = Counter("ratchet_tokens", "Of replies", (*model, "type"), registry=made)
        self._cost = Counter("ratchet_cost_usd", "Of replies whose price is known", model, registry=made)
        self._waits = Summary("ratchet_rate_limit_wait_seconds", "Waits for room", model, registry=made)
        self._tool_calls = Counter(
            "ratchet_tool_calls", "Calls of tools, each attempt", ("tool", "part", "outcome"), registry=made
        )
        self._tool_seconds = Histogram(
            "ratchet_tool_call_seconds", "Time of a call", ("tool",), registry=made, buckets=CALL_SECONDS
        )
        self._retries = Counter("ratchet_retries", "Attempts after the first", ("activity",), registry=made)
        self._runs = Counter(
            "ratchet_runs", "Runs that are over", ("agent", "machine", "exit"), registry=made
        )
        self._run_seconds = Histogram(
            "ratchet_run_seconds", "From a run's start to its end", ("agent",), registry=made,
            buckets=LONG_SECONDS,
        )  # fmt: skip
        self._run_cost = Counter(
            "ratchet_run_cost_usd", "Of runs that are over, with inner runs", ("agent",), registry=made
        )
        self._run_tokens = Counter(
            "ratchet_run_tokens", "Of runs that are over, with inner runs", ("agent", "type"), registry=made
        )
        self._state_seconds = Histogram(
            "ratchet_state_seconds", "Time of one stay in a state", ("machine", "state"), registry=made,
            buckets=LONG_SECONDS,
        )  # fmt: skip
        self._requests = Counter(
            "ratchet_requests", "Requests to people that were closed", ("kind", "outcome"), registry=made
        )
        self._refusals = Counter(
            "ratchet_refusals", "What a rule or a person refused", ("rule",), registry=made
        )
        self._waiting = Gauge("ratchet_waiting_runs", "Runs that wait for people", ("kind",), registry=made)
        self._oldest = Gauge(
            "ratchet_waiting_since_timestamp_seconds", "Since when the oldest of them waits", ("kind",),
            registry=made,
        )  # fmt: skip
        made.register(_OfTemporal(port + 1))
        self._server: Any = None
        try:
            self._server, _ = start_http_server(port, host, made)
        except OSError as error:
            log.warning("metrics.not_served", address=f"{host}:{port}", error=error.strerror or str(error))

    def asked(self, call: ModelCall, attempt: Attempt) -> None:
        """A question has ended."""
        model = self._of_model(f"{call.model.provider}/{call.model.name}")
        error, reply = attempt.error, attempt.result
        outcome = "ok" if error is None else error.error if isinstance(error, ProviderError) else "stopped"
        self._model_calls.labels(*model, outcome).inc()
        self._model_seconds.labels(*model).observe(attempt.seconds)
        self._count_retry("ask_model")
        if isinstance(reply, ModelReplied):
            used = reply.usage
            kinds = {"input": used.input_tokens, "output": used.output_tokens, "cached": used.cached_tokens}
            for kind, tokens in kinds.items():
                self._tokens.labels(*model, kind).inc(tokens)
            self._cost.labels(*model).inc(reply.cost_usd)

    def waited(self, model: str, seconds: float) -> None:
        """For a rate limit."""
        self._waits.labels(*self._of_model(model)).observe(seconds)

    def called(self, attempt: ToolAttempt) -> None:
        """A function of a tool has ended."""
        tool = self._bounded_value("tool", attempt.request.tool) if attempt.is_known else "unknown"
        outcome = attempt.error_type or ("ok" if getattr(attempt.result, "ok", True) else "failed")
        self._tool_calls.labels(tool, attempt.part, self._bounded_value("outcome", outcome)).inc()
        self._tool_seconds.labels(tool).observe(attempt.seconds)
        self._count_retry("call_tool")

    def archived(self, new: Archived, whole: Callable[[], tuple[JsonObject, ...]]) -> None:
        """What is new in a log, and how its run ended. The archive has each once, so each is counted once."""
        self._count_records(own_records(new.records))
        if (result := new.result) is None:
            return
        task: Any = result["task"]
        agent = self._bounded_value("agent", result["agent"])
        exit_reason = self._bounded_value("exit", result["exit_reason"])
        self._runs.labels(agent, self._bounded_value("machine", result["machine"]), exit_reason).inc()
        counters: Any = result["counters"]
        self._run_seconds.labels(agent).observe(counters.get("seconds", 0))
        if not task["depth"]:  # it has those of its inner runs
            self._run_cost.labels(agent).inc(counters.get("cost_usd", 0))
            for kind in ("input", "output"):
                self._run_tokens.labels(agent, kind).inc(counters.get(f"{kind}_tokens", 0))

    def show_waiting(self, since: Iterable[tuple[str, float]]) -> None:
        """Runs that wait for people: what for, and since when (in seconds since 1970)."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        for kind, time in since:
            found[self._bounded_value("kind", kind)].append(time)
        self._waiting.clear()
        self._oldest.clear()
        for kind, times in found.items():
            self._waiting.labels(kind).set(len(times))
            self._oldest.labels(kind).set(min(times))

    def close(self) -> None:
        """Serve no more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _count_records(self, records: Sequence[JsonObject]) -> None:
        rules: dict[str, str] = {}
        """Of the requests that were opened, by id."""
        for record in records:
            times: Any = (record.get("started", 0), record.get("at", 0))
            if record.get("to") and record["event"] not in ENTERED:
                place = [self._bounded_value(name, record[name]) for name in ("machine", "state")]
                self._state_seconds.labels(*place).observe(max(times[1] - times[0], 0))
            about: Any = record.get("about") or {}
            if record["event"] == REQUEST_OPENED:
                rules[about["request"]] = about.get("rule") or about["kind"]
            elif record["event"] in REQUEST_CLOSED:
                labels = [self._bounded_value(name, about.get(name)) for name in ("kind", "outcome")]
                self._requests.labels(*labels).inc()
            for rule in _refusing(record, rules):
                self._refusals.labels(self._bounded_value("rule", rule)).inc()

    def _count_retry(self, name: str) -> None:
        if activity.info().attempt > 1:
            self._retries.labels(name).inc()

    def _of_model(self, name: str) -> tuple[str, str]:
        provider, _, model = self._bounded_value("model", name).partition("/")
        return provider, model or provider

    def _bounded_value(self, label: str, value: object) -> str:
        """The value, or `other`: whoever starts runs may name agents and models as they like."""
        text, known = str(value)[:100], self._values[label]
        if text not in known and len(known) >= MAX_LABEL_VALUES:
            return "other"
        known.add(text)
        return text


def _refusing(record: JsonObject, rules: Mapping[str, str]) -> Iterable[str]:
    """The rules by which something was refused here: of approvals, the machine's own, of every machine."""
    about: Any = record.get("about") or {}
    event, error = record["event"], record.get("error")
    if event in REQUEST_CLOSED and about.get("outcome") in ("rejected", "expired"):
        return [f"approval:{rules.get(about['request'], about.get('kind'))}"]
    named: Any = record.get("refused_by") or ()
    return [*named, f"machine:{event}"] if error else named


class _OfTemporal(Collector):
    """What the core of Temporal's SDK serves at a port of its own on this host; nothing where it does not."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        with (
            suppress(OSError, ValueError),
            build_opener(ProxyHandler({})).open(self._url, timeout=2) as answer,
        ):
            yield from text_string_to_metric_families(answer.read(MAX_SDK_METRICS_BYTES).decode())

    def describe(self) -> Iterable[Metric]:
        """None in advance."""
        return ()
