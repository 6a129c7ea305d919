"""`notify` with a real webhook and real commands: who is told, what of failures, and that no secret leaks."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
import structlog
from pydantic import ValidationError
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.contracts import TRANSIENT, ToolRun
from activities.contracts_people import Notice, Noticed
from activities.notify import NotifyActivities
from activities.settings import Settings
from tests.activities.toolkit import environment
from workflows.gate.words import approval

OPERATIONS = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
SECRET, TOKEN = "s3cret-of-the-hook", "t0ken-in-the-path"


@dataclass
class Hook:
    """A webhook on a free port: remembers what it is sent, and answers as it is told, then with 204."""

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


def notice(moment: str = "opened", **request: Any) -> Notice:
    """A notice as a run makes it."""
    whole = {
        "id": "r1",
        "kind": "approval",
        "run": "run 1",
        "text": "May pay be called?",
        "tool": "pay",
        "arguments": {"to": "änn"},
        "digest": "d" * 32,
        "options": ["approve", "reject"],
        "created": 1.0,
        "deadline": 2.0,
        "approvers": ["bob"],
        "outcome": "open",
        "votes": [{"by": "bob"}],
        **request,
    }
    return Notice.model_validate({"moment": moment, "request": whole, "run": "run 1", "agent": "desk"})


def hooked(**settings: Any) -> NotifyActivities:
    return NotifyActivities(Settings(**{"notify_seconds": 20, **settings}))


async def told(activities: NotifyActivities, attempt: int = 1, what: Notice | None = None) -> Noticed:
    return await environment(attempt).run(activities.notify, what or notice())


async def refused(activities: NotifyActivities, attempt: int = 1) -> ApplicationError:
    """The failure that Temporal is to try again."""
    with pytest.raises(ApplicationError) as raised:
        await told(activities, attempt)
    assert (raised.value.type, raised.value.non_retryable) == (TRANSIENT, False)
    return raised.value


def program(source: str) -> tuple[str, ...]:
    """A command that runs this Python."""
    return (sys.executable, "-c", source)


def keeping(path: Path, code: int = 0) -> tuple[str, ...]:
    """A command that adds what it is told to a file."""
    return program(f"import sys; open({str(path)!r}, 'a').write(sys.stdin.read()); sys.exit({code})")


# -- what is told ---------------------------------------------------------------------------------


async def test_the_webhook_is_told_what_a_person_needs_to_decide(hook: Hook) -> None:
    answer = await told(hooked(notify_url=hook.url))
    assert answer == Noticed(sent=("webhook",))
    said = json.loads(hook.bodies[0])
    assert hook.heads[0].startswith(f"POST /{TOKEN}?key={TOKEN} HTTP/1.1\r\n")
    assert hook.header("content-type") == "application/json"
    assert said == {
        "event": hook.header("x-ratchet-event"),
        "moment": "opened",
        "run": "run 1",
        "agent": "desk",
        "command": "ratchet approve 'run 1' r1 --digest dddddddd",
        "request": {
            "id": "r1",
            "kind": "approval",
            "text": "May pay be called?",
            "tool": "pay",
            "arguments": {"to": "änn"},
            "digest": "d" * 32,
            "options": ["approve", "reject"],
            "created": 1.0,
            "deadline": 2.0,
            "approvers": ["bob"],
            "outcome": "open",
        },
    }


async def test_the_notice_of_the_page_is_what_comes(hook: Hook) -> None:
    (block,) = re.findall(r"```json\n(.*?)```", OPERATIONS, re.DOTALL)
    shown = json.loads(block)
    asked = shown["request"]
    what = Notice(moment="opened", request=asked, run=shown["run"], agent=shown["agent"])
    await told(hooked(notify_url=hook.url), what=what)
    assert json.loads(hook.bodies[0]) == shown | {"event": hook.header("x-ratchet-event")}
    assert asked["text"] == approval(ToolRun(id="c", tool=asked["tool"], arguments=asked["arguments"]))


async def test_a_closed_request_needs_no_command(hook: Hook) -> None:
    await told(hooked(notify_url=hook.url), what=notice("closed", outcome="approved"))
    said = json.loads(hook.bodies[0])
    assert (said["moment"], said["command"], said["request"]["outcome"]) == ("closed", "", "approved")


@pytest.mark.parametrize(
    ("options", "command"),
    [
        (["resume", "abort"], "ratchet resume 'run 1' r1 --digest dddddddd"),
        (["answer", "abort"], "ratchet answer 'run 1' r1 --digest dddddddd <text>"),
        (["topup", "finish", "abort"], "ratchet topup 'run 1' r1 --digest dddddddd <counter>=<more>"),
        ([], ""),
    ],
    ids=str,
)
async def test_the_command_decides_by_the_first_option(
    hook: Hook, tmp_path: Path, options: list[str], command: str
) -> None:
    await told(hooked(notify_url=hook.url), what=notice(options=options))
    assert json.loads(hook.bodies[0])["command"] == command
    if "<" in command:
        pasted = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", f"echo {command}", stderr=-3, cwd=tmp_path
        )
        assert await pasted.wait() != 0, "a shell takes no blank for an answer"


async def test_a_notice_has_one_name_for_all_its_attempts(hook: Hook) -> None:
    def at(place: ActivityEnvironment, activity_id: str) -> ActivityEnvironment:
        place.info = dataclasses.replace(place.info, activity_id=activity_id)
        return place

    activities = hooked(notify_url=hook.url)
    for attempt, activity_id in ((1, "notify#1"), (2, "notify#1"), (1, "notify#2")):
        await at(environment(attempt), activity_id).run(activities.notify, notice())
    events = [hook.header("x-ratchet-event", number) for number in range(3)]
    assert events[0] == events[1] != events[2]


def verifier() -> Callable[..., bool]:
    """The function that the page gives to receivers."""
    blocks = re.findall(r"```python\n(.*?)```", OPERATIONS, re.DOTALL)
    (block,) = [block for block in blocks if "def genuine" in block]
    names: dict[str, Any] = {}
    exec(block, names)
    genuine: Callable[..., bool] = names["genuine"]
    return genuine


async def test_the_signature_is_what_the_page_says_and_nothing_else_passes(hook: Hook) -> None:
    await told(hooked(notify_url=hook.url, notify_secret=SECRET))
    genuine, body = verifier(), hook.bodies[0]
    header = hook.header("x-ratchet-signature") or ""
    assert re.fullmatch(r"t=\d+,v1=[0-9a-f]{64}", header)
    assert genuine(header, body, SECRET)
    later = re.sub(r"t=(\d+)", lambda found: f"t={int(found[1]) + 1}", header)
    for wrong in (
        (header, body + b" ", SECRET),
        (header, body, SECRET + "x"),
        (later, body, SECRET),
        *(
            (text, body, SECRET)
            for text in ("", "t=1", "v1=ab", "t=x,v1=ab", "t=1,v1=\xe9", "a,b", header[:-1])
        ),
    ):
        assert not genuine(*wrong)
    assert not genuine(header, body, SECRET, max_age=-1), "an old notice is no longer good"


async def test_without_a_secret_nothing_is_signed(hook: Hook) -> None:
    await told(hooked(notify_url=hook.url))
    assert hook.header("x-ratchet-signature") is None


async def test_a_worker_without_a_hook_says_so() -> None:
    answer = await told(hooked())
    assert (answer.ok, answer.sent) == (True, ())
    assert "neither RATCHET_NOTIFY_URL nor RATCHET_NOTIFY_COMMAND" in answer.text


# -- the webhook fails ----------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["500 Oops", "503 Busy", "429 Slow down", "408 Late", "425 Early"])
async def test_what_goes_away_by_itself_is_tried_again_and_in_the_end_told(hook: Hook, line: str) -> None:
    activities = hooked(notify_url=hook.url)
    said = f"the webhook at 127.0.0.1 answered HTTP {line[:3]}"
    for attempt in (1, 5):
        hook.answers.append(status(line))
        error = await refused(activities, attempt)
        assert (error.message, error.next_retry_delay) == (said, None)
    hook.answers.append(status(line))
    assert await told(activities, attempt=6) == Noticed(ok=False, text=said)


@pytest.mark.parametrize(
    ("after", "shortest", "longest"),
    [
        ("7", 7, 7),
        ("0.5", 0.5, 0.5),
        ("86400", 60, 60),
        (timedelta(seconds=50), 0.1, 50),
    ],
    ids=["seconds", "part of a second", "too long", "date"],
)
async def test_the_webhook_says_when_to_come_again(
    hook: Hook, after: str | timedelta, shortest: float, longest: float
) -> None:
    if isinstance(after, timedelta):
        after = format_datetime(datetime.now(UTC) + after, usegmt=True)
    hook.answers.append(status("429 Slow down", f"Retry-After: {after}"))
    delay = (await refused(hooked(notify_url=hook.url))).next_retry_delay
    assert delay is not None
    assert shortest <= delay.total_seconds() <= longest


@pytest.mark.parametrize("line", ["400 Bad", "401 Who", "404 Gone", "410 Gone", "302 Found"])
async def test_a_refusal_is_final(hook: Hook, line: str) -> None:
    hook.answers.append(status(line, f"Location: http://127.0.0.1:{hook.port}/elsewhere"))
    answer = await told(hooked(notify_url=hook.url))
    assert (answer.ok, answer.sent, len(hook.heads)) == (False, (), 1)
    assert answer.text.startswith(f"the webhook at 127.0.0.1 answered HTTP {line[:3]}; ")
    assert answer.text.endswith("check RATCHET_NOTIFY_URL and the receiver")


async def test_a_webhook_that_cannot_be_reached_is_tried_again(hook: Hook) -> None:
    server = await asyncio.start_server(hook.answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    error = await refused(hooked(notify_url=f"http://127.0.0.1:{port}/{TOKEN}"))
    assert error.message.startswith("the webhook at 127.0.0.1 cannot be reached: ")
    hook.answers.append(b"")
    error = await refused(hooked(notify_url=hook.url))
    assert "cannot be reached" in error.message


async def test_a_webhook_that_does_not_answer_is_left(hook: Hook) -> None:
    hook.answers.append(b"never")
    error = await refused(hooked(notify_url=hook.url, notify_seconds=0.2))
    assert error.message == "the webhook at 127.0.0.1 did not answer within 0.2 s"


async def test_what_the_webhook_answers_is_not_read(hook: Hook) -> None:
    hook.answers.append(b"HTTP/1.1 200 OK\r\n\r\nendless")
    assert (await told(hooked(notify_url=hook.url))).sent == ("webhook",)


# -- secrets --------------------------------------------------------------------------------------


def written(error: ApplicationError) -> str:
    """The failure as history has it."""
    failure, converter = Failure(), DataConverter.default
    converter.failure_converter.to_failure(error, converter.payload_converter, failure)
    return str(failure)


async def test_of_the_address_the_host_alone_and_no_secret_is_in_history_logs_or_errors(hook: Hook) -> None:
    activities = hooked(notify_url=hook.url, notify_secret=SECRET)
    gone = hooked(notify_url=f"http://bob:{TOKEN}@nowhere.invalid/{TOKEN}", notify_secret=SECRET)
    late = hooked(notify_url=hook.url, notify_secret=SECRET, notify_seconds=2)
    hook.answers += [status("500 Oops"), b"never", status("404 Gone")]
    with structlog.testing.capture_logs() as logs:
        failures = [await refused(which) for which in (activities, late, gone)]
        answers = [await told(activities), await told(gone, attempt=6)]
    everything = [
        *map(written, failures),
        *map(repr, failures),
        *(answer.model_dump_json() for answer in answers),
        str(logs),
        repr(activities.settings),
        activities.settings.model_dump_json(),
    ]
    assert [(TOKEN in text, SECRET in text) for text in everything] == [(False, False)] * len(everything)


@pytest.mark.parametrize("url", [f"ftp://host/{TOKEN}", f"https:///{TOKEN}", TOKEN, f"http://[{TOKEN}/"])
def test_an_address_that_is_none_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Settings(notify_url=url)
    assert TOKEN not in str(raised.value)
    assert "notify_url" in str(raised.value)


# -- the command ----------------------------------------------------------------------------------


async def test_the_command_is_told_the_same_on_its_standard_input(hook: Hook, tmp_path: Path) -> None:
    activities = hooked(notify_url=hook.url, notify_command=keeping(tmp_path / "told"))
    assert (await told(activities)).sent == ("webhook", "command")
    assert (tmp_path / "told").read_bytes() == hook.bodies[0] + b"\n"


async def test_a_command_need_not_read_what_it_is_told() -> None:
    long = notice(text="x" * 1_000_000)
    assert (await told(hooked(notify_command=program("")), what=long)).sent == ("command",)


async def test_a_command_that_fails_is_not_run_again_and_its_words_are_for_the_worker(tmp_path: Path) -> None:
    command = program("import sys; print('out'); sys.exit('no modem')")
    with structlog.testing.capture_logs() as logs:
        answer = await told(hooked(notify_command=(*command, TOKEN)))
    assert answer == Noticed(ok=False, text=f"the command {sys.executable} ended with exit code 1")
    assert [log["stderr"] for log in logs if log["event"] == "notify.command_failed"] == ["no modem\n"]


async def test_of_what_a_command_says_at_length_the_end_is_kept() -> None:
    command = program("import sys; sys.stderr.write('x' * 3_000_000 + 'no modem'); sys.exit(1)")
    with structlog.testing.capture_logs() as logs:
        assert not (await told(hooked(notify_command=command))).ok
    (said,) = [log["stderr"] for log in logs if log["event"] == "notify.command_failed"]
    assert (len(said), said[-9:]) == (2_000, "xno modem")


async def test_a_command_may_ask_to_be_run_again(tmp_path: Path) -> None:
    activities = hooked(notify_command=keeping(tmp_path / "told", code=75))
    assert (await refused(activities)).message.endswith("ended with exit code 75")
    assert not (await told(activities, attempt=6)).ok
    assert len((tmp_path / "told").read_text().splitlines()) == 2


@pytest.mark.parametrize("command", [("/nowhere/pager",), ("",), ("a\0b",), ("x" * 300,)], ids=ascii)
async def test_a_command_that_cannot_be_started_says_so(command: tuple[str, ...]) -> None:
    answer = await told(hooked(notify_command=command))
    assert not answer.ok
    assert "cannot be started: " in answer.text
    assert answer.text.endswith("check RATCHET_NOTIFY_COMMAND")


def starting(pid: Path, then: str) -> tuple[str, ...]:
    """A command that starts a process of its own, and says which."""
    return ("/bin/sh", "-c", f"sleep 600 & echo $! > {shlex.quote(str(pid))}; {then}")


def gone(pid: int) -> bool:
    """Whether the process has ended; one that nobody has waited for yet counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="looks at processes as Linux shows them")
