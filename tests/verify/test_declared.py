"""Declaration = code: what differs is found, with file and line; a machine that is right gives nothing."""

from __future__ import annotations

import json
import linecache
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from activities.extensions import load_modules
from ratchet import (
    AgentError,
    AskModel,
    AskPerson,
    CallTools,
    Context,
    Event,
    Exit,
    Machine,
    Run,
    State,
    ToolCall,
    Visit,
    VisitEnd,
    do,
    state,
)
from ratchet.verify import verify
from tests.examplekit import ROOT
from tests.verify.parts import Lost, called, gave_up, noted
from workflows import registry
from workflows.kernel.errors import DefinitionError
from workflows.machines.planner.context import Options as PlannerOptions
from workflows.machines.planner.machine import build_machine as build_planner
from workflows.verify.code.declared import Finding, findings


class S(Enum):
    """States."""

    A, B, DONE, LOST = "a", "b", "done", "lost"


class Went(Event):
    """On."""


class Stopped(Event):
    """An end."""


class Options(BaseModel, frozen=True, extra="forbid"):
    """Settings."""

    most: int = 3


class Memory(Context):
    """What is remembered."""

    goal: str
    x: int = 0
    secret: str = ""
    end: str = ""

    @property
    def doubled(self) -> int:
        """Reads through a property."""
        return 2 * self.x


@state(S.A, reads={"goal"}, writes={"x"})
def first(c: Memory, run: Run) -> VisitEnd:
    """Right."""
    return {"x": len(c.goal)}, Went()


@state(S.B, reads={"x"}, writes={"end"})
def second(c: Memory, run: Run) -> VisitEnd:
    """Right."""
    return {"end": "far" if c.x > 3 else "near"}, Stopped()


TABLE = {S.A: {Went: S.B}, S.B: {Stopped: S.DONE}}


def made(*states: State, **changes: Any) -> Machine:
    """A machine of two states."""
    given: dict[str, Any] = {
        "name": "small",
        "options": Options,
        "context": Memory,
        "begin": lambda given, options: Memory(goal=given.goal),
        "initial": S.A,
        "table": TABLE,
        "result": lambda c, run: Exit(reason=c.end),
    }
    mine = {one.name for one in states}
    others = [one for one in (first, second) if one.name not in mine]
    return Machine(**{**given, "states": [*states, *others], **changes})


def line_of(finding: Finding) -> str:
    """The source line that a finding names."""
    return linecache.getline(str(ROOT / finding.file), finding.line).strip()


def wrong(machine: Machine) -> list[tuple[str, str]]:
    """(text, source line) of what is wrong."""
    return [(one.text, line_of(one)) for one in findings(machine) if one.certainty == "wrong"]


def texts(machine: Machine, certainty: str) -> list[str]:
    """The texts of the findings of this certainty."""
    return [one.text for one in findings(machine) if one.certainty == certainty]


def test_right_machine_gives_nothing() -> None:
    assert findings(made()) == ()


# -- the seven mismatches --------------------


@state(S.B, reads={"x"}, writes={"end"})
def returns_lost(c: Memory, run: Run) -> VisitEnd:
    """Its event has no row."""
    if c.x > 3:
        return {"end": "far"}, Stopped()
    return {"end": "near"}, Lost("near")


@state(S.B, reads={"x"}, writes={"end"})
def writes_secret(c: Memory, run: Run) -> VisitEnd:
    """It may only write `end`."""
    return {"end": "", "secret": str(c.x)}, Stopped()


@state(S.B, asks={CallTools}, tools={"read_file"}, writes={"end"})
def calls_transfer(c: Memory, run: Run) -> Visit:
    """It may only call read_file."""
    yield CallTools(calls=(ToolCall(id="1", tool="transfer"), ToolCall(id="2", tool="read_file")))
    return {"end": "paid"}, Stopped()


