"""Each visit of a user's machine a second time, in another process: what differs is an error."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType, ModuleType

import psutil
import pytest
from pydantic import BaseModel

from activities.contracts import ModelReplied, ToolInput, ToolResult
from activities.extensions import load_modules
from activities.tools import Tool
from client.agents.purity import ImpureMachine, OtherProcess
from client.cassette.file import cassette_of
from client.cassette.playing import play
from client.cassette.recording import Recorder
from client.errors import RatchetError
from client.sdk.local import Local, ScriptedModel
from tests import drifting
from workflows.api import AgentTask
from workflows.hosts import CallAnswer, CallSite, HostCall
from workflows.hosts.memory import LocalRuns


class Line(BaseModel, frozen=True, extra="forbid"):
    """Write a line."""

    line: str


MARK = Tool(name="mark", params=Line, run=lambda params: params.line)


def run(kind: str, goal: str) -> bool:
    """Whether the machine gets to its end."""
    local = Local(
        drifting.MACHINE, model=ScriptedModel(["yes"]), tools=[MARK], decide=lambda request: "approve"
    )
    return local.run_sync(goal, options={"kind": kind}).ok


FILE = """
import os, signal, time
from dataclasses import replace
from tests.drifting import MACHINE, Paid

FROM = ""

def begin(given, options):
    if given.goal == "interrupt" and "PATH" not in os.environ:  # in the other process
        os.kill(os.getppid(), signal.SIGUSR1)
        time.sleep(0.1)
    if given.goal == "leave" and "PATH" not in os.environ:
        os._exit(3)
    if given.goal == "environment":
        os.environ["PATH"]
    return Paid(line=f"{given.goal}{FROM}")

MACHINE = replace(MACHINE, name="desk", begin=begin)
"""
"""A module of a user; what its runs pay is their goal."""


@pytest.fixture
def desk(tmp_path: Path) -> ModuleType:
    """Loaded from a file."""
    file = tmp_path / "desk.py"
    file.write_text(FILE)
    return load_modules([str(file)])[0]


def rewrite(module: ModuleType, text: str) -> None:
    """As an editor does."""
    assert module.__file__ is not None
    Path(module.__file__).write_text(text)


def pays(module: ModuleType, goal: str, *, check_purity: bool = True) -> bool:
    """Whether the module's machine gets to its end. Nothing catches Ctrl-C here, as in a notebook."""
    local = Local(module.MACHINE, model=ScriptedModel(["yes"]), tools=[MARK], check_purity=check_purity)
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        return loop.run_until_complete(local.run(goal)).ok


def interrupt(number: int, frame: FrameType | None) -> None:
    """As Ctrl-C does."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("goal", ["pay", "ask", "keep", "tell", "begin"])
def test_pure_machine_runs_in_both_processes(goal: str) -> None:
    assert run("text", goal)


@pytest.mark.parametrize("kind", [kind for kind in drifting.KINDS if kind != "text"])
def test_state_that_differs_elsewhere_is_named(kind: str) -> None:
    with pytest.raises(
        ImpureMachine, match=r"machine drifting, state pay .*effect 2 \(call_tools\), calls.0.arg"
    ):
        run(kind, "pay")


@pytest.mark.parametrize(
    ("goal", "place"),
    [
        ("ask", r"state pay .*effect 2 \(ask_person\), text is "),
        ("keep", "state note .*patch.line is "),
        ("tell", "state pay .*reason is "),
        ("refuse", "state pay .*refused_by.0 is "),
        ("begin", "`begin` .*context.line is "),
    ],
)
def test_what_differs_is_named_with_both_values(goal: str, place: str) -> None:
    with pytest.raises(ImpureMachine, match=f'{place}".+" here and ".+" there'):
        run("local time", goal)


CHANGING = """
import bisect, heapq, random
from enum import Enum
from pydantic import BaseModel
from ratchet import Context, Event, Exit, Machine, RunInput, Visit, state

