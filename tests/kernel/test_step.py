"""The step function: properties over random machines, and what single machines show."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields, replace
from datetime import UTC, datetime
from enum import Enum
from functools import cached_property, partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from activities.contracts import (
    Answers,
    ArtifactRead,
    ArtifactsRead,
    ArtifactText,
    AskModel,
    AskPerson,
    CallTools,
    Effect,
    EffectFailed,
    MachineEnded,
    Message,
    ModelReplied,
    ReadArtifacts,
    RunMachine,
    Say,
    Together,
    ToolCall,
    ToolResult,
    ToolSpec,
    ToolsReturned,
    do,
)
from tests.kernel.random_machines import Plan, answer, plans, program
from workflows.api import AgentTask, Fork, Origin
from workflows.kernel.context import Context
from workflows.kernel.errors import (
    AgentError,
    BadPatch,
    Closed,
    Drifted,
    EffectError,
    EmptyVisit,
    InputRefused,
    InvariantViolated,
    LimitExceeded,
    MachineError,
    NoTransition,
    RecoverableError,
    UndeclaredAccess,
    bug_line,
    bug_text,
)
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import Record, chain, checkpoints
from workflows.kernel.logged_calls import answered
from workflows.kernel.machine import Event, Exit, Machine, Run, RunInput, State, Visit, state
from workflows.kernel.rollback import forked, restored, restored_context, rolled_back
from workflows.kernel.snapshot import Moment, Program, Suspension, changed, dump
from workflows.kernel.transition import advance, close, leave_interrupt, load, start, steer
from workflows.task import InvalidTask, first_step

seeds = st.lists(st.integers(1, 1000), min_size=60, max_size=60)
PERSON = Message(role="user", content="a person's message")


def facts(step: Suspension) -> tuple[Any, ...]:
    """All that a step is."""
    return step.snapshot, step.ledger, step.effect, step.exit, step.records


@given(plans, seeds)
def test_both_ways_of_resuming_give_the_same_step(found: Any, numbers: list[int]) -> None:
    run = program(found)
    step, now, log = start(run, now=1), 1.0, list[Record]()
    log += step.records
    for number in numbers:
        if step.effect is None:
            break
        now += number
        if number % 7 == 0:
            step = steer(step, PERSON, now=now, by="ann")
            log += step.records
        assert step.effect is not None
        reply = answer(step.effect, number)
        carried = load(run, json.loads(json.dumps(dump(step))))
        assert facts(carried)[:3] == facts(step)[:3]
        live, again, other = (advance(s, reply, now=now) for s in (step, step, carried))
        assert facts(live) == facts(again) == facts(other)
        step = live
        log += step.records
    rebuilt, s = restored(run, log), step.snapshot
    for name in (
        "context",
        "conversation",
        "opening",
        "notes",
        "heard",
        "visit",
        "step",
        "counts",
        "transitions",
        "seq",
    ):
        assert getattr(rebuilt, name) == getattr(s, name), name
    assert restored_context(run.machine, log) == s.context
    if step.exit is None:
        ended = close(step, "aborted", now=now + 1, by="ann")
        assert ended.exit is not None
        assert ended.exit.reason == "aborted"
        assert ended.records[-1].event == "Closed"
        assert restored(run, [*log, *ended.records]).context == ended.snapshot.context


@given(plans, seeds, st.integers(0, 30))
@example([Plan((), False, (0,)), Plan(("ask",), False, (0,))], [1] * 60, 1)  # asks in its second state
def test_rollback_and_fork_begin_the_step_again(found: Any, numbers: list[int], wanted: int) -> None:
    run = program(found)
    step, log, steps = start(run, now=1), list[Record](), dict[int, Suspension]()
    log += step.records
    for number in numbers:
        if step.snapshot.moments == () and step.asked and step.snapshot.state == "s0":
            steps.setdefault(step.snapshot.step, step)
        if step.effect is None:
            break
        step = advance(step, answer(step.effect, number), now=2)
        log += step.records
    points = {point.step for point in checkpoints(log)}
    if wanted not in points:
        with pytest.raises(ValueError, match=f"No step {wanted}"):
            rolled_back(step, log, wanted, now=9, by="ann")
        return
    back = rolled_back(step, log, wanted, now=9, by="ann")
    fork = forked(run, log, wanted, now=9, by="ann")
    assert back.snapshot.branch == 1
    assert back.snapshot.visit > step.snapshot.visit
    assert back.ledger.used("model_calls") >= step.ledger.used("model_calls")
    assert fork.ledger.used("model_calls") <= 1
    for one in (back, fork):
        assert one.snapshot.step >= wanted
    rebuilt = restored(run, [*log, *back.records])
    assert (rebuilt.context, rebuilt.conversation) == (back.snapshot.context, back.snapshot.conversation)
    assert (rebuilt.counts, rebuilt.visit) == (back.snapshot.counts, back.snapshot.visit)
    if wanted in steps and steps[wanted].effect and back.effect and not back.snapshot.moments:
        assert back.snapshot.entry_context == steps[wanted].snapshot.entry_context
        assert back.snapshot.counts == steps[wanted].snapshot.counts


@given(plans, seeds)
def test_rollback_and_fork_go_on_behind_the_end(found: Any, numbers: list[int]) -> None:
    run = program(found)
    step, log = start(run, now=1), list[Record]()
    log += step.records
    for number in numbers:
        if step.effect is not None:
            step = advance(step, answer(step.effect, number), now=2)
            log += step.records
    behind = step.snapshot.step + 1
    is_over = step.snapshot.state in run.machine.final
    assert (behind in {point.step for point in checkpoints(log)}) is is_over
    if not is_over:
        return
    back = rolled_back(step, log, behind, now=9, by="ann")
    fork = forked(run, log, behind, now=9, by="ann")
    for one, records in ((back, [*log, *back.records]), (fork, [*log, *fork.records])):
        assert (one.records[0].to, one.records[0].step) == ("s0", step.snapshot.step)
        rebuilt = restored(run, records)
        assert (rebuilt.context, rebuilt.conversation) == (one.snapshot.context, one.snapshot.conversation)
        assert (rebuilt.counts, rebuilt.step) == (one.snapshot.counts, one.snapshot.step)
        assert rebuilt.transitions == one.snapshot.transitions


def test_reopening_into_a_final_state_is_a_broken_rule() -> None:
    run = machine(lambda c, run: ({}, Did()), step=S.WORK, on_reopen=lambda c: (S.DONE, {}))
    ended = start(run, now=1)
    with pytest.raises(NoTransition, match="`on_reopen` leads to done"):
        forked(run, ended.records, 2, now=2, by="ann")


# -- one state, many ways ---------------------------------------------------------------------------


class S(Enum):
    """Two states."""

    WORK = "work"
    DONE = "done"
    FAILED = "failed"


class Did(Event):
    """Something was done."""


class Other(Event):
    """No row is declared for it."""


class Memory(Context):
    """What the tests' machine remembers."""

    text: str = ""
    items: tuple[int, ...] = ()
    secret: str = ""


