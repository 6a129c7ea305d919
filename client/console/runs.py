"""Runs: the list, one run as it happens, and what people do with it."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from activities.contracts import is_visible
from client.console.diagram import drawing
from client.console.page import Console, Handler, PageParts, form_of
from client.console.run_views import RunView
from client.console.steps import log_rows, path_of, request_history, steps_of
from client.errors import RatchetError, UsageError
from client.history.fork import ForkChanges, PastEffects
from client.runs.amounts import caps_from
from client.runs.listing import RunLine, list_filter, quoted
from client.runs.requests import command_text
from client.runs.steps import reply_before_text
from client.sdk.people import command_from
from workflows.api import COUNTERS
from workflows.certificate import certificate_line, of_certificate
from workflows.gate.bounds import Bounds
from workflows.people import Bound

__all__ = ["ROUTES"]

PAGE_RUNS = 50
PAGE_STEPS = 30
"""Steps of a run that its page shows at first, the newest ones."""
PAGE_RECORDS = 100
PROGRESS = {
    "waiting": "AgentWaiting IS NOT NULL AND ExecutionStatus = 'Running'",
    "running": "ExecutionStatus = 'Running'",
    "completed": "ExecutionStatus = 'Completed'",
    "failed": "ExecutionStatus IN ('Failed', 'Terminated', 'TimedOut')",
    "cancelled": "ExecutionStatus = 'Canceled'",
}
SINCE = {"1h": 1, "24h": 24, "7d": 7 * 24, "30d": 30 * 24}
LABELS = {
    "model_calls": "Model calls", "tool_calls": "Tool calls", "tokens": "Tokens", "cost_usd": "Cost, USD",
    "seconds": "Seconds, people's included",
}  # fmt: skip
STILL = "Seconds, until the last record"
"""Of a run that is not over: they are counted whenever something happens."""


# -- the list --------------------


def _filters(request: Request) -> dict[str, str]:
    names = ("progress", "agent", "machine", "exit", "since", "id")
    given = {name: request.query_params.get(name, "") for name in names}
    return {name: "".join(filter(is_visible, text)).strip()[:200] for name, text in given.items()}


def _query(filters: Mapping[str, str]) -> str:
    """A visibility query. What a person typed is a value in it, never a part of its grammar."""
    parts = [
        list_filter(agent=filters["agent"] or None, machine=filters["machine"] or None, prefix=filters["id"])
    ]
    if filters["progress"] in PROGRESS:
        parts.append(PROGRESS[filters["progress"]])
    if filters["exit"]:
        parts.append(f"AgentExit = '{quoted(filters['exit'])}'")
    if filters["since"] in SINCE:
        since = datetime.now(UTC) - timedelta(hours=SINCE[filters["since"]])
        parts.append(f"StartTime > '{since:%Y-%m-%dT%H:%M:00Z}'")
    return " AND ".join(parts)


async def _list_parts(console: Console, request: Request) -> PageParts:
    filters, token = _filters(request), _token(console, request.query_params.get("page", ""))
    lines, following = await console.agents.list_page(_query(filters), PAGE_RUNS, token)
    lines = await console.agents.with_ends(lines)
    more = base64.urlsafe_b64encode(_mark(console, following) + following).decode() if following else ""
    return {"runs": console.part("_runs.html", lines=lines, more=more, filters=filters, later=bool(token))}


def _mark(console: Console, token: bytes) -> bytes:
    """A signature: the console itself gave out this token of the server."""
    return hmac.digest(console.own_key, token, "sha256")


def _token(console: Console, given: str) -> bytes:
    """The server's token in an address. Temporal takes seconds to refuse a wrong one, so the signature is
    checked here. Raises UsageError."""
    with suppress(ValueError):
        found = base64.urlsafe_b64decode(given.encode())
        mark, token = found[:32], found[32:]
        if not found or hmac.compare_digest(mark, _mark(console, token)):
            return token
    raise UsageError("the address names no page of the list; begin at its first page: /runs")


async def run_list(console: Console, request: Request) -> Response:
    """Runs by their search attributes, those under way first, then the newest."""
    return console.page(
        request,
        "runs.html",
        title="Runs",
        parts=await _list_parts(console, request),
        live=f"live/runs?{request.url.query}",
        filters=_filters(request),
        progresses=PROGRESS,
        spans=SINCE,
    )


async def live_list(console: Console, request: Request) -> Response:
    """The same while the page is open."""
    return console.stream(request, lambda: _list_parts(console, request))


# -- one run --------------------


def _run(given: Mapping[str, str], name: str = "id") -> str:
    run = given.get(name, "")
    if not run:
        raise UsageError("the address names no run; the list of runs has them")
    return run


def _number(given: Mapping[str, str], name: str, default: int = 0) -> int:
    try:
        return max(int(given.get(name) or default), 0)
    except ValueError as error:
        raise UsageError(f"{name}: expected a whole number, got {given.get(name, '')[:40]!r}") from error


def _run_parts(console: Console, request: Request, view: RunView) -> PageParts:
    common = {"view": view, "counters": _counters(view), "live": view.live}
    parts: dict[str, Markup | None] = {
        "head": console.part("_run_head.html", **common, requests=view.line.requests if view.line else ()),
        "commands": console.part("_run_commands.html", **common, counter_names=COUNTERS),
        "side": console.part(
            "_run_side.html",
            **common,
            diagram=_diagram(view),
            spending=_spending(view),
            bounds=_bounds(view),
            children=_children(view),
            decided=request_history(view.records),
            certificate=certificate_line(of_certificate(view.records)),
            path=path_of(view.records)[-12:],
        ),
    }
    if request.query_params.get("view", "steps") == "log":
        before = _number(request.query_params, "before", len(view.records))
        rows = log_rows(view.records[:before])[-PAGE_RECORDS:]
        parts["log"] = console.part("_log.html", rows=rows)
    else:
        for step in _steps(view, request):
            parts[f"step-{step.number}"] = console.part(
                "_step.html", block=step, run=view.id, actions="live" if view.live else "over"
            )
    return parts


def _steps(view: RunView, request: Request) -> Sequence[Any]:
    return steps_of(view.records, last=None if request.query_params.get("all") else PAGE_STEPS)


async def run_page(console: Console, request: Request) -> Response:
    """A run as it happens."""
    run, tab = _run(request.query_params), request.query_params.get("view", "steps")
    view = await console.views.view(run)
    parts = _run_parts(console, request, view)
    first = next((int(name[5:]) for name in parts if name.startswith("step-")), 0)
    return console.page(
        request,
        "run.html",
        title=(view.task.goal if view.task else run)[:80],
        parts=parts,
        live=f"live/run?{request.url.query}",
        run=run,
        view=view,
        tab=tab,
        first=first,
        before=_number(request.query_params, "before", len(view.records)),
        records=PAGE_RECORDS,
    )


async def live_run(console: Console, request: Request) -> Response:
    """The same while the page is open."""

    async def parts() -> PageParts:
        view = await console.views.view(_run(request.query_params))
        return _run_parts(console, request, view)

    return console.stream(request, parts)


def _counters(view: RunView) -> Mapping[str, float]:
    for found in (view.result, view.status):
        if found is not None and found.counters:
            return found.counters
    return view.records[-1].counters if view.records else {}


def _spending(view: RunView) -> list[tuple[str, float, float | None]]:
    """Counter for people, spent, cap."""
    caps = view.status.caps if view.status else view.task.limits.caps if view.task else {}
    spent = _counters(view)
    return [
        (STILL if name == "seconds" and view.live else label, spent.get(name, 0), caps.get(name))
        for name, label in LABELS.items()
        if name in spent or name in caps
    ]


def _bounds(view: RunView) -> Sequence[Bound]:
    """How far the bounds of the approval rules are used; from the log, where no worker answers."""
    if view.result is not None or view.status is not None or view.task is None:
        return next((found.bounds for found in (view.result, view.status) if found is not None), ())
    bounds = Bounds(view.task.approvals, view.task.bounds)
    bounds.recall(view.records)
    return bounds.state()


def _diagram(view: RunView) -> Markup:
    """The machine; nothing where it cannot be made here."""
    if view.task is None or not view.records:
        return Markup("")
    with suppress(RatchetError):
        last = view.records[-1]
        current = view.status.state if view.status else last.to or last.state
        return drawing(view.source.program.machine, current, path_of(view.records))
    return Markup("")


def _children(view: RunView) -> Sequence[tuple[int, RunLine]]:
    """The inner runs, each below its own, with their depth."""
    below = sorted(view.children, key=lambda line: line.id)
    ids = [line.id for line in below]
    return [(sum(line.id.startswith(f"{other}/") for other in ids), line) for line in below]


# -- commands --------------------


async def command(console: Console, request: Request) -> Response:
    """Send a command; the run checks it."""
    form = await form_of(request)
    run, name = _run(form, "run"), form.get("command", "")
    text = form.get("text", "").strip()
    match name:
        case "pause":
            body = command_from("pause", text, at_once=bool(form.get("at_once")))
        case "resume" | "abort":
            body = command_from("resume" if name == "resume" else "abort", text)
        case "steer":
            if not text:
                raise UsageError("the message to the model is blank; nothing was sent")
            body = command_from("steer", text)
        case "limits":
            words = [f"{one}={form[f'cap.{one}'].strip()}" for one in COUNTERS if form.get(f"cap.{one}")]
            body = command_from("limits", text, limits=caps_from(words))
        case _:
            raise UsageError(f"{name[:40]!r} is no command")
    done = await console.agents.command(run, body, by=console.signer)
    return console.go("/run", command_text(done), id=run)


def _fingerprint(effects: PastEffects) -> str:
    text = "".join(call.model_dump_json() for call in effects.calls)
    return sha256(f"{text}\n{bool(effects.unknown)}".encode()).hexdigest()


async def rollback_page(console: Console, request: Request) -> Response:
    """What was done since a step, before the run goes back to it."""
    run, step = _run(request.query_params, "run"), _number(request.query_params, "step")
    effects = await console.agents.effects_to_repeat(run, step)
    view = await console.views.view(run)
    view.source.checkpoint(step)
    return console.page(
        request,
        "rollback.html",
        title=f"Roll back to step {step}",
        run=run,
        step=step,
        calls=effects.calls,
        unknown=effects.unknown,
        behind=reply_before_text(view.records, step),
        seen=_fingerprint(effects),
    )


async def rollback(console: Console, request: Request) -> Response:
    """Go back, unless more was done than the person saw."""
    form = await form_of(request)
    run, step = _run(form, "run"), _number(form, "step")
    if _fingerprint(await console.agents.effects_to_repeat(run, step)) != form.get("seen"):
        return console.go("/rollback", "More was done meanwhile; look again.", run=run, step=step)
    order = command_from(
        "rollback", form.get("text", "").strip(), step=step, compensate=bool(form.get("compensate"))
    )
    done = await console.agents.command(run, order, by=console.signer)
    return console.go("/run", command_text(done), id=run)


async def fork_page(console: Console, request: Request) -> Response:
    """What a fork may do a second time, before it is started."""
    run, step = _run(request.query_params, "run"), _number(request.query_params, "step")
    effects = await console.agents.effects_to_repeat(run, step)
    view = await console.views.view(run)
    end = view.end
    return console.page(
        request,
        "fork.html",
        title=f"Fork from step {step}",
        run=run,
        step=step,
        is_end=end is not None and end.step == step,
        calls=effects.calls,
        unknown=effects.unknown,
        behind=reply_before_text(view.records, step),
        seen=_fingerprint(effects),
    )


async def fork(console: Console, request: Request) -> Response:
    """Start a new run from a step, unless more was done than the person saw."""
    form = await form_of(request)
    run, step = _run(form, "run"), _number(form, "step")
    effects = await console.agents.effects_to_repeat(run, step)
    if _fingerprint(effects) != form.get("seen"):
        return console.go("/fork", "More was done meanwhile; look again.", run=run, step=step)
    changes = ForkChanges(message=form.get("text", "").strip())
    made = await console.agents.fork(run, step, changes, by=console.signer)
    return console.go("/run", f"Forked from step {step} of {run}.", id=made)


async def compare(console: Console, request: Request) -> Response:
    """Two runs side by side."""
    one, other = request.query_params.get("one", "").strip(), request.query_params.get("other", "").strip()
    found = None
    if one and other:
        find = console.agents.find
        found = await console.agents.compare(await find(one), await find(other))
    return console.page(request, "compare.html", title="Compare", one=one, other=other, found=found)


ROUTES: Sequence[tuple[str, str, Handler]] = (
    ("GET", "/runs", run_list),
    ("GET", "/live/runs", live_list),
    ("GET", "/run", run_page),
    ("GET", "/live/run", live_run),
    ("POST", "/command", command),
    ("GET", "/rollback", rollback_page),
    ("POST", "/rollback", rollback),
    ("GET", "/fork", fork_page),
    ("POST", "/fork", fork),
    ("GET", "/compare", compare),
)
