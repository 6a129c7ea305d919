"""Chat completions: what is posted, and how a completion is read.

The client library's own accumulator cannot read what servers send. It raises where a server sends no `index`
or does not begin at 0; it joins two calls into one where all have the index 0; it repeats an id that comes
with every piece; and it takes a stream that was cut for one that ended.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator

from activities.contracts import JsonObject, Message, NativeCall, Usage
from activities.images import Image
from activities.provider import ModelCall
from activities.providers.openai_quirks import ALTERNATE, NO_KEPT, NO_NULL, NO_SYSTEM, REASONING
from activities.providers.openai_reply import (
    Arguments,
    Counts,
    Name,
    arguments_as_object,
    is_closed,
    kept_of,
    with_images,
)

__all__ = ["PATH", "ChatReply", "body"]

PATH = "/chat/completions"
NAME_LIMIT = 64
"""Characters of a function's name."""
EMPTY = "(empty)"
"""Sent for a message without text: Anthropic and Google refuse the whole conversation for one."""


# -- the request ---------------------------------------------------------------------------------------


def body(call: ModelCall, quirks: Collection[str] = (), by: str = "") -> JsonObject:
    """What to post; fields that the task leaves open are None."""
    model, setup = call.model, call.setup
    found: dict[str, Any] = {
        "model": model.name,
        "messages": _messages(call, quirks, by),
        "temperature": model.temperature,
        "seed": model.seed,
        "reasoning_effort": model.reasoning,
        "stream": model.stream,
        "stream_options": {"include_usage": True} if model.stream else None,
    }
    for name in ("max_completion_tokens", "max_tokens"):  # the second is the older name
        if name not in quirks:
            found[name] = model.max_output_tokens
            break
    if setup.tools:
        found["tools"] = [
            {
                "type": "function",
                "function": {"name": t.name, "description": t.description, "parameters": t.parameters},
            }
            for t in setup.tools
        ]
        found["tool_choice"] = call.tool_choice
    if setup.response_schema is not None:
        schema = setup.response_schema
        wanted = {"name": "reply", "schema": schema, "strict": is_closed(schema)}
        found["response_format"] = {"type": "json_schema", "json_schema": wanted}
    return found


def _messages(call: ModelCall, quirks: Collection[str], by: str) -> list[dict[str, Any]]:
    """The messages, each with its images, or followed by them."""
    shaped: list[dict[str, Any]] = []
    waiting: list[Image] = []  # results and system messages cannot hold one
    for message in call.messages:
        if waiting and message.role != "tool":
            shaped.append(_images_message(waiting))
        text, images = with_images(message, call.images)
        made = _message(message.model_copy(update={"content": text}), quirks, by)
        if images and message.role == "user":
            made["content"] = [{"type": "text", "text": text}, *map(_part, images)]
        else:
            waiting += images
        shaped.append(made)
    if waiting:
        shaped.append(_images_message(waiting))
    return _alternating(shaped, quirks) if {NO_SYSTEM, ALTERNATE} & set(quirks) else shaped


def _alternating(shaped: list[dict[str, Any]], quirks: Collection[str]) -> list[dict[str, Any]]:
    """In the order that a model's template wants where it refuses others."""
    merged: list[dict[str, Any]] = []
    for number, message in enumerate(shaped):
        if message["role"] == "system" and (number or NO_SYSTEM in quirks):
            message["role"] = "user"
        before = merged[-1] if merged else {}
        plain = message["role"] in ("user", "assistant") and not {"tool_calls"} & {*before, *message}
        if plain and before.get("role") == message["role"]:
            before["content"] = _join(before["content"], message["content"])
        else:
            merged.append(message)
    return merged


def _images_message(images: list[Image]) -> dict[str, Any]:
    """A message of the user with the images of those before it, which wait no longer."""
    names = ", ".join(image.name for image in images)
    parts = [{"type": "text", "text": f"The images named above: {names}"}, *map(_part, images)]
    images.clear()
    return {"role": "user", "content": parts}


