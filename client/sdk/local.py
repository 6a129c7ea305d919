"""Run an agent in this process, without Temporal: for tests of agents, tools and machines.

    model = ScriptedModel([tool_call("word_count", text="a b c"), "FINAL ANSWER: 3"])
    outcome = Local(load_agent("counter.yaml"), model=model).run_sync("Count the words of 'a b c'.")
    assert outcome.answer == "3"

The loop, the machines, approvals and limits are those of production. Tools are real: schema, time limit,
attempts and caps included. A model that fails is not asked again. Code runs in the sandbox. Each run has a
temporary folder for its blobs.
"""

from __future__ import annotations

import asyncio
import inspect
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from activities.contracts import (
    AskModel,
    CompensateInput,
    Digests,
    EffectFailed,
    MachineNamed,
    Message,
    ModelReplied,
    NativeCall,
    ReadArtifacts,
    ReconcileInput,
    RunCode,
    ToolSpec,
)
from activities.extensions import load_extensions
from activities.settings import Settings
from activities.tools import Tool, TransientError, load_tools
from activities.tools.resources import Resources
from client.agents.agentfile import AgentFile
from client.agents.purity import observer_for
from workflows import registry
from workflows.api import AgentSpec, AgentTask
from workflows.hosts import CallAnswer, CallSite, HostCall
from workflows.hosts.memory import Choice, LocalOutcome, LocalRuns, Position, Unanswered, every
from workflows.kernel.context import Context
from workflows.kernel.log import Record
from workflows.kernel.machine import Extensions, Machine
from workflows.kernel.snapshot import Observer, Program

