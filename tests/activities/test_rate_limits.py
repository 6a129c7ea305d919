"""Rate limits: what is counted, who waits and how long, who comes first, what people see."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.contracts import (
    FATAL,
    TRANSIENT,
    Message,
    ModelInput,
    ModelReplied,
    ModelSpec,
    Setup,
    ToolResult,
    Usage,
)
from activities.handover import Handover, NextPrompt, handed_over
from activities.model import ModelActivities
from activities.provider import ModelCall, ProviderError
from activities.rate_limits import NoRoom, RateLimits, Use
from activities.settings import RateLimit
from activities.store.cache import ConversationCache
from activities.tools.run import ToolActivities
from tests.activities.toolkit import request_for, returning, runner_of
from tests.examplekit import ROOT
from tests.fake_openai import FakeOpenAI
from tests.logs import captured_logs

PATIENCE = 60
"""Seconds after which something that is waited for counts as lost."""
LONG = 6000.0
"""Seconds of a window in which nothing is ever free again."""
ONE = RateLimit(requests_per_minute=1)


class Counted:
    """A provider that notes each question, and uses as many tokens as the question says, or fails."""

    name = "counted"
    description = "uses tokens"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.before_reply: Callable[[], object] = lambda: None

    async def complete(self, call: ModelCall) -> ModelReplied:
        """The last message again."""
        words = call.messages[-1].content.split()
        self.asked.append(words[0])
        self.before_reply()
        if words[0] == "fail":
            raise ProviderError("transient", "server_error", "it is down")
        used = int(words[1]) if len(words) > 1 else 0
        return ModelReplied(text="ok", model="counted", usage=Usage(output_tokens=used))


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
async def worker_on(tmp_path: Path, counted: Counted) -> AsyncIterator[Callable[..., ModelActivities]]:
    """Makes workers with one data directory."""
    opened: list[RateLimits] = []

    def make(window_seconds: float = LONG, most_waiting: int = 100, **limits: RateLimit) -> ModelActivities:
        named = {name.replace("_", "/"): limit for name, limit in limits.items()}
        opened.append(RateLimits(tmp_path / "limits.db", named, most_waiting, window_seconds))
        cache = ConversationCache(tmp_path / "cache.db")
        models = ModelActivities({"counted": counted}, cache, limits=opened[-1])
        models.heartbeat_seconds = 0.02
        return models

    yield make
    for asking in Asking.under_way:
        asking.task.cancel()
    await asyncio.gather(*(asking.task for asking in Asking.under_way), return_exceptions=True)
    Asking.under_way.clear()
    for one in opened:
        one.close()


def question(text: str, model: str = "small", **more: Any) -> ModelInput:
    setup = Setup(model=ModelSpec(provider="counted", name=model, **more))
    message = Message(role="user", content=text)
    return ModelInput(role="default", setup=setup.digest, full_setup=setup, messages=(message,), attempts=6)


def environment(**info: Any) -> ActivityEnvironment:
    """An activity that has an hour for a wait and a minute for its question."""
    made = ActivityEnvironment()
    timeouts = {"schedule_to_close_timeout": None, "start_to_close_timeout": timedelta(seconds=3660), **info}
    if (whole := timeouts["schedule_to_close_timeout"]) is not None:  # the server gives no attempt more
        timeouts["start_to_close_timeout"] = min(timeouts["start_to_close_timeout"], whole)
    made.info = dataclasses.replace(ActivityEnvironment.default_info(), **timeouts)
    return made


async def ask(worker: ModelActivities, text: str, model: str = "small") -> ModelReplied:
    return await asyncio.wait_for(environment().run(worker.ask_model, question(text, model)), PATIENCE)


class Asking:
    """A question under way."""

    under_way: ClassVar[list[Asking]] = []

    def __init__(self, worker: ModelActivities, text: str, model: str = "small", **info: Any) -> None:
        self.environment, self.beats = environment(**info), list[Any]()
        self.environment.on_heartbeat = self._beat
        self.task = asyncio.create_task(self.environment.run(worker.ask_model, question(text, model)))
        self.under_way.append(self)

    def _beat(self, *details: Any) -> None:
        self.details = details
        self.beats.append(details[0])

    async def waits(self) -> Asking:
        """Return when people can see that it waits."""
        await eventually(lambda: any("rate limit" in beat for beat in self.beats))
        return self

    async def failure(self) -> ApplicationError:
        """How it failed."""
        with pytest.raises(ApplicationError) as caught:
            await asyncio.wait_for(self.task, PATIENCE)
        return caught.value


async def eventually(reached: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not reached():  # noqa: ASYNC110  # a heartbeat tells nobody that it has come
            await asyncio.sleep(0.005)


Workers = Callable[..., ModelActivities]

# -- the limit holds -----------------------------------------------------------------------------------

WORKER = """
import asyncio, dataclasses, sys
from datetime import timedelta
from pathlib import Path
from pydantic import SecretStr
from activities.model import ModelActivities
from activities.providers.openai import OpenAIProvider
from activities.rate_limits import RateLimits
from activities.settings import RateLimit
from activities.store.cache import ConversationCache
from tests.activities.test_rate_limits import environment
from activities.contracts import Message, ModelInput, ModelSpec, Setup

