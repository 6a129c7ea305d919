"""What a person means by a shortened id: a run, a request of it."""

from __future__ import annotations

from client.agent import AgentClient
from client.errors import NotAtHand, NoWorker, RatchetError, UnknownRun, UsageError
from client.inbox import Ask
from client.inboxview import summary
from workflows.people import Request, Verb

__all__ = ["find_request", "find_run", "open_requests"]

SHOWN = 10
"""Candidates that are named."""


async def find_run(agents: AgentClient, name: str) -> str:
    """The id of a run that goes on: as it stands, or the one id that begins or ends so.

    Raises:
        RatchetError: the run is over.
        UnknownRun: there is none.
        UsageError: there are several; they are named.
    """
    try:
        line = await agents.describe(name)
    except UnknownRun:
        running = [line.id for line in await agents.list(running=True)]
        # Runs inside others carry the outer one's id in front: who shortens it means the outer one.
        found = [run for run in running if run.startswith(name)] or [r for r in running if r.endswith(name)]
        outer = [run for run in found if not any(run.startswith(f"{other}/") for other in found)]
        if not outer:
            raise
        return _only(outer, name)
    if line.progress != "running":
        raise RatchetError(f"run {name} is over ({line.progress}), so nothing was changed")
    return line.id


async def open_requests(agents: AgentClient, run_id: str) -> tuple[Request | Ask, ...]:
    """What a run asks; in short when no worker can be asked, or what it says cannot be read here."""
    try:
        return await agents.requests(run_id)
    except (NoWorker, NotAtHand):
        return await agents.asks(run_id)


async def find_request(
    agents: AgentClient, run_id: str, name: str | None, verbs: tuple[Verb, ...]
) -> Request | Ask:
    """The request that is meant: by its id, shortened perhaps; or the only one that these verbs answer.

    Raises:
        UsageError: none or several are meant; the open ones are named.
        RatchetError: there is no such request.
    """
    known = await open_requests(agents, run_id)
    if name is not None:
        found = [r for r in known if r.id in (name, f"r{name}")]
        if not found:
            # It is closed perhaps: then the run says what became of it.
            return await agents.request(run_id, f"r{name}" if name.isdecimal() else name)
    else:
        found = [r for r in known if any(verb in r.options for verb in verbs)]
        if not known:
            raise RatchetError(f"run {run_id} asks nothing at present")
        if not found:
            asked = "; ".join(summary(r) for r in known)
            raise UsageError(f"run {run_id} asks nothing that is answered so; it asks: {asked}")
    if len(found) > 1:
        lines = "\n".join(f"  {summary(r)}" for r in found[:SHOWN])
        raise UsageError(f"run {run_id} asks several things; say which is meant:\n{lines}")
    return found[0]


def _only(found: list[str], name: str) -> str:
    if len(found) > 1:
        more = [f"  and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        lines = "\n".join([*(f"  {one}" for one in sorted(found)[:SHOWN]), *more])
        raise UsageError(f"{name}: several runs begin or end so; say which is meant:\n{lines}")
    return found[0]
