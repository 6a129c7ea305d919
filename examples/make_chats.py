"""Writes `examples/data/support_chats.txt`, the conversations that the agent `promise_keeper` reads.

    python examples/make_chats.py [FILE]

Six people answer the customers of a furniture shop through a winter, in 900 conversations. Now and then
one of them promises something. Weeks later the customer writes again, or never. The same seed gives the
same bytes under every version of Python: only `Random.random` is used, and its sequence is fixed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar

__all__ = ["CHATS", "Chat", "chats", "main"]

T = TypeVar("T")
CHATS = Path(__file__).parent / "data" / "support_chats.txt"
SEED = 20_260_117
COUNT = 900
BEGINS = datetime(2025, 11, 3, 8, 0, tzinfo=UTC)
OPEN = 10 * 60 - 30
"""Minutes of a day in which conversations begin; the first is at eight."""
MEAN_GAP = 50
"""Minutes between two conversations, on average."""
PROMISES = 0.07
"""Share of the conversations with a promise."""
AGENTS = {"Mira": 0.05, "Jonas": 0.15, "Aylin": 0.1, "Tomek": 0.75, "Grace": 0.1, "Luis": 0.2}
"""Who answers -> share of promises that are not kept."""
PRODUCTS = ("lamp", "kettle", "chair", "desk", "rug", "mirror", "shelf", "blanket", "clock", "stool")
OPENINGS = (
    "Hello, I have a question about my {product}.",
    "Hi there, my {product} has not arrived yet.",
    "Good morning, there is a scratch on the {product} that came today.",
    "Can I still change the colour of the {product}?",
    "I would like to know when the {product} will be delivered.",
    "The {product} wobbles. Is that normal?",
)
TALK = (
    ("I am sorry to hear that. Could you tell me the order number?", "It is {order}."),
    ("Let me look that up for you, one moment please.", "Sure, take your time."),
    ("Thank you for waiting. I have your order in front of me.", "Good."),
    ("The warehouse says that the {product} left on time.", "That is what the mail said, too."),
    ("Could you send us a photo of it?", "I have just sent one, I hope that it is sharp enough."),
    ("Did the parcel look damaged from the outside?", "No, the box was fine."),
    ("Our carrier tries twice before a parcel goes back.", "Nobody rang here, I was at home all day."),
    ("Have you tried to tighten the screws on the underside?", "Yes, twice. It does not help."),
    ("The manual is also on our site, under downloads.", "I had not seen that, I will have a look."),
    ("You can change that until the order is packed.", "Then I would like to change it to green."),
)
CLOSINGS = (
    ("Is there anything else that I can do for you?", "No, that was all. Bye!"),
    ("Then I wish you a good day.", "The same to you."),
    ("We are here until six if something comes up.", "All right, thanks."),
)


class Kind(NamedTuple):
    """Something that can be promised, and what customers write about it later."""

    promise: str
    kept: str
    broken: str


KINDS = (
    Kind(
        "You have my promise: the refund of {price} EUR is with you within five days.",
        "Just to let you know, the refund for the {product} is on my account now. Thank you!",
        "I am still waiting for the refund for the {product}, and it has been two weeks.",
    ),
    Kind(
        "I promise that a new {product} leaves our warehouse this week.",
        "The new {product} is here and it is lovely. Thank you for the quick help!",
        "Two weeks later and still no sign of the new {product}. What is going on?",
    ),
    Kind(
        "I promise to call you back by Thursday, as soon as I know more.",
        "Thank you for the call, now I know what to do with the {product}.",
        "Nobody has called me back about the {product}. Did you forget me?",
    ),
    Kind(
        "As an apology I promise you a voucher of {price} EUR by mail tomorrow.",
        "The voucher was in my mail the next day, thank you, that was kind.",
        "The voucher that you spoke of has never arrived, I looked in the spam folder too.",
    ),
)
LATE = "It has come after all, thank you for looking into it."


class Chat(NamedTuple):
    """One conversation. `kept`: None if nothing was promised in it."""

    at: datetime
    order: str
    agent: str
    lines: tuple[str, ...]
    kept: bool | None = None

    def __str__(self) -> str:
        head = f"=== {self.at:%Y-%m-%d} order {self.order} with {self.agent} ==="
        stamps = (self.at + timedelta(minutes=2 * n) for n in range(len(self.lines)))
        talk = [f"[{at:%H:%M}] {line}" for at, line in zip(stamps, self.lines, strict=True)]
        return "\n".join([head, *talk, ""])


def main(arguments: Sequence[str]) -> None:
    """Write the conversations to the file named in `arguments`, or to their place in the examples."""
    target = Path(arguments[0]) if arguments else CHATS
    target.write_text("".join(f"{chat}\n" for chat in chats()), encoding="utf-8", newline="\n")


def chats(seed: int = SEED, count: int = COUNT) -> list[Chat]:
    """The conversations by time; the same for the same seed."""
    chance, minutes = Random(seed), 0
    found: list[Chat] = []
    while len(found) < count:
        minutes += 2 + int(2 * MEAN_GAP * chance.random())
        at = BEGINS + timedelta(days=minutes // OPEN, minutes=minutes % OPEN)
        found.extend(_story(chance, at, 10_000 + 7 * len(found)))
    return sorted(found[:count], key=lambda chat: (chat.at, chat.order))


def _story(chance: Random, at: datetime, number: int) -> list[Chat]:
    """A conversation; if something was promised in it, the later ones about the promise too."""
    agent, product = _pick(chance, tuple(AGENTS)), _pick(chance, PRODUCTS)
    words = {"product": product, "order": f"A-{number}", "price": f"{5 + int(90 * chance.random())}.90"}
    promised = chance.random() < PROMISES
    kind = KINDS[int(len(KINDS) * chance.random())]
    lines = [f"customer: {_pick(chance, OPENINGS)}"]
    for question, reply in _some(chance, TALK, 2 + int(3 * chance.random())):
        lines += [f"{agent}: {question}", f"customer: {reply}"]
    if promised:
        lines += [f"{agent}: {kind.promise}", "customer: I will come back to you if not."]
    question, reply = _pick(chance, CLOSINGS)
    lines += [f"{agent}: {question}", f"customer: {reply}"]
    text = tuple(line.format(**words) for line in lines)
    if not promised:
        return [Chat(at, words["order"], agent, text)]
    kept = chance.random() >= AGENTS[agent]
    first = Chat(at, words["order"], agent, text, kept)
    return [first, *_later(chance, first, kind, words)]


def _later(chance: Random, first: Chat, kind: Kind, words: dict[str, str]) -> list[Chat]:
    """What the customer writes about the promise: thanks, a complaint, thanks at last, or nothing."""
    luck, agent = chance.random(), _pick(chance, tuple(AGENTS))
    days, minutes = 9 + int(9 * chance.random()), int(OPEN * chance.random())
    at = first.at.replace(hour=8, minute=0) + timedelta(days=days, minutes=minutes)
    if luck < 0.2 and first.kept:
        return []
    comment = (kind.kept if first.kept else kind.broken).format(**words)
    answer = "I am glad to hear it." if first.kept else "I am sorry, I pass that on at once."
    found = [Chat(at, first.order, agent, (f"customer: {comment}", f"{agent}: {answer}"))]
    if first.kept and luck > 0.85:
        waits = (f"customer: {kind.broken.format(**words)}", f"{agent}: I am sorry, I look into it.")
        thanks = (f"customer: {LATE}", f"{agent}: I am glad to hear it.")
        found = [
            Chat(at, first.order, agent, waits),
            Chat(at + timedelta(days=3), first.order, agent, thanks),
        ]
    return found


def _some(chance: Random, texts: Sequence[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    """`count` different ones, in the order of the list."""
    ranked = sorted((chance.random(), n) for n in range(len(texts)))
    return [texts[n] for n in sorted(n for _, n in ranked[:count])]


def _pick(chance: Random, items: Sequence[T]) -> T:
    return items[int(chance.random() * len(items))]


if __name__ == "__main__":
    main(sys.argv[1:])
