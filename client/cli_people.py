"""Commands with which people decide what runs ask: inbox, approve, reject, answer, key, and their kin.

Exit codes, as docs/people.md has them: 0 it is done (or sent, when no worker runs); 1 there is no such run,
or the server does not answer; 2 what was said makes no sense; 3 the run does not take it: it is over, knows
no such request, has closed it, or says why; 4 nobody confirmed, so nothing was done.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from client.errors import Refused, UsageError
from client.place import Json, Place

if TYPE_CHECKING:
    from rich.table import Table

    from client.inbox import Ask
    from client.listing import RunLine
    from client.talk import Talk
    from workflows.api import AgentTask
    from workflows.people import Request

__all__ = ["COMMANDS", "Deciding", "Reason", "Run", "Speaking", "text_of"]

Run = Annotated[str, typer.Argument(help="Id of the run, or its beginning or end.", metavar="RUN")]
Asked = Annotated[
    str | None,
    typer.Argument(help="Id of the request, such as r1; left out: the only one.", metavar="REQUEST"),
]
By = Annotated[
    str | None,
    typer.Option(
        "--by", envvar="RATCHET_BY", help="Who says it; else the login name.", rich_help_panel="Who"
    ),
]
Key = Annotated[
    Path | None,
    typer.Option(
        "--key", envvar="RATCHET_KEY", help="Private key (PEM) to sign it with.", rich_help_panel="Who"
    ),
]
Digest = Annotated[
    str | None,
    typer.Option("--digest", help="How the digest of what you saw begins; another one is not decided upon."),
]
DIGEST_LEAST = 6
"""Fewer characters of a digest might fit another request by chance."""
Comment = Annotated[str, typer.Option("--comment", "-m", help="For the log; the model may see it.")]
Reason = Annotated[str, typer.Option("--reason", "--comment", "-m", help="For the log.")]
Signal = Annotated[
    bool, typer.Option("--signal", help="Send it as a signal: no answer, in force when a worker takes it.")
]


@dataclass(frozen=True)
class Speaking:
    """Who says it, and how it is sent and told."""

    by: By = None
    key: Key = None
    signal: Signal = False
    as_json: Json = False

    @property
    def seen(self) -> str:
        """How the digest of what is decided begins; empty: whatever is asked."""
        return ""

    def talk(self, place: Place, run: str) -> Talk:
        """Who says what to whom. Raises UsageError."""
        from client.keys import speaker
        from client.talk import Talk

        who = speaker(self.by, self.key)
        return Talk(place, run, who, signal=self.signal, as_json=self.as_json, digest=self.seen)


@dataclass(frozen=True)
class Deciding(Speaking):
    """The same of a decision, which may be held to what was seen."""

    digest: Digest = None

    @property
    def seen(self) -> str:
        """Raises UsageError for a digest that might fit another request by chance."""
        if self.digest is None:
            return ""
        if len(self.digest.strip()) < DIGEST_LEAST:
            raise UsageError(
                f"--digest {self.digest!r}: at least {DIGEST_LEAST} characters are needed; `ratchet inbox` "
                "shows them"
            )
        return self.digest.strip()


async def text_of(typed: str, what: str) -> str:
    """A text from the command line, or from standard input when it is `-`."""
    from client.choose import read_goal

    text = await read_goal(typed)
    if not text.strip():
        raise UsageError(f"{what} is blank; write it in quotes, or - to read it from standard input")
    return text


# -- what waits --------------------


async def inbox(
    place: Place,
    run: Annotated[str | None, typer.Argument(help="Show all that this run asks, in full.")] = None,
    as_json: Json = False,
) -> None:
    """List the runs that wait for people, those that have waited longest first."""
    if run is not None:
        await _inbox_of(place, run, as_json)
        return
    from client.inboxview import inbox_table
    from client.view import notes, out

    async with place.client() as agents:
        lines = await agents.inbox()
    if as_json:
        _print_json([line.model_dump(mode="json") for line in lines])
    elif lines:
        out().print(inbox_table(lines, datetime.now(UTC), out().width))
        notes().print("`ratchet inbox RUN` shows all that a run asks, and how it is answered")
    else:
        notes().print("no run waits for anybody; `ratchet list` shows all runs")


async def _inbox_of(place: Place, name: str, as_json: bool) -> None:
    """All that one run asks: of which run, why, and how it is answered."""
    from client.finding import asked_of, find_any
    from client.inboxview import answers, run_head, why

    async with place.client() as agents:
        run_id = await find_any(agents, name)
        line, now = await asyncio.gather(agents.describe(run_id), agents.now(run_id))
        if line.progress != "running":
            raise Refused(
                f"run {run_id} is over ({line.exit_reason or line.progress}), so it asks nothing; "
                f"`ratchet show {run_id}` shows what came of it"
            )
        asks, task = await asyncio.gather(asked_of(agents, run_id), agents.waiting_task(run_id))
    asked = asks.requests
    if not as_json:
        head = run_head(line, now.children, datetime.now(UTC), paused=asks.paused)
        _print_inbox_of(head, line, asked, task)
        return
    requests = [
        {**one.model_dump(mode="json"), "why": why(one, task), "answers": answers(one, run_id)}
        for one in asked
    ]
    found = {"run": line.model_dump(mode="json"), "children": now.children, "requests": requests}
    _print_json(found)


def _print_inbox_of(
    head: Table, line: RunLine, asked: Sequence[Request | Ask], task: AgentTask | None
) -> None:
    from client.inbox import Ask
    from client.inboxview import answers, request_block
    from client.view import notes, out, plain

    out().print(head)
    if any(isinstance(request, Ask) for request in asked):
        notes().print("no worker answers, so this is in short: not why it asks, nor who may decide")
    for request in asked:
        out().print()
        out().print(request_block(request, line.id, time.time(), full=True, task=task))
        out().print("\n".join(f"  {plain(way)}" for way in answers(request, line.id)))
    if not asked:
        paused = line.waiting == "paused"
        on = (
            f"`ratchet resume {line.id}` lets it go on" if paused else f"`ratchet watch {line.id}` follows it"
        )
        notes().print(plain(f"it asks nothing at present; {on}"))


# -- decisions --------------------


async def approve(  # noqa: PLR0913  # one parameter for each option of the command line
    place: Place,
    *,
    run: Run,
    request: Asked = None,
    comment: Comment = "",
    remember: Annotated[
        bool, typer.Option("--remember", help="The same call with the same arguments: for all of this run.")
    ] = False,
    remember_any: Annotated[
        bool, typer.Option("--remember-any", help="This tool, whatever its arguments: for all of this run.")
    ] = False,
    remember_where: Annotated[
        list[str] | None,
        typer.Option("--remember-where", help="NAME=VALUE: this tool with such an argument; repeatable."),
    ] = None,
    how: Deciding,
) -> int:
    """Let a tool be called."""
    from client.talk import remembered

    where = {name: value for name, value in map(_pair, remember_where or ())}
    content = remembered(comment, remember, remember_any, where)
    return await how.talk(place, run).decide(request, "approve", content)


async def edit(  # one parameter for each option of the command line
    place: Place,
    *,
    run: Run,
    request: Asked = None,
    args: Annotated[
        str | None, typer.Option("--args", help="All of the new arguments, as JSON or YAML; else $EDITOR.")
    ] = None,
    comment: Comment = "",
    how: Deciding,
) -> int:
    """Change the arguments of a tool's call, then let it be called."""
    from client.talk import changed

    talk = how.talk(place, run)
    return await talk.decide(request, "edit", changed(comment, args))


