"""Which model is asked in place of one that failed for good. Pure.

A model's `fallback` names others of the agent, in the order in which they are asked. The next one is asked
when a model is unavailable: no answer in any of its attempts, a refused key, no such model, no credit. A
question that was itself refused would be refused by another model, too, or should be; the machine is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from activities.contracts import (
    MODEL_REFUSED,
    OUT_OF_REQUESTS,
    AskModel,
    EffectFailed,
    Frozen,
    JsonObject,
    ModelSpec,
)

__all__ = ["Fallbacks", "ModelChange", "is_unavailable"]

FALLBACK_SECONDS = 600
"""Seconds for which a run asks the fallback before it asks the first model again."""
OF_THE_QUESTION = {"HTTP400", "HTTP413", "HTTP422", "invalid_prompt", MODEL_REFUSED}
"""Fatal failures that say nothing about the model."""
NO_FAILURE = {"rate_limit", "deadline", OUT_OF_REQUESTS}
"""A rate limit of the worker that had no room, a run that was out of time or of model calls."""


class ModelChange(Frozen):
    """From now on another model is asked; `asked` is None where none is left."""

    role: str
    left: str
    asked: str | None
    models: dict[str, str]
    """The models' own names."""
    why: str

    @property
    def text(self) -> str:
        """In words: `default: backup (gpt-5-mini) is asked instead of default (llama3.2): HTTP503: ...`."""
        left, asked = (f"{name} ({self.models[name]})" for name in (self.left, self.asked or self.left))
        instead = f"{asked} is asked instead of {left}" if self.asked else f"no model is left after {left}"
        return f"{self.role}: {instead}: {self.why}"


class _Standing(Frozen):
    """A model that is asked instead of a role's own."""

    asked: str
    until: float
    """Seconds since 1970."""


_STANDING: TypeAdapter[dict[str, _Standing]] = TypeAdapter(dict[str, _Standing])


class Fallbacks:
    """The models that one run asks. A role that the agent has no model for is `default`."""

    def __init__(self, models: Mapping[str, ModelSpec]) -> None:
        self._models = models
        self._standing: dict[str, _Standing] = {}
        """By role."""
        self.given_up: dict[str, str] = {}
        """Questions of the pending effect that failed, and no other model is left to ask: how, by name."""

    def as_asked(self, effect: AskModel, now: float = 0) -> AskModel:
        """The question with the role of the model that is asked. At `now` a fallback may have expired."""
        standing = self._standing.get(self.role(effect))
        if standing is None or now >= standing.until:
            return effect
        return effect.model_copy(update={"role": standing.asked})

    def role(self, effect: AskModel) -> str:
        """Whose fallback counts."""
        return effect.role if effect.role in self._models else "default"

    def switch_model(
        self, effect: AskModel, asked: AskModel, failure: EffectFailed, now: float
    ) -> ModelChange | None:
        """Have the next model asked: `effect` failed, as it was asked. None: its model has no fallback."""
        role, left = self.role(effect), self.role(asked)
        names = (role, *self._models[role].fallback)
        if len(names) == 1:
            return None
        following = names[names.index(left) + 1 :]
        why = f"{failure.type}: {failure.message}"
        if not following:
            self._standing.pop(role, None)
            return self._change(role, left, None, why)
        self._standing[role] = _Standing(asked=following[0], until=now + FALLBACK_SECONDS)
        return self._change(role, left, following[0], why)

    def _change(self, role: str, left: str, asked: str | None, why: str) -> ModelChange:
        models = {name: self._models[name].name for name in (left, asked) if name}
        return ModelChange(role=role, left=left, asked=asked, models=models, why=why)

    def end_expired(self, now: float) -> list[ModelChange]:
        """End the fallbacks whose time is over: these roles' own models are asked again."""
        ended = {role: one for role, one in self._standing.items() if now >= one.until}
        for role in ended:
            del self._standing[role]
        why = f"{FALLBACK_SECONDS // 60} minutes have passed since it failed"
        return [self._change(role, one.asked, role, why) for role, one in ended.items()]

    # -- from one execution to the next --------------------

    def dump(self) -> JsonObject:
        """All that `load` needs, as JSON."""
        standing = _STANDING.dump_python(self._standing, mode="json")
        return {"standing": standing, "given_up": dict(self.given_up)}

    def load(self, dump: Any) -> None:
        """Go on as the execution before. Raises ValueError for what is no dump."""
        self._standing, self.given_up = _STANDING.validate_python(dump["standing"]), dict(dump["given_up"])


def is_unavailable(failure: EffectFailed) -> bool:
    """The model is unavailable; another one may not be."""
    if failure.type in NO_FAILURE:
        return False
    return failure.error == "transient" or (failure.error == "fatal" and failure.type not in OF_THE_QUESTION)
