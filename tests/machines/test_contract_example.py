"""The example agent `delivery_report` writes what is in the file, and something else when that changes."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from activities.artifacts import ArtifactActivities
from activities.contracts import CallModel, CallTools, Setup, ToolRequest, ToolsReturned
from activities.contracts_artifacts import ReadArtifacts
from activities.provider import ProviderCall
from activities.providers import load_providers
from activities.settings import Settings
from activities.store import BlobStore
from activities.tool import ToolActivities
from activities.toolbox import Toolbox
from client.agentfile import Draft, find_agent
from client.yamltext import YamlText
from tests.activities.toolkit import environment
from workflows.kernel.design import Brief, Parts
from workflows.kernel.machine import Exit
from workflows.kernel.step import advance, start
from workflows.machines.contract import DESIGN

ROOT = Path(__file__).resolve().parents[2]
DATA = "examples/data/deliveries.csv"
HEAD = "order,shipped,carrier,country,status\n"


async def report_on(text: str | None, folder: Path) -> Exit:
    """How the agent ends about these deliveries: real tools, real artifacts, its script."""
    if text is not None:
        (folder / DATA).parent.mkdir(parents=True)
        (folder / DATA).write_text(text, encoding="utf-8")
    agent = Draft(YamlText(find_agent("delivery_report"))).finish()
    settings = Settings(files_root=folder, data_dir=folder / ".ratchet", modules=agent.modules)
    blobs = BlobStore(folder / ".ratchet" / "blobs.db", durable=True)
    toolbox, provider = Toolbox.load(settings), load_providers(settings)["scripted"]
    tools, artifacts = ToolActivities(toolbox, settings, blobs.put), ArtifactActivities(blobs)
    script = agent.models["default"].script
    model = agent.models["default"].model_copy(
        update={"script": tuple(entry.model_copy(update={"delay_seconds": 0}) for entry in script)}
    )
    knobs = DESIGN.options.model_validate(agent.options)
    specs = tuple(spec for spec in toolbox.specs if spec.name in agent.tools)
    begun = DESIGN.begin(Brief("Which carrier delivers late?", "trace", agent.instructions, specs), knobs)
    machine = DESIGN.build(knobs, Parts())
    step = start(machine, begun, now=0)
    answer: BaseModel
    while step.effect is not None:
        match step.effect:
            case CallModel(transcript=transcript):
                answer = await provider.complete(Setup(model=model), transcript, ProviderCall())
            case CallTools(runs=(run,)):
                request = ToolRequest(
                    id=run.id, tool=run.tool, arguments=run.arguments, key="k", artifacts=run.artifacts
                )
                result = await environment().run(tools.call_tool, request)
                answer = ToolsReturned(results=(result,))
            case _:
                assert isinstance(step.effect, ReadArtifacts)
                answer = await environment().run(artifacts.read_artifacts, step.effect)
        step = advance(machine, step, answer, now=1)
    assert step.exit is not None
    return step.exit


def slot(ended: Exit, name: str) -> str:
    """What fills a slot."""
    slots: Any = ended.outcome["slots"]
    return str(slots[name]["text"])


async def test_it_reports_what_is_in_the_file(tmp_path: Path) -> None:
    text = (ROOT / DATA).read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    late = [row for row in rows if row["status"] == "late"]
    carriers = Counter(row["carrier"] for row in late).most_common()
    worst, count = carriers[0]
    sent = sum(row["carrier"] == worst for row in rows)
    country, most = Counter(row["country"] for row in late if row["carrier"] == worst).most_common(1)[0]
    ended = await report_on(text, tmp_path)
    assert (ended.ok, ended.reason) == (True, "complete")
    assert slot(ended, "summary") == (
        f"{worst} is late most: {count} of its {sent} deliveries ({round(100 * count / sent)} %), "
        f"{count} of {len(late)} late ones in all. Most of them went to {country} ({most})."
    )
    assert [line.split("\t") for line in slot(ended, "table").splitlines() if line[0].isdigit()][1:] == [
        [str(n), name] for name, n in carriers
    ]


async def test_another_file_gives_another_report(tmp_path: Path) -> None:
    rows = ["1,2026-05-01,Ox,Chad,late", "2,2026-05-01,Ox,Chad,on time", "3,2026-05-01,Ant,Mali,on time"]
    ended = await report_on(HEAD + "\n".join(rows) + "\n", tmp_path)
    assert slot(ended, "summary") == (
        "Ox is late most: 1 of its 2 deliveries (50 %), 1 of 1 late ones in all. "
        "Most of them went to Chad (1)."
    )


async def test_a_month_without_late_deliveries_is_reported_as_that(tmp_path: Path) -> None:
    ended = await report_on(HEAD + "1,2026-05-01,Ox,Chad,on time\n", tmp_path)
    assert (ended.ok, slot(ended, "summary")) == (True, "No delivery was late.")
    assert slot(ended, "table").startswith("No line matches")


async def test_without_the_file_it_asks_for_it(tmp_path: Path) -> None:
    ended = await report_on(None, tmp_path)
    assert (ended.ok, ended.reason) == (False, "clarify")
    assert ended.answer == f"There is no file {DATA}; where are the deliveries?"


async def test_the_tool_of_the_example_gives_back_its_text(tmp_path: Path) -> None:
    settings = Settings(files_root=tmp_path, modules=(str(ROOT / "examples/tools/compose.py"),))
    request = ToolRequest(id="1", tool="compose", arguments={"text": "done"}, key="k")
    result = await environment().run(ToolActivities(Toolbox.load(settings), settings).call_tool, request)
    assert (result.output, result.error) == ("done", None)


def test_the_agent_file_is_where_the_command_in_it_says() -> None:
    text = (ROOT / "examples" / "agents" / "delivery_report.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ratchet run --agent examples/agents/delivery_report.yaml ")
