"""Commands with which people decide what runs ask, and steer runs.

Exit codes: 0 it is done, or sent while no worker runs; 1 there is no such run, or the server does not answer;
2 wrong usage; 3 the run does not take it: it is over, has no such request or closed it, or says why; 4 nobody
confirmed, so nothing was done.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from client.cli.options import CommonOptions, Json, RunName, command, read_text
from client.errors import NotConfirmed, NoWorker, RatchetError, Refused, UsageError

if TYPE_CHECKING:
    from client.agent import AgentClient
    from client.keys import Signer
    from client.listing import RequestSummary
    from client.sending import SentSignal
    from workflows.people import (
        Command,
        CommandDone,
        Decided,
        DoneCall,
        Request,
        StandingApproval,
        Verb,
    )

    AnyRequest = Request | RequestSummary

__all__ = ["app"]

app = typer.Typer()
SHOWN = 10
"""Requests that a message names."""
DIGEST_CHARACTERS = 6
"""Fewer might fit another request by chance."""
QUICK_SECONDS = 1.0
"""What takes longer is explained."""
STATUS_SECONDS = 3
"""How long the run may take to say what it does."""
R = TypeVar("R")
Content = Callable[["AnyRequest"], Awaitable[dict[str, Any]]]
"""Fields of a decision besides request and verb; `draft` is a context around sending it."""


# -- options --------------------

RequestId = Annotated[
    str | None,
    typer.Argument(help="Id of the request, such as r1; default: the only one.", metavar="REQUEST"),
]
Comment = Annotated[str, typer.Option("--comment", "-m", help="For the log; the model may see it.")]
Reason = Annotated[str, typer.Option("--reason", "--comment", "-m", help="For the log.")]
By = Annotated[
    str | None,
    typer.Option("--by", envvar="RATCHET_BY", help="Your name; default: the login.", rich_help_panel="Who"),
]


@dataclass(frozen=True)
class Sending:
    """Who sends a message, and how."""

    by: By = None
    key: Annotated[
        Path | None,
        typer.Option("--key", envvar="RATCHET_KEY", help="Private key (PEM) to sign.", rich_help_panel="Who"),
    ] = None
    signal: Annotated[
        bool, typer.Option("--signal", help="Send a signal: no answer; it counts when a worker takes it.")
    ] = False
    as_json: Json = False

    def signer(self) -> Signer:
        """The person. Raises UsageError when the key cannot be used."""
        from client.keys import signer

        return signer(self.by, self.key)


@dataclass(frozen=True)
class Deciding(Sending):
    """The same for a decision, which can be bound to what was seen."""

    digest: Annotated[
        str | None,
        typer.Option("--digest", help="Beginning of the digest that you saw; another request is refused."),
    ] = None

    def seen(self) -> str:
        """How the request's digest must begin. Raises UsageError for one that is too short."""
        if self.digest is None:
            return ""
        if len(self.digest.strip()) < DIGEST_CHARACTERS:
            raise UsageError(
                f"--digest {self.digest!r}: at least {DIGEST_CHARACTERS} characters are needed; `ratchet "
                "inbox` shows them"
            )
        return self.digest.strip()


# -- decisions --------------------


@command(app)
async def approve(  # noqa: PLR0913, PLR0917  # one parameter for each option
    common: CommonOptions,
    how: Deciding,
    run: RunName,
    request: RequestId = None,
    comment: Comment = "",
    remember: Annotated[
        bool, typer.Option("--remember", help="Also later calls with the same arguments, in this run.")
    ] = False,
    remember_any: Annotated[
        bool, typer.Option("--remember-any", help="Also later calls of this tool, in this run.")
    ] = False,
    remember_where: Annotated[
        list[str] | None,
        typer.Option(
            "--remember-where",
            help="NAME=VALUE, or NAME=SCHEMA such as amount='{maximum: 100}': also later calls whose "
            "arguments fit, in this run; repeatable.",
        ),
    ] = None,
) -> int:
    """Let a tool be called."""
    standing = _standing_approval(remember, remember_any, remember_where or ())

    async def content(seen: AnyRequest) -> dict[str, Any]:
        if standing is not None:
            _check_names(seen, standing)
        return {"text": comment, "standing_approval": standing}

    return await _decide(common, how, run, request, "approve", content)


