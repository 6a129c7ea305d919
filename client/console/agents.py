"""Agents: what there is, what each can do with nobody asked, and starting one with a goal."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from client.agents.agentfile import AgentFile, Choice, listed_agent
from client.agents.catalog import check_key
from client.agents.files import SCRIPTED, agents_here, shipped_agents
from client.console.blast_radius import RadiusQuestion
from client.console.page import Console, Handler, form_of
from client.errors import UsageError
from client.proof.agent import judged

__all__ = ["ROUTES"]


@dataclass(frozen=True)
class _Offer:
    """An agent of the current folder, or one that comes with Ratchet."""

    name: str
    path: Path
    agent: AgentFile | None
    problem: str = ""
    """Why it cannot be started."""
    takes_material: bool = False

    @property
    def scripted(self) -> bool:
        """It needs no language model."""
        return self.agent is not None and all(
            spec.provider == SCRIPTED for spec in self.agent.models.values()
        )


@lru_cache(maxsize=200)
def _loaded(path: Path, changed: int) -> AgentFile | str:
    """The agent file as it was `changed` last, or what is wrong with it: to read one takes longer than all
    else of the page."""
    try:
        return listed_agent(path)
    except UsageError as error:
        return str(error)


def _offers(console: Console) -> dict[str, _Offer]:
    paths = {str(path): path for path in agents_here()}
    paths |= {path.stem: path for path in shipped_agents() if path.stem not in paths}
    return {name: _offer(console, name, path) for name, path in paths.items()}


def _offer(console: Console, name: str, path: Path) -> _Offer:
    """An agent as the workers of this directory could run it."""
    try:
        agent = _loaded(path, path.stat().st_mtime_ns)
    except OSError as error:
        agent = f"{path}: {error.strerror or error}"
    if isinstance(agent, str):
        return _Offer(name, path, None, agent)
    loaded = console.agents.connection.settings.modules
    if missing := [module for module in agent.modules if module not in loaded]:
        files = ", ".join(Path(one).name for one in missing)
        problem = f"No worker here has loaded {files}: start `ratchet dev --agent {name}`."
        return _Offer(name, path, agent, problem)
    takes = any(one.name == agent.machine and one.takes_material for one in console.catalog.machines)
    return _Offer(name, path, agent, takes_material=takes)


async def agents_page(
    console: Console,
    request: Request,
    *,
    error: str = "",
    typed: Mapping[str, str] | None = None,
    status: int = 200,
) -> Response:
    """What there is, each with a form that starts it."""
    return console.page(
        request,
        "agents.html",
        title="Agents",
        offers=(await asyncio.to_thread(_offers, console)).values(),
        working=await console.agents.has_worker(),
        error=error,
        typed=typed or {},
        status=status,
    )


async def agent_page(console: Console, request: Request) -> Response:
    """What an agent can do in one run with nobody asked."""
    offer = (await asyncio.to_thread(_offers, console)).get(request.query_params.get("name", ""))
    if offer is None or offer.agent is None or offer.problem:
        problem = offer.problem if offer else ""
        raise UsageError(problem or "There is no such agent here; choose one of the list.")
    agent, draft = Choice(agent=str(offer.path)).finish()
    console.catalog.check(agent, draft)
    about = judged(console.catalog, agent)
    return console.page(
        request,
        "agent.html",
        title=offer.name,
        offer=offer,
        found=await console.radii.answer(
            RadiusQuestion(agent=agent, modules=agent.modules, specs=tuple(about.specs.values()))
        ),
        unlisted=[name for name in agent.tools if name not in about.specs],
    )


async def start(console: Console, request: Request) -> Response:
    """Start a run of one of the agents that are shown."""
    form = await form_of(request)
    try:
        offer = (await asyncio.to_thread(_offers, console)).get(form.get("agent", ""))
        if offer is None or offer.agent is None:
            raise UsageError("There is no such agent here; choose one of the list.")
        if offer.problem:
            raise UsageError(offer.problem)
        agent, draft = Choice(agent=str(offer.path)).finish()
        console.catalog.check(agent, draft)
        check_key(agent.models)
        material = form.get("material", "").replace("\r\n", "\n") if offer.takes_material else ""
        run = await console.agents.start(agent.task(form.get("goal", "").strip()), material=material or None)
    except UsageError as problem:
        return await agents_page(console, request, error=str(problem), typed=form, status=400)
    return console.go("/run", id=run)


ROUTES: Sequence[tuple[str, str, Handler]] = (
    ("GET", "/agents", agents_page),
    ("GET", "/agent", agent_page),
    ("POST", "/agents", start),
)
