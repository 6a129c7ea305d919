"""Run a shipped agent with its real tools and its scripts, in a folder, without Temporal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from activities.contracts import Conversation, ModelReplied, Setup
from activities.provider import ModelCall
from activities.providers.scripted import ScriptedProvider
from activities.settings import Settings
from client.agents.agentfile import AgentFile, load_agent
from client.sdk.local import Asked, Local, LocalOutcome

__all__ = ["ROOT", "local", "outcome_of"]

ROOT = Path(__file__).resolve().parents[1]


class Scripts:
    """The models of an agent file, each of which has a script. Their delays are left out."""

    def __init__(self, agent: AgentFile) -> None:
        self._agent, self._provider = agent, ScriptedProvider()

    async def __call__(self, asked: Asked) -> ModelReplied:
        """The script's reply. A script that does not fit raises."""
        model = self._agent.models.get(asked.role, self._agent.models["default"])
        script = tuple(entry.model_copy(update={"delay_seconds": 0}) for entry in model.script)
        setup = Setup(model=model.model_copy(update={"script": script}))
        return await self._provider.complete(ModelCall(setup, Conversation(asked.messages)))


def local(name: str, folder: Path, **more: Any) -> Local:
    """The shipped agent `name` over the files of a folder; `more` are other arguments of `Local`."""
    agent = load_agent(name)
    data = folder / ".ratchet"
    data.mkdir(exist_ok=True)
    return Local(agent, model=Scripts(agent), settings=Settings(files_root=folder, data_dir=data), **more)


async def outcome_of(name: str, folder: Path, goal: str = "Find out.", **fields: Any) -> LocalOutcome:
    """How the shipped agent ends; `fields` are others of its task."""
    return await local(name, folder).run(goal, **fields)