@command(app)
async def edit(
    common: CommonOptions,
    how: Deciding,
    run: RunName,
    request: RequestId = None,
    args: Annotated[
        str | None, typer.Option("--args", help="All new arguments as JSON or YAML; default: $EDITOR.")
    ] = None,
    comment: Comment = "",
) -> int:
    """Change the arguments of a tool's call, then let it be called."""
    from client.cli.interactive import person_here
    from client.cli.typed import Draft, arguments_from

    if args is None and not person_here():
        raise NotConfirmed("nobody can be asked here, so nothing was decided; give the arguments with --args")

    async def content(seen: AnyRequest) -> dict[str, Any]:
        if args is not None:
            return {"text": comment, "arguments": arguments_from(args, "--args")}
        if seen.arguments is None:
            raise UsageError(f"the arguments of {seen.id} are not known here; give all new ones with --args")
        draft = Draft(seen.arguments)
        arguments = await draft.edit()
        if arguments is None:
            raise NotConfirmed("nothing was changed, so nothing was decided")
        return {"text": comment, "arguments": arguments, "draft": draft}

    return await _decide(common, how, run, request, "edit", content)


@command(app)
async def answer(
    common: CommonOptions,
    how: Deciding,
    run: RunName,
    words: Annotated[list[str], typer.Argument(metavar="[REQUEST] TEXT", help="The answer; - reads stdin.")],
) -> int:
    """Answer a question; of a call with an unknown outcome: what it returned."""
    if len(words) > 2:
        raise UsageError(f"expected one answer, got {len(words)} words; put it into quotes")
    *request, typed = words
    text = await _text(typed, "answer")

    async def content(seen: AnyRequest) -> dict[str, Any]:
        if not request and seen.id == text:
            raise UsageError(f"the answer to {text} is missing: `ratchet answer {run} {text} <text>`")
        return {"text": text}

    return await _decide(common, how, run, request[0] if request else None, "answer", content)


@command(app)
async def topup(
    common: CommonOptions,
    how: Deciding,
    run: RunName,
    words: Annotated[
        list[str], typer.Argument(metavar="[REQUEST] COUNTER=MORE...", help="Such as cost_usd=5 tokens=1000.")
    ],
    comment: Comment = "",
) -> int:
    """Give a run that has reached a limit more of it."""
    from client.cli.typed import amounts_from, check_counter

    request = words[0] if "=" not in words[0] else None
    amounts = amounts_from(words if request is None else words[1:])

    async def content(seen: AnyRequest) -> dict[str, Any]:
        check_counter(seen, amounts)
        return {"text": comment, "amounts": amounts}

    return await _decide(common, how, run, request, "topup", content)


def _plain_decision(verb: Verb, doc: str) -> None:
    """Register a decision that needs nothing but a comment."""

    async def decide(
        common: CommonOptions, how: Deciding, run: RunName, request: RequestId = None, comment: Comment = ""
    ) -> int:
        return await _decide(common, how, run, request, verb, _only(comment))

    decide.__doc__ = doc
    command(app, verb)(decide)


_plain_decision("reject", "Do not let a tool be called; the model is told so, and why.")
_plain_decision("retry", "Make a call again: the cause is fixed, or the call did not take effect.")
_plain_decision("finish", "Let a run that has reached a limit end as the limit would end it.")


