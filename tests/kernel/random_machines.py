"""Random machines and random answers, for the kernel's properties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hypothesis import strategies as st
from pydantic import BaseModel

from activities.contracts import (
    Answers,
    AskModel,
    CallTools,
    CodeStepped,
    Effect,
    EffectFailed,
    Message,
    ModelReplied,
    RunCode,
    Say,
    Together,
    ToolCall,
    ToolResult,
    ToolsReturned,
)
from workflows.kernel.context import Context
from workflows.kernel.errors import AgentError, Closed, EffectError
from workflows.kernel.machine import Event, Exit, Machine, Run, RunInput, State, Visit, VisitEnd
from workflows.kernel.snapshot import Program

__all__ = ["Plan", "answer", "plans", "program"]


class Inner(BaseModel, frozen=True):
    """A model in the context."""

    count: int = 0
    words: tuple[str, ...] = ()


class Memory(Context):
    """One field of each shape."""

    text: str = ""
    items: tuple[int, ...] = ()
    table: dict[str, Inner] = {}
    inner: Inner = Inner()
    seen: str = ""


class Options(BaseModel, frozen=True):
    """None."""


class Ended(Event):
    """The run is over."""


@dataclass(frozen=True)
class Plan:
    """A state: what its visit does, and where it may go."""

    acts: tuple[str, ...]
    """Kinds of what it does, in order."""
    catches: bool
    targets: tuple[int, ...]


ACTS = ("ask", "ask", "beside", "tools", "code", "together", "say", "keep")
plans: st.SearchStrategy[list[Plan]] = st.lists(
    st.builds(
        Plan,
        st.lists(st.sampled_from(ACTS), max_size=5).map(tuple),
        st.booleans(),
        st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=5,
)


def _effect(act: str, number: int, run: Run) -> Effect[Any]:
    words = f"{act} {number} at {run.now} after {len(run.conversation)} messages, {len(run.notes)} notes"
    message = Message(role="user", content=words)
    label = f"{act} {number}"
    match act:
        case "ask":
            return AskModel(label=label, say=(message,))
        case "beside":
            return AskModel(label=label, say=(message,), beside=True)
        case "tools":
            return CallTools(
                label=label, calls=(ToolCall(id=str(number), tool="t", arguments={"text": words}),)
            )
        case "code":
            return RunCode(label=label, block=words)
        case "together":
            parts = (_effect("beside", number, run), _effect("tools", number, run))
            return Together(label=label, effects=parts)
    raise AssertionError(act)


def _visit(plan: Plan, events: Sequence[type[Event]]) -> Callable[[Any, Run], Visit]:
    def visit(c: Memory, run: Run) -> Visit:
        patch: dict[str, Any] = {"seen": f"{run.step} {run.visit} {run.now} {run.ledger.used('model_calls')}"}
        total = len(c.text)
        for number, act in enumerate(plan.acts):
            if act == "say":
                yield Say(say=(Message(role="user", content=f"said {number}"),))
                continue
            if act == "keep":
                items = (*c.items, len(run.conversation), total)
                yield Say(keep={"items": items})
                assert c.items == items
                continue
            try:
                reply = yield _effect(act, number, run)
            except EffectError as error:
                if not plan.catches:
                    raise
                patch["text"] = str(error)
                continue
            except Closed:
                return {"text": "closed"}, Ended()
            total += len(repr(reply.superseded()))
            patch["inner"] = Inner(count=total, words=(*c.inner.words, act))
            key = f"k{total % 3}"
            patch["table"] = {**c.table, key: Inner(count=total)}
        event = events[total % len(events)]
        return patch, event(f"after {total}")

    return visit


def program(found: list[Plan]) -> Program:
    """A machine of these states; any state may end the run."""
    states = Enum("States", {f"S{n}": f"s{n}" for n in range(len(found) + 1)})  # type: ignore[misc]  # made of data
    names = list(states)
    table: dict[Enum, dict[type[Event], Enum]] = {}
    declared = []
    for number, plan in enumerate(found):
        events: list[type[Event]] = [type(f"To{n}", (Event,), {}) for n in range(len(plan.targets))]
        chain = type("Next", (Event,), {})
        targets = [names[t % len(names)] for t in plan.targets]
        table[names[number]] = {
            **dict(zip(events, targets, strict=True)),
            chain: names[number + 1],
            Ended: names[-1],
        }
        declared.append(
            State(
                names[number],
                _visit(plan, [*events, chain]),
                reads=frozenset({"text", "items", "table", "inner"}),
                writes=frozenset({"text", "items", "table", "inner", "seen"}),
                asks=frozenset({AskModel, CallTools, RunCode}),
                counts="visits",
            )
        )

    def on_error(c: Memory, error: AgentError, run: Run) -> VisitEnd:
        return {"text": f"{error} {run.now}"}, Ended(str(error))

    machine = Machine(
        name="random",
        options=Options,
        context=Memory,
        begin=lambda given, _: (Memory(text=given.goal), (Message(role="system", content="begin"),)),
        initial=names[0],
        table=table,
        states=declared,
        step=names[0],
        result=lambda c, run: Exit(reason="over", ok=True, answer=c.text, outcome={"now": run.now}),
        on_error=on_error,
        on_close=lambda c, reason: {"seen": reason},
        on_reopen=lambda c: (names[0], {"seen": "reopened"}),
        caps=lambda _: {"visits": 40},
        fail=names[-1],
        on_violation=lambda c, error: {"seen": error.problem},
    )
    return Program(machine, RunInput(goal="go"))


def answer(effect: Effect[Any], seed: int) -> Any:
    """An answer that fits the effect; one in six fails."""
    if seed % 6 == 0 and not isinstance(effect, Together):
        return EffectFailed(error="fatal", type="HTTP500", message=f"no {seed}")
    match effect:
        case AskModel():
            return ModelReplied(text=f"reply {seed}", cost_usd=seed / 1000)
        case CallTools():
            results = (
                ToolResult(id=r.id, tool=r.tool, output=f"out {seed}", cost_usd=0.5) for r in effect.calls
            )
            return ToolsReturned(results=tuple(results))
        case RunCode():
            return CodeStepped(session=f"inline:{seed}", printed=str(seed))
        case Together():
            return Answers(answers=tuple(answer(one, seed + n) for n, one in enumerate(effect.effects)))
    raise AssertionError(effect)
