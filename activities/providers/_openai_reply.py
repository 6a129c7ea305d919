"""A chat completion as it arrives, whole or in pieces, read leniently: servers differ in detail."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field

from activities.contracts import ToolCall, Usage

__all__ = ["Gathered", "Piece"]

MOST_TOKENS = 1_000_000_000
"""A count beyond it is none."""


def _text(value: object) -> object:
    """Some servers send a list of parts instead of a text."""
    if isinstance(value, list):
        return "".join(str(part.get("text", "")) for part in value if isinstance(part, dict))
    return value


def _arguments(value: object) -> object:
    """Some servers send the arguments parsed."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _name(value: object) -> object:
    """Some servers send numbers for ids."""
    return str(value) if isinstance(value, int | float) else value


def _count(value: object) -> int | None:
    """A count of tokens, or None for what is none: no paid reply is lost over it."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        return int(value)
    if isinstance(value, int | float) and 0 <= value <= MOST_TOKENS and value == int(value):
        return int(value)
    return None


def _mapping(value: object) -> object:
    return value if isinstance(value, dict) else None


Name = Annotated[str | None, BeforeValidator(_name)]
Count = Annotated[int | None, BeforeValidator(_count)]


class _Function(BaseModel):
    name: Name = None
    arguments: Annotated[str | None, BeforeValidator(_arguments)] = None


class _Call(BaseModel):
    index: int | None = None
    id: Name = None
    function: _Function = Field(default_factory=_Function)


class _Said(BaseModel):
    content: Annotated[str | None, BeforeValidator(_text)] = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(BaseModel):
    delta: _Said | None = None
    message: _Said | None = None
    finish_reason: Name = None


class _Details(BaseModel):
    cached_tokens: Count = None


class _Usage(BaseModel):
    prompt_tokens: Count = None
    completion_tokens: Count = None
    prompt_tokens_details: Annotated[_Details | None, BeforeValidator(_mapping)] = None

    def counted(self) -> Usage | None:
        """What was used, if the server really counted it."""
        if self.prompt_tokens is None or self.completion_tokens is None:
            return None
        details = self.prompt_tokens_details or _Details()
        return Usage(
            input_tokens=self.prompt_tokens,
            output_tokens=self.completion_tokens,
            cached_tokens=details.cached_tokens or 0,
        )


class Piece(BaseModel):
    """A whole completion, or one chunk of a stream."""

    choices: list[_Choice] | None = None
    usage: Annotated[_Usage | None, BeforeValidator(_mapping)] = None
    model: Name = None
    error: Any = None


@dataclass(slots=True)
class _Slot:
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Gathered:
    """What has been read so far."""

    text: str = ""
    finish_reason: str | None = None
    model: str = ""
    usage: Usage | None = None
    answered: bool = False
    """At least one choice came."""
    refused: bool = False
    """The text is the model's refusal to answer in the wanted form."""
    _slots: list[_Slot] = field(default_factory=list)
    _by_index: dict[int, _Slot] = field(default_factory=dict)

    def add(self, piece: Piece) -> None:
        """Take in a whole completion or the next chunk."""
        self.model = piece.model or self.model
        if piece.usage is not None:
            self.usage = piece.usage.counted() or self.usage
        for choice in (piece.choices or [])[:1]:
            self.answered = True
            self.finish_reason = choice.finish_reason or self.finish_reason
            if choice.delta is None and choice.message is not None:
                for number, call in enumerate(choice.message.tool_calls or []):
                    call.index = number  # a whole message never goes on with a call
            self._say(choice.delta or choice.message or _Said())

    def tool_calls(self, position: int) -> tuple[ToolCall, ...]:
        """The calls, each with an id of its own: a missing one, or one that came before, is made from
        the reply's position in the transcript."""
        made: dict[str, ToolCall] = {}
        for number, slot in enumerate(self._slots):
            own = slot.id if slot.id and slot.id not in made else f"call_{position}_{number}"
            while own in made:
                own += f"_{number}"
            made[own] = ToolCall(id=own, name=slot.name, arguments=_whole(slot.arguments))
        return tuple(made.values())

    def whole_text(self) -> str:
        """The text, fit for UTF-8."""
        return _whole(self.text)

    def _say(self, said: _Said) -> None:
        self.text += said.content or ""
        if said.refusal:
            self.text += said.refusal
            self.refused = True
        for call in said.tool_calls or []:
            slot = self._slot(call)
            slot.id = slot.id or call.id or ""
            slot.name = slot.name or call.function.name or ""
            slot.arguments += call.function.arguments or ""

    def _slot(self, call: _Call) -> _Slot:
        """The call that this piece goes on with. Some servers give no index, or always 0."""
        slot = self._slots[-1] if self._slots else None
        if call.index is not None:
            slot = self._by_index.get(call.index)
        if slot is None or (call.id and slot.id and call.id != slot.id):
            slot = _Slot()
            self._slots.append(slot)
        if call.index is not None:
            self._by_index[call.index] = slot
        return slot


def _whole(text: str) -> str:
    """Join surrogate halves that JSON escapes left apart; a lone half becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
