"""Rate limits: what is counted, who waits and how long, who comes first, what people see."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
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
    ModelReplied,
    ModelRequest,
    ModelSpec,
    Setup,
    ToolResult,
    Usage,
)
from activities.handover import Handover, Question, handed_over
from activities.model import ModelActivities
from activities.provider import ModelCall
from activities.rate_limits import RateLimits
from activities.settings import RateLimit
from activities.store.cache import ConversationCache
from activities.tools.run import ToolActivities
from tests.activities.toolkit import request_for, returning, runner_of
from tests.examplekit import ROOT
from tests.fake_openai import FakeOpenAI

PATIENCE = 60
"""Seconds after which something that is waited for counts as lost."""
LONG = 6000.0
"""Seconds of a window in which nothing is ever free again."""
ONE = RateLimit(requests_per_minute=1)


class Counted:
    """A provider that notes each question, and uses as many tokens as the question says."""

    name = "counted"
    description = "uses tokens"

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def complete(self, call: ModelCall) -> ModelReplied:
        """The last message again."""
        words = call.messages[-1].content.split()
        self.asked.append(words[0])
        used = int(words[1]) if len(words) > 1 else 0
        return ModelReplied(text="ok", model="counted", usage=Usage(output_tokens=used))


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
async def worker_on(tmp_path: Path, counted: Counted) -> AsyncIterator[Callable[..., ModelActivities]]:
    """Makes workers with one data directory."""
    opened: list[RateLimits] = []

    def make(window_seconds: float = LONG, **limits: RateLimit) -> ModelActivities:
        named = {name.replace("_", "/"): limit for name, limit in limits.items()}
        opened.append(RateLimits(tmp_path / "limits.db", named, window_seconds))
        cache = ConversationCache(tmp_path / "cache.db")
        return ModelActivities({"counted": counted}, cache, heartbeat_seconds=0.02, limits=opened[-1])

    yield make
    for asking in Asking.under_way:
        asking.task.cancel()
    await asyncio.gather(*(asking.task for asking in Asking.under_way), return_exceptions=True)
    Asking.under_way.clear()
    for one in opened:
        one.close()


def question(text: str, model: str = "small", **more: Any) -> ModelRequest:
    setup = Setup(model=ModelSpec(provider="counted", name=model, **more))
    message = Message(role="user", content=text)
    return ModelRequest(role="default", setup=setup.digest, full_setup=setup, messages=(message,), attempts=6)


def environment(**info: Any) -> ActivityEnvironment:
    """An activity that has an hour for a wait and a minute for its question."""
    made = ActivityEnvironment()
    timeouts = {"schedule_to_close_timeout": None, "start_to_close_timeout": timedelta(seconds=3660)}
    made.info = dataclasses.replace(ActivityEnvironment.default_info(), **{**timeouts, **info})
    return made


async def ask(worker: ModelActivities, text: str, model: str = "small") -> ModelReplied:
    return await asyncio.wait_for(environment().run(worker.ask_model, question(text, model)), PATIENCE)


class Asking:
    """A question under way."""

    under_way: ClassVar[list[Asking]] = []

    def __init__(self, worker: ModelActivities, text: str, model: str = "small", **info: Any) -> None:
        self.environment, self.beats = environment(**info), list[Any]()
        self.environment.on_heartbeat = lambda *details: self.beats.append(details[0])
        self.task = asyncio.create_task(self.environment.run(worker.ask_model, question(text, model)))
        self.under_way.append(self)

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
from activities.contracts import Message, ModelRequest, ModelSpec, Setup

home, address, window = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
limits = RateLimits(home / "limits.db", {"openai/*": RateLimit(requests_per_minute=4)}, window)
provider = OpenAIProvider(SecretStr("sk-none"), address)
worker = ModelActivities({"openai": provider}, ConversationCache(home / "cache.db"), limits=limits)
setup = Setup(model=ModelSpec(name="echo"))

async def ask(number):
    message = Message(role="user", content=f"question {number}")
    request = ModelRequest(role="default", setup=setup.digest, full_setup=setup, messages=(message,))
    await environment().run(worker.ask_model, request)

async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    await asyncio.gather(*(ask(number) for number in range(8)))

asyncio.run(main())
"""


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
    workers = [worker_on(0.3, **{"counted_*": RateLimit(tokens_per_minute=100)}) for _ in range(2)]
    await ask(workers[0], "a 100")
    replied = time.time()
    await ask(workers[1], "b 100")
    assert time.time() - replied >= 0.3