__all__ = ["Asked", "Local", "LocalOutcome", "Position", "ScriptedModel", "Unanswered", "every", "tool_call"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to a model."""

    messages: tuple[Message, ...]
    """All that the model is sent."""
    role: str
    tools: tuple[str, ...]
    """Offered natively."""
    effect: AskModel

    @property
    def text(self) -> str:
        """The newest message."""
        return self.messages[-1].content


Reply = str | ModelReplied | EffectFailed
Model = Callable[[Asked], Reply | Awaitable[Reply]]
"""Anything that answers: a text, a whole reply, or a failure. It is asked once: `attempts` are not for it."""
Ask = Callable[[AskModel, CallSite], Awaitable[CallAnswer]]


def tool_call(tool: str, /, **arguments: Any) -> ModelReplied:
    """A reply that calls a tool natively."""
    call = NativeCall(id="", name=tool, arguments=to_json(arguments).decode())
    return ModelReplied(text="", tool_calls=(call,), model="local")


class ScriptedModel:
    """A model that replies from a list, one item for each question, and keeps what it was asked.

    An item is a text, a reply (`tool_call`, `ModelReplied`), a failure (`EffectFailed`), or a function of
    what was asked. A mapping has one list for each role. A question after the last item raises
    AssertionError.
    """

    def __init__(self, replies: Sequence[Reply | Model] | Mapping[str, Sequence[Reply | Model]]) -> None:
        by_role = replies if isinstance(replies, Mapping) else {"": replies}
        self._left = {role: list(items) for role, items in by_role.items()}
        self.asked: list[Asked] = []

    async def __call__(self, asked: Asked) -> Reply:
        """The next reply."""
        self.asked.append(asked)
        items = self._left.get(asked.role, self._left.get("", []))
        if not items:
            raise AssertionError(
                f"The script has no reply for question {len(self.asked)} (role {asked.role}): "
                f"{asked.text[:500]}"
            )
        item = items.pop(0)
        found = item(asked) if callable(item) else item
        return await found if inspect.isawaitable(found) else found

    @property
    def unused(self) -> int:
        """Replies that nobody asked for."""
        return sum(map(len, self._left.values()))


class Local:
    """An agent in this process: what `load_agent` gives, a task, or a machine alone.

    `decide` answers each request: a verb such as `"approve"`, a `Decision`, or a `Command`, after which it is
    asked again if the request is still open. None leaves the request to its deadline; without one nobody
    would ever answer, and `Unanswered` is raised. Without `decide` the run is unattended. `interrupt` says
    before which states `decide` is asked. `store` keeps runs with a `trace_id`. `on_record` gets each record
    of the log when it is written. `rules`, `policies` and `hooks` are functions by the name that the agent
    has for them, beside those of its modules. `resources` are objects in the place of what these functions
    open for tools (`{open_database: fake}`); others are opened for each run. An agent that
    names no tools gets all of the argument `tools`.
    `check_purity=False` runs no visit a second time in another process, as for a module that a test patches.
    Raises ValueError.
    """

    def __init__(  # noqa: PLR0913  # one keyword for each thing that a test may bring
        self,
        agent: AgentSpec | Machine | None = None,
        *,
        model: Model | None = None,
        tools: Sequence[Tool[Any]] = (),
        decide: Callable[[Any], Choice | Awaitable[Choice]] | None = None,
        interrupt: Callable[[Position], bool] | None = None,
        store: dict[str, list[str]] | None = None,
        on_record: Callable[[Record], None] | None = None,
        rules: Mapping[str, Callable[..., Any]] | None = None,
        policies: Mapping[str, Callable[..., Any]] | None = None,
        hooks: Mapping[str, Callable[..., Any]] | None = None,
        resources: Mapping[Callable[[], Any], Any] | None = None,
        settings: Settings | None = None,
        check_purity: bool = True,
        now: Callable[[], float] = time.time,
    ) -> None:
        machine = agent if isinstance(agent, Machine) else None
        spec = agent if isinstance(agent, AgentSpec) else AgentSpec()
        if machine is not None:
            spec = spec.model_copy(update={"machine": machine.name, "machine_version": machine.version})
        self.model, self._settings, self._resources = _given(model), settings or Settings(), resources
        if isinstance(agent, AgentFile):
            modules = (*self._settings.modules, *agent.modules)
            self._settings = self._settings.model_copy(update={"modules": modules})
        for module in load_extensions(self._settings.modules):
            registry.add_module(module)
        self._tools = _tools_of(spec, tools, self._settings)
        if not spec.tools:
            spec = spec.model_copy(update={"tools": tuple(self._tools)})
        self.agent = spec
        specs = {name: tool.spec() for name, tool in self._tools.items()}
        known = registry.extensions()
        extensions = Extensions(
            rules={**known.rules, **(rules or {})},
            policies={**known.policies, **(policies or {})},
            hooks={**known.hooks, **(hooks or {})},
        )
        given = tuple(registry.other_extensions(extensions))
        is_checked = check_purity and not (rules or policies or hooks)  # no other process has these

        def observe(task: AgentTask, program: Program) -> Observer | None:
            own = machine if program.machine is machine else None
            return observer_for(task, program, specs, own) if is_checked else None

        self._runs = LocalRuns(
            specs, decide, interrupt, store, now, machine,
            on_record=on_record, extensions=extensions, observe=observe,
            digests=lambda task: _digests(task, specs, machine, given),
        )  # fmt: skip
        self._calls = 0

    async def run(
        self,
        goal: str = "",
        *,
        trace_id: str = "",
        context: Context | None = None,
        spent: Mapping[str, float] | None = None,
        **fields: Any,
    ) -> LocalOutcome:
        """Run to the end; `fields` are others of `AgentTask`.

        `context` is the machine's first one in place of its own; `spent` is what the run has used of its
        limits before it begins, by counter. Raises InvalidTask, Unanswered, and what the model and `decide`
        raise.
        """
        async with self._world() as world:
            return await self._runs.run(
                self._task(goal, fields), world.perform, trace_id=trace_id, context=context, spent=spent
            )

    def run_sync(self, goal: str = "", **fields: Any) -> LocalOutcome:
        """The same for tests that are not asynchronous. Raises RuntimeError inside a running event loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.run(goal, **fields))
        raise RuntimeError("an event loop is running here, as in a notebook: use `await local.run(...)`")

    async def replay(self, trace_id: str, from_step: int, goal: str = "", **fields: Any) -> LocalOutcome:
        """Begin step `from_step` (0: the start) of a stored run again and run on. Raises ValueError."""
        async with self._world() as world:
            return await self._runs.replay(self._task(goal, fields), world.perform, trace_id, from_step)

    def _world(self) -> _World:
        return _World(self._tools, self._settings, self._ask, Resources(self._resources))

    def _task(self, goal: str, fields: Mapping[str, Any]) -> AgentTask:
        known = {name: getattr(self.agent, name) for name in AgentSpec.model_fields}
        if isinstance(self.agent, AgentTask):
            known = {name: getattr(self.agent, name) for name in AgentTask.model_fields}
        return AgentTask.model_validate({**known, **({"goal": goal} if goal else {}), **fields})

    async def _ask(self, effect: AskModel, site: CallSite) -> ModelReplied | EffectFailed:
        messages = site.conversation.without(*effect.skip)
        found = self.model(Asked(messages, effect.role, effect.offer, effect))
        reply = await found if inspect.isawaitable(found) else found
        if isinstance(reply, str):
            return ModelReplied(text=reply, model="local")
        if isinstance(reply, ModelReplied) and any(not call.id for call in reply.tool_calls):
            return reply.model_copy(update={"tool_calls": tuple(map(self._with_id, reply.tool_calls))})
        return reply

    def _with_id(self, call: NativeCall) -> NativeCall:
        self._calls += 1
        return call if call.id else call.model_copy(update={"id": f"call_{self._calls}"})


