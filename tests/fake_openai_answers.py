"""What the fake server answers, by the model's name: a word, then an argument behind `:`.

echo                the last message again (also for every unknown name)
say:TEXT            that text
tool:NAME:{json}    one native tool call
schema              an object that fits the wanted JSON schema's first level
status:CODE         that status with an error object; status:429@7 adds Retry-After seconds,
                    status:429@ms250 retry-after-ms, status:429@date5 an HTTP date, and
                    status:503@never x-should-retry: false
error:CODE          status 400 with this error code; quota, context and unknown are known ones
leak:STATUS         that status, repeating the key that came in the header
error200:CODE       an error object with status 200
stream-error:CODE   an error object in the middle of a stream
html broken empty null nochoices    what a broken server sends with status 200
badchunk            a stream with a chunk that is no JSON
cut hangup stall    the reply ends early, the connection closes at once, nothing more comes
slow:SECONDS        waits so long before each word of the echo
filter length       other finish reasons
nousage             a reply without token counts
refuses:FIELD       status 400 as long as the request has that field, then the echo
redirect:URL        status 302
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

__all__ = ["Answer", "behave"]


@dataclass
class Answer:
    """What one request gets."""

    text: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None
    """Sent as it is instead of a completion."""
    content_type: str = "application/json"
    finish_reason: str | None = "stop"
    usage: dict[str, Any] | None = None
    """None: counted words; empty: no counts."""
    end: str = "whole"
    """`whole`, `cut` (in the middle), `hangup` (before anything) or `stall` (never)."""
    word_seconds: float = 0
    stream_error: dict[str, Any] | None = None
    """Sent behind the words of a stream instead of its end."""
    bad_chunk: bool = False


@dataclass(frozen=True)
class _Asked:
    """What an answer may depend on."""

    name: str
    argument: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]

    @property
    def last(self) -> str:
        messages = self.body.get("messages") or [{}]
        return str(messages[-1].get("content") or "")


def behave(model: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Answer:
    """The answer that a model name asks for."""
    name, _, argument = model.partition(":")
    asked = _Asked(name, argument, body, headers)
    return BEHAVIOURS.get(name, _echo)(asked)


def _echo(asked: _Asked) -> Answer:
    return Answer(asked.last)


def _tool(asked: _Asked) -> Answer:
    tool, _, arguments = asked.argument.partition(":")
    function = {"name": tool, "arguments": arguments or "{}"}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    return Answer(tool_calls=calls, finish_reason="tool_calls")


def _schema(asked: _Asked) -> Answer:
    schema = asked.body["response_format"]["json_schema"]["schema"]
    values = {"string": "text", "integer": 1, "number": 1.5, "boolean": True, "array": []}
    properties = schema.get("properties", {})
    return Answer(json.dumps({name: values.get(part.get("type"), {}) for name, part in properties.items()}))


def _status(asked: _Asked) -> Answer:
    code, _, wait = asked.argument.partition("@")
    answer = _refusal(int(code), None, f"the server says {code}")
    if wait == "never":
        answer.headers = {"x-should-retry": "false"}
    elif wait.startswith("ms"):
        answer.headers = {"retry-after-ms": wait[2:]}
    elif wait.startswith("date"):
        moment = datetime.now(UTC) + timedelta(seconds=float(wait[4:]))
        answer.headers = {"Retry-After": format_datetime(moment, usegmt=True)}
    elif wait:
        answer.headers = {"Retry-After": wait}
    return answer


def _leak(asked: _Asked) -> Answer:
    key = asked.headers.get("authorization", "").removeprefix("Bearer ")
    return _refusal(int(asked.argument), None, f"Incorrect API key provided: {key} ({key[:9]}***{key[-4:]})")


def _refuses(asked: _Asked) -> Answer:
    name = asked.argument
    if name not in asked.body:
        return _echo(asked)
    said = f"Unsupported parameter: '{name}' is not supported with this model."
    return _refusal(400, "unsupported_parameter", said, name)


def _context(asked: _Asked) -> Answer:
    said = "This model's maximum context length is 10 tokens. However, you asked for 99 tokens."
    return _refusal(400, "context_length_exceeded", said)


def _stream_error(asked: _Asked) -> Answer:
    error = {"message": "broke in the middle", "code": asked.argument or None, "type": "server_error"}
    return Answer("one two", stream_error=error)


def _refusal(status: int, code: str | None, message: str, param: str | None = None) -> Answer:
    error = {"message": message, "type": "fake_error", "param": param, "code": code}
    return Answer(status=status, body=json.dumps({"error": error}))


def _raw(body: str, content_type: str = "application/json") -> Callable[[_Asked], Answer]:
    return lambda asked: Answer(body=body, content_type=content_type)


def _ending(asked: _Asked) -> Answer:
    return Answer("one two three", end=asked.name, finish_reason=None)


BEHAVIOURS: dict[str, Callable[[_Asked], Answer]] = {
    "echo": _echo,
    "say": lambda asked: Answer(asked.argument),
    "tool": _tool,
    "schema": _schema,
    "status": _status,
    "leak": _leak,
    "refuses": _refuses,
    "error": lambda asked: _refusal(400, asked.argument, f"refused: {asked.argument}"),
    "quota": lambda asked: _refusal(429, "insufficient_quota", "You exceeded your current quota"),
    "context": _context,
    "unknown": lambda asked: _refusal(404, "model_not_found", "The model `unknown` does not exist"),
    "error200": lambda asked: _refusal(200, asked.argument or None, "something broke inside"),
    "stream-error": _stream_error,
    "html": _raw("<html><body>It works!</body></html>", "text/html"),
    "broken": _raw('{"id": "x", "choices": [{"message": {"con'),
    "empty": _raw(""),
    "null": _raw('{"id": "x", "object": "chat.completion", "choices": null}'),
    "nochoices": _raw('{"id": "x", "object": "chat.completion", "choices": []}'),
    "badchunk": lambda asked: Answer("one two", bad_chunk=True),
    "cut": _ending,
    "hangup": _ending,
    "stall": _ending,
    "slow": lambda asked: Answer(asked.last, word_seconds=float(asked.argument or 0.05)),
    "filter": lambda asked: Answer("half", finish_reason="content_filter"),
    "length": lambda asked: Answer("half", finish_reason="length"),
    "nousage": lambda asked: Answer(asked.last, usage={}),
    "redirect": lambda asked: Answer(status=302, headers={"Location": asked.argument}, body=""),
}
