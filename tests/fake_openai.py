"""A fake OpenAI-compatible server: real HTTP, whose behaviour a test picks.

By the model's name, as `tests/fake_openai_answers.py` lists them, or by answers queued with `say`.
Several names joined by `+` mean one per call, the last for ever: `status:503+status:429@0+echo`.

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fake_openai_answers import Answer, behave

__all__ = ["Answer", "FakeOpenAI", "Recorded"]

MODELS = ("echo", "gpt-5-mini", "llama3.2:latest")


@dataclass(frozen=True)
class Recorded:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: dict[str, Any]


class FakeOpenAI:
    """The server; `with FakeOpenAI() as server: ... server.base_url ... server.requests`."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[Recorded] = []
        self.came = threading.Event()
        """Set when a request for a completion has come."""
        self.gone = threading.Event()
        """Set when a client has closed the connection in the middle of an answer."""
        self.stopping = threading.Event()
        self._queue: deque[Answer] = deque()
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", port), _Conversation)
        self._server.fake = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def base_url(self) -> str:
        """What goes into OPENAI_BASE_URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def asked(self) -> list[Recorded]:
        """The requests for completions."""
        return [one for one in self.requests if one.path.endswith("/chat/completions")]

    def say(self, *answers: Answer | str) -> None:
        """Queue answers; they go before what the model's name says."""
        self._queue.extend(Answer(one) if isinstance(one, str) else one for one in answers)

    def forget(self) -> None:
        """Begin anew: no requests, nothing queued."""
        with self._lock:
            self.requests.clear()
            self._queue.clear()
            self._calls.clear()
            self.came.clear()
            self.gone.clear()

    def answer(self, request: Recorded) -> Answer:
        """What this request gets."""
        with self._lock:
            self.requests.append(request)
            if request.path.endswith("/chat/completions"):
                self.came.set()
                if self._queue:
                    return self._queue.popleft()
            names = str(request.body.get("model", "echo")).split("+")
            number = self._calls.get("+".join(names), 0)
            self._calls["+".join(names)] = number + 1
        return behave(names[min(number, len(names) - 1)], request.body, request.headers)

    def __enter__(self) -> FakeOpenAI:
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
        self.fake.gone.set()  # a client that went away is what some tests are about


class _Conversation(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        # Else each call shows 44 ms of delayed acknowledgement.
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        answer = self.server.fake.answer(self._recorded({}))
        listed = {"object": "list", "data": [{"id": name, "object": "model"} for name in MODELS]}
        if not self.path.endswith("/models"):
            listed, answer.status = {"object": "error"}, 404
        self._send(answer.status, {}, json.dumps(listed))

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        request = self._recorded(json.loads(raw or b"{}"))
        answer = self.server.fake.answer(request)
        if answer.end == "hangup":
            self.close_connection = True
        elif answer.end == "stall" and not request.body.get("stream"):
            self._stall()
        elif answer.body is not None:
            self._send(answer.status, answer.headers, answer.body, answer.content_type)
        elif request.body.get("stream"):
            self._stream(answer, request.body)
        else:
            self._whole(answer, request.body)

    def _recorded(self, body: dict[str, Any]) -> Recorded:
        headers = {name.lower(): value for name, value in self.headers.items()}
        return Recorded(self.path, headers, body)

    def _whole(self, answer: Answer, body: Mapping[str, Any]) -> None:
        if not self._pause(answer.word_seconds * len(answer.text.split())):
            return
        message = {"role": "assistant", "content": answer.text, "tool_calls": answer.tool_calls}
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": answer.finish_reason}
        text = json.dumps({**_head(body, ""), "choices": [choice], "usage": _usage(answer, body)})
        if answer.end == "cut":
            self._send(200, {"Content-Length": str(len(text) + 99)}, text)
            self.close_connection = True
        else:
            self._send(200, {}, text)

    def _stream(self, answer: Answer, body: Mapping[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for piece in _pieces(answer):
            if not self._pause(answer.word_seconds):
                return
            self._event({**_head(body, ".chunk"), "choices": [piece]})
        if answer.bad_chunk:
            self._event('{"id": "x", "choi')
        elif answer.end == "stall":
            self._stall()
        elif answer.stream_error is not None:
            self._event({"error": answer.stream_error})
        elif answer.end == "whole":
            if (body.get("stream_options") or {}).get("include_usage"):
                self._event({**_head(body, ".chunk"), "choices": [], "usage": _usage(answer, body)})
            self._event("[DONE]")

    def _event(self, value: Any) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        self.wfile.write(f"data: {text}\n\n".encode())

    def _send(
        self, status: int, headers: Mapping[str, str], text: str, kind: str = "application/json"
    ) -> None:
        data = text.encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _stall(self) -> None:
        while self._pause(0.02):
            pass

    def _pause(self, seconds: float) -> bool:
        """Wait; False once the client is gone or the server stops."""
        deadline = time.monotonic() + seconds
        while True:
            if self.server.fake.stopping.is_set() or self._is_gone():
                return False
            rest = deadline - time.monotonic()
            if rest <= 0:
                return True
            time.sleep(min(rest, 0.02))

    def _is_gone(self) -> bool:
        self.connection.settimeout(0)
        try:
            gone = bool(self.connection.recv(1, socket.MSG_PEEK) == b"")
        except (BlockingIOError, TimeoutError):
            gone = False
        except OSError:
            gone = True
        finally:
            self.connection.settimeout(None)
        if gone:
            self.close_connection = True
            self.server.fake.gone.set()
        return gone


def _head(body: Mapping[str, Any], kind: str) -> dict[str, Any]:
    model = str(body.get("model"))
    return {"id": "x", "object": f"chat.completion{kind}", "created": 1, "model": model}


def _pieces(answer: Answer) -> Iterator[dict[str, Any]]:
    """The chunks of a stream: word by word, then the calls in halves, then the end."""
    words = answer.text.split(" ") if answer.text else []
    for number, word in enumerate(words):
        delta: dict[str, Any] = {"content": word if number == 0 else f" {word}"}
        yield {"index": 0, "delta": delta, "finish_reason": None}
    for index, call in enumerate(answer.tool_calls):
        arguments = call["function"]["arguments"]
        half = len(arguments) // 2
        first = {**call, "index": index, "function": {**call["function"], "arguments": arguments[:half]}}
        rest = {"index": index, "function": {"arguments": arguments[half:]}}
        for part in (first, rest):
            yield {"index": 0, "delta": {"tool_calls": [part]}, "finish_reason": None}
    if answer.finish_reason is not None:
        yield {"index": 0, "delta": {}, "finish_reason": answer.finish_reason}


def _usage(answer: Answer, body: Mapping[str, Any]) -> dict[str, Any] | None:
    if answer.usage is not None:
        return answer.usage or None
    asked = sum(len(str(m.get("content") or "").split()) for m in body["messages"])
    said = len(answer.text.split())
    details = {"cached_tokens": 0}
    return {
        "prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said,
        "prompt_tokens_details": details,
    }  # fmt: skip


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description="a fake OpenAI-compatible server")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--say", action="append", default=[], help="queue a reply")
    options = parser.parse_args()
    with FakeOpenAI(options.port) as server:
        server.say(*options.say)
        print(server.base_url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
