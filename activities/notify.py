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

log = structlog.get_logger(__name__)


class NotifyActivities:
    """The activity around a worker's settings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @activity.defn(name="notify")
    async def notify(self, notice: Notice) -> Noticed:
        """Tell the webhook, then the command; raises `ApplicationError` of type `Transient`.

        The command waits until the webhook is told or given up: each attempt of this activity
        begins anew, and a command should not be run once more for each failure of the webhook.
        """
        event = _event()
        body = _body(notice, event)
        ways = self._ways(event, body)
        if not ways:
            return Noticed(
                text="the worker has no hook: neither RATCHET_NOTIFY_URL nor RATCHET_NOTIFY_COMMAND"
            )
        sent: list[Way] = []
        problems: list[str] = []
        async with beating():
            for way, tell in ways.items():
                try:
                    await tell()
                    sent.append(way)
                except Untold as error:
                    _raise_to_repeat(error, notice.attempts)
                    problems.append(str(error))
        log.info("notify.told", moment=notice.moment, sent=sent, problems=problems)
        return Noticed(ok=not problems, sent=tuple(sent), text="; ".join(problems))

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
    return shlex.join(["ratchet", str(options[0]), notice.run, str(notice.request.get("id", ""))])


def _raise_to_repeat(error: Untold, attempts: int) -> None:
    if error.passing and activity.info().attempt < attempts:
        wait = None if error.wait is None else timedelta(seconds=error.wait)
        raise ApplicationError(str(error), type=TRANSIENT, next_retry_delay=wait) from None
