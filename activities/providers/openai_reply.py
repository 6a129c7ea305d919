"""A reply as it arrives, whole or in pieces, whichever the API: what both ways of reading have in common.

Everything is read leniently, since servers differ in detail: docs/providers.md has a table of what differs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Protocol

from pydantic import BeforeValidator

from activities.contracts import JsonObject, Message, NativeCall, Usage, without_digests
from activities.images import Image
from activities.text import unicode_of

__all__ = [
    "Arguments", "Counts", "Name", "Reply", "arguments_as_object", "as_kept", "is_closed", "kept_of",
    "with_images",
]  # fmt: skip


class Reply(Protocol):
    """A reply that arrives: `add` takes the next event, or the whole body, and gives its text."""

    finish_reason: str | None
    model: str
    usage: Usage | None
    answered: bool
    """Something that may be a reply came."""
    error: Any
    """What the server says went wrong, inside a reply with status 200."""

    @property
    def refused(self) -> bool:
        """The text is the model's refusal to answer in the wanted form."""
        ...

    @property
    def text(self) -> str: ...

    @property
    def tool_calls(self) -> tuple[NativeCall, ...]:
        """All calls so far; ids as the server gave them, or empty."""
        ...

    @property
    def kept(self) -> JsonObject:
        """What the server wants back with the message."""
        ...

    def add(self, event: object) -> str: ...


def kept_of(message: Message, by: str) -> JsonObject:
    """What the model and server named by `by` want back with the message; others are sent none of it."""
    found = json.loads(message.kept) if message.kept else {}
    if "\\ud" in message.kept.lower():  # halves of pairs, as an older release kept them
        found = json.loads(unicode_of(json.dumps(found, ensure_ascii=False)))
    kept: JsonObject = found.get("kept", {}) if isinstance(found, dict) and found.get("by") == by else {}
    return kept


def as_kept(values: JsonObject, by: str) -> str:
    """What `kept_of` reads: valid JSON and valid Unicode, for it goes back with every later question. Empty
    for what cannot be: a model that is not told what it thought still answers."""
    if not values:
        return ""
    try:
        return unicode_of(json.dumps({"by": by, "kept": values}, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):  # Python reads more than JSON has: NaN
        return ""


def with_images(message: Message, images: Mapping[str, Image]) -> tuple[str, list[Image]]:
    """The text with short marks for its images, and these."""
    if message.role == "assistant":
        return message.content, []
    text = message.content
    found = [images[mark] for mark in sorted((m for m in images if m in text), key=text.index)]
    for mark, image in images.items():
        text = text.replace(mark, f"[image {image.name}]")
    return without_digests(text), found


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
    """Token counts under the names of either API; None for none, and for zeros."""
    if not isinstance(value, dict):
        return None
    used = _count(value.get("prompt_tokens", value.get("input_tokens")))
    made = _count(value.get("completion_tokens", value.get("output_tokens")))
    if used is None or made is None or not used + made:
        return None
    of_input = value.get("prompt_tokens_details", value.get("input_tokens_details"))
    of_output = value.get("completion_tokens_details", value.get("output_tokens_details"))
    cached = _count(of_input.get("cached_tokens")) if isinstance(of_input, dict) else None
    cached = cached or _count(value.get("prompt_cache_hit_tokens"))  # DeepSeek's
    reasoned = _count(of_output.get("reasoning_tokens")) if isinstance(of_output, dict) else None
    total = _count(value.get("total_tokens")) or 0  # Google and xAI count reasoning nowhere else
    return Usage(
        input_tokens=used,
        output_tokens=max(made, total - used),
        cached_tokens=cached or 0,
        reasoning_tokens=reasoned or max(total - used - made, 0),
    )


Name = Annotated[str | None, BeforeValidator(_as_text)]
Arguments = Annotated[str | None, BeforeValidator(_as_json)]
Counts = Annotated[Usage | None, BeforeValidator(_usage)]


def arguments_as_object(text: str) -> str:
    """Arguments as one JSON object: vLLM, llama-server and SGLang refuse the whole conversation for
    one slip in an old message. The model can still read what it wrote."""
    if not text.strip():
        return "{}"
    try:
        value = json.loads(text)
        # Python reads more than JSON has: NaN, numbers without bounds, half a character pair.
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        value = None
    return text if isinstance(value, dict) else json.dumps({"invalid": text}, ensure_ascii=False)


def is_closed(schema: object) -> bool:
    """Servers enforce a schema strictly only if no object in it leaves anything open."""
    if isinstance(schema, list):
        return all(is_closed(part) for part in schema)
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties")
        names = set(properties) if isinstance(properties, dict) else set()
        if schema.get("additionalProperties") is not False or names != set(schema.get("required", [])):
            return False
    return all(is_closed(part) for part in schema.values())
