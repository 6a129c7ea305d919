"""One person's word to one run, as a command of the command line says it."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import typer

from activities.contracts import JsonObject
from client.agent import AgentClient
from client.amounts import check_counter
from client.editing import Draft, arguments_from
from client.errors import NotConfirmed, NoWorker, UsageError
from client.finding import find_request, find_run, open_requests, stands_paused
from client.inbox import Ask
from client.inboxview import (
    decided_text,
    done_text,
    effects_table,
    next_after,
    next_decided,
    request_block,
)
from client.keys import Speaker
from client.people import spoken
from client.place import Place
from client.sending import Sent
from client.terminal import confirm, person_here
from client.view import notes, out, plain
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
            run_id = await find_run(agents, self.run)
            known = await open_requests(agents, run_id)
            seen = await find_request(agents, run_id, known, request, (verb,))
            return await self._decide(agents, run_id, (seen, known), verb, content)

    async def command(self, command: Command) -> int:
        """Send a command, say what it did; the exit code."""
        async with self.place.client() as agents:
            run_id = await find_run(agents, self.run)
            done = await agents.command(run_id, command, by=self.who, signal=self.signal)
        self._tell_done(run_id, done)
        return 0

    async def resume(self, request: str | None, text: str) -> int:
        """Answer what the run asks with `resume`, or `retry`; a run that asks no such thing is let go on."""
        verbs: tuple[Verb, ...] = ("resume", "retry")
        async with self.place.client() as agents:
            run_id = await find_run(agents, self.run)
            known = await open_requests(agents, run_id)
            if request is None and not any(verb in one.options for one in known for verb in verbs):
                if self.digest:
                    raise UsageError(f"run {run_id} asks nothing that --digest could fit; leave it out")
                done = await agents.resume(run_id, text, by=self.who, signal=self.signal)
                self._tell_done(run_id, done)
                return 0
            seen = await find_request(agents, run_id, known, request, verbs)
            verb: Verb = "resume" if "resume" in seen.options else "retry"
            return await self._decide(agents, run_id, (seen, known), verb, said(text))

    async def rollback(self, command: Command, *, yes: bool) -> int:
        """Show what was done since the step, ask, then go back to it; the exit code."""
        async with self.place.client() as agents:
            run_id = await find_run(agents, self.run)
            calls = await self._effects(agents, run_id, command)
            if not yes:
                await confirm(f"Roll {run_id} back to step {command.step}?")
            done = await agents.command(run_id, command, by=self.who, signal=self.signal)
        self._tell_done(run_id, done, effects=[call.model_dump(mode="json") for call in calls])
        return 0

    async def _effects(self, agents: AgentClient, run_id: str, command: Command) -> tuple[DoneCall, ...]:
        try:
            calls = await agents.effects(run_id, command.step or 0)
        except NoWorker as error:
            notes().print(f"what was done since step {command.step} cannot be listed: {error}")
            return ()
        if calls:
            notes().print(f"done since step {command.step} began, and not taken back by a rollback:")
            notes().print(effects_table(calls))
        if calls and not command.compensate and any(call.undoable and call.undone is None for call in calls):
            notes().print("--compensate undoes those that can be undone, the newest first")
        if not calls:
            notes().print(f"nothing was changed outside since step {command.step} began")
        return calls

    async def _decide(
        self,
        agents: AgentClient,
        run_id: str,
        asked: tuple[Asked, Sequence[Asked]],
        verb: Verb,
        content: Content,
    ) -> int:
        """Decide the first of `asked`; the others are all that the run asked at that moment."""
        seen, known = asked
        if not seen.digest.startswith(self.digest):
            raise UsageError(
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
        others = [one for one in known if one.id != seen.id]
        paused = isinstance(done, Decided) and await stands_paused(agents, run_id)
        notes().print(plain(next_decided(done, run_id, others, paused=paused)))
        return 0

    def _tell_done(self, run_id: str, done: CommandDone | Sent, **more: Any) -> None:
        if self.as_json:
            _print(run_id, done, **more)
            return
        what = done.command if isinstance(done, CommandDone) else str(done.body.get("command", ""))
        out().print(plain(f"run {run_id}, {what} by {self.who.name or 'somebody'}: {done_text(done)}"))
        notes().print(plain(next_after(done, run_id)))


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

    async def content(_: Asked) -> dict[str, Any]:
        return {"text": text, "remember": memory}

    return content


def _equals(value: Any) -> Condition:
    return Condition(one_of=(None,)) if value is None else Condition(equals=value)


def _print(run_id: str, done: Decided | CommandDone | Sent, **more: Any) -> None:
    key = "sent" if isinstance(done, Sent) else "decided" if isinstance(done, Decided) else "done"
    found = {"run": run_id, **more, key: done.model_dump(mode="json")}
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
