"""A machine of five states with a money bug: a large sum is approved once, and then paid again and again."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from pydantic import BaseModel, Field

from ratchet import (
    AgentError,
    AskModel,
    AskPerson,
    CallTools,
    Context,
    EffectError,
    Event,
    Exit,
    Machine,
    Message,
    Run,
    ToolCall,
    Visit,
    VisitEnd,
    do,
    state,
)
from ratchet.verify import at_most, before, calls, decides, event, last


class S(Enum):
    READ, ASK, PAY, CHECK, DONE = "read", "ask", "pay", "check", "done"


class Small(Event): ...


class Large(Event): ...


class Yes(Event): ...


class No(Event): ...


class Paid(Event): ...


class Again(Event): ...


class Enough(Event): ...


class Failed(Event): ...


class Order(BaseModel, frozen=True):
    """What the model reads out of a letter."""

    size: Literal["small", "large"]
    times: int = Field(ge=1, le=2)


class Options(BaseModel, frozen=True, extra="forbid"):
    pass


class Memory(Context):
    size: str = ""
    times: int = 0
    paid: int = 0


@state(S.READ, asks={AskModel}, writes={"size", "times"})
def read(c: Memory, run: Run) -> Visit:
    reply = yield from do(
        AskModel(say=(Message(role="user", content=run.input.goal),), form=Order, label="read")
    )
    try:
        order = Order.model_validate_json(reply.text)
    except ValueError:
        return {}, Failed("no order")
    return {"size": order.size, "times": order.times}, Large() if order.size == "large" else Small()


@state(S.ASK, asks={AskPerson})
def ask(c: Memory, run: Run) -> Visit:
    decided = yield from do(AskPerson(about="question", text="pay?", options=("approve", "reject")))
    return {}, Yes() if decided.decision == "approve" else No()


@state(S.PAY, asks={CallTools}, tools={"pay"}, reads={"size", "paid"}, writes={"paid"}, counts="payments")
def pay(c: Memory, run: Run) -> Visit:
    call = ToolCall(id=str(c.paid), tool="pay", arguments={"size": c.size})
    returned = yield from do(CallTools(calls=(call,)))
    if not returned.results[0].ok:
        return {}, Failed(returned.results[0].output)
    return {"paid": c.paid + 1}, Paid()


@state(S.CHECK, reads={"times", "paid"})
def check(c: Memory, run: Run) -> VisitEnd:
    return {}, Again() if c.paid < c.times else Enough()


def on_error(c: Memory, error: AgentError, run: Run) -> VisitEnd:
    assert isinstance(error, EffectError)
    return {}, Failed(str(error))


MACHINE = Machine(
    name="money_desk",
    options=Options,
    context=Memory,
    begin=lambda given, options: Memory(),
    initial=S.READ,
    table={
        S.READ: {Small: S.PAY, Large: S.ASK, Failed: S.DONE},
        S.ASK: {Yes: S.PAY, No: S.DONE, Failed: S.DONE},
        S.PAY: {Paid: S.CHECK, Failed: S.DONE},
        S.CHECK: {Again: S.PAY, Enough: S.DONE},
    },
    states=[read, ask, pay, check],
    on_error=on_error,
    result=lambda c, run: Exit(reason="done", ok=c.paid > 0),
    exits={"done": "what was ordered is paid, or it failed"},
    properties=[
        before("a large sum needs a yes", first=decides("approve"), then=lambda x: (
            calls("pay")(x) and x.calls[0].arguments["size"] == "large"
        )),
        at_most("one payment", 1, calls("pay")),
        last("nothing is asked after a failure", event(Failed, No)),
    ],
)  # fmt: skip
