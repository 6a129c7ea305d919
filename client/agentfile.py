"""Agent files: one YAML file says what an agent is; a goal makes it a task.

Whatever is wrong is said before anything starts, with the file, the line and the key.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from activities.contracts import JsonObject, ModelSpec, Strict
from client.errors import UsageError
from client.yamlparse import parse
from client.yamltext import KeyPath, YamlText, dotted, nearest, problems
from workflows.api import AgentTask, Limits, Name
from workflows.people import Approvals, People

__all__ = ["SHIPPED", "AgentFile", "Draft", "find_agent", "load_agent", "shipped_agents"]

SHIPPED = Path(__file__).resolve().parents[1] / "examples" / "agents"
"""The agents that come with Ratchet, found by name."""
SCRIPTED = "scripted"
KEYLESS = {SCRIPTED}
"""Providers whose name is enough for a model."""


class AgentFile(Strict):
    """What an agent file may say."""

    name: Name
    description: str = Field(default="", max_length=2_000)
    machine: Name = "react"
    version: str | None = Field(default=None, description="of the machine; none: the newest")
    options: JsonObject = Field(default_factory=dict, description="the machine's knobs")
    models: dict[str, ModelSpec] = Field(default_factory=lambda: {"default": ModelSpec()})
    instructions: str = Field(default="", max_length=100_000)
    tools: tuple[Name, ...] = ()
    modules: tuple[str, ...] = Field(default=(), description="Python files beside the agent file")
    limits: Limits = Limits()
    visibility: Literal["basic", "state"] = "basic"
    heartbeat_seconds: float = Field(default=10, ge=3, le=600)
    approvals: Approvals = Field(default=Approvals(), description="which tool calls wait for a person")
    people: People = Field(default=People(), description="who decides, how long they have, who is told")

    @field_validator("models", mode="before")
    @classmethod
    def _bare_names(cls, models: Any) -> Any:
        """A bare word is a model's name; `scripted` is the provider that needs none."""
        if not isinstance(models, dict):
            return models
        return {role: _model(spec) for role, spec in models.items()}

    @field_validator("models")
    @classmethod
    def _default(cls, models: dict[str, ModelSpec]) -> dict[str, ModelSpec]:
        if "default" not in models:
            raise ValueError("the role `default` is missing")
        return models

    def task(self, goal: str) -> AgentTask:
        """The task of this agent with a goal.

        Raises:
            UsageError: the goal is blank or too large.
        """
        try:
            return AgentTask(
                goal=goal,
                agent=self.name,
                machine=self.machine,
                machine_version=self.version,
                options=self.options,
                models=self.models,
                instructions=self.instructions,
                tools=self.tools,
                limits=self.limits,
                visibility=self.visibility,
                heartbeat_seconds=self.heartbeat_seconds,
                approvals=self.approvals,
                people=self.people,
            )
        except ValidationError as error:
            said = [detail["msg"].removeprefix("Value error, ") for detail in error.errors()]
            if not goal:
                said = ["the goal is empty; say what the agent shall do"]
            raise UsageError("; ".join(said)) from error


class Draft:
    """An agent before it is checked: a file's keys, changed by options of the command line."""

    def __init__(self, text: YamlText | None = None, values: dict[str, Any] | None = None) -> None:
        self._text = text
        self._origins: dict[KeyPath, str] = {}
        self.values: dict[str, Any] = dict(values or (text.values if text else {}))
        if text is not None:
            self.values.setdefault("name", text.path.stem)
        if isinstance(self.values.get("models"), str):
            self.values["models"] = {"default": self.values["models"]}

    def set(self, where: KeyPath, value: object, origin: str) -> None:
        """Put a value at a path; `origin` names the option in messages about it."""
        at = self.values
        for part in where[:-1]:
            below = at.get(str(part))
            below = {"name": below} if isinstance(below, str) else below
            below = dict(below) if isinstance(below, dict) else {}
            at[str(part)] = below
            at = below
        at[str(where[-1])] = value
        self._origins[where] = origin

    def assign(self, assignment: str) -> None:
        """`max_steps=5` sets a machine's option, `limits.tokens=1000` any other key."""
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {assignment}: expected KEY=VALUE, such as max_steps=5")
        _, value = parse(text, f"--set {assignment[:80]}")
        parts: KeyPath = tuple(key.strip().split("."))
        where = parts if parts[0] in AgentFile.model_fields else ("options", *parts)
        self.set(where, value, f"--set {assignment}")

    def place(self, where: KeyPath) -> str:
        """Where a key comes from: a file and line, or an option."""
        for end in range(len(where), 0, -1):
            if where[:end] in self._origins:
                return self._origins[where[:end]]
        return self._text.place(where) if self._text else "agent"

    def finish(self) -> AgentFile:
        """The agent, checked.

        Raises:
            UsageError: unknown keys, wrong types, values out of range; all of them at once.
        """
        try:
            agent = AgentFile.model_validate(self.values)
        except ValidationError as error:
            raise UsageError(self.wrong(problems(error, AgentFile))) from error
        folder = self._text.path.parent if self._text else Path()
        modules = tuple(self._module(folder, i, name) for i, name in enumerate(agent.modules))
        return agent.model_copy(update={"modules": modules})

    def wrong(self, found: Iterable[tuple[KeyPath, str]]) -> str:
        """The message for what was found wrong, each with its place and key."""
        return "\n".join(f"{self.place(at)}: {dotted(at)}: {what}" for at, what in found)

    def _module(self, folder: Path, index: int, name: str) -> str:
        path = (folder / name).resolve()
        if path.suffix != ".py" or not path.is_file():
            at: KeyPath = ("modules", index)
            raise UsageError(self.wrong([(at, f"there is no Python file {path}")]))
        return str(path)


def load_agent(name: str | Path) -> AgentFile:
    """An agent file, or the shipped agent of that name, checked; its `task(goal)` is what a run starts with.

    Raises:
        UsageError: there is none, or what is wrong with it, with file and line.
    """
    return Draft(YamlText(find_agent(name))).finish()


def find_agent(name: str | Path) -> Path:
    """The file of an agent: a path, or the name of a shipped one.

    Raises:
        UsageError: there is neither.
    """
    name, path = str(name), Path(name)
    if path.is_file() or path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path
    shipped = {found.stem: found for found in shipped_agents()}
    if name in shipped:
        return shipped[name]
    raise UsageError(f"agent {name}: no file and no shipped agent; {nearest(name, shipped)}")


def shipped_agents() -> list[Path]:
    """The files of the agents that come with Ratchet, by name."""
    return sorted(SHIPPED.glob("*.yaml"))


def _model(spec: Any) -> Any:
    if isinstance(spec, str):
        return {"provider": spec, "name": spec} if spec in KEYLESS else {"name": spec}
    if isinstance(spec, dict) and spec.get("provider") in KEYLESS:
        return {"name": spec["provider"], **spec}
    return spec
