"""The tools that touch nothing: `calculator` and `current_time`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.tools import calculator, current_time


async def value(expression: str) -> str:
    return await calculator.run(calculator.Params(expression=expression))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1 + 2 * 3", "7"),
        ("(17 * 3 - 1) / 2", "25"),
        ("0.1 + 0.2", "0.3"),
        ("-2 ** 2", "-4"),
        ("7 // 2 + 7 % 4", "6"),
        ("2 ** 100", str(2**100)),
        ("1.5e3 * 2", "3000"),
        ("round(2 / 3, 2)", "0.67"),
        ("max(1, sqrt(16), gcd(12, 18))", "6"),
        ("log(e) + cos(pi)", "0"),
        ("factorial(20)", "2432902008176640000"),
        ("0x1F", "31"),
        ("round(5, -10 ** 9)", "0"),
    ],
)
async def test_expression_has_its_value(expression: str, expected: str) -> None:
    assert await value(expression) == expected


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("1 / 0", "division by zero"),
        ("9 ** 9 ** 9 ** 9", "too large"),
        ("2 ** 4000 * 2 ** 4000", "too large"),
        ("1e308 * 10", "too large"),
        ("(-8) ** 0.5", "only real numbers"),
        ("sqrt(-1)", "math domain error"),
        ("factorial(10 ** 9)", "too large"),
        ("2 ^ 3", "write ** for powers"),
        ("__import__", "not defined"),
        ("x", "'x' is not defined"),
        ("sqrt", "only real numbers"),
        ("open(1)", "'open' not defined"),
        ("(5).to_bytes(10 ** 9)", "Attribute is not available"),
        ("[1][0]", "not available"),
        ("'a' * 3", "only real numbers"),
        ("True", "only real numbers"),
        ("lambda", "not an arithmetic expression"),
        ("", "empty"),
        ("1 +", "not an arithmetic expression"),
        ("(" * 200 + "1" + ")" * 50, "Error"),
        ("1" * 257, "longer than 256 characters"),
    ],
)
async def test_what_is_not_evaluated_says_why(expression: str, words: str) -> None:
    answer = await value(expression)
    assert answer.startswith("Error: ")
    assert words in answer


TOKENS = st.sampled_from(
    ["1", "2.5", "9", "0", "1e9", "(", ")", "+", "-", "*", "/", "//", "%", "**", ",", " ", "e", "pi"]
    + [f"{name}(" for name in calculator.FUNCTIONS]  # two kinds of tokens
)


@settings(deadline=None)
@given(st.one_of(st.text(), st.lists(TOKENS, max_size=80).map("".join)))
async def test_no_text_makes_it_raise_or_answer_at_length(expression: str) -> None:
    assert len(await value(expression)) < 2000


async def test_time_is_that_of_the_zone() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    shown = await current_time.run(current_time.Params())
    assert timedelta(0) <= datetime.fromisoformat(shown.split()[0]) - before < timedelta(minutes=1)
    assert shown.endswith(f"({before:%A}, UTC)") or before.hour == 23
    kathmandu = await current_time.run(current_time.Params(time_zone="Asia/Kathmandu"))
    assert "+05:45" in kathmandu


@pytest.mark.parametrize(
    "zone", ["Mars", "../../etc/passwd", "/etc/passwd", "Europe", "x" * 5000, "", "a\0b"]
)
async def test_unknown_zone_is_refused_with_an_example(zone: str) -> None:
    with pytest.raises(ValueError, match="give one like Europe/Berlin") as caught:
        await current_time.run(current_time.Params(time_zone=zone))
    assert len(str(caught.value)) < 200
