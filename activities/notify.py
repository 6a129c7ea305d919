"""The activity `notify`: tell people outside that a request waits for them, or no longer does.

Who is notified is the worker's configuration: a webhook, a command, both or nobody. A failure comes
back as data, because a run must not fail when nobody could be notified; only a failure that may go
away is raised, so that Temporal tries again. Errors name the webhook's host alone, and never its
secret: the rest of the address often is a password.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import os
import shlex
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Literal

import httpx2
import structlog
from pydantic import SecretStr
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.contracts import TRANSIENT, Notice, Noticed
from activities.heartbeat import heartbeats
from activities.retry_after import retry_after
from activities.settings import Settings
from activities.trust import trusted

__all__ = ["NotifyActivities", "signature"]

FIELDS = (
    *("id", "kind", "text", "tool", "arguments", "digest", "options"),
    *("created", "deadline", "approvers", "outcome", "labels"),
)
"""What is passed on of a request."""
BLANKS = {"answer": " <text>", "topup": " <counter>=<more>"}
"""What a person must fill in; a shell refuses it unchanged."""
PASSING = (408, 425, 429)
"""Statuses below 500 that go away."""
LONGEST_WAIT_SECONDS = 60.0
"""Seconds; a later notice is of little use."""
TEMPFAIL = 75
"""Exit code of a command that wants to be run again (EX_TEMPFAIL of sysexits.h)."""
Way = Literal["webhook", "command"]
"""How people are notified."""

log = structlog.get_logger("ratchet")


class NotDelivered(Exception):
    """A notice that did not arrive, and why. `passing`: another attempt may help, after `wait` seconds."""

    def __init__(self, reason: str, *, passing: bool = False, wait: float | None = None) -> None:
        super().__init__(reason)
        self.passing, self.wait = passing, wait


class NotifyActivities:
    """The activity around a worker's settings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @activity.defn(name="notify")
    async def notify(self, notice: Notice) -> Noticed:
        """Notify webhook and command. Raises `ApplicationError` of type `Transient`.

        An attempt takes the ways that earlier attempts have neither served (an empty text) nor given up
        (the reason); these travel in the heartbeat. If that is lost with a worker, a notice arrives
        twice, with one event id.
        """
        ways = self._ways(notice)
        if not ways:
            hooks = "RATCHET_NOTIFY_URL nor RATCHET_NOTIFY_COMMAND"
            return Noticed(text=f"this worker has no notification hook: neither {hooks} is set")
        closed = next((dict(before) for before in activity.info().heartbeat_details), {})
        again: list[NotDelivered] = []
        async with heartbeats(lambda: (closed,)):
            for way, send in ways.items():
                if way in closed:
                    continue
                try:
                    await send()
                    closed[way] = ""
                except NotDelivered as error:
                    if error.passing and activity.info().attempt < notice.attempts:
                        again.append(error)
                    else:
                        closed[way] = str(error)
        problems = [closed[way] for way in ways if closed.get(way)]
        log.info("notify.sent", moment=notice.moment, closed=list(closed), problems=problems)
        if again:
            activity.heartbeat(closed)
            delay = max((timedelta(seconds=error.wait) for error in again if error.wait), default=None)
            raise ApplicationError("; ".join(map(str, again)), type=TRANSIENT, next_retry_delay=delay)
        sent = tuple(way for way in ways if not closed[way])
        return Noticed(ok=not problems, sent=sent, text="; ".join(problems))

    def _ways(self, notice: Notice) -> dict[Way, Callable[[], Awaitable[None]]]:
        settings, event = self.settings, _event_id()
        body = _body(notice, event)
        ways: dict[Way, Callable[[], Awaitable[None]]] = {}
        if (url := settings.notify_url) is not None:
            headers = {"Content-Type": "application/json", "User-Agent": "ratchet", "X-Ratchet-Event": event}
            if settings.notify_secret is not None:
                headers["X-Ratchet-Signature"] = signature(settings.notify_secret, int(time.time()), body)
            ways["webhook"] = lambda: _post(url, headers, body, settings.notify_seconds)
        if settings.notify_command:
            ways["command"] = lambda: _run(settings.notify_command, body, settings.notify_seconds)
        return ways


