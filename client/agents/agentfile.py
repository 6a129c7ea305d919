"""Agent files: one YAML file says what an agent is; a goal makes it a task.

Whatever is wrong is said before anything starts: each fault with file, line, column and key.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator

from activities.contracts import ModelSpec
from activities.endpoints import ENDPOINTS, provider_of, unusable_url
from client.agents.files import SCRIPTED, shipped_agents
from client.agents.outputs import named_output
from client.agents.yaml import FileProblem, KeyPath, YamlFile, dotted, nearest, parse, problem_text, problems
from client.errors import UsageError
from workflows.api import AgentSpec, AgentTask
from workflows.certificate import Certificate

__all__ = [
    "AgentFile", "Choice", "Draft", "find_agent", "listed_agent", "listed_facts", "load_agent",
]  # fmt: skip

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "default")
"""The usual words for `reasoning`; servers have others of their own."""
PLAIN_AGENT = {
    "name": "agent",
    "description": "Answers questions with the help of the files of the current folder.",
    "machine": "react",
    "tools": ["calculator", "current_time", "list_files", "read_file", "search_files"],
}
"""What runs when no agent file is named."""


ModelsByRole = Annotated[dict[str, str | ModelSpec], Field(json_schema_extra={"required": ["default"]})]
"""As a file may write them: a bare name is enough for a model."""


class AgentFile(AgentSpec):
    """What an agent file may contain: the agent, and what only its file needs."""

    description: str = Field(
        default="",
        max_length=2_000,
        description="one line for `ratchet agents`",
        examples=["Answers questions."],
    )
    modules: tuple[str, ...] = Field(
        default=(),
        description="your Python files with tools, rules or machines, relative to the agent file",
        examples=[["transfer.py"]],
    )

    @field_validator("models", mode="before", json_schema_input_type=str | ModelsByRole)
    @classmethod
    def _bare_names(cls, models: Any) -> Any:
        return _models(models)

    def task(self, goal: str, **more: Any) -> AgentTask:
        """The task of this agent with a goal; `more` are other fields of `AgentTask`, such as `material`.

        Raises:
            UsageError: the goal is blank or too large.
        """
        spec = {name: getattr(self, name) for name in AgentSpec.model_fields}
        try:
            return AgentTask(goal=goal, **spec, **more)
        except ValidationError as error:
            if not goal:
                raise UsageError("the goal is empty; say what the agent shall do") from error
            raise UsageError(problem_text(error, AgentTask)) from error


class Draft:
    """An agent before it is checked: the keys of a file, changed by options of the command line."""

    def __init__(self, source: YamlFile | dict[str, Any]) -> None:
        self._file = source if isinstance(source, YamlFile) else None
        self._origins: dict[KeyPath, str] = {}
        self.values: dict[str, Any] = dict(source.values if isinstance(source, YamlFile) else source)
        if self._file:
            self.values.setdefault("name", self._file.path.stem)

    def set(self, where: KeyPath, value: object, origin: str) -> None:
        """Put a value at a path; messages about it name `origin`, an option of the command line."""
        at = self.values
        if where[0] == "models":  # a bare word becomes a mapping, so that keys fit in
            at["models"] = _models(at.get("models"))
        for part in where[:-1]:
            below = at.get(str(part))
            at[str(part)] = dict(below) if isinstance(below, dict) else {}
            at = at[str(part)]
        at[str(where[-1])] = value
        self._origins[where] = origin

    def assign(self, assignment: str) -> None:
        """`max_steps=5` sets an option of the machine, `limits.tokens=1000` any other key.

        Raises:
            UsageError: it has no `=`, or what follows is not YAML.
        """
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {assignment}: expected KEY=VALUE, such as max_steps=5")
        parts: KeyPath = tuple(key.strip().split("."))
        where = parts if parts[0] in AgentFile.model_fields else ("options", *parts)
        value, _ = parse(text, f"--set {assignment[:80]}")
        self.set(where, value, f"--set {assignment}")

    def place(self, where: KeyPath) -> str:
        """Where a key comes from: file, line and column, or an option."""
        for end in range(len(where), 0, -1):
            if where[:end] in self._origins:
                return self._origins[where[:end]]
        for below, origin in self._origins.items():  # a key of its own that the option has made
            if below[: len(where)] == where and not (self._file and where in self._file.places):
                return origin
        return self._file.place(where) if self._file else "agent"

    @property
    def folder(self) -> Path:
        """Where the agent file lies; without one, the current folder."""
        return self._file.path.parent if self._file else Path()

    def message(self, found: Iterable[FileProblem]) -> str:
        """The message for what is wrong: one line for each problem, with its place and key."""
        return "\n".join(
            f"{self.place(where)}: {dotted(where)}: {what}{self._meant(where, what)}" for where, what in found
        )

    def _meant(self, where: KeyPath, what: str) -> str:
        """The agent's key that was meant by an option which the machine does not have."""
        if len(where) != 2 or where[0] != "options" or not what.startswith("unknown key"):
            return ""
        close = difflib.get_close_matches(str(where[1]), AgentFile.model_fields, 1, 0.75)
        return f"; or did you mean the agent's key `{close[0]}`?" if close else ""

    def finish(self) -> AgentFile:
        """The agent, checked as far as it can be without knowing its machine and tools. To find a model that
        `output` names, its modules are executed.

        Raises:
            UsageError: unknown keys, wrong types, values out of range, missing modules; all at once.
        """
        found: list[FileProblem] = []
        named = {"certificate": self._certificate(found), "output": self._output(found)}
        return self._agent_with(named, found)

    def listed(self) -> AgentFile:
        """The agent for a list: nobody chose it, so nothing of it is executed, and no other file is read. It
        lacks the `certificate` and the `output` that it names. Raises UsageError as `finish` does."""
        named = {key: None for key in ("certificate", "output") if isinstance(self.values.get(key), str)}
        return self._agent_with(named, [])

    def _agent_with(self, named: dict[str, Any], found: list[FileProblem]) -> AgentFile:
        """The agent with what it names elsewhere. Raises UsageError with `found`, and with what else is
        wrong."""
        try:
            agent = AgentFile.model_validate({**self.values, **named})
        except ValidationError as error:
            raise UsageError(self.message([*problems(error, AgentFile), *found])) from error
        modules = [(self.folder / name).resolve() for name in agent.modules]
        found += [
            (("modules", index), f"no Python file {path}")
            for index, path in enumerate(modules)
            if path.suffix != ".py" or not path.is_file()
        ]
        for role, model in agent.models.items():
            found += [(("models", role, key), what) for key, what in _misfits(model)]
        if found:
            raise UsageError(self.message(found))
        return agent.model_copy(update={"modules": tuple(map(str, modules))})

    def _certificate(self, found: list[FileProblem]) -> Certificate | None:
        """What the agent carries of the file that it names. A problem with it is added to `found`."""
        given = self.values.get("certificate")
        if given is None:
            return None
        if not isinstance(given, str):
            found.append((("certificate",), f"expected the path of a file, got {given!r:.40}"))
            return None
        from client.proof.certificate import read_certificate

        try:
            return read_certificate(self.folder / given)[1]
        except ValueError as error:
            found.append((("certificate",), str(error)))
            return None

    def _output(self, found: list[FileProblem]) -> Any:
        """The schema that the agent gives, or names. A problem with a name is added to `found`."""
        given, modules = self.values.get("output"), self.values.get("modules")
        if not isinstance(given, str):
            return given
        try:
            return named_output(given, self.folder, modules if isinstance(modules, list) else ())
        except ValueError as error:
            found.append((("output",), str(error)))
            return None