async def answer(  # one parameter for each option of the command line
    place: Place,
    *,
    run: Run,
    words: Annotated[list[str], typer.Argument(metavar="[REQUEST] TEXT", help="The answer; - reads stdin.")],
    how: Deciding,
) -> int:
    """Answer a question; of a call whose outcome nobody knew: what it returned."""
    if len(words) > 2:
        raise UsageError(f"one answer is expected, {len(words)} words came; put it into quotes")
    *request, typed = words
    talk = how.talk(place, run)
    return await talk.answer(request[0] if request else None, await text_of(typed, "the answer"))


async def topup(  # one parameter for each option of the command line
    place: Place,
    *,
    run: Run,
    words: Annotated[
        list[str], typer.Argument(metavar="[REQUEST] COUNTER=MORE...", help="Such as cost_usd=5 tokens=1000.")
    ],
    comment: Comment = "",
    how: Deciding,
) -> int:
    """Give a run that has reached a limit more of it."""
    from client.amounts import amounts_of
    from client.talk import more_of

    request = words[0] if "=" not in words[0] else None
    amounts = amounts_of(words if request is None else words[1:])

    talk = how.talk(place, run)
    return await talk.decide(request, "topup", more_of(comment, amounts))


async def resume(  # one parameter for each option of the command line
    place: Place,
    *,
    run: Run,
    request: Asked = None,
    pause: Annotated[
        bool, typer.Option("--pause", help="Take the pause back, whatever the run asks.")
    ] = False,
    comment: Comment = "",
    how: Deciding,
) -> int:
    """Let a run go on: takes a pause back, or answers what it asks so. (`retry` makes a call again.)"""
    talk = how.talk(place, run)
    return await talk.resume(request, comment, pause=pause)


