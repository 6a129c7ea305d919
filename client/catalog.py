"""What there is to build an agent from: machines, tools, providers; and agents held against it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from activities.contracts import JsonObject, ModelSpec, ToolSpec
from activities.extensions import ExtensionError, load_extensions
from activities.settings import Settings
from client.agentfile import SCRIPTED, AgentFile, Draft, shipped_agents
from client.errors import UsageError
from client.yamltext import KeyPath, YamlText, nearest, problems
from workflows.gate.problems import problems as people_problems
from workflows.gate.problems import unknown_arguments
from workflows.kernel.design import Design
from workflows.kernel.errors import name_of
from workflows.kernel.machine import Machine

__all__ = ["Catalog", "check_key"]

Problem = tuple[KeyPath, str]


@dataclass(frozen=True)
class Catalog:
    """Machines, tools and providers that a worker with certain settings has."""

    designs: tuple[Design, ...]
    tools: tuple[ToolSpec, ...]
    providers: dict[str, str]
    """Descriptions by name."""

    @classmethod
    def load(cls, settings: Settings) -> Catalog:
        """What a worker with these settings has.

        Raises:
            UsageError: a module of the settings cannot be loaded.
        """
        from activities.providers import load_providers
        from activities.toolbox import Toolbox
        from workflows import registry

        try:
            for module in load_extensions(settings.modules):
                registry.add_module(module)
            toolbox = Toolbox.load(settings)
        except (ExtensionError, ValueError, TypeError) as error:
            raise UsageError(f"modules: {error}") from error
        providers = load_providers(settings)
        return cls(
            designs=registry.designs(),
            tools=toolbox.specs,
            providers={name: provider.description for name, provider in providers.items()},
        )

    def design(self, name: str, version: str | None = None) -> Design:
        """A machine by name; raises UsageError naming those there are."""
        from workflows import registry

        try:
            return registry.design(name, version)
        except ValueError as error:
            raise UsageError(str(error)) from error

    def check(self, agent: AgentFile, draft: Draft) -> None:
        """Hold an agent against what there is; raises UsageError with everything that is wrong."""
        found = [*self._machine(agent), *self._models(agent), *self._tools(agent)]
        found += people_problems(agent.approvals, agent.people, agent.tools)
        found += unknown_arguments(agent.approvals, [tool for tool in self.tools if tool.name in agent.tools])
        if found:
            raise UsageError(draft.wrong(found))

    def _machine(self, agent: AgentFile) -> Iterable[Problem]:
        names = {design.name for design in self.designs}
        if agent.machine not in names:
            yield (
                ("machine",),
                f"there is no machine `{agent.machine}`; " + nearest(agent.machine, names),
            )
            return
        try:
            design = self.design(agent.machine, agent.version)
        except UsageError as error:
            yield ("version",), str(error)
            return
        wrong = [*_options(agent.options, design, ("options",))]
        yield from wrong or _states(agent, _built(agent.options, design))
        for role in agent.models:
            if role not in design.roles:
                yield (
                    ("models", role),
                    f"machine {design.name} has no such role; {nearest(role, design.roles)}",
                )

    def _models(self, agent: AgentFile) -> Iterable[Problem]:
        scripted = any(spec.script for spec in agent.models.values())
        for role, spec in agent.models.items():
            if spec.provider not in self.providers:
                yield (
                    ("models", role, "provider"),
                    f"there is no provider `{spec.provider}`; " + nearest(spec.provider, self.providers),
                )
            elif spec.provider == SCRIPTED and not scripted and not self._stands_in(agent):
                yield ("models", role), _without_a_script(agent.machine)

    def _stands_in(self, agent: AgentFile) -> bool:
        return all(design.stand_in for design in self.designs if design.name == agent.machine)

    def _tools(self, agent: AgentFile) -> Iterable[Problem]:
        names = [tool.name for tool in self.tools]
        for index, name in enumerate(agent.tools):
            if name not in names:
                yield ("tools", index), f"there is no tool `{name}`; {nearest(name, names)}"
            elif name in agent.tools[:index]:
                yield ("tools", index), f"`{name}` stands twice"


def _without_a_script(machine: str) -> str:
    """Why a model without a script is refused, and which shipped agent has one."""
    said = f"without a script the provider `{SCRIPTED}` cannot reply as {machine} expects it; write one"
    texts = {path.stem: YamlText(path).values for path in shipped_agents()}
    examples = [name for name, values in texts.items() if values.get("machine") == machine]
    return f"{said} (docs/scripts.md)" + (f", or try the agent {examples[0]}" if examples else "")


def _options(given: JsonObject, design: Design, where: KeyPath) -> Iterable[Problem]:
    """What is wrong with a machine's knobs, and with those of machines that run inside it."""
    from workflows import registry

    try:
        options = design.options.model_validate(given)
        design.build(options, registry.parts())
    except ValidationError as error:
        for place, what in problems(error, design.options):
            yield (*where, *place), what
        return
    except Exception as error:  # noqa: BLE001  # whatever the machine says against its options
        yield where, str(error)
        return
    yield from _inner_machines(options, where)


def _built(given: JsonObject, design: Design) -> Machine[Any]:
    from workflows import registry

    return design.build(design.options.model_validate(given), registry.parts())


def _states(agent: AgentFile, machine: Machine[Any]) -> Iterable[Problem]:
    """States of `interrupt_states` that the machine does not have: nobody would be asked there."""
    there = [name_of(state) for state in machine.states]
    for index, name in enumerate(agent.people.interrupt_states):
        if name not in there:
            where: KeyPath = ("people", "interrupt_states", index)
            yield where, f"machine {agent.machine} has no state `{name}`; {nearest(name, there)}"


def _inner_machines(value: object, where: KeyPath) -> Iterable[Problem]:
    """A run would find these only when it comes to the machine inside."""
    from workflows import registry
    from workflows.machines.staged_options import InnerMachine

    if isinstance(value, InnerMachine):
        try:
            # As the run looks it up, which takes the oldest where no version is named.
            inner = registry.design(value.name, value.version, newest=False)
        except ValueError as error:
            yield (*where, "name"), str(error)
            return
        yield from _options(value.options, inner, (*where, "options"))
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _inner_machines(getattr(value, name), (*where, name))
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _inner_machines(item, (*where, index))


def check_key(models: Iterable[ModelSpec]) -> None:
    """Raise a UsageError when a model of provider `openai` has neither key nor server."""
    if os.environ.get("OPENAI_API_KEY", "").strip() or os.environ.get("OPENAI_BASE_URL", "").strip():
        return
    for spec in models:
        if spec.provider == "openai" and spec.base_url is None:
            raise UsageError(
                f"the model {spec.name} needs a key or a server: set OPENAI_API_KEY, or name any "
                "OpenAI-compatible server (Ollama, vLLM, LM Studio) with --base-url or "
                "OPENAI_BASE_URL, such as --base-url http://localhost:11434/v1 --model llama3.2. "
                "`--model scripted` needs neither, but is no language model"
            )
