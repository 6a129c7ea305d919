"""What is said while a command waits for the call under way."""

from __future__ import annotations

import asyncio

import pytest

from client.errors import Refused
from client.patience import patiently


async def under_way() -> str:
    return "the call of pay"


async def test_an_answer_that_comes_at_once_is_given_without_a_word() -> None:
    said: list[str] = []

    async def answer() -> int:
        return 7

    assert await patiently(answer(), under_way, said.append) == 7
    assert said == []


async def test_a_refusal_goes_on_as_it_is() -> None:
    async def refuse() -> None:
        raise Refused("no")

    with pytest.raises(Refused, match="no"):
        await patiently(refuse(), under_way, print)


async def test_after_a_while_it_is_said_what_is_waited_for_and_the_answer_comes_all_the_same() -> None:
    said: list[str] = []
    told = asyncio.Event()

    def say(words: str) -> None:
        said.append(words)
        told.set()

    async def answer() -> int:
        await told.wait()
        return 7

    assert await patiently(answer(), under_way, say, after=0) == 7
    assert said == ["sent; waits for the call of pay"]


@pytest.mark.parametrize("late", [True, False])
async def test_whoever_leaves_is_told_that_it_was_sent_once_it_surely_was(late: bool) -> None:
    said: list[str] = []
    task = asyncio.create_task(
        patiently(asyncio.Event().wait(), under_way, said.append, after=0 if late else 60)
    )
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    expected = [
        "sent; waits for the call of pay",
        "it was sent already, and takes effect when that has ended",
    ]
    assert said == (expected if late else [])
