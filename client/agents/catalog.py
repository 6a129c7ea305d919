"""What an agent file may name: machines, tools, providers, rules, policies, hooks; and whether what it names
exists."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ValidationError

from activities.endpoints import (
    BASE_URL,
    ENDPOINTS,
    endpoint_at,
    missing_key,
    normal_url,
    provider_of,
    unusable_url,
    url_of,
)
from activities.extensions import ExtensionError, declared, load_extensions, load_modules
from activities.installed import missing_extra
from activities.settings import Settings
from activities.trust import trusted
from client.agents.files import SCRIPTED, shipped_agents
from client.agents.yaml import FileProblem, KeyPath, YamlFile, nearest, problems
from client.errors import UsageError
from client.server.workerconfig import is_gone, recalled, register_modules, settings_from_environment

if TYPE_CHECKING:
    from activities.contracts import JsonObject, ModelSpec, ScriptedReply, ToolSpec
    from activities.provider import Provider
    from client.agents.agentfile import AgentFile, Draft
    from workflows.api import AgentTask
    from workflows.kernel.machine import Extensions, Machine

__all__ = [
    "Catalog", "check_key", "check_servers", "module_facts", "pinned", "without_broken_modules",
]  # fmt: skip

PLACEHOLDER = re.compile(r"\{\w+\}")
"""What a script fills with what an `expect` has found."""
FAULTS = (UsageError, ExtensionError, ValueError, TypeError)
"""Of modules that are loaded."""
SERVER_SECONDS = 5
"""How long a model server may take to accept a connection, and to say anything."""


@dataclass(frozen=True)
class Catalog:
    """What a worker with certain settings has."""

    settings: Settings
    modules: tuple[ModuleType, ...]
    """Users' modules, and those of installed packages."""
    others: tuple[str, ...] = ()
    """Modules that several agents have named; what one of them has is for agents that name it."""

    @classmethod
    def load(cls, settings: Settings, others: Iterable[str] = ()) -> Catalog:
        """What a worker with these settings has. The shipped machines and tools are imported when they are
        asked for.

        Args:
            settings: of the worker.
            others: modules that other agents may have named, besides those that are remembered.

        Raises:
            UsageError: a module of the settings cannot be loaded, or has what another one has.
        """
        catalog = cls(settings, register_modules(settings.modules), tuple(others))
        if catalog.modules:
            catalog.tools  # noqa: B018  # raises where tools of the modules cannot be used
        return catalog

    @cached_property
    def machines(self) -> tuple[Machine, ...]:
        """By name and version, as their default options make them."""
        from workflows import registry

        return registry.machines()

    @cached_property
    def extensions(self) -> Extensions:
        """Rules, policies and hooks of users' modules."""
        from workflows import registry

        return registry.extensions()

    @cached_property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The shipped tools and those of users' modules, by name."""
        from activities.tools import load_tools

        try:
            return tuple(tool.spec() for tool in load_tools(self.settings).values())
        except (ExtensionError, ValueError, TypeError) as error:
            raise UsageError(f"modules: {error}") from error

    @property
    def servers(self) -> tuple[str, ...]:
        """MCP servers: what tools these have is known to a worker only."""
        return tuple(self.settings.mcp)

    @property
    def providers(self) -> Mapping[str, Provider]:
        """Model providers by name. Raises UsageError for a module with one that cannot be used."""
        return {name: provider for name, (provider, _) in self._providers.items()}

    @cached_property
    def _providers(self) -> Mapping[str, tuple[Provider, str]]:
        """Each with the file that declares it."""
        from activities.providers import providers_with_files

        try:
            return providers_with_files(self.settings)
        except (ExtensionError, ValueError, TypeError) as error:
            raise UsageError(f"modules: {error}") from error

    def machine(self, name: str, version: str | None = None, options: JsonObject | None = None) -> Machine:
        """A machine as these options make it; default: its own; without a version the newest.

        Raises:
            UsageError: there is no such machine, or the options do not fit it.
        """
        from workflows import registry

        try:
            if options is None:
                return registry.machine(name, version)
            return registry.machine_for(name, version, options, newest=True)[0]
        except ValueError as error:
            raise UsageError(str(error)) from error

    def check(self, agent: AgentFile, draft: Draft, *, any_module: bool = False) -> None:
        """Raise a UsageError with everything in the agent that names what is not there, or does not fit.

        Args:
            agent: what is checked.
            draft: where it was read.
            any_module: what a module has counts even if the agent does not name the module; for callers
                that run nothing.
        """
        if found := self.problems(agent, draft, any_module=any_module):
            raise UsageError(draft.message(found))

    def problems(self, agent: AgentFile, draft: Draft, *, any_module: bool = False) -> list[FileProblem]:
        """What `check` refuses."""
        found = [] if any_module else list(self.not_named(agent))
        if all(place != ("machine",) for place, _ in found):
            found += self._machine(agent)
        return [
            *found,
            *self._models(agent),
            *self._tools(agent, draft.folder),
            *self.approval_problems(agent),
        ]

    def not_named(self, agent: AgentFile) -> Iterator[FileProblem]:
        """What this agent would get of a file that neither it nor the environment names: another agent, or an
        earlier command of the directory, has named that file for itself. Raises UsageError."""
        others = {_file(name) for name in (*recalled(self.settings.data_dir).modules, *self.others)}
        others -= {_file(name) for name in agent.modules}
        if not others:
            return
        others -= {_file(name) for name in settings_from_environment().modules}
        for place, file, what in self._files(agent):
            if _file(file) in others:
                more = _machines_of(agent) if place == ("machine",) else ""
                yield place, f"{what} is of {_whose(file)}{more}"

    def _files(self, agent: AgentFile) -> Iterator[tuple[KeyPath, str, str]]:
        """Which file has what the agent names: the place in the agent, the file, and what that is."""
        from workflows import registry

        with suppress(ValueError):  # `_machine` reports a machine that is not there
            machine = registry.machine(agent.machine, agent.machine_version)
            own, *more = registry.modules_of(machine, agent.options)
            yield ("machine",), _place(own), f"the machine `{agent.machine}` (version {machine.version})"
            for module in more:
                what = "a rule, policy or hook that the options name, or that the machine may read,"
                yield ("options",), _place(module), what
        for place, name, version in _inner_machines(agent.options, ("options",)):
            with suppress(ValueError):
                inner = registry.machine(name, version, newest=False)  # as the run looks it up
                own, *_ = registry.modules_of(inner, {})
                yield place, _place(own), f"the machine `{name}` (version {inner.version})"
        for tool, file in declared(load_modules(self.settings.modules), "TOOL"):
            if tool.name in agent.tools:
                yield ("tools", agent.tools.index(tool.name)), file, f"the tool `{tool.name}`"
        for role, spec in agent.models.items():
            _, file = self._providers.get(provider_of(spec), (None, ""))
            yield ("models", role, "provider"), file, f"the provider `{provider_of(spec)}`"

    def warnings(self, agent: AgentFile, more: Iterable[ToolSpec] = ()) -> tuple[str, ...]:
        """What the agent's rules do not protect, as far as its tools are known; `more` are those of MCP
        servers."""
        from workflows.gate.approvals import problem_text, unchecked_paths

        specs = [tool for tool in (*self.tools, *more) if tool.name in agent.tools]
        return tuple(problem_text([one]) for one in unchecked_paths(agent.approvals, specs))

    def approval_problems(self, agent: AgentFile, more: Iterable[ToolSpec] = ()) -> list[FileProblem]:
        """What is wrong with the agent's approvals; `more` as for `warnings`."""
        from workflows.gate.approvals import label_problems
        from workflows.gate.approvals import problems as approval_problems

        known = [tool for tool in (*self.tools, *more) if tool.name in agent.tools]
        specs = [agent.labels.labelled(tool) for tool in known]
        found = approval_problems(agent.approvals, agent.people, tools=agent.tools, specs=specs)
        return found + label_problems(agent.approvals, agent.labels, tools=agent.tools, specs=specs)

    def _machine(self, agent: AgentFile) -> Iterator[FileProblem]:
        names = {machine.name for machine in self.machines}
        if agent.machine not in names:
            meant = nearest(agent.machine, names)
            text = f"there is no machine `{agent.machine}`; {meant}"
            yield ("machine",), text if meant.endswith("?") else f"{text}{_machines_of(agent)}"
            return
        try:
            machine = self.machine(agent.machine, agent.machine_version)
        except UsageError as error:
            yield ("machine_version",), str(error)
            return
        if wrong := list(_option_problems(agent.options, machine, ("options",))):
            yield from wrong
        else:
            machine = self.machine(agent.machine, machine.version, agent.options)
            yield from _state_problems(agent, machine)
        for role in agent.models:
            if role not in {*machine.roles, *agent.fallbacks}:
                what = f"machine {machine.name} has no such role; {nearest(role, machine.roles)}"
                yield ("models", role), what

    def _models(self, agent: AgentFile) -> Iterator[FileProblem]:
        plain = all(one.plain_replies for one in self.machines if one.name == agent.machine)
        scripted = plain or any(spec.script for spec in agent.models.values())
        # A misspelt tool of the agent is said once, of the agent.
        misspelt = any(self.tool_problem(name) for name in agent.tools)
        callable_ = [*agent.tools, *(tool.name for tool in self.tools if misspelt)]
        for role, spec in agent.models.items():
            if (provider := provider_of(spec)) not in self.providers:
                what = f"there is no provider `{provider}`; {nearest(provider, self.providers)}"
                yield ("models", role, "provider"), what
            elif spec.provider == SCRIPTED and not scripted:
                yield ("models", role), _no_script(agent.machine)
            for index, entry in enumerate(spec.script or ()):
                yield from _script_problems(entry, callable_, ("models", role, "script", index))

    def _tools(self, agent: AgentFile, folder: Path) -> Iterator[FileProblem]:
        for index, name in enumerate(agent.tools):
            if problem := self.tool_problem(name):
                file = folder / f"{name}.py"
                is_left_out = (
                    name.isidentifier() and file.is_file() and str(file.resolve()) not in agent.modules
                )
                hint = f"; {file.name} lies beside the agent file: add it to `modules`" if is_left_out else ""
                yield ("tools", index), f"{problem}{hint}"

    def tool_problem(self, name: str) -> str:
        """Why there is no tool of this name; empty: there is, or an MCP server may have it."""
        names = [tool.name for tool in self.tools]
        server, separator, _ = name.partition("__")
        if name in names or (separator and server in self.servers):
            return ""
        if separator and server:
            known = ", ".join(self.servers) or "none"
            return (
                f"there is no tool `{name}`: no MCP server is called `{server}`; RATCHET_MCP names: {known}"
            )
        return f"there is no tool `{name}`; {nearest(name, names)}"