class Options(BaseModel, frozen=True):
    """None."""


def machine(visit: Any, **more: Any) -> Program:
    """One state with this visit."""
    rights: dict[str, Any] = {
        "asks": frozenset({AskModel}),
        "reads": frozenset({"text", "items"}),
        "counts": "tries",
    }
    rights |= {"writes": frozenset({"text", "items"}), **more.pop("rights", {})}
    table = more.pop("table", {S.WORK: {Did: S.DONE}})
    return Program(
        Machine(
            **{
                "name": "small",
                "options": Options,
                "context": Memory,
                "begin": lambda given, _: Memory(),
                "initial": S.WORK,
                "table": table,
                "states": [State(S.WORK, visit, **rights), *more.pop("states", [])],
                "step": S.WORK,
                "result": lambda c, run: Exit(reason="done", ok=True, answer=c.text),
                **more,
            }
        ),
        RunInput(goal="go"),
    )


def asks(label: str = "", **more: Any) -> AskModel:
    return AskModel(label=label, say=(Message(role="user", content=f"q{label}"),), **more)


def reads_secret(c: Memory, run: Run) -> Any:
    return {"text": c.secret}, Did()


def writes_secret(c: Memory, run: Run) -> Any:
    return {"secret": "x"}, Did()


def keeps_secret(c: Memory, run: Run) -> Visit:
    yield Say(keep={"secret": "x"})
    return {}, Did()


def calls_tools(c: Memory, run: Run) -> Visit:
    yield CallTools(calls=(ToolCall(id="1", tool="t"),))
    return {}, Did()


def returns_other(c: Memory, run: Run) -> Any:
    return {}, Other()


def returns_nothing(c: Memory, run: Run) -> Any:
    return None


def returns_class(c: Memory, run: Run) -> Any:
    return {}, Did


def returns_misfit(c: Memory, run: Run) -> Any:
    return {"items": ("many",)}, Did()


def misspells_secret(c: Memory, run: Run) -> Any:
    return {"secre": ""}, Did()


def returns_unknown(c: Memory, run: Run) -> Any:
    return {"nowhere": 1}, Did()


@pytest.mark.parametrize(
    ("visit", "error", "culprit"),
    [
        (reads_secret, UndeclaredAccess, "secret"),
        (writes_secret, UndeclaredAccess, "secret"),
        (keeps_secret, UndeclaredAccess, "secret"),
        (calls_tools, UndeclaredAccess, "effect CallTools was asked for; declare it in the state's `asks`"),
        (returns_other, NoTransition, "Other came; expected Did"),
        (returns_nothing, EmptyVisit, "nothing"),
        (returns_class, EmptyVisit, r"the class Did where an event is due; write `Did\(\)`"),
        (returns_misfit, BadPatch, "items"),
        (returns_unknown, UndeclaredAccess, "'nowhere' was written, which is no field of the context "),
        (misspells_secret, UndeclaredAccess, "no field of the context; did you mean `secret`"),
    ],
)
def test_broken_rule_raises_and_names_culprit(visit: Any, error: type[MachineError], culprit: str) -> None:
    """R-000-16, among others: no state chooses its successor beyond the table."""
    with pytest.raises(error, match=culprit):
        start(machine(visit), now=1)


def reads_in_a_helper(c: Memory, run: Run) -> Visit:
    yield asks()
    return _secret_of(c), Did()


def _secret_of(c: Memory) -> Any:
    return {"text": c.secret}


def returns_do(c: Memory, run: Run) -> Any:
    return do(asks())


def yields_do(c: Memory, run: Run) -> Visit:
    yield do(asks())  # type: ignore[misc]  # the mistake
    return {}, Did()


