"""What an author says must hold of every run: properties, written beside the table.

    properties=[
        before("money only after a person's yes", first=decides("approve"), then=calls("refund")),
        at_most("one refund for each order", 1, calls("refund"), per=lambda x: x.calls[0].arguments["order"]),
        last("nothing is asked once it is over", event(Halted)),
    ]

A property watches a run's moments in order: an effect is *asked*, it is *answered*, the run has *moved*, it
has *ended*. Each form is a small automaton; its memory is all that it knows of the run. What a predicate is
given is a `Moment`; it may read anything in it, and changes nothing. `ratchet verify machine` tries every run
of a domain (docs/verification.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import JsonValue

from activities.contracts import (
    Answers,
    AskModel,
    AskPerson,
    CallTools,
    Effect,
    EffectFailed,
    JsonObject,
    NativeCall,
    PersonDecided,
    Together,
    ToolCall,
    ToolResult,
    ToolSpec,
    ToolsReturned,
)

__all__ = [
    "Moment", "Property", "Scenario", "When", "after", "any_of", "asks_model", "asks_person", "at_most",
    "before", "between", "calls", "count", "decides", "ends", "enters", "event", "is_unknown", "last",
    "never", "returned", "then", "until",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happens in a run, as a property sees it."""

    kind: Literal["asked", "answered", "moved", "ended"]
    state: str
    """Where the run is; of `moved` the state that it has left."""
    context: Any
    """What the machine remembers then; of `moved`, what it enters the next state with."""
    effect: Effect[Any] | None = None
    """What is asked, or what was answered."""
    answer: Any = None
    event: str = ""
    """Name of the event that moved the table, or of the broken rule."""
    to: str = ""
    """The state that the run has moved to."""
    exit: Any = None
    """How the run ended (`Exit`)."""
    options: Any = None
    """The machine's options."""

    @property
    def effects(self) -> tuple[Effect[Any], ...]:
        """The effect, or those that are asked side by side."""
        if isinstance(self.effect, Together):
            return self.effect.effects
        return () if self.effect is None else (self.effect,)

    @property
    def answers(self) -> tuple[Any, ...]:
        """The answer, or those to effects side by side."""
        if isinstance(self.answer, Answers):
            return self.answer.answers
        return () if self.answer is None else (self.answer,)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls of tools that are asked for."""
        return tuple(call for one in self.effects if isinstance(one, CallTools) for call in one.calls)

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """What the tools returned."""
        return tuple(
            result for one in self.answers if isinstance(one, ToolsReturned) for result in one.results
        )

    @property
    def parts(self) -> tuple[Moment, ...]:
        """A moment for each effect, and for each call, by itself."""
        if len(self.effects) == 1 and len(self.calls) < 2:
            return (self,)
        answers = self.answers or (None,) * len(self.effects)
        return tuple(
            replace(self, effect=effect, answer=answer)
            for one, given in zip(self.effects, answers, strict=False)
            for effect, answer in _parts(one, given)
        ) or (self,)


def _parts(effect: Effect[Any], answer: Any) -> list[tuple[Effect[Any], Any]]:
    """Each call of an effect with what it returned; another effect as it is."""
    if not isinstance(effect, CallTools):
        return [(effect, answer)]
    by_id = {one.id: one for one in answer.results} if isinstance(answer, ToolsReturned) else {}
    return [
        (
            effect.model_copy(update={"calls": (call,)}),
            ToolsReturned(results=(by_id[call.id],)) if call.id in by_id else answer if not by_id else None,
        )
        for call in effect.calls
    ]


When = Callable[[Moment], Any]
"""A predicate over a moment; what it returns is read as true or false."""


@dataclass(frozen=True, slots=True)
class Property:
    """One property: an automaton that reads moments. Made by the functions below, or by hand."""

    name: str
    """What must hold, in words for people."""
    step: Callable[[Any, Moment], tuple[Any, bool]]
    """(memory, moment) -> the memory behind it, and whether the property is broken now."""
    first: Any = None
    """The memory before the first moment. Memories are compared: plain values, tuples of them."""
    trigger: When | None = None
    """What must come up, else the property holds because it says nothing of any run."""


# -- the forms --------------------


def never(name: str, when: When) -> Property:
    """No moment is such."""
    return Property(name, lambda memory, x: (memory, bool(when(x))))


def before(name: str, *, first: When, then: When) -> Property:
    """`then` comes only after a `first`."""

    def step(came: bool, x: Moment) -> tuple[bool, bool]:
        broken = not came and bool(then(x))
        return came or bool(first(x)), broken

    return Property(name, step, False, then)


def at_most(name: str, most: int, when: When, per: Callable[[Moment], object] | None = None) -> Property:
    """No more than so many are such, each call by itself; `per` counts those of each value by themselves."""

    def step(counted: tuple[tuple[str, int], ...], x: Moment) -> tuple[tuple[tuple[str, int], ...], bool]:
        times = dict(counted)
        for one in x.parts:
            if when(one):
                key = repr(per(one)) if per else ""
                times[key] = min(times.get(key, 0) + 1, most + 1)
        return tuple(sorted(times.items())), any(n > most for n in times.values())

    return Property(name, step, (), when)


def count(name: str, when: When, *, least: int = 0, most: int | None = None) -> Property:
    """When a run ends, between `least` and `most` were such, each call by itself."""
    top = least if most is None else most + 1

    def step(times: int, x: Moment) -> tuple[int, bool]:
        times = min(times + sum(bool(when(one)) for one in x.parts), top)
        return times, x.kind == "ended" and (times < least or (most is not None and times > most))

    return Property(name, step, 0, when)


def after(name: str, when: When, *, eventually: When) -> Property:
    """Behind each `when` comes an `eventually` before the run ends."""

    def step(waits: bool, x: Moment) -> tuple[bool, bool]:
        if eventually(x):
            return False, False
        waits = waits or bool(when(x))
        return waits, waits and x.kind == "ended"

    return Property(name, step, False, when)


def between(name: str, start: When, end: When, *, never: When) -> Property:
    """From a `start` on, until an `end`, no moment is `never`."""

    def step(inside: bool, x: Moment) -> tuple[bool, bool]:
        broken = inside and bool(never(x))
        return (inside and not end(x)) or bool(start(x)), broken

    return Property(name, step, False, start)


def until(name: str, holds: When, end: When) -> Property:
    """Every moment `holds`, until an `end` comes."""

    def step(ended: bool, x: Moment) -> tuple[bool, bool]:
        ended = ended or bool(end(x))
        return ended, not ended and not holds(x)

    return Property(name, step, False)


def last(name: str, when: When, *, but: When = lambda x: False) -> Property:
    """Nothing is asked after it, except `but`."""
    return between(name, when, lambda x: False, never=lambda x: x.kind == "asked" and not but(x))


def then(name: str, when: When, what: When) -> Property:
    """The next thing that is asked after it is `what`, and the run does not end before."""

    def step(waits: bool, x: Moment) -> tuple[bool, bool]:
        if x.kind not in ("asked", "ended"):
            return waits or bool(when(x)), False
        return bool(when(x)), waits and (x.kind == "ended" or not what(x))

    return Property(name, step, False, when)


# -- predicates --------------------


def calls(*tools: str) -> When:
    """A call of one of these tools is asked for; without a name, of any tool."""
    return lambda x: x.kind == "asked" and any(not tools or one.tool in tools for one in x.calls)


def returned(*tools: str, ok: bool | None = None) -> When:
    """One of these tools has returned; `ok`: without an error, or with one."""
    return lambda x: any(
        (not tools or one.tool in tools) and (ok is None or one.ok == ok) for one in x.results
    )


def is_unknown(x: Moment) -> bool:
    """A tool may have acted or not: nobody knows."""
    failed = any(
        isinstance(one, EffectFailed) and one.error == "unknown_outcome" and isinstance(effect, CallTools)
        for effect, one in zip(x.effects, x.answers, strict=False)
    )
    return failed or any(one.error == "unknown_outcome" for one in x.results)


def asks_model(x: Moment) -> bool:
    """A model is asked."""
    return x.kind == "asked" and any(isinstance(one, AskModel) for one in x.effects)


def asks_person(x: Moment) -> bool:
    """A person is asked by the machine."""
    return x.kind == "asked" and any(isinstance(one, AskPerson) for one in x.effects)


def decides(*decisions: str) -> When:
    """A person has decided so."""
    return lambda x: any(isinstance(one, PersonDecided) and one.decision in decisions for one in x.answers)


def event(*kinds: type) -> When:
    """The table has moved by one of these events. Raises TypeError for what is no class."""
    if wrong := [kind for kind in kinds if not isinstance(kind, type)]:
        raise TypeError(f"`event` takes classes of events, as `event(Paid)`; it was given {wrong[0]!r}")
    names = {kind.__name__ for kind in kinds}
    return lambda x: x.kind == "moved" and x.event in names


def enters(*states: Any) -> When:
    """The run enters one of these states."""
    names = {getattr(one, part, one) for one in states for part in ("name", "value")}
    return lambda x: x.kind == "moved" and x.to in names


def ends(test: Callable[[Any, Any], Any] = lambda exit, context: True) -> When:
    """The run has ended, in such a way: (exit, context) -> true or false."""
    return lambda x: x.kind == "ended" and test(x.exit, x.context)


def any_of(*predicates: When) -> When:
    """One of these holds."""
    return lambda x: any(one(x) for one in predicates)


# -- in which runs it is tried --------------------

Reply = str | tuple[NativeCall, ...]
"""What a model says: a text, or calls of tools."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One setting in which a machine is explored, where the derived domain is not enough or too much."""

    name: str = "default"
    goal: str = "find out"
    options: JsonObject = field(default_factory=dict)
    """Small limits: two of anything that repeats."""
    tools: Sequence[ToolSpec] = ()
    """The tools of the run. A tool that a state names and that is not here may do anything."""
    replies: Sequence[Reply] | Mapping[str, Sequence[Reply]] = ()
    """More replies of models; a mapping has them by the label of the question, such as `think*`."""
    outputs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Tool -> what it may return, in place of two words."""
    words: Mapping[str, Sequence[JsonValue]] = field(default_factory=dict)
    """Property of a schema -> the values that are tried for it."""
    without: frozenset[str] = frozenset()
    """Answers that are left out: failures such as `timeout`, decisions such as `unavailable`."""
    depth: int = 0
    """How deep the run is nested in others."""
    values: JsonObject = field(default_factory=dict)
    """What an outer machine gives it."""
    extensions: Any = None
    """`Extensions` that the options name and no worker has loaded, such as a policy that fails."""
