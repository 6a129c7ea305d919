"""What a person means by a shortened id: a run, a request of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from client.agent import AgentClient
from client.errors import NotAtHand, NoWorker, Refused, UnknownRun, UsageError
from client.inbox import Ask
from client.inboxview import span, summary
from client.listing import list_filter, quoted
from client.rpc import clear_errors
from workflows.people import Request, Verb

__all__ = ["Asks", "asked_of", "check_fits", "find_any", "find_request", "find_run"]

SHOWN = 10
"""Candidates that are named."""


@dataclass(frozen=True)
class Asks:
    """What a run asks at one moment."""

    requests: tuple[Request | Ask, ...]
    """Oldest first; in short when no worker can be asked, or what it says cannot be read here."""
    paused: bool = False
    """It stands paused, whatever it asks; False where no worker can say so."""


async def find_run(agents: AgentClient, name: str) -> str:
    """The id of a run that goes on, for a command that changes something: as it stands, or the one id of all
    runs, also of those that are over, that begins or ends so.

    Raises:
        Refused: the run is over.
        UnknownRun: there is none.
        UsageError: there are several; they are named.
    """
    _check_name(name)
    try:
        line = await agents.describe(name)
    except UnknownRun as unknown:
        found = _meant(name, await _ids(agents))
        line = await agents.describe(_there(agents, name, found, unknown))
    if line.progress != "running":
        raise Refused(
            f"run {line.id} is over ({line.exit_reason or line.progress}), so nothing was changed; "
            f"`ratchet show {line.id}` shows what came of it, and `ratchet fork` begins a step of it again"
        )
    return line.id


async def find_any(agents: AgentClient, name: str) -> str:
    """The same of any run, for a command that reads: one that goes on, is over, or is in the archive alone
    (by its whole id). What begins so goes before what ends so.

    Raises:
        UnknownRun: there is none.
        UsageError: there are several; they are named.
    """
    _check_name(name)
    try:
        return (await agents.describe(name)).id
    except UnknownRun as unknown:
        if await agents.archive.records(name):
            return name
        found = _meant(name, await _ids(agents, f" AND WorkflowId STARTS_WITH '{quoted(name)}'"))
        if found is None:
            found = _meant(name, await _ids(agents))
        return _there(agents, name, found, unknown)


async def asked_of(agents: AgentClient, run_id: str) -> Asks:
    """What a run asks, and whether it stands paused; one question to a worker."""
    try:
        page = await agents.asked(run_id)
    except (NoWorker, NotAtHand):
        return Asks(await agents.asks(run_id))
    return Asks(page.open, page.paused)


async def find_request(
    agents: AgentClient,
    run_id: str,
    known: Sequence[Request | Ask],
    name: str | None,
    verbs: tuple[Verb, ...],
) -> Request | Ask:
    """The request that is meant of the `known` open ones: by its id, shortened perhaps; or the only one that
    these verbs answer.

    Raises:
        UsageError: several are meant, or it is not answered so; what is open is named.
        Refused: there is no such request, or it is closed.
    """
    if name is not None:
        if not name.strip():
            raise UsageError("the id of the request is empty; leave it out, or name one, such as r1")
        found = [r for r in known if r.id in (name, f"r{name}")]
        if not found:
            # It is closed perhaps: then the run says what became of it.
            found = [await agents.request(run_id, f"r{name}" if name.isdecimal() else name)]
        check_fits(found[0], verbs, run_id)
    else:
        found = [r for r in known if any(verb in r.options for verb in verbs)]
        if not known:
            raise Refused(
                f"run {run_id} asks nothing at present; `ratchet show {run_id}` shows where it is, and "
                f"`ratchet watch {run_id}` follows it"
            )
        if not found:
            raise UsageError(
                f"run {run_id} asks nothing that `{verbs[0]}` answers; it asks:\n{_listed(known)}\n"
                f"`ratchet inbox {run_id}` shows all of it, and the commands that answer"
            )
    if len(found) > 1:
        raise UsageError(
            f"run {run_id} asks several things; say which is meant, such as "
            f"`ratchet {verbs[0]} {run_id} {found[0].id}`:\n{_listed(found)}"
        )
    return found[0]


def check_fits(request: Request | Ask, verbs: tuple[Verb, ...], run_id: str) -> None:
    """Raise Refused for a request that is closed, a UsageError for one that is answered otherwise."""
    if isinstance(request, Request) and request.outcome != "open":
        by = f" by {request.settled.by or 'somebody'}" if request.settled else ""
        raise Refused(
            f"{request.id} of run {run_id} is closed: {request.outcome.replace('_', ' ')}{by}, "
            f"{span(time.time() - (request.closed or 0))} ago; `ratchet inbox {run_id}` shows what is open"
        )
    if request.options and not any(verb in request.options for verb in verbs):
        raise UsageError(
            f"{request.id} of run {run_id} cannot be answered by `{verbs[0]}`, it is "
            f"{summary(request)}\n  {', '.join(request.options)} answer it; "
            f"`ratchet inbox {run_id}` shows the commands"
        )


def _listed(requests: Sequence[Request | Ask]) -> str:
    more = [f"  and {len(requests) - SHOWN} more"] if len(requests) > SHOWN else []
    return "\n".join([*(f"  {summary(r)}" for r in requests[:SHOWN]), *more])


def _check_name(name: str) -> None:
    if not name.strip():
        raise UsageError("the id of the run is empty; `ratchet list` shows what there is")


async def _ids(agents: AgentClient, more: str = "") -> list[str]:
    """Ids of the runs that the server knows, sorted; one that went on with an empty history is there once."""
    async with clear_errors(agents.where):
        found = agents.temporal.list_workflows(list_filter() + more)
        return sorted({run.id async for run in found})


def _there(agents: AgentClient, name: str, found: str | None, unknown: UnknownRun) -> str:
    if found is None:
        raise UnknownRun(
            f"there is no run {name} at {agents.where}, and none whose id begins or ends so; "
            "`ratchet list` shows what there is"
        ) from unknown
    return found


def _meant(name: str, runs: Iterable[str]) -> str | None:
    """The one that begins or ends so; None when none does."""
    found = [run for run in runs if run.startswith(name) or run.endswith(name)]
    # Runs inside others carry the outer one's id in front: who shortens it means the outer one.
    outer = [run for run in found if not any(run.startswith(f"{other}/") for other in found)]
    if len(outer) > 1:
        more = [f"  and {len(outer) - SHOWN} more"] if len(outer) > SHOWN else []
        lines = "\n".join([*(f"  {one}" for one in outer[:SHOWN]), *more])
        raise UsageError(f"{name}: several runs begin or end so; say which is meant:\n{lines}")
    return outer[0] if outer else None