@state(S.B, asks={AskModel}, writes={"end"})
def asks_person(c: Memory, run: Run) -> Visit:
    """It may only ask a model."""
    yield from do(AskModel())
    answer = yield from do(AskPerson(about="question", text="Shall I?"))
    return {"end": answer.decision}, Stopped()


@state(S.B, reads={"secret"}, writes={"end"})
def reads_secret(c: Memory, run: Run) -> VisitEnd:
    """Nobody writes what it reads."""
    return {"end": c.secret}, Stopped()


@state(S.B, reads={"x"}, writes={"end"}, holds=lambda c, left: "" if c.secret else "no secret")
def holds_never(c: Memory, run: Run) -> VisitEnd:
    """Nobody writes what must hold."""
    return {"end": str(c.x)}, Stopped()


UNUSED_ROW = {
    S.A: {Went: S.B},
    S.B: {
        Stopped: S.DONE,
        Lost: S.LOST,
    },
}


@pytest.mark.parametrize(
    ("machine", "text", "line"),
    [
        pytest.param(
            lambda: made(returns_lost),
            "state b returns Lost, and the table has no row for it",
            'return {"end": "near"}, Lost("near")',
            id="1 an event without a row",
        ),
        pytest.param(
            lambda: made(table=UNUSED_ROW),
            "state b has a row for Lost, and no way through its code returns it",
            "Lost: S.LOST,",
            id="2 a row that no event takes",
        ),
        pytest.param(
            lambda: made(writes_secret),
            "state b writes secret, which is not in its `writes`",
            'return {"end": "", "secret": str(c.x)}, Stopped()',
            id="3 a write",
        ),
        pytest.param(
            lambda: made(calls_transfer),
            "state b uses the tool transfer, which is not in its `tools`",
            'yield CallTools(calls=(ToolCall(id="1", tool="transfer"), ToolCall(id="2", tool="read_file")))',
            id="4 a tool",
        ),
        pytest.param(
            lambda: made(asks_person),
            "state b asks for AskPerson, which is not in its `asks`",
            'answer = yield from do(AskPerson(about="question", text="Shall I?"))',
            id="5 an effect",
        ),
        pytest.param(
            lambda: made(reads_secret),
            "state b reads secret, which nothing ever writes: it is always its default",
            'return {"end": c.secret}, Stopped()',
            id="6 a field that nobody writes",
        ),
        pytest.param(
            lambda: made(holds_never),
            "state b has an invariant that can never hold",
            '@state(S.B, reads={"x"}, writes={"end"}, holds=lambda c, left: "" if c.secret else "no secret")',
            id="7 an invariant that never holds",
        ),
    ],
)
def test_mismatch_is_found_with_its_line(machine: Callable[[], Machine], text: str, line: str) -> None:
    assert wrong(machine()) == [(text, line)]


# -- the rest of a declaration --------------------


@state(S.B, asks={CallTools}, tools={"look"}, writes={"end"})
def calls_helpers(c: Memory, run: Run) -> Visit:
    """What helpers in another file do counts as its own."""
    text = yield from called("send")
    return gave_up(text) if text else ({"end": text}, Stopped())


@state(S.B, reads={"x"}, writes={"end"})
def misspells(c: Memory, run: Run) -> VisitEnd:
    """Names that nothing has."""
    if c.xx:  # type: ignore[attr-defined]  # the fault
        return {"edn": "far"}, Stopped(by="me")  # type: ignore[call-arg]  # the fault
    return {"end": "near"}, Stopped()


@state(S.B, asks={AskModel}, writes={"end"})
def asks(c: Memory, run: Run) -> Visit:
    """It asks a model, which may fail."""
    reply = yield from do(AskModel(sya=()))  # pydantic and mypy let it pass
    return {"end": reply.text}, Stopped()


@state(S.B, asks={AskModel}, writes={"end"})
def yields_do(c: Memory, run: Run) -> Visit:
    """Without `from`."""
    yield do(AskModel())  # type: ignore[misc]  # the fault
    return {"end": ""}, Stopped()


