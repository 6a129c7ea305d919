"""What a run asks while it is followed: asked right here on a terminal, else told, with the answers."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, Protocol

from rich.console import Console
from rich.text import Text

from client.amounts import amounts_of, check_counter
from client.editing import Draft
from client.errors import RatchetError, UsageError
from client.inboxview import VERBS, answers, decided_text, request_block, summary
from client.keys import speaker
from client.people import By, spoken
from client.sending import Sent
from client.terminal import person_here, read_line
from client.view import LiveView, notes, plain
from workflows.people import Decided, Decision, Request, Verb

__all__ = ["Decider", "Desk", "Hearer", "beside", "hearing"]

LATER, FULL = "l", "s"
TOLD_SECONDS = 3.0
Typed = Callable[[], Awaitable[str | None]]
"""The next line of the person; None when there is no more."""


class Hearer(Protocol):
    """Somebody who is told of requests."""

    def heard(self, request: Request) -> None:
        """A request has opened, has got a vote, or is closed."""


class Decider(Protocol):
    """Where decisions go; see `RunCommander.decide`."""

    async def decide(self, run_id: str, decision: Decision, *, by: By = "") -> Decided | Sent:
        """Answer a request."""


@asynccontextmanager
async def hearing(agents: Decider, view: LiveView | None, run_id: str | None = None) -> AsyncIterator[Hearer]:
    """Who is told of requests while the run `run_id` is followed; without a view they are told in JSON.

    When it is left in the middle (Ctrl-C), the commands that decide what is open are printed.
    """
    if view is None:
        yield _Told(_tell_json)
        return
    if not person_here():
        yield _Told(_tell, view)
        return
    desk = Desk(agents, view, run_id)
    async with beside(desk.work()):
        try:
            try:
                yield desk
            except Exception:
                await desk.idle.wait()
                raise
            await desk.idle.wait()
        except asyncio.CancelledError:
            desk.say_how_to_decide()
            raise


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Meanwhile it is done; that it fails ends the body: a question that nobody hears is no question.

    Raises:
        RatchetError: it failed.
    """
    body, task = asyncio.current_task(), asyncio.create_task(work)
    failed = False

    def done(ended: asyncio.Task[None]) -> None:
        nonlocal failed
        if not ended.cancelled() and body is not None:
            failed = True
            body.cancel()

    task.add_done_callback(done)
    try:
        yield
    except asyncio.CancelledError:
        if failed and body is not None and not body.uncancel():
            error = task.exception()
            raise RatchetError(
                f"nobody can be asked here any more ({type(error).__name__}: {error}); decide with the "
                "commands above, or follow the run with `ratchet watch`"
            ) from error
        raise
    finally:
        task.remove_done_callback(done)
        task.cancel()
        await asyncio.wait({task})


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
    console.print("\n".join(["it waits until somebody decides:", *_ways(request)]))


def _tell_json(request: Request) -> None:
    said = {"request": request.model_dump(mode="json"), "answers": answers(request, request.run)}
    sys.stderr.write(f"{json.dumps(said, ensure_ascii=False)}\n")
    sys.stderr.flush()


def _ways(request: Request) -> list[str]:
    return [f"  {plain(way)}" for way in answers(request, request.run)]