@dataclass(frozen=True)
class Choice:
    """What a person chose on the command line."""

    agent: str | None = None
    """A file, or the name of a shipped agent; None: `PLAIN_AGENT`."""
    model: str | None = None
    base_url: str | None = None
    machine: str | None = None
    tools: Sequence[str] = ()
    """Added to the agent's."""
    settings: Sequence[str] = ()
    """`key=value` each."""

    def draft(self) -> Draft:
        """The agent file, or the plain agent, changed by the options.

        Raises:
            UsageError: the file cannot be read, or an option makes no sense.
        """
        draft = Draft(PLAIN_AGENT if self.agent is None else YamlFile(find_agent(self.agent)))
        if self.machine is not None:
            draft.set(("machine",), self.machine, f"--machine {self.machine}")
        if self.tools:
            tools = dict.fromkeys([*(draft.values.get("tools") or ()), *self.tools])
            draft.set(("tools",), list(tools), f"--tool {', '.join(self.tools)}")
        if self.model is not None or self.base_url is not None:
            self._set_models(draft)
        for assignment in self.settings:
            draft.assign(assignment)
        return draft

    def _set_models(self, draft: Draft) -> None:
        """Another name and server for every role, with the same settings. `scripted` keeps the scripts of an
        agent file; any other name keeps nothing of a script, and a server leaves scripts as they are. Which
        of the providers of `ENDPOINTS` is asked follows from the new name and server."""
        models = _models(draft.values.get("models"))
        known = models if isinstance(models, dict) else {}
        for role in dict.fromkeys(("default", *known)):
            before = known.get(role)
            before = before if isinstance(before, dict) else {}
            is_script = before.get("provider") == SCRIPTED
            if self.model is not None and not (is_script and self.model == SCRIPTED):
                kept = {} if is_script or self.model == SCRIPTED else before
                if kept.get("provider") in ENDPOINTS:
                    kept = {**kept, "provider": None}
                draft.set(("models", role), {**kept, **_model(self.model)}, f"--model {self.model}")
                is_script = self.model == SCRIPTED
            if self.base_url is not None and not (is_script and known):
                if before.get("provider") in ENDPOINTS:
                    draft.set(("models", role, "provider"), None, f"--base-url {self.base_url}")
                draft.set(("models", role, "base_url"), self.base_url, f"--base-url {self.base_url}")

    def finish(self) -> tuple[AgentFile, Draft]:
        """The agent, and the draft for later messages about it. Raises UsageError."""
        draft = self.draft()
        return draft.finish(), draft