home, address, window = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
limits = RateLimits(home / "limits.db", {"openai/*": RateLimit(requests_per_minute=4)}, 100, window)
provider = OpenAIProvider(SecretStr("sk-none"), address)
worker = ModelActivities({"openai": provider}, ConversationCache(home / "cache.db"), limits=limits)
setup = Setup(model=ModelSpec(name="echo"))

async def ask(number):
    message = Message(role="user", content=f"question {number}")
    request = ModelInput(role="default", setup=setup.digest, full_setup=setup, messages=(message,))
    await environment().run(worker.ask_model, request)

async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    await asyncio.gather(*(ask(number) for number in range(8)))

asyncio.run(main())
"""


@pytest.mark.exhaustive
def test_two_processes_never_exceed_the_limit_together(server: FakeOpenAI, tmp_path: Path) -> None:
    window = 0.3
    command = [sys.executable, "-c", WORKER, str(tmp_path), server.base_url, str(window)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    workers = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    start = time.time()
    with suppress(subprocess.TimeoutExpired):
        for worker in workers:
            worker.communicate("\n", timeout=PATIENCE)
    assert [worker.returncode for worker in workers] == [0, 0]
    arrived = sorted(request.at - start for request in server.completion_requests)
    assert len(arrived) == 16
    # each arrives after it was let pass, so a busy machine can only make these later
    assert [number for number, at in enumerate(arrived) if at < number // 4 * window] == []


async def test_limits_of_all_names_that_match_hold(worker_on: Workers, counted: Counted) -> None:
    worker = worker_on(
        **{"counted_small": RateLimit(requests_per_minute=2), "counted_*": ONE, "other_*": ONE}
    )
    await ask(worker, "a")
    for model in ("small", "large"):
        waiting = await Asking(worker, "b", model).waits()
        assert waiting.beats[-1] == "(waiting for the rate limit counted/*)"
    assert counted.asked == ["a"]


async def test_model_without_a_limit_never_waits(worker_on: Workers, counted: Counted) -> None:
    worker = worker_on(counted_small=ONE)
    await ask(worker, "a")
    for _ in range(3):
        await ask(worker, "b", model="large")
    assert counted.asked == ["a", "b", "b", "b"]


async def test_tokens_of_the_reply_count(worker_on: Workers) -> None:
    workers = [worker_on(**{"counted_*": RateLimit(tokens_per_minute=100)}) for _ in range(2)]
    await ask(workers[0], "a 100")
    await Asking(workers[1], "b 100").waits()


async def test_what_was_estimated_too_high_is_given_back(worker_on: Workers, counted: Counted) -> None:
    worker = worker_on(counted_small=RateLimit(tokens_per_minute=1500))
    for _ in range(3):
        await ask(worker, f"a 1 {'x' * 4000}")
    assert len(counted.asked) == 3


async def test_provider_that_counts_nothing_leaves_the_estimate(worker_on: Workers) -> None:
    worker = worker_on(counted_small=RateLimit(tokens_per_minute=1500))
    await ask(worker, f"a 0 {'x' * 4000}")
    await Asking(worker, f"b 0 {'x' * 4000}").waits()


async def test_question_larger_than_the_limit_waits_until_nothing_else_counts(worker_on: Workers) -> None:
    large = f"a 2000 {'x' * 8000}"
    limits = {"counted_small": RateLimit(tokens_per_minute=100)}
    await ask(worker_on(0.1, **limits), large)
    await ask(worker_on(0.1, **limits), large)
    worker = worker_on(**{"counted_large": RateLimit(tokens_per_minute=100)})
    await ask(worker, "a 1", "large")
    await Asking(worker, large, "large").waits()


@pytest.mark.parametrize("name", ["counted_sm?ll", "counted_[s]mall"])
async def test_only_a_star_stands_for_other_text(worker_on: Workers, counted: Counted, name: str) -> None:
    worker = worker_on(**{name: ONE})
    for _ in range(2):
        await ask(worker, "a")
    model = name.removeprefix("counted_")
    await ask(worker, "b", model)
    await Asking(worker, "b", model).waits()


def test_limit_for_no_provider_of_the_worker_is_logged(worker_on: Workers) -> None:
    with captured_logs() as logs:
        worker_on(**{"count*_small": ONE, "contued_*": ONE})
    assert [(line["log_level"], line["rate_limit"]) for line in logs] == [("warning", "contued/*")]


# -- who comes first -----------------------------------------------------------------------------------


async def test_one_worker_asks_in_the_order_of_arrival(worker_on: Workers, counted: Counted) -> None:
    worker = worker_on(0.1, counted_small=ONE)
    waiting = [Asking(worker, str(number)) for number in range(6)]
    for one in waiting:
        await asyncio.wait_for(one.task, PATIENCE)
    assert counted.asked == list("012345")


async def test_question_in_line_is_not_overtaken_when_there_is_room(tmp_path: Path) -> None:
    window = 0.05
    limits = RateLimits(tmp_path / "limits.db", {"counted/*": ONE}, 100, window)
    assert isinstance(await limits.admit("counted/small", 1), Use)
    first = limits.wait("counted/small", 1)
    time.sleep(2 * window)  # noqa: ASYNC251  # there is room now, and the event loop has not looked yet
    assert isinstance(await limits.admit("counted/small", 1), NoRoom)
    assert isinstance(await first, Use)
    limits.close()


async def test_small_calls_of_another_worker_do_not_starve_large_one(
    worker_on: Workers, counted: Counted
) -> None:
    limits = {"counted_small": RateLimit(tokens_per_minute=100)}
    one, other = worker_on(0.5, **limits), worker_on(0.5, **limits)
    for _ in range(5):
        await ask(one, "small 20")
        await asyncio.sleep(0.1)  # apart, so that room comes piece by piece

    async def keep_asking() -> None:
        while not large.task.done():
            await ask(one, "small 20")

    large = Asking(other, f"large 90 {'x' * 320}")
    await asyncio.wait_for(asyncio.gather(*(keep_asking() for _ in range(10))), PATIENCE)
    assert "large" in counted.asked


async def test_cancelled_wait_ends_at_once_and_holds_up_nobody(worker_on: Workers, counted: Counted) -> None:
    worker = worker_on(counted_small=RateLimit(tokens_per_minute=100))
    await ask(worker, "a 50")
    large = await Asking(worker, f"large 90 {'x' * 320}").waits()
    behind, last = await Asking(worker, "b 10").waits(), await Asking(worker, "c 10").waits()
    for one in (behind, large):
        one.environment.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(one.task, PATIENCE)
    await asyncio.wait_for(last.task, PATIENCE)
    assert counted.asked == ["a", "c"]


# -- how a wait ends, and what people see --------------------------------------------------------------


async def test_runs_own_time_ends_the_wait(worker_on: Workers) -> None:
    worker = worker_on(counted_small=ONE)
    await ask(worker, "a")
    error = await Asking(worker, "b", schedule_to_close_timeout=timedelta(seconds=0.3)).failure()
    assert (error.details[0]["type"], error.non_retryable) == ("deadline", True)
    assert "rate limit counted/small" in error.message


async def test_waiting_spends_none_of_models_own_time_and_is_retried(worker_on: Workers) -> None:
    worker = worker_on(counted_small=ONE)
    await ask(worker, "a")
    error = await Asking(worker, "b", start_to_close_timeout=timedelta(seconds=121.5)).failure()
    assert (error.type, error.details[0]["type"], error.non_retryable) == (TRANSIENT, "rate_limit", False)
    assert "counted/small" in error.message
    assert "raise the limit" in error.message


async def test_unknown_provider_fails_without_a_wait(worker_on: Workers) -> None:
    worker = worker_on(**{"*_*": ONE})
    await ask(worker, "a")
    setup = Setup(model=ModelSpec(provider="missing"))
    request = ModelInput(role="default", setup=setup.digest, full_setup=setup)
    with pytest.raises(ApplicationError) as caught:
        await environment().run(worker.ask_model, request)
    assert caught.value.type == FATAL


async def test_stopping_worker_hands_its_waiting_questions_back(worker_on: Workers) -> None:
    worker = worker_on(counted_small=ONE)
    await ask(worker, "a")
    waiting = await Asking(worker, "b").waits()
    waiting.environment.worker_shutdown()
    error = await waiting.failure()
    assert (error.type, error.details[0]["type"], error.non_retryable) == (TRANSIENT, "rate_limit", False)


async def test_model_calls_beyond_the_waiting_limit_give_slots_back(worker_on: Workers) -> None:
    worker = worker_on(most_waiting=1, **{"counted_*": ONE})
    await ask(worker, "a")
    given: dict[str, Any] = {"schedule_to_close_timeout": timedelta(seconds=20)}
    _, *beyond = [Asking(worker, text, **given) for text in "bcd"]
    await beyond[0].failure()
    error = await beyond[1].failure()
    assert (error.type, error.details[0]["type"], error.non_retryable) == (TRANSIENT, "rate_limit", False)
    assert "rate limit counted/*" in error.message
    assert error.next_retry_delay is not None
    assert error.next_retry_delay < timedelta(seconds=20)


async def test_slots_given_back_are_no_attempts_of_the_question(worker_on: Workers) -> None:
    full, free = worker_on(most_waiting=0, counted_small=ONE), worker_on()
    await ask(full, "a")
    beat: tuple[Any, ...] = ()
    for attempt in (1, 2):
        given_back = Asking(full, "fail", attempt=attempt, heartbeat_details=beat)
        await given_back.failure()
        beat = given_back.details
    for attempt in range(3, 9):  # `attempts` is 6
        failed = Asking(free, "fail", attempt=attempt, heartbeat_details=beat)
        error = await failed.failure()
        assert (error.details[0]["type"], error.non_retryable) == ("server_error", attempt == 8)
        beat = failed.details
    replied = environment(attempt=8, heartbeat_details=beat).run(free.ask_model, question("a"))
    assert (await replied).attempt == 6


# -- the file ------------------------------------------------------------------------------------------


@pytest.fixture
def locker(worker_on: Workers, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Another program at the file."""
    with closing(sqlite3.connect(tmp_path / "limits.db", isolation_level=None)) as file:
        file.execute("PRAGMA journal_mode=WAL")
        yield file


