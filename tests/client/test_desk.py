"""The desk at which a run that is followed asks: what was shown is what counts, and nothing is lost there."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from rich.console import Console

from client.asking import Desk, beside
from client.errors import RatchetError, Refused
from client.people import By
from client.view import LiveView
from tests.client.editorkit import Editor, editor_in
from workflows.people import Decided, Decision, Request

OPS = Request(
    id="r1",
    kind="approval",
    run="run",
    step=1,
    place="a#1:1",
    machine="m",
    state="s",
    text="?",
    tool="pay",
    arguments={"cents": 1},
    options=("approve", "edit"),
    created=1.0,
    digest="1" * 32,
    group="ops",
    approvers=("Ada",),
)
BOARD = OPS.model_copy(update={"digest": "2" * 32, "group": "board", "approvers": ("Ada", "Bea")})
CLOSED = OPS.model_copy(update={"outcome": "approved"})


PROMPT = "letter, and a comment"


class Run:
    """Takes decisions, but `fault` is what becomes of the first."""

    def __init__(self, fault: Exception | None = None) -> None:
        self._fault = fault
        self.came: list[Decision] = []

    async def decide(self, run_id: str, decision: Decision, *, by: By = "") -> Decided:
        self.came.append(decision)
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        return Decided(request="r1", kind="approval", outcome="approved")


class Person:
    """Types at the desk, and reads what it shows."""

    def __init__(self, run: Run) -> None:
        self._screen, self._lines, self._upto = io.StringIO(), asyncio.Queue[str | Exception](), 0
        view = LiveView(Console(file=self._screen, width=200))
        self.desk = Desk(run, view, "other", self._typed)

    async def _typed(self) -> str:
        line = await self._lines.get()
        if isinstance(line, Exception):
            raise line
        return line

    async def types(self, line: str | Exception, then: str = "") -> None:
        """One line; wait for what is to show then."""
        await self._lines.put(line)
        await self.reads(then)

    async def reads(self, text: str) -> None:
        """Wait until that shows behind what was read last."""
        async with asyncio.timeout(10):
            while (found := self._screen.getvalue().find(text, self._upto)) < 0:  # noqa: ASYNC110  # a screen tells nobody
                await asyncio.sleep(0.01)
        self._upto = found + len(text)


@asynccontextmanager
async def at_the_desk(run: Run) -> AsyncIterator[Person]:
    """A person who is asked OPS there."""
    person = Person(run)
    async with beside(person.desk.work()):
        person.desk.heard(OPS)
        await person.reads(PROMPT)
        yield person


@pytest.fixture(autouse=True)
def editor(tmp_path: Path) -> Iterator[Editor]:
    """Ada is here, and this is her editor."""
    with editor_in(tmp_path, RATCHET_BY="Ada") as made:
        yield made


async def test_a_request_that_asks_another_group_by_now_is_shown_and_decided_anew() -> None:
    run = Run()
    async with at_the_desk(run) as ada:
        ada.desk.heard(BOARD)
        await ada.reads("r1 now asks board; what was shown counts no more")
        await ada.reads("to be decided by 1 of Ada, Bea")
        await ada.reads(PROMPT)
        await ada.types("a ok", "r1 approved")
    assert [decision.digest for decision in run.came] == [BOARD.digest]


async def test_what_is_typed_just_as_another_group_is_asked_decides_nothing() -> None:
    run = Run()
    async with at_the_desk(run) as ada:
        ada.desk.heard(BOARD)
        await ada.types("a ok", PROMPT)
    assert run.came == []


async def test_what_was_left_is_asked_once_more_when_another_group_is() -> None:
    async with at_the_desk(Run()) as ada:
        await ada.types("l", "left waiting")
        ada.desk.heard(BOARD)
        await ada.reads(PROMPT)


@pytest.mark.parametrize("fault", [Refused("no such thing"), ValueError("no such thing")])
async def test_whatever_goes_wrong_is_said_and_it_is_asked_again(fault: Exception) -> None:
    run = Run(fault)
    async with at_the_desk(run) as ada:
        await ada.types("a", "no such thing")
        await ada.reads(PROMPT)
        await ada.types("a", "r1 approved")
    assert len(run.came) == 2


async def test_a_broken_editor_is_said_and_it_is_asked_again() -> None:
    os.environ["EDITOR"] = 'vi "'
    async with at_the_desk(Run()) as ada:
        await ada.types("e", "No closing quotation")
        await ada.types("a", "r1 approved")


async def test_where_nothing_can_be_typed_any_more_the_commands_are_named() -> None:
    async with at_the_desk(Run()) as ada:
        await ada.types(OSError("gone"), "it cannot be asked here (OSError: gone); it is decided by")
        await ada.reads("ratchet approve run r1")


async def test_an_edit_that_is_refused_is_what_the_next_one_begins_with(editor: Editor) -> None:
    run = Run(Refused("too little"))
    editor.does("sed -i 's/: 1/: 12/' \"$1\"")
    async with at_the_desk(run) as ada:
        await ada.types("e", "too little")
        await ada.types("e because", "r1 approved")
    assert [decision.arguments for decision in run.came] == [{"cents": 12}, {"cents": 122}]
    assert editor.kept() == []


async def test_an_editor_is_left_to_the_person_when_it_is_decided_elsewhere_and_the_text_is_kept(
    editor: Editor, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run()
    script = 'touch "$0.open"; while [ ! -e "$0.close" ]; do sleep 0.02; done; echo "cents: 5" > "$1"'
    editor.does(script)
    async with at_the_desk(run) as ada:
        await ada.types("e")
        async with asyncio.timeout(10):
            while not editor.done("editor.sh.open"):  # noqa: ASYNC110  # it is another process
                await asyncio.sleep(0.02)
        ada.desk.heard(CLOSED)
        await asyncio.sleep(0.1)
        assert not ada.desk.idle.is_set()
        (editor.folder / "editor.sh.close").touch()
        await ada.reads("meanwhile it was decided or has changed")
        await ada.reads("r1 is closed by now")
    assert run.came == []
    assert "what you wrote is kept in" in capsys.readouterr().err
    assert editor.kept() == ["cents: 5\n"]


async def test_a_desk_that_fails_is_heard_of() -> None:
    async def fails() -> None:
        raise OSError("no screen")

    with pytest.raises(RatchetError, match=r"nobody can be asked here any more \(OSError: no screen"):
        async with beside(fails()):
            await asyncio.sleep(10)
    await asyncio.sleep(0)  # nothing of the cancellation is left


async def test_a_cancellation_beside_a_desk_remains_one() -> None:
    async def follow() -> None:
        async with beside(asyncio.sleep(10)):
            await asyncio.sleep(10)

    task = asyncio.create_task(follow())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
