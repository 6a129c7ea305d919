"""The body of a chat completions request, and which fields a server may be spared."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from hashlib import sha256
from typing import Any

import openai

from activities.contracts import JsonObject, Setup, ToolSpec
from activities.provider import ProviderCall
from activities.transcript import Message, Transcript

__all__ = ["OPTIONAL_FIELDS", "header_key", "refused_field", "request_body"]

OPTIONAL_FIELDS = ("temperature", "seed", "stream_options", "max_completion_tokens", "max_tokens")
"""Fields that are left out for a model that refuses them."""

NAME_LIMIT = 64
"""Characters of a function's name."""

REFUSAL_CODES = ("unsupported_parameter", "unsupported_value", "unknown_parameter")
REFUSAL_WORDS = re.compile(
    r"not support|unsupported|unknown|unrecognized|unexpected|not permitted|not allowed"
    r"|extra (field|input)|deprecated",
    re.IGNORECASE,
)


def request_body(
    setup: Setup, transcript: Transcript, call: ProviderCall, left_out: Collection[str]
) -> dict[str, Any]:
    """What to post, without the fields in `left_out` and those that the task leaves open."""
    spec = setup.model
    limits = [name for name in ("max_completion_tokens", "max_tokens") if name not in left_out]
    body: dict[str, Any] = {
        "model": spec.name,
        "messages": [_message(message) for message in transcript],
        "temperature": spec.temperature,
        "seed": spec.seed,
        "stream": spec.stream,
        "stream_options": {"include_usage": True} if spec.stream else None,
    }
    if limits:
        body[limits[0]] = spec.max_output_tokens
    if setup.tools:
        body["tools"] = [_tool(tool) for tool in setup.tools]
        body["tool_choice"] = call.tool_choice
    if setup.response_schema is not None:
        body["response_format"] = _response_format(setup.response_schema)
    return {name: value for name, value in body.items() if value is not None and name not in left_out}


def refused_field(error: openai.APIStatusError, body: dict[str, Any]) -> str | None:
    """The optional field that the server does not know or take, if that is what it says."""
    if error.status_code not in (400, 422):
        return None
    said = f"{error.message} {error.body}"
    plain = error.code in REFUSAL_CODES or bool(REFUSAL_WORDS.search(said))
    for name in OPTIONAL_FIELDS:
        named = error.param == name or re.search(rf"(?<!\w){name}(?!\w)", said)
        if name in body and plain and named:
            return name
    return None


def header_key(key: str) -> str:
    """An idempotency key as a header may carry it: short, printable ASCII."""
    if key.isascii() and key.isprintable() and len(key) <= 200:
        return key
    return sha256(key.encode(errors="surrogatepass")).hexdigest()


def _message(message: Message) -> dict[str, Any]:
    shaped: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        shaped["content"] = message.content or None
        shaped["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": _name(call.name), "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        shaped["tool_call_id"] = message.tool_call_id
    return shaped


def _name(name: str) -> str:
    """A name as OpenAI takes it in old messages too: a model may have made one up that is none."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:NAME_LIMIT] or "unnamed"


def _arguments(text: str) -> str:
    """Arguments as one JSON object: servers that parse those of old messages refuse the whole conversation
    for one slip (vLLM, llama-server, SGLang). What the model wrote stays readable for it."""
    if not text.strip():
        return "{}"
    try:
        value = json.loads(text)
        # Python reads more than JSON has: NaN, numbers beyond all bounds, half a character pair.
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        value = None
    return text if isinstance(value, dict) else json.dumps({"invalid": text}, ensure_ascii=False)


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}


def _response_format(schema: JsonObject) -> dict[str, Any]:
    wanted = {"name": "reply", "schema": schema, "strict": _is_closed(schema)}
    return {"type": "json_schema", "json_schema": wanted}


def _is_closed(schema: object) -> bool:
    """Servers enforce a schema to the letter only if no object in it leaves anything open."""
    if isinstance(schema, list):
        return all(_is_closed(part) for part in schema)
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties")
        names = set(properties) if isinstance(properties, dict) else set()
        required = schema.get("required", [])
        if schema.get("additionalProperties") is not False or names != set(required):
            return False
    return all(_is_closed(part) for part in schema.values())