async def test_locked_file_does_not_hold_back_a_reply(
    worker_on: Workers, counted: Counted, locker: sqlite3.Connection
) -> None:
    counted.before_reply = lambda: locker.execute("BEGIN IMMEDIATE")
    with captured_logs() as logs:
        await ask(worker_on(counted_small=ONE), "a 5")
    assert "model.not_counted" in [line["event"] for line in logs]


async def test_wait_for_a_locked_file_is_seen(worker_on: Workers, locker: sqlite3.Connection) -> None:
    locker.execute("BEGIN IMMEDIATE")
    waiting = await Asking(worker_on(counted_small=ONE), "a").waits()
    assert waiting.beats[-1] == "(waiting for the counter of rate limits, which is busy)"
    locker.execute("ROLLBACK")
    await asyncio.wait_for(waiting.task, PATIENCE)


async def test_damaged_file_is_replaced(worker_on: Workers, tmp_path: Path) -> None:
    file = tmp_path / "limits.db"
    file.write_text("this is no database, whatever its name says " * 100)
    worker = worker_on(counted_small=ONE)
    with captured_logs() as logs:
        await ask(worker, "a")
    assert [line["file"] for line in logs if line["log_level"] == "warning"] == [str(file)]
    await Asking(worker, "b").waits()


async def test_questions_pass_while_the_file_cannot_be_used(worker_on: Workers, tmp_path: Path) -> None:
    file = tmp_path / "limits.db"
    file.mkdir()
    worker = worker_on(counted_small=ONE)
    with captured_logs() as logs:
        for _ in range(2):
            await ask(worker, "a")
    assert str(file) in [line["file"] for line in logs if line["log_level"] == "warning"]
    file.rmdir()
    await ask(worker, "b")
    await Asking(worker, "b").waits()


async def test_workers_meet_again_after_the_file_was_deleted(worker_on: Workers, tmp_path: Path) -> None:
    one, other = worker_on(counted_small=ONE), worker_on(counted_small=ONE)
    await ask(one, "a")
    (tmp_path / "limits.db").unlink()
    await ask(one, "b")
    await Asking(other, "c").waits()


# -- behind a call -------------------------------------------------------------------------------------


async def test_question_behind_a_call_counts_and_never_waits_there(
    worker_on: Workers, counted: Counted
) -> None:
    worker = worker_on(counted_small=ONE)
    tools = ToolActivities(runner_of(returning("tool's output")), worker)

    async def called() -> ToolResult:
        request = request_for("probe")
        behind = Handover(lambda result, now: NextPrompt("digest", question("behind")))
        with handed_over(request.key, behind):
            return await asyncio.wait_for(environment().run(tools.call_tool, request), PATIENCE)

    first, second = await called(), await called()
    assert first.early is not None
    assert (second.output, second.early) == ("tool's output", None)
    assert counted.asked == ["behind"]
    await Asking(worker, "the workflow's own").waits()
