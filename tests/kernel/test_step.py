"""The step function: order, atomic changes, refusals, and everything a visit may do."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernel.puppet import (
    FIELDS,
    ROWS,
    Ask,
    Context,
    Ended,
    Item,
    Looped,
    Play,
    S,
    Stray,
    Told,
    Went,
    puppet,
)
from workflows.kernel.errors import (
    BadPatch,
    EmptyPatch,
    InvariantViolation,
    MachineError,
    NoTransitionError,
    PermissionViolation,
    PreconditionFailed,
    RecoverableError,
    TransitionLimitExceeded,
)
from workflows.kernel.log import STARTED
from workflows.kernel.machine import At, Exit, Row
from workflows.kernel.rebuild import rebuild
from workflows.kernel.snapshot import dump
from workflows.kernel.step import Cause, advance, close, reenter, start

# -- order --------------------------------------------------------------------------------------------


def _marks(word: str) -> Any:
    return lambda c: {"items": (Item(name=word),)}


def _action(word: str) -> Any:
    return lambda event, c: {"items": (Item(name=f"{word} after {[i.name for i in c.items]}"),)}


def test_a_self_transition_runs_exit_action_and_enter_in_this_order() -> None:
    rows = [Row(S.A, Looped, S.A, action=_action("act"), writes={"items"}), *ROWS[1:]]
    play = Play(puppet(rows, {S.A: {"on_exit": _marks("exit"), "on_enter": _marks("enter")}}))
    play.tell(({"items": (Item(name="patch"),)}, Looped()))
    names = [item.name for item in play.context.items]
    assert names == ["enter", "patch", "exit", "act after ['enter', 'patch', 'exit']", "enter"]
    assert [r.writes for r in play.records[1:]] == [("items",), ("items",)]
    assert play.path == [("a", STARTED, "a"), ("a", "on_enter", None), ("a", "Looped", "a")]


def test_a_reset_comes_before_the_callbacks_and_drops_what_the_patch_said() -> None:
    rows = [Row(S.A, Looped, S.A, reset=("items", "goal")), *ROWS[1:]]
    play = Play(puppet(rows, {S.A: {"on_exit": _marks("exit")}}), Context(items=(Item(name="old"),)))
    play.tell(({"items": (Item(name="patch"),), "goal": "new", "total": 2}, Looped()))
    assert [item.name for item in play.context.items] == ["exit"]
    assert (play.context.goal, play.context.total) == ("goal", 2)
    assert play.records[-1].reset == ("items", "goal")
    assert set(play.records[-1].writes) == {"items", "total"}


def test_the_first_row_that_fits_wins_and_a_guard_sees_the_patched_context() -> None:
    many = Row(S.A, Went, S.END, guard=lambda event, c: c.total > 2)
    machine = puppet([ROWS[0], many, *ROWS[1:]])
    assert Play(machine).tell(({"total": 2}, Went())).state is S.B
    assert Play(machine).tell(({"total": 3}, Went())).state is S.END


def test_an_event_of_a_subclass_fits_when_nothing_before_it_does() -> None:
    assert Play(puppet(ROWS[1:])).tell(Looped()).state is S.B
    assert Play(puppet()).tell(Looped()).state is S.A


def test_deciding_states_are_passed_in_one_advance() -> None:
    play = Play(puppet(states={S.B: {"enter": lambda c, at: ({"total": 1}, Ended("done"))}}))
    play.tell(Went("go"))
    assert play.path[1:] == [("a", "Went", "b"), ("b", "Ended", "end")]
    assert play.step.exit is not None
    assert play.step.exit.ok
    assert [(r.reason, r.visit, r.seq) for r in play.records[1:]] == [("go", 1, 1), ("done", 2, 2)]


def test_at_tells_where_and_when() -> None:
    seen = []

    def enter(c: Any, at: Any) -> Any:
        seen.append((at.now, at.state, at.visit, at.call, at.step, at.transitions, at.last and at.last.event))
        return Ask()

    play = Play(puppet(states={S.A: {"enter": enter}, S.B: {"enter": enter}}, step_state=S.A))
    play.tell(Ask(), Went(), Went())
    assert seen == [
        (0.0, S.A, 1, 0, 1, 0, None),
        (2.0, S.B, 2, 0, 1, 1, "Went"),
        (3.0, S.A, 3, 0, 2, 2, "Went"),
    ]
    assert (play.step.snapshot.call, play.step.snapshot.step) == (1, 2)


# -- refusals: recorded, and everything as before --------------------------------------------------------

REFUSED: list[Any] = [
    pytest.param(
        lambda c, at: c.hidden, PermissionViolation, "undeclared field 'hidden' was read", id="read"
    ),
    pytest.param(({"hidden": "x"}, Went()), PermissionViolation, "'hidden' was written", id="overwrite"),
    pytest.param(({"brand_new": 1}, Went()), PermissionViolation, "'brand_new' was written", id="new field"),
    pytest.param(({7: 1}, Went()), PermissionViolation, "the undeclared field 7 was written", id="odd name"),
    pytest.param(({"total": 1, "hidden": "x"}, Went()), PermissionViolation, "'hidden'", id="half good"),
    pytest.param(({"hidden": "x"}, Ask()), PermissionViolation, "'hidden' was written", id="with an effect"),
    pytest.param(
        Ask(kind="ask").model_copy(update={"kind": "run"}), PermissionViolation, "granted", id="kind"
    ),
    pytest.param(({"total": "many"}, Went()), BadPatch, "total: Input should be a valid integer", id="type"),
    pytest.param(({"tree": {"x": {1, 2}}}, Went()), BadPatch, "tree.x", id="no JSON"),
    pytest.param(({"tree": {"x": float("nan")}}, Went()), BadPatch, "nan is no number that JSON", id="nan"),
    pytest.param(({"goal": "\ud800"}, Went()), BadPatch, "surrogates not allowed", id="half a character"),
    pytest.param(({"names": {"b", "a"}}, Went()), BadPatch, "a set has no stable order", id="set"),
    pytest.param(({"slots": {3: "x"}}, Went()), BadPatch, "index 3 is outside 0..0", id="gap"),
    pytest.param(({"items": 7}, Went()), BadPatch, "items: Input should be", id="no items"),
    pytest.param((["total"], Went()), BadPatch, "a list came as a patch", id="no mapping"),
    pytest.param((None, None), EmptyPatch, "the state said nothing", id="nothing"),
    pytest.param(({"total": 1}, None), EmptyPatch, "the state said nothing", id="a patch alone"),
    pytest.param(({}, Went(), Went()), EmptyPatch, "the state said 3 things", id="three things"),
    pytest.param(
        ({"total": 1}, Stray()), NoTransitionError, "Stray came; expected Looped or Went or", id="event"
    ),
    pytest.param(
        ({"total": 8}, Ask()), InvariantViolation, "invariant of a does not hold: 13", id="invariant"
    ),
    pytest.param(({"total": 8}, Went()), InvariantViolation, "invariant of b does not hold", id="target's"),
]


def _unlucky(c: Any, last: Any) -> str:
    return "13 is unlucky" if c.total == 13 else ""


STRICT: dict[S, Any] = {S.A: {"holds": _unlucky}, S.B: {"holds": lambda c, last: c.total != 13}}


@pytest.mark.parametrize(("said", "kind", "message"), REFUSED)
def test_a_refusal_is_recorded_and_leaves_everything_as_it_was(
    said: Any, kind: type[MachineError], message: str
) -> None:
    play = Play(puppet(states=STRICT)).tell(({"total": 5}, Ask()))
    before = dump(play.step.snapshot)
    with pytest.raises(kind) as raised:
        play.tell(said)
    after = raised.value.step
    assert message in str(raised.value)
    assert str(raised.value).startswith("puppet: in state a, ")
    assert {**dump(after.snapshot), "seq": 2} == before
    assert after.snapshot.context is play.context
    (record,) = after.records
    assert (record.event, record.to, record.patch, record.writes) == (kind.__name__, None, {}, ())
    assert record.error == str(raised.value)
    assert record.by == "kernel"


@pytest.mark.parametrize(("said", "kind", "message"), REFUSED)
def test_with_a_fail_state_a_refusal_leads_there(said: Any, kind: type[MachineError], message: str) -> None:
    machine = puppet(
        states=STRICT | {S.FAILED: {"holds": lambda c, last: c.last_error is not None}},
        fail_state=S.FAILED,
        on_violation=lambda error, c: {"last_error": f"{error.state}: {error.problem}"},
    )
    play = Play(machine).tell(({"total": 5}, Ask()), said)
    assert play.state is S.FAILED
    assert play.step.exit is not None
    assert play.context.total == 5
    assert message in play.context.last_error
    record = play.records[-1]
    assert (record.event, record.state, record.to) == (kind.__name__, "a", "failed")
    assert message in str(record.error)
    assert record.writes == ("last_error",)


def test_a_failed_precondition_is_refused_after_the_transition() -> None:
    needs = {"requires": lambda c, last: "" if c.total else "nothing was counted"}
    with pytest.raises(PreconditionFailed, match="in state b, the precondition does not hold: nothing was"):
        Play(puppet(states={S.B: needs})).tell(Went())
    assert Play(puppet(states={S.B: needs})).tell(({"total": 1}, Went())).state is S.B


@pytest.mark.parametrize("verdict", [False, None, 0, "no"])
def test_a_check_that_says_anything_but_yes_does_not_hold(verdict: Any) -> None:
    """Also one that forgot its `return`."""
    with pytest.raises(InvariantViolation):
        Play(puppet(states={S.B: {"holds": lambda c, last: verdict}})).tell(Went())


def test_an_invariant_sees_the_transition_in_the_making_as_the_last_record() -> None:
    """Spec 3.5: in Observing, when the previous lifecycle was Acting, an action must be set."""
    seen: list[Any] = []

    def holds(c: Any, last: Any) -> bool:
        seen.append((last.state, last.to))
        return True

    Play(puppet(states={S.B: {"holds": holds}})).tell(Went(), ({"total": 1}, Ask()))
    assert set(seen) == {("a", "b")}


def test_an_undeclared_tool_is_refused() -> None:
    class Tools(Ask):
        """An effect that names a tool."""

        @property
        def tools(self) -> tuple[str, ...]:
            """The one tool."""
            return ("rm",)

    machine = puppet(states={S.A: {"tools": frozenset({"ls"})}})
    with pytest.raises(PermissionViolation, match=r"the tool 'rm' was asked for; granted are \['ls'\]"):
        Play(machine).tell(Tools())
    assert Play(puppet()).tell(Tools()).step.effect == Tools()


def test_what_callbacks_and_actions_write_is_held_to_the_declarations_too() -> None:
    hidden: Any = lambda *_: {"hidden": "x"}  # noqa: E731  # one function for three slots
    for machine in (
        puppet(states={S.A: {"on_exit": hidden}}),
        puppet(states={S.B: {"on_enter": hidden}}),
        puppet([*ROWS[:1], Row(S.A, Went, S.B, action=hidden), *ROWS[2:]]),
    ):
        with pytest.raises(PermissionViolation, match="'hidden' was written"):
            Play(machine).tell(Went())


def test_the_context_of_another_class_is_refused() -> None:
    with pytest.raises(BadPatch, match="a Item came as context; expected a Context"):
        Play(puppet(), Item(name="x"))
    with pytest.raises(BadPatch, match="the first context does not fit: inf is no number"):
        Play(puppet(), Context(tree={"x": float("inf")}))


def test_an_answer_to_a_run_that_is_over_is_refused() -> None:
    play = Play(puppet()).tell(Ended())
    with pytest.raises(MachineError, match="an answer came, but the run is over"):
        play.tell(Went())


# -- the fail state -------------------------------------------------------------------------------------


def test_a_broken_rule_inside_the_fail_state_raises() -> None:
    slots = {"enter": lambda c, at: c.hidden, "reads": {"goal"}}
    machine = puppet(states={S.FAILED: slots}, fail_state=S.FAILED)
    with pytest.raises(PermissionViolation, match="in state failed, the undeclared field 'hidden'") as raised:
        Play(machine).tell(Stray())
    assert raised.value.step.snapshot.state is S.FAILED
    assert [r.event for r in raised.value.step.records] == ["NoTransitionError", "PermissionViolation"]


@pytest.mark.parametrize(
    "slots",
    [
        {"on_violation": lambda error, c: {"nowhere": 1}},
        {"states": {S.FAILED: {"holds": lambda c, last: "no error is set"}}},
    ],
)
def test_a_fail_state_that_cannot_be_entered_raises_with_both_reasons(slots: Any) -> None:
    play = Play(puppet(fail_state=S.FAILED, **slots))
    with pytest.raises(
        NoTransitionError, match=r"Stray came.*; the fail state cannot be entered: "
    ) as raised:
        play.tell(Stray())
    assert raised.value.step.snapshot.state is S.A
    assert [r.to for r in raised.value.step.records] == [None]


def test_the_fail_state_runs_its_on_enter_and_may_have_an_effect() -> None:
    last_words = {
        "on_enter": lambda c: {"total": 1},
        "enter": lambda c, at: Ask(),
        "resume": lambda c, t, at: None,
    }
    slots = {**last_words, "grants": {"ask"}, "writes": {"total"}}
    play = Play(puppet(states={S.FAILED: slots}, fail_state=S.FAILED)).tell(Stray())
    assert (play.state, play.context.total, play.step.effect) == (S.FAILED, 1, Ask())
    assert play.tell("anything").step.exit is not None


# -- views ----------------------------------------------------------------------------------------------


def _set(c: Any, at: Any) -> None:
    c.goal = "x"


def _delete(c: Any, at: Any) -> None:
    del c.goal


def _nested(c: Any, at: Any) -> None:
    c.item.name = "x"


IN_PLACE: list[Any] = [
    _set,
    _delete,
    _nested,
    lambda c, at: c.names.append("x"),
    lambda c, at: c.names.sort(),
    lambda c, at: c.names.__iadd__(["x"]),
    lambda c, at: c.tree.update(x=1),
    lambda c, at: c.tree.setdefault("x", 1),
    lambda c, at: c.tree["deep"].pop("list"),
    lambda c, at: c.tree["deep"]["list"].append(2),
    lambda c, at: c.tree.__ior__({"x": 1}),
    lambda c, at: c.item.tags.clear(),
    lambda c, at: c.item.more["deep"]["list"].insert(0, 2),
]


@pytest.mark.parametrize("change", IN_PLACE)
def test_what_a_view_shows_cannot_be_changed_in_place(change: Any) -> None:
    play = Play(puppet(), Context(names=["b", "a"], tree={"deep": {"list": [1]}}))
    before = dump(play.step.snapshot)
    with pytest.raises((TypeError, ValueError)):
        play.tell(change)
    assert dump(play.step.snapshot) == before


def test_a_view_works_with_properties_methods_and_counts_what_they_read() -> None:
    play = Play(puppet())
    play.tell(lambda c, at: ({"why": f"{c.loud} {c.said('yes')} {len(c.items)} {c!r}"}, Went()))
    assert play.context.why == "GOAL goal yes 0 View(Context)"
    assert play.records[-1].reads == ("goal", "items")


def test_the_reads_of_a_record_are_those_that_were_really_read() -> None:
    play = Play(puppet()).tell(lambda c, at: ({"total": c.total + 1}, Ask()), Went())
    assert [r.reads for r in play.records[1:]] == [("total",), ()]


def test_what_was_read_before_an_effect_is_in_the_record_behind_it() -> None:
    reading = {"enter": lambda c, at: Ask() if c.goal else None}
    play = Play(puppet(states={S.A: reading}))
    play.tell(lambda c, at: Ask() if c.items else ({"total": c.total}, Ask()), Went())
    assert [r.reads for r in play.records[1:]] == [("goal", "items", "total"), ()]


def test_a_read_of_a_precondition_counts() -> None:
    play = Play(puppet(states={S.B: {"requires": lambda c, last: c.total == 0}})).tell(Went(), Went())
    assert play.records[-1].reads == ("total",)


def test_what_is_no_member_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Context has no field or member 'model_dump'"):
        Play(puppet()).tell(lambda c, at: c.model_dump())


def test_without_enforcement_one_state_reads_and_writes_what_it_did_not_declare() -> None:
    open_state = {"enforce": False, "reads": (), "writes": (), "on_exit": lambda c: {"goal": "left"}}
    play = Play(puppet(states={S.A: open_state}))
    play.tell(lambda c, at: ({"hidden": c.hidden + "!"}, Went("because")))
    assert (play.context.hidden, play.context.goal) == ("secret!", "left")
    reason = play.records[-1].reason
    assert reason == (
        "because; undeclared writes let through (enforcement is off): ['hidden']; "
        "undeclared writes let through (enforcement is off): ['goal']"
    )
    with pytest.raises(PermissionViolation):
        play.tell(({"hidden": "x"}, Went()))


def test_without_enforcement_a_field_that_does_not_exist_is_still_refused() -> None:
    with pytest.raises(PermissionViolation, match="'nowhere' was written; declared writes are"):
        Play(puppet(states={S.A: {"enforce": False}})).tell(({"nowhere": 1}, Went()))


# -- visits with several effects ------------------------------------------------------------------------


def test_a_visit_may_ask_again_and_patches_are_kept_at_each_effect() -> None:
    play = Play(puppet()).tell(({"total": 1}, Ask()), ({"total": 1}, Ask()), ({"total": 1}, Went()))
    assert play.context.total == 3
    assert play.path[1:] == [("a", "ask", None), ("a", "ask", None), ("a", "Went", "b")]
    assert [r.visit for r in play.records[1:]] == [1, 1, 1]
    assert [(r.started, r.finished) for r in play.records[1:]] == [(0, 1), (1, 2), (2, 3)]


def test_effects_of_one_visit_are_bounded() -> None:
    play = Play(puppet(states={S.A: {"max_effects": 2}})).tell(Ask())
    with pytest.raises(TransitionLimitExceeded, match="one visit asked for more than 2 effects"):
        play.tell(({"total": 1}, Ask()))
    assert play.tell(Went(), Went(), Ask()).state is S.A


def test_a_final_state_may_have_effects_and_a_last_patch() -> None:
    slots = {"enter": lambda c, at: Ask(), "resume": lambda c, t, at: ({"goal": t.said}, None)}
    play = Play(puppet(states={S.END: {**slots, "grants": {"ask"}, "writes": FIELDS}})).tell(Ended())
    assert (play.state, play.step.effect, play.step.exit) == (S.END, Ask(), None)
    play.tell("summary")
    assert play.step.exit is not None
    assert play.step.exit.answer == "summary"
    assert play.path[-1] == ("end", "Finished", None)


def test_transitions_are_bounded_and_the_run_closes_where_it_is() -> None:
    machine = puppet(states={s: {"enter": lambda c, at: Went()} for s in (S.A, S.B)}, max_transitions=5)
    play = Play(machine)
    assert play.step.exit is not None
    assert (play.step.exit.reason, play.step.exit.ok, play.state) == ("max_transitions", False, S.B)
    assert play.step.snapshot.transitions == 5
    assert play.records[-1].event == "Closed"


def test_a_final_state_may_be_entered_also_when_no_transition_is_left() -> None:
    play = Play(puppet(max_transitions=1)).tell(Went(), Ended())
    assert play.step.exit is not None
    assert (play.step.exit.reason, play.step.exit.ok) == ("end", True)


def test_ten_thousand_decisions_in_one_advance_need_no_stack() -> None:
    machine = puppet(states={s: {"enter": lambda c, at: Went()} for s in (S.A, S.B)})
    assert len(Play(machine).records) == 10_002


# -- events that fit nothing ----------------------------------------------------------------------------


def test_an_unmatched_event_is_tried_again_up_to_the_bound() -> None:
    machine = puppet(on_unmatched="stay", max_unmatched=3, step_state=S.A)
    play = Play(machine).tell(({"total": 9}, Stray()), Stray(), Stray())
    assert play.path[1:] == [("a", "Stray", None)] * 3
    assert play.records[-1].reason == "Stray came; expected Looped or Went or Ended"
    assert (play.context.total, play.step.snapshot.step, play.step.snapshot.visit) == (0, 1, 4)
    with pytest.raises(NoTransitionError):
        play.tell(Stray())
    assert play.tell(Went(), Went(), Stray(), Stray(), Stray()).state is S.A


def test_a_deciding_state_whose_event_never_fits_is_bounded_too() -> None:
    machine = puppet(states={S.A: {"enter": lambda c, at: Stray()}}, on_unmatched="stay")
    with pytest.raises(NoTransitionError) as raised:
        Play(machine)
    assert len(raised.value.step.records) == 102


def test_an_unmatched_event_may_end_the_run_or_lead_to_the_fail_state() -> None:
    play = Play(puppet(on_unmatched="end")).tell(Stray())
    assert play.step.exit is not None
    assert (play.step.exit.reason, play.state) == ("dead_end", S.A)
    failing = puppet(on_unmatched="fail", fail_state=S.FAILED)
    assert Play(failing).tell(Stray()).state is S.FAILED


# -- closing and entering again --------------------------------------------------------------------------


def test_close_ends_a_run_in_the_state_it_is_in() -> None:
    play = Play(puppet()).tell(Went())
    closed = close(play.machine, play.step, "cancelled", now=9, error="by request", by="ann")
    assert closed.exit is not None
    assert (closed.exit.reason, closed.exit.error, closed.exit.ok) == ("cancelled", "by request", False)
    assert (closed.snapshot.state, closed.effect) == (S.B, None)
    assert (closed.records[0].reason, closed.records[0].by) == ("cancelled: by request", "ann")


def test_a_run_that_is_closed_in_the_middle_is_never_ok() -> None:
    content = puppet(result=lambda c, state: Exit(reason="fine", ok=True))
    ended = close(content, Play(content).step, "aborted", now=1).exit
    assert ended is not None
    assert (ended.reason, ended.ok) == ("aborted", False)


def test_on_error_is_asked_once_in_each_visit_also_when_one_follows_the_other_at_once() -> None:
    def broken(c: Any, at: At) -> Any:
        raise RecoverableError(at.state.value)

    fails: Any = {"enter": broken, "resume": None, "grants": set()}
    on_error: Any = {"recoverable": lambda c, f, at: Went() if f.message == "a" else Ended()}
    play = Play(puppet(states={S.A: fails, S.B: fails}, on_error=on_error))
    assert [event for _, event, _ in play.path] == ["Started", "Went", "Ended"]


def test_reenter_makes_another_visit_of_the_same_step_with_a_fresh_effect() -> None:
    play = Play(puppet(step_state=S.A)).tell(Ask())
    cause = Cause("Steered", by="ann", reason="look elsewhere")
    again = reenter(play.machine, play.step, cause, now=9, patch={"hidden": "told"})
    s = again.snapshot
    assert (s.state, s.visit, s.call, s.step, s.context.hidden) == (S.A, 2, 1, 1, "told")
    assert again.effect == Ask()
    (record,) = again.records
    assert (record.event, record.to, record.by, record.writes) == ("Steered", None, "ann", ("hidden",))
    with pytest.raises(BadPatch):
        reenter(play.machine, play.step, cause, now=9, patch={"total": "x"})


# -- the log --------------------------------------------------------------------------------------------


def test_records_count_from_zero_and_carry_what_was_spent() -> None:
    play = Play(puppet(step_state=S.A)).tell(Went(), Went(), Ended())
    assert [r.seq for r in play.records] == [0, 1, 2, 3]
    assert [r.counters.get("rounds", 0) for r in play.records] == [0, 1, 1, 2]
    assert [r.counters.get("seconds", 0) for r in play.records] == [0, 1, 2, 3]
    assert [r.step for r in play.records] == [0, 1, 1, 2]
    assert {r.machine for r in play.records} == {"puppet"}


def test_reasons_and_errors_are_cut_and_can_be_written() -> None:
    play = Play(puppet()).tell(Went("x" * 5000), Went("half \ud800"))
    assert play.records[1].reason == "x" * 1000 + " [... 5,000 characters]"
    assert play.records[2].reason == "half ?"
    assert [r.model_dump_json() for r in play.records]
    with pytest.raises(BadPatch) as raised:
        play.tell(({"n" * 3000: 1, "total": "x"}, Went())) if False else play.tell(
            ({"total": "x" * 9}, Went())
        )
    assert len(raised.value.step.records[0].error) < 1100


def test_an_event_that_is_called_started_is_an_event_like_others() -> None:
    started = type("Started", (Went,), {})
    play = Play(puppet(ROWS[1:])).tell(({"total": 1}, started()))
    assert play.path[-1] == ("a", "Started", "b")
    assert rebuild(play.machine, play.records) == (S.B, play.context)


def test_start_and_advance_are_pure() -> None:
    """The same answers from the same step give the same, and the step stays what it was."""
    machine = puppet()
    step = start(machine, Context(), now=0)
    play = Play(machine)
    answer = {"said": ({"items": (Item(name="x"),)}, Went())}
    first = advance(machine, step, Told(**answer), now=1)
    assert advance(machine, step, Told(**answer), now=1) == first
    assert step == play.step
