"""Commands with which people order runs about: pause, abort, steer, rollback, limits. Exit codes as in
`client/cli_people.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import typer

from client.cli_people import Deciding, Reason, Run, Speaking, text_of
from client.errors import UsageError
from client.place import Place

__all__ = ["COMMANDS"]


async def pause(  # one parameter for each option of the command line
    place: Place,
    *,
    run: Run,
    at_once: Annotated[
        bool, typer.Option("--at-once", help="Do not wait for the current call: it is made again later.")
    ] = False,
    reason: Reason = "",
    how: Speaking,
) -> int:
    """Let a run stand still until `ratchet resume`."""
    from client.people import spoken
    from workflows.people import Command

    order = spoken(Command, command="pause", text=reason, at_once=at_once)
    return await how.talk(place, run).command(order)


async def abort(  # one parameter for each option of the command line
    place: Place,
    *,
    run: Run,
    request: Annotated[
        str | None,
        typer.Argument(
            help="End it by deciding this request, such as r1: whoever may decide it may do so.",
            metavar="REQUEST",
        ),
    ] = None,
    reason: Reason = "",
    how: Deciding,
) -> int:
    """End a run where it is; it gives a result, with the exit reason `aborted`."""
    from client.people import spoken
    from client.talk import said
    from workflows.people import Command

    talk = how.talk(place, run)
    if request is not None:
        return await talk.decide(request, "abort", said(reason))
    if how.digest is not None:
        raise UsageError("--digest is that of a request: name the request behind the run, such as r1")
    return await talk.command(spoken(Command, command="abort", text=reason))


async def steer(  # one parameter for each option of the command line
    place: Place,
    *,
    run: Run,
    text: Annotated[str, typer.Argument(help="What to say to the model; - reads stdin.")],
    how: Speaking,
) -> int:
    """Say something to the model before its next call."""
    from client.people import spoken
    from workflows.people import Command

    order = spoken(Command, command="steer", text=await text_of(text, "the message"))
    return await how.talk(place, run).command(order)


async def rollback(  # noqa: PLR0913  # one parameter for each option of the command line
    place: Place,
    *,
    run: Run,
    step: Annotated[int, typer.Option("--step", min=0, help="The step to begin again; 0: the whole run.")],
    compensate: Annotated[
        bool, typer.Option("--compensate", help="Undo what can be undone of what was done since.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    reason: Reason = "",
    how: Speaking,
) -> int:
    """Take a run back to the beginning of a step; shows first what was done since."""
    from client.people import spoken
    from workflows.people import Command

    order = spoken(Command, command="rollback", step=step, compensate=compensate, text=reason)
    return await how.talk(place, run).rollback(order, yes=yes)


async def limits(  # one parameter for each option of the command line
    place: Place,
    *,
    run: Run,
    words: Annotated[
        list[str], typer.Argument(metavar="COUNTER=CAP...", help="Such as model_calls=300 tokens=none.")
    ],
    reason: Reason = "",
    how: Speaking,
) -> int:
    """Set limits of a run that goes on."""
    from client.amounts import caps_of
    from client.people import spoken
    from workflows.people import Command

    order = spoken(Command, command="limits", limits=caps_of(words), text=reason)
    return await how.talk(place, run).command(order)


COMMANDS: dict[str, Callable[..., Coroutine[Any, Any, int | None]]] = {
    "pause": pause,
    "abort": abort,
    "steer": steer,
    "rollback": rollback,
    "limits": limits,
}
