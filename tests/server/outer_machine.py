"""A user's machine that runs other machines: one after the other, or side by side.

Its name is in the recorded histories.
"""

from __future__ import annotations

from enum import Enum

from pydantic import BaseModel

from ratchet import (
    Context,
    EffectError,
    Event,
    Exit,
    Machine,
    Run,
    RunInput,
    RunMachine,
    Together,
    Visit,
    do,
    state,
)


class S(Enum):
    """Where it is."""

    RUN, DONE = "run", "done"


class Options(BaseModel, frozen=True):
    """Which machines, as fields of `RunMachine`."""

    inner: tuple[RunMachine, ...]
    together: bool = False


class Ran(Event):
    """All have ended."""


class Answers(Context):
    """What each came to."""

    said: tuple[str, ...] = ()


@state(S.RUN, asks={RunMachine}, writes={"said"}, counts="runs")
def run_them(c: Answers, run: Run) -> Visit:
    """Run all of them; a failure is an answer, too."""
    inner = [one.model_copy(update={"label": f"inner {n}"}) for n, one in enumerate(run.options.inner)]
    if run.options.together:
        answers = yield from do(Together(effects=tuple(inner)))
        return {"said": tuple(said(one) for one in answers.answers)}, Ran()
    found: list[str] = []
    for one in inner:
        try:
            found.append(said((yield from do(one))))
        except EffectError as error:
            found.append(f"failed: {error.type}")
    return {"said": tuple(found)}, Ran()


def said(answer: object) -> str:
    """An answer in a few words."""
    exit_reason = getattr(answer, "exit_reason", None)
    if exit_reason is None:
        return f"failed: {getattr(answer, 'type', answer)}"
    return f"{exit_reason}: {getattr(answer, 'answer', None)}"


def result(c: Answers, run: Run) -> Exit:
    """All answers, one per line."""
    return Exit(reason="ran", ok=True, answer="\n".join(c.said))


def begin(given: RunInput, options: Options) -> Answers:
    """With nothing."""
    return Answers()


MACHINE = Machine(
    name="nester", options=Options, context=Answers, begin=begin, initial=S.RUN, step=S.RUN,
    table={S.RUN: {Ran: S.DONE}}, states=(run_them,), result=result,
    roles=("default", "other"),
)  # fmt: skip
