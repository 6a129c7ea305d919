"""A fake OpenAI-compatible server: real HTTP on 127.0.0.1, whose behaviour a test picks.

It speaks chat completions and the Responses API. Answers come from `server.queue(...)`, or from the model's
name: a word, then an argument behind `:`. Several names joined by `+` mean one per call, the last for ever:
`status:503+status:429@0+echo`.

echo                the last message again (also for every unknown name)
say:TEXT            that text
tool:NAME:{json}    one native tool call
schema              an object that fits the first level of the wanted JSON schema
status:CODE         that status with an error object; status:429@7 adds Retry-After in seconds,
                    status:429@ms250 retry-after-ms, status:429@date5 an HTTP date, and
                    status:503@never x-should-retry: false
error:CODE          status 400 with this error code; quota, context and unknown are known ones
leak:STATUS         that status, repeating the key that came in the header
error200:CODE       an error object with status 200
stream-error:CODE   an error object in the middle of a stream
html broken empty null nochoices    what a broken server sends with status 200
badchunk            a stream with a chunk that is not JSON
cut hangup stall    the reply ends early, the connection closes at once, nothing more comes
slow:SECONDS        waits so long before each word of the echo
filter length       other finish reasons
nousage             a reply without token counts
refuses:FIELD       status 400 as long as the request has that field, then the echo
redirect:URL        status 302

As a program it prints its base URL and serves until it is stopped:
`python -m tests.fake_openai [--port N] [--say TEXT]...`
"""

from __future__ import annotations

import argparse
import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

__all__ = ["Answer", "FakeOpenAI", "RecordedRequest"]

MODELS = ("echo", "gpt-5-mini", "llama3.2:latest")
WORD_PAUSE = 0.05
ASKING = ("/chat/completions", "/responses")


@dataclass(frozen=True)
class RecordedRequest:
    """One request as it came."""

    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: dict[str, Any]
    content: bytes = b""
    """The body as it came, byte by byte."""
    at: float = field(default_factory=time.time)
    """When it came."""

    @property
    def last_text(self) -> str:
        """The content of the last message."""
        messages = self.body.get("messages") or self.body.get("input") or [{}]
        return str(messages[-1].get("content") or "")


@dataclass(frozen=True)
class Answer:
    """What one request gets."""

    text: str = ""
    tool_calls: tuple[dict[str, Any], ...] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | bytes | None = None
    """Sent as it is instead of a completion."""
    content_type: str = "application/json"
    finish_reason: str | None = "stop"
    reasoning: tuple[dict[str, Any], ...] = ()
    """Items of the Responses API in front of the text."""
    refusal: bool = False
    """The text is a refusal (Responses API)."""
    counts: bool = True
    """With token counts: one per word."""
    end: str = "whole"
    """`whole`, `cut` (in the middle), `hangup` (before anything) or `stall` (nothing more comes)."""
    word_seconds: float = 0
    stream_end: str | None = None
    """Raw data of the last event of a stream, instead of its proper end."""


