"""The world outside of Ratchet, in a process of its own: what tools really did, and the models' server."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.chaos.runs import reply
from tests.fake_openai import BEHAVIOURS, Answer, FakeOpenAI, RecordedRequest

__all__ = ["Effect", "World", "place"]

FAULTS = {
    "429": ("status", "429@ms300"),
    "500": ("status", "500"),
    "garbage": ("html", ""),
    "cut": ("cut", ""),
    "broken": ("badchunk", ""),
    "nothing": ("hangup", ""),
    "stall": ("stall", ""),
}
"""What the models' server does instead of an answer: name and argument of its behaviour."""
IN_A_ROW = 3
"""Faults that one question meets at most: a model call has 6 attempts."""
SLOW = 1.0
"""The longest that the world takes before and after an effect, in seconds."""


@dataclass(frozen=True)
class Effect:
    """One real execution."""

    tool: str
    line: str
    key: str

    @property
    def branch(self) -> str:
        """Of the run: how often it was rolled back."""
        return self.key.rsplit("/", 2)[1]


def place(run: str, activity_id: str) -> tuple[str, str]:
    """Where a call is made, however often it is made again."""
    return run, activity_id.partition("+")[0]


@dataclass
class Parts:
    """Of a key `run/origin/branch/activity`."""

    at: tuple[str, str]
    again: int

    @classmethod
    def of(cls, key: str) -> Parts:
        """Read the key."""
        run, _, _, activity = key.rsplit("/", 3)
        return cls(place(run, activity), int(activity.partition("+")[2] or 0))


@dataclass
class World(FakeOpenAI):
    """Effects and faults of models follow from the seed, what is asked, and how often it was asked."""

    seed: str
    file: Path
    """Gets a line for each effect."""
    fault_rate: float = 0
    effects: list[Effect] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__init__()
        self._barred: dict[tuple[str, str], int] = {}
        self._asked: Counter[str] = Counter()
        self._effects_lock = threading.Lock()

    def answer(self, request: RecordedRequest) -> Answer:
        """Of the model, or of the world."""
        if request.path.endswith("/effects"):
            return Answer(body=json.dumps(self._told(request.body)))
        question = json.dumps(request.body["messages"])
        with self._effects_lock:
            self._asked[question] += 1
            count = self._asked[question]
        chance = Random(f"{self.seed} {question} {count}")
        if count <= IN_A_ROW and chance.random() < self.fault_rate:
            fault = chance.choice(sorted(FAULTS))
            self.faults[f"model: {fault}"] += 1
            name, argument = FAULTS[fault]
            return BEHAVIOURS[name](request, argument)
        return reply(str(request.body["model"]), request.body["messages"])

    def _told(self, told: dict[str, str]) -> dict[str, bool]:
        if key := told.get("find"):
            at = Parts.of(key)
            return {"made": self.made_or_barred(at.at, at.again)}
        chance = Random(f"{self.seed} {told['key']}")
        time.sleep(chance.random() * SLOW)
        with self._effects_lock:
            effect, parts = Effect(**told), Parts.of(told["key"])
            if parts.again <= self._barred.get(parts.at, -1):
                return {"refused": True}
            keeps_keys = effect.tool in ("pay", "mark")  # this service knows keys; the others do not
            if not (keeps_keys and effect in self.effects):
                self.effects.append(effect)
                with self.file.open("a") as file:
                    file.write(f"{effect.tool} {effect.line} {effect.key}\n")
        time.sleep(chance.random() * SLOW)
        return {"refused": False}

    def made_or_barred(self, at: tuple[str, str], again: int, line: str = "") -> bool:
        """Somebody looks a call up: by its place, or by its line anywhere. If it was not made it never will
        be, also not by a worker that stands still with it."""
        with self._effects_lock:
            for one in self.effects:
                parts = Parts.of(one.key)
                if one.line == line if line else (parts.at == at and parts.again == again):
                    return True
            self._barred[at] = max(again, self._barred.get(at, -1))
        return False