async def test_a_command_that_does_not_end_is_stopped_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    answer = await told(hooked(notify_command=starting(pid, "wait"), notify_seconds=1))
    assert answer.text == "the command /bin/sh did not end within 1 s and was stopped"
    await until(lambda: gone(int(pid.read_text())))


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="looks at processes as Linux shows them")
@pytest.mark.parametrize(("code", "why"), [(0, ""), (3, "the command /bin/sh ended with exit code 3")])
async def test_a_command_has_ended_whatever_it_leaves_running(tmp_path: Path, code: int, why: str) -> None:
    pid = tmp_path / "pid"
    command = starting(pid, f"echo no modem >&2; exit {code}")
    with structlog.testing.capture_logs() as logs:
        answer = await told(hooked(notify_command=command, notify_seconds=10))
    assert (answer.ok, answer.text) == (not code, why)
    assert [log["stderr"] for log in logs if log["event"] == "notify.command_failed"] == [
        "no modem\n"
    ] * bool(code)
    left = int(pid.read_text())
    assert not gone(left)
    os.kill(left, signal.SIGKILL)


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="looks at processes as Linux shows them")
async def test_a_cancelled_activity_stops_its_command(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    activities = hooked(notify_command=starting(pid, "wait"), notify_seconds=25)
    place = environment()
    running = asyncio.ensure_future(place.run(activities.notify, notice()))
    await until(lambda: pid.exists() and pid.read_text().endswith("\n"))
    place.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: gone(int(pid.read_text())))


