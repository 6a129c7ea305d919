"""What activities report: content only when it is wanted and without secrets, and a tool's own spans."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from opentelemetry import trace
from pydantic import BaseModel
from temporalio.testing import ActivityEnvironment

from activities.contracts import JsonObject, ModelInput, ModelReplied, ToolInput
from activities.model import ModelActivities
from activities.provider import ProviderError
from activities.settings import Settings
from activities.store.cache import ConversationCache
from activities.telemetry.attempts import Archived
from activities.telemetry.metrics import Metrics
from activities.telemetry.report import Telemetry
from activities.tools import Tool
from activities.tools.run import ToolActivities
from client.server.telemetry import worker_telemetry
from tests.activities.modelkit import setup
from tests.activities.toolkit import runner_of
from tests.conftest import Environ
from tests.server.collector import Collector

SECRET = "sk-0123456789abcdef0123456789"
RUN = "0199f0a2-7a3b-7c61-9d52-0f0e6f2b8a11"


class Look(BaseModel):
    """Look somewhere."""

    place: str
    password: str = ""


def look(params: Look) -> str:
    """A span of its own, as a library makes them."""
    with trace.get_tracer("birds").start_as_current_span("binoculars"):
        return f"{params.place}: three herons, token={SECRET}"


@pytest.fixture
def collector(environ: Environ) -> Iterator[Collector]:
    """The one that the environment names."""
    with Collector() as started:
        environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = started.endpoint
        yield started


async def call(telemetry: Telemetry) -> None:
    """One call of the tool."""
    tool = Tool(name="look", params=Look, run=look, effect="read")
    environment = ActivityEnvironment()
    key = f"{environment.info.workflow_id}/{RUN}/0/act#1:0"
    arguments = {"place": "lake", "password": "grey-heron-7"}
    request = ToolInput(id="c1", tool="look", arguments=arguments, key=key)
    activities = ToolActivities(runner_of(tool), telemetry=telemetry)
    assert (await environment.run(activities.call_tool, request)).ok
    telemetry.close()


async def test_content_is_sent_when_wanted_without_secrets(collector: Collector) -> None:
    await call(worker_telemetry(Settings(trace_content=True)))
    (span,) = collector.named("execute_tool look")
    arguments = span.attributes["gen_ai.tool.call.arguments"]
    assert "lake" in arguments
    assert "three herons" in span.attributes["gen_ai.tool.call.result"]
    assert not [word for word in (SECRET, "grey-heron") if word in str(span.attributes)]


async def test_content_is_not_sent_by_default(collector: Collector) -> None:
    await call(worker_telemetry(Settings()))
    (span,) = collector.named("execute_tool look")
    assert span.attributes["gen_ai.tool.name"] == "look"
    assert "lake" not in str(span.attributes)


async def test_spans_of_a_tool_are_children_of_its_call(collector: Collector) -> None:
    await call(worker_telemetry(Settings()))
    (span,), (inner,) = collector.named("execute_tool look"), collector.named("binoculars")
    assert (inner.trace, inner.parent) == (span.trace, span.id) == (RUN.replace("-", ""), span.id)


@pytest.mark.parametrize(("content", "why"), [(False, "HTTP401"), (True, "no such key")])
async def test_failed_question_has_its_cause(
    content: bool, why: str, collector: Collector, tmp_path: Path
) -> None:
    class Failing:
        name = "fixed"
        description = "fails"

        async def complete(self, call: object) -> ModelReplied:
            raise ProviderError("fatal", "HTTP401", "no such key")

    telemetry = worker_telemetry(Settings(trace_content=content))
    models = ModelActivities({"fixed": Failing()}, ConversationCache(tmp_path / "c.db"), telemetry=telemetry)
    asked = setup("m", provider="fixed")
    request = ModelInput(role="default", setup=asked.digest, full_setup=asked, key=f"w/{RUN}/0/a")
    with pytest.raises(Exception, match="no"):
        await ActivityEnvironment().run(models.ask_model, request)
    telemetry.close()
    (span,) = collector.named("chat m")
    assert (span.attributes["error.type"], span.failed, span.why) == ("HTTP401", True, why)
    name, made_by, schema = span.scope
    assert (name, made_by) == ("ratchet", version("ratchet"))
    assert schema.startswith("https://opentelemetry.io/schemas/")


def test_rules_that_refused_are_counted_by_their_names() -> None:
    metrics = Metrics("127.0.0.1", 0)
    said: JsonObject = {"machine": "mine", "state": "check", "reason": "forbidden: it guesses; other: words"}
    records: list[JsonObject] = [
        {**said, "event": "Rejected", "refused_by": ["no_guess", "short"]},
        {**said, "event": "Rejected", "refused_by": ["short"]},
        {**said, "event": "Accepted"},
    ]
    metrics.archived(Archived("run", RUN, tuple(records), None), tuple)
    metrics.close()
    (family,) = (one for one in metrics.registry.collect() if one.name == "ratchet_refusals")
    counts = {one.labels["rule"]: one.value for one in family.samples if one.name.endswith("_total")}
    assert counts == {"no_guess": 1, "short": 2}


def test_nothing_is_on_by_default(environ: Environ) -> None:
    environ.pop("OTEL_EXPORTER_OTLP_ENDPOINT", None)
    off = worker_telemetry(Settings())
    assert (off.tracing, off.metrics) == (None, None)


@pytest.mark.parametrize("address", ["9464", "localhost", "localhost:x", "localhost:99999"])
def test_wrong_address_is_named(address: str) -> None:
    with pytest.raises(ValueError, match=r"such as 127\.0\.0\.1:9464"):
        Settings(metrics=address)
