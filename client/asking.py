"""What a run asks while it is followed: asked right here on a terminal, else told, with the answers."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, Protocol

from rich.console import Console
from rich.text import Text

from client.amounts import amounts_of, check_counter
from client.errors import RatchetError, UsageError
from client.inboxview import VERBS, answers, decided_text, request_block, summary
from client.keys import speaker
from client.people import RunCommander, spoken
from client.sending import Sent
from client.terminal import edited, person_here, read_line
from client.view import LiveView, notes, plain
from workflows.people import Decided, Decision, Request, Verb

__all__ = ["Hearer", "hearing"]

LATER, FULL = "l", "s"
TOLD_SECONDS = 3.0


class Hearer(Protocol):
    """Somebody who is told of requests."""

    def heard(self, request: Request) -> None:
        """A request has opened, has got a vote, or is closed."""


@asynccontextmanager
async def hearing(
    agents: RunCommander, view: LiveView | None, run_id: str | None = None
) -> AsyncIterator[Hearer]:
    """Who is told of requests while the run `run_id` is followed; without a view they are told in JSON.

    When it is left in the middle (Ctrl-C), the commands that decide what is open are printed.
    """
    if view is None:
        yield _Told(_tell_json)
        return
    if not person_here():
        yield _Told(_tell, view)
        return
    desk = _Desk(agents, view, run_id)
    task = asyncio.create_task(desk.work())
    try:
        yield desk
    except asyncio.CancelledError:
        desk.say_how_to_decide()
        raise
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class _Told:
    """Says each request once, with the commands that decide it."""

    def __init__(self, tell: Callable[[Request], None], view: LiveView | None = None) -> None:
        self._tell, self._view = tell, view
        self._open: dict[tuple[str, str], Request] = {}

    def heard(self, request: Request) -> None:
        key = request.run, request.id
        if request.outcome != "open":
            self._open.pop(key, None)
        elif key not in self._open:
            self._open[key] = request
            with self._view.still() if self._view else nullcontext():
                self._tell(request)
        if self._view is not None:
            self._view.asking("; ".join(summary(one, 60) for one in self._open.values()))


def _tell(request: Request) -> None:
    console = notes()
    console.print(request_block(request, request.run, time.time()))
    console.print("\n".join(["it waits until somebody decides:", *(f"  {a}" for a in _ways(request))]))


def _tell_json(request: Request) -> None:
    said = {"request": request.model_dump(mode="json"), "answers": answers(request, request.run)}
    sys.stderr.write(f"{json.dumps(said, ensure_ascii=False)}\n")
    sys.stderr.flush()


def _ways(request: Request) -> list[str]:
    return [plain(way) for way in answers(request, request.run)]


class _Desk:
    """Asks the person at the terminal, one request after the other."""

    def __init__(self, agents: RunCommander, view: LiveView, followed: str | None) -> None:
        self._agents, self._view, self._followed = agents, view, followed
        self._by = speaker()
        self._requests: dict[tuple[str, str], Request] = {}
        """The open ones, oldest first."""
        self._left: set[tuple[str, str]] = set()
        """Those that the person here cannot or will not decide."""
        self._news = asyncio.Event()

    def heard(self, request: Request) -> None:
        key = request.run, request.id
        if request.outcome == "open":
            if key in self._requests and self._requests[key].group != request.group:
                self._left.discard(key)  # another group is asked now
            self._requests[key] = request
        else:
            self._requests.pop(key, None)
        self._show_left()
        self._news.set()

    def _show_left(self) -> None:
        left = [one for key, one in self._requests.items() if key in self._left]
        self._view.asking("; ".join(summary(one, 60) for one in left))

    def say_how_to_decide(self) -> None:
        """Print the commands for all that is open."""
        for request in self._requests.values():
            notes().print("\n".join([f"{summary(request)} waits:", *(f"  {a}" for a in _ways(request))]))

    async def work(self) -> None:
        """Ask what is open, for as long as the run is followed."""
        while True:
            self._news.clear()
            waiting = [key for key in self._requests if key not in self._left]
            if not waiting:
                await self._news.wait()
                continue
            await self._put(waiting[0])

    async def _put(self, key: tuple[str, str]) -> None:
        """Ask until it is decided, here or elsewhere."""
        with self._view.still() as console:
            asking = asyncio.create_task(self._ask(self._requests[key], console))
            try:
                while not asking.done() and key in self._requests:
                    news = asyncio.create_task(self._news.wait())
                    await asyncio.wait({asking, news}, return_when=asyncio.FIRST_COMPLETED)
                    news.cancel()
                    self._news.clear()
            finally:
                asking.cancel()
                with suppress(asyncio.CancelledError):
                    await asking
            if asking.cancelled():
                console.print(f"\n{key[1]} is closed by now")
            elif not asking.result():
                self._left.add(key)
                self._show_left()
            else:
                await self._until_told(key)

    async def _until_told(self, key: tuple[str, str]) -> None:
        """The run's own word of a decision comes a moment later: not into the next question."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TOLD_SECONDS):
                while key in self._requests:
                    self._news.clear()
                    await self._news.wait()
        self._requests.pop(key, None)

    async def _ask(self, request: Request, console: Console) -> bool:
        """Until something is decided; False when the person leaves it."""
        console.print(request_block(request, request.run, time.time()))
        if barred := self._barred(request):
            console.print("\n".join([barred, *(f"  {a}" for a in _ways(request))]))
            return False
        console.print(Text("\n".join(_choices(request)), style="bold"))
        while True:
            console.print("letter, and a comment behind it if you like: ", end="")
            typed = await read_line()
            letter, _, words = (typed if typed is not None else LATER).partition(" ")
            if letter.lower() == LATER:
                console.print(
                    "\n".join(["left waiting; it is decided by", *(f"  {a}" for a in _ways(request))])
                )
                return False
            if letter.lower() == FULL:
                console.print(request_block(request, request.run, time.time(), full=True))
                continue
            verb = next((v for v in request.options if VERBS[v][0] == letter.lower()), None)
            if verb is None:
                console.print("\n".join(_choices(request)))
                continue
            try:
                return await self._decide(request, verb, words.strip(), console)
            except RatchetError as error:
                console.print(Text(plain(str(error)), style="red"))

    async def _decide(self, request: Request, verb: Verb, words: str, console: Console) -> bool:
        content = await _content(request, verb, words, console)
        decision = spoken(Decision, request=request.id, digest=request.digest, decision=verb, **content)
        done = await self._agents.decide(request.run, decision, by=self._by)
        # What counts of the run that is followed comes from its log, in the next moment.
        if request.run != self._followed or isinstance(done, Sent) or done.outcome == "open":
            console.print(decided_text(done, request, decision))
        return isinstance(done, Decided) and done.outcome != "open"

    def _barred(self, request: Request) -> str:
        """Why the person here cannot decide it, if they cannot."""
        name = self._by.name
        if request.signed and self._by.key is None:
            return "only signed decisions count: name your key with RATCHET_KEY, or decide elsewhere:"
        if request.approvers and name not in request.approvers:
            who = ", ".join(request.approvers)
            return plain(f"{who} may decide it, you are {name or 'nobody'} (see RATCHET_BY); elsewhere:")
        return ""


def _choices(request: Request) -> list[str]:
    """The letters, one in a line."""
    lines = [f"  {VERBS[verb][0]}  {VERBS[verb][1]}" for verb in request.options]
    return [*lines, f"  {FULL}  show all of it", f"  {LATER}  later: leave the run waiting"]


async def _content(request: Request, verb: Verb, words: str, console: Console) -> dict[str, Any]:
    """What belongs to a decision besides the verb; raises UsageError when the person gave nothing."""
    if verb == "topup":
        amounts = amounts_of(words.split())
        check_counter(request, amounts)
        return {"amounts": amounts}
    if verb == "edit":
        arguments = await edited(request.arguments or {})
        if arguments is None:
            raise UsageError("nothing was changed, so nothing is decided")
        return {"arguments": arguments, "text": words}
    if verb == "answer" and not words:
        console.print("your answer: ", end="")
        words = await read_line() or ""
        if not words:
            raise UsageError("nothing was answered")
    return {"text": words}