def asks_in_a_helper(c: Memory, run: Run) -> Visit:
    yield from _calling()
    return {}, Did()


def _calling() -> Visit:
    yield from do(asks())
    yield from do(CallTools(calls=(ToolCall(id="1", tool="t"),)))
    return {}, Did()


def returns_event(c: Memory, run: Run) -> Any:
    return Did()


def moves(c: Memory, run: Run) -> Any:
    return {}, Did()


def never_holds(c: Memory, came_from: str) -> str:
    return "never"


def enters_wrongly(c: Memory, came_from: str) -> Any:
    return {"items": "many"}


def closes_wrongly(c: Memory, reason: str) -> Any:
    return {"items": "many"}


def fails(c: Memory, run: Run) -> Visit:
    yield asks()
    raise RecoverableError("no")


def errs_wrongly(c: Memory, error: AgentError, run: Run) -> Any:
    return {}, Other()


def begins_wrongly(given: RunInput, options: Options) -> Any:
    return Context()


@pytest.mark.parametrize(
    ("program", "function", "line", "words"),
    [
        (machine(reads_secret), reads_secret, 1, "'secret' was read; declare it in the state's `reads`"),
        (machine(reads_in_a_helper), _secret_of, 1, "'secret' was read"),
        (
            machine(writes_secret),
            writes_secret,
            0,
            "'secret' was written; declare it in the state's `writes`",
        ),
        (machine(keeps_secret), keeps_secret, 1, "'secret' was written"),
        (machine(partial(writes_secret)), writes_secret, 0, "'secret' was written"),
        (machine(asks_in_a_helper), _calling, 2, "CallTools was asked for; declare it in the state's `asks`"),
        (
            machine(calls_tools, rights={"asks": {CallTools}, "tools": frozenset()}),
            calls_tools,
            1,
            "tool 't' was asked for; declare it in the state's `tools`",
        ),
        (machine(returns_misfit), returns_misfit, 0, "items.0"),
        (machine(returns_other), returns_other, 0, "Other came; expected Did, or a row of the table for it"),
        (machine(returns_event), returns_event, 0, "expected a patch and an event, such as `{}, Did()`"),
        (machine(yields_do), yields_do, 1, "write `yield from do(AskModel(...))`"),
        (machine(returns_do), returns_do, 0, "write `return (yield from do(AskModel(...)))`"),
        (
            machine(moves, states=[State(S.DONE, holds=never_holds)]),
            never_holds,
            0,
            "done does not hold: never",
        ),
        (machine(moves, states=[State(S.DONE, entry=enters_wrongly)]), enters_wrongly, 0, "items"),
        (machine(fails, on_error=errs_wrongly), errs_wrongly, 0, "Other came"),
        (machine(fails, on_close=closes_wrongly), closes_wrongly, 0, "items"),
        (
            machine(moves, begin=begins_wrongly),
            begins_wrongly,
            0,
            "`begin` gave a Context; expected a Memory",
        ),
    ],
)
def test_broken_rule_names_the_line(program: Program, function: Any, line: int, words: str) -> None:
    """The log does not: its hashes are the same wherever the file lies."""
    with pytest.raises(MachineError) as caught:
        advance(start(program, now=1), ModelReplied(text="ok"), now=2)
    place = f"{__file__}, line {function.__code__.co_firstlineno + line}, in {function.__name__}"
    assert (caught.value.author_line, str(caught.value)) == (place, f"{caught.value.text} ({place})")
    assert words in caught.value.problem
    if caught.value.suspension is not None:
        last = caught.value.suspension.records[-1]
        assert (last.error, last.reason) == (caught.value.problem, "")


def test_changed_copy_is_that_of_dataclasses() -> None:
    def asks_once(c: Memory, run: Run) -> Visit:
        reply = yield asks()
        return {"text": reply.text}, Did()

    step = start(machine(asks_once), now=1)
    moment = Moment("ask_model:", None, step.snapshot.entered)
    given: tuple[tuple[Any, dict[str, Any]], ...] = (
        (step, {"records": ()}), (step.snapshot, {"seq": 9}), (moment, {"answer": ModelReplied(text="ok")}),
    )  # fmt: skip
    for one, values in given:
        assert changed(one, **values) == replace(one, **values) != one
        kind = type(one)
        assert all(field.init for field in fields(kind)), "the constructor does nothing else"
        assert not hasattr(kind, "__post_init__")
        assert not any(isinstance(value, cached_property) for value in vars(kind).values())


def test_words_of_thought_or_call_are_logged_once() -> None:
    def repeats(c: Memory, run: Run) -> Visit:
        reply = yield asks()
        return {"text": reply.text}, Did(reply.text)

    def fails(c: Memory, error: Any, run: Run) -> Any:
        return {}, Did(str(error))

    given = start(machine(repeats, on_error=fails), now=1)
    failed = EffectFailed(error="fatal", type="bad_key", message="no key")
    for given_answer, thought in ((ModelReplied(text=" It is late.\n"), " It is late.\n"), (failed, "")):
        last = advance(given, given_answer, now=2).records[-1]
        assert (last.event, last.thought, last.reason) == ("Did", thought, "")


def test_effect_without_yield_from_says_what_to_write() -> None:
    def forgets(c: Memory, run: Run) -> Any:
        return {"text": do(asks()).text}, Did()

    with pytest.raises(AttributeError) as caught:
        start(machine(forgets), now=1)
    assert "no `text`: write `yield from do(AskModel(...))`" in str(caught.value)
    assert f"line {forgets.__code__.co_firstlineno + 1}, in forgets" in bug_line(caught.value)


