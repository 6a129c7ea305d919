"""What a model provider is: the seam between the activity `ask_model` and whatever answers.

A provider is one file with the constant `PROVIDER` (or `PROVIDERS`, a tuple): the provider, or a class or
function that makes it of the worker's settings. It lies in `activities/providers/`, or it is a user's file
named under `modules` (docs/providers.md shows a whole one).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from activities.contracts import (
    OUT_OF_REQUESTS,
    Conversation,
    Message,
    ModelReplied,
    ModelSpec,
    Setup,
)
from activities.images import Image

__all__ = [
    "MAX_CALLS",
    "MAX_CALL_BYTES",
    "MAX_TEXT_BYTES",
    "MUST_WAIT",
    "ModelCall",
    "Provider",
    "ProviderError",
    "RequestCount",
    "close_providers",
    "out_of_requests",
    "problem_with",
    "reply_too_large",
]

MUST_WAIT = "must_wait"
"""Type of the `ProviderError` of a question that may not wait for a rate limit, or not here."""
MAX_TEXT_BYTES = 4 * 2**20
"""The longest text of a reply, in UTF-8."""
MAX_CALL_BYTES = 2**20
"""The longest ids, names and arguments of all tool calls of a reply together, in UTF-8."""
MAX_CALLS = 1000
"""The most tool calls of a reply."""


def _ignore(text: str) -> None:
    """Nobody watches."""


@dataclass(slots=True)
class RequestCount:
    """How many requests one question has sent, over all attempts that ended; and how many it may send."""

    most: float = math.inf
    sent: int = 0

    @property
    def is_used_up(self) -> bool:
        """The run's limit lets no further request through."""
        return self.sent >= self.most

    def begin(self) -> bool:
        """Count one more, which is sent now. False: the limit lets none through."""
        if self.is_used_up:
            return False
        self.sent += 1
        return True


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One question to a model."""

    setup: Setup
    """Model, tools and response schema."""
    conversation: Conversation
    """All of it; `messages` is what the model is sent."""
    skip: tuple[int, int] = (0, 0)
    """Compaction: messages from the first number up to the second are not sent."""
    tool_choice: Literal["auto", "none", "required"] = "auto"
    images: Mapping[str, Image] = field(default_factory=dict)
    """By the mark that stands for each in the text of messages."""
    key: str = ""
    """Idempotency key; stable over attempts."""
    on_text: Callable[[str], None] = _ignore
    """To be called with each piece of the reply's text as it arrives."""
    requests: RequestCount = field(default_factory=RequestCount)
    """What counts as model calls. Whoever asks the provider counts the first request; a provider that sends
    more, for instance to ask in another way, calls `requests.begin()` before each."""

    @property
    def model(self) -> ModelSpec:
        """The model of the setup."""
        return self.setup.model

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages that go to the model; a note replaces those that are skipped."""
        return self.conversation.without(*self.skip)


class Provider(Protocol):
    """Something that answers conversations. One object serves a whole worker; calls overlap.

    It may also have `async def check(self, model: ModelSpec) -> str | None`, which says what is wrong with a
    model before the first call, and `async def close(self) -> None`.
    """

    name: str
    """Names the provider in a task's `models`."""
    description: str
    """One line for people."""

    async def complete(self, call: ModelCall) -> ModelReplied:
        """The next message; `conversation`, `attempt` and `seconds` are filled in by the activity.

        Raises `ProviderError`. Stops at once when it is cancelled. Any other exception is a bug.
        """


class ProviderError(Exception):
    """A call without a reply: class, cause by name, and words for a person."""

    def __init__(
        self,
        error: Literal["transient", "recoverable", "fatal"],
        type: str,
        message: str,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.error, self.type, self.message = error, type, message
        self.retry_after_seconds = retry_after_seconds


def reply_too_large(what: str, limit: int) -> ProviderError:
    """The error for a reply with more than `limit` of something, such as `bytes of text`."""
    return ProviderError(
        "recoverable",
        "reply_too_large",
        f"the model's reply has more than {limit:,} {what}; ask for less, or set the model's "
        "max_output_tokens",
    )


def out_of_requests(why: str) -> ProviderError:
    """The error for a question that needs another request, for this reason, where its run may send none."""
    words = f"{why}; the run's limit of model_calls lets no further request through"
    return ProviderError("transient", OUT_OF_REQUESTS, words)


async def problem_with(provider: Provider, model: ModelSpec) -> str | None:
    """What is wrong with the model, for a person, with what to do; None when nothing is known to be."""
    check = getattr(provider, "check", None)
    found: str | None = await check(model) if check else None
    return found


async def close_providers(providers: Iterable[Provider]) -> None:
    """Close connections of those that have some."""
    for provider in providers:
        close = getattr(provider, "close", None)
        if close:
            await close()
