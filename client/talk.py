"""One person's word to one run, as a command of the command line says it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import typer

from activities.contracts import JsonObject
from client.agent import AgentClient
from client.amounts import check_counter
from client.editing import Draft, arguments_from
from client.errors import NotConfirmed, NoWorker, RatchetError, Refused, UsageError
from client.finding import Asks, asked_of, find_request, find_run
from client.inbox import Ask
from client.inboxview import (
    decided_text,
    done_text,
    effects_table,
    next_after,
    next_decided,
    request_block,
    summary,
)
from client.keys import Speaker
from client.patience import patiently
from client.people import spoken
from client.place import Place
from client.sending import Sent
from client.terminal import confirm, person_here
from client.view import notes, out, plain
from client.yamltext import nearest
from workflows.people import (
    Command,
    CommandDone,
    Condition,
    Decided,
    Decision,
    DoneCall,
    Remember,
    Request,
    Verb,
)

__all__ = ["Talk", "changed", "more_of", "remembered", "said"]

DOING_SECONDS = 3
"""How long the run may take to say what it does."""
Asked = Request | Ask
Content = Callable[[Asked], Awaitable[dict[str, Any]]]
"""What belongs to a decision besides request and verb, once the person has seen the request."""


@dataclass(frozen=True)
class Talk:
    """Who says it and how it is sent and told."""

    place: Place
    run: str
    """As it was typed: shortened perhaps."""
    who: Speaker
    signal: bool
    as_json: bool
    digest: str = ""
    """How the digest of what is decided must begin, when the person has said so."""

    async def decide(self, request: str | None, verb: Verb, content: Content) -> int:
        """Show the request, decide it, say what has become of it; the exit code."""
        async with self.place.client() as agents:
            run_id, asks = await self._asked(agents)
            return await self._decide(agents, run_id, asks, request, verb, content)

    async def answer(self, request: str | None, text: str) -> int:
        """Answer a question; a text that is the id of what is asked is a text forgotten."""
        async with self.place.client() as agents:
            run_id, asks = await self._asked(agents)
            if request is None and any(one.id == text for one in asks.requests):
                raise UsageError(
                    f"{text} is what run {run_id} asks, so the answer to it seems to be missing: "
                    f"`ratchet answer {run_id} {text} <text>`"
                )
            return await self._decide(agents, run_id, asks, request, "answer", said(text))

    async def command(self, command: Command) -> int:
        """Send a command, say what it did; the exit code."""
        async with self.place.client() as agents:
            run_id = await find_run(agents, self.run)
            done = await self._obeyed(agents, run_id, command)
        self._tell_done(run_id, done)
        return 0

    async def resume(self, request: str | None, text: str, *, pause: bool = False) -> int:
        """Take a pause back, or answer with `resume` what the run asks so; never with `retry`, which would
        make a call a second time.

        Args:
            request: answer this one.
            text: comment, or reason.
            pause: take the pause back, whatever the run asks.
        """
        if pause and (request is not None or self.digest):
            raise UsageError("--pause is about the run, not about a request; leave REQUEST and --digest out")
        order = spoken(Command, command="resume", text=text)
        async with self.place.client() as agents:
            run_id, asks = await self._asked(agents)
            if pause or (request is None and not self.digest and _means_the_pause(run_id, asks)):
                self._tell_done(run_id, await self._obeyed(agents, run_id, order))
                return 0
            return await self._decide(agents, run_id, asks, request, "resume", said(text))

    async def rollback(self, command: Command, *, yes: bool) -> int:
        """Show what was done since the step, ask, then go back to it; the exit code."""
        async with self.place.client() as agents:
            run_id = await find_run(agents, self.run)
            await _check_step(agents, run_id, command.step or 0)
            calls = await self._effects(agents, run_id, command)
            _tell_effects(calls, command)
            if not yes:
                calls = await self._confirmed(agents, run_id, command, calls)
            done = await self._obeyed(agents, run_id, command)
        self._tell_done(run_id, done, effects=[call.model_dump(mode="json") for call in calls or ()])
        return 0

    async def _asked(self, agents: AgentClient) -> tuple[str, Asks]:
        run_id = await find_run(agents, self.run)
        return run_id, await asked_of(agents, run_id)

    async def _obeyed(self, agents: AgentClient, run_id: str, command: Command) -> CommandDone | Sent:
        """Send it; a person is told what it waits for."""

        async def under_way() -> str:
            with suppress(RatchetError, TimeoutError):
                async with asyncio.timeout(DOING_SECONDS):
                    doing = (await agents.status(run_id)).doing
                return f"{doing}, which is under way" if doing else "the run to take it"
            return "a worker to take it"

        sending = agents.command(run_id, command, by=self.who, signal=self.signal)
        return await patiently(sending, under_way, lambda words: notes().print(plain(words)))

    async def _effects(
        self, agents: AgentClient, run_id: str, command: Command
    ) -> tuple[DoneCall, ...] | None:
        """None: nobody can say."""
        try:
            return await agents.effects(run_id, command.step or 0)
        except NoWorker as error:
            notes().print(f"what was done since step {command.step} cannot be listed: {error}")
            return None

    async def _confirmed(
        self, agents: AgentClient, run_id: str, command: Command, shown: tuple[DoneCall, ...] | None
    ) -> tuple[DoneCall, ...] | None:
        """Ask for a yes to what was shown, and once more when something else was done meanwhile."""
        undoing = ", and undo what can be undone of this" if command.compensate and shown else ""
        while True:
            await confirm(f"Roll {run_id} back to step {command.step}{undoing}?")
            now = await self._effects(agents, run_id, command)
            if now == shown:
                return shown
            shown = now
            notes().print("meanwhile more was done:")
            _tell_effects(shown, command)

    async def _decide(
        self,
        agents: AgentClient,
        run_id: str,
        asks: Asks,
        request: str | None,
        verb: Verb,
        content: Content,
    ) -> int:
        """Decide the request that is meant of what is asked."""
        seen = await find_request(agents, run_id, asks.requests, request, (verb,))
        if not seen.digest.startswith(self.digest):
            raise Refused(
                f"{seen.id} asks about {seen.digest}, --digest {self.digest[:64]} came: what is asked now "
                f"is not what you saw; look at it with `ratchet inbox {run_id}` and decide upon its digest"
            )
        more = await content(seen)
        with more.pop("draft", nullcontext()):  # what was edited is kept until it is taken
            decision = spoken(Decision, request=seen.id, digest=seen.digest, decision=verb, **more)
            # What the memo says was asked for because no worker answered: an update would wait, too.
            signal = self.signal or (isinstance(seen, Ask) and await agents.has_worker())
            done = await agents.decide(run_id, decision, by=self.who, signal=signal)
        if self.as_json:
            _print(run_id, done, request=seen.model_dump(mode="json"))
            return 0
        if not self.digest:  # else they have seen it already
            out().print(request_block(seen, run_id, time.time()))
        out().print(decided_text(done, seen, decision))
        others = [one for one in asks.requests if one.id != seen.id]
        paused = isinstance(done, Decided) and await _paused(agents, run_id)
        notes().print(plain(next_decided(done, run_id, others, paused=paused)))
        return 0

    def _tell_done(self, run_id: str, done: CommandDone | Sent, **more: Any) -> None:
        if self.as_json:
            _print(run_id, done, **more)
            return
        what = done.command if isinstance(done, CommandDone) else str(done.body.get("command", ""))
        out().print(plain(f"run {run_id}, {what} by {self.who.name or 'somebody'}: {done_text(done)}"))
        notes().print(plain(next_after(done, run_id)))


def _means_the_pause(run_id: str, asks: Asks) -> bool:
    """`resume` without a request is about a pause: nothing that is asked is answered so.

    Raises:
        UsageError: it may be about either.
    """
    fits = [one for one in asks.requests if "resume" in one.options]
    if fits and asks.paused:
        raise UsageError(
            f"run {run_id} stands paused, and asks what `resume` answers; say which is meant: "
            f"`ratchet resume {run_id} --pause` takes the pause back, "
            f"`ratchet resume {run_id} {fits[0].id}` answers {summary(fits[0])}"
        )
    # Only a worker can say whether it is paused; where it is not, what is open is named instead.
    known = not any(isinstance(one, Ask) for one in asks.requests)
    return not fits and (asks.paused or not known or not asks.requests)


async def _paused(agents: AgentClient, run_id: str) -> bool:
    with suppress(RatchetError):  # it may be over by now
        return (await agents.asked(run_id)).paused
    return False


async def _check_step(agents: AgentClient, run_id: str, step: int) -> None:
    """Raise a UsageError that names the steps when the run has no such one; where its log or machine cannot
    be read here, the run itself says so."""
    from client.checkpoints import source_of

    try:
        source = await source_of(agents, run_id)
        source.checkpoints()
    except RatchetError:
        return
    source.checkpoint(step)


def _tell_effects(calls: tuple[DoneCall, ...] | None, command: Command) -> None:
    if calls is None:
        return
    if not calls:
        notes().print(f"nothing was changed outside since step {command.step} began")
        return
    kept = "" if command.compensate else ", and not taken back by a rollback"
    notes().print(f"done since step {command.step} began{kept}:")
    notes().print(effects_table(calls))
    if not command.compensate and any(call.undoable and call.undone is None for call in calls):
        notes().print("--compensate undoes those that can be undone, the newest first")


def said(text: str) -> Content:
    """A decision with a comment alone."""

    async def content(_: Asked) -> dict[str, Any]:
        return {"text": text}

    return content


def changed(text: str, typed: str | None) -> Content:
    """New arguments: those that were typed as JSON or YAML, else as the person edits them.

    Raises NotConfirmed when they are to be edited and nobody is at a terminal.
    """
    if typed is None and not person_here():
        raise NotConfirmed("nobody can be asked here, so nothing was decided; give the arguments with --args")

    async def content(seen: Asked) -> dict[str, Any]:
        if typed is not None:
            return {"text": text, "arguments": arguments_from(typed, "--args")}
        if seen.arguments is None:
            raise UsageError(
                f"the arguments of {seen.id} are not at hand; give all of the new ones with --args"
            )
        draft = Draft(seen.arguments)
        arguments = await draft.edit()
        if arguments is None:
            raise NotConfirmed("nothing was changed, so nothing was decided")
        return {"text": text, "arguments": arguments, "draft": draft}

    return content


def more_of(text: str, amounts: Mapping[str, float]) -> Content:
    """More of what a limit counts."""

    async def content(seen: Asked) -> dict[str, Any]:
        check_counter(seen, amounts)
        return {"text": text, "amounts": amounts}

    return content


def remembered(text: str, same: bool, anything: bool, where: JsonObject) -> Content:
    """An approval, of later calls too when one of these is given."""
    if sum((same, anything, bool(where))) > 1:
        raise UsageError("give one of --remember, --remember-any and --remember-where")
    conditions = {name: _equals(value) for name, value in where.items()}
    memory = Remember(arguments=conditions, same=same) if same or anything or where else None

    async def content(seen: Asked) -> dict[str, Any]:
        _check_names(seen, where)
        return {"text": text, "remember": memory}

    return content


def _check_names(seen: Asked, where: JsonObject) -> None:
    """Raise a UsageError for an argument that the call does not have: such an approval would never count."""
    if seen.arguments is None:
        return
    wrong = next((name for name in where if name.split(".")[0] not in seen.arguments), None)
    if wrong is not None:
        raise UsageError(
            f"--remember-where {wrong[:80]}: the call of {seen.tool} that {seen.id} asks about has no such "
            f"argument; {nearest(wrong, seen.arguments)}"
        )


def _equals(value: Any) -> Condition:
    return Condition(one_of=(None,)) if value is None else Condition(equals=value)


def _print(run_id: str, done: Decided | CommandDone | Sent, **more: Any) -> None:
    key = "sent" if isinstance(done, Sent) else "decided" if isinstance(done, Decided) else "done"
    found = {"run": run_id, **more, key: done.model_dump(mode="json")}
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