def _file(module: str) -> str:
    """One name for each module, however it is written."""
    is_file = module.endswith(".py") or "/" in module
    return str(Path(module).expanduser().resolve()) if is_file else module


def _place(module: ModuleType) -> str:
    return module.__file__ or module.__name__


def _whose(file: str) -> str:
    """Who has named a file that an agent does not name, and what to do."""
    return (
        f"{file}, which this agent does not name: another agent, or an earlier command in this directory, "
        f"did. Add it to `modules`, or `ratchet modules --forget {shlex.quote(file)}` forgets it"
    )


def _inner_machines(value: object, where: KeyPath) -> Iterator[tuple[KeyPath, str, str | None]]:
    """Machines that options name, at the same places as `_inner_problems` finds them."""
    if isinstance(value, Mapping):
        if isinstance(name := value.get("machine"), str):
            yield (*where, "machine"), name, value.get("machine_version")
        for key, item in value.items():
            yield from _inner_machines(item, (*where, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _inner_machines(item, (*where, index))


def _machines_of(agent: AgentFile) -> str:
    """Which machines the agent's own modules declare, for the end of a message."""
    if not agent.modules:
        return ""
    machines = [getattr(one, "name", "") for one, _ in declared(load_modules(agent.modules), "MACHINE")]
    files = ", ".join(Path(name).name for name in agent.modules)
    if not machines:
        return f". {files} declares none: a module does by `MACHINE = Machine(...)`, or by a tuple `MACHINES`"
    return f". {files} declares {', '.join(f'`{name}`' for name in machines)}"


def _script_problems(entry: ScriptedReply, tools: Sequence[str], where: KeyPath) -> Iterator[FileProblem]:
    """Calls of a script that could not be made."""
    for index, call in enumerate(entry.tool_calls):
        place = (*where, "tool_calls", index)
        if call.name not in tools:
            yield (*place, "name"), f"the agent has no tool `{call.name}`; {nearest(call.name, tools)}"
        try:
            fits = isinstance(json.loads(call.arguments), dict)
        except ValueError:
            fits = bool(PLACEHOLDER.search(call.arguments))  # it may be JSON once it is filled in
        if not fits:
            yield (*place, "arguments"), f"expected a JSON object as text, got {call.arguments[:80]!r}"


def pinned(task: AgentTask) -> AgentTask:
    """The task with the newest version of its machine, unless it names one or we do not know the machine."""
    from workflows import registry

    with suppress(ValueError):
        newest = registry.machine(task.machine, task.machine_version).version
        return task.model_copy(update={"machine_version": newest})
    return task


def without_broken_modules(settings: Settings, named: Iterable[str]) -> tuple[Settings, tuple[str, ...]]:
    """The settings without modules that an earlier command named and that cannot be loaded any more, or that
    have what a newer one has: a tool, machine, rule, policy or hook of the same name.

    A module that is `named` now, or by the environment, stays: its fault is an error for whoever loads it.
    Gives a message for each reason why modules are left out; one is that their files are gone, which the
    settings leave out already.
    """

    def load(*modules: str) -> None:
        if not load_extensions(modules):
            return  # the shipped tools, providers and machines alone fit each other
        from activities.providers import load_providers
        from activities.tools import load_tools

        trial = settings.model_copy(update={"modules": modules})
        load_tools(trial)
        load_providers(trial)
        register_modules(modules)

    needed = tuple(named)
    remembered = [name for name in settings.modules if name not in needed]
    kept = [name for name in settings.modules if name in needed]
    left_out: dict[str, list[str]] = {}
    every = recalled(settings.data_dir).modules
    if gone := [name for name in every if name not in needed and is_gone(name)]:
        left_out["the file is gone"] = gone
    try:
        load(*kept)
    except FAULTS:  # beside a module that is broken, nothing can be said of the others
        return settings.model_copy(update={"modules": tuple(kept)}), ()
    for name in reversed(remembered):  # the newest first
        try:
            load(*kept, name)
        except FAULTS as error:
            left_out.setdefault(str(error).removeprefix(f"{name}: "), []).append(name)
        else:
            kept.append(name)
    messages = tuple(_left_out_text(why, names) for why, names in left_out.items())
    return settings.model_copy(update={"modules": tuple(kept)}), messages


def _left_out_text(why: str, names: Sequence[str]) -> str:
    if len(names) > 1:
        return (
            f"left out {len(names)} modules that earlier commands named: {why}; `ratchet modules` lists "
            "them, and with --forget NAME forgets one"
        )
    forget = f"`ratchet modules --forget {shlex.quote(names[0])}` forgets it"
    return f"left out {names[0]}, which an earlier command named: {why}; {forget}"


def module_facts(name: str) -> dict[str, Any]:
    """What a user's module has, or why it cannot be loaded."""
    try:
        tools = [tool.name for tool in _tools_of(name)]
        (module,) = load_modules([name])
    except (UsageError, ExtensionError) as error:
        return {"module": name, "error": str(error)}
    machines = [getattr(one, "name", "") for one, _ in declared([module], "MACHINE")]
    return {"module": name, "tools": tools, "machines": machines}


def _tools_of(module: str) -> list[Any]:
    """Raises UsageError."""
    try:
        return [one for one, _ in declared(load_modules([module]), "TOOL") if hasattr(one, "name")]
    except ExtensionError as error:
        raise UsageError(str(error)) from error


def check_key(models: Mapping[str, ModelSpec], place: Callable[[KeyPath], str] | None = None) -> None:
    """Raise a UsageError when a model needs a key that is not set, or a library that is missing. `place` says
    where a key of the agent is."""
    if any(provider_of(spec) in ENDPOINTS for spec in models.values()) and find_spec("openai") is None:
        raise UsageError(missing_extra("openai"))
    for role, spec in models.items():
        if problem := missing_key(spec):
            raise UsageError(f"{place(('models', role))}: {problem}" if place else problem)


async def check_servers(models: Mapping[str, ModelSpec]) -> None:
    """Raise a UsageError when no server answers for a model that is asked by HTTP, nor for its fallbacks: the
    run would try for a minute."""
    asked = {role: url for role, spec in models.items() if (url := _address(spec))}
    if not asked:
        return  # without the time that an HTTP client takes to be made
    import httpx2

    silent: dict[str, str] = {}

    async def ask(url: str) -> None:
        try:
            await client.get(url)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            silent[url] = str(error) or type(error).__name__
        except httpx2.HTTPError:
            pass  # it is there; what it says to a run shows

    async with httpx2.AsyncClient(verify=trusted(), timeout=SERVER_SECONDS) as client:
        await asyncio.gather(*map(ask, set(asked.values())))
    down = [role for role, url in asked.items() if url in silent]
    for role in down:
        firsts = {name for name, spec in models.items() if role in spec.fallback}
        if {role, *models[role].fallback, *firsts} <= set(down):
            place = urlsplit(asked[role])
            shown = urlunsplit(place._replace(netloc=place.netloc.rpartition("@")[2], query=""))
            start = "" if endpoint_at(asked[role]) else "start it, or "
            raise UsageError(
                f"the model server {shown} of {models[role].name} does not answer ({silent[asked[role]]}), "
                f"so nothing was started; {start}check the network (HTTPS_PROXY, if there is a proxy), or "
                "name another with --base-url"
            )


def _address(model: ModelSpec) -> str | None:
    """Where the model is asked by HTTP; None: it is not. Raises UsageError for what is no address."""
    if model.base_url and (problem := unusable_url(model.base_url)):
        raise UsageError(f"base_url of {model.name}: {problem}")
    url = url_of(model)
    try:
        return normal_url(url) if url else None
    except ValueError as error:
        raise UsageError(f"{BASE_URL}: {error}") from error


def _no_script(machine: str) -> str:
    """Why a model without a script is refused, and which shipped agent has one."""
    examples = [path.stem for path in shipped_agents() if YamlFile(path).values.get("machine") == machine]
    hint = f", or try the agent {examples[0]}" if examples else ""
    return (
        f"the provider `{SCRIPTED}` cannot reply as {machine} expects without a script; write one "
        f"(`ratchet docs scripts`){hint}"
    )


def _option_problems(given: JsonObject, machine: Machine, where: KeyPath) -> Iterator[FileProblem]:
    """What is wrong with a machine's options, and with those of machines that run inside it."""
    from workflows import registry

    try:
        built, options = registry.machine_for(machine.name, machine.version, given)
        if built.prepare:
            built.prepare(options, registry.extensions())
    except ValidationError as error:
        for place, what in problems(error, machine.options):
            yield (*where, *place), what
        return
    except Exception as error:  # noqa: BLE001  # whatever a user's machine raises about its options
        yield where, str(error)
        return
    yield from _inner_problems(options, where)


def _inner_problems(value: object, where: KeyPath) -> Iterator[FileProblem]:
    """Machines that options name (fields `machine`, `machine_version`, `options`); a run would find a wrong
    one only when it comes to it."""
    from workflows import registry

    if isinstance(value, BaseModel):
        name = getattr(value, "machine", None)
        if isinstance(name, str):
            try:
                # as the run looks it up: the oldest where no version is named
                inner = registry.machine(name, getattr(value, "machine_version", None), newest=False)
            except ValueError as error:
                yield (*where, "machine"), str(error)
                return
            yield from _option_problems(getattr(value, "options", {}), inner, (*where, "options"))
            return
        for field in sorted(value.model_fields_set):
            yield from _inner_problems(getattr(value, field), (*where, field))
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _inner_problems(item, (*where, index))


def _state_problems(agent: AgentFile, machine: Machine) -> Iterator[FileProblem]:
    """States of `interrupt_states` that the machine does not have, tools that the agent does not have: nobody
    would be asked there, or the run would break a rule there."""
    from workflows.task import missing_tools

    yield from ((("tools",), what) for what in missing_tools(machine, agent.tools))
    for index, name in enumerate(agent.people.interrupt_states):
        if name not in machine.rows:
            known = nearest(name, machine.rows)
            what = f"machine {agent.machine} has no state `{name}` to pause before; {known}"
            yield ("people", "interrupt_states", index), what
    if agent.people.interrupt_every and machine.step is None:
        yield ("people", "interrupt_every"), f"machine {agent.machine} has no steps"
