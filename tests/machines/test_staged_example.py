"""The agent `incident_triage` on its data: with its real tool and its scripts, without a server."""

from __future__ import annotations

import csv
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from activities.contracts import CallModel, CallTools, Setup, ToolResult, ToolsReturned
from activities.provider import ProviderCall
from activities.providers import load_providers
from activities.settings import Settings
from activities.toolbox import Toolbox, ToolCallContext
from client.agentfile import AgentFile, Draft, find_agent
from client.catalog import Catalog
from client.errors import UsageError
from client.yamltext import YamlText
from tests.machines.scripts_staged import stages
from workflows.kernel.design import Brief, Parts
from workflows.kernel.machine import Exit
from workflows.kernel.step import advance, start
from workflows.registry import design

DATA = Path(__file__).parents[2] / "examples" / "data" / "incidents"


async def triage(folder: Path) -> tuple[Exit, list[str]]:
    """How the agent ends over the files of a folder, and the states that it passed."""
    agent = Draft(YamlText(find_agent("incident_triage"))).finish()
    made = design(agent.machine)
    knobs = made.options.model_validate(agent.options)
    machine = made.build(knobs, Parts())
    toolbox = Toolbox.load(Settings(files_root=folder))
    specs = tuple(spec for spec in toolbox.specs if spec.name in agent.tools)
    step, way = start(machine, made.begin(Brief("Which?", "t", "", specs), knobs), now=0), list[str]()
    while step.effect is not None:
        way += [record.to for record in step.records if record.to]
        step = advance(machine, step, await _answer(agent, folder, toolbox, step.effect), now=1)
    assert step.exit is not None
    return step.exit, way


async def _answer(agent: AgentFile, folder: Path, toolbox: Toolbox, effect: Any) -> Any:
    settings = Settings(files_root=folder)
    if isinstance(effect, CallModel):
        model = agent.models[effect.role]
        at_once = tuple(entry.model_copy(update={"delay_seconds": 0}) for entry in model.script)
        setup = Setup(model=model.model_copy(update={"script": at_once}))
        return await load_providers(settings)["scripted"].complete(setup, effect.transcript, ProviderCall())
    assert isinstance(effect, CallTools)
    (run,) = effect.runs
    tool = toolbox.get(run.tool)
    assert tool is not None
    context = ToolCallContext("key", folder, settings, 1, lambda text: None, lambda: False)
    output = tool.call(tool.params.model_validate(run.arguments), context)
    return ToolsReturned(results=(ToolResult(id=run.id, tool=run.tool, output=str(output)),))


def desk(folder: Path) -> Path:
    """A copy of the desk's files in the place where the agent looks; the folder of the two files."""
    return Path(shutil.copytree(DATA, folder / "examples" / "data" / "incidents"))


def worst(files: Path) -> tuple[dict[str, str], str]:
    """The oldest open SEV1 alert and who is on call for it, found by other means."""
    with (files / "alerts.csv").open() as lines:
        alert = next(a for a in csv.DictReader(lines) if (a["severity"], a["status"]) == ("SEV1", "open"))
    with (files / "oncall.csv").open() as lines:
        engineers = {row["service"]: row["engineer"] for row in csv.DictReader(lines)}
    return alert, engineers[alert["service"]]


async def test_the_answer_names_the_oldest_open_incident_and_who_takes_it(tmp_path: Path) -> None:
    alert, engineer = worst(desk(tmp_path))
    ended, way = await triage(tmp_path)
    assert ended.ok
    assert ended.answer is not None
    assert ended.answer.startswith(
        f"{alert['id']} comes first: {alert['summary']} ({alert['service']}, open since"
    )
    assert f"{engineer} of " in ended.answer
    # The review sent the first answer back: it named nobody.
    assert way[4:6] == ["Reviewing", "Thinking"]


async def test_other_alerts_give_another_answer(tmp_path: Path) -> None:
    files = desk(tmp_path)
    first, _ = worst(files)
    text = (files / "alerts.csv").read_text()
    (files / "alerts.csv").write_text(
        "\n".join(x for x in text.splitlines() if not x.startswith(first["id"]))
    )
    alert, engineer = worst(files)
    ended, _ = await triage(tmp_path)
    assert alert["id"] != first["id"]
    assert alert["id"] in (ended.answer or "")
    assert engineer in (ended.answer or "")


async def test_with_nothing_open_the_answer_says_so(tmp_path: Path) -> None:
    files = desk(tmp_path)
    text = (files / "alerts.csv").read_text()
    (files / "alerts.csv").write_text(text.replace(",open,", ",resolved,"))
    ended, _ = await triage(tmp_path)
    assert "no SEV1 alert is open" in (ended.answer or "")


# -- a machine inside --------------------

INNER: dict[str, Any] = {
    "name": "one",
    "flow_type": "machine",
    "enters": "Working",
    "exits": ["Finished"],
    "writes": ["extensions"],
}


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ({"name": "raect"}, "options.stages[2].machine.name: unknown machine raect"),
        (
            {"name": "react", "version": "99"},
            "options.stages[2].machine.name: unknown machine react of version",
        ),
        (
            {"name": "react", "options": {"max_step": 3}},
            "options.stages[2].machine.options.max_step: unknown key; did you mean `max_steps`?",
        ),
        (
            {"name": "staged", "options": {"stages": stages(observe={"exits": ["Thinking"]})}},
            "options.stages[2].machine.options: stages: machine staged: unreachable from Initialized",
        ),
        (
            {"name": "staged", "options": {"stages": [{**INNER, "machine": {"name": "nosuch"}}]}},
            "options.stages[2].machine.options.stages[0].machine.name: unknown machine nosuch",
        ),
    ],
)
def test_a_machine_inside_is_checked_when_the_agent_is_loaded(machine: Any, words: str) -> None:
    """Spec 3.11: a declaration that can only fail is no declaration."""
    observe: dict[str, Any] = {**INNER, "machine": machine, "enters": "Observing"}
    agent = {"machine": "staged", "options": {"stages": stages(observe=observe)}}
    with pytest.raises(UsageError, match=re.escape(words)):
        _checked(agent)
    observe["machine"] = {"name": "react", "options": {"max_steps": 3}}
    _checked({**agent, "options": {"stages": stages(observe=observe)}})


def _checked(agent: Any) -> None:
    text = {"name": "a", "models": {"default": {"name": "gpt-5-mini"}}, **agent}
    draft = Draft(values=text)
    Catalog.load(Settings()).check(draft.finish(), draft)