async def test_what_was_estimated_too_high_is_given_back(worker_on: Workers, counted: Counted) -> None:
    worker = worker_on(counted_small=RateLimit(tokens_per_minute=1500))
    for _ in range(3):
        await ask(worker, f"a 1 {'x' * 4000}")
    assert len(counted.asked) == 3


async def test_provider_that_counts_nothing_leaves_the_estimate(worker_on: Workers) -> None:
    worker = worker_on(counted_small=RateLimit(tokens_per_minute=1500))
    await ask(worker, f"a 0 {'x' * 4000}")
    await Asking(worker, f"b 0 {'x' * 4000}").waits()


async def test_question_larger_than_the_limit_waits_for_all_others_alone(
    worker_on: Workers, counted: Counted
) -> None:
    worker = worker_on(0.3, counted_small=RateLimit(tokens_per_minute=100))
    large = f"a 2000 {'x' * 8000}"
    await ask(worker, large)
    replied = time.time()
    await ask(worker, large)
    assert time.time() - replied >= 0.3


# -- who comes first -----------------------------------------------------------------------------------


async def test_one_worker_asks_in_the_order_of_arrival(worker_on: Workers, counted: Counted) -> None:
    worker = worker_on(0.1, counted_small=ONE)
    waiting = [Asking(worker, str(number)) for number in range(6)]
    for one in waiting:
        await asyncio.wait_for(one.task, PATIENCE)
    assert counted.asked == list("012345")


async def test_large_question_is_not_starved_by_small_ones_of_another_worker(
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


async def test_wait_is_told_once_however_long_it_takes(worker_on: Workers) -> None:
    limits = worker_on(0.3, **{"counted_*": ONE}).limits
    assert limits is not None
    told: list[tuple[str, ...]] = []
    for _ in range(2):
        await asyncio.wait_for(limits.admit("counted/small", 1, told.append), PATIENCE)
    assert told == [("counted/*",)]


async def test_runs_own_time_ends_the_wait(worker_on: Workers) -> None:
    worker = worker_on(counted_small=ONE)
    await ask(worker, "a")
    error = await Asking(worker, "b", schedule_to_close_timeout=timedelta(seconds=0.3)).failure()
    assert (error.details[0]["type"], error.non_retryable) == ("deadline", True)
    assert "rate limit counted/small" in error.message


async def test_wait_is_not_in_the_models_own_time_and_is_tried_again(worker_on: Workers) -> None:
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
    request = ModelRequest(role="default", setup=setup.digest, full_setup=setup)
    with pytest.raises(ApplicationError) as caught:
        await environment().run(worker.ask_model, request)
    assert caught.value.type == FATAL


async def test_unusable_file_is_named(worker_on: Workers, tmp_path: Path) -> None:
    (tmp_path / "limits.db").write_text("this is no database, whatever its name says " * 100)
    error = await Asking(worker_on(counted_small=ONE), "a").failure()
    assert (error.type, error.details[0]["type"]) == (TRANSIENT, "rate_limit")
    assert str(tmp_path / "limits.db") in error.message


async def test_question_behind_a_call_counts_and_never_waits_there(
    worker_on: Workers, counted: Counted
) -> None:
    worker = worker_on(counted_small=ONE)
    tools = ToolActivities(runner_of(returning("tool's output")), worker)

    async def called() -> ToolResult:
        request = request_for("probe")
        behind = Handover(lambda result, now: Question("digest", question("behind")))
        with handed_over(request.key, behind):
            return await asyncio.wait_for(environment().run(tools.call_tool, request), PATIENCE)

    first, second = await called(), await called()
    assert first.early is not None
    assert (second.output, second.early) == ("tool's output", None)
    assert counted.asked == ["behind"]
    await Asking(worker, "the workflow's own").waits()


def test_worker_without_limits_does_not_load_them(tmp_path: Path) -> None:
    program = (
        "import sys; from client.plugin import RatchetPlugin; from activities.settings import Settings\n"
        "RatchetPlugin(Settings())._activities(None)\n"
        "print('activities.model' in sys.modules, 'activities.rate_limits' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True,
        env={"RATCHET_DATA_DIR": str(tmp_path), "PATH": ""},
    )  # fmt: skip
    assert done.stdout == "True False\n"
