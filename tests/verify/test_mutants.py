"""Mistakes in the shipped machines and the refund desk: almost all are found, and each of the others has a
reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.verify.mutants import RIGHTS, finder, mutants, pairs, subjects, tally

SUBJECTS = subjects()
SECONDS = 4.0
"""Of the processor, for one mutant in one scenario."""
LONG = frozenset({"planner", "code"})
"""They take many minutes: `python -m tests.verify.mutants planner code` prints their tables."""
AGAIN = "equivalent: nothing was suggested, so acting does nothing and leads to observing"
NAMED = "equivalent: the run ends alike, in a state of another name"
DETOUR = "equivalent: the state in between leads on to the same end"
SURVIVORS: dict[str, dict[str, str]] = {
    "refund_desk": {
        "list --Halted--> done, not halted": NAMED,
        "list --Halted--> take, not halted": DETOUR,
    },
    "tools": {"EXECUTING_TOOLS --PolicyStop--> PROMPTING, not DONE": DETOUR},
    "staged": {"Thinking --ToObserving--> Acting, not Observing": AGAIN},
    "planner, simple": {
        "EXECUTE --Halted--> END, not HALT": NAMED,
        "EXECUTE --Halted--> LOOP_CHECK, not HALT": DETOUR,
        "LOOP_CHECK --Halted--> END, not HALT": NAMED,
    },
}
"""Machine -> mutant that nobody finds -> why: `equivalent` ends alike in another state, `missed` does not."""


def test_desk_with_a_row_or_an_effect_left_out_is_found() -> None:
    desk = SUBJECTS["refund_desk"]
    small = replace(desk, scenarios=desk.scenarios[:1])
    left = [
        one.text
        for one in mutants(desk.machine)
        if one.kind in ("arrow left out", "asks", "tools") and not finder(small, one.make, SECONDS)
    ]
    assert left == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in SUBJECTS if name not in LONG])
def test_mistakes_are_found_and_the_others_have_a_reason(name: str) -> None:
    came = tally(SUBJECTS[name], SECONDS)
    total = sum(came.counts.values())
    seen = sum(n for (_, who), n in came.counts.items() if who in ("refused", "built-in"))
    author = sum(n for (_, who), n in came.counts.items() if who == "author")
    left = {one.text for one, why in came.left if why.startswith("left")}
    missed = [text for text, why in SURVIVORS.get(name, {}).items() if why.startswith("missed")]
    assert left == set(SURVIVORS.get(name, {})), came.line(name)
    assert seen >= 0.8 * total, came.line(name)
    assert seen + author >= 0.9 * (seen + author + len(missed)), came.line(name)
    assert all(one.kind in RIGHTS for one, why in came.left if why.startswith("unused"))


@pytest.mark.exhaustive
def test_invariants_find_what_nothing_else_built_in_does() -> None:
    """A right machine never trips its own invariant: what it is worth shows beside another mistake."""
    found = pairs(SUBJECTS["refund_desk"], SECONDS)
    assert found["author"] + found["nobody"] > 0
    assert found["author"] > found["nobody"]
