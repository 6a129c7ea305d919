"""A machine whose values depend on its process, in ways that Temporal's sandbox cannot see."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from datetime import datetime
from enum import Enum
from random import Random
from typing import Any

from pydantic import BaseModel

from ratchet import (
    AskModel,
    AskPerson,
    CallTools,
    Context,
    Event,
    Exit,
    Machine,
    Message,
    Run,
    RunInput,
    ToolCall,
    Visit,
    VisitEnd,
    do,
    state,
)

WORDS = "Shall we?"


class S(Enum):
    NOTE, PAY, DONE = "note", "pay", "done"


class Options(BaseModel, frozen=True, extra="forbid"):
    kind: str = "text"


class Paid(Context):
    line: str = ""


class Noted(Event):
    """There is something to pay."""


class Over(Event):
    """It is paid."""


def read_randomly() -> str:
    """By a module that no sandbox knows."""
    found = importlib.import_module("sqlite3").connect(":memory:")
    row = found.execute("select hex(randomblob(8))").fetchone()
    found.close()
    return str(row)


NAMES = {f"name {number}" for number in range(40)}
KINDS: dict[str, Callable[[Run], Any]] = {
    "text": lambda run: "always this",
    "local time": lambda run: datetime.fromtimestamp(run.now),  # noqa: DTZ006  # what it is about
    "time zone": lambda run: run.now_utc.astimezone(),
    "set": lambda run: " ".join(NAMES),
    "hash": lambda run: hash("a text"),
    "identity": id,
    "repr": lambda run: object(),
    "random": lambda run: Random().random(),
    "module": lambda run: importlib.import_module("uuid").uuid4(),
    "database": lambda run: read_randomly(),
    "folder": lambda run: os.stat(".").st_ino,
}


@state(S.NOTE, reads={"line"}, writes={"line"})
def note(c: Paid, run: Run) -> VisitEnd:
    """Keep it for later, if the goal says so."""
    line = str(KINDS[run.options.kind](run)) if run.input.goal == "keep" else c.line
    return {"line": line}, Noted()


@state(S.PAY, asks={AskModel, AskPerson, CallTools}, reads={"line"}, counts="paid")
def pay(c: Paid, run: Run) -> Visit:
    """Ask a model, and a person if the goal says so; then call the tool."""
    line = c.line or str(KINDS[run.options.kind](run))
    yield from do(AskModel(say=(Message(role="user", content=WORDS),)))
    if run.input.goal == "ask":
        yield from do(AskPerson(about="question", text=f"Pay {line}?", options=("approve", "reject")))
    is_silent = run.input.goal in ("tell", "refuse")
    call = ToolCall(id="c", tool="mark", arguments={"line": "nothing" if is_silent else line})
    yield from do(CallTools(calls=(call,)))
    return {}, Over(refused_by=(line,)) if run.input.goal == "refuse" else Over(line)


def begin(given: RunInput, options: Options) -> Paid:
    """Nothing is noted, unless the goal says so."""
    run = Run(options, None, given, S.NOTE, 0, 0, {})
    return Paid(line=str(KINDS[options.kind](run)) if given.goal == "begin" else "")


MACHINE = Machine(
    name="drifting",
    options=Options,
    context=Paid,
    begin=begin,
    initial=S.NOTE,
    table={S.NOTE: {Noted: S.PAY}, S.PAY: {Over: S.DONE}},
    states=[note, pay],
    result=lambda c, run: Exit(reason="paid", ok=True),
)