def _given(model: Model | None) -> Model:
    """The model. Raises TypeError, in words: an agent names models that `Local` does not ask."""
    if model is None:
        raise TypeError(
            "Local asks no model that an agent names, and plays no `script` of an agent file: give `model`, "
            'such as ScriptedModel([tool_call("pay", cents=500), "Paid."]), or a function from the question '
            "to a reply. `ratchet run --agent FILE` and AgentClient.connect(worker=True) play the script"
        )
    return model


def _digests(
    task: AgentTask, specs: Mapping[str, ToolSpec], machine: Machine | None, given: tuple[str, ...]
) -> Digests | None:
    """What runs here; `given` are rules, policies and hooks of no module. None: the machine is of none."""
    from client.proof.digests import digests_of

    named = MachineNamed(name=task.machine, version=task.machine_version, options=task.options)
    if machine is not None and not registry.is_loaded(machine):
        return None
    found = digests_of(named, [specs[name] for name in task.tools])
    return found and found.model_copy(update={"given": given})


def _tools_of(agent: AgentSpec, tools: Sequence[Tool[Any]], settings: Settings) -> dict[str, Tool[Any]]:
    """The given tools, and those of the shipped ones and of the settings' modules that the agent names."""
    names = [tool.name for tool in tools]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"tools: several are called {', '.join(twice)}; give each a name of its own")
    found = {tool.name: tool for tool in tools}
    if wanted := [name for name in agent.tools if name not in found]:
        known = load_tools(settings)
        if missing := [name for name in wanted if name not in known]:
            raise ValueError(f"unknown tools: {', '.join(missing)}; there are: {', '.join([*found, *known])}")
        found |= {name: known[name] for name in wanted}
    return found


class _World:
    """Model, tools, sandbox and blobs of one run."""

    def __init__(
        self, tools: Mapping[str, Tool[Any]], settings: Settings, ask: Ask, resources: Resources
    ) -> None:
        from activities.code import Pool
        from activities.images import Images
        from activities.material import Materials
        from activities.store.blobs import BlobStore
        from activities.store.encryption import Keys, SealedBlobs
        from activities.store.secret import StoreSecret
        from activities.tools.run import ToolRunner

        self._ask = ask
        self._folder = tempfile.TemporaryDirectory(prefix="ratchet-")
        self._blobs = SealedBlobs(BlobStore(Path(self._folder.name)), Keys(settings.encryption_keys))
        images = Images(self._blobs, StoreSecret(Path(self._folder.name) / "blobs"))
        self._runner = ToolRunner(tools, settings, self._blobs, images=images, resources=resources)
        self._materials, self._pool = Materials(self._blobs), Pool()

    async def __aenter__(self) -> _World:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.resources.close()
        await self._pool.close()
        self._folder.cleanup()

    async def perform(self, call: HostCall, site: CallSite) -> CallAnswer:
        if isinstance(call, AskModel):
            return await self._ask(call, site)
        if isinstance(call, RunCode):
            return await self._step_code(call)
        if isinstance(call, ReadArtifacts):
            from activities.tools.artifacts import read_artifacts

            return await asyncio.to_thread(read_artifacts, self._blobs, call)
        return await self._tool(call)

    async def _tool(self, request: Any) -> CallAnswer:
        function: Callable[..., Awaitable[CallAnswer]] = self._runner.run_tool
        if isinstance(request, ReconcileInput):
            function = self._runner.reconcile_tool
        elif isinstance(request, CompensateInput):
            function = self._runner.compensate_tool
        attempt = 1
        while True:  # the runner raises TransientError only while the request allows another attempt
            try:
                return await function(request, attempt)
            except TransientError:
                attempt += 1

    async def _step_code(self, effect: RunCode) -> CallAnswer:
        from activities.code import UNUSABLE, step_code

        try:
            return await step_code(effect, self._materials, self._pool)
        except UNUSABLE as error:
            return EffectFailed(error="fatal", type=type(error).__name__, message=str(error))