def signature(secret: SecretStr, moment: int, body: bytes) -> str:
    """Value of `X-Ratchet-Signature`: the time in Unix seconds, and an HMAC-SHA256 of time and body."""
    signed = b"%d.%b" % (moment, body)
    digest = hmac.new(secret.get_secret_value().encode(), signed, hashlib.sha256).hexdigest()
    return f"t={moment},v1={digest}"


def _event_id() -> str:
    """The same for every attempt, another one for every notice of every run."""
    info = activity.info()
    name = f"{info.workflow_id}/{info.workflow_run_id}/{info.activity_id}"
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def _body(notice: Notice, event: str) -> bytes:
    content = {
        "event": event,
        "moment": notice.moment,
        "run": notice.run,
        "agent": notice.agent,
        "command": _command_line(notice),
        "request": {name: notice.request[name] for name in FIELDS if name in notice.request},
    }
    return json.dumps(content, separators=(",", ":")).encode()


def _command_line(notice: Notice) -> str:
    """What decides, for a shell: the first of the request's options."""
    options = notice.request.get("options")
    if notice.moment == "closed" or not isinstance(options, list) or not options:
        return ""
    verb = str(options[0])
    request, digest = str(notice.request.get("id", "")), str(notice.request.get("digest", ""))
    return shlex.join(["ratchet", verb, notice.run, request, "--digest", digest[:8]]) + BLANKS.get(verb, "")


async def _post(address: SecretStr, headers: dict[str, str], body: bytes, seconds: float) -> None:
    """POST the body to the webhook; redirects are not followed. Raises `NotDelivered`."""
    try:
        url = httpx2.URL(address.get_secret_value())
    except httpx2.InvalidURL:
        raise NotDelivered("RATCHET_NOTIFY_URL is not a usable address; correct it") from None
    host = f"the webhook at {url.host}"
    try:
        async with (
            asyncio.timeout(seconds),
            httpx2.AsyncClient(verify=trusted(), timeout=None) as client,
            client.stream("POST", url, content=body, headers=headers) as response,
        ):
            status, wait = response.status_code, retry_after(response.headers, LONGEST_WAIT_SECONDS)
    except TimeoutError:
        raise NotDelivered(f"{host} did not answer within {seconds:g} s", passing=True) from None
    except httpx2.TransportError as error:
        reason = str(error) or type(error).__name__
        raise NotDelivered(f"{host} cannot be reached: {reason}", passing=True) from None
    except Exception as error:  # noqa: BLE001  # a proxy of the environment can be wrong in many ways
        # Its type alone: the text may hold the proxy's password.
        raise NotDelivered(f"{host} failed with {type(error).__name__}; check the proxy settings") from None
    if status in PASSING or status >= 500:
        raise NotDelivered(f"{host} answered HTTP {status}", passing=True, wait=wait)
    if not 200 <= status < 300:
        advice = "a redirect is not followed; " if status < 400 else ""
        raise NotDelivered(
            f"{host} answered HTTP {status}; {advice}check RATCHET_NOTIFY_URL and the receiver"
        )


async def _run(words: tuple[str, ...], body: bytes, seconds: float) -> None:
    """Run the command with the body on its standard input. Raises `NotDelivered`.

    What it writes to standard error is the worker's: history must not have a command's own words.
    """
    name = f"the command {words[0]}"
    with tempfile.TemporaryFile() as given:  # a pipe would block on a command that does not read it
        given.write(body + b"\n")  # one notice is one line
        given.seek(0)
        try:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=given, stdout=asyncio.subprocess.DEVNULL, start_new_session=True
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "its words cannot be passed on"
            raise NotDelivered(f"{name} cannot be started: {reason}; check RATCHET_NOTIFY_COMMAND") from None
    try:
        async with asyncio.timeout(seconds):
            code = await process.wait()
    except BaseException as error:  # whatever ends the wait, the command does not outlive it
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
        await process.wait()
        if isinstance(error, TimeoutError):
            raise NotDelivered(f"{name} did not end within {seconds:g} s and was stopped") from None
        raise
    if code != 0:
        raise NotDelivered(f"{name} ended with exit code {code}", passing=code == TEMPFAIL)