class FakeOpenAI:
    """The server; `with FakeOpenAI() as server: ... server.base_url ... server.requests`."""

    def __init__(self, port: int = 0) -> None:
        self.models: tuple[str, ...] = MODELS
        """What the list of models names."""
        self.list_headers: tuple[str, ...] = ()
        """Without these headers the list is refused, as Anthropic's is."""
        self.requests: list[RecordedRequest] = []
        self.request_came = threading.Event()
        """Set when a request for a completion has come."""
        self.client_left = threading.Event()
        """Set when a client has closed the connection in the middle of an answer."""
        self.stopping = threading.Event()
        self._queue: deque[Answer] = deque()
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", port), _Connection)
        self._server.fake = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def base_url(self) -> str:
        """What goes into OPENAI_BASE_URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def completion_requests(self) -> list[RecordedRequest]:
        """Without those for the list of models."""
        return [one for one in self.requests if one.path.endswith(ASKING)]

    def queue(self, *answers: Answer | str) -> None:
        """Answers for the next requests, whatever the model's name says."""
        self._queue.extend(Answer(one) if isinstance(one, str) else one for one in answers)

    def reset(self) -> None:
        """No requests, nothing queued, the usual models."""
        with self._lock:
            self.models, self.list_headers = MODELS, ()
            self.requests.clear()
            self._queue.clear()
            self._calls.clear()
            self.request_came.clear()
            self.client_left.clear()

    def answer(self, request: RecordedRequest) -> Answer:
        """What this request gets."""
        with self._lock:
            self.requests.append(request)
            if request.path.endswith(ASKING):
                self.request_came.set()
                if self._queue:
                    return self._queue.popleft()
            model = str(request.body.get("model", "echo"))
            number = self._calls.get(model, 0)
            self._calls[model] = number + 1
        names = model.split("+")
        name, _, argument = names[min(number, len(names) - 1)].partition(":")
        return BEHAVIOURS.get(name, _echo)(request, argument)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    fake: FakeOpenAI

    def handle_error(self, request: Any, client_address: Any) -> None:
        self.fake.client_left.set()


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        # Without this each call shows 44 ms of delayed acknowledgement.
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        fake = self.server.fake
        fake.answer(self._recorded({}))
        listed = {"object": "list", "data": [{"id": name, "object": "model"} for name in fake.models]}
        status = 200 if self.path.partition("?")[0].endswith("/models") else 404
        if not all(name in self.headers for name in fake.list_headers):
            status = 401
        self._send(Answer(status=status, body=json.dumps(listed)))

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        request = self._recorded(json.loads(raw or b"{}"), raw)
        answer, streams = self.server.fake.answer(request), request.body.get("stream")
        if answer.end == "hangup":
            self.close_connection = True
        elif answer.end == "stall" and not streams:
            self._stall()
        elif answer.body is not None:
            self._send(answer)
        elif streams:
            self._stream(answer, request.body)
        elif self._pause(answer.word_seconds * len(answer.text.split())):
            self._whole(answer, request.body)

    def _recorded(self, body: dict[str, Any], raw: bytes = b"") -> RecordedRequest:
        return RecordedRequest(self.path, {name.lower(): v for name, v in self.headers.items()}, body, raw)

    def _whole(self, answer: Answer, body: Mapping[str, Any]) -> None:
        message = {"role": "assistant", "content": answer.text, "tool_calls": list(answer.tool_calls) or None}
        choice = {"index": 0, "message": message, "finish_reason": answer.finish_reason}
        whole = {**_head(body, ""), "choices": [choice], "usage": _usage(answer, body)}
        text = json.dumps(_response(answer, body) if self.path.endswith("/responses") else whole)
        missing = 99 if answer.end == "cut" else 0
        self.close_connection = bool(missing)
        self._send(replace(answer, body=text, headers={"Content-Length": str(len(text) + missing)}))

    def _stream(self, answer: Answer, body: Mapping[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        responds = self.path.endswith("/responses")
        for piece in _events(answer, body) if responds else _pieces(answer):
            if not self._pause(answer.word_seconds):
                return
            self._event(json.dumps(piece if responds else {**_head(body, ".chunk"), "choices": [piece]}))
        if answer.stream_end is not None:
            self._event(answer.stream_end)
        elif answer.end == "stall":
            self._stall()
        elif answer.end == "whole" and not responds:
            usage = _usage(answer, body)
            if usage and (body.get("stream_options") or {}).get("include_usage"):
                self._event(json.dumps({**_head(body, ".chunk"), "choices": [], "usage": usage}))
            self._event("[DONE]")

    def _event(self, text: str) -> None:
        self.wfile.write(f"data: {text}\n\n".encode())

    def _send(self, answer: Answer) -> None:
        data = answer.body if isinstance(answer.body, bytes) else (answer.body or "").encode()
        headers = {"Content-Type": answer.content_type, "Content-Length": str(len(data)), **answer.headers}
        self.send_response(answer.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _stall(self) -> None:
        while self._pause(0.02):
            pass

    def _pause(self, seconds: float) -> bool:
        """Wait; False once the client is gone or the server stops."""
        deadline = time.monotonic() + seconds
        while not (self.server.fake.stopping.is_set() or self._client_left()):
            rest = deadline - time.monotonic()
            if rest <= 0:
                return True
            time.sleep(min(rest, 0.02))
        return False

    def _client_left(self) -> bool:
        self.connection.settimeout(0)
        try:
            left = bool(self.connection.recv(1, socket.MSG_PEEK) == b"")
        except (BlockingIOError, TimeoutError):
            left = False
        except OSError:
            left = True
        finally:
            self.connection.settimeout(None)
        if left:
            self.close_connection = True
            self.server.fake.client_left.set()
        return left


def _head(body: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {"id": "x", "object": f"chat.completion{kind}", "created": 1, "model": str(body.get("model"))}


def _pieces(answer: Answer) -> Iterator[dict[str, Any]]:
    """The chunks of a stream: word by word, then the calls in halves, then the end."""
    for number, word in enumerate(answer.text.split(" ") if answer.text else []):
        yield {"index": 0, "delta": {"content": word if number == 0 else f" {word}"}, "finish_reason": None}
    for index, call in enumerate(answer.tool_calls):
        arguments = call["function"]["arguments"]
        half = len(arguments) // 2
        first = {**call, "index": index, "function": {**call["function"], "arguments": arguments[:half]}}
        rest = {"index": index, "function": {"arguments": arguments[half:]}}
        for part in (first, rest):
            yield {"index": 0, "delta": {"tool_calls": [part]}, "finish_reason": None}
    if answer.finish_reason is not None:
        yield {"index": 0, "delta": {}, "finish_reason": answer.finish_reason}


def _output(answer: Answer) -> Iterator[dict[str, Any]]:
    """Items of the Responses API."""
    yield from answer.reasoning
    if answer.text:
        kind = "refusal" if answer.refusal else "text"
        part = {"type": f"output_{kind}", kind: answer.text}
        yield {"type": "message", "id": "msg_1", "role": "assistant", "content": [part]}
    for call in answer.tool_calls:
        yield {"type": "function_call", "id": "fc_1", "call_id": call["id"], **call["function"]}


def _response(answer: Answer, body: Mapping[str, Any]) -> dict[str, Any]:
    reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
    why = reasons.get(answer.finish_reason or "")
    usage = _usage(answer, body) or {}
    return {
        "id": "resp_1", "object": "response", "model": str(body.get("model")), "output": [*_output(answer)],
        "status": "incomplete" if why else "completed",
        "incomplete_details": {"reason": why} if why else None, "error": None,
        "usage": {
            "input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"] + 7,
            "input_tokens_details": {"cached_tokens": 2}, "output_tokens_details": {"reasoning_tokens": 7},
        } if usage else None,
    }  # fmt: skip


def _events(answer: Answer, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A stream of the Responses API: the words, each item, then the whole."""
    yield {"type": "response.created", "response": {**_response(answer, body), "output": [], "usage": None}}
    kind = "refusal" if answer.refusal else "output_text"
    for number, word in enumerate(answer.text.split(" ") if answer.text else []):
        yield {"type": f"response.{kind}.delta", "delta": word if number == 0 else f" {word}"}
    for number, item in enumerate(_output(answer)):
        yield {"type": "response.output_item.done", "output_index": number, "item": item}
    if answer.finish_reason is not None:
        whole = _response(answer, body)
        yield {"type": f"response.{whole['status']}", "response": whole}


def _usage(answer: Answer, body: Mapping[str, Any]) -> dict[str, Any] | None:
    if not answer.counts:
        return None
    messages = body.get("messages") or body.get("input") or []
    words_in = sum(len(str(m.get("content") or "").split()) for m in messages)
    words_out = len(answer.text.split())
    return {
        "prompt_tokens": words_in, "completion_tokens": words_out, "total_tokens": words_in + words_out,
        "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip


# -- behaviour by the model's name ---------------------------------------------------------------------

Behaviour = Callable[[RecordedRequest, str], Answer]


def _refusal(status: int, code: str | None, message: str, param: str | None = None) -> Answer:
    error = {"message": message, "type": "fake_error", "param": param, "code": code}
    return Answer(status=status, body=json.dumps({"error": error}))


def _raw(body: str, content_type: str = "application/json") -> Behaviour:
    return lambda request, argument: Answer(body=body, content_type=content_type)


def _echo(request: RecordedRequest, argument: str) -> Answer:
    return Answer(request.last_text)


def _tool(request: RecordedRequest, argument: str) -> Answer:
    tool, _, arguments = argument.partition(":")
    call = {"id": "call_1", "type": "function", "function": {"name": tool, "arguments": arguments or "{}"}}
    return Answer(tool_calls=(call,), finish_reason="tool_calls")


def _schema(request: RecordedRequest, argument: str) -> Answer:
    body = request.body
    schema = (body["text"]["format"] if "text" in body else body["response_format"]["json_schema"])["schema"]
    values = {"string": "text", "integer": 1, "number": 1.5, "boolean": True, "array": []}
    found = {name: values.get(part.get("type"), {}) for name, part in schema.get("properties", {}).items()}
    return Answer(json.dumps(found))


def _status(request: RecordedRequest, argument: str) -> Answer:
    code, _, wait = argument.partition("@")
    headers = {"Retry-After": wait} if wait else {}
    if wait == "never":
        headers = {"x-should-retry": "false"}
    elif wait.startswith("ms"):
        headers = {"retry-after-ms": wait[2:]}
    elif wait.startswith("date"):
        moment = datetime.now(UTC) + timedelta(seconds=float(wait[4:]))
        headers = {"Retry-After": format_datetime(moment, usegmt=True)}
    return replace(_refusal(int(code), None, f"the server says {code}"), headers=headers)


def _leak(request: RecordedRequest, argument: str) -> Answer:
    key = request.headers.get("authorization", "").removeprefix("Bearer ")
    return _refusal(int(argument), None, f"Incorrect API key provided: {key} ({key[:9]}***{key[-4:]})")


def _refuses(request: RecordedRequest, argument: str) -> Answer:
    if argument not in request.body:
        return _echo(request, "")
    message = f"Unsupported parameter: '{argument}' is not supported with this model."
    return _refusal(400, "unsupported_parameter", message, argument)


def _stream_error(request: RecordedRequest, argument: str) -> Answer:
    error = {"message": "broke in the middle", "code": argument or None, "type": "server_error"}
    return Answer("one two", stream_end=json.dumps({"error": error}))


CONTEXT = "This model's maximum context length is 10 tokens. However, you asked for 99 tokens."
BEHAVIOURS: dict[str, Behaviour] = {
    "echo": _echo,
    "say": lambda request, argument: Answer(argument),
    "tool": _tool,
    "schema": _schema,
    "status": _status,
    "leak": _leak,
    "refuses": _refuses,
    "error": lambda request, argument: _refusal(400, argument, f"refused: {argument}"),
    "quota": lambda request, argument: _refusal(429, "insufficient_quota", "You exceeded your quota"),
    "context": lambda request, argument: _refusal(400, "context_length_exceeded", CONTEXT),
    "unknown": lambda request, argument: _refusal(404, "model_not_found", "The model does not exist"),
    "error200": lambda request, argument: _refusal(200, argument or None, "something broke inside"),
    "stream-error": _stream_error,
    "html": _raw("<html><body>It works!</body></html>", "text/html"),
    "broken": _raw('{"id": "x", "choices": [{"message": {"con'),
    "empty": _raw(""),
    "null": _raw('{"id": "x", "object": "chat.completion", "choices": null}'),
    "nochoices": _raw('{"id": "x", "object": "chat.completion", "choices": []}'),
    "badchunk": lambda request, argument: Answer("one two", stream_end='{"id": "x", "choi'),
    "cut": lambda request, argument: Answer("one two three", end="cut", finish_reason=None),
    "hangup": lambda request, argument: Answer(end="hangup"),
    "stall": lambda request, argument: Answer("one two three", end="stall", finish_reason=None),
    "slow": lambda request, argument: Answer(request.last_text, word_seconds=float(argument or WORD_PAUSE)),
    "filter": lambda request, argument: Answer("half", finish_reason="content_filter"),
    "length": lambda request, argument: Answer("half", finish_reason="length"),
    "nousage": lambda request, argument: Answer(request.last_text, counts=False),
    "redirect": lambda request, argument: Answer(status=302, headers={"Location": argument}, body=""),
}


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description="a fake OpenAI-compatible server")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--say", action="append", default=[], help="queue a reply")
    options = parser.parse_args()
    with FakeOpenAI(options.port) as server:
        server.queue(*options.say)
        print(server.base_url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
