"""What servers refuse that others want: found out from their complaint, once for each server and model.

A quirk is a name: of a field that is left out from then on, of a keyword that is left out of the schemas of
tools, or one of those below. docs/providers.md has a table with examples.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from activities.contracts import REFUSAL, Message, ModelReplied, NativeCall, ToolSpec, Usage
from activities.provider import ModelCall

__all__ = [
    "ALTERNATE",
    "NO_KEPT",
    "NO_NULL",
    "NO_SYSTEM",
    "NO_TOOLS",
    "REASONING",
    "asks_by_tool",
    "complaint",
    "fitted",
    "holds_json",
    "read",
    "together",
    "unusable",
    "way",
]

MOST_QUIRKS = 20
"""Of one model; a server that refuses ever new things is not asked for ever."""
NATIVE = "reads calls"
"""No quirk: the server has read a call of this model, so none is left in a text."""
NO_SCHEMA = "response_format"
"""It does not know JSON schemas, or ignores them: the reply is asked for as the arguments of a tool."""
NO_TOOLS = "reply tool"
"""Nor that tool: the schema is part of the question."""
ALTERNATE = "roles must alternate"
"""Neighbouring messages of one role are sent as one, and a system message in the middle as a user's."""
NO_SYSTEM = "no system role"
NO_NULL = "no null content"
REASONING = "reasoning_content"
"""It wants the reasoning of tool calls back."""
NO_KEPT = "kept"
"""It does not take what it wanted back, for instance because another key is used now."""
KEYWORD = "keyword "
"""Begins the name of a keyword of JSON schema."""
REPLY_TOOL = "reply"

OPTIONAL_FIELDS = (
    "temperature", "seed", "stream_options", "max_completion_tokens", "max_tokens", "reasoning_effort",
    "reasoning", "include", "store", "tool_choice", "response_format", "text",
)  # fmt: skip
"""Fields that are left out for a model that refuses them."""
REFUSAL_WORDS = re.compile(
    r"not support|unsupported|unknown|unrecognized|unexpected|not permitted|not allowed"
    r"|extra (field|input)|deprecated|cannot be used|is unavailable",
    re.IGNORECASE,
)
WORDS = {
    NO_SYSTEM: r"system (role|message|prompt)s? (is |are )?not supported|does not support system"
    r"|only user,? (and )?assistant( and tool)? roles are supported",
    ALTERNATE: r"roles? must alternate|alternate between|system message must be at the (beginning|start)",
    NO_NULL: r"content\W.{0,80}(null|none\b|should be a valid string|must be a string|field required)"
    r"|nonetype|(missing|expected) .{0,20}content",
    REASONING: r"reasoning_content",
    NO_KEPT: r"encrypted.content|thought.?signature.*(invalid|corrupt)|item .{0,60}of type .reasoning",
}
UNKNOWN_KEYWORD = re.compile(r"""unknown name \\?["'](\$?\w+)\\?["'] at""", re.IGNORECASE)
THOUGHTS = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)
BRACKET = re.compile(r"[{\[]")
MAX_TRIED_OBJECTS = 20
WRITTEN = re.compile(
    r"<tool_call>\s*(\{.*?\})\s*(?:</tool_call>|\Z)|\[TOOL_REQUEST\]\s*(\{.*?\})\s*\[END_TOOL_REQUEST\]"
    r"|\A\s*(?:```(?:json)?\s*)?(\{.*\})\s*(?:```)?\s*\Z",
    re.DOTALL,
)


def complaint(words: str, param: str | None, body: Mapping[str, Any], known: Collection[str]) -> str | None:
    """The quirk that a refusal shows, if that is its complaint and it is not known yet."""
    if found := UNKNOWN_KEYWORD.search(words):
        keyword = f"{KEYWORD}{found[1]}"
        if keyword not in known and ("tools" in body):
            return keyword
    if REFUSAL_WORDS.search(words):
        for name in OPTIONAL_FIELDS:
            sign = (
                rf"(?<!\w){name}(?!\w)" if "_" in name or name == "temperature" else rf"""["'`]{name}["'`.]"""
            )
            if body.get(name) is not None and ((param or "").startswith(name) or re.search(sign, words)):
                return NO_SCHEMA if name == "text" else name
    for name, pattern in WORDS.items():
        if name not in known and re.search(pattern, words, re.IGNORECASE | re.DOTALL):
            return name
    return None


