"""A bug in a user's machine: it is named in Temporal's history, and the run goes on once it is fixed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from activities.extensions import load_modules
from activities.settings import Settings
from client.runs.pending import bug_in
from tests.server.trials import UNATTENDED, begin, eventually, replayed, scripted
from workflows import registry

BUG = '"".nothing'
SOURCE = f"""
from enum import Enum

from pydantic import BaseModel

from ratchet import AskModel, Context, Event, Exit, Machine, Message, do, state


class S(Enum):
    ASK, LOOK, DONE = "ask", "look", "done"


class Options(BaseModel, frozen=True):
    pass


class Seen(Context):
    text: str = ""


class Asked(Event):
    pass


class Looked(Event):
    pass


@state(S.ASK, asks={{AskModel}}, writes={{"text"}}, counts="asked")
def ask(c, run):
    reply = yield from do(AskModel(say=(Message(role="user", content="?"),)))
    return {{"text": reply.text}}, Asked()


@state(S.LOOK, reads={{"text"}})
def look(c, run):
    return {{}}, Looked(reason={BUG})


MACHINE = Machine(
    name="buggy",
    options=Options,
    context=Seen,
    begin=lambda given, options: Seen(),
    initial=S.ASK,
    table={{S.ASK: {{Asked: S.LOOK}}, S.LOOK: {{Looked: S.DONE}}}},
    states=(ask, look),
    result=lambda c, run: Exit(reason="looked", ok=True, answer=c.text),
)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The machine's file, which the worker has loaded."""
    file = tmp_path_factory.mktemp("machines") / "buggy.py"
    file.write_text(SOURCE)
    for module in load_modules([str(file)]):
        registry.add_module(module)
    return file


async def test_bug_in_machine_is_named_and_run_continues_once_fixed(
    working: Client, settings: Settings, file: Path
) -> None:
    given = {"goal": "x", "machine": "buggy", "people": UNATTENDED, "models": {"default": scripted("seen")}}
    run = await begin(working, given, task_timeout=timedelta(seconds=1))
    failure = await eventually(lambda: bug_in(working, run.id))
    line = SOURCE[: SOURCE.index(BUG)].count("\n") + 1
    for words in ("AttributeError", "nothing", str(file), f"line {line}", "look"):
        assert words in failure
    with pytest.raises(RPCError):  # nobody can answer a query now
        await run.query("status", rpc_timeout=timedelta(seconds=0.5))
    file.write_text(SOURCE.replace(BUG, '"fixed"'))  # noqa: ASYNC240  # one small file
    start_again(file)
    result = await run.result()
    assert (result.ok, result.answer) == (True, "seen")
    assert await bug_in(working, run.id) is None
    await replayed(run, settings)


def start_again(file: Path) -> None:
    """Load it as a worker does that is started again: what one has loaded stays as it is."""
    for module in load_modules([str(file)]):
        assert module.__spec__ is not None
        assert module.__spec__.loader is not None
        module.__spec__.loader.exec_module(module)


async def test_broken_rule_before_fail_state_is_in_workers_log(
    working: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "failing.py"
    source = SOURCE.replace('"buggy"', '"failing", fail=S.DONE').replace(', writes={"text"}', "")
    file.write_text(source)
    for module in load_modules([str(file)]):
        registry.add_module(module)
    with caplog.at_level("INFO", "temporalio.workflow"):
        models = {"default": scripted("seen")}
        given = {"goal": "x", "machine": "failing", "people": UNATTENDED, "models": models}
        await (await begin(working, given)).result()
    fields = [getattr(line, "ratchet", {}) for line in caplog.records]
    places = [one["place"] for one in fields if "place" in one]
    line = source.partition("@state")[0].count("\n") + 1
    assert places == [f"{file}, line {line}, in ask"]
