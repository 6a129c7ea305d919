"""What bounds every request to this process, whatever is served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from client.server.web import body_of, serving


async def _echo(request: Request) -> Response:
    return PlainTextResponse(await body_of(request, 100, seconds=0.5))


@pytest.fixture
async def port() -> AsyncIterator[int]:
    app = Starlette(routes=[Route("/", _echo, methods=["POST"])])
    async with serving("it", app, "127.0.0.1", [0], "", silent_seconds=1) as port:
        yield port


def posted(length: int, body: str) -> str:
    return f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        pytest.param("", "", id="nothing"),
        pytest.param("POST / HTTP/1.1\r\nHost: local", "", id="a part of the head"),
        pytest.param(posted(5, "tw"), "408", id="a part of the body"),
        pytest.param(posted(10**12, "long"), "413", id="too long"),
        pytest.param(posted(5, "whole"), "200", id="a request, and then nothing"),
    ],
)
async def test_connection_ends_when_nothing_more_comes(port: int, sent: str, answer: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent.encode())
    found = (await reader.read()).decode()  # until the server ends it
    assert found.removeprefix("HTTP/1.1 ")[:3] == answer
    writer.close()
    await writer.wait_closed()