def fitted(call: ModelCall, quirks: Collection[str]) -> ModelCall:
    """The question with its schema in another way, where the server does not know the usual one."""
    setup = call.setup
    for keyword in [name.removeprefix(KEYWORD) for name in quirks if name.startswith(KEYWORD)]:
        tools = tuple(
            tool.model_copy(update={"parameters": without(tool.parameters, keyword)}) for tool in setup.tools
        )
        setup = setup.model_copy(update={"tools": tools})
    choice, conversation, schema = call.tool_choice, call.conversation, setup.response_schema
    if schema is not None and NO_SCHEMA in quirks:
        setup = setup.model_copy(update={"response_schema": None})
        if NO_TOOLS not in quirks and not setup.tools and schema.get("type") == "object":
            tool = ToolSpec(name=REPLY_TOOL, description="Give your reply.", parameters=schema)
            setup, choice = setup.model_copy(update={"tools": (tool,)}), "required"
        else:
            words = f"Reply with JSON that fits this schema, and with nothing else:\n{json.dumps(schema)}"
            conversation = conversation.add(Message(role="user", content=words))
    return replace(call, setup=setup, conversation=conversation, tool_choice=choice)


def unusable(reply: ModelReplied, asked: ModelCall, wanted: ModelCall) -> str | None:
    """The quirk of a server that took the schema and did not follow it; None where all is well."""
    if wanted.setup.response_schema is None or reply.tool_calls or not reply.text.strip():
        return None
    if reply.finish_reason in ("length", REFUSAL) or holds_json(reply.text):
        return None
    return way(asked, wanted)


def way(asked: ModelCall, wanted: ModelCall) -> str | None:
    """How a schema was asked for, as the quirk of who does not follow it; None: in words, or not at all."""
    if asked.setup.response_schema is not None:
        return NO_SCHEMA
    return NO_TOOLS if asks_by_tool(asked, wanted) else None


def asks_by_tool(asked: ModelCall, wanted: ModelCall) -> bool:
    """The reply is asked for as the arguments of a tool."""
    return bool(asked.setup.tools) and not wanted.setup.tools


def read(reply: ModelReplied, asked: ModelCall, wanted: ModelCall, *, native: bool = False) -> ModelReplied:
    """The reply without what a server's template left in its text: thoughts, and calls written as text; the
    latter not where the server is known to read calls itself (`native`), for a model may quote a page."""
    text, calls = THOUGHTS.sub("", reply.text, count=1), reply.tool_calls
    if not calls and asked.setup.tools and wanted.tool_choice != "none" and not native:
        text, calls = written_calls(text, {tool.name for tool in asked.setup.tools})
    reason = reply.finish_reason
    if calls and asks_by_tool(asked, wanted):
        text, calls, reason = calls[0].arguments, (), "stop"
    return reply.model_copy(update={"text": text, "tool_calls": calls, "finish_reason": reason})


def together(reply: ModelReplied, before: Iterable[ModelReplied]) -> ModelReplied:
    """The reply, with what those before it cost."""
    all_of = (*before, reply)
    usage = {name: sum(getattr(one.usage, name) for one in all_of) for name in Usage.model_fields}
    cost, known = sum(one.cost_usd for one in all_of), all(one.cost_known for one in all_of)
    return reply.model_copy(update={"usage": Usage(**usage), "cost_usd": cost, "cost_known": known})


def written_calls(text: str, offered: Collection[str]) -> tuple[str, tuple[NativeCall, ...]]:
    """Calls that a model wrote at the end of its text, where the server could not read them; and the other
    text."""
    calls = []
    every = list(WRITTEN.finditer(text))
    for found in every if every and not text[every[-1].end() :].strip() else ():
        try:
            call = json.loads(next(filter(None, found.groups())))
        except (ValueError, RecursionError):
            continue
        arguments = call.get("arguments", call.get("parameters"))
        if isinstance(call.get("name"), str) and call["name"] in offered and isinstance(arguments, dict):
            calls.append(NativeCall(id="", name=call["name"], arguments=json.dumps(arguments)))
    return (WRITTEN.sub("", text).strip(), tuple(calls)) if calls else (text, ())


def holds_json(text: str) -> bool:
    """There is an object or a list in the text."""
    decoder = json.JSONDecoder()
    for start in [found.start() for found in BRACKET.finditer(text)][:MAX_TRIED_OBJECTS]:
        try:
            decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        return True
    return False


def without(schema: Any, keyword: str, *, names: bool = False) -> Any:
    """A JSON schema without a keyword; `names`: its keys are names of properties."""
    if isinstance(schema, list):
        return [without(part, keyword) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: without(part, keyword, names=not names and name in ("properties", "$defs"))
        for name, part in schema.items()
        if names or name != keyword
    }