def test_only_what_begin_refuses_is_the_fault_of_the_task() -> None:
    def begin(given: RunInput, options: Options) -> Memory:
        if given.goal == "refuse":
            raise ValueError("say more")
        return Memory(text=1)

    def asks_wrongly(c: Memory, run: Run) -> Visit:
        yield AskPerson(about="question", text="", options=("yes",))
        return {}, Did()

    with pytest.raises(InputRefused, match="say more"):
        start(replace(machine(moves, begin=begin), input=RunInput(goal="refuse")), now=1)
    for wrong, function, line, words in (
        (
            machine(moves, begin=begin),
            begin,
            3,
            "ValidationError: Memory: text: expected a string, got a number",
        ),
        (
            machine(asks_wrongly),
            asks_wrongly,
            1,
            "ValidationError: AskPerson: options.0: expected 'approve'",
        ),
    ):
        with pytest.raises(ValidationError) as caught:
            start(wrong, now=1)
        place = f"{__file__}, line {function.__code__.co_firstlineno + line}, in {function.__name__}"
        assert bug_text(caught.value).startswith(words)
        assert bug_text(caught.value).endswith(f" ({place})")


def test_broken_rule_leads_to_the_fail_state() -> None:
    run = machine(writes_secret, fail=S.FAILED, on_violation=lambda c, error: {"secret": error.problem})
    step = start(run, now=1)
    assert step.snapshot.state == "failed"
    assert "secret" in step.snapshot.context.secret  # type: ignore[attr-defined]  # the machine's own context
    assert step.records[-1].error
    assert step.records[-1].event == "UndeclaredAccess"
    assert step.author_line == f"{__file__}, line {writes_secret.__code__.co_firstlineno}, in writes_secret"


def test_unenforced_state_may_break_its_rights_and_says_so() -> None:
    step = start(machine(writes_secret, rights={"enforce": False}), now=1)
    assert step.exit is not None
    assert step.records[-1].about == {"enforce": False}


@pytest.mark.parametrize(
    ("visit", "rights", "error"),
    [
        pytest.param(lambda c, run: ({}, Did()), {}, InvariantViolated, id="an invariant"),
        pytest.param(calls_tools, {}, UndeclaredAccess, id="an effect"),
        pytest.param(
            calls_tools,
            {"asks": frozenset({CallTools}), "tools": frozenset()},
            UndeclaredAccess,
            id="a tool",
        ),
    ],
)
def test_unenforced_state_still_keeps_other_rules(
    visit: Any, rights: dict[str, Any], error: type[MachineError]
) -> None:
    done = State(S.DONE, holds=lambda c, came_from: "it never holds", enforce=False)
    with pytest.raises(error):
        start(machine(visit, states=[done], rights={"enforce": False, **rights}), now=1)


def test_invariant_of_the_next_state_is_checked() -> None:
    done = State(S.DONE, holds=lambda c, came_from: f"text is empty after {came_from}" if not c.text else "")
    with pytest.raises(InvariantViolated, match="text is empty after work"):
        start(machine(lambda c, run: ({}, Did()), states=[done]), now=1)


def test_entry_writes_in_the_name_of_the_machine() -> None:
    done = State(S.DONE, entry=lambda c, came_from: {"secret": f"from {came_from}"})
    step = start(machine(lambda c, run: ({}, Did()), states=[done]), now=1)
    assert step.snapshot.context.secret == "from work"  # type: ignore[attr-defined]  # the machine's own context
    with pytest.raises(UndeclaredAccess, match="machine itself"):
        start(machine(lambda c, run: ({}, Did()), states=[done], writes=frozenset({"text"})), now=1)


def test_failed_effect_is_raised_inside_the_visit() -> None:
    failed: list[Any] = []

    def visit(c: Memory, run: Run) -> Visit:
        try:
            yield asks("a")
        except EffectError as error:
            failed.append(error.effect)
            yield asks("b")
        return {"text": "mended"}, Did()

    step = start(machine(visit), now=1)
    step = advance(step, answer(asks(), 6), now=2)
    assert failed == [asks("a")]
    assert len(step.snapshot.conversation) == 0
    step = advance(step, ModelReplied(text="yes"), now=3)
    assert [m.content for m in step.snapshot.conversation] == ["qb", "yes"]
    assert step.exit is not None
    assert step.exit.answer == "mended"


def test_run_says_which_state_an_error_has_left() -> None:
    def visit(c: Memory, run: Run) -> Visit:
        assert run.state is S.WORK
        yield asks()
        return {}, Did()

    left: list[Any] = []

    def on_error(c: Memory, error: AgentError, run: Run) -> Any:
        left.append(run.state)
        return {}, Did()

    step = start(machine(visit, on_error=on_error), now=1)
    advance(step, answer(asks(), 6), now=2)
    assert left == [S.WORK]


def test_failure_without_on_error_ends_the_run() -> None:
    def visit(c: Memory, run: Run) -> Visit:
        yield asks()
        return {}, Did()

    step = start(machine(visit), now=1)
    ended = advance(step, answer(asks(), 6), now=2)
    assert ended.exit is not None
    assert (ended.exit.reason, ended.exit.ok) == ("failed", False)
    assert "HTTP500" in (ended.exit.error or "")


