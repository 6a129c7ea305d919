"""A small machine whose model's replies say what it does next: it can do everything that a run can do.

tools pay 3; look x      tools in order, each with one argument
side look x; look y      the same side by side
ask TEXT                 a question to a person
confirm TEXT             a question whose answer is yes or no
child GOAL               an inner run of the same machine
children N GOAL          so many inner runs, side by side
apart pay 3; look x      the same as two effects, side by side
both TEXT                two questions beside the conversation and a tool, side by side
answer TEXT              the end
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from pydantic import BaseModel

from activities.contracts import (
    AskModel,
    AskPerson,
    CallTools,
    InnerLimits,
    Message,
    RunMachine,
    Together,
    ToolCall,
    do,
)
from workflows.kernel.context import Context
from workflows.kernel.errors import EffectError
from workflows.kernel.machine import Event, Exit, Machine, Run, RunInput, Visit, state


class S(Enum):
    """Where the machine is."""

    THINK = "think"
    WORK = "work"
    DONE = "done"


class Options(BaseModel, frozen=True):
    """None."""


class Notes(Context):
    """What the machine remembers."""

    todo: str = ""
    seen: tuple[str, ...] = ()
    answer: str = ""


class Planned(Event):
    """The model said what to do."""


class Worked(Event):
    """It was done."""


class Finished(Event):
    """The model gave the answer."""


@state(S.THINK, asks={AskModel}, reads={"seen"}, writes={"todo", "answer"}, counts="steps")
def think(c: Notes, run: Run) -> Visit:
    """Ask the model what to do."""
    words = c.seen[-1] if c.seen else run.input.goal
    reply = yield from do(AskModel(say=(Message(role="user", content=words),)))
    if reply.text.startswith("answer "):
        return {"answer": reply.text.removeprefix("answer ")}, Finished()
    return {"todo": reply.text}, Planned(reason=reply.text)


@state(
    S.WORK,
    asks={AskModel, AskPerson, CallTools, RunMachine},
    reads={"todo", "seen"},
    writes={"seen"},
)
def work(c: Notes, run: Run) -> Visit:
    """Do it."""
    word, _, rest = c.todo.partition(" ")
    try:
        answer: Any = yield _effect(word, rest)
    except EffectError as error:
        answer = error
    return {"seen": (*c.seen, _text(answer))}, Worked()


def _effect(word: str, rest: str) -> Any:
    match word:
        case "tools" | "side":
            return CallTools(calls=_runs(rest), parallel=word == "side")
        case "ask":
            return AskPerson(about="question", text=rest, options=("resume", "answer", "abort"))
        case "confirm":
            return AskPerson(about="question", text=rest, options=("approve", "reject"))
        case "child" | "short":
            limits = InnerLimits(max_transitions=1) if word == "short" else InnerLimits()
            return RunMachine(machine="any_effect", goal=rest, give=("look", "pay"), limits=limits)
        case "children":
            number, _, goal = rest.partition(" ")
            one = RunMachine(machine="any_effect", goal=goal, give=("look", "pay"))
            return Together(
                effects=tuple(one.model_copy(update={"label": f"child {n}"}) for n in range(int(number)))
            )
        case "apart":
            each = [CallTools(label=one.tool, calls=(one,)) for one in _runs(rest)]
            return Together(effects=tuple(each))
        case "both":
            beside = [
                AskModel(label=f"part {n}", say=(Message(role="user", content=f"{rest} {n}"),), beside=True)
                for n in (1, 2)
            ]
            return Together(effects=(*beside, CallTools(label="look", calls=_runs("look z"))))
    raise ValueError(f"the script says {word!r}")


def _runs(text: str) -> tuple[ToolCall, ...]:
    pairs = [part.split() for part in text.split(";")]
    return tuple(
        ToolCall(id=f"c{n}", tool=tool, arguments={"x": value}) for n, (tool, value) in enumerate(pairs)
    )


def _text(answer: Any) -> str:
    if isinstance(answer, EffectError):
        return f"failed {answer.type}: {answer.message}"
    match answer.kind:
        case "tools_returned":
            return " | ".join(f"{r.error or 'ok'} {r.output}" for r in answer.results)
        case "person_decided":
            return f"{answer.decision} {answer.text}".strip()
        case "machine_ended":
            return f"inner {answer.exit_reason} {answer.answer}"
        case "answers":
            return " & ".join(_text(one) for one in answer.answers)
        case "effect_failed":
            return f"failed {answer.type}"
    return str(answer.text)


def result(c: Notes, run: Run) -> Exit:
    """The answer."""
    return Exit(reason="answered", ok=bool(c.answer), answer=c.answer or None)


def begin(given: RunInput, options: Options) -> Notes:
    """With nothing but the goal."""
    return Notes()


def short(value: Any) -> bool:
    """A rule, for tests of the registry. It is here because a module that is registered stays so, and every
    run of the process imports it."""
    return True


RULES = {"short": short}
MACHINE = Machine(
    name="any_effect", options=Options, context=Notes, begin=begin, initial=S.THINK, step=S.THINK,
    table={S.THINK: {Planned: S.WORK, Finished: S.DONE}, S.WORK: {Worked: S.THINK}},
    states=(think, work), result=result,
)  # fmt: skip
