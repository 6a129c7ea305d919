"""`notify` with a real webhook and real commands: who is notified, what fails, and that no secret leaks."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import hmac
import json
import re
import shlex
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.contracts import TRANSIENT, Notice, Noticed
from activities.notify import NotifyActivities
from activities.settings import Settings
from tests.logs import captured_logs

SECRET, TOKEN = "s3cret-of-the-hook", "t0ken-in-the-path"
PROCESSES_ARE_FILES = Path("/proc/self/stat").exists()
"""As on Linux."""


@dataclass
class Hook:
    """A webhook on a free port: keeps what it is sent, and answers from a list, then with 204."""

    port: int = 0
    answers: list[bytes] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{TOKEN}?key={TOKEN}"

    def header(self, name: str, number: int = 0) -> str | None:
        found = re.search(rf"^{name}: (.*)\r$", self.heads[number], re.MULTILINE | re.IGNORECASE)
        return found and found[1]

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            length = int(self.header("content-length", -1) or 0)
            self.bodies.append(await reader.readexactly(length))
            answer = self.answers.pop(0) if self.answers else status("204 No Content")
            if answer == b"never":
                await reader.read()
            writer.write(answer)
            await writer.drain()
            if answer.endswith(b"endless"):
                while True:
                    writer.write(b"x" * 100_000)
                    await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def status(line: str, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {line}", *headers, "Content-Length: 0", "", ""]).encode()


@pytest.fixture
async def hook() -> AsyncIterator[Hook]:
    hook = Hook()
    server = await asyncio.start_server(hook.answer, "127.0.0.1", 0)
    hook.port = server.sockets[0].getsockname()[1]
    yield hook
    server.close()


REQUEST = {
    "id": "r1",
    "kind": "approval",
    "text": "May the agent call pay?",
    "tool": "pay",
    "arguments": {"to": "änn"},
    "digest": "d" * 32,
    "options": ["approve", "reject"],
    "created": 1.0,
    "deadline": 2.0,
    "approvers": ["bob"],
    "outcome": "open",
}


def notice(moment: str = "opened", **request: Any) -> Notice:
    """A notice as a run makes it."""
    whole = {**REQUEST, "votes": [{"by": "bob"}], **request}
    return Notice.model_validate({"moment": moment, "request": whole, "run": "run 1", "agent": "desk"})


def hooked(**settings: Any) -> NotifyActivities:
    return NotifyActivities(Settings(**{"notify_seconds": 20, **settings}))


def environment(attempt: int = 1, **info: Any) -> ActivityEnvironment:
    found = ActivityEnvironment()
    found.info = dataclasses.replace(ActivityEnvironment.default_info(), attempt=attempt, **info)
    return found


async def notified(activities: NotifyActivities, attempt: int = 1, what: Notice | None = None) -> Noticed:
    return await environment(attempt).run(activities.notify, what or notice())


async def refused(activities: NotifyActivities, attempt: int = 1) -> ApplicationError:
    """The failure after which Temporal tries again."""
    with pytest.raises(ApplicationError) as raised:
        await notified(activities, attempt)
    assert (raised.value.type, raised.value.non_retryable) == (TRANSIENT, False)
    return raised.value


def program(source: str) -> tuple[str, ...]:
    """A command that runs this Python."""
    return (sys.executable, "-c", source)


def keeping(path: Path, code: int = 0) -> tuple[str, ...]:
    """A command that appends its input to a file."""
    return program(f"import sys; open({str(path)!r}, 'a').write(sys.stdin.read()); sys.exit({code})")


# -- what is sent ----------------------------------------------------------------------------------


async def test_webhook_receives_what_a_person_needs(hook: Hook) -> None:
    assert await notified(hooked(notify_url=hook.url)) == Noticed(sent=("webhook",))
    assert hook.heads[0].startswith(f"POST /{TOKEN}?key={TOKEN} HTTP/1.1\r\n")
    assert hook.header("content-type") == "application/json"
    assert hook.header("x-ratchet-signature") is None
    assert json.loads(hook.bodies[0]) == {
        "event": hook.header("x-ratchet-event"),
        "moment": "opened",
        "run": "run 1",
        "agent": "desk",
        "command": "ratchet approve 'run 1' r1 --digest dddddddd",
        "request": REQUEST,
    }


@pytest.mark.parametrize(
    ("options", "command"),
    [
        (["resume", "abort"], "ratchet resume 'run 1' r1 --digest dddddddd"),
        (["answer", "abort"], "ratchet answer 'run 1' r1 --digest dddddddd <text>"),
        (["topup", "abort"], "ratchet topup 'run 1' r1 --digest dddddddd <counter>=<more>"),
        ([], ""),
    ],
    ids=str,
)
async def test_command_line_decides_by_first_option(
    hook: Hook, tmp_path: Path, options: list[str], command: str
) -> None:
    await notified(hooked(notify_url=hook.url), what=notice(options=options))
    assert json.loads(hook.bodies[0])["command"] == command
    if "<" in command:
        pasted = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", f"echo {command}", stderr=-3, cwd=tmp_path
        )
        assert await pasted.wait() != 0, "a shell must refuse a blank"


async def test_event_id_is_the_same_for_all_attempts(hook: Hook) -> None:
    activities = hooked(notify_url=hook.url)
    for attempt, activity_id in ((1, "notify#1"), (2, "notify#1"), (1, "notify#2")):
        await environment(attempt, activity_id=activity_id).run(activities.notify, notice())
    events = [hook.header("x-ratchet-event", number) for number in range(3)]
    assert events[0] == events[1] != events[2]


async def test_signature_covers_time_and_body(hook: Hook) -> None:
    await notified(hooked(notify_url=hook.url, notify_secret=SECRET))
    header = hook.header("x-ratchet-signature") or ""
    found = re.fullmatch(r"t=(\d+),v1=([0-9a-f]{64})", header)
    assert found
    expected = hmac.new(SECRET.encode(), found[1].encode() + b"." + hook.bodies[0], hashlib.sha256)
    assert found[2] == expected.hexdigest()
    assert abs(datetime.now(UTC).timestamp() - int(found[1])) < 300


async def test_worker_without_hook_names_the_settings() -> None:
    answer = await notified(hooked())
    assert (answer.ok, answer.sent) == (True, ())
    assert "RATCHET_NOTIFY_URL" in answer.text
    assert "RATCHET_NOTIFY_COMMAND" in answer.text


# -- the webhook fails -----------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["500 Oops", "503 Busy", "429 Slow down", "408 Late", "425 Early"])
async def test_passing_failure_is_retried_and_at_last_reported(hook: Hook, line: str) -> None:
    activities = hooked(notify_url=hook.url)
    hook.answers += [status(line)] * 3
    for attempt in (1, 5):
        error = await refused(activities, attempt)
        assert f"HTTP {line[:3]}" in error.message
        assert error.next_retry_delay is None
    answer = await notified(activities, attempt=6)
    assert (answer.ok, answer.sent) == (False, ())
    assert f"HTTP {line[:3]}" in answer.text


@pytest.mark.parametrize("line", ["400 Bad", "401 Who", "404 Gone", "302 Found"])
async def test_refusal_is_final(hook: Hook, line: str) -> None:
    hook.answers.append(status(line, f"Location: http://127.0.0.1:{hook.port}/elsewhere"))
    answer = await notified(hooked(notify_url=hook.url))
    assert (answer.ok, answer.sent, len(hook.heads)) == (False, (), 1)
    assert "RATCHET_NOTIFY_URL" in answer.text


async def test_unreachable_webhook_is_tried_again(hook: Hook) -> None:
    server = await asyncio.start_server(hook.answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    assert "127.0.0.1" in (await refused(hooked(notify_url=f"http://127.0.0.1:{port}/{TOKEN}"))).message
    hook.answers += [b"", b"never"]
    await refused(hooked(notify_url=hook.url))
    assert "0.2 s" in (await refused(hooked(notify_url=hook.url, notify_seconds=0.2))).message


async def test_body_of_webhooks_answer_is_not_read(hook: Hook) -> None:
    hook.answers.append(b"HTTP/1.1 200 OK\r\n\r\nendless")
    assert (await notified(hooked(notify_url=hook.url))).sent == ("webhook",)


def in_history(error: ApplicationError) -> str:
    """The failure as history has it."""
    failure, converter = Failure(), DataConverter.default
    converter.failure_converter.to_failure(error, converter.payload_converter, failure)
    return str(failure)


async def test_no_secret_is_in_history_logs_or_errors(hook: Hook) -> None:
    activities = hooked(notify_url=hook.url, notify_secret=SECRET)
    gone = hooked(notify_url=f"http://bob:{TOKEN}@nowhere.invalid/{TOKEN}", notify_secret=SECRET)
    late = hooked(notify_url=hook.url, notify_secret=SECRET, notify_seconds=2)
    hook.answers += [status("500 Oops"), b"never", status("404 Gone")]
    with captured_logs() as logs:
        failures = [await refused(which) for which in (activities, late, gone)]
        answers = [await notified(activities), await notified(gone, attempt=6)]
    everything = [
        *map(in_history, failures),
        *map(repr, failures),
        *(answer.model_dump_json() for answer in answers),
        str(logs),
        repr(activities.settings),
        activities.settings.model_dump_json(),
    ]
    assert [text for text in everything if TOKEN in text or SECRET in text] == []


# -- the command -----------------------------------------------------------------------------------


async def test_command_reads_the_same_notice(hook: Hook, tmp_path: Path) -> None:
    activities = hooked(notify_url=hook.url, notify_command=keeping(tmp_path / "read"))
    assert (await notified(activities)).sent == ("webhook", "command")
    assert (tmp_path / "read").read_bytes() == hook.bodies[0] + b"\n"


async def test_failed_command_is_final_and_its_words_stay_local() -> None:
    command = program("import sys; print('out'); sys.exit('no modem')")
    answer = await notified(hooked(notify_command=(*command, TOKEN)))
    assert (answer.ok, answer.sent) == (False, ())
    assert answer.text.endswith("exit code 1")
    assert TOKEN not in answer.text


async def test_command_can_ask_to_run_again(tmp_path: Path) -> None:
    activities = hooked(notify_command=keeping(tmp_path / "read", code=75))
    await refused(activities)
    assert not (await notified(activities, attempt=6)).ok
    assert len((tmp_path / "read").read_text().splitlines()) == 2


@pytest.mark.parametrize("command", [("/nowhere/pager",), ("",), ("a\0b",), ("x" * 300,)], ids=ascii)
async def test_command_that_cannot_start_is_reported(command: tuple[str, ...]) -> None:
    answer = await notified(hooked(notify_command=command))
    assert not answer.ok
    assert "RATCHET_NOTIFY_COMMAND" in answer.text


def starting(pid: Path, then: str) -> tuple[str, ...]:
    """A command that starts a process of its own, and says which."""
    return ("/bin/sh", "-c", f"sleep 600 & echo $! > {shlex.quote(str(pid))}; {then}")


def gone(pid: int) -> bool:
    """The process has ended; one that nobody has waited for counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def until(reached: Callable[[], bool]) -> None:
    for _ in range(600):
        if reached():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not happen within 30 s")


