"""What a model provider is: the seam between `call_model` and whatever answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from activities.contracts import ErrorClass, ModelReplied, ModelSpec, Setup
from activities.transcript import Transcript

__all__ = ["OnText", "Provider", "ProviderCall", "ProviderError"]

OnText = Callable[[str], None]
"""Told the whole text so far, whenever there is more."""


def _nobody(text: str) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True)
class ProviderCall:
    """What belongs to one call alone."""

    tool_choice: Literal["auto", "none", "required"] = "auto"
    key: str = ""
    """Idempotency key; stable over attempts."""
    on_text: OnText = _nobody


class Provider(Protocol):
    """Something that answers conversations. One object serves a whole worker, calls overlap."""

    @property
    def name(self) -> str:
        """What a task names it by."""

    @property
    def description(self) -> str:
        """One line for people."""

    async def complete(self, setup: Setup, transcript: Transcript, call: ProviderCall) -> ModelReplied:
        """The next message. Raises `ProviderError`; stops at once when it is cancelled."""

    async def check(self, spec: ModelSpec) -> str | None:
        """What is wrong with this model, for a person, with what to do; None when all is well."""

    async def close(self) -> None:
        """Let go of connections."""


class ProviderError(Exception):
    """A call that gave no reply: its class, its cause by name, and words for a person."""

    def __init__(
        self,
        error: ErrorClass,
        type: str,
        message: str,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.error, self.type, self.message = error, type, message
        self.retry_after_seconds = retry_after_seconds
