"""`ratchet test` on a counterexample: broken, mended, or not judged, and nothing in between."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from activities.contracts import PersonDecided
from activities.extensions import load_modules
from client.cassette.counterexample import NotReproduced, reproduced
from client.cassette.file import Cassette, read_cassette, write_cassette
from client.cassette.playing import CassetteVerdict, play
from client.cli.app import execute
from ratchet import (
    AgentError,
    AskModel,
    AskPerson,
    CallTools,
    Context,
    Event,
    Exit,
    Machine,
    Message,
    Run,
    RunMachine,
    ToolCall,
    Visit,
    VisitEnd,
    do,
    state,
)
from ratchet.verify import (
    MachineReport,
    Property,
    Scenario,
    at_most,
    calls,
    decides,
    event,
    last,
    never,
    returned,
    verify,
)
from workflows.verify.runs.domain import open_tool

DESK = Path(__file__).with_name("desk.py")


class S(Enum):
    READ, SURE, PAY, ASK, FOREVER, DONE = "read", "sure", "pay", "ask", "forever", "done"


class Yes(Event): ...


class No(Event): ...


class Again(Event): ...


class Failed(Event): ...


class Order(BaseModel, frozen=True):
    pay: Literal["yes", "no"]


class Options(BaseModel, frozen=True, extra="forbid"):
    pass


class Memory(Context):
    tries: int = 0


def _ask(text: str, label: str, form: Any = None) -> AskModel:
    return AskModel(say=(Message(role="user", content=text),), form=form, label=label)


@state(S.READ, asks={AskModel})
def read(c: Memory, run: Run) -> Visit:
    reply = yield from do(_ask("what is it?", "read", Order))
    return {}, Yes() if '"yes"' in reply.text else No()


@state(S.READ, asks={AskModel})
def read_twice(c: Memory, run: Run) -> Visit:
    yield from do(_ask("think", "think"))
    reply = yield from do(_ask("in other words: what is it?", "read it", Order))
    return {}, Yes() if '"yes"' in reply.text else No()


@state(S.SURE, asks={AskModel})
def sure(c: Memory, run: Run) -> Visit:
    reply = yield from do(_ask("sure?", "sure"))
    return {}, Yes() if "forty" in reply.text else No()


@state(S.PAY, asks={CallTools}, tools={"pay"}, reads={"tries"}, writes={"tries"}, counts="payments")
def pay(c: Memory, run: Run) -> Visit:
    returned = yield from do(CallTools(calls=(ToolCall(id=f"p{c.tries}", tool="pay"),)))
    is_unknown = returned.results[0].error == "unknown_outcome"
    return {"tries": c.tries + 1}, Again() if is_unknown and c.tries < 2 else Yes()


@state(S.PAY, asks={CallTools}, tools={"pay"})
def pay_raises(c: Memory, run: Run) -> Visit:
    yield from do(CallTools(calls=(ToolCall(id="p", tool="pay"),)))
    raise RuntimeError("not finished yet")


@state(S.ASK, asks={AskPerson})
def ask(c: Memory, run: Run) -> Visit:
    decided = yield from do(AskPerson(about="question", text="paid?", options=("approve", "reject")))
    return {}, Yes() if decided.decision == "approve" else No()


def machine(states: list[Any], table: Mapping[S, Any], *properties: Property) -> Machine:
    def on_error(c: Memory, error: AgentError, run: Run) -> VisitEnd:
        return {}, Failed(str(error))

    return Machine(
        name="payer", options=Options, context=Memory, begin=lambda given, options: Memory(),
        initial=next(iter(table)), table={one: {Failed: S.DONE, **row} for one, row in table.items()},
        states=states, on_error=on_error, result=lambda c, run: Exit(reason="done", ok=True),
        exits={"done": "it is over"}, properties=list(properties),
    )  # fmt: skip


ONCE = at_most("one payment", 1, calls("pay"))
READING = {S.READ: {Yes: S.PAY, No: S.DONE}}
PAYS_AGAIN = {S.PAY: {Yes: S.DONE, Again: S.PAY}}
TWICE = machine([read, pay], {**READING, **PAYS_AGAIN}, ONCE)


def found(of: Machine, name: str = "one payment") -> Cassette:
    """The counterexample that is found, through a file."""
    report: MachineReport = verify(of)
    (one,) = [one for one in report.counterexamples if one.violation.name == name]
    assert one.cassette is not None, one.unlike
    return one.cassette


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Cassette:
    file = tmp_path_factory.mktemp("found") / "twice.yaml"
    write_cassette(found(TWICE), file)
    return read_cassette(file)


def judged(cassette: Cassette, today: Machine) -> CassetteVerdict:
    return asyncio.run(play(cassette, machine=today))


def test_second_payment_after_an_unknown_outcome_fails(twice: Cassette) -> None:
    verdict = judged(twice, TWICE)
    assert verdict.difference == "violates 'one payment', after 2 answers"


def test_mended_machine_passes(twice: Cassette) -> None:
    mended = machine([read, pay], {**READING, S.PAY: {Yes: S.DONE, Again: S.DONE}}, ONCE)
    assert judged(twice, mended).ok
    asks = {S.PAY: {Yes: S.DONE, Again: S.ASK}, S.ASK: {Yes: S.DONE, No: S.DONE}}
    assert judged(twice, machine([read, pay, ask], {**READING, **asks}, ONCE)).ok


@pytest.mark.parametrize(
    "today",
    [
        pytest.param(machine([read_twice, pay], {**READING, **PAYS_AGAIN}, ONCE), id="in the state"),
        pytest.param(
            machine(
                [read, sure, pay],
                {S.READ: {Yes: S.SURE, No: S.DONE}, S.SURE: {Yes: S.PAY, No: S.DONE}, **PAYS_AGAIN},
                ONCE,
            ),
            id="behind it",
        ),
        pytest.param(
            machine([sure, read, pay], {S.SURE: {Yes: S.READ, No: S.DONE}, **READING, **PAYS_AGAIN}, ONCE),
            id="before it",
        ),
        pytest.param(
            machine(
                [read, ask, pay],
                {S.READ: {Yes: S.ASK, No: S.DONE}, S.ASK: {Yes: S.PAY, No: S.DONE}, **PAYS_AGAIN},
                ONCE,
            ),
            id="to a person",
        ),
    ],
)
def test_one_question_more_does_not_hide_the_bug(twice: Cassette, today: Machine) -> None:
    assert judged(twice, today).difference.startswith("violates 'one payment'")


@pytest.mark.parametrize(
    ("today", "why"),
    [
        (replace(TWICE, properties=[]), "the machine has no property 'one payment'; it has: none"),
        (machine([read, pay_raises], {**READING, S.PAY: {Yes: S.DONE}}, ONCE), "RuntimeError: not finished"),
        (machine([read, pay], {**READING, S.PAY: {Yes: S.DONE}}, ONCE), "NoTransition"),
    ],
)
def test_what_cannot_be_judged_fails(twice: Cassette, today: Machine, why: str) -> None:
    difference = judged(twice, today).difference
    assert difference.startswith("not judged: ")
    assert why in difference


@state(S.SURE, asks={CallTools}, tools={"mail"}, counts="mails")
def mail(c: Memory, run: Run) -> Visit:
    returned = yield from do(CallTools(calls=(ToolCall(id=f"m{run.counts['mails']}", tool="mail"),)))
    return {}, Yes() if returned.results[0].ok or run.counts["mails"] == 3 else Again()


def test_mended_machine_that_calls_the_tool_again_is_judged() -> None:
    paid = {S.PAY: {Yes: S.SURE, Again: S.DONE}}
    once = at_most("one payment", 1, returned("pay", ok=True))
    cassette = found(machine([pay, mail], {**paid, S.SURE: {Yes: S.DONE, Again: S.PAY}}, once))
    verdict = judged(cassette, machine([pay, mail], {**paid, S.SURE: {Yes: S.DONE, Again: S.SURE}}, once))
    assert verdict.ok, verdict.difference


# -- rounds --------------------


def going_round(most: int | None) -> Machine:
    used = {"tries"} if most else set()

    @state(S.FOREVER, asks={AskModel}, reads=used, writes=used, counts="rounds")
    def forever(c: Memory, run: Run) -> Visit:
        reply = yield from do(_ask("again?", "again"))
        if most is None:
            return {}, Again() if reply.text else Yes()
        return {"tries": c.tries + 1}, Again() if reply.text and c.tries < most else Yes()

    return machine([forever], {S.FOREVER: {Again: S.FOREVER, Yes: S.DONE}})


def test_round_fails_until_the_machine_gives_up() -> None:
    cassette = found(going_round(None), "every run ends by itself")
    assert judged(cassette, going_round(None)).difference.startswith("violates 'every run ends by itself'")
    assert judged(cassette, going_round(3)).ok
    assert judged(cassette, going_round(30)).ok


# -- is it this one? --------------------


def test_another_exception_confirms_nothing() -> None:
    raises = machine([read, pay_raises], {**READING, S.PAY: {Yes: S.DONE}})
    (one,) = verify(raises).counterexamples
    assert one.cassette is not None
    other = replace(one.violation, detail="KeyError: 'x'", author_line="elsewhere.py:1")
    with pytest.raises(NotReproduced, match="in another way: RuntimeError: not finished yet"):
        asyncio.run(reproduced(raises, Scenario(), other, [open_tool("pay")]))


# -- what the engine does not let happen --------------------


@state(S.SURE, asks={RunMachine})
def inside(c: Memory, run: Run) -> Visit:
    yield from do(RunMachine(machine="staged", goal="look"))
    return {}, Yes()


AFTER = last("nothing is asked behind this", event(Failed, Yes))


@pytest.mark.parametrize(
    ("states", "table", "why"),
    [
        (
            [ask, read],
            {S.ASK: {Yes: S.DONE, No: S.DONE, Failed: S.READ}, S.READ: {Yes: S.DONE, No: S.DONE}},
            "a person's request that fails; in a run it is decided or expires",
        ),
        (
            [inside, read],
            {S.SURE: {Yes: S.READ}, S.READ: {Yes: S.DONE, No: S.DONE}},
            "an inner run asks something, and the answers only say how it ends",
        ),
    ],
    ids=["a request", "an inner run"],
)
def test_way_that_no_host_goes_is_named(states: list[Any], table: Any, why: str) -> None:
    (one,) = verify(machine(states, table, AFTER)).counterexamples
    assert one.cassette is None
    assert why in one.unlike


# -- what people say --------------------


@state(S.ASK, asks={AskPerson})
def hear(c: Memory, run: Run) -> Visit:
    said = yield from do(AskPerson(about="question", text="paid?", options=("approve", "answer", "abort")))
    return {}, Again(said.text) if said.text == "well" else Yes()


def hearing(one: Property) -> Machine:
    return machine([hear], {S.ASK: {Yes: S.DONE, Again: S.DONE}}, one)


OBJECTED = never("no objections", event(Again))


@pytest.mark.parametrize(
    ("one", "decision"),
    [
        (OBJECTED, "answer"),
        (never("nobody approves", decides("approve")), "approve"),
        (never("nobody aborts", decides("abort")), "abort"),
        (never("somebody is there", decides("unavailable")), "unavailable"),
    ],
    ids=["answer", "approve", "abort", "unavailable"],
)
def test_every_decision_of_a_person_is_played(one: Property, decision: str) -> None:
    cassette = found(hearing(one), one.name)
    assert cassette.counterexample is not None
    (given,) = cassette.counterexample.answers
    assert isinstance(given.answer, PersonDecided)
    assert given.answer.decision == decision
    assert judged(cassette, hearing(one)).difference == f"violates {one.name!r}, after 1 answer"


def test_decision_that_ratchet_refuses_is_no_failure_of_the_code() -> None:
    today = hearing(OBJECTED)
    cassette = found(today, OBJECTED.name)
    assert cassette.counterexample is not None
    (given,) = cassette.counterexample.answers
    assert isinstance(given.answer, PersonDecided)
    blank = given.model_copy(update={"answer": given.answer.model_copy(update={"text": " "})})
    way = cassette.counterexample.model_copy(update={"answers": (blank,)})
    difference = judged(cassette.model_copy(update={"counterexample": way}), today).difference
    assert difference.startswith("not judged: the run refuses the decision: An answer to r1 needs a `text`")


# -- before the first answer --------------------


@state(S.READ)
def asks_undeclared(c: Memory, run: Run) -> Visit:
    yield from do(_ask("what is it?", "read"))
    return {}, Yes()


@state(S.READ, asks={AskModel})
def forgets_to_wait(c: Memory, run: Run) -> Visit:
    return {}, Yes(do(_ask("what is it?", "read")).text)
    yield


@pytest.mark.parametrize(
    ("first", "what"),
    [(asks_undeclared, "declare it in the state's `asks`"), (forgets_to_wait, "write `yield from do(")],
)
def test_mistake_before_the_first_answer_is_said_once(first: Any, what: str) -> None:
    report = verify(machine([first], {S.READ: {Yes: S.DONE}}))
    (one,) = report.counterexamples
    assert what in next(one.lines)
    assert "NOT REPRODUCED" not in report.text


# -- the machine's file --------------------


def unknown_desk(folder: Path, name: str) -> Cassette:
    """A counterexample of a machine that no module of this process has declared."""
    file = folder / f"{name}.py"
    file.write_text(DESK.read_text().replace('"money_desk"', f'"{name}"'))
    (module,) = load_modules([str(file)])
    cassette = found(module.MACHINE)
    assert cassette.counterexample is not None
    way = cassette.counterexample.model_copy(update={"module": f"../{name}.py"})
    return cassette.model_copy(update={"counterexample": way})


def test_command_loads_the_machine_that_the_file_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cassette(unknown_desk(tmp_path, "desk_here"), tmp_path / "found" / "twice.yaml")
    assert execute(["test", str(tmp_path / "found"), "--data-dir", str(tmp_path)]) == 1
    assert "violates 'one payment', after 2 answers" in capsys.readouterr().out


def test_unknown_machine_fails_and_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cassette(unknown_desk(tmp_path, "desk_gone"), tmp_path / "found" / "twice.yaml")
    (tmp_path / "desk_gone.py").unlink()
    assert execute(["test", str(tmp_path / "found"), "--data-dir", str(tmp_path)]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "not judged: unknown machine desk_gone" in shown
    assert "declared in ../desk_gone.py, seen from this file. RATCHET_MODULES=FILE says where it is" in shown


def test_written_file_names_the_machines_own(tmp_path: Path) -> None:
    words = ["verify", "machine", str(DESK), "--out", str(tmp_path / "found"), "--data-dir", str(tmp_path)]
    assert execute(words) == 1
    (file,) = (tmp_path / "found").iterdir()
    way = read_cassette(file).counterexample
    assert way is not None
    assert (file.parent / way.module).resolve() == DESK
