"""What an agent can do with nobody asked, as pages show it.

A solver may take seconds, or hang, and no two threads may touch its terms. So a process of its own is asked,
which ends with its answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from activities.contracts import Frozen, ToolSpec
from activities.extensions import ExtensionError
from activities.installed import missing_extra
from client.agents.purity import KEPT_VARIABLES
from client.errors import RatchetError
from client.server.workerconfig import register_modules
from workflows import registry
from workflows.api import AgentSpec
from workflows.kernel.labels import names
from workflows.kernel.log import FORKED, Record
from workflows.kernel.machine import Machine
from workflows.people import Approvals
from workflows.verify.policy.report import (
    OUTSIDE,
    WHEN,
    JudgedAgent,
    alone_text,
    bound_text,
    radius_text,
    tool_report,
)
from workflows.verify.policy.run_so_far import RunSoFar, agent_from_here

if TYPE_CHECKING:  # what shows runs imports Temporal, which takes the process half of its time to answer
    from client.console.run_views import RunView

__all__ = ["Radii", "Radius", "RadiusQuestion", "RadiusRow", "answer_to", "question_of_run", "serve"]

MAX_KEPT_RADII = 200
"""Radii that are kept."""
ANSWER_SECONDS = 60
"""For an answer. The solver gives up a question after five."""
ELSEWHERE = "`ratchet verify agent` shows more."
START = f"import sys; sys.path[:] = {{path!r}}; from {__name__} import serve; serve()"


class RadiusQuestion(Frozen):
    """What is asked about an agent."""

    agent: AgentSpec
    modules: tuple[str, ...]
    """Files with its machine."""
    specs: tuple[ToolSpec, ...]
    """Its tools as far as they are known, as it labels them."""
    about: str = ""
    """This tool alone, in one sentence; empty: each that is unsafe or keyed, in rows."""
    run: RunSoFar | None = None
    """The run that they would be made in; None: a new one."""


class RadiusRow(Frozen):
    """What calls of one tool can come to at one level, in the words of `ratchet verify agent`."""

    tool: str
    effect: str
    when: str
    most: str
    example: str = ""


class Radius(Frozen):
    """What is known of what was asked."""

    bound: str = ""
    """The most calls of all tools."""
    rows: tuple[RadiusRow, ...] = ()
    unknown: tuple[str, ...] = ()
    """What is not proven."""
    sentence: str = ""
    """Of one tool."""
    problem: str = ""
    """Why there is no answer, and what to do."""


async def answer_to(question: RadiusQuestion) -> Radius:
    """The answer, by a process that ends with it, or has to after a minute."""
    if find_spec("z3") is None:
        return Radius(problem=missing_extra("z3"))
    try:
        process = await _started()
    except OSError as error:
        return Radius(problem=f"The solver's process cannot be started: {error}. {ELSEWHERE}")
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            written, _ = await process.communicate(question.model_dump_json().encode())
        return Radius.model_validate_json(written)
    except TimeoutError:
        return Radius(problem=f"The solver found no answer in {ANSWER_SECONDS} s. {ELSEWHERE}")
    except ValueError:
        return Radius(problem=f"The solver's process ended with {process.returncode}. {ELSEWHERE}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _started() -> Process:
    """In a session of its own, so that Ctrl-C in the terminal does not reach it; without keys."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    path = [str(Path(one).absolute()) for one in sys.path]  # noqa: ASYNC240  # nothing is read
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", START.format(path=path), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=kept,
        start_new_session=True,
    )  # fmt: skip


def serve() -> None:
    """Answer the question on standard input."""
    os.nice(10)  # people and workers first
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a module prints is no answer
    try:
        answer = _answer(RadiusQuestion.model_validate(json.load(sys.stdin)))
    except (RatchetError, ExtensionError, ValueError, TypeError) as error:
        answer = Radius(problem=str(error))
    output.write(answer.model_dump_json())
    output.flush()


def _answer(question: RadiusQuestion) -> Radius:
    register_modules(question.modules)
    agent = question.agent if question.run is None else agent_from_here(question.agent, question.run)
    machine = _machine(agent)
    found = JudgedAgent(agent, machine, {spec.name: spec for spec in question.specs})
    if question.about:
        approved = question.run.approved if question.run else ()
        return Radius(sentence=alone_text(found, question.about, approved))
    wanted = [spec for spec in found.callable if spec.effect in OUTSIDE]
    reports = {spec.name: tool_report(found, spec) for spec in wanted}
    radii = [one for report in reports.values() for one in report.radii]
    return Radius(
        bound=bound_text(found.bound),
        rows=tuple(
            RadiusRow(
                tool=one.tool, effect=one.effect, when=WHEN[one.level], most=radius_text(one),
                example=one.example.title if one.example else "",
            )
            for one in radii
        ),
        unknown=tuple(f"{name}, {why}" for name, report in reports.items() for why in report.unknown),
    )  # fmt: skip