@pytest.mark.parametrize(
    ("machine", "found"),
    [
        pytest.param(
            lambda: made(calls_helpers),
            {
                "state b uses the tool send, which is not in its `tools`",
                "state b writes secret, which is not in its `writes`",
                "state b returns Lost, and the table has no row for it",
            },
            id="helpers in another file",
        ),
        pytest.param(
            lambda: made(misspells),
            {
                "state b reads xx, which is no field of the context",
                "state b writes edn, which is no field of the context",
                "state b gives Stopped a field by, which it does not have",
            },
            id="misspelt names",
        ),
        pytest.param(
            lambda: made(asks, on_error=lambda c, error, run: ({"x": 1}, Lost()), writes=frozenset({"end"})),
            {
                "state b gives AskModel a field sya, which it does not have",
                "state b returns Lost, and the table has no row for it",
                "machine small itself writes x, which is not in its `writes`",
            },
            id="an error",
        ),
        pytest.param(
            lambda: made(yields_do), {"state b yields `do(...)`; write `yield from do(...)`"}, id="an effect"
        ),
        pytest.param(
            lambda: made(exits={"far": "it is far"}),
            {"machine small ends with the exit reason 'near', which is not in its `exits`"},
            id="an exit reason",
        ),
        pytest.param(
            lambda: made(begin=lambda given, options: Memory()),  # type: ignore[call-arg]  # the fault
            {"machine small begins without goal, which has no default"},
            id="the beginning",
        ),
    ],
)
def test_fault_is_found(machine: Callable[[], Machine], found: set[str]) -> None:
    assert {text for text, _ in wrong(machine())} == found


@pytest.mark.parametrize(
    ("visit", "text"),
    [
        (lambda c, run: None, "returns None; expected a patch and an event"),
        (lambda c, run: Stopped(), "returns a Stopped; expected a patch and an event"),
        (lambda c, run: ({"end": ""}, Stopped), "returns the class Stopped in place of an event"),
        (lambda c, run: do(AskModel()), "returns a Doing; expected a patch and an event"),
    ],
    ids=["nothing", "an event alone", "a class", "an effect"],
)
def test_what_is_no_end_of_a_visit_is_found(visit: Any, text: str) -> None:
    (found,) = [one.text for one in findings(made(State(S.B, visit))) if one.kind == "code"]
    assert found == f"state b {text}"


def test_what_is_never_used_is_a_note() -> None:
    wide = replace(
        second, reads=second.reads | {"goal"}, asks=frozenset({AskModel}), tools=frozenset({"look"})
    )
    machine = made(wide, exits={"far": "", "near": "", "lost": ""})
    assert texts(machine, "wrong") == []
    assert set(texts(machine, "note")) == {
        "state b declares goal in its `reads` and never uses it",
        "state b declares AskModel in its `asks` and never uses it",
        "state b declares look in its `tools` and never uses it",
        "machine small declares the exit reason 'lost' and never ends with it",
    }


def test_object_of_two_names_is_changed_by_both() -> None:
    @state(S.B, writes={"end"})
    def renames(c: Memory, run: Run) -> VisitEnd:
        patch: dict[str, Any] = {"end": ""}
        more = patch
        more["secret"] = "s"
        return patch, Stopped()

    assert [text for text, _ in wrong(made(renames))] == [
        "state b writes secret, which is not in its `writes`"
    ]


class Bare:
    """An object whose first parameter has a place and no name."""

    def __init__(self, /, *given: str) -> None:
        self.text = given[0]


class Packed:
    """One without a first parameter."""

    def __init__(*given: Any) -> None:  # `self` is among them
        given[0].text = given[1]


@pytest.mark.parametrize("kind", [Bare, Packed])
def test_object_is_made_whatever_its_parameters_are(kind: Any) -> None:
    @state(S.B, writes={"end"})
    def makes(c: Memory, run: Run) -> VisitEnd:
        return {"end": kind("far").text, "secret": "s"}, Stopped()

    assert [text for text, _ in wrong(made(makes))] == ["state b writes secret, which is not in its `writes`"]


