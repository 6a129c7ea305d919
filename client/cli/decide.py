"""Commands with which people decide what runs ask, and steer runs.

Exit codes: 0 done, or sent while no worker runs; 1 there is no such run, or the server does not answer;
2 wrong usage; 3 the run refuses: it is over, has no such request, has closed it, or gives another reason;
4 nobody confirmed, so nothing was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from client.agents.yaml import nearest, parse
from client.cli import render, render_requests
from client.cli.app import COMMANDS
from client.cli.edited_arguments import Draft, arguments_from
from client.cli.inbox import open_requests
from client.cli.interactive import confirm, person_here
from client.cli.options import By, CommonOptions, Json, RunName, command
from client.cli.output import note, print_json
from client.cli.standard_input import read_text
from client.errors import NotConfirmed, RatchetError, Refused, UsageError
from client.history.checkpoints import source_of
from client.keys import Signer, signer
from client.runs.amounts import amounts_from, caps_from, check_counter
from client.runs.requests import AnyRequest, command_text, decision_text
from client.runs.steps import reply_before_text
from client.runs.words import plain, request_line
from client.sdk.agent import AgentClient
from client.sdk.people import command_from, decision_from
from client.sdk.sending import SentSignal
from workflows.kernel.canonical import canonical
from workflows.people import Command, CommandDone, Decided, Request, StandingApproval, Verb

if TYPE_CHECKING:
    from client.history.fork import PastEffects

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None)
MAX_NAMED_REQUESTS = 10
"""Requests that a message names."""
UNCHANGED = "nothing was changed, so nothing was decided"
DIGEST_CHARACTERS = 6
"""Fewer might fit another request by chance."""
QUICK_SECONDS, STATUS_SECONDS = 1.0, 3.0
"""An answer that takes longer is explained; how long the run may take to say what it does."""
R = TypeVar("R")
Content = Callable[[AnyRequest], Awaitable[dict[str, Any]]]
"""Fields of a decision besides request and verb; `draft` is a context around sending it."""
RequestId = Annotated[
    str | None,
    typer.Argument(help="Id of the request, such as r1; default: the only one.", metavar="REQUEST"),
]
Comment = Annotated[str, typer.Option("--comment", "-m", help="For the log; the model may see it.")]
Reason = Annotated[str, typer.Option("--reason", "--comment", "-m", help="For the log.")]


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
        return signer(self.by, self.key)

    def show(self, run: str, done: Decided | CommandDone | SentSignal, text: str, **facts: Any) -> None:
        """Print what a message did: as text, or with all facts as JSON."""
        if self.as_json:
            kinds = {Decided: "decided", CommandDone: "done", SentSignal: "sent"}
            print_json({"run": run, **facts, kinds[type(done)]: done})
        else:
            render.out().print(plain(text))


@dataclass(frozen=True)
class Deciding(Sending):
    """The same for a decision, which can be bound to what was seen."""

    digest: Annotated[
        str | None,
        typer.Option("--digest", help="Beginning of the digest that you saw; another request is refused."),
    ] = None

    def check(self) -> None:
        """Raise a UsageError for a digest that is too short."""
        if self.digest is not None and len(self.digest.strip()) < DIGEST_CHARACTERS:
            raise UsageError(
                f"--digest {self.digest!r}: at least {DIGEST_CHARACTERS} characters are needed; "
                "`ratchet inbox` shows them"
            )

    def check_fits(self, request: AnyRequest, run: str) -> None:
        """Raise Refused when the request is not what was seen."""
        if not request.digest.startswith((self.digest or "").strip()):
            raise Refused(
                f"{request.id} has the digest {request.digest}, and --digest is {(self.digest or '')[:64]}: "
                f"it is mistyped, or the request changed after you saw it. `ratchet inbox {run}` shows the "
                "request; decide again"
            )


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
    """Let a tool be called, or say yes to what a machine asks."""
    standing = _standing_approval(remember, remember_any, remember_where or ())

    async def content(seen: AnyRequest) -> dict[str, Any]:
        known = seen.arguments or {}
        wrong = next((name for name in (standing.arguments if standing else ()) if name not in known), None)
        if wrong is not None and seen.arguments is not None:  # such an approval would never count
            raise UsageError(
                f"--remember-where {wrong[:80]}: the call of {seen.tool} in {seen.id} has no such argument; "
                f"{nearest(wrong, known)}"
            )
        return {"text": comment, "standing_approval": standing}

    return await _decide(common, how, run, request, "approve", content)


def _standing_approval(same: bool, anything: bool, where: Sequence[str]) -> StandingApproval | None:
    """The approval of later calls that the options mean; None without any.

    Raises:
        UsageError: more than one kind is given, or one is not NAME=VALUE.
    """
    if sum((same, anything, bool(where))) > 1:
        raise UsageError("give one of --remember, --remember-any and --remember-where")
    schemas: dict[str, Any] = {}
    for word in where:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise UsageError(f"--remember-where {word}: expected NAME=VALUE, such as account=17")
        value, _ = parse(text, f"--remember-where {word[:80]}")
        schemas[name] = value if isinstance(value, Mapping) else {"const": value}
    return StandingApproval(arguments=schemas, same=same) if same or anything or where else None


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
    if args is None and not person_here():
        raise NotConfirmed("nobody can be asked here, so nothing was decided; give the arguments with --args")

    async def content(seen: AnyRequest) -> dict[str, Any]:
        if args is not None:
            return {"text": comment, "arguments": arguments_from(args, "--args")}
        if seen.arguments is None:
            raise UsageError(f"the arguments of {seen.id} are not known here; give all new ones with --args")
        draft = Draft(seen.arguments)
        edited = draft.edit()
        if edited is None:
            raise NotConfirmed(UNCHANGED)
        return {"text": comment, "arguments": edited, "draft": draft.sending()}

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
    request = words[0] if "=" not in words[0] else None
    amounts = amounts_from(words if request is None else words[1:])

    async def content(seen: AnyRequest) -> dict[str, Any]:
        check_counter(seen, amounts)
        return {"text": comment, "amounts": amounts}

    return await _decide(common, how, run, request, "topup", content)


def _with_comment(verb: Verb) -> None:
    """Register a decision that takes nothing but a comment."""

    async def work(
        common: CommonOptions, how: Deciding, run: RunName, request: RequestId = None, comment: Comment = ""
    ) -> int:
        return await _decide(common, how, run, request, verb, _only(comment))

    work.__doc__ = COMMANDS[verb][1]
    command(app, verb)(work)


_with_comment("reject")
_with_comment("retry")
_with_comment("finish")


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
    """Let a run continue: take a pause back, or answer what it asks. (`retry` makes a call again.)"""
    names_request = request is not None or how.digest is not None
    if pause and names_request:
        raise UsageError("--pause is about the run, not about a request: leave REQUEST and --digest out")
    async with common.client() as client:
        run_id = await client.find(run, running=True)
        requests, page = await open_requests(client, run_id)
        fits = [one for one in requests if "resume" in one.options]
        if fits and page and page.paused and not (pause or names_request):
            raise UsageError(
                f"run {run_id} is paused, and asks something that `resume` answers; choose one: "
                f"`ratchet resume {run_id} --pause`, or `ratchet resume {run_id} {fits[0].id}`"
            )
        # without a worker nobody knows whether it is paused; no request is answered by chance
        means_pause = not fits and not names_request and (page is None or page.paused or not requests)
        if pause or means_pause:
            return await _command_one(client, how, run_id, command_from("resume", comment))
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
    return await _command(common, how, run, command_from("pause", reason, at_once=at_once))


@command(app)
async def steer(
    common: CommonOptions,
    how: Sending,
    run: RunName,
    text: Annotated[str, typer.Argument(help="Message to the model; - reads stdin.")],
) -> int:
    """Send the model a message before its next call."""
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
    if request is not None:
        return await _decide(common, how, run, request, "abort", _only(reason))
    if how.digest is not None:
        raise UsageError("--digest is of a request: name the request after the run, such as r1")
    return await _command(common, how, run, command_from("abort", reason))


@command(app)
async def rollback(  # noqa: PLR0913, PLR0917  # one parameter for each option
    common: CommonOptions,
    how: Sending,
    run: RunName,
    step: Annotated[
        int,
        typer.Option(
            "--step", min=0, help="The step to begin again; 0: the whole run. `ratchet steps RUN` lists them."
        ),
    ],
    compensate: Annotated[
        bool, typer.Option("--compensate", help="Undo what can be undone of what was done since.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    reason: Reason = "",
) -> int:
    """Take a run back to the beginning of a step; shows first what was done since."""
    order = command_from("rollback", reason, step=step, compensate=compensate)
    async with common.client() as client:
        run_id = await client.find(run, running=True)
        behind = await _check_step(client, run_id, step)
        effects = await client.effects_to_repeat(run_id, step)
        _print_effects(effects, order)
        if behind:
            note(behind)
        while not yes:
            await confirm(f"Roll {run_id} back to step {step}{', and undo what can be undone' * compensate}?")
            confirmed, effects = effects, await client.effects_to_repeat(run_id, step)
            if effects == confirmed:
                break
            note("more was done meanwhile:")
            _print_effects(effects, order)
        return await _command_one(client, how, run_id, order, effects=effects.calls)


async def _check_step(client: AgentClient, run_id: str, step: int) -> str:
    """What comes before the model is asked, if something does. Raises a UsageError that names the steps when
    there is no such one.

    Where the log or the machine cannot be read here, the run itself refuses.
    """
    try:
        source = await source_of(client, run_id)
        source.checkpoint(step)
    except UsageError:
        raise
    except RatchetError:
        return ""
    return reply_before_text(source.records, step)


def _print_effects(effects: PastEffects, order: Command) -> None:
    calls, since = effects.calls, f"step {order.step}"
    if effects.unknown:
        note(f"what was changed outside since {since} is not known: {effects.unknown}")
    if calls or not effects.unknown:
        render_requests.note_effects(
            calls, since, "" if order.compensate else "; a rollback does not undo it"
        )
    undoable = any(call.undoable and call.undone is None and not call.run for call in calls)
    if undoable and not order.compensate:
        note("--compensate undoes those that can be undone, the newest first")


# -- sending --------------------


def _only(text: str) -> Content:
    """A decision with a comment alone."""

    async def content(_: AnyRequest) -> dict[str, Any]:
        return {"text": text}

    return content


async def _text(typed: str, what: str) -> str:
    """A text from the command line, or from standard input when it is `-`."""
    text = await read_text(typed, what)
    if not text.strip():
        raise UsageError(f"the {what} is blank; write it in quotes, or - to read it from standard input")
    return text


async def _decide(
    common: CommonOptions, how: Deciding, run: str, request: str | None, verb: Verb, content: Content
) -> int:
    """Find the request that is meant, decide it, and show what became of it; the exit code."""
    how.check()
    async with common.client() as client:
        run_id = await client.find(run, running=True)
        requests, _ = await open_requests(client, run_id)
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
    seen = await _request_meant(client, run_id, requests, name, verb)
    how.check_fits(seen, run_id)
    if verb == "approve" and not how.digest and render_requests.is_cut(seen):
        raise NotConfirmed(
            f"{seen.id} is too long to be shown here in full, so nothing was decided; read it with "
            f"`ratchet inbox {run_id}`, and approve it with the --digest that stands there"
        )
    fields = await content(seen)
    with fields.pop("draft", nullcontext()):
        if fields.get("arguments") is not None and seen.tool is not None:  # what is shown is what is sent
            fields["arguments"] = await client.fitted_arguments(run_id, seen.tool, fields["arguments"])
            if seen.arguments is not None and canonical(fields["arguments"]) == canonical(seen.arguments):
                raise NotConfirmed(f"{UNCHANGED}; `ratchet approve` lets the call be made as it is")
        decision = decision_from(seen, verb, **fields)
        # a summary means that no worker answered the query; an update would wait in vain as well
        signal = how.signal or (not isinstance(seen, Request) and await client.has_worker(run_id))
        done = await _await_answer(
            client, run_id, client.decide(run_id, decision, by=how.signer(), signal=signal)
        )
    if not how.as_json and not how.digest:  # with a digest, they have seen it
        render.out().print(render_requests.request_block(seen, run_id))
    how.show(run_id, done, decision_text(done, seen, decision), request=seen)
    if not how.as_json:
        paused = False
        with suppress(RatchetError):  # the run may be over by now
            paused = isinstance(done, Decided) and (await client.requests_page(run_id)).paused
        others = [one for one in requests if one.id != seen.id]
        note(render_requests.next_step(done, run_id, others, paused=paused))
    return 0


async def _request_meant(
    client: AgentClient, run_id: str, requests: Sequence[AnyRequest], name: str | None, verb: Verb
) -> AnyRequest:
    """The request that is meant: by its id, `r1` or `1`, or the only one that the verb answers.

    A closed one is given too: the run says what became of it.

    Raises:
        UsageError: several are meant, or it is decided in another way; what is open is named.
        Refused: there is no such request.
    """
    if name is not None and not name.strip():
        raise UsageError("the id of the request is empty; leave it out, or name one, such as r1")
    if name is None and not requests:
        raise Refused(f"run {run_id} asks nothing now; `ratchet show {run_id}` shows where it is")
    named = requests
    if name is not None:
        request_id = f"r{name}" if name.isdecimal() else name
        named = [one for one in requests if one.id == request_id] or [
            await client.request(run_id, request_id)
        ]
    fits = [one for one in named if verb in one.options or not one.options]
    if len(fits) == 1:
        return fits[0]
    problem = (
        f"asks several things that `{verb}` answers; name one"
        if fits
        else f"asks nothing that `{verb}` answers"
    )
    lines = "\n".join(
        f"  {request_line(one)}   ({', '.join(one.options)})" for one in (fits or named)[:MAX_NAMED_REQUESTS]
    )
    raise UsageError(f"run {run_id} {problem}:\n{lines}\n`ratchet inbox {run_id}` shows the commands")


async def _command(common: CommonOptions, how: Sending, run: str, order: Command) -> int:
    async with common.client() as client:
        return await _command_one(client, how, await client.find(run, running=True), order)


async def _command_one(client: AgentClient, how: Sending, run_id: str, order: Command, **facts: Any) -> int:
    who = how.signer()
    done = await _await_answer(client, run_id, client.command(run_id, order, by=who, signal=how.signal))
    text = f"run {run_id}, {order.command} by {who.name or 'somebody'}: {command_text(done)}"
    how.show(run_id, done, text, **facts)
    if not how.as_json:
        note(render_requests.next_step(done, run_id))
    return 0


async def _await_answer(client: AgentClient, run_id: str, sending: Coroutine[Any, Any, R]) -> R:
    """The answer; when it takes long, say what the run does meanwhile. Ctrl-C takes no message back."""
    sent = asyncio.create_task(sending)
    try:
        done, _ = await asyncio.wait({sent}, timeout=QUICK_SECONDS)
        if not done:
            await _explain(client, run_id)
        return await asyncio.shield(sent)
    except asyncio.CancelledError:
        if not sent.done():
            note("it may have been sent already, and then takes effect")
        raise
    finally:
        sent.cancel()
        await asyncio.wait({sent})


async def _explain(client: AgentClient, run_id: str) -> None:
    what = "it waits for a worker to take it"
    with suppress(RatchetError, TimeoutError):
        async with asyncio.timeout(STATUS_SECONDS):
            status = await client.status(run_id)
        is_busy = status.doing_since is not None
        what = f"it waits, as this is under way: {status.doing}" if is_busy else "the run takes it soon"
    note(plain(f"sent; {what}"))
