"""RE2's patterns as the solver has them, held against RE2 itself."""

from __future__ import annotations

import pytest
import re2  # type: ignore[import-untyped]  # google-re2 ships no types
from hypothesis import given
from hypothesis import strategies as st

z3 = pytest.importorskip("z3")

from workflows.verify.policy.patterns import Untranslatable, matching, solver_text  # noqa: E402  # behind the skip

PATTERNS = (
    "^reports/", "^(a|b)$", r"@example\.com$", "(^|,)foo(,|$)", r"^[A-Z]{2}\d+$", "[^a-c]", "a.c", "x{2,3}y?",
    "(^a$|^b$)", r"^\w+\s\w+$", "[]a]", "a|", "(?:ab){2,}", r"[\d-]+x", r"^[^\s]*$",
    r"\x41|\x{e9}", r"\Aab?\z",
)  # fmt: skip
TEXTS = (
    "", "a", "b", "ab", "abab", "foo", ",foo,", "xfoo", "reports/x", "AB12", "xxy", "a\nc", "abc",
    "a@example.com",
    "a@example.com\n", "x y", "x\vy", "1-x", "]", "é", "A", "\n", "\\u{41}",
)  # fmt: skip
SMALL = st.text(alphabet="ab1 \n", max_size=4)


def found(pattern: str, text: str) -> bool:
    solver = z3.Solver()
    solver.add(z3.InRe(solver_text(text), matching(pattern)))
    return bool(solver.check() == z3.sat)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_pattern_finds_what_re2_finds(pattern: str) -> None:
    assert {text for text in TEXTS if found(pattern, text)} == {t for t in TEXTS if re2.search(pattern, t)}


PARTS = st.sampled_from(["a", "b", "1", ".", "[ab]", "[^a]", r"\d", r"\s", r"\W", "^", "$", "\n"])
RANDOM = st.recursive(
    PARTS,
    lambda part: st.one_of(
        st.tuples(part, part).map("".join),
        st.tuples(part, part).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(part, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@given(RANDOM, st.lists(SMALL, min_size=5, max_size=5))
def test_random_pattern_finds_what_re2_finds(pattern: str, texts: list[str]) -> None:
    try:
        matching(pattern)
    except Untranslatable:
        return
    for text in texts:
        assert found(pattern, text) == bool(re2.search(pattern, text)), (pattern, text)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\bword",
        "(?i)a",
        r"\pL",
        "[[:alpha:]]",
        r"\Qa.b\E",
        "a^b",
        "\U00030000",
        "[^\U00030000]",
        r"[^\x{30000}-\x{3ffff}]",
        r"^[\x{0}-\x{2ffff}]*$",
        r"[^\x{2ffff}]",
        r"\x{2ffff}",
    ],
)
def test_what_cannot_be_said_exactly_is_refused(pattern: str) -> None:
    with pytest.raises(Untranslatable):
        matching(pattern)


def test_text_that_the_solver_takes_for_another_is_refused() -> None:
    """z3 has none above U+2FFFF: that one stands for all of them."""
    with pytest.raises(Untranslatable):
        solver_text("\U0002ffff")