def test_property_reads_what_it_is_made_of() -> None:
    @state(S.B, reads={"goal"}, writes={"end"})
    def doubles(c: Memory, run: Run) -> VisitEnd:
        return {"end": str(c.doubled) + c.goal}, Stopped()

    assert [text for text, _ in wrong(made(doubles))] == ["state b reads x, which is not in its `reads`"]


def test_branch_that_cannot_be_taken_does_not_count() -> None:
    """What a helper does for others is not what it does here."""

    def closed(outcome: str) -> VisitEnd:
        return ({"secret": "paid"}, Lost()) if outcome == "paid" else ({"end": outcome}, Stopped())

    @state(S.B, writes={"end"})
    def declines(c: Memory, run: Run) -> VisitEnd:
        return closed("declined")

    assert findings(made(declines)) == ()


def test_cases_that_are_all_there_are_followed() -> None:
    """A `match` over what an option can be, without a case for the rest."""

    class Choice(BaseModel, frozen=True):
        way: Literal["far", "near", "lost"] = "far"

    @state(S.B, writes={"end"})
    def chooses(c: Memory, run: Run) -> VisitEnd:
        options: Choice = run.options
        match options.way:
            case "far" | "near":
                return {"end": options.way}, Stopped()
            case "lost":
                return {"secret": "lost"}, Lost()

    assert texts(made(chooses, options=Choice), "unknown") == []
    assert {text for text, _ in wrong(made(chooses, options=Choice))} == {
        "state b writes secret, which is not in its `writes`",
        "state b returns Lost, and the table has no row for it",
    }


def test_error_that_is_caught_needs_no_row() -> None:
    @state(S.B, asks={CallTools}, tools={"look"}, writes={"end"})
    def careful(c: Memory, run: Run) -> Visit:
        try:
            text = yield from called("look")
        except AgentError as error:
            text = str(error)
        return {"end": text}, Stopped()

    assert findings(made(careful, on_error=lambda c, error, run: ({}, Lost()))) == ()


# -- what data decides --------------------

HANDLERS: dict[str, Callable[[Memory], VisitEnd]] = {
    "stop": lambda c: ({"end": "far"}, Stopped()),
    "lose": lambda c: ({"end": "near"}, Lost()),
}
EVENTS: dict[str, type[Event]] = {"stop": Stopped, "lose": Lost}


@state(S.B, reads={"x"}, writes={"end"})
def by_name(c: Memory, run: Run) -> VisitEnd:
    """Which field is read is data."""
    return {"end": str(getattr(c, run.input.goal))}, Stopped()


@state(S.B, writes={"end"})
def by_table(c: Memory, run: Run) -> VisitEnd:
    """A table of functions."""
    return HANDLERS[run.input.goal](c)


@state(S.B, writes={"end"})
def by_event(c: Memory, run: Run) -> VisitEnd:
    """A table of events."""
    return {"end": ""}, EVENTS[run.input.goal]()


@state(S.B, asks={AskModel}, writes={"end"})
def by_reply(c: Memory, run: Run) -> Visit:
    """The patch is what a model says."""
    reply = yield from do(AskModel())
    return json.loads(reply.text), Stopped()


@state(S.B, asks={CallTools}, tools={"look"}, writes={"end"})
def by_tool(c: Memory, run: Run) -> Visit:
    """The tool is what a person says."""
    yield CallTools(calls=(ToolCall(id="1", tool=run.input.goal),))
    return {"end": ""}, Stopped()


@state(S.B, asks={AskModel}, writes={"end"})
def by_effect(c: Memory, run: Run) -> Visit:
    """The effect is made by what `prepare` has found."""
    yield run.prepared(c)
    return {"end": ""}, Stopped()


@state(S.B, reads={"x"}, writes={"end"})
def by_change(c: Memory, run: Run) -> VisitEnd:
    """Another function changes the patch."""
    patch = {"end": str(c.x)}
    noted(patch)
    return patch, Stopped()


