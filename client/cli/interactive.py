"""What a run asks, on the terminal.

What was typed before a question was shown never answers it. Before each prompt the terminal is asked for its
status (`ESC [ 5 n`). A terminal draws and answers in order, so its answer (`ESC [ 0 n`) arrives after all
keys that were pressed before the question was drawn; these are dropped. Clearing the input queue alone would
leave keys that are still on their way through the kernel or through ssh, and prompt_toolkit keeps keys for
its next prompt.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TextIO

from rich.console import Console
from rich.text import Text

from activities.contracts.record_events import REQUEST_CLOSED
from activities.installed import missing_extra
from client.cli.live import LiveView
from client.cli.output import print_json
from client.cli.render import notes
from client.cli.render_requests import choices, decision_commands, keys_of, request_block
from client.errors import NotConfirmed, RatchetError
from client.keys import signer
from client.runs.amounts import amounts_from, check_counter
from client.runs.requests import decision_text
from client.runs.words import plain, request_line
from workflows.people import Decided, Request, Verb

if TYPE_CHECKING:
    from client.sdk.agent import AgentClient
    from client.sdk.sending import SentSignal
    from workflows.kernel.log import Record

__all__ = ["LeftForLater", "Listener", "Questions", "Terminal", "confirm", "listening", "person_here"]

BROWSER, LATER = "b", "l"
STATUS_QUERY, STATUS_ANSWER = "\x1b[5n", b"\x1b[0n"
STATUS_SECONDS = 2.0
"""A terminal that does not answer in this time never does; the keys of this time are dropped."""
CLOSED_SECONDS = 3.0
"""How long the log may take to show a decision of this person."""


# -- the terminal --------------------


class LeftForLater(asyncio.CancelledError):
    """The command is cancelled because the person wants the shell back."""


class _Interrupted(Exception):
    """Ctrl-C at a prompt."""


class Terminal:
    """The person at the terminal of this process."""

    def __init__(self, stream: TextIO | None = None) -> None:
        shown = stream or sys.stdout
        # below a live line rich stands in for the stream, and passes bytes on without flushing them
        self._stream: TextIO = getattr(shown, "rich_proxied_file", shown)
        """Where prompts are shown."""

    async def line(self, prompt: str) -> str | None:
        """The line that the person types at this prompt; None at the end of input (Ctrl-D).

        Other output meanwhile is printed above the prompt. It may be cancelled.

        Raises:
            OSError: the terminal is gone.
        """
        from prompt_toolkit import PromptSession
        from prompt_toolkit.application import create_app_session
        from prompt_toolkit.input import create_input
        from prompt_toolkit.input.typeahead import clear_typeahead
        from prompt_toolkit.output import create_output
        from prompt_toolkit.output.vt100 import Vt100_Output

        from client.cli.above_prompt import printing_above

        source, shown = create_input(sys.stdin), create_output(self._stream)
        if isinstance(shown, Vt100_Output):
            shown.enable_cpr = False  # needed for menus only; it warns where a terminal does not answer
        await self._drop_early_keys()
        clear_typeahead(source)
        with create_app_session(source, shown), printing_above():
            session: PromptSession[str] = PromptSession(interrupt_exception=_Interrupted, enable_suspend=True)
            try:
                return (await session.prompt_async(prompt, handle_sigint=False)).strip()
            except EOFError:
                return None
            except _Interrupted:
                await _interrupt()

    async def _drop_early_keys(self) -> None:
        """Wait until the terminal has drawn everything, and drop the keys that were pressed before."""
        loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()
        drawn: asyncio.Future[None] = loop.create_future()
        early = bytearray()

        def read() -> None:
            try:
                early.extend(os.read(fd, 4096))
            except OSError as error:
                if not drawn.done():
                    drawn.set_exception(error)
                return
            if STATUS_ANSWER in early and not drawn.done():
                drawn.set_result(None)

        mode = termios.tcgetattr(fd)
        tty.setcbreak(fd)  # no echo; Ctrl-C still interrupts
        loop.add_reader(fd, read)
        try:
            self._stream.write(STATUS_QUERY)
            self._stream.flush()
            with suppress(TimeoutError):
                async with asyncio.timeout(STATUS_SECONDS):
                    await drawn
        finally:
            loop.remove_reader(fd)
            termios.tcsetattr(fd, termios.TCSAFLUSH, mode)


async def _interrupt() -> NoReturn:
    """End the command as Ctrl-C does. In the terminal's raw mode that is a key: make it a signal."""
    signal.raise_signal(signal.SIGINT)
    await asyncio.Future()
    raise AssertionError("the command is cancelled by then")