def test_visit_that_asks_otherwise_when_run_again_has_drifted() -> None:
    calls: list[int] = []

    def visit(c: Memory, run: Run) -> Visit:
        calls.append(1)
        yield asks(f"call {len(calls)}")
        yield asks("second")
        return {}, Did()

    step = start(machine(visit), now=1)
    step = advance(step, ModelReplied(text="one"), now=2)
    with pytest.raises(Drifted, match="call 2"):
        advance(replace(step, live=None), ModelReplied(text="two"), now=3)


def test_visit_that_ends_earlier_when_run_again_has_drifted() -> None:
    more = [1]

    def visit(c: Memory, run: Run) -> Visit:
        yield asks("first")
        if more:
            yield asks("second")
            yield asks("third")
        return {}, Did()

    program = machine(visit)
    step = start(program, now=1)
    for now in (2, 3):
        step = advance(step, ModelReplied(text="yes"), now=now)
    more.clear()
    with pytest.raises(Drifted, match="second"):
        load(program, dump(step))
    with pytest.raises(Drifted, match="second"):
        advance(replace(step, live=None), ModelReplied(text="yes"), now=4)


def test_rule_broken_on_way_to_fail_state_is_recorded() -> None:
    run = machine(
        writes_secret,
        fail=S.FAILED,
        writes=frozenset({"text"}),
        on_violation=lambda c, error: {"secret": "x"},
    )
    with pytest.raises(UndeclaredAccess, match="machine itself") as broken:
        start(run, now=1)
    assert broken.value.suspension.records[-1].event == "UndeclaredAccess"


def test_closed_step_can_still_be_advanced() -> None:
    def visit(c: Memory, run: Run) -> Visit:
        reply = yield asks()
        return {"text": reply.text}, Did()

    step = start(machine(visit), now=1)
    first, second = (close(step, "aborted", now=2) for _ in range(2))
    assert facts(first) == facts(second)
    ended = advance(step, ModelReplied(text="yes"), now=2)
    assert ended.exit is not None
    assert ended.exit.answer == "yes"


def test_rollback_keeps_messages_that_nobody_heard() -> None:
    def visit(c: Memory, run: Run) -> Visit:
        yield asks("first")
        yield asks("beside", beside=True)
        return {}, Did()

    step = start(machine(visit), now=1)
    log = [*step.records]
    for text in ("heard", "unheard"):
        message = Message(role="user", content=text)
        step = steer(step, message, now=2, by="ann")
        log += step.records
        if text == "heard":
            step = advance(step, ModelReplied(text="yes"), now=3)
            log += step.records
    back = rolled_back(step, log, 1, now=4, by="ann")
    assert [message.content for message in back.snapshot.inbox] == ["unheard"]
    rebuilt = restored(back.program, [*log, *back.records])
    assert rebuilt.inbox == back.snapshot.inbox
    again = rolled_back(back, [*log, *back.records], 1, now=5, by="ann")
    assert again.snapshot.inbox == back.snapshot.inbox


def entering(**more: Any) -> tuple[Program, Suspension]:
    """A run that has begun; each entry of its state writes a number, and its invariant wants no text."""

    def visit(c: Memory, run: Run) -> Visit:
        reply = yield asks()
        return {}, (Other() if reply.text == "again" else Did())

    rights = {
        "entry": lambda c, left: {"items": (*c.items, len(c.items))},
        "holds": lambda c, left: f"entered from {left}" if c.text else "",
    }
    run = machine(visit, table={S.WORK: {Did: S.DONE, Other: S.WORK}}, rights=rights, **more)
    return run, start(run, now=1)


def test_rollback_restores_the_context_as_its_state_was_entered_with() -> None:
    """Its entry had its turn and its invariant held then: neither is asked again."""
    run, step = entering()
    log = [*step.records]
    for _ in range(2):
        step = advance(step, ModelReplied(text="again"), now=2)
        log += step.records
    assert step.snapshot.context == Memory(items=(0, 1))
    back = rolled_back(step, log, 2, now=3, by="ann")
    assert back.snapshot.context == Memory(items=(0,))
    fork = forked(run, log, 2, now=3, by="ann")
    assert fork.snapshot.context == Memory(items=(0,))
    assert advance(fork, ModelReplied(text="again"), now=4).snapshot.context == Memory(items=(0, 1))


def test_state_behind_an_end_is_entered_as_ever() -> None:
    run, step = entering(on_reopen=lambda c: (S.WORK, {}))
    ended = advance(step, ModelReplied(text="done"), now=2)
    fork = forked(run, [*step.records, *ended.records], 2, now=3, by="ann")
    assert fork.snapshot.context == Memory(items=(0,))
    run, step = entering(on_reopen=lambda c: (S.WORK, {"text": "kept"}))
    ended = advance(step, ModelReplied(text="done"), now=2)
    with pytest.raises(InvariantViolated, match="entered from done"):
        forked(run, [*step.records, *ended.records], 2, now=3, by="ann")


def test_fork_behind_end_that_would_break_rule_is_refused() -> None:
    run, step = entering(on_reopen=lambda c: (S.WORK, {"text": "kept"}))
    log = [*step.records, *advance(step, ModelReplied(text="done"), now=2).records]
    fork = Fork(
        origin=Origin(workflow_id="run-0", run_id="x", step=2),
        records=tuple(record.model_dump(mode="json") for record in log),
    )
    with pytest.raises(InvalidTask, match=r"fork: .* cannot go on from there: .*entered from done"):
        first_step(AgentTask(goal="go on", machine=run.machine.name, fork=fork), run, now=3)


