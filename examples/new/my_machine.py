"""The machine `my_machine`: write, check, done. `ratchet docs own-machine` says what else one can be told."""

from enum import Enum

from pydantic import BaseModel, Field

from ratchet import AskModel, Context, Event, Exit, Machine, Message, Run, Visit, VisitEnd, do, state
from ratchet.verify import Scenario, asks_model, at_most


class S(Enum):
    WRITE, CHECK, DONE = "write", "check", "done"


class Written(Event): ...


class Fits(Event): ...


class Unfit(Event): ...


class GaveUp(Event): ...


class Options(BaseModel, frozen=True, extra="forbid"):
    words: int = Field(default=20, ge=1, description="the most words of the answer")
    drafts: int = Field(default=3, ge=1, description="the most answers that are asked for")


class Memory(Context):
    goal: str
    draft: str = ""
    problem: str = ""


@state(S.WRITE, asks={AskModel}, reads={"goal", "problem"}, writes={"draft"}, counts="drafts")
def write(c: Memory, run: Run) -> Visit:
    text = c.problem or f"In at most {run.options.words} words: {c.goal}"
    reply = yield from do(AskModel(say=(Message(role="user", content=text),)))
    return {"draft": reply.text}, Written()


@state(S.CHECK, reads={"draft"}, writes={"problem"})
def check(c: Memory, run: Run) -> VisitEnd:
    words, most = len(c.draft.split()), run.options.words
    if 0 < words <= most:
        return {"problem": ""}, Fits(f"{words} words")
    problem = f"{words} words: write 1 to {most}."
    if run.counts["drafts"] >= run.options.drafts:
        return {"problem": problem}, GaveUp(problem)
    return {"problem": problem}, Unfit(f"{words} words")


MACHINE = Machine(
    name="my_machine",
    description="Answer in few words; code counts them.",
    options=Options,
    context=Memory,
    begin=lambda given, options: Memory(goal=given.goal),
    initial=S.WRITE,
    table={S.WRITE: {Written: S.CHECK}, S.CHECK: {Fits: S.DONE, Unfit: S.WRITE, GaveUp: S.DONE}},
    states=[write, check],
    step=S.WRITE,
    result=lambda c, run: Exit(reason="unfit" if c.problem else "fits", ok=not c.problem, answer=c.draft),
    exits={"fits": "the answer fits", "unfit": "no answer did: the last one is the answer"},
    properties=[at_most("two questions, with `drafts: 2`", 2, asks_model)],
    scenarios=[Scenario(options={"words": 2, "drafts": 2}, replies=["too many words", "few"])],
)