def person_here(shown: TextIO | None = None) -> bool:
    """Somebody can read what is printed to `shown` (default: standard output) and type an answer: both are
    terminals, and this process is in the foreground."""
    stream = shown or sys.stdout
    if sys.stdin is None or not (sys.stdin.isatty() and stream.isatty()):
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:
        return False


async def confirm(question: str) -> None:
    """Ask for a yes on the terminal; the question goes to standard error.

    Raises:
        NotConfirmed: anything else was typed, or nobody can be asked.
    """
    if not person_here(sys.stderr):
        raise NotConfirmed("nobody can be asked here, so nothing was done; --yes does it without asking")
    typed = await Terminal(sys.stderr).line(f"{question} [y/N] ")
    if (typed or "").lower() not in ("y", "yes"):
        raise NotConfirmed("nothing was done")


# -- what a run asks --------------------


class Listener(Protocol):
    """Gets the requests of a run while it is followed."""

    def changed(self, request: Request) -> None:
        """A request has opened, got a vote, or is closed."""

    async def before(self, record: Record) -> None:
        """This record of the run that is followed is printed next."""


@asynccontextmanager
async def listening(client: AgentClient, view: LiveView | None, run: str) -> AsyncIterator[Listener]:
    """The listener for a run that is followed: the person at the terminal, if there is one.

    Otherwise each request is printed once with the commands that decide it; without a view as JSON.
    """
    if view is None or not person_here():
        yield _Announcer(view)
        return
    async with AsyncExitStack() as stack:
        questions = Questions(client, view, run, stack)
        task = asyncio.create_task(questions.ask_all())
        try:
            try:
                yield questions
            except Exception:
                await questions.sent()
                raise
            await questions.sent()
        except asyncio.CancelledError:
            questions.print_commands()
            if questions.leaves:
                raise LeftForLater from None
            raise
        finally:
            await _cancel(task)