def test_what_a_rollback_writes_is_held_to_the_invariant() -> None:
    _, step = entering(on_rollback=lambda then, before: {"text": "back"})
    log = [*step.records, *advance(step, ModelReplied(text="again"), now=2).records]
    with pytest.raises(InvariantViolated, match="entered from work"):
        rolled_back(step, log, 2, now=3, by="ann")


def test_close_lets_the_visit_return_a_last_patch() -> None:
    def visit(c: Memory, run: Run) -> Visit:
        try:
            yield asks()
        except Closed as closed:
            return {"text": f"closed: {closed}"}, Did()
        return {}, Did()

    run = machine(visit, on_close=lambda c, reason: {"items": (len(c.text),)})
    ended = close(start(run, now=1), "aborted", now=2, error="ann ended it", by="ann")
    assert ended.snapshot.context == Memory(text="closed: aborted", items=(15,))
    assert ended.exit is not None
    assert (ended.exit.reason, ended.exit.error) == ("aborted", "ann ended it")
    assert ended.effect is None


@pytest.mark.parametrize("kept", [True, False], ids=["kept on the way", "patch"])
def test_half_of_a_character_pair_is_not_kept(kept: bool) -> None:
    def visit(c: Memory, run: Run) -> Visit:
        half = json.loads('"\\ud800"')
        if kept:
            yield Say(keep={"text": half})
        return {"text": half}, Did()

    with pytest.raises(BadPatch, match="text: it cannot be written as JSON"):
        start(machine(visit), now=1)


def test_half_of_a_character_pair_can_be_said() -> None:
    def visit(c: Memory, run: Run) -> Visit:
        half = json.loads('"a \\ud800"')
        yield Say(say=(Message(role="user", content=half),))
        return {}, Did(reason=half)

    step = start(machine(visit), now=1)
    assert [m.content for m in step.snapshot.conversation][-1] == "a \\ud800"
    assert step.records[-1].reason == "a \\ud800"
    assert chain(step.records)


def test_last_patch_writes_only_declared_fields() -> None:
    def visit(c: Memory, run: Run) -> Visit:
        with suppress(Closed):
            yield asks()
        return {"text": "mine", "secret": "not mine"}, Did()

    with pytest.raises(UndeclaredAccess, match="secret") as caught:
        close(start(machine(visit), now=1), "aborted", now=2)
    ended = caught.value.suspension
    assert (ended.snapshot.context, ended.records[-1].event) == (Memory(), "UndeclaredAccess")


def test_message_from_a_person_goes_behind_tool_results() -> None:
    def visit(c: Memory, run: Run) -> Visit:
        result = Message(role="tool", content="result", tool_call_id="1")
        yield AskModel(say=(result, Message(role="user", content="go on")))
        assert run.inbox == ()
        return {"text": run.reply.content if run.reply else ""}, Did()

    step = steer(start(machine(visit), now=1), PERSON, now=2, by="ann")
    assert isinstance(step.effect, AskModel)
    assert [m.content for m in step.effect.say] == ["result", PERSON.content, "go on"]
    step = advance(step, ModelReplied(text="ok"), now=3)
    assert step.snapshot.inbox == ()
    assert step.exit is not None
    assert step.exit.answer == "ok"


def test_message_that_came_too_late_stays_in_the_inbox() -> None:
    def visit(c: Memory, run: Run) -> Visit:
        yield asks()
        return {}, Did()

    step = start(machine(visit), now=1)
    under_way = step.effect
    steered = steer(step, PERSON, now=2, by="ann")
    ended = advance(steered, ModelReplied(text="ok"), now=3, effect=under_way)
    assert ended.snapshot.inbox == (PERSON,)
    assert len(ended.snapshot.conversation) == 2


def test_breach_is_returned_and_not_charged() -> None:
    def visit(c: Memory, run: Run) -> Visit:
        yield asks()
        return {}, Did()

    step = start(machine(visit), now=1, ledger=Ledger(caps={"model_calls": 0}))
    assert step.breach is not None
    assert step.breach.counter == "model_calls"
    assert step.ledger.used("model_calls") == 0


def test_transitions_are_limited() -> None:
    def visit(c: Memory, run: Run) -> Any:
        return {}, Did()

    table = {S.WORK: {Did: S.WORK, Other: S.DONE}}
    step = start(machine(visit, table=table, max_transitions=5), now=1)
    assert step.exit is not None
    assert step.exit.reason == "max_transitions"
    assert step.snapshot.transitions == 5
    with pytest.raises(LimitExceeded, match="`tries` allows no more"):
        start(machine(visit, table=table, caps=lambda _: {"tries": 3}), now=1)


def test_effects_of_a_visit_are_limited() -> None:
    def visit(c: Memory, run: Run) -> Visit:
        while True:
            yield asks()

    step = start(machine(visit, max_effects=2), now=1)
    step = advance(step, ModelReplied(text="1"), now=1)
    with pytest.raises(LimitExceeded, match="more than 2 effects"):
        advance(step, ModelReplied(text="2"), now=1)