def load_agent(name: str | Path) -> AgentFile:
    """An agent file, or the shipped agent of that name, checked; its `task(goal)` starts a run.

    Raises:
        UsageError: there is no such file, or what is wrong with it, with file, line and column.
    """
    return Draft(YamlFile(find_agent(name))).finish()


def listed_agent(path: Path) -> AgentFile:
    """An agent file that nobody chose, for a list: see `Draft.listed`. Raises UsageError."""
    return Draft(YamlFile(path)).listed()


def listed_facts(path: Path) -> dict[str, Any]:
    """What lists say of an agent file that nobody chose. Raises UsageError."""
    agent = listed_agent(path)
    return {
        "description": agent.description,
        "machine": agent.machine,
        "models": {role: spec.name for role, spec in agent.models.items()},
        "tools": list(agent.tools),
    }


def find_agent(name: str | Path) -> Path:
    """The file of an agent: a path, or the name of a shipped one.

    Raises:
        UsageError: there is neither.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return path
    shipped = {found.stem: found for found in shipped_agents()}
    if str(name) in shipped:
        return shipped[str(name)]
    if len(path.parts) > 1 or path.is_file():
        raise UsageError(f"agent {name}: expected a file whose name ends in .yaml or .yml")
    raise UsageError(f"agent {name}: no such file or shipped agent; {nearest(str(name), shipped)}")


def _models(models: Any) -> Any:
    """Models by role; a bare word is one for all."""
    if isinstance(models, str):
        models = {"default": models}
    return {role: _model(spec) for role, spec in models.items()} if isinstance(models, dict) else models


def _misfits(model: ModelSpec) -> Iterator[tuple[str, str]]:
    """Keys that cannot be meant so. Not of the model's type: runs that began with such values go on."""
    effort = model.reasoning
    if effort is not None and effort not in EFFORTS:
        for close in difflib.get_close_matches(effort, EFFORTS, 1, 0.75):
            yield "reasoning", f"got {effort!r}: did you mean `{close}`?"
    is_asked = model.base_url and provider_of(model) in ENDPOINTS
    if is_asked and (problem := unusable_url(model.base_url or "")):
        yield "base_url", problem
    if model.api == "responses" and model.seed is not None:
        yield "seed", f"the Responses API takes none; got {model.seed}: leave it out, or use `api: chat`"


def _model(spec: Any) -> Any:
    """A model as a mapping; a bare word is its name, and `scripted` is the provider that needs none."""
    if isinstance(spec, str):
        return {"provider": SCRIPTED, "name": SCRIPTED} if spec == SCRIPTED else {"name": spec}
    if isinstance(spec, dict) and spec.get("provider") == SCRIPTED:
        return {"name": SCRIPTED, **spec}
    return spec