def _plain_decision(verb: Any, doc: str) -> Callable[..., Coroutine[Any, Any, int]]:
    """A command for a decision that needs nothing but a comment."""

    async def decide(  # one parameter for each option of the command line
        place: Place,
        *,
        run: Run,
        request: Asked = None,
        comment: Comment = "",
        how: Deciding,
    ) -> int:
        from client.talk import said

        return await how.talk(place, run).decide(request, verb, said(comment))

    decide.__name__, decide.__doc__ = verb, doc
    return decide


# -- keys --------------------


async def key(
    place: Place,
    action: Annotated[Literal["new", "show"], typer.Argument(help="Make one, or show its public half.")],
    file: Annotated[Path, typer.Argument(help="Of the private key.")],
    by: By = None,
) -> None:
    """Make a key that decisions are signed with; prints the line for the agent file."""
    from client.keys import new_key, public_key, speaker
    from client.view import notes

    if action == "new":
        name, public = speaker(by, None).name, new_key(file)
        notes().print(f"wrote {file}, which only you may read; sign with --key {file}, or RATCHET_KEY")
    else:
        who = speaker(by, file)
        name, public = who.name, public_key(who.key) if who.key else ""
    notes().print("for the agent file, under people.groups.GROUP.keys:")
    typer.echo(f"{json.dumps(name, ensure_ascii=False)}: {public}")


def _pair(word: str) -> tuple[str, Any]:
    from client.yamlparse import parse

    name, equals, text = word.partition("=")
    if not equals or not name:
        raise UsageError(f"--remember-where {word}: expected NAME=VALUE, such as account=17")
    return name, parse(text, f"--remember-where {word[:80]}")[1]


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


COMMANDS: dict[str, Callable[..., Coroutine[Any, Any, int | None]]] = {
    "inbox": inbox,
    "approve": approve,
    "reject": _plain_decision("reject", "Do not let a tool be called; the model is told so, and why."),
    "edit": edit,
    "answer": answer,
    "resume": resume,
    "retry": _plain_decision("retry", "Let a call be made again: it is mended, or it did not happen."),
    "topup": topup,
    "finish": _plain_decision("finish", "Let a run that has reached a limit end as the limit would have it."),
    "key": key,
}
