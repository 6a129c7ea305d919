"""A chat completion as it arrives, whole or in pieces, read leniently: servers differ in detail.

The client library's own accumulator cannot do it. It raises where a server sends no `index` or does
not begin at 0; it joins two calls into one where all have the index 0; it repeats an id that comes
with every piece; and it takes a stream that was cut for one that ended.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator

from activities.contracts import ToolCall, Usage

__all__ = ["Piece", "Reply"]


def _joined_parts(value: object) -> object:
    """Some servers send a list of parts instead of a text."""
    if isinstance(value, list):
        return "".join(str(part.get("text", "")) for part in value if isinstance(part, dict))
    return value


def _as_json(value: object) -> object:
    """Some servers send the arguments parsed."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _as_text(value: object) -> object:
    """Some servers send numbers for ids."""
    return str(value) if isinstance(value, int | float) else value


def _count(value: object) -> int | None:
    """A count of tokens; None for a senseless one: no paid reply is lost over it."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        return int(value)
    if isinstance(value, int | float) and 0 <= value <= 10**9 and value == int(value):
        return int(value)
    return None


def _usage(value: object) -> Usage | None:
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    used, made = _count(value.get("prompt_tokens")), _count(value.get("completion_tokens"))
    if used is None or made is None:
        return None
    return Usage(input_tokens=used, output_tokens=made, cached_tokens=cached or 0)


Name = Annotated[str | None, BeforeValidator(_as_text)]


class Function(BaseModel):
    name: Name = None
    arguments: Annotated[str | None, BeforeValidator(_as_json)] = None


class CallPiece(BaseModel):
    index: int | None = None
    id: Name = None
    function: Function = Function()


class Content(BaseModel):
    content: Annotated[str | None, BeforeValidator(_joined_parts)] = None
    refusal: str | None = None
    tool_calls: list[CallPiece] | None = None


class Choice(BaseModel):
    delta: Content | None = None
    message: Content | None = None
    finish_reason: Name = None


class Piece(BaseModel):
    """A whole completion, or one chunk of a stream, as far as it is used. Servers differ in detail."""

    choices: list[Choice] | None = None
    usage: Annotated[Usage | None, BeforeValidator(_usage)] = None
    model: Name = None
    error: Any = None


@dataclass(slots=True)
class PartialCall:
    """A tool call that has not come to its end."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class Reply:
    """A reply that arrives whole or in pieces."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.model = ""
        self.usage: Usage | None = None
        self.answered = False
        """At least one choice came."""
        self.refused = False
        """The text is the model's refusal to answer in the wanted form."""
        self._texts: list[str] = []
        self._calls: list[PartialCall] = []
        self._by_index: dict[int, PartialCall] = {}

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._texts)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """All calls so far; ids as the server gave them, or empty."""
        return tuple(ToolCall(id=c.id, name=c.name, arguments="".join(c.arguments)) for c in self._calls)

    def add(self, piece: Piece) -> str:
        """Take in a whole completion or the next chunk; gives its text."""
        self.model = piece.model or self.model
        self.usage = piece.usage or self.usage
        if not piece.choices:
            return ""
        choice = piece.choices[0]
        self.answered = True
        self.finish_reason = choice.finish_reason or self.finish_reason
        if choice.delta is None and choice.message is not None:
            for number, call in enumerate(choice.message.tool_calls or ()):
                call.index = number  # each call of a whole message is complete
        return self._add_content(choice.delta or choice.message or Content())

    def _add_content(self, content: Content) -> str:
        text = (content.content or "") + (content.refusal or "")
        self.refused = self.refused or bool(content.refusal)
        self._texts.append(text)
        for piece in content.tool_calls or ():
            call = self._call_of(piece)
            call.id = call.id or piece.id or ""
            call.name = call.name or piece.function.name or ""
            call.arguments.append(piece.function.arguments or "")
        return text

    def _call_of(self, piece: CallPiece) -> PartialCall:
        """The call that the piece continues. Some servers give no index, or always 0."""
        call = self._calls[-1] if self._calls else None
        if piece.index is not None:
            call = self._by_index.get(piece.index)
        if call is None or (piece.id and call.id and piece.id != call.id):
            call = PartialCall()
            self._calls.append(call)
        if piece.index is not None:
            self._by_index[piece.index] = call
        return call
