"""A small machine whose step begins with a call of its own: it looks at a part, asks a model, takes it."""

from __future__ import annotations

from enum import Enum

from pydantic import BaseModel

from activities.contracts import AskModel, CallTools, Message, ToolCall, do
from workflows.kernel.context import Context
from workflows.kernel.machine import Event, Exit, Machine, Run, RunInput, Visit, state


class S(Enum):
    """Where the machine is."""

    LOOK = "look"
    THINK = "think"
    TAKE = "take"
    DONE = "done"


class Options(BaseModel, frozen=True):
    """None."""


class Parts(Context):
    """What is left to do."""

    left: tuple[str, ...] = ("a", "b")
    seen: str = ""


class Looked(Event):
    """A part was looked at."""


class Planned(Event):
    """The model said what it thinks."""


class Taken(Event):
    """The part was taken, and there is another one."""


class Finished(Event):
    """The last part was taken."""


def _call(tool: str, part: str) -> CallTools:
    return CallTools(calls=(ToolCall(id=f"{tool}-{part}", tool=tool, arguments={"x": part}),))


@state(S.LOOK, asks={CallTools}, reads={"left"}, writes={"seen"}, counts="looks")
def look(c: Parts, run: Run) -> Visit:
    """Look at the next part."""
    found = yield from do(_call("look", c.left[0]))
    return {"seen": str(found.results[0].output)}, Looked()


@state(S.THINK, asks={AskModel}, reads={"seen"})
def think(c: Parts, run: Run) -> Visit:
    """Ask the model."""
    yield from do(AskModel(say=(Message(role="user", content=c.seen),)))
    return {}, Planned()


@state(S.TAKE, asks={CallTools}, reads={"left"}, writes={"left"})
def take(c: Parts, run: Run) -> Visit:
    """Take the part."""
    yield from do(_call("take", c.left[0]))
    return {"left": c.left[1:]}, Taken() if c.left[1:] else Finished()


def result(c: Parts, run: Run) -> Exit:
    """The answer."""
    return Exit(reason="answered", ok=True, answer="seen")


def begin(given: RunInput, options: Options) -> Parts:
    """With two parts."""
    return Parts()


MACHINE = Machine(
    name="look_first", options=Options, context=Parts, begin=begin, initial=S.LOOK, step=S.LOOK,
    table={S.LOOK: {Looked: S.THINK}, S.THINK: {Planned: S.TAKE}, S.TAKE: {Taken: S.LOOK, Finished: S.DONE}},
    states=(look, think, take), result=result,
)  # fmt: skip
