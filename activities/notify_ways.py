"""The two ways of telling people outside: a signed POST to a webhook, and a command.

Where they lead is the worker's configuration, never the task's, so private addresses are allowed.
Of the webhook's address errors name the host alone, and its secret never: both are passwords.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import signal
import time

import httpx2
import structlog
from pydantic import SecretStr

from activities.retry_after import retry_after

__all__ = ["Untold", "post", "run_command", "signature"]

PASSING = (408, 425, 429)
"""Statuses below 500 that go away by themselves."""
LONGEST_WAIT = 60.0
"""Seconds; a later notice is of little use."""
TEMPFAIL = 75
"""Exit code of a command that wants to be run again (EX_TEMPFAIL of sysexits.h)."""

STDERR = 2_000
"""Bytes of a command's standard error that the worker's log gets: the last ones."""
MOMENT = 0.2
"""Seconds in which standard error is read on when the command has ended: a child it left may hold it open."""
STDIN_FD, STDERR_FD = 0, 2

log = structlog.get_logger(__name__)


class Untold(Exception):
    """Nobody was told, and why; `passing` when another try may help, after `wait` seconds if given."""

    def __init__(self, why: str, *, passing: bool = False, wait: float | None = None) -> None:
        super().__init__(why)
        self.passing, self.wait = passing, wait


def signature(secret: SecretStr, moment: int, body: bytes) -> str:
    """Value of `X-Ratchet-Signature`: the time in Unix seconds, and an HMAC-SHA256 over time and body."""
    signed = b"%d.%b" % (moment, body)
    digest = hmac.new(secret.get_secret_value().encode(), signed, hashlib.sha256).hexdigest()
    return f"t={moment},v1={digest}"


async def post(address: SecretStr, secret: SecretStr | None, event: str, body: bytes, seconds: float) -> None:
    """POST the body to the webhook; redirects are not followed. Raises `Untold`."""
    headers = {"Content-Type": "application/json", "User-Agent": "ratchet", "X-Ratchet-Event": event}
    if secret is not None:
        headers["X-Ratchet-Signature"] = signature(secret, int(time.time()), body)
    try:
        url = httpx2.URL(address.get_secret_value())
    except httpx2.InvalidURL:
        raise Untold("RATCHET_NOTIFY_URL is no usable address; correct it") from None
    host = f"the webhook at {url.host}"
    try:
        async with (
            asyncio.timeout(seconds),
            httpx2.AsyncClient(timeout=None) as client,
            client.stream("POST", url, content=body, headers=headers) as response,
        ):
            status, wait = response.status_code, retry_after(response.headers, LONGEST_WAIT)
    except TimeoutError:
        raise Untold(f"{host} did not answer within {seconds:g} s", passing=True) from None
    except httpx2.TransportError as error:
        why = str(error) or type(error).__name__
        raise Untold(f"{host} cannot be reached: {why}", passing=True) from None
    except Exception as error:  # noqa: BLE001  # a proxy of the environment can be wrong in many ways
        # Its type alone: the text may hold the proxy's password.
        raise Untold(f"{host} cannot be asked: {type(error).__name__}; check the proxy settings") from None
    if status in PASSING or status >= 500:
        raise Untold(f"{host} answered HTTP {status}", passing=True, wait=wait)
    if not 200 <= status < 300:
        advice = "a redirect is not followed; " if status < 400 else ""
        raise Untold(f"{host} answered HTTP {status}; {advice}check RATCHET_NOTIFY_URL and the receiver")


async def run_command(words: tuple[str, ...], body: bytes, seconds: float) -> None:
    """Run the command with the body on its standard input. Raises `Untold`."""
    name = f"the command {words[0]}"
    pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process, heard = await asyncio.get_running_loop().subprocess_exec(
            _Heard, *words, stdin=pipe, stdout=nowhere, stderr=pipe, start_new_session=True
        )
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "its words cannot be passed on"
        raise Untold(f"{name} cannot be started: {why}; check RATCHET_NOTIFY_COMMAND") from None
    try:
        async with asyncio.timeout(seconds):
            await _told(process, heard, body)
    except BaseException as error:  # whatever ends the wait, the command does not outlive it
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.get_pid(), signal.SIGKILL)  # with what it has started
        await heard.ended.wait()
        if isinstance(error, TimeoutError):
            raise Untold(f"{name} did not end within {seconds:g} s and was stopped") from None
        raise
    finally:
        _let_go(process)
    code = process.get_returncode()
    if code != 0:
        # For whoever runs the worker: a command's own words may hold what history must not.
        log.warning("notify.command_failed", code=code, stderr=heard.said.decode(errors="replace"))
        raise Untold(f"{name} ended with exit code {code}", passing=code == TEMPFAIL)


class _Heard(asyncio.SubprocessProtocol):
    """What a command says, and when it has ended.

    Its end is not that of its pipes: a child that it left may hold them open. `Process.wait` of
    Python 3.11 waits for these, too.
    """

    def __init__(self) -> None:
        self.said = b""
        """The end of its standard error, however much it writes."""
        self.silent, self.ended = asyncio.Event(), asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.said = (self.said + data)[-STDERR:]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == STDERR_FD:
            self.silent.set()

    def process_exited(self) -> None:
        self.ended.set()


async def _told(process: asyncio.SubprocessTransport, heard: _Heard, body: bytes) -> None:
    """Give it the body and wait for its end; what it has left running is not waited for."""
    stdin = process.get_pipe_transport(STDIN_FD)
    if not isinstance(stdin, asyncio.WriteTransport):
        raise RuntimeError("the command was started without pipes")
    stdin.write(body + b"\n")  # one notice is one line
    stdin.write_eof()
    await heard.ended.wait()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(MOMENT):
            await heard.silent.wait()


def _let_go(process: asyncio.SubprocessTransport) -> None:
    """Close our ends of the pipes, with what nobody has read of the body."""
    stdin = process.get_pipe_transport(STDIN_FD)
    if isinstance(stdin, asyncio.WriteTransport) and stdin.get_write_buffer_size():
        stdin.abort()  # closing would wait until somebody reads it
    process.close()
