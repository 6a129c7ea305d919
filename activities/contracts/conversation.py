"""The conversation with a model: messages, and a value that only grows.

Every prefix of a conversation has a digest, made from the digest before it and one message. Two
sides that know the same digest hold the same conversation, so only new messages have to travel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from activities.text import readable

__all__ = ["EMPTY_DIGEST", "Conversation", "Message", "NativeCall", "digest_after"]

EMPTY_DIGEST = "0" * 32
"""The digest of a conversation without messages."""


Text = Annotated[str, AfterValidator(readable)]


class NativeCall(BaseModel):
    """One native tool call of a model's reply. `arguments` is the text that the model wrote."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(description="of the call, unique in the reply", examples=["count"])
    name: str = Field(description="of the tool", examples=["count_words"])
    arguments: Text = Field(
        default="", description="JSON, as a model writes it", examples=['{"path": "a.txt"}']
    )


class Message(BaseModel):
    """One message, in the shape of chat completions."""

    model_config = ConfigDict(frozen=True)

    role: Literal["system", "user", "assistant", "tool"]
    """Who says it."""
    content: Text
    """Text; images are named in it."""
    tool_calls: tuple[NativeCall, ...] = ()
    """Native calls of the reply."""
    tool_call_id: str | None = None
    """Of the call that it answers."""
    kept: str = Field(default="", exclude_if=lambda kept: not kept)
    """JSON that the reply's provider wants back with it, such as encrypted reasoning; for nobody else."""
    from_run: bool = Field(default=False, exclude_if=lambda from_run: not from_run)
    """The run says it, not a person: a call was edited, or the run goes round in circles. It is about this
    branch alone."""


def digest_after(previous: str, message: Message) -> str:
    """The digest of a conversation after `message`; 32 hexadecimal characters."""
    return hashlib.sha256(f"{previous}\n{message.model_dump_json()}".encode()).hexdigest()[:32]


class Conversation:
    """Messages in order, never changed, with the digest of every prefix. Equal when the last digest is."""

    __slots__ = ("digests", "messages")

    messages: tuple[Message, ...]
    digests: tuple[str, ...]
    """`digests[n]` stands for the first `n` messages; so there is one more than messages."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.messages = tuple(messages)
        self.digests = _digests((EMPTY_DIGEST,), self.messages)

    @classmethod
    def _of(cls, messages: tuple[Message, ...], digests: tuple[str, ...]) -> Conversation:
        made = object.__new__(cls)
        made.messages, made.digests = messages, digests
        return made

    def add(self, *messages: Message) -> Conversation:
        """A new conversation with these messages at its end; without any, this one."""
        if not messages:
            return self
        return self._of((*self.messages, *messages), _digests(self.digests, messages))

    def until(self, length: int) -> Conversation:
        """The first `length` messages."""
        return self._of(self.messages[:length], self.digests[: length + 1])

    def without(self, start: int, end: int) -> tuple[Message, ...]:
        """The messages; a note takes the place of those from `start` up to `end` (compaction)."""
        if start >= end:
            return self.messages
        note = Message(role="user", content=f"[{end - start} earlier messages are left out here]")
        return (*self.messages[:start], note, *self.messages[end:])

    @property
    def digest(self) -> str:
        """The digest of the whole."""
        return self.digests[-1]

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Conversation) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Conversation({len(self)} messages, {self.digest[:8]})"


def _digests(before: tuple[str, ...], messages: Iterable[Message]) -> tuple[str, ...]:
    """Those of the prefixes before these messages, and one more for each message."""
    digests = list(before)
    for message in messages:
        digests.append(digest_after(digests[-1], message))
    return tuple(digests)