class S(Enum):
    FIRST, LAST, DONE = "first", "last", "done"

class Went(Event):
    "It goes on."

class Options(BaseModel, frozen=True):
    pass

class Box(BaseModel, frozen=True):
    items: list[int] = [3, 2]

class Heap(Context):
    goal: str
    queue: list[int] = [3, 2]
    table: dict[str, list[int]] = {"a": [3]}
    boxes: tuple[Box, ...] = (Box(),)

@state(S.FIRST, asks=set(), reads={"goal", "queue", "table", "boxes"}, writes=set())
def first(c, run) -> Visit:
    exec(c.goal)
    return {}, Went()

@state(S.LAST, asks=set(), reads={"goal"}, writes=set())
def last(c, run) -> Visit:
    return {}, Went()

MACHINE = Machine(
    name="heap", description="Changes what it is shown.", options=Options, context=Heap,
    begin=lambda given, options: Heap(goal=given.goal), initial=S.FIRST, states=[first, last],
    table={S.FIRST: {Went: S.LAST}, S.LAST: {Went: S.DONE}},
    result=lambda c, run: Exit(ok=True, reason="done"), max_transitions=lambda options: 10,
)
"""
"""Its goal is what its first state does."""


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ("heapq.heappush(c.queue, 7)", r"`queue` was \[3, 2\] before and is \[3, 2, 7\] after"),
        ("heapq.heapify(c.queue)", r"`queue.0` was 3 before and is 2 after"),
        ("list.append(c.table['a'], 1)", r"`table.a` was \[3\] before and is \[3, 1\] after"),
        ("dict.update(c.table, b=[1])", r"`table.b` was null before and is \[1\] after"),
        ("heapq.heappop(c.boxes[0].items)", r"`boxes.0.items` was \[3, 2\] before and is \[2\] after"),
        ("list.append(c.queue, object())", r"`queue` was "),
    ],
)
def test_context_that_a_visit_changes_past_the_refusal_is_named(
    tmp_path: Path, change: str, place: str
) -> None:
    """C code takes a list's own way, and asks no method of the read-only one."""
    (tmp_path / "heap.py").write_text(CHANGING)
    (module,) = load_modules([str(tmp_path / "heap.py")])
    local = Local(module.MACHINE, model=ScriptedModel([]))
    assert local.run_sync("heapq.nsmallest(1, c.queue); sorted(c.table)").ok
    with pytest.raises(ImpureMachine, match=f"heap, state first changed the context in place: {place}"):
        local.run_sync(change)


@pytest.mark.parametrize(
    "change",
    [
        "bisect.insort(c.queue, 9)", "random.Random(1).shuffle(c.queue)", "c.queue.sort()",
        "c.table['a'] += [1]", "c.table |= {}",
    ],
)  # fmt: skip
def test_usual_change_in_place_is_refused_at_once(tmp_path: Path, change: str) -> None:
    (tmp_path / "heap.py").write_text(CHANGING)
    (module,) = load_modules([str(tmp_path / "heap.py")])
    with pytest.raises(TypeError, match="read-only"):
        Local(module.MACHINE, model=ScriptedModel([]), check_purity=False).run_sync(change)


async def test_cassette_names_what_differs_elsewhere() -> None:
    """In the process that recorded it, the run takes the recorded course."""
    recorder, spec = Recorder(), MARK.spec()
    task = AgentTask(goal="pay", machine="drifting", options={"kind": "hash"}, tools=("mark",))

    def perform(call: HostCall, site: CallSite) -> CallAnswer:
        if isinstance(call, ToolInput):
            return ToolResult(id=call.id, tool=call.tool, output="done")
        return ModelReplied(text="yes", model="local")

    runs = LocalRuns({"mark": spec}, machine=drifting.MACHINE, watch=recorder.watch)
    assert (await runs.run(task, perform)).ok
    verdict = await play(cassette_of(recorder), machine=drifting.MACHINE)
    assert "machine drifting, state pay differs" in verdict.difference


