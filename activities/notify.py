"""The activity `notify`: tell people outside that a request waits for them, or no longer does.

Whom it tells is the worker's configuration: a webhook, a command, both or nobody. What goes wrong
comes back as data, since a run must not fail because nobody could be told; only what may go away by
itself is raised, so that Temporal tries again.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import NoReturn

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.contracts import TRANSIENT, JsonObject
from activities.contracts_people import Notice, Noticed, Way
from activities.heartbeat import beating
from activities.notify_ways import Untold, post, run_command
from activities.settings import Settings

__all__ = ["NotifyActivities"]

FIELDS = (
    *("id", "kind", "text", "tool", "arguments", "digest", "options"),
    *("created", "deadline", "approvers", "outcome"),
)
"""What of a request is passed on."""
BLANKS = {"answer": " <text>", "topup": " <counter>=<more>"}
"""What a person must fill in; a shell refuses it as it stands."""

log = structlog.get_logger(__name__)


class NotifyActivities:
    """The activity around a worker's settings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @activity.defn(name="notify")
    async def notify(self, notice: Notice) -> Noticed:
        """Tell webhook and command; raises `ApplicationError` of type `Transient`.

        An attempt tells those that the attempts before it have neither told nor given up: these are
        handed on in the heartbeat. Should it be lost with its worker, one is told twice, by one name.
        """
        event = _event()
        ways = self._ways(event, _body(notice, event))
        if not ways:
            return Noticed(
                text="the worker has no hook: neither RATCHET_NOTIFY_URL nor RATCHET_NOTIFY_COMMAND"
            )
        last = activity.info().attempt >= notice.attempts
        settled, passing = _settled(), list[Untold]()
        async with beating(lambda: settled):
            for way in [way for way in ways if way not in settled]:
                try:
                    await ways[way]()
                    settled[way] = ""
                except Untold as error:
                    if error.passing and not last:
                        passing.append(error)
                    else:
                        settled[way] = str(error)
        problems = [settled[way] for way in ways if settled.get(way)]
        log.info("notify.told", moment=notice.moment, settled=list(settled), problems=problems)
        if passing:
            _raise_to_repeat(passing, settled)
        sent = tuple(way for way in ways if not settled[way])
        return Noticed(ok=not problems, sent=sent, text="; ".join(problems))

    def _ways(self, event: str, body: bytes) -> dict[Way, Callable[[], Awaitable[None]]]:
        its = self.settings
        ways: dict[Way, Callable[[], Awaitable[None]]] = {}
        if (url := its.notify_url) is not None:
            ways["webhook"] = lambda: post(url, its.notify_secret, event, body, its.notify_seconds)
        if its.notify_command:
            ways["command"] = lambda: run_command(its.notify_command, body, its.notify_seconds)
        return ways


def _event() -> str:
    """The same for every attempt, another one for every notice of every run."""
    info = activity.info()
    name = f"{info.workflow_id}/{info.workflow_run_id}/{info.activity_id}"
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def _body(notice: Notice, event: str) -> bytes:
    request = {name: notice.request[name] for name in FIELDS if name in notice.request}
    told: JsonObject = {
        "event": event,
        "moment": notice.moment,
        "run": notice.run,
        "agent": notice.agent,
        "command": _command(notice),
        "request": request,
    }
    return json.dumps(told, separators=(",", ":")).encode()


def _command(notice: Notice) -> str:
    """What decides, for a shell: by the first of the request's options."""
    options = notice.request.get("options")
    if notice.moment == "closed" or not isinstance(options, list) or not options:
        return ""
    verb = str(options[0])
    what, digest = str(notice.request.get("id", "")), str(notice.request.get("digest", ""))
    words = shlex.join(["ratchet", verb, notice.run, what, "--digest", digest[:8]])
    return words + BLANKS.get(verb, "")


def _settled() -> dict[str, str]:
    """The ways that earlier attempts have settled: told, the empty string, or given up, and why."""
    for details in activity.info().heartbeat_details:
        if isinstance(details, dict):
            return {str(way): str(problem) for way, problem in details.items()}
    return {}


def _raise_to_repeat(errors: list[Untold], settled: dict[str, str]) -> NoReturn:
    activity.heartbeat(settled)
    waits = [error.wait for error in errors if error.wait is not None]
    delay = timedelta(seconds=max(waits)) if waits else None
    said = "; ".join(map(str, errors))
    raise ApplicationError(said, type=TRANSIENT, next_retry_delay=delay)
