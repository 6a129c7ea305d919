"""The Responses API: what is posted, and how a response is read.

The server stores nothing (`store: false`). A reasoning model's thoughts come encrypted; they are kept with
the reply (`Message.kept`) and sent back in their place among its text and calls, as OpenAI asks for
(https://cookbook.openai.com/examples/responses_api/reasoning_items).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel

from activities.contracts import JsonObject, Message, NativeCall, Usage
from activities.provider import ModelCall
from activities.providers.openai_chat import EMPTY, function_name
from activities.providers.openai_quirks import NO_KEPT
from activities.providers.openai_reply import (
    Arguments,
    Counts,
    Name,
    arguments_as_object,
    is_closed,
    kept_of,
    with_images,
)

__all__ = ["PATH", "ResponsesReply", "body"]

PATH = "/responses"


# -- the request ---------------------------------------------------------------------------------------


def body(call: ModelCall, quirks: Collection[str] = (), by: str = "") -> JsonObject:
    """What to post; fields that the task leaves open are None."""
    model, setup = call.model, call.setup
    found: dict[str, Any] = {
        "model": model.name,
        "input": [item for message in call.messages for item in _items(message, call, quirks, by)],
        "temperature": model.temperature,
        "reasoning": {"effort": model.reasoning} if model.reasoning else None,
        "max_output_tokens": model.max_output_tokens,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "stream": model.stream,
    }
    if setup.tools:
        found["tools"] = [
            {
                "type": "function", "name": t.name, "description": t.description,
                "parameters": t.parameters, "strict": False,
            }
            for t in setup.tools
        ]  # fmt: skip
        found["tool_choice"] = call.tool_choice
    if (schema := setup.response_schema) is not None:
        wanted = {"type": "json_schema", "name": "reply", "schema": schema, "strict": is_closed(schema)}
        found["text"] = {"format": wanted}
    return found


def _items(message: Message, call: ModelCall, quirks: Collection[str], by: str) -> list[dict[str, Any]]:
    """A message as items of the input."""
    text, images = with_images(message, call.images)
    content: Any = text if text.strip() else EMPTY
    shown = [{"type": "input_image", "image_url": image.url} for image in images]
    if shown:
        content = [{"type": "input_text", "text": text}, *shown]
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": message.tool_call_id, "output": content}]
    texts = [{"role": message.role, "content": content}] if text.strip() else []
    calls = [
        {
            "type": "function_call",
            "call_id": one.id,
            "name": function_name(one.name),
            "arguments": arguments_as_object(one.arguments),
        }
        for one in message.tool_calls
    ]
    placed: list[dict[str, Any]] = []
    order: Any = kept_of(message, by).get("items", []) if NO_KEPT not in quirks else []
    for item in (one for one in order if one.get("type")):  # older releases kept others, which servers refuse
        own = {"message": texts, "function_call": calls}.get(item["type"])
        if own is None:
            placed.append(item)
        elif own:
            placed.append({**item, **own.pop(0)})
    if not (texts or calls):  # reasoning with nothing after it is refused
        while placed and placed[-1]["type"] == "reasoning":
            placed.pop()
    return [*placed, *texts, *calls] or [{"role": message.role, "content": EMPTY}]


# -- the reply -----------------------------------------------------------------------------------------


class ContentPart(BaseModel):
    text: str | None = None
    refusal: str | None = None


class Item(BaseModel):
    type: str = ""
    call_id: Name = None
    name: Name = None
    arguments: Arguments = None
    content: list[ContentPart] | None = None
    encrypted_content: str | None = None
    phase: str | None = None


class Incomplete(BaseModel):
    reason: Name = None


class Response(BaseModel):
    """A whole response, as far as it is used."""

    status: str | None = None
    model: Name = None
    output: list[dict[str, Any]] | None = None
    usage: Counts = None
    error: Any = None
    incomplete_details: Incomplete | None = None


class Event(BaseModel):
    """One event of a stream, as far as it is used."""

    type: str = ""
    delta: Any = None
    item: dict[str, Any] | None = None
    response: Response | None = None


FINISHED = {"max_output_tokens": "length"}
"""Why a response is incomplete -> the name that chat completions have for it."""


class ResponsesReply:
    """A response that arrives whole or in events."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.model = ""
        self.usage: Usage | None = None
        self.answered = False
        self.error: Any = None
        self._items: list[tuple[Item, dict[str, Any]]] = []
        """As they are read, and as they came."""

    @property
    def text(self) -> str:
        return "".join((part.text or "") + (part.refusal or "") for part in self._parts)

    @property
    def refused(self) -> bool:
        return any(part.refusal for part in self._parts)

    @property
    def tool_calls(self) -> tuple[NativeCall, ...]:
        return tuple(
            NativeCall(id=item.call_id or "", name=item.name or "", arguments=item.arguments or "")
            for item, _ in self._items
            if item.type == "function_call"
        )

    @property
    def kept(self) -> JsonObject:
        """Encrypted reasoning whole; text and calls by their place alone, because the message has them."""
        # those without a type would be refused when they go back
        typed = [(item, raw) for item, raw in self._items if item.type]
        if not any(item.encrypted_content for item, _ in typed):
            return {}
        kept: list[Any] = []
        for item, raw in typed:
            if item.encrypted_content:
                kept.append({name: value for name, value in raw.items() if name != "status"})
            elif item.type in ("message", "function_call"):
                kept.append({"type": item.type, **({"phase": item.phase} if item.phase else {})})
        return {"items": kept}

    @property
    def _parts(self) -> list[ContentPart]:
        return [part for item, _ in self._items if item.type == "message" for part in item.content or ()]

    def add(self, event: object) -> str:
        """Take in a whole response or the next event; gives its text."""
        if isinstance(event, dict) and "output" in event and "type" not in event:
            return self._end(Response.model_validate(event))
        if isinstance(event, dict) and event.get("type") == "error":
            self.error = event
            return ""
        found = Event.model_validate(event)
        if found.type.endswith((".output_text.delta", ".refusal.delta")):
            return str(found.delta or "")
        if found.type == "response.output_item.done" and found.item is not None:
            self._take(found.item)
        if found.type in ("response.completed", "response.incomplete", "response.failed"):
            self._end(found.response or Response())
        return ""

    def _take(self, item: dict[str, Any]) -> None:
        self._items.append((Item.model_validate(item), item))

    def _end(self, response: Response) -> str:
        """The end of a response; its items, where none came before."""
        if not self._items:
            for item in response.output or ():
                self._take(item)
        self.answered = True
        self.model, self.usage = response.model or "", response.usage
        self.error = response.error
        why = response.incomplete_details.reason if response.incomplete_details else None
        if response.status == "failed":
            self.error = response.error or {"message": "the response failed"}
        elif why or response.status == "incomplete":
            self.finish_reason = FINISHED.get(why or "", why or "incomplete")
        else:
            self.finish_reason = "tool_calls" if self.tool_calls else "stop"
        return self.text
