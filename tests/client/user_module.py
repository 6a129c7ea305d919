"""A user's module: a machine, a hook and a tool."""

from __future__ import annotations

from enum import Enum
from typing import Any

from pydantic import BaseModel, Field

from activities.contracts import AskModel, Strict
from activities.tools import Tool
from workflows.kernel.context import Context
from workflows.kernel.machine import Event, Exit, Extensions, Machine, Run, Visit, state


class S(Enum):
    """States."""

    ASK = "ask"
    DONE = "done"


class Answered(Event):
    """The model replied."""


class Inner(Strict):
    """A machine inside."""

    machine: str
    options: dict[str, int] = {}


class Options(Strict):
    """What the poet can be set to."""

    words: int = Field(default=5, ge=1, description="of the answer [4.2]")
    hook: str = ""
    inner: Inner | None = None


class Poem(Context):
    """What the poet remembers."""

    text: str = ""


@state(S.ASK, asks={AskModel}, reads={"text"}, writes={"text"}, counts="asks")
def ask(c: Poem, run: Run) -> Visit:
    """Ask for the poem."""
    reply = yield AskModel(label="ask")
    return {"text": reply.text}, Answered()


def prepare(options: Options, extensions: Extensions) -> None:
    """Refuse a hook that is not loaded."""
    if options.hook and options.hook not in extensions.hooks:
        raise ValueError(f"unknown hook {options.hook}")


def result(c: Any, run: Run) -> Exit:
    """The poem."""
    return Exit(reason="done", ok=True, answer=c.text)


MACHINE = Machine(
    name="poet",
    options=Options,
    context=Poem,
    begin=lambda given, options: Poem(),
    initial=S.ASK,
    table={S.ASK: {Answered: S.DONE}},
    states=[ask],
    step=S.ASK,
    result=result,
    prepare=prepare,
    plain_replies=False,
)
HOOKS = {"rhyme": len}


class Params(BaseModel, frozen=True, extra="forbid"):
    """Find a rhyme."""

    word: str


TOOL = Tool(name="find_rhyme", params=Params, run=lambda params: params.word, effect="pure")
