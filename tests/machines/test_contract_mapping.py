"""Filling slots from artifacts (spec 5.10)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.contracts import CallModel, Message
from activities.contracts_artifacts import ArtifactsRead, ArtifactText, ReadArtifacts
from tests.machines.answers import failed, tool_failed
from tests.machines.contractkit import call, contract, done, events, made, maps, read, rerun, say
from tests.machines.driver import Play
from workflows.kernel.step import Cause, advance, close, reenter
from workflows.machines.contract_mapping import KEPT_CHARS, place_of, wishes_of
from workflows.machines.contract_reply import read_decision

FILE = [{"name": "answer", "type": "file"}]
DRAFT = [{"slot_name": "answer", "source_path": "found", "draft": True}]


def mapped(*before: Any, reply: Any = None, **options: Any) -> Play:
    """A run that makes an artifact `found` and then maps it, or says `reply`."""
    return contract(*(before or (call(), made("42"))), reply or done(("answer", "found")), **options)


def report(run: Play) -> dict[str, Any]:
    """The last event about mappings."""
    return events(run, "best_effort_mapping")[-1]


def drops(run: Play) -> list[tuple[str, str]]:
    """What was dropped: (path, reason)."""
    return [(one["path"], one["reason"]) for one in report(run)["dropped"]]


def test_a_slot_takes_the_text_at_its_path_and_remembers_the_artifact() -> None:
    rows = {"rows": [{"name": "Ann"}]}
    run = contract(
        call("data"), made(rows), done(**maps(("answer", "data.rows[0].name"), gaps="the others", draft=True))
    )
    slot = run.context.slots["answer"]
    assert (slot.artifact_id, slot.path, slot.text) == ("data", ".rows[0].name", "Ann")
    assert (slot.gaps, slot.draft, slot.chars, slot.digest) == (
        "the others", True, 3, run.context.artifacts["data"].artifact.digest,
    )  # fmt: skip
    assert report(run) == {
        "event": "best_effort_mapping", "round": 2, "applied": ["answer"], "dropped": [], "errors": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("slot", "path"), [("nosuch", "found"), ("answer", ""), ("", "found"), ("answer", " ")]
)
def test_without_a_known_slot_and_a_path_it_is_dropped(slot: str, path: str) -> None:
    run = mapped(reply=rerun("found", **maps((slot, path))))
    assert drops(run) == [(path.strip(), "missing_slot_or_path")]


def test_an_artifact_that_this_rounds_call_is_to_make_is_dropped() -> None:
    run = contract(call("found", **maps(("answer", "found.a"))), made("42"))
    assert drops(run) == [("found.a", "future_artifact")]


def test_an_artifact_that_is_there_may_be_mapped_beside_a_call_for_one_of_that_name() -> None:
    run = contract(call(), made("42"), call("found", **maps(("answer", "found"))), made("43"), done())
    assert run.exit.answer == "42"
    assert list(run.context.artifacts) == ["found", "found@2"]


def test_an_artifact_that_was_not_there_when_the_round_began_is_dropped() -> None:
    run = mapped(reply=done(("answer", "founded")))
    assert drops(run) == [("founded", "not_in_round_snapshot")]


@pytest.mark.parametrize(
    ("before", "path"),
    [
        ((call(), made("42")), "found.a"),
        ((call(), made({"a": 1})), "found.b"),
        ((call(), made({"a": 1})), "found[0]"),
        ((call(), made({"a": 1})), "found.a["),
        ((call(), made(None)), "found"),
        ((call(), tool_failed("failed")), "found"),
        ((call(), made("42", error="half of it")), "found"),
    ],
)
def test_what_cannot_be_resolved_now_is_dropped(before: tuple[Any, ...], path: str) -> None:
    run = mapped(*before, reply=rerun("found", **maps(("answer", path))))
    assert drops(run) == [(path, "not_resolvable_now")]
    assert run.context.slots == {}


def test_a_body_that_is_lost_drops_the_mapping_and_the_run_goes_on() -> None:
    lost = ArtifactsRead(texts=(ArtifactText(problem="the store has no such blob"),))
    run = contract(call(), made("42"), rerun("found", **maps(("answer", "found"))), lost)
    assert drops(run) == [("found", "not_resolvable_now")]
    assert report(run)["errors"] == ["found: the store has no such blob"]
    assert run.last.exit is None


def test_a_read_that_answers_too_little_drops_the_rest() -> None:
    run = contract(call(), made("42"), done(("answer", "found")), ArtifactsRead(texts=()))
    assert drops(run) == [("found", "not_resolvable_now")]


@pytest.mark.parametrize(
    ("kind", "mapping", "filled"),
    [
        ("file", maps(("answer", "found")), True),
        ("text", maps(("answer", "found")), False),
        ("text", {"map_slots": DRAFT}, True),
        ("file", maps(("answer", "found[0]")), False),
    ],
)
def test_a_file_slot_needs_a_file_or_a_draft(kind: str, mapping: dict[str, Any], filled: bool) -> None:
    run = contract(call(), made("42", type=kind), done(**mapping), done(), slots=FILE)
    assert ("answer" in run.context.slots) == filled
    assert drops(run) == ([] if filled else [(mapping["map_slots"][0]["source_path"], "not_resolvable_now")])


@pytest.mark.parametrize(("slots", "filled"), [(FILE, True), ([{"name": "answer"}], False)])
def test_bytes_fill_a_file_slot_but_no_inline_one(slots: list[Any], filled: bool) -> None:
    raw = ArtifactsRead(texts=(ArtifactText(binary=True),))
    mapping = done(("answer", "found"))
    run = contract(call(), made("42", type="file"), mapping, raw, done(), slots=slots)
    assert ("answer" in run.context.slots) == filled
    if filled:
        assert run.exit.ok
        assert run.exit.answer == f"(a file that is no text: {run.context.slots['answer'].digest})"


def test_a_later_mapping_of_a_slot_wins() -> None:
    run = contract(
        call("a", "b"), made("1", "2"), rerun("a", **maps(("answer", "a"))),
        done(("answer", "a"), ("answer", "b")),
    )  # fmt: skip
    assert run.exit.answer == "2"


def test_what_is_mapped_is_read_in_one_effect_of_the_same_visit() -> None:
    slots = [{"name": "x"}, {"name": "y"}]
    run = contract(
        call("a"), made({"b": 1, "c": 2}), done(("x", "a.b"), ("q", "a"), ("y", "a.c")), slots=slots
    )
    reads = [effect for effect in run.effects if isinstance(effect, ReadArtifacts)]
    assert [[read.path for read in effect.reads] for effect in reads] == [[".b", ".c"]]
    assert run.exit.answer == "x:\n1\n\ny:\n2"


def test_a_long_text_stays_in_the_store_until_the_run_ends() -> None:
    long = "x" * (KEPT_CHARS + 1)
    run = contract(call(), made(long), rerun("found", **maps(("answer", "found"))), done())
    held = run.steps[-3].snapshot.context.slots["answer"]
    assert (held.text, held.preview, held.chars) == (None, "x" * 200, KEPT_CHARS + 1)
    assert run.exit.answer == long
    assert run.exit.outcome["slots"]["answer"]["text"] == long  # type: ignore[index,call-overload]  # it is an object


def test_a_slot_is_cut_at_its_limit_in_the_result_and_says_so() -> None:
    run = contract(call(), made("x" * 9000), done(("answer", "found")), slot_chars=5000)
    slot = run.context.slots["answer"]
    assert (slot.text, slot.chars, slot.cut) == (
        "x" * 5000 + "\n[4000 of 9000 characters left out]", 9000, 4000,
    )  # fmt: skip
    assert (run.exit.ok, run.exit.answer) == (True, slot.text)
    assert events(run, "slot_cut") == [
        {"event": "slot_cut", "round": 2, "slot": "answer", "left_out": 4000, "chars": 9000}
    ]


LONG = "x" * 9000
FOUND = ArtifactsRead(texts=(ArtifactText(text=LONG[:KEPT_CHARS], chars=9000),))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (
            ArtifactsRead(texts=(ArtifactText(problem="the store has no such blob"),)),
            "the store has no such blob",
        ),
        (ArtifactsRead(texts=(ArtifactText(binary=True),)), "its body is no text any more"),
        (ArtifactsRead(texts=()), "nothing was read"),
    ],
)
def test_a_slot_whose_text_is_lost_at_the_end_is_not_filled(answer: ArtifactsRead, problem: str) -> None:
    run = contract(call(), made(LONG), done(("answer", "found")), FOUND, answer)
    assert (run.exit.ok, run.exit.reason, run.exit.outcome["missing"]) == (
        False, "incomplete_contract", ["answer"],
    )  # fmt: skip
    assert run.exit.answer == f"{'x' * 200}\n[the text is lost: {problem}; 8800 of 9000 characters left out]"
    assert events(run, "slot_lost") == [
        {"event": "slot_lost", "round": 2, "slot": "answer", "problem": problem}
    ]
    (report,) = events(run, "contract_validation_failed")
    assert (report["missing"], report["filled"]) == (["answer"], [])
    assert [event["event"] for event in events(run)][-1] == "exit"


def test_a_store_that_cannot_be_asked_at_the_end_loses_the_texts_but_not_the_run() -> None:
    def reader(effect: ReadArtifacts) -> Any:
        return failed("transient") if effect.label == "read the texts of the slots" else read(effect)

    slots = [{"name": "answer"}, {"name": "short"}]
    pairs = (("answer", "a"), ("short", "b"))
    run = contract(call("a", "b"), made(LONG, "42"), done(*pairs), slots=slots, reader=reader)
    assert (run.exit.ok, run.exit.reason, run.exit.outcome["missing"]) == (
        False, "incomplete_contract", ["answer"],
    )  # fmt: skip
    assert run.context.slots["answer"].problem == "HTTP503: server is down"
    assert run.context.slots["short"].text == "42"


def test_a_run_that_is_closed_before_a_long_text_was_read_says_what_is_left_out() -> None:
    run = contract(call(), made(LONG), rerun("found", **maps(("answer", "found"))))
    step = close(run.machine, run.last, "cancelled", now=2000)
    assert step.exit is not None
    assert step.exit.answer == f"{'x' * 200}\n[8800 of 9000 characters left out]"


def test_only_what_was_there_when_the_decision_was_asked_for_can_be_mapped() -> None:
    """The snapshot of the round counts, not what is there now (spec 5.7, 3; 5.10)."""
    c = contract(call(), made("42")).context
    decision = read_decision(done(("answer", "found")).text)
    (wish,) = wishes_of(c, decision)
    assert wish.dropped is None
    (wish,) = wishes_of(c.model_copy(update={"round_snapshot_artifact_ids": ()}), decision)
    assert wish.dropped == "not_in_round_snapshot"


def test_long_paths_are_cut_in_the_log() -> None:
    long = "a" * 10_000
    run = mapped(reply=rerun("found", **maps(("answer", f"found.{long}"), (long, "found"), ("answer", long))))
    assert len(report(run)["dropped"]) == 3
    assert len(str(report(run))) < 3000


def test_a_part_of_a_file_does_not_fill_a_file_slot() -> None:
    run = contract(call(), made([1], type="file"), done(("answer", "found[0]")), done(), slots=FILE)
    assert run.context.slots == {}
    assert drops(run) == [("found[0]", "not_resolvable_now")]


def test_bytes_are_no_draft() -> None:
    raw = ArtifactsRead(texts=(ArtifactText(binary=True),))
    draft = done(("answer", "found"), map_slots=DRAFT)
    run = contract(call(), made("42", type="file"), draft, raw, done(), slots=FILE)
    assert run.context.slots == {}
    assert report(run)["errors"] == ["found: it is no text"]


def test_a_message_while_a_mapping_is_looked_up_supersedes_the_decision() -> None:
    """The model is asked again in the same round; nothing was mapped or charged for what it said."""
    run = contract(call(), made("42"), done(("answer", "found")))
    (waits,) = [
        step for step in run.steps if step.effect is not None and step.effect.kind == "read_artifacts"
    ]
    patch = {"transcript": (Message(role="user", content="use metres"),)}
    step = reenter(run.machine, waits, Cause("Steered", by="ann"), now=2000, patch=patch)
    assert isinstance(step.effect, CallModel)
    told = step.effect.transcript.messages
    assert [m.role for m in told[-3:]] == ["assistant", "user", "user"]
    assert told[-1].content.startswith("JOURNAL of round 2\n")
    assert "- answer (inline) pending" in told[-1].content
    c = step.snapshot.context
    assert (c.slots, c.round_index, c.budget.spent["decisions"]) == ({}, 2, 1)
    step = advance(run.machine, step, done(("answer", "found")), now=2001)
    assert isinstance(step.effect, ReadArtifacts)
    step = advance(run.machine, step, read(step.effect), now=2002)
    assert step.exit is not None
    assert (step.exit.answer, step.snapshot.context.budget.spent["decisions"]) == ("42", 2)


# -- paths --------------------


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("rows", ("rows", "")),
        ("rows[0].name", ("rows", "[0].name")),
        ("rows.a", ("rows.a", "")),
        ("rows.a.b", ("rows.a", ".b")),
        ("rows.b", ("rows", ".b")),
        ("rowsx", None),
        ("", None),
    ],
)
def test_the_longest_known_id_is_the_artifact(path: str, place: tuple[str, str] | None) -> None:
    assert place_of(path, ["rows", "rows.a", "ro"]) == place


@given(st.text(max_size=8), st.lists(st.text(min_size=1, max_size=4), max_size=4))
def test_any_path_is_split_into_an_id_and_the_rest(path: str, known: list[str]) -> None:
    place = place_of(path, known)
    assert place is None or ("".join(place) == path and place[0] in known)


def test_decisions_without_mappings_read_nothing() -> None:
    run = contract(say("exit", "exit"), slots=[])
    assert [effect.kind for effect in run.effects] == ["call_model"]
