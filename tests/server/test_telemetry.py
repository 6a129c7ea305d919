"""Traces and metrics of a run whose worker was killed in the middle: what arrives, and what is scraped."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from temporalio.client import Client

from activities.contracts import ModelSpec, Price, RunMachine
from activities.settings import Settings
from activities.store.archive import Archive
from client.runs.costs import CostLine, archived_spending, cost_lines, live_spending
from client.sdk.agent import AgentClient
from client.server.connection import Connection
from tests.fake_openai import Answer, FakeOpenAI
from tests.forked import WORKER, Forked
from tests.server.collector import Collector, Span
from tests.server.conftest import OUTER_MACHINE, ROOT, TOOLS, real_server
from tests.server.trials import Run, begin, decide, eventually, open_request
from workflows.api import AgentTask

MODEL = "gpt-5-mini"
GOAL = "Count the herons at the lake."
METRIC = re.compile(r"\b((?:ratchet|temporal)_[a-z_]+)\b")
LABEL = re.compile(r"[{,]\s*([a-z_]+)\s*[=!]")
BY = re.compile(r"\bby \(([^)]*)\)")
WITHOUT_SAMPLES = {
    "ratchet_rate_limit_wait_seconds_sum",
    "ratchet_waiting_runs",
    "ratchet_waiting_since_timestamp_seconds",
}
"""Of what this run did not meet, or what it no longer waits for."""
INNER = RunMachine(machine="tools", goal=GOAL, give=("mark", "mark_once"))


def tool_call(name: str, **arguments: str) -> Answer:
    """A reply that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call_{name}", "type": "function", "function": function}
    return Answer(tool_calls=(call,), finish_reason="tool_calls")


def worker(address: str, home: Path, **more: str) -> Forked:
    """A worker of that server, with more variables in its environment; it is killed at the end."""
    own = {"TEMPORAL_ADDRESS": address, "RATCHET_DATA_DIR": str(home), **more}
    return Forked(WORKER, env={**os.environ, **own})


def free_port() -> int:
    """One above which there is another."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


class Watched:
    """A run that is over, the spans that came of it, and what its last worker counted."""

    def __init__(
        self,
        run: Run,
        collector: Collector,
        metrics: dict[str, Metric],
        costs: tuple[CostLine, ...],
        costs_before: tuple[CostLine, ...],
    ) -> None:
        self.run, self.spans, self.collector, self.metrics = run, collector.spans, collector, metrics
        self.costs, self.costs_before = costs, costs_before
        """By agent; and while the run waited for a person."""

    def one(self, name: str) -> Span:
        """The only span of this name."""
        (span,) = self.collector.named(name)
        return span

    def value(self, metric: str, **labels: str) -> float:
        """Of the sample with these labels, and perhaps others."""
        family = self.metrics[metric.removesuffix("_total").removesuffix("_sum").removesuffix("_count")]
        found = [one for one in family.samples if one.name == metric and labels.items() <= one.labels.items()]
        return sum(one.value for one in found)


def scraped(port: int) -> dict[str, Metric]:
    """By name."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return {family.name: family for family in text_string_to_metric_families(answer.read().decode())}


def both_counted(port: int) -> dict[str, Metric] | None:
    """Once both runs were counted: a client may know of an end before the worker does."""
    found = scraped(port)
    counted = found.get("ratchet_runs")
    return found if counted and sum(one.value for one in counted.samples) >= 2 else None


@pytest.fixture(scope="module")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    """An inner run calls a tool, in the middle of which its worker is killed, and another one, which a person
    forbids."""
    home, port = tmp_path_factory.mktemp("telemetry"), free_port()
    settings = Settings(data_dir=home / ".ratchet", files_root=home)
    model = ModelSpec(name=MODEL, price=Price(input_per_million=1, output_per_million=2))
    task = AgentTask(
        name="birds", goal=GOAL, machine="nester", options={"inner": [INNER.model_dump(mode="json")]},
        tools=("mark", "mark_once"), models={"default": model}, heartbeat_seconds=3,
    )  # fmt: skip
    with FakeOpenAI() as server, Collector() as collector:
        environment = {
            "OPENAI_BASE_URL": server.base_url,
            "OPENAI_API_KEY": "sk-lake-and-heron-0123456789",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "RATCHET_METRICS": f"127.0.0.1:{port}",
            "RATCHET_FILES_ROOT": str(home),
            "RATCHET_MODULES": json.dumps([str(TOOLS), str(OUTER_MACHINE)]),
        }
        server.queue(
            tool_call("mark", line="seen", until="go"),
            tool_call("mark_once", line="scare"),
            "three herons",
        )
        async with real_server(settings) as client:
            address = client.service_client.config.target_host
            run = await begin(client, task)
            with worker(address, settings.data_dir, **environment):
                await eventually(lambda: asyncio.to_thread((home / "marks.txt").exists))
                await eventually(lambda: asyncio.to_thread(lambda: collector.named(f"chat {MODEL}")))
            (home / "go").touch()
            with worker(address, settings.data_dir, **environment):
                inner = await eventually(lambda: inner_run(client, run))
                await waiting(port)
                agents = AgentClient(Connection(client, settings, "the test server"))
                before = await live_spending(agents, timed=True, failed=pytest.fail)
                await decide(inner, "reject", await open_request(inner), text="leave them alone")
                await run.result()
                await eventually(lambda: asyncio.to_thread(lambda: collector.named("invoke_agent birds")))
                metrics = await eventually(lambda: asyncio.to_thread(both_counted, port))
        archive = Archive(settings.archive_file)
        spent = archived_spending(archive, timed=False)
        yield Watched(run, collector, metrics, cost_lines(spent, "agent"), cost_lines(before, "agent"))


