"""Machines for trials: `holding` runs another one as its state, `halting` ends by raising, and
`breaking` asks the model and then breaks a rule."""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import Annotated, Any, Literal

from activities.contracts import (
    CallModel,
    CallModels,
    Frozen,
    InnerLimits,
    JsonObject,
    MachineEnded,
    Message,
    ModelReplied,
    ModelsReplied,
    Strict,
    Transcript,
)
from workflows.kernel.design import Brief, Design, Parts
from workflows.kernel.fields import MERGE, Patch
from workflows.kernel.machine import At, Exit, Machine, Row, State
from workflows.kernel.subgraph import Ended, Subgraph

__all__ = ["DESIGNS"]


class S(Enum):
    """The inner machine runs, and that is all."""

    HOLD = "hold"
    END = "end"


class Options(Strict):
    """What the inner machine is and gets."""

    machine: str = "react"
    options: JsonObject = {}
    tools: tuple[str, ...] = ()
    limits: InnerLimits = InnerLimits()
    mode: Literal["inline", "child"] = "inline"


class Held(Frozen):
    """What the outer machine remembers."""

    goal: str = ""
    answer: str = ""
    ok: bool = False
    metadata: Annotated[JsonObject, MERGE] = {}


def _merge(c: Any, ended: MachineEnded) -> Patch:
    said = ended.answer if ended.answer is not None else f"Error: {ended.error}"
    return {"answer": said, "ok": ended.ok, "metadata": {"inner": ended.exit_reason}}


def _build(name: str, raises: str | None, options: Options, parts: Parts) -> Machine[Held]:
    inner = Subgraph(
        machine=options.machine,
        goal=lambda c: c.goal,
        merge=_merge,
        options=options.options,
        tools=options.tools,
        limits=options.limits,
        mode=options.mode,
    )
    return Machine(
        name=name,
        context=Held,
        initial=S.HOLD,
        final={S.END},
        table=[Row(S.HOLD, Ended, S.END)],
        states={S.HOLD: inner.state(reads={"goal"}, writes={"answer", "ok", "metadata"}), S.END: State()},
        step_state=S.HOLD,
        result=lambda c, state: Exit(
            reason="done", ok=c.ok, answer=c.answer, error=None if c.ok else c.answer,
            outcome=c.metadata, raises=raises,
        ),
    )  # fmt: skip


def _begin(brief: Brief, options: Options) -> Held:
    return Held(goal=brief.goal)


def _ask(c: Any, at: At) -> CallModel:
    return CallModel(transcript=Transcript([Message(role="user", content=c.goal)]))


def _breaking(options: Strict, parts: Parts) -> Machine[Held]:
    states = {
        S.HOLD: State(
            enter=_ask, resume=lambda c, reply, at: ({"nosuch": 1}, Ended()), grants={"call_model"},
            reads={"goal"}, spends="calls",
        ),
        S.END: State(),
    }  # fmt: skip
    return Machine(
        name="breaking", context=Held, initial=S.HOLD, final={S.END}, table=[Row(S.HOLD, Ended, S.END)],
        states=states, step_state=S.HOLD, result=lambda c, state: Exit(reason="done"),
    )  # fmt: skip


class Asked(Frozen):
    """What was asked and answered side by side."""

    goal: str = ""
    answer: str = ""


def _ask_all(c: Any, at: At) -> CallModels:
    asked = [Transcript([Message(role="user", content=word)]) for word in c.goal.split()]
    return CallModels(calls=tuple(CallModel(transcript=one, attempts=1) for one in asked))


def _heard_all(c: Any, answer: ModelsReplied, at: At) -> Any:
    said = [one.text if isinstance(one, ModelReplied) else one.type for one in answer.replies]
    return {"answer": " ".join(said)}, Ended()


def _asking(options: Strict, parts: Parts) -> Machine[Asked]:
    asks = State(
        enter=_ask_all, resume=_heard_all, grants={"call_models"}, reads={"goal"}, writes={"answer"},
        spends="calls",
    )  # fmt: skip
    return Machine(
        name="asking", context=Asked, initial=S.HOLD, final={S.END}, table=[Row(S.HOLD, Ended, S.END)],
        states={S.HOLD: asks, S.END: State()}, step_state=S.HOLD,
        result=lambda c, state: Exit(reason="done", ok=True, answer=c.answer),
    )  # fmt: skip


_HOLDING = tuple(
    Design(
        name=name,
        description="Runs another machine as its state.",
        options=Options,
        build=partial(_build, name, raises),
        begin=_begin,
        exits={"done": "the inner machine has ended"},
    )
    for name, raises in (("holding", None), ("halting", "MaxIterationsExceeded"))
)
DESIGNS = (
    *_HOLDING,
    Design(
        name="breaking",
        description="Asks the model, then breaks a rule.",
        options=Strict,
        build=_breaking,
        begin=lambda brief, options: Held(goal=brief.goal),
    ),
    Design(
        name="asking",
        description="Asks for each word of its goal, side by side.",
        options=Strict,
        build=_asking,
        begin=lambda brief, options: Asked(goal=brief.goal),
    ),
)
