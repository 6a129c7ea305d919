"""Resources: what tools of a worker share, when it is opened and closed, and what a test gives instead."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypeAliasType

from activities.contracts import CompensateInput, ToolEffect, TransientError
from activities.tools import Resource, Tool, ToolCallContext
from activities.tools.resources import ResourceNotOpen, Resources
from activities.tools.run import ToolRunner
from client.sdk.local import Local, ScriptedModel, tool_call
from tests.activities.toolkit import KEY, NoParams, request_for, runner_of
from tests.logs import captured_logs
from workflows.api import AgentSpec


class Order(BaseModel):
    """Look an order up."""

    number: str


HAPPENED: list[str] = []


@pytest.fixture(autouse=True)
def happened() -> list[str]:
    """What was opened, closed and asked in this test."""
    HAPPENED.clear()
    FAILURES.clear()
    return HAPPENED


class Database:
    """Knows all orders."""

    def find(self, number: str) -> str:
        HAPPENED.append(f"find {number}")
        return f"order {number}"


FAILURES: list[BaseException] = []
"""Raised by the next tries to open."""


@asynccontextmanager
async def open_database() -> AsyncIterator[Database]:
    await asyncio.sleep(0)
    if FAILURES:
        raise FAILURES.pop(0)
    HAPPENED.append("open")
    yield Database()
    HAPPENED.append("close")


@asynccontextmanager
async def open_mail() -> AsyncIterator[list[str]]:
    sent: list[str] = []
    HAPPENED.append("open mail")
    yield sent
    HAPPENED.append("close mail")


Db = Annotated[Database, Resource(open_database)]


async def find(params: Order, database: Db) -> str:
    return database.find(params.number)


def find_in_thread(params: Order, call: ToolCallContext, database: Db) -> str:
    return f"{call.attempt}: {database.find(params.number)}"


def find_and_mail(params: Order, *, database: Db, mail: Annotated[list[str], Resource(open_mail)]) -> str:
    mail.append(database.find(params.number))
    return mail[-1]


class Finder:
    """A function that is an object."""

    async def __call__(self, params: Order, database: Db) -> str:
        return database.find(params.number)


def find_beside_unknown(params: Order, database: Db) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821  # as one that is imported for type checking alone
    return database.find(params.number)


def find_with(database: str, params: Order, db: Db) -> str:
    return db.find(params.number)


def find_quoted(params: Order, database: Any) -> str:
    found: str = database.find(params.number)
    return found


find_quoted.__annotations__["database"] = Annotated["Nowhere", Resource(open_database)]  # noqa: F821  # as above


def find_named(params: Order, database: Any) -> str:
    found: str = database.find(params.number)
    return found


find_named.__annotations__["database"] = TypeAliasType("Named", Db)


def tool(run: Callable[..., object] = find, effect: ToolEffect = "read", **more: Any) -> Tool[Order]:
    return Tool("find", Order, run, effect=effect, **more)


def test_resources_are_no_arguments_of_the_model() -> None:
    assert tool().spec().parameters == {
        "type": "object",
        "properties": {"number": {"type": "string"}},
        "required": ["number"],
        "additionalProperties": False,
    }


FUNCTIONS = [
    find,
    find_in_thread,
    find_and_mail,
    Finder(),
    find_beside_unknown,
    find_quoted,
    find_named,
    functools.partial(find_with, "bound"),
    functools.partial(find_with, "bound", db=Database()),
]


@pytest.mark.parametrize("run", FUNCTIONS)
async def test_function_of_any_kind_gets_them(run: Callable[..., object]) -> None:
    runner = runner_of(tool(run))
    result = await runner.run_tool(request_for("find", number="7"))
    assert (result.error, result.output.removeprefix("1: ")) == (None, "order 7")
    await runner.resources.close()


async def test_calls_share_one_and_it_is_closed_with_the_worker() -> None:
    runner = runner_of(tool(), Tool("other", Order, find_in_thread, effect="read"))
    assert HAPPENED == []  # nobody has called
    names = ["find", "other", "find"]
    await asyncio.gather(*(runner.run_tool(request_for(name, number="7")) for name in names))
    assert ["open", *["find 7"] * 3] == HAPPENED
    await runner.resources.close()
    assert HAPPENED[4:] == ["close"]


async def test_newest_is_closed_first() -> None:
    runner = runner_of(tool(find_and_mail))
    await runner.run_tool(request_for("find", number="7"))
    await runner.resources.close()
    assert HAPPENED == ["open", "open mail", "find 7", "close mail", "close"]


async def test_call_that_is_stopped_closes_nothing() -> None:
    @asynccontextmanager
    async def open_slowly() -> AsyncIterator[str]:
        await opening.wait()
        yield "open"

    opening = asyncio.Event()
    resources = Resources()
    marked: Any = Annotated[str, Resource(open_slowly)]

    def function(params: Order, slow: Any) -> str:
        return str(slow)

    function.__annotations__["slow"] = marked
    first = asyncio.create_task(resources.of(function, 10))
    second = asyncio.create_task(resources.of(function, 10))
    await asyncio.sleep(0)
    first.cancel()
    opening.set()
    given, _ = await second
    assert given == {"slow": "open"}
    await resources.close()


async def test_failed_opening_names_the_resource_and_next_call_tries_again() -> None:
    FAILURES.append(PermissionError("wrong password"))
    runner = runner_of(tool(effect="unsafe"))
    with captured_logs() as logged:
        failed = await runner.run_tool(request_for("find", number="7"))
    line = open_database.__wrapped__.__code__.co_firstlineno  # type: ignore[attr-defined]  # of the decorator
    assert (failed.error, failed.output) == (
        "failed",
        f"The resource open_database (test_tool_resources.py, line {line}) of find could not be opened: "
        "PermissionError: wrong password. The tool was not run; the next call tries again.",
    )
    (told,) = [one for one in logged if one["event"] == "resource.not_opened"]
    assert "test_tool_resources.py" in told["at"][-1]
    assert HAPPENED == []
    assert (await runner.run_tool(request_for("find", number="7"))).output == "order 7"
    await runner.resources.close()


async def test_server_that_is_away_is_a_transient_failure() -> None:
    FAILURES.extend([ConnectionError("refused"), ConnectionError("refused")])
    runner = runner_of(tool())
    with pytest.raises(TransientError, match="open_database"):
        await runner.run_tool(request_for("find", attempts=2, number="7"))
    result = await runner.run_tool(request_for("find", attempts=2, number="7"), 2)
    assert result.error == "transient"
    assert "ConnectionError: refused" in result.output


async def test_resource_that_does_not_open_in_time_fails_the_call() -> None:
    class Waits:
        async def __aenter__(self) -> None:
            await asyncio.Event().wait()

        async def __aexit__(self, *_: object) -> None: ...

    def run(params: NoParams, never: Any) -> str:
        return "never"

    run.__annotations__["never"] = Annotated[None, Resource(Waits)]
    runner = runner_of(Tool("probe", NoParams, run, timeout_seconds=0.05))
    result = await runner.run_tool(request_for("probe"))
    assert result.error == "transient"
    assert "TimeoutError: it was not open within 0.05 s. The tool was not run" in result.output
    await runner.resources.close()


@pytest.mark.parametrize("blocks", [False, True])
async def test_tool_is_not_run_when_opening_has_taken_its_time(blocks: bool) -> None:
    @asynccontextmanager
    async def first() -> AsyncIterator[str]:
        await asyncio.sleep(0.06)
        if blocks:
            time.sleep(0.06)  # noqa: ASYNC251  # as a driver that is not asynchronous
        yield "first"

    @asynccontextmanager
    async def second() -> AsyncIterator[str]:
        await asyncio.sleep(0.06)
        yield "second"

    def pay(params: NoParams, *more: Any, one: str, two: str = "") -> str:
        HAPPENED.append("paid")
        return one + two

    pay.__annotations__["one"] = Annotated[str, Resource(first)]
    if not blocks:
        pay.__annotations__["two"] = Annotated[str, Resource(second)]
    runner = runner_of(Tool("pay", NoParams, pay, effect="unsafe", timeout_seconds=0.1))
    result = await runner.run_tool(request_for("pay"))
    assert (result.error, HAPPENED) == ("transient", [])
    assert "it was not open within 0.1 s. The tool was not run" in result.output
    await runner.resources.close()


@pytest.mark.parametrize("stubborn", [False, True])
async def test_hanging_opening_is_given_up_and_next_call_tries_again(stubborn: bool) -> None:
    @asynccontextmanager
    async def open_slowly() -> AsyncIterator[int]:
        tries.append(len(tries))
        if len(tries) == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not stubborn:
                    raise
        mine = tries[-1]
        yield mine
        HAPPENED.append(f"close {mine}")

    def run(params: NoParams, number: Any) -> str:
        return f"try {number}"

    tries: list[int] = []
    run.__annotations__["number"] = Annotated[int, Resource(open_slowly)]
    runner = runner_of(Tool("probe", NoParams, run, timeout_seconds=0.05))
    calls = await asyncio.gather(*(runner.run_tool(request_for("probe")) for _ in range(2)))
    assert [one.error for one in calls] == ["transient"] * 2
    patient = runner_of(Tool("probe", NoParams, run))
    patient.resources = runner.resources
    with captured_logs() as logged:
        assert (await patient.run_tool(request_for("probe"))).output == "try 1"
        await runner.resources.close()
    assert (["close 0"] if stubborn else []) + ["close 1"] == HAPPENED
    assert "resource.not_closed" not in {one["event"] for one in logged}


async def test_hanging_opening_is_given_up_however_many_calls_wait() -> None:
    """Each begins to wait before the one before it has ended."""

    @asynccontextmanager
    async def open_slowly() -> AsyncIterator[str]:
        tries.append(1)
        if len(tries) == 1:
            await asyncio.Event().wait()
        yield "open"

    def function(params: NoParams, slow: Any) -> None: ...

    tries: list[int] = []
    function.__annotations__["slow"] = Annotated[str, Resource(open_slowly)]
    resources = Resources()
    waiting = asyncio.create_task(resources.of(function, 0.1))
    for _ in range(100):
        await asyncio.sleep(0.05)
        before, waiting = waiting, asyncio.create_task(resources.of(function, 0.1))
        with suppress(ResourceNotOpen):
            assert (await before)[0] == {"slow": "open"}
            break
    else:
        pytest.fail("it is never tried again")
    await waiting
    await resources.close()


async def test_impatient_call_takes_nothing_from_a_patient_one() -> None:
    @asynccontextmanager
    async def open_slowly() -> AsyncIterator[str]:
        await opening.wait()
        yield "open"

    def function(params: NoParams, slow: Any) -> None: ...

    opening = asyncio.Event()
    function.__annotations__["slow"] = Annotated[str, Resource(open_slowly)]
    resources = Resources()
    patient = asyncio.create_task(resources.of(function, 10))
    with pytest.raises(ResourceNotOpen):
        await resources.of(function, 0.01)
    opening.set()
    assert (await patient)[0] == {"slow": "open"}
    await resources.close()


async def test_function_that_opens_nothing_is_named() -> None:
    def open_plainly() -> Any:
        return Database()

    def run(params: NoParams, database: Any) -> str:
        return "never"

    run.__annotations__["database"] = Annotated[Database, Resource(open_plainly)]
    result = await runner_of(Tool("probe", NoParams, run)).run_tool(request_for("probe"))
    assert "open_plainly (test_tool_resources.py, line" in result.output
    assert "it returned a Database, not an async context manager; decorate it" in result.output


async def test_failure_to_close_is_logged_and_ends_nothing() -> None:
    class Breaks:
        async def __aenter__(self) -> str:
            return "open"

        async def __aexit__(self, *_: object) -> None:
            raise OSError("it was gone")

    def run(params: NoParams, value: Any) -> str:
        return str(value)

    run.__annotations__["value"] = Annotated[str, Resource(Breaks)]
    runner = runner_of(Tool("probe", NoParams, run, effect="read"))
    assert (await runner.run_tool(request_for("probe"))).output == "open"
    with captured_logs() as logged:
        await runner.resources.close()
    assert [one["event"] for one in logged] == ["resource.not_closed"]


async def test_reconcile_and_compensate_get_them_too() -> None:
    def undo(params: Order, output: str, database: Db) -> str:
        return f"undone {database.find(params.number)}"

    undo.__annotations__["database"] = Db
    undoing = tool(find, "idempotent", compensate=undo)
    runner = runner_of(undoing)
    request = CompensateInput(tool="find", arguments={"number": "7"}, key=KEY, output="", attempts=1)
    assert (await runner.compensate_tool(request)).text == "undone order 7"
    await runner.resources.close()


# -- declarations that cannot be used --------------------


def unknown(params: Order, database: Annotated[Nowhere, Resource(open_database)]) -> str:  # type: ignore[name-defined]  # noqa: F821  # as one that is imported for type checking alone
    return ""


def alias(params: Order, database: Nowhere) -> str:  # type: ignore[name-defined]  # noqa: F821  # as above
    return ""


def optional(params: Order, database: Db | None) -> str:
    return ""


def before(params: Order, database: Db, call: ToolCallContext) -> str:
    return ""


def more(params: Order, call: ToolCallContext, database: Db, text: str) -> str:
    return ""


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        (
            unknown,
            "run: its annotations cannot be read .name 'Nowhere' is not defined.: import what they name",
        ),
        (alias, "run: its annotations cannot be read .name 'Nowhere' is not defined.: import what they name"),
        (optional, "run: `database` has a Resource inside of its annotation: write Annotated.* around it"),
        (before, "with nothing behind these but resources"),
        (more, "with nothing behind these but resources"),
    ],
)
def test_function_that_could_not_be_called_is_refused(run: Callable[..., object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        tool(run)


def test_context_may_be_imported_for_type_checking_alone() -> None:
    def run(params: Order, call: Any) -> str:
        return ""

    run.__annotations__["call"] = "nowhere.ToolCallContext | None"
    assert tool(run).spec().name == "find"


# -- in tests --------------------


def local(**more: Any) -> Local:
    model = ScriptedModel([tool_call("find", number="7"), "it is there"])
    return Local(AgentSpec(machine="tools"), model=model, tools=[tool()], **more)


def test_local_run_takes_a_fake_and_closes_it_not() -> None:
    class Fake(Database):
        def find(self, number: str) -> str:
            return f"fake {number}"

    outcome = local(resources={open_database: Fake()}).run_sync("find it")
    assert outcome.calls[-2].answer.output == "fake 7"  # type: ignore[union-attr]  # a tool's result
    assert HAPPENED == []


def test_local_run_opens_and_closes_what_it_was_not_given() -> None:
    assert local().run_sync("find it").ok
    assert HAPPENED == ["open", "find 7", "close"]


async def test_runner_without_any_closes_nothing() -> None:
    await ToolRunner({}, runner_of().settings).resources.close()