def test_run_after_an_interrupted_one_has_answers_of_its_own(desk: ModuleType) -> None:
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            pays(desk, "interrupt")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert pays(desk, "after it")


def zombies() -> set[int]:
    """Children that have ended and were not waited for: other tests of this process may have some."""
    return {one.pid for one in psutil.Process().children() if one.status() == psutil.STATUS_ZOMBIE}


def test_process_that_has_ended_is_started_again(desk: ModuleType) -> None:
    assert pays(desk, "first")
    living = [one for one in psutil.Process().children() if one.pid not in zombies()]
    (other,) = (one for one in living if "client.agents.purity" in " ".join(one.cmdline()))
    other.kill()
    while other.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert pays(desk, "second")
    assert not psutil.pid_exists(other.pid)


def test_visit_that_ends_the_process_is_told_with_its_status(desk: ModuleType) -> None:
    with pytest.raises(RatchetError, match="has ended: exit status 3"):
        pays(desk, "leave")
    assert pays(desk, "next")


def test_process_that_does_not_answer_is_stopped() -> None:
    before, other = zombies(), OtherProcess(seconds=0.001)  # too short for its start
    with pytest.raises(RatchetError, match=r"no answer for 0\.001 s"):
        other.ask({})
    assert zombies() <= before


def test_machine_that_was_edited_and_loaded_again_is_pure(desk: ModuleType) -> None:
    assert pays(desk, "before")
    rewrite(desk, FILE.replace('FROM = ""', 'FROM = ", edited"'))
    assert pays(importlib.reload(desk), "after")


def test_machine_that_was_edited_and_not_loaded_again_is_pure(desk: ModuleType) -> None:
    assert pays(desk, "before")
    rewrite(desk, FILE.replace('FROM = ""', 'FROM = ", edited"'))
    assert pays(desk, "after")


def test_machine_changed_in_memory_is_named_with_possible_cause(desk: ModuleType) -> None:
    vars(desk)["FROM"] = ", patched"
    with pytest.raises(ImpureMachine, match=r'"here, patched" here and "here" there.* patched in memory'):
        pays(desk, "here")


@pytest.mark.exhaustive
def test_module_that_a_machine_imports_may_be_edited(tmp_path: Path) -> None:
    (tmp_path / "prices.py").write_text('FROM = ""\n')
    (tmp_path / "shop.py").write_text(FILE.replace('FROM = ""', "from prices import FROM"))
    sys.path.insert(0, str(tmp_path))
    try:
        shop = load_modules([str(tmp_path / "shop.py")])[0]
        assert pays(shop, "before")
        rewrite(sys.modules["prices"], 'FROM = ", from prices"\n')
        importlib.reload(sys.modules["prices"])
        assert pays(importlib.reload(shop), "after")
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("prices", None)


def test_beginning_that_raises_only_elsewhere_is_named(desk: ModuleType) -> None:
    with pytest.raises(ImpureMachine, match=r"`begin` differs.* there it raises KeyError: 'PATH'"):
        pays(desk, "environment")


def test_other_process_gets_no_keys() -> None:
    """Nor anything else that a module could read from the environment while it is loaded."""
    other, secrets, before = OtherProcess(), {"OPENAI_API_KEY": "a", "OF_A_USER": "b"}, dict(os.environ)
    known = {one.pid for one in psutil.Process().children()}
    os.environ.update(secrets)
    try:
        other.ask({})
        (process,) = (one for one in psutil.Process().children() if one.pid not in known)
        assert not secrets.keys() & process.environ().keys()
    finally:
        other.close()
        os.environ.clear()
        os.environ.update(before)


def test_unchecked_machine_is_run_once_and_in_silence(desk: ModuleType) -> None:
    vars(desk)["FROM"] = ", patched"
    before = psutil.Process().children()
    assert pays(desk, "here", check_purity=False)
    assert psutil.Process().children() == before