def _part(image: Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": image.url}}


def _join(first: Any, second: Any) -> Any:
    """Two contents as one: a text, or a list of parts."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    parts = ([{"type": "text", "text": one}] if isinstance(one, str) else one for one in (first, second))
    return [part for content in parts for part in content]


def _message(message: Message, quirks: Collection[str], by: str) -> dict[str, Any]:
    shaped: dict[str, Any] = {"role": message.role, "content": message.content}
    if not message.content.strip():
        shaped["content"] = EMPTY
    if message.tool_calls:
        shaped["content"] = message.content or ("" if NO_NULL in quirks else None)
        shaped["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": function_name(call.name),
                    "arguments": arguments_as_object(call.arguments),
                },
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        shaped["tool_call_id"] = message.tool_call_id
    kept = kept_of(message, by) if NO_KEPT not in quirks else {}
    if REASONING in quirks and "reasoning_content" in kept:
        shaped["reasoning_content"] = kept["reasoning_content"]
    extras: Any = kept.get("calls", [])
    for sent, extra in zip(shaped.get("tool_calls", ()), extras, strict=False):
        sent.update({"extra_content": extra} if extra else {})
    return shaped


def function_name(name: str) -> str:
    """A function's name as OpenAI accepts it; a model may have made up another one."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:NAME_LIMIT] or "unnamed"


# -- the reply -----------------------------------------------------------------------------------------


def _joined_parts(value: object) -> object:
    """Some servers send a list of parts instead of a text."""
    if isinstance(value, list):
        return "".join(str(part.get("text") or "") for part in value if isinstance(part, dict))
    return value


Text = Annotated[str | None, BeforeValidator(_joined_parts)]


class Function(BaseModel):
    name: Name = None
    arguments: Arguments = None


class CallPiece(BaseModel):
    index: int | None = None
    id: Name = None
    function: Function | None = None
    extra_content: Any = None


class Content(BaseModel):
    content: Text = None
    refusal: str | None = None
    reasoning_content: Any = None
    extra_content: Any = None
    tool_calls: list[CallPiece] | None = None


class Choice(BaseModel):
    delta: Content | None = None
    message: Content | None = None
    finish_reason: Name = None


class Piece(BaseModel):
    """A whole completion, or one chunk of a stream, as far as it is used."""

    choices: list[Choice] | None = None
    usage: Counts = None
    model: Name = None
    error: Any = None


@dataclass(slots=True)
class PartialCall:
    """A tool call that has not come to its end."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    extra: Any = None
    """Google's signature, to be sent back."""

    @property
    def whole(self) -> NativeCall:
        return NativeCall(id=self.id, name=self.name, arguments="".join(self.arguments))


class ChatReply:
    """A chat completion that arrives whole or in chunks."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.model = ""
        self.usage: Usage | None = None
        self.answered = False
        self.refused = False
        self.error: Any = None
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._extra: Any = None
        """A signature that came beside the calls."""
        self._calls: list[PartialCall] = []
        self._by_index: dict[int, PartialCall] = {}

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def tool_calls(self) -> tuple[NativeCall, ...]:
        return tuple(call.whole for call in self._real_calls)

    @property
    def kept(self) -> JsonObject:
        """Signatures of the calls, and the reasoning behind them."""
        kept: JsonObject = {}
        extras = [call.extra for call in self._real_calls]
        if extras and not any(extras):
            extras[0] = self._extra
        if any(extras):
            kept["calls"] = extras
        if self._real_calls and self._reasoning:
            kept["reasoning_content"] = "".join(self._reasoning)
        return kept

    @property
    def _real_calls(self) -> list[PartialCall]:
        """Some servers end with a call of nothing."""
        return [call for call in self._calls if call.name or any(call.arguments)]

    def add(self, event: object) -> str:
        """Take in a whole completion or the next chunk; gives its text."""
        piece = Piece.model_validate(event)
        self.error = piece.error
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
        if isinstance(content.reasoning_content, str):
            self._reasoning.append(content.reasoning_content)
        self._extra = content.extra_content or self._extra
        for piece in content.tool_calls or ():
            call, function = self._call_of(piece), piece.function or Function()
            call.id = call.id or piece.id or ""
            call.name = call.name or function.name or ""
            call.arguments.append(function.arguments or "")
            call.extra = piece.extra_content or call.extra
        return text

    def _call_of(self, piece: CallPiece) -> PartialCall:
        """The call that the piece continues. Some servers give no index, or always 0."""
        call = self._calls[-1] if self._calls else None
        if piece.index is not None:
            call = self._by_index.get(piece.index)
        if call is None or (piece.id and call.id and piece.id != call.id) or _begins(piece, call):
            call = PartialCall()
            self._calls.append(call)
        if piece.index is not None:
            self._by_index[piece.index] = call
        return call


def _begins(piece: CallPiece, call: PartialCall) -> bool:
    """The piece is another call, though neither index nor id says so: the one before is whole."""
    function = piece.function or Function()
    if piece.id or not (function.name and function.arguments and call.name):
        return False
    try:
        return isinstance(json.loads("".join(call.arguments)), dict)
    except (ValueError, RecursionError):
        return False