@state(S.B, writes={"end"})
def by_class(c: Memory, run: Run) -> VisitEnd:
    """An exploration shows another class."""
    return {"end": "" if type(c) is Memory else "far"}, Stopped()


@state(S.B, writes={"end"})
def by_slot(c: Memory, run: Run) -> VisitEnd:
    """An exploration does not see this read."""
    return {"end": str(object.__getattribute__(c, "x"))}, Stopped()


DECIDES = "returns an event that data decides"
HANDS_ON = "state b hands the context on, and which fields are read there cannot be seen"


@pytest.mark.parametrize(
    ("visit", "found", "line"),
    [
        pytest.param(
            by_name,
            [HANDS_ON],
            'return {"end": str(getattr(c, run.input.goal))}, Stopped()',
            id="a field by its name",
        ),
        pytest.param(by_class, [HANDS_ON], 'return {"end": "" if type(c) is Memory else "far"}, Stopped()'),
        pytest.param(by_slot, [HANDS_ON], 'return {"end": str(object.__getattribute__(c, "x"))}, Stopped()'),
        pytest.param(
            by_table,
            [f"state b {DECIDES}", "state b writes fields that data decides"],
            '"stop": lambda c: ({"end": "far"}, Stopped()),',
            id="a function",
        ),
        pytest.param(
            by_event, [f"state b {DECIDES}"], 'return {"end": ""}, EVENTS[run.input.goal]()', id="an event"
        ),
        pytest.param(by_reply, ["state b writes fields that data decides"], "", id="a patch"),
        pytest.param(
            by_tool,
            ["state b uses tools that data decides"],
            'yield CallTools(calls=(ToolCall(id="1", tool=run.input.goal),))',
            id="a tool",
        ),
        pytest.param(
            by_effect,
            [
                "state b asks for an effect that data decides",
                HANDS_ON,
            ],
            "yield run.prepared(c)",
            id="an effect",
        ),
        pytest.param(
            by_change, ["state b writes fields that data decides"], "", id="a patch that is changed"
        ),
    ],
)
def test_what_data_decides_is_unknown(visit: State, found: list[str], line: str) -> None:
    """It is named with its line, and nothing is claimed of it."""
    unknown = [one for one in findings(made(visit)) if one.certainty == "unknown"]
    assert [one.text for one in unknown] == found
    if line:
        assert line_of(unknown[0]) == line
    assert wrong(made(visit)) == []


def test_function_without_source_is_unknown() -> None:
    names: dict[str, Any] = {"Stopped": Stopped}
    exec("def visit(c, run): return {'end': ''}, Stopped()", names)
    machine = made(State(S.B, names["visit"], writes=frozenset({"end"})))
    assert wrong(machine) == []
    assert len(texts(machine, "unknown")) == 5


def test_code_that_is_too_large_is_unknown(tmp_path: Path) -> None:
    """Functions that call each other a million times come to an end; what is not followed is unknown."""
    heads = (f"def f{n}(c, n):\n" + f"    if n: n = f{n + 1}(c, n)\n" * 6 for n in range(9))
    text = "".join(f"{head}    return n\n" for head in heads)
    file = tmp_path / "large.py"
    file.write_text(f"{text}def f9(c, n): return n + c.x\n", encoding="utf-8")
    (module,) = load_modules([str(file)])

    @state(S.B, reads={"x"}, writes={"end"})
    def large(c: Memory, run: Run) -> VisitEnd:
        return {"end": str(module.f0(c, len(run.input.goal)))}, Stopped()

    assert texts(made(large), "unknown") == [
        "state b hands the context on, and which fields are read there cannot be seen"
    ]


# -- what our machines still have --------------------


def machines() -> Iterator[tuple[str, Machine]]:
    """All that we ship, by name."""
    for machine in registry.shipped():
        yield machine.name, machine
    yield "planner, simple", build_planner(PlannerOptions(mode="simple"))
    for file in ("examples/machines/refund_desk.py", "examples/new/my_machine.py"):
        (module,) = load_modules([f"./{file}"])
        yield module.MACHINE.name, module.MACHINE