def test_interrupt_pauses_before_a_state() -> None:
    @state(S.WORK, counts="tries")
    def work(c: Memory, run: Run) -> Any:
        return {}, Did(str(run.now))

    assert work.visit is not None
    run = replace(machine(work.visit), interrupts=lambda snapshot, _: snapshot.state == "work")
    step = start(run, now=1)
    assert step.snapshot.interrupted
    assert step.effect is not None
    assert step.effect.kind == "interrupt"
    with pytest.raises(MachineError, match="paused"):
        advance(step, ModelReplied(text=""), now=2)
    carried = load(run, json.loads(json.dumps(dump(step))))
    assert carried.effect == step.effect
    ended = leave_interrupt(carried, now=5)
    assert ended.exit is not None
    assert ended.records[-1].reason == "5.0"


def test_records_chain_and_survive_json() -> None:
    def visit(c: Memory, run: Run) -> Visit:
        yield asks()
        return {"text": "machine"}, Did("machine")

    step = start(machine(visit), now=1)
    ended = advance(step, ModelReplied(text="ok"), now=2)
    records = [*step.records, *ended.records]
    read = [Record.model_validate_json(record.model_dump_json()) for record in records]
    assert read == records
    assert chain(read) == chain(records)
    assert len(chain(records)) == 64


def test_long_visit_costs_by_what_is_new() -> None:
    def visit(c: Memory, run: Run) -> Visit:
        effect: Effect[Any] = asks()
        for number in range(300):
            effect = asks(str(number), beside=True)
            yield effect
        return {}, Did()

    step = start(machine(visit), now=1)
    for _ in range(300):
        step = advance(step, ModelReplied(text="x"), now=1)
    assert step.exit is not None


# -- what came of calls --------------------


class Ran(Event): ...


class Bare(Context): ...


class Way(Enum):
    GO, END = "go", "end"


def log_of_calls(outputs: dict[str, ToolResult], together: bool = False) -> tuple[Record, ...]:
    """The log of a machine that makes these calls and says nothing of them."""

    @state(Way.GO, asks={CallTools})
    def go(c: Bare, run: Run) -> Visit:
        runs = tuple(ToolCall(id=name, tool=name) for name in outputs)
        if together:
            yield Together(effects=tuple(CallTools(calls=(one,)) for one in runs))
        else:
            yield CallTools(calls=runs)
        return {}, Ran()

    made = Machine(
        name="calls", description="d", options=Options, context=Bare, begin=lambda given, options: Bare(),
        initial=Way.GO, table={Way.GO: {Ran: Way.END}}, states=[go],
        result=lambda c, run: Exit(reason="end", ok=True),
    )  # fmt: skip
    step = start(Program(made, RunInput(goal="g")), now=1)
    replies: Any = ToolsReturned(results=tuple(outputs.values()))
    if together:
        replies = Answers(answers=tuple(ToolsReturned(results=(one,)) for one in outputs.values()))
    return advance(step, replies, now=2).records


def returned(output: str, error: Any = None) -> ToolResult:
    return ToolResult(id="x", tool="x", output=output, error=error)


@pytest.mark.parametrize("together", [False, True])
def test_record_has_what_came_of_each_call(together: bool) -> None:
    (record,) = log_of_calls({"look": returned("it is b"), "pay": returned("no", "rejected")}, together)
    found = [(one.title, one.output, one.error, one.call) for one in record.answered]
    assert found == [("look()", "it is b", None, "look"), ("pay()", "no", "rejected", "pay")]
    assert Record.model_validate_json(record.model_dump_json()) == record


def test_long_results_are_cut() -> None:
    (record,) = log_of_calls({"look": returned("x" * 5_000)})
    assert record.answered[0].output == f"{'x' * 299}…"


@pytest.mark.parametrize("text", ["x", "漢", "\x1b", '"'])
def test_record_of_many_calls_keeps_titles_and_errors_before_outputs(text: str) -> None:
    calls = {f"t{n}": returned(text * 5_000, "rejected" if n else None) for n in range(30)}
    (record,) = log_of_calls(calls)
    assert [(one.title, one.error) for one in record.answered[1:]] == [
        (f"t{n}()", "rejected") for n in range(1, 30)
    ]
    assert record.answered[0].output.startswith(text * 100)
    assert record.answered[-1].output == "[left out]"
    assert len(record.model_dump_json().encode()) < 6_200


def test_record_of_very_many_calls_says_how_many_more() -> None:
    (record,) = log_of_calls({f"t{n}": returned("done") for n in range(500)})
    assert len(record.answered) > 60
    assert record.answered[-1].title == f"and {500 - len(record.answered) + 1} more"
    assert len(record.model_dump_json().encode()) < 6_200


def test_long_reason_of_an_inner_run_is_cut() -> None:
    inner = MachineEnded(machine="m", ok=False, exit_reason="why " * 1_000)
    (ended,) = answered(RunMachine(machine="m", goal="g"), inner, "s#1:0")
    assert ended.error == f"{'why ' * 14}why…"


def test_result_can_be_written_whatever_it_has() -> None:
    (record,) = log_of_calls({"look": returned("a\ud800\x1b]0;b")})
    assert record.model_dump_json().isascii()