@pytest.mark.skipif(not PROCESSES_ARE_FILES, reason="looks at processes as Linux shows them")
async def test_command_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    answer = await notified(hooked(notify_command=starting(pid, "wait"), notify_seconds=1))
    assert (answer.ok, answer.sent) == (False, ())
    await until(lambda: gone(int(pid.read_text())))


@pytest.mark.skipif(not PROCESSES_ARE_FILES, reason="looks at processes as Linux shows them")
async def test_cancelled_activity_stops_its_command(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    activities = hooked(notify_command=starting(pid, "wait"), notify_seconds=25)
    place = environment()
    running = asyncio.ensure_future(place.run(activities.notify, notice()))
    await until(lambda: pid.exists() and pid.read_text().endswith("\n"))
    place.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: gone(int(pid.read_text())))


# -- several attempts ------------------------------------------------------------------------------


async def test_way_that_was_served_is_not_repeated(hook: Hook, tmp_path: Path) -> None:
    activities = hooked(notify_url=hook.url, notify_command=keeping(tmp_path / "read"))
    hook.answers += [status("500 Oops"), status("204 No Content")]
    beats: list[Any] = []
    first = environment(attempt=1)
    first.on_heartbeat = beats.append
    with pytest.raises(ApplicationError):
        await first.run(activities.notify, notice())
    assert beats[-1] == {"command": ""}
    second = environment(attempt=2, heartbeat_details=[beats[-1]])
    assert await second.run(activities.notify, notice()) == Noticed(sent=("webhook", "command"))
    assert (len(hook.bodies), len((tmp_path / "read").read_text().splitlines())) == (2, 1)