SLOW = ("code", "tools", "planner")
"""They take most of the time, and only in `make test-all`."""


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        pytest.param(*one, id=one[0], marks=pytest.mark.exhaustive if one[0] in SLOW else ())
        for one in machines()
    ],
)
def test_shipped_machine_is_as_declared(name: str, machine: Machine) -> None:
    """Nothing is wrong in any, and what data decides is this and no more."""
    found = findings(machine)
    assert [one.text for one in found if one.certainty == "wrong"] == []
    assert [one.text for one in found if one.certainty == "unknown"] == UNKNOWN.get(name, [])


@pytest.mark.parametrize("page", ["tutorial.md", "own-machine.md"])
def test_machine_of_the_pages_is_as_declared_and_holds(page: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    last = next(number for number, block in enumerate(blocks) if "MACHINE = Machine(" in block)
    first = last if "class S(Enum)" in blocks[last] else 0
    file = tmp_path / "page.py"
    file.write_text("\n".join(blocks[first : last + 1]), encoding="utf-8")
    (module,) = load_modules([str(file)])
    assert findings(module.MACHINE) == ()
    report = verify(module.MACHINE)
    assert report.ok, report.text


BY_NAME = "returns an event that data decides"
RUNNING = "machine planner may end with the exit reason 'running', which is not in its `exits`"
UNKNOWN = {
    "planner": [RUNNING],
    "planner, simple": [RUNNING],
    # users' rules get the whole context
    "react": ["state validate hands the context on, and which fields are read there cannot be seen"],
    # a stage's exit is a name in the options
    "staged": [f"state Acting {BY_NAME}", f"state Observing {BY_NAME}", f"state Thinking {BY_NAME}"],
}


# -- mutants of the declaration --------------------


def mutants(machine: Machine) -> Iterator[tuple[str, str, Callable[[], Machine]]]:
    """(kind, name, how to make it): each row removed, and each right of each state."""
    for source, row in machine.table.items():
        for event in row:
            left = {one: target for one, target in row.items() if one is not event}
            table = {**machine.table, source: left}
            yield "row", f"{source.value}.{event.__name__}", lambda table=table: replace(machine, table=table)  # type: ignore[misc]  # a default binds the loop's value
    for wide in machine.states:
        for kind in ("reads", "writes", "asks", "tools"):
            for right in getattr(wide, kind) or ():
                less = replace(wide, **{kind: getattr(wide, kind) - {right}})
                states = [less if one is wide else one for one in machine.states]
                name = f"{wide.name.value}.{getattr(right, '__name__', right)}"
                yield kind, name, lambda states=states: replace(machine, states=states)  # type: ignore[misc]  # as above


@pytest.mark.exhaustive
def test_mutants_of_a_declaration_are_found() -> None:
    """Of all that refund_desk's declaration can lack, only what its code never uses is not missed."""
    (module,) = load_modules(["./examples/machines/refund_desk.py"])
    count: Counter[tuple[str, str]] = Counter()
    survivors = set()
    for kind, name, make in mutants(module.MACHINE):
        try:
            found = bool(texts(make(), "wrong"))
        except DefinitionError:
            count[kind, "refused when made"] += 1
            continue
        count[kind, "found" if found else "left"] += 1
        if not found:
            survivors.add(f"{kind} {name}")
    assert count == {
        ("row", "refused when made"): 5,
        ("row", "found"): 11,
        ("reads", "found"): 18,
        ("reads", "left"): 1,
        ("writes", "found"): 10,
        ("writes", "left"): 1,
        ("asks", "found"): 5,
        ("tools", "found"): 3,
    }
    assert survivors == {
        "writes list.trouble",  # only `on_error` writes it, by the machine's own rights
        "reads sort.case",  # `closed` reads it for refunds alone, and `sort` makes none
    }
