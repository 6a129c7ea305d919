"""The conversation with a model: messages, and a value that only grows.

Every prefix of a conversation has a digest, made from the digest before it and one message. Two
sides that know the same digest hold the same conversation, so only new messages have to travel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import core_schema

__all__ = ["EMPTY_DIGEST", "Conversation", "Message", "ToolCall", "digest_after"]

EMPTY_DIGEST = "0" * 32
"""The digest of a conversation without messages."""


class ToolCall(BaseModel):
    """One native tool call of a model's reply. `arguments` is the text that the model wrote."""

    model_config = ConfigDict(frozen=True)

    id: str
    name: str
    arguments: str = ""


class Message(BaseModel):
    """One message, in the shape of chat completions."""

    model_config = ConfigDict(frozen=True)

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


def digest_after(previous: str, message: Message) -> str:
    """The digest of a conversation after `message`; 32 hexadecimal characters."""
    return hashlib.sha256(f"{previous}\n{message.model_dump_json()}".encode()).hexdigest()[:32]


class Conversation:
    """Messages in order, immutable, with the digest of every prefix. Equal when the last digest is."""

    __slots__ = ("digests", "messages")

    messages: tuple[Message, ...]
    digests: tuple[str, ...]
    """`digests[n]` stands for the first `n` messages; so there is one more than messages."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._set((), (EMPTY_DIGEST,))
        grown = self.add(*messages)
        self._set(grown.messages, grown.digests)

    def _set(self, messages: tuple[Message, ...], digests: tuple[str, ...]) -> None:
        object.__setattr__(self, "messages", messages)
        object.__setattr__(self, "digests", digests)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a conversation is immutable: use `add` instead of setting {name!r}")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Immutable throughout, so it is its own copy (pydantic copies a field's default)."""
        return self

    def add(self, *messages: Message) -> Conversation:
        """A new conversation with these messages at its end."""
        if not messages:
            return self
        digests = list(self.digests)
        for message in messages:
            digests.append(digest_after(digests[-1], message))
        grown = object.__new__(Conversation)
        grown._set((*self.messages, *messages), tuple(digests))
        return grown

    def until(self, length: int) -> Conversation:
        """The first `length` messages."""
        if length >= len(self):
            return self
        prefix = object.__new__(Conversation)
        prefix._set(self.messages[:length], self.digests[: length + 1])
        return prefix

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

    @classmethod
    def _of(cls, value: object) -> Self:
        return value if isinstance(value, cls) else cls(value)  # type: ignore[arg-type]  # validated as a list of messages

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """In JSON a conversation is the list of its messages."""
        messages = handler.generate_schema(list[Message])
        from_list = core_schema.no_info_after_validator_function(cls._of, messages)
        return core_schema.json_or_python_schema(
            json_schema=from_list,
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), from_list]),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda c: [m.model_dump(mode="json") for m in c.messages]
            ),
        )
