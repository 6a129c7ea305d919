"""The moments of a run, as properties see them: in the order in which the kernel made them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from activities.contracts import Effect
from workflows.kernel.context import Context
from workflows.kernel.errors import author_line_of, error_text
from workflows.kernel.machine import COMMON_EXITS
from workflows.kernel.properties import Moment, Property
from workflows.kernel.snapshot import Snapshot, Suspension

__all__ = [
    "BUILT_IN",
    "ENDS",
    "PropertyBug",
    "Exchange",
    "bug_of",
    "exit_problem",
    "moment_text",
    "moments_of",
]


ENDS = "every run ends by itself"
BUILT_IN = {
    ENDS: "every run ends before it reaches `max_transitions`",
    "declared exits": "each exit reason is one of `exits`",
    "no exception": "no function of the machine raises anything but an `AgentError`",
    "NoTransition": "each event has a row in its state",
    "UndeclaredAccess": "a state reads, writes and asks for what it declares",
    "InvariantViolated": "the invariants hold",
    "BadPatch": "what is written fits its field",
    "EmptyVisit": "each visit returns a patch and an event",
    "LimitExceeded": "no counter passes its cap",
    "Drifted": "a visit that runs again asks for effects of the same kind and label",
}
"""What every machine must keep -> in words."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """An effect that a run wanted, and the answer that it was given."""

    state: str
    effect: Effect[Any]
    text: str
    """The answer in words."""
    answer: Any


class PropertyBug(Exception):
    """A property's own function raised; the text names it, with file and line."""


Seen = Callable[[Context, str], Any]
"""(context, state) -> the context as a predicate is given it."""


def moments_of(
    before: tuple[Suspension, Exchange] | None,
    after: Suspension,
    entered: Sequence[Snapshot],
    seen: Seen = lambda context, state: context,
) -> Iterator[Moment]:
    """What happened between two suspensions; `before` is None for the beginning of a run, and `entered` has
    the snapshots with which states were entered on the way."""
    options = after.program.options
    if before is not None:
        suspension, exchange = before
        context = seen(suspension.snapshot.context, exchange.state)
        yield Moment(
            "answered",
            exchange.state,
            context,
            effect=exchange.effect,
            answer=exchange.answer,
            options=options,
        )
    snapshots = iter(entered)
    for record in after.records:
        if record.to is None:
            continue
        snapshot = next(snapshots, after.snapshot)
        if record.seq > 0:  # the first record is the beginning, and no row of the table
            context = seen(snapshot.context, record.to)
            yield Moment("moved", record.state, context, event=record.event, to=record.to, options=options)
    state = after.snapshot.state
    context = seen(after.snapshot.context, state)
    if after.exit is not None:
        yield Moment("ended", state, context, exit=after.exit, options=options)
    elif after.effect is not None:
        yield Moment("asked", state, context, effect=after.effect, options=options)


def moment_text(moment: Moment) -> str:
    """A moment in words for people."""
    match moment.kind:
        case "asked":
            return f"state {moment.state} asks: {moment.effect.title if moment.effect else ''}"
        case "moved":
            return f"the event {moment.event} leads from {moment.state} to {moment.to}"
        case "ended":
            why = f": {moment.exit.error}" if moment.exit.error else ""
            return f"the run ends as {moment.exit.reason}{why}"
    return f"state {moment.state} gets this answer"


def exit_problem(after: Suspension) -> tuple[str, str]:
    """Which built-in property this end breaks, and how; empty: none."""
    if after.exit is None:
        return "", ""
    reason = after.exit.reason
    if reason == "max_transitions":
        return ENDS, "`max_transitions` has ended it"
    if reason not in {*after.program.machine.exits, *COMMON_EXITS}:
        return "declared exits", f"the exit reason {reason!r} is not in `exits`"
    return "", ""


def bug_of(one: Property, moment: Moment, error: Exception) -> str:
    """What is wrong with a property, for its author."""
    author_line = author_line_of(error, None, None)
    return (
        f"the property {one.name!r} raised {error_text(error)}{f' ({author_line})' if author_line else ''}; "
        f"the moment: {moment.kind} in {moment.state}"
    )