def _machine(agent: AgentSpec) -> Machine:
    return registry.machine_for(agent.machine, agent.machine_version, agent.options, newest=True)[0]


# -- what is asked about a run --------------------


def question_of_run(
    view: RunView, tool: str, tools: Mapping[str, ToolSpec], modules: Sequence[str]
) -> RadiusQuestion | None:
    """What calls of the tool this run may make with nobody asked, from now on; None: no worker says how far
    it is."""
    task, status = view.task, view.status
    if task is None or status is None:
        return None
    spent = task.spent_above_usd + status.counters.get("cost_usd", 0.0)
    run = RunSoFar(
        # what inner runs under way have not used of their parts comes back
        bounds=() if status.children else status.bounds,
        labels=names(status.labels),
        spent_usd=spent,
        caps=status.caps,
        tool_calls=status.counters.get("tool_calls", 0.0),
        approved=tuple(_approved_for_later(view, tool)),
    )
    agent = task.spec.model_copy(update={"machine_version": status.machine_version})
    specs = tuple(tools.values())
    return RadiusQuestion(agent=agent, modules=tuple(modules), specs=specs, about=tool, run=run)


def _approved_for_later(view: RunView, tool: str) -> Iterator[str]:
    """Requests of this run that have approved later calls of the tool, too."""
    assert view.task is not None
    rules: dict[str, str] = {}
    for record in view.records:
        about = record.about
        name = str(about.get("request", ""))
        if record.event == FORKED:  # the run that it came from has no say here
            rules.clear()
        elif record.event == "Requested":
            rules[name] = str(about.get("rule", ""))
        elif _approves(record, tool) and name in rules:
            # a standing approval may be empty: it is for all later calls of the tool
            is_for_later = "standing_approval" in about or _asks_once(view.task.approvals, rules[name])
            yield from [name] * is_for_later


def _approves(record: Record, tool: str) -> bool:
    about = record.about
    return (record.event, about.get("tool"), about.get("outcome")) == ("Decided", tool, "approved")


def _asks_once(approvals: Approvals, entry: str) -> bool:
    """The entry of the run's policy asks about the first call alone."""
    section, _, name = entry.partition(".")
    if section == "rules":
        return approvals.rules[int(name)].ask == "first_time"
    modes: Mapping[Any, str] = approvals.tools if section == "tools" else approvals.effects
    return modes.get(name) == "first_time"


# -- what was asked already --------------------


class Radii:
    """Radii by question: each is asked for once, one after another."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, asyncio.Task[Radius]] = OrderedDict()
        self._turn = asyncio.Lock()

    async def answer(self, question: RadiusQuestion) -> Radius:
        """The answer, once it is known. What could not be answered is asked again."""
        if (before := self.answer_if_known(question)) is not None and before.problem:
            del self._known[_digest(question)]
        return await asyncio.shield(self._task_for(question))

    def answer_if_known(self, question: RadiusQuestion) -> Radius | None:
        """The answer, if it is known by now; else it is asked."""
        task = self._task_for(question)
        return task.result() if task.done() else None

    def drop(self, question: RadiusQuestion) -> None:
        """Stop asking for it, if it is not known yet: the run has moved on. Who still wants it asks again."""
        task = self._known.get(_digest(question))
        if task is not None and not task.done():
            task.cancel()
            del self._known[_digest(question)]

    def _task_for(self, question: RadiusQuestion) -> asyncio.Task[Radius]:
        digest = _digest(question)
        if digest not in self._known:
            self._known[digest] = asyncio.create_task(self._ask(question))
            while len(self._known) > MAX_KEPT_RADII and next(iter(self._known.values())).done():
                self._known.popitem(last=False)
        return self._known[digest]

    async def _ask(self, question: RadiusQuestion) -> Radius:
        async with self._turn:
            return await answer_to(question)


def _digest(question: RadiusQuestion) -> str:
    return sha256(question.model_dump_json().encode()).hexdigest()
