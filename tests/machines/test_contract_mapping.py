"""Filling slots from artifacts (spec 5.10)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.contracts_artifacts import ArtifactsRead, ArtifactText, ReadArtifacts
from tests.machines.answers import tool_failed
from tests.machines.contractkit import call, contract, done, events, made, maps, rerun, say
from tests.machines.driver import Play
from workflows.machines.contract_mapping import KEPT_CHARS, place_of

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


def test_a_slot_is_cut_at_its_limit_in_the_result() -> None:
    run = contract(call(), made("x" * 9000), done(("answer", "found")), slot_chars=5000)
    slot = run.context.slots["answer"]
    assert (len(slot.text or ""), slot.chars) == (5000, 9000)


def test_a_long_text_that_is_lost_at_the_end_leaves_its_preview() -> None:
    long, lost = "x" * 9000, ArtifactText(problem="lost")
    texts = ArtifactsRead(texts=(ArtifactText(text=long[:KEPT_CHARS], chars=9000),))
    run = contract(call(), made(long), done(("answer", "found")), texts, ArtifactsRead(texts=(lost,)))
    assert (run.exit.ok, run.exit.answer) == (True, "x" * 200)


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