class Desk:
    """Asks the person at the terminal, one request after the other."""

    def __init__(
        self, agents: Decider, view: LiveView, followed: str | None, typed: Typed = read_line
    ) -> None:
        self._agents, self._view, self._followed, self._typed = agents, view, followed, typed
        self._by = speaker()
        self._requests: dict[tuple[str, str], Request] = {}
        """The open ones, oldest first."""
        self._left: set[tuple[str, str]] = set()
        """Those that the person here cannot or will not decide."""
        self._drafts: dict[tuple[str, str], Draft] = {}
        self._news = asyncio.Event()
        self.idle = asyncio.Event()
        """No editor has the terminal, and no decision of this person is on its way."""
        self.idle.set()

    def heard(self, request: Request) -> None:
        key = request.run, request.id
        if request.outcome == "open":
            if key in self._requests and not self._stands(self._requests[key], request):
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
            notes().print("\n".join([f"{summary(request)} waits:", *_ways(request)]))

    async def work(self) -> None:
        """Ask what is open, for as long as the run is followed."""
        while True:
            self._news.clear()
            waiting = [key for key in self._requests if key not in self._left]
            if not waiting:
                await self._news.wait()
                continue
            await self._put(waiting[0])

    def _stands(self, request: Request, now: Request | None = None) -> bool:
        """It is still open, and a decision of it as it was shown would count."""
        now = now or self._requests.get((request.run, request.id))
        return now is not None and (now.digest, now.group) == (request.digest, request.group)

    async def _put(self, key: tuple[str, str]) -> None:
        """Ask until it is decided, here or elsewhere, or is another one."""
        request = self._requests[key]
        with self._view.still() as console:
            asking = asyncio.create_task(self._ask(request, console))
            try:
                while not asking.done() and self._stands(request):
                    news = asyncio.create_task(self._news.wait())
                    await asyncio.wait({asking, news}, return_when=asyncio.FIRST_COMPLETED)
                    news.cancel()
                    self._news.clear()
                await self.idle.wait()
            finally:
                asking.cancel()
                await asyncio.wait({asking})
            error = None if asking.cancelled() else asking.exception()
            if not asking.cancelled() and error is None and asking.result():
                await self._until_told(key)
            elif not self._stands(request):
                console.print(f"\n{self._moved(key)}")
            else:
                if error is not None:
                    head = f"it cannot be asked here ({_unforeseen(error)}); it is decided by"
                    console.print("\n".join([head, *_ways(request)]))
                self._left.add(key)
                self._show_left()

    def _moved(self, key: tuple[str, str]) -> str:
        now = self._requests.get(key)
        if now is None:
            return f"{key[1]} is closed by now"
        return plain(
            f"{key[1]} now asks {now.group or 'anybody'}; what was shown counts no more, so once again:"
        )

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
            console.print("\n".join([barred, *_ways(request)]))
            return False
        console.print(Text("\n".join(_choices(request)), style="bold"))
        while self._stands(request):
            console.print("letter, and a comment behind it if you like: ", end="")
            typed = await self._typed()
            letter, _, words = (typed if typed is not None else LATER).partition(" ")
            if letter.lower() == LATER:
                console.print("\n".join(["left waiting; it is decided by", *_ways(request)]))
                return False
            if letter.lower() == FULL:
                console.print(request_block(request, request.run, time.time(), full=True))
            elif self._stands(request):
                done = await self._take(request, letter.lower(), words.strip(), console)
                if done is not None:
                    return done
        return False

    async def _take(self, request: Request, letter: str, words: str, console: Console) -> bool | None:
        """Is it decided by that letter? None: it decides nothing, and the person is told why."""
        verb = next((v for v in request.options if VERBS[v][0] == letter), None)
        if verb is None:
            console.print("\n".join(_choices(request)))
            return None
        try:
            return await self._decide(request, verb, words, console)
        except RatchetError as error:
            console.print(Text(plain(str(error)), style="red"))
        except Exception as error:  # noqa: BLE001  # whatever it is, the person must hear it
            console.print(Text(_unforeseen(error), style="red"))
        return None

    async def _decide(self, request: Request, verb: Verb, words: str, console: Console) -> bool:
        if verb == "answer" and not words:
            console.print("your answer: ", end="")
            words = await self._typed() or ""
        self.idle.clear()
        try:
            if verb == "edit":
                return await self._edit(request, words, console)
            return await self._say(request, verb, _content(request, verb, words), console)
        finally:
            self.idle.set()

    async def _edit(self, request: Request, words: str, console: Console) -> bool:
        key = request.run, request.id
        draft = self._drafts.setdefault(key, Draft(request.arguments or {}))
        arguments = await draft.edit()
        if arguments is None:
            raise UsageError("nothing was changed, so nothing is decided")
        with draft:
            if not self._stands(request):
                raise UsageError("meanwhile it was decided or has changed, so this decides nothing")
            return await self._say(request, "edit", {"arguments": arguments, "text": words}, console)

    async def _say(self, request: Request, verb: Verb, content: dict[str, Any], console: Console) -> bool:
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


def _unforeseen(error: BaseException) -> str:
    return plain(f"{type(error).__name__}: {error}")


def _choices(request: Request) -> list[str]:
    """The letters, one in a line."""
    lines = [f"  {VERBS[verb][0]}  {VERBS[verb][1]}" for verb in request.options]
    return [*lines, f"  {FULL}  show all of it", f"  {LATER}  later: leave the run waiting"]


def _content(request: Request, verb: Verb, words: str) -> dict[str, Any]:
    """What belongs to a decision besides the verb; raises UsageError when the person gave nothing."""
    if verb == "topup":
        amounts = amounts_of(words.split())
        check_counter(request, amounts)
        return {"amounts": amounts}
    if verb == "answer" and not words:
        raise UsageError("nothing was answered")
    return {"text": words}