async def _cancel(task: asyncio.Task[Any]) -> None:
    """Cancel it until it has ended: a cancellation that meets the end of what is awaited may get lost."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=1)


class _Announcer:
    """Prints each request once, with the commands that decide it."""

    def __init__(self, view: LiveView | None) -> None:
        self._view = view
        self._open: dict[tuple[str, str], Request] = {}

    def changed(self, request: Request) -> None:
        key = request.run, request.id
        if not request.is_open:
            self._open.pop(key, None)
        elif key not in self._open:
            self._open[key] = request
            self._announce(request)
        if self._view is not None:
            self._view.waiting_for("; ".join(request_line(one, 60) for one in self._open.values()))

    async def before(self, record: Record) -> None:
        """Nothing is on the screen that it could meet."""

    def _announce(self, request: Request) -> None:
        if self._view is None:
            commands = decision_commands(request, request.run)
            print_json({"request": request, "answers": commands}, indent=None, stream=sys.stderr)
            return
        with self._view.without_live_line():
            notes().print(request_block(request, request.run))
            end = "" if request.deadline else ", for ever if none comes"
            head = f"nobody can be asked here: the run waits for one of these, from any terminal{end}"
            notes().print(_commands(head, request))


def _prompt(request: Request, letters: str) -> str:
    """The prompt before the cursor; after a key for an unknown outcome no comment is taken."""
    what = plain(request.tool or request.kind)
    if request.kind == "outcome":
        return f"{request.id} did {what} take effect? {letters}: "
    return f"{request.id} {what}? {letters}, and a comment if you like: "


def _commands(head: str, request: Request) -> str:
    """The commands that decide a request, below a line that says why they are shown."""
    return "\n".join([head, *(f"  {one}" for one in decision_commands(request, request.run))])


class Questions:
    """Asks the person at the terminal, one request after the other."""

    def __init__(self, client: AgentClient, view: LiveView, followed: str, stack: AsyncExitStack) -> None:
        self._client, self._view, self._followed, self._stack = client, view, followed, stack
        self._terminal, self._by = Terminal(), signer()
        self._link = ""
        """Of the console, which is served when it is asked for."""
        self._open: dict[tuple[str, str], Request] = {}
        """By run and id, oldest first."""
        self._closed: dict[tuple[str, str], Request | None] = {}
        """None: the log says how."""
        self._left: set[tuple[str, str]] = set()
        """Requests that this person cannot decide here, or will not now."""
        self._asking: tuple[str, str] | None = None
        """The request whose question is on the screen."""
        self._sending = False
        """A decision is on its way."""
        self.leaves = False
        """The person wants the shell back."""
        self._news = asyncio.Event()

    def changed(self, request: Request) -> None:
        """See `Listener`."""
        key = request.run, request.id
        if not request.is_open:
            self._open.pop(key, None)
            self._closed.setdefault(key, request)
        elif key not in self._closed:  # else the log was faster
            if key in self._open and not self._is_current(request):
                self._left.discard(key)  # another group is asked now
            self._open[key] = request
        self._changed()

    async def before(self, record: Record) -> None:
        """A question that it closes leaves the screen first: its line would be printed into the prompt."""
        key = self._followed, str(record.about.get("request"))
        if record.event in REQUEST_CLOSED and key in self._open:
            del self._open[key]
            self._closed[key] = None
            self._changed()
            await self._until(lambda: self._asking != key)

    async def sent(self) -> None:
        """Wait until no decision of this person is on its way."""
        await self._until(lambda: not self._sending)

    def print_commands(self) -> None:
        """Print the commands that decide what is open; for requests left for later that was done before."""
        for request in (one for key, one in self._open.items() if key not in self._left):
            notes().print(_commands(f"{request_line(request)} waits:", request))

    async def ask_all(self) -> None:
        """Ask whatever is open, until it is cancelled."""
        while True:
            await self._until(lambda: bool(self._open.keys() - self._left))
            await self._ask_one(next(one for key, one in self._open.items() if key not in self._left))
            if self.leaves and self._left >= self._open.keys():
                await _interrupt()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._news.clear()
            await self._news.wait()

    def _changed(self) -> None:
        left = [request for key, request in self._open.items() if key in self._left]
        self._view.waiting_for("; ".join(request_line(request, 60) for request in left))
        self._news.set()

    def _is_current(self, request: Request) -> bool:
        """It is open, and a decision on it as it was shown would count."""
        now = self._open.get((request.run, request.id))
        return now is not None and (now.digest, now.group) == (request.digest, request.group)

    async def _ask_one(self, request: Request) -> None:
        """Ask until it is decided here or elsewhere, has changed, or the person leaves it."""
        key = request.run, request.id
        self._asking = key
        with self._view.without_live_line() as console:
            asking = asyncio.create_task(self._ask(request, console))
            asking.add_done_callback(lambda _: self._news.set())
            try:
                await self._until(lambda: asking.done() or not self._is_current(request))
                await self.sent()
            finally:
                await _cancel(asking)
            error = None if asking.cancelled() else asking.exception()
            if not asking.cancelled() and error is None and asking.result():
                with suppress(TimeoutError):  # its record comes a moment later: not into the next question
                    await asyncio.wait_for(self._until(lambda: key not in self._open), CLOSED_SECONDS)
                self._open.pop(key, None)
            elif not self._is_current(request):
                if now := self._open.get(key) or self._closed.get(key):
                    console.print(f"\n{_change(now)}")
            else:
                if error is not None:
                    head = f"it cannot be asked here ({_text_of(error)}); these commands decide it"
                    console.print(_commands(head, request))
                self._left.add(key)
        self._asking = None
        self._changed()

    async def _ask(self, request: Request, console: Console) -> bool:
        """Until the person decides; False when they leave it."""
        console.print("\n", request_block(request, request.run), sep="")
        if problem := self._cannot_decide(request):
            console.print(_commands(problem, request))
            return False
        keys = keys_of(request)
        offered = self._offered(request)
        console.print(offered)
        prompt = _prompt(request, "/".join([*keys, BROWSER, LATER]))
        while self._is_current(request):
            # drawn again below whatever is printed meanwhile
            typed = await self._terminal.line(prompt)
            letter, _, text = (LATER if typed is None else typed).partition(" ")
            if letter.lower() == LATER:
                console.print(
                    _commands("the request stays open. From any terminal these decide it:", request)
                )
                self.leaves = True
                return False
            if letter.lower() == BROWSER:
                console.print(await self._console(), soft_wrap=True)
            elif (verb := keys.get(letter.lower())) is None:
                console.print(_no_key(letter), offered, sep="")
            elif self._is_current(request):
                decided = await self._take(request, verb, text.strip(), console)
                if decided is not None:
                    return decided
        return False

    def _offered(self, request: Request) -> Text:
        """The keys, one on a line, and the commands of decisions that have none."""
        by_key = [*choices(request), f"  {BROWSER}  in the browser", f"  {LATER}  later: back to the shell"]
        text = Text("\n".join(by_key), style="bold")
        for other in decision_commands(request, request.run, without=tuple(keys_of(request).values())):
            text.append(f"\n     {other}", style="not bold dim")
        return text

    async def _console(self) -> str:
        """The link of a console that is served while this command runs."""
        try:
            from client.console.app import serving_console
        except ModuleNotFoundError:
            return missing_extra("jinja2")
        if not self._link:
            self._link = await self._stack.enter_async_context(serving_console(self._client, self._by))
        name = plain(self._by.name) or "nobody"
        return f"{self._link}\nWho has this link acts as {name}. Until this command ends."

    async def _take(self, request: Request, verb: Verb, text: str, console: Console) -> bool | None:
        """Whether that decides the request; None: it was taken back, or the person is told what is wrong."""
        counter = (request.arguments or {}).get("counter")
        prompts = {
            "answer": "your answer: ",
            "reject": "why? (enter: no reason): ",
            "topup": f"how much more {counter}: ",
        }
        if request.kind == "outcome":  # what it returned is no comment
            prompts["answer"] = "what it returned: "
        if verb in prompts and (not text or request.kind == "outcome"):
            typed = await self._terminal.line(prompts[verb])
            if typed is None or (not typed and verb != "reject"):
                return None  # Ctrl-D takes the key back, too
            text = typed
        if verb == "topup" and "=" not in text:
            text = f"{counter}={text}"
        self._sending = True
        try:
            return await self._decide(request, verb, text, console)
        except RatchetError as error:
            console.print(Text(plain(str(error)), style="red"))
        except Exception as error:  # noqa: BLE001  # whatever it is, the person must see it
            console.print(Text(_text_of(error), style="red"))
        finally:
            self._sending = False
            self._news.set()
        return None

    async def _decide(self, request: Request, verb: Verb, text: str, console: Console) -> bool:
        """Whether that closes the request."""
        from client.sdk.people import decision_from

        amounts = amounts_from(text.split()) if verb == "topup" else {}
        check_counter(request, amounts)
        decision = decision_from(request, verb, "" if amounts else text, amounts=amounts)
        done: Decided | SentSignal = await self._client.decide(request.run, decision, by=self._by)
        closed = isinstance(done, Decided) and done.outcome != "open"
        # a decision on the run that is followed is in its log, in a moment
        if request.run != self._followed or not closed:
            console.print(decision_text(done, request, decision))
        return closed

    def _cannot_decide(self, request: Request) -> str:
        """Why this person cannot decide it; empty when they can."""
        name = self._by.name
        if request.signed and self._by.key is None:
            return "only signed decisions count: name your key with RATCHET_KEY, or decide elsewhere:"
        if request.approvers and name not in request.approvers:
            who = ", ".join(request.approvers)
            return plain(f"{who} may decide it, you are {name or 'nobody'} (see RATCHET_BY); elsewhere:")
        return ""


def _no_key(letter: str) -> Text:
    """The line above the keys, after another one was typed."""
    typed = plain(letter if len(letter) <= 20 else f"{letter[:20]}…")
    return Text(f"{typed!r} is none of the keys, which are these:\n" if letter else "", style="red")


def _change(now: Request) -> str:
    """What became of a request that was shown."""
    if now.is_open:
        return plain(
            f"{now.id} now asks {now.group or 'anybody'}; a decision on what was shown does not count"
        )
    vote = now.deciding_vote
    who = f" by {vote.by or 'somebody'}{f': {vote.text}' if vote.text else ''}" if vote else ""
    return plain(f"{now.id} is {now.outcome.replace('_', ' ')}{who}")


def _text_of(error: BaseException) -> str:
    return plain(f"{type(error).__name__}: {error}")