def test_inner_run_texts_and_failure_say_what_came_of_them() -> None:
    inner = MachineEnded(machine="m", ok=False, exit_reason="limit", error="too dear")
    failed = EffectFailed(error="recoverable", type="HTTP500", message="down")
    ended, broken = (answered(RunMachine(machine="m", goal="g"), one, "s#1:0")[0] for one in (inner, failed))
    assert (ended.title, ended.output, ended.error) == ("run m: g", "too dear", "limit")
    assert (broken.output, broken.error) == ("down", "HTTP500")
    texts = ArtifactsRead(texts=(ArtifactText(text="a\n"), ArtifactText(problem="no such path")))
    (read,) = answered(ReadArtifacts(reads=(ArtifactRead(digest="d"),)), texts, "s#1:0")
    assert read.output == "a\n\nno such path"


def test_questions_side_by_side_name_the_one_that_failed() -> None:
    asked = tuple(AskModel(label=f"ask #{n}", beside=True) for n in range(3))
    failed = EffectFailed(error="recoverable", type="HTTP500", message="down")
    reply = ModelReplied(text="yes")
    found = answered(Together(effects=asked), Answers(answers=(reply, failed, reply)), "s#1:0")
    assert [(one.title, one.output, one.error) for one in found] == [
        ("ask model (3)", "", None), ("ask #1", "down", "HTTP500"),
    ]  # fmt: skip


@pytest.mark.parametrize(("change", "what"), [
    (lambda c, run: c.table["a"].append(1), "`table` of the context"),
    (lambda c, run: run.options.words.append("x"), "`run.options`"),
    (lambda c, run: run.input.values.update(x=1), "`run.input`"),
    (lambda c, run: run.input.tools[0].parameters.clear(), "the schema of a tool"),
    (lambda c, run: run.counts.pop("tries"), "`run.counts`"),
    (lambda c, run: run.ledger.spent.update(tools=0), "`run.ledger`"),
], ids=["context", "options", "input", "tool", "counts", "ledger"])  # fmt: skip
def test_change_in_place_is_refused_by_name_and_line(change: Any, what: str) -> None:
    def visit(c: Any, run: Run) -> Any:
        change(c, run)

    class Wide(Memory):
        table: dict[str, list[int]] = {"a": []}

    class Words(Options, frozen=True):
        words: list[str] = []

    rights = {"reads": frozenset({"table"})}
    first = Wide().model_copy(update={"table": {"a": []}})
    small = machine(visit, context=Wide, options=Words, begin=lambda *_: first, rights=rights).machine
    tool = ToolSpec(name="t", description="", parameters={"type": "object"})
    with pytest.raises(TypeError) as caught:
        start(Program(small, RunInput("go", tools=(tool,), values={"x": 0})), now=1)
    assert f"{what} is read-only and was changed in place" in str(caught.value)
    assert f"line {change.__code__.co_firstlineno}" in bug_line(caught.value)


@pytest.mark.parametrize("where", ["holds", "entry", "result"])
def test_functions_of_the_machine_change_nothing_in_place(where: str) -> None:
    class Wide(Memory):
        table: dict[str, list[int]] = {"a": []}

    def change(c: Wide, *_: Any) -> Any:
        c.table["a"].append(1)

    of_state = {where: change} if where != "result" else {}
    done = State(S.FAILED, lambda c, run: ({}, Did()), **of_state)  # type: ignore[arg-type]  # it returns nothing
    small = machine(
        lambda c, run: ({}, Did()), context=Wide, begin=lambda *_: Wide(), states=[done],
        table={S.WORK: {Did: S.FAILED}, S.FAILED: {Did: S.DONE}}, **({where: change} if not of_state else {}),
    )  # fmt: skip
    with pytest.raises(TypeError, match="`table` of the context is read-only and was changed in place"):
        start(small, now=1)


def test_what_state_says_first_is_no_call_before_an_interrupt() -> None:
    def visit(c: Memory, run: Run) -> Visit:
        yield Say(say=(Message(role="user", content="hello"),))
        return {}, Did()

    step = start(replace(machine(visit), interrupts=lambda snapshot, program: True), now=1)
    assert (step.snapshot.interrupted, step.records[-1].asked) == (True, ())


def test_time_is_also_a_moment_in_utc() -> None:
    seen: list[datetime] = []

    def visit(c: Memory, run: Run) -> Any:
        seen.append(run.now_utc)
        return {}, Did()

    start(machine(visit), now=90_061.5)
    assert seen == [datetime(1970, 1, 2, 1, 1, 1, 500_000, tzinfo=UTC)]


def test_answer_is_read_only_also_when_the_visit_runs_again() -> None:
    def visit(c: Memory, run: Run) -> Visit:
        ended = yield RunMachine(machine="m", goal="g")
        with suppress(TypeError):
            ended.outcome["n"] += 1
        yield asks()
        return {"text": str(ended.outcome["n"])}, Did()

    program = machine(visit, rights={"asks": frozenset((RunMachine, AskModel))})
    answer = MachineEnded(machine="m", ok=True, exit_reason="stop", outcome={"n": 1})
    step = advance(start(program, now=1), answer, now=2)
    for again in (step, load(program, dump(step))):
        assert advance(again, ModelReplied(text="ok"), now=3).exit == Exit(reason="done", ok=True, answer="1")


def test_misspelt_field_names_line_of_machine_and_nearest_field() -> None:
    def misspells(c: Any, run: Run) -> Any:
        return {}, Did(reason=c.texts)

    with pytest.raises(AttributeError, match="no field 'texts'; did you mean `text`") as caught:
        start(machine(misspells), now=1)
    assert bug_line(caught.value) == f"{__file__}, line {misspells.__code__.co_firstlineno + 1}, in misspells"
