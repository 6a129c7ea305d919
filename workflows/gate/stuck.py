"""Does a run go round in circles? Its calls and replies are compared with earlier ones. Pure.

A call is its tool and arguments, as they were sent, together with its result. Blocks of code, inner runs and
questions beside the conversation are calls, too. A call is new if it is not among the newest
`MAX_KNOWN_CALLS` ones. Each new call resets the count, and so does what people say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field

from activities.contracts import (
    AskModel,
    AskPerson,
    CallTools,
    Effect,
    Frozen,
    JsonObject,
    RunCode,
    RunMachine,
    Strict,
    Together,
    ToolSpec,
    text_digest,
)

__all__ = ["StuckGuard", "StuckSettings"]

MAX_KNOWN_CALLS = 100
"""Digests of calls and replies that are kept. A circle of more calls than that is not seen."""
PARTS: dict[type[Effect[Any]], set[str]] = {
    AskModel: {"say", "role"},
    RunCode: {"block", "answer"},
    RunMachine: {"machine", "goal", "options", "values", "instructions"},
}
"""Fields that make an effect the same call."""
VARIES: Any = {
    **dict.fromkeys((
        "id", "attempts", "attempt", "seconds", "cost_usd", "cost_known", "usage", "spent", "early",
        "workflow_id", "session", "conversation", "model", "tools", "finish_reason", "kept",
        "requested", "requests", "unanswered",
    ), True),
    "tool_calls": {"__all__": {"id"}},
}  # fmt: skip
"""Fields of an answer that may differ although the result is the same."""


class StuckSettings(Strict):
    """When a run counts as stuck; null switches a rule off."""

    repeats: int | None = Field(
        default=5,
        ge=2,
        le=1000,
        description="equal calls with equal results, without a new call in between; null: any number",
    )
    replies: int | None = Field(
        default=10,
        ge=2,
        le=1000,
        description="replies in a row that the model has given before, with no new call; null: any number",
    )


class _Dump(Frozen):
    """What one execution hands to the next."""

    known: tuple[str, ...] = ()
    counts: dict[str, int] = {}
    repeated: str = ""
    replies: int = 0
    warned: bool = False


class StuckGuard:
    """Watches the answers of one run."""

    def __init__(self, settings: StuckSettings | None, specs: Mapping[str, ToolSpec]) -> None:
        """`settings`: None watches nothing. `specs` by name, filled when they are known."""
        self._settings, self._specs = settings or StuckSettings(repeats=None, replies=None), specs
        self.reset()

    def reset(self) -> None:
        """Forget everything: people have said something."""
        self._known: dict[str, None] = {}
        """Digests of calls and replies, the newest last."""
        self._counts: dict[str, int] = {}
        """By digest: how often a call was made since the newest one that was new."""
        self._repeated = ""
        """The call that was made most often, in words."""
        self._replies = 0
        """Known replies in a row."""
        self.warned = False
        """The model was warned, and has made no new call since."""

    def warn(self) -> None:
        """Note that the model was warned: it gets another try."""
        self._counts.clear()
        self._replies, self.warned = 0, True

    @property
    def problem(self) -> str:
        """Why the run counts as stuck; empty: it does not."""
        times, rules = max(self._counts.values(), default=0), self._settings
        if rules.repeats is not None and times >= rules.repeats:
            return f"{self._repeated} was called {times} times with the same result, and nothing new between"
        if rules.replies is not None and self._replies >= rules.replies:
            return f"the model's last {self._replies} replies were given before, and no call was new"
        return ""

    def learn(self, effect: Effect[Any], answer: Any) -> None:
        """Count a performed effect and its answer."""
        match effect:
            case Together():
                for one, its in zip(effect.effects, answer.answers, strict=False):
                    self.learn(one, its)
            case CallTools():
                for run, result in zip(effect.calls, answer.results, strict=False):
                    spec = self._specs.get(run.tool)
                    news = spec.news if spec else "result"
                    found = "" if news == "never" else _without(result)
                    self._called(["call", run.tool, run.arguments, found], run.title, news)
            case AskPerson():
                self.reset()
            case AskModel() if effect.brings_notes:
                # to another question the same reply is no repetition
                asked = [[message.role, message.content] for message in effect.say]
                is_new = self._is_new(_digest(["reply", asked, _without(answer)]))
                self._replies = 0 if is_new else self._replies + 1
            case AskModel() | RunCode() | RunMachine():
                parts = effect.model_dump(mode="json", include=PARTS[type(effect)])
                self._called([effect.kind, parts, _without(answer)], effect.title, "result")

    def _called(self, call: list[Any], title: str, news: str) -> None:
        digest = _digest(call)
        if (self._is_new(digest) and news != "never") or news == "always":
            self._counts.clear()
            self._replies, self.warned = 0, False
        self._counts[digest] = times = self._counts.get(digest, 0) + (news != "always")
        if times == max(self._counts.values()):
            self._repeated = title

    def _is_new(self, digest: str) -> bool:
        """It is not known; it is from now on."""
        was_known = digest in self._known
        self._known.pop(digest, None)
        self._known[digest] = None
        if len(self._known) > MAX_KNOWN_CALLS:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._counts.pop(oldest, None)
        return not was_known

    # -- from one execution to the next --------------------

    def dump(self) -> JsonObject:
        """All that `load` needs, as JSON."""
        return _Dump(
            known=tuple(self._known), counts=self._counts, repeated=self._repeated, replies=self._replies,
            warned=self.warned,
        ).model_dump(mode="json")  # fmt: skip

    def load(self, dump: JsonObject) -> Self:
        """Go on as the execution before. Raises ValueError for what is no dump."""
        found = _Dump.model_validate(dump)
        self._known, self._counts = dict.fromkeys(found.known), dict(found.counts)
        self._repeated, self._replies, self.warned = found.repeated, found.replies, found.warned
        return self


def _digest(value: list[Any]) -> str:
    return text_digest(json.dumps(value, sort_keys=True))


def _without(answer: Any) -> JsonObject:
    """What was said and brought, without ids, times and costs."""
    found: JsonObject = answer.model_dump(mode="json", exclude=VARIES, exclude_defaults=True)
    return found