async def test_who_was_told_or_given_up_is_not_asked_again(hook: Hook, tmp_path: Path) -> None:
    activities = hooked(notify_url=hook.url, notify_command=keeping(tmp_path / "told"))
    hook.answers += [status("500 Oops"), status("204 No Content")]
    beats: list[Any] = []
    first, second = environment(attempt=1), environment(attempt=2)
    first.on_heartbeat = beats.append
    with pytest.raises(ApplicationError):
        await first.run(activities.notify, notice())
    assert beats[-1] == {"command": ""}
    second.info = dataclasses.replace(second.info, heartbeat_details=[beats[-1]])
    assert await second.run(activities.notify, notice()) == Noticed(sent=("webhook", "command"))
    assert (len(hook.bodies), len((tmp_path / "told").read_text().splitlines())) == (2, 1)


async def test_a_failure_for_good_is_told_in_the_end_with_what_was_sent(hook: Hook, tmp_path: Path) -> None:
    hook.answers.append(status("404 Gone"))
    place, beats = environment(), list[Any]()
    place.on_heartbeat = beats.append
    activities = hooked(notify_url=hook.url, notify_command=keeping(tmp_path / "told", code=75))
    with pytest.raises(ApplicationError):
        await place.run(activities.notify, notice())
    place = environment(attempt=6)
    place.info = dataclasses.replace(place.info, heartbeat_details=[beats[-1]])
    answer = await place.run(activities.notify, notice())
    assert (answer.ok, answer.sent, len(hook.bodies)) == (False, (), 1)
    assert "HTTP 404" in answer.text
    assert answer.text.endswith("ended with exit code 75")