@command(app)
async def resume(
    common: CommonOptions,
    how: Deciding,
    run: RunName,
    request: RequestId = None,
    pause: Annotated[
        bool, typer.Option("--pause", help="Take the pause back, whatever the run asks.")
    ] = False,
    comment: Comment = "",
) -> int:
    """Let a run go on: take a pause back, or answer what it asks. (`retry` makes a call again.)"""
    from client.cli.inbox import asked_by
    from client.people import command_from

    if pause and (request is not None or how.digest):
        raise UsageError("--pause is about the run, not about a request: leave REQUEST and --digest out")
    order = command_from("resume", comment)
    async with common.client() as client:
        run_id = await client.find(run, running=True)
        requests, page = await asked_by(client, run_id)
        if not pause and (request is not None or how.digest):
            return await _decide_one(client, how, run_id, requests, request, "resume", _only(comment))
        fits = [one for one in requests if "resume" in one.options]
        if not pause and fits and page and page.paused:
            raise UsageError(
                f"run {run_id} is paused, and asks something that `resume` answers; choose one: "
                f"`ratchet resume {run_id} --pause`, or `ratchet resume {run_id} {fits[0].id}`"
            )
        # without a worker nobody knows whether it is paused; what is open is not answered by chance
        means_pause = not fits and (page is None or page.paused or not requests)
        if pause or means_pause:
            return _command_done(how, run_id, await _send_command(client, how, run_id, order))
        return await _decide_one(client, how, run_id, requests, request, "resume", _only(comment))


# -- commands --------------------


@command(app)
async def pause(
    common: CommonOptions,
    how: Sending,
    run: RunName,
    at_once: Annotated[
        bool, typer.Option("--at-once", help="Do not wait for the current call: it is made again later.")
    ] = False,
    reason: Reason = "",
) -> int:
    """Begin nothing new until `ratchet resume`."""
    from client.people import command_from

    return await _command(common, how, run, command_from("pause", reason, at_once=at_once))


@command(app)
async def steer(
    common: CommonOptions,
    how: Sending,
    run: RunName,
    text: Annotated[str, typer.Argument(help="Message to the model; - reads stdin.")],
) -> int:
    """Send the model a message before its next call."""
    from client.people import command_from

    return await _command(common, how, run, command_from("steer", await _text(text, "message")))


@command(app)
async def limits(
    common: CommonOptions,
    how: Sending,
    run: RunName,
    words: Annotated[
        list[str], typer.Argument(metavar="COUNTER=CAP...", help="Such as model_calls=300 tokens=none.")
    ],
    reason: Reason = "",
) -> int:
    """Set limits of a run that is not over."""
    from client.cli.typed import caps_from
    from client.people import command_from

    return await _command(common, how, run, command_from("limits", reason, limits=caps_from(words)))


@command(app)
async def abort(
    common: CommonOptions,
    how: Deciding,
    run: RunName,
    request: Annotated[
        str | None,
        typer.Argument(
            help="End the run by deciding this request, such as r1: whoever may decide it may do so.",
            metavar="REQUEST",
        ),
    ] = None,
    reason: Reason = "",
) -> int:
    """End a run where it is; it gives a result, with the exit reason `aborted`."""
    from client.people import command_from

    if request is not None:
        return await _decide(common, how, run, request, "abort", _only(reason))
    if how.digest is not None:
        raise UsageError("--digest is of a request: name the request behind the run, such as r1")
    return await _command(common, how, run, command_from("abort", reason))