async def inner_run(client: Client, run: Run) -> Run | None:
    """Once it has begun."""
    described = await run.describe()
    children = [child.workflow_id for child in described.raw_description.pending_children]
    return client.get_workflow_handle(children[0]) if children else None


async def waiting(port: int) -> None:
    """Until metrics say that an approval is waited for."""

    async def shown() -> bool:
        with suppress(OSError):  # the worker has only just been started
            found = await asyncio.to_thread(scraped, port)
            return any(one.labels == {"kind": "approval"} for one in found["ratchet_waiting_runs"].samples)
        return False

    await eventually(shown)


def test_trace_has_the_id_of_the_outermost_run(watched: Watched) -> None:
    run_id = str(watched.run.result_run_id)
    assert {span.trace for span in watched.spans} == {run_id.replace("-", "")}
    assert {span.service for span in watched.spans} == {"ratchet"}
    assert len({span.id for span in watched.spans}) == len(watched.spans)


def test_each_span_finds_its_parent(watched: Watched) -> None:
    outer, inner = watched.one("invoke_agent birds"), watched.one("invoke_agent birds.tools")
    assert (outer.parent, inner.parent) == ("", outer.id)
    of_inner = {span.name for span in watched.spans if span.parent == inner.id}
    assert of_inner == {f"chat {MODEL}", "execute_tool mark", "ask_person approval"}
    for span in watched.spans:
        around = inner if span.parent == inner.id else outer
        assert around.began - 0.1 <= span.began <= span.ended <= around.ended + 0.1


def test_attempt_of_killed_worker_is_no_span_but_next_is(watched: Watched) -> None:
    called = watched.one("execute_tool mark").attributes
    assert called["ratchet.attempt"] == 2
    assert (called["gen_ai.tool.name"], called["gen_ai.tool.call.id"]) == ("mark", "call_mark")
    assert watched.value("ratchet_retries_total", activity="call_tool") == 1


def test_chat_spans_have_usage_and_cost(watched: Watched) -> None:
    chats = [span.attributes for span in watched.collector.named(f"chat {MODEL}")]
    assert [one["gen_ai.response.finish_reasons"] for one in chats] == [
        ["tool_calls"],
        ["tool_calls"],
        ["stop"],
    ]
    for one in chats:
        used = one["gen_ai.usage.input_tokens"], one["gen_ai.usage.output_tokens"]
        assert one["ratchet.cost_usd"] == pytest.approx((used[0] + 2 * used[1]) / 1e6)
        assert one["gen_ai.provider.name"] == "openai"
    ended = watched.one("invoke_agent birds").attributes
    assert ended["gen_ai.usage.input_tokens"] == sum(one["gen_ai.usage.input_tokens"] for one in chats)
    assert ended["ratchet.cost_usd"] == pytest.approx(sum(one["ratchet.cost_usd"] for one in chats))


def test_content_stays_out(watched: Watched) -> None:
    told = json.dumps([span.attributes for span in watched.spans])
    assert not [word for word in ("heron", "seen", "scare", "alone") if word in told]


def test_metrics_count_a_run_once(watched: Watched) -> None:
    assert watched.value("ratchet_runs_total", agent="birds", machine="nester", exit="ran") == 1
    assert watched.value("ratchet_runs_total") == 2
    assert watched.value("ratchet_requests_total", kind="approval", outcome="rejected") == 1
    assert watched.value("ratchet_refusals_total", rule="approval:effects.unsafe") == 1
    assert watched.value("ratchet_state_seconds_count", machine="nester", state="run") == 1
    assert watched.value("ratchet_tool_calls_total", tool="mark", part="run", outcome="ok") == 1
    assert watched.value("ratchet_run_tokens_total") == watched.value(
        "ratchet_run_tokens_total", agent="birds"
    )
    assert watched.value("ratchet_run_cost_usd_total", agent="birds") > 0


def test_temporals_own_metrics_come_with_them(watched: Watched) -> None:
    """Whichever they are: what each counts, and when, is the SDK's affair."""
    assert watched.value("temporal_workflow_task_queue_poll_succeed_total") > 0


def test_costs_are_those_of_the_spans(watched: Watched) -> None:
    (line,), (before,) = watched.costs, watched.costs_before
    chats = [span.attributes for span in watched.collector.named(f"chat {MODEL}")]
    assert (line.name, line.runs, line.model_calls) == ("birds", 1, 3)
    assert line.cost_usd == pytest.approx(sum(one["ratchet.cost_usd"] for one in chats))
    assert line.input_tokens == sum(one["gen_ai.usage.input_tokens"] for one in chats)
    assert (before.name, before.model_calls) == ("birds", 2)


def test_dashboard_asks_for_what_is_counted(watched: Watched) -> None:
    """Each metric of the dashboard is served, and has the labels that its queries name."""
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "ratchet.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 20
    samples = {one.name: one.labels for family in watched.metrics.values() for one in family.samples}
    for query in queries:
        (names, wanted) = set(METRIC.findall(query)), set(LABEL.findall(query))
        wanted |= {label.strip() for found in BY.findall(query) for label in found.split(",")}
        assert names, query
        for name in names - WITHOUT_SAMPLES:
            assert wanted <= set(samples[name]), query
    assert {name.removesuffix("_sum") for name in WITHOUT_SAMPLES} <= set(watched.metrics)
