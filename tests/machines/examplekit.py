"""Run a shipped agent's machine with its real tools and its script, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from activities.contracts import CallModel, CallTools, ModelReplied, Setup, ToolResult, ToolsReturned
from activities.provider import ProviderCall
from activities.providers import load_providers
from activities.settings import Settings
from activities.toolbox import Toolbox, ToolCallContext
from client.agentfile import Draft, find_agent
from client.yamltext import YamlText
from workflows.kernel.design import Brief, Parts
from workflows.kernel.machine import Exit
from workflows.kernel.step import advance, start
from workflows.registry import design

__all__ = ["agent_says"]


async def agent_says(name: str, folder: Path, goal: str) -> tuple[Exit, list[str]]:
    """How the agent ends about the files of a folder, and which tools it used."""
    agent = Draft(YamlText(find_agent(name))).finish()
    settings = Settings(files_root=folder)
    toolbox, provider, used = Toolbox.load(settings), load_providers(settings)["scripted"], list[str]()
    made = design(agent.machine)
    knobs = made.options.model_validate(agent.options)
    machine = made.build(knobs, Parts())
    specs = tuple(spec for spec in toolbox.specs if spec.name in agent.tools)
    brief = Brief(goal, "trace", agent.instructions, specs)
    step = start(machine, made.begin(brief, knobs), now=0)
    while step.effect is not None:
        answer: ModelReplied | ToolsReturned
        if isinstance(step.effect, CallModel):
            model = agent.models["default"]
            at_once = tuple(entry.model_copy(update={"delay_seconds": 0}) for entry in model.script)
            setup = Setup(model=model.model_copy(update={"script": at_once}))
            answer = await provider.complete(setup, step.effect.transcript, ProviderCall())
        else:
            assert isinstance(step.effect, CallTools)
            used += step.effect.tools
            answer = ToolsReturned(results=tuple(_ran(toolbox, settings, run) for run in step.effect.runs))
        step = advance(machine, step, answer, now=1)
    assert step.exit is not None
    return step.exit, used


def _ran(toolbox: Toolbox, settings: Settings, run: Any) -> ToolResult:
    tool = toolbox.get(run.tool)
    assert tool is not None
    context = ToolCallContext("key", settings.files_root, settings, 1, lambda text: None, lambda: False)
    try:
        output = tool.call(tool.params.model_validate(run.arguments), context)
    except Exception as error:  # noqa: BLE001  # a tool may raise anything; the activity answers it so
        return ToolResult(id=run.id, tool=run.tool, output=str(error), error="failed")
    return ToolResult(id=run.id, tool=run.tool, output=str(output))