@command(app)
async def rollback(  # noqa: PLR0913, PLR0917  # one parameter for each option
    common: CommonOptions,
    how: Sending,
    run: RunName,
    step: Annotated[int, typer.Option("--step", min=0, help="The step to begin again; 0: the whole run.")],
    compensate: Annotated[
        bool, typer.Option("--compensate", help="Undo what can be undone of what was done since.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    reason: Reason = "",
) -> int:
    """Take a run back to the beginning of a step; shows first what was done since."""
    from client.cli.interactive import confirm
    from client.people import command_from

    order = command_from("rollback", reason, step=step, compensate=compensate)
    async with common.client() as client:
        run_id = await client.find(run, running=True)
        await _check_step(client, run_id, step)
        calls = await _effects(client, run_id, order)
        _print_effects(calls, order)
        undoing = ", and undo what can be undone of this" if compensate and calls else ""
        while not yes:
            await confirm(f"Roll {run_id} back to step {step}{undoing}?")
            now = await _effects(client, run_id, order)
            if now == calls:
                break
            calls = now
            _note("more was done meanwhile:")
            _print_effects(calls, order)
        done = await _send_command(client, how, run_id, order)
    return _command_done(how, run_id, done, effects=calls or ())


# -- keys --------------------


@command(app)
async def key(
    common: CommonOptions,
    action: Annotated[Literal["new", "show"], typer.Argument(help="Make one, or show its public half.")],
    file: Annotated[Path, typer.Argument(help="Of the private key.")],
    by: By = None,
) -> None:
    """Make a key that decisions are signed with; prints the line for the agent file."""
    from client.keys import new_key, public_key, signer, warning_if_exposed

    if action == "new":
        name, public = signer(by).name, new_key(file)
        _note(f"wrote {file}, which only you may read; sign with --key {file}, or RATCHET_KEY")
    else:
        who = signer(by, file)
        name, public = who.name, public_key(who.key) if who.key else ""
        if warning := warning_if_exposed(file):
            _note(warning)
    _note("for the agent file, under people.groups.GROUP.keys:")
    typer.echo(f"{json.dumps(name, ensure_ascii=False)}: {public}")


# -- deciding --------------------


async def _decide(
    common: CommonOptions, how: Deciding, run: str, request: str | None, verb: Verb, content: Content
) -> int:
    """Find the request that is meant, decide it, and show what became of it; the exit code."""
    from client.cli.inbox import asked_by

    how.seen()
    async with common.client() as client:
        run_id = await client.find(run, running=True)
        requests, _ = await asked_by(client, run_id)
        return await _decide_one(client, how, run_id, requests, request, verb, content)


async def _decide_one(  # noqa: PLR0913, PLR0917  # who decides what of which run
    client: AgentClient,
    how: Deciding,
    run_id: str,
    requests: Sequence[AnyRequest],
    name: str | None,
    verb: Verb,
    content: Content,
) -> int:
    from client.cli.render import after_decision, decision_text, out, plain, print_json, request_block
    from client.people import decision_from
    from workflows.people import Decided, Request

    seen = await _find_request(client, run_id, requests, name, verb)
    if not seen.digest.startswith(how.seen()):
        raise Refused(
            f"Request {seen.id} changed after you saw it (digest {seen.digest}, not {how.seen()[:64]}). "
            f"`ratchet inbox {run_id}` shows it; decide again"
        )
    fields = await content(seen)
    with fields.pop("draft", nullcontext()):
        decision = decision_from(seen, verb, **fields)
        # a summary means that no worker answered the query; an update would wait in vain as well
        signal = how.signal or (not isinstance(seen, Request) and await client.has_worker())
        sending = client.decide(run_id, decision, by=how.signer(), signal=signal)
        done = await _explained(client, run_id, sending)
    if how.as_json:
        print_json({"run": run_id, "request": seen, _kind(done): done})
        return 0
    if not how.digest:  # with a digest, they have seen it
        out().print(request_block(seen, run_id))
    out().print(decision_text(done, seen, decision))
    others = [one for one in requests if one.id != seen.id]
    paused = False
    with suppress(RatchetError):  # the run may be over by now
        paused = isinstance(done, Decided) and (await client.requests_page(run_id)).paused
    _note(plain(after_decision(done, run_id, others, paused=paused)))
    return 0


async def _find_request(
    client: AgentClient, run_id: str, requests: Sequence[AnyRequest], name: str | None, verb: Verb
) -> AnyRequest:
    """The request that is meant: by its id, `r1` or `1`, or the only one that the verb answers.

    Raises:
        UsageError: several are meant, or it is decided in another way; what is open is named.
        Refused: there is no such request, or it is closed.
    """
    if name is not None:
        if not name.strip():
            raise UsageError("the id of the request is empty; leave it out, or name one, such as r1")
        request_id = f"r{name}" if name.isdecimal() else name
        found = next((one for one in requests if one.id == request_id), None)
        found = found or await client.request(run_id, request_id)  # a closed one says what became of it
        _check_fits(found, verb, run_id)
        return found
    if not requests:
        raise Refused(
            f"run {run_id} asks nothing now; `ratchet show {run_id}` shows where it is, and "
            f"`ratchet watch {run_id}` follows it"
        )
    fits = [one for one in requests if verb in one.options]
    if not fits:
        raise UsageError(
            f"run {run_id} asks nothing that `{verb}` answers; it asks:\n{_lines(requests)}\n"
            f"`ratchet inbox {run_id}` shows the commands"
        )
    if len(fits) > 1:
        raise UsageError(
            f"run {run_id} asks several things; name one, such as `ratchet {verb} {run_id} {fits[0].id}`:\n"
            f"{_lines(fits)}"
        )
    return fits[0]


def _check_fits(request: AnyRequest, verb: Verb, run_id: str) -> None:
    """Raise Refused for a closed request, UsageError for one that is decided in another way."""
    from client.cli.render import request_line, time_span
    from workflows.people import Request

    if isinstance(request, Request) and not request.is_open:
        by = f" by {request.deciding_vote.by or 'somebody'}" if request.deciding_vote else ""
        ago = time_span(time.time() - (request.closed or 0))
        raise Refused(
            f"{request.id} of run {run_id} is closed: {request.outcome.replace('_', ' ')}{by}, {ago} ago; "
            f"`ratchet inbox {run_id}` shows what is open"
        )
    if request.options and verb not in request.options:
        raise UsageError(
            f"{request.id} of run {run_id} cannot be answered by `{verb}`; it is {request_line(request)}\n"
            f"  options: {', '.join(request.options)}; `ratchet inbox {run_id}` shows the commands"
        )


def _lines(requests: Sequence[AnyRequest]) -> str:
    from client.cli.render import request_line

    more = [f"  and {len(requests) - SHOWN} more"] if len(requests) > SHOWN else []
    return "\n".join([*(f"  {request_line(one)}" for one in requests[:SHOWN]), *more])


def _only(text: str) -> Content:
    """A decision with a comment alone."""

    async def content(_: AnyRequest) -> dict[str, Any]:
        return {"text": text}

    return content


def _standing_approval(same: bool, anything: bool, where: Sequence[str]) -> StandingApproval | None:
    """The approval of later calls that the options mean; None without any.

    Raises:
        UsageError: more than one kind is given, or one is not NAME=VALUE.
    """
    from client.yaml import parse
    from workflows.people import StandingApproval

    if sum((same, anything, bool(where))) > 1:
        raise UsageError("give one of --remember, --remember-any and --remember-where")
    if not (same or anything or where):
        return None
    schemas: dict[str, Any] = {}
    for word in where:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise UsageError(f"--remember-where {word}: expected NAME=VALUE, such as account=17")
        value, _ = parse(text, f"--remember-where {word[:80]}")
        schemas[name] = value if isinstance(value, Mapping) else {"const": value}
    return StandingApproval(arguments=schemas, same=same)


def _check_names(seen: AnyRequest, standing: StandingApproval) -> None:
    """Raise a UsageError for an argument that the call does not have: the approval would never count."""
    from client.yaml import nearest

    if seen.arguments is None:
        return
    wrong = next((name for name in standing.arguments if name not in seen.arguments), None)
    if wrong is not None:
        raise UsageError(
            f"--remember-where {wrong[:80]}: the call of {seen.tool} in {seen.id} has no such argument; "
            f"{nearest(wrong, seen.arguments)}"
        )


async def _text(typed: str, what: str) -> str:
    """A text from the command line, or from standard input when it is `-`."""
    text = await read_text(typed, what)
    if not text.strip():
        raise UsageError(f"the {what} is blank; write it in quotes, or - to read it from standard input")
    return text


# -- commanding --------------------


async def _command(common: CommonOptions, how: Sending, run: str, order: Command) -> int:
    async with common.client() as client:
        run_id = await client.find(run, running=True)
        done = await _send_command(client, how, run_id, order)
    return _command_done(how, run_id, done)


async def _send_command(
    client: AgentClient, how: Sending, run_id: str, order: Command
) -> CommandDone | SentSignal:
    sending = client.command(run_id, order, by=how.signer(), signal=how.signal)
    return await _explained(client, run_id, sending)


def _command_done(how: Sending, run_id: str, done: CommandDone | SentSignal, **more: Any) -> int:
    from client.cli.render import after_command, command_text, out, plain, print_json
    from workflows.people import CommandDone

    if how.as_json:
        print_json({"run": run_id, **more, _kind(done): done})
        return 0
    name = done.command if isinstance(done, CommandDone) else str(done.body.get("command", ""))
    who = how.signer().name or "somebody"
    out().print(plain(f"run {run_id}, {name} by {who}: {command_text(done)}"))
    _note(plain(after_command(done, run_id)))
    return 0


def _kind(done: Decided | CommandDone | SentSignal) -> str:
    from workflows.people import CommandDone, Decided

    return "decided" if isinstance(done, Decided) else "done" if isinstance(done, CommandDone) else "sent"


async def _explained(client: AgentClient, run_id: str, sending: Coroutine[Any, Any, R]) -> R:
    """The answer; when it takes long, say what the run does meanwhile. Ctrl-C takes no message back."""
    sent = asyncio.create_task(sending)
    explaining = asyncio.create_task(_explain(client, run_id))
    try:
        return await asyncio.shield(sent)
    except asyncio.CancelledError:
        if not sent.done() and explaining.done():
            _note("it was sent already, and takes effect afterwards")
        raise
    finally:
        for task in (explaining, sent):
            task.cancel()
        await asyncio.wait({explaining, sent})


async def _explain(client: AgentClient, run_id: str) -> None:
    await asyncio.sleep(QUICK_SECONDS)
    what = "a worker to take it"
    with suppress(RatchetError, TimeoutError):
        async with asyncio.timeout(STATUS_SECONDS):
            doing = (await client.status(run_id)).doing
        what = f"{doing}, which is under way" if doing else "the run to take it"
    _note(f"sent; waits for {what}")


# -- rollback --------------------


async def _check_step(client: AgentClient, run_id: str, step: int) -> None:
    """Raise a UsageError that names the steps when there is no such one. Where the log or the machine cannot
    be read here, the run itself refuses."""
    from client.history.checkpoints import source_of

    try:
        source = await source_of(client, run_id)
        source.checkpoints  # noqa: B018  # raises what the run would say better
    except RatchetError:
        return
    source.checkpoint(step)


async def _effects(client: AgentClient, run_id: str, order: Command) -> tuple[DoneCall, ...] | None:
    """Calls since the step that changed something outside; None: they are not known."""
    try:
        return await client.effects(run_id, order.step or 0)
    except NoWorker as error:
        _note(f"what was done since step {order.step} cannot be listed: {error}")
        return None


def _print_effects(calls: tuple[DoneCall, ...] | None, order: Command) -> None:
    from client.cli.render import effects_table, notes

    if calls is None:
        return
    if not calls:
        _note(f"nothing was changed outside since step {order.step} began")
        return
    kept = "" if order.compensate else "; a rollback does not undo it"
    _note(f"done since step {order.step} began{kept}:")
    notes().print(effects_table(calls))
    if not order.compensate and any(call.undoable and call.undone is None for call in calls):
        _note("--compensate undoes those that can be undone, the newest first")


def _note(text: str) -> None:
    from client.cli.render import notes, plain

    notes().print(plain(text))
