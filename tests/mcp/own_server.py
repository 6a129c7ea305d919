"""An MCP server for tests, made with the official SDK: `python own_server.py FOLDER [--http PORT] [...]`.

Its tools write into FOLDER what they do, so that a test sees what happened, and how often.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import ToolAnnotations

FOLDER = Path(sys.argv[1])
READ = ToolAnnotations(read_only_hint=True)
PIXEL = base64.b64encode(b"\x89PNG, or so").decode()
ESCAPES = "\x1b]0;owned\x07\x1b[31mred\x1b[0m <script>alert(1)</script>"
server = MCPServer("own", log_level="ERROR")


def note(line: str) -> None:
    """One line more in `calls.txt`."""
    with (FOLDER / "calls.txt").open("a") as file:
        file.write(f"{line}\n")


@server.tool(annotations=READ)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def put(line: str, ctx: Context[Any, Any]) -> str:
    """Write a line; says the idempotency key, if there is one."""
    meta = ctx.request_context.meta or {}
    note(f"put {line}")
    return str(dict(meta).get("ratchet/idempotency-key", "no key"))


@server.tool()
def pay(amount: int) -> str:
    """Pay."""
    note(f"pay {amount}")
    return f"paid {amount}"


@server.tool(annotations=READ)
async def flood(count: int, ctx: Context[Any, Any]) -> str:
    """Send so many messages of progress at once; says how many seconds it took."""
    began = time.monotonic()
    for part in range(count):
        await ctx.report_progress(part, count, "flood")
    return str(time.monotonic() - began)


async def _slow(ctx: Context[Any, Any], name: str) -> str:
    note(f"{name} begun {os.getpid()}")
    try:
        for part in range(1000):
            if (FOLDER / "go").exists():
                break
            await ctx.report_progress(part, 1000, "still at it")
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        note(f"{name} cancelled")
        raise
    note(f"{name} done")
    return f"{name} done"


@server.tool(annotations=READ)
async def slow_read(ctx: Context[Any, Any]) -> str:
    """Take a while; the file `go` ends it."""
    return await _slow(ctx, "slow_read")


@server.tool()
async def slow_pay(ctx: Context[Any, Any]) -> str:
    """Pay after a while; the file `go` ends it."""
    return await _slow(ctx, "slow_pay")


@server.tool(annotations=READ)
def show(kind: str) -> types.CallToolResult:
    """A result of each kind."""
    blocks: dict[str, list[Any]] = {
        "text": [types.TextContent(type="text", text="one"), types.TextContent(type="text", text="two")],
        "image": [types.ImageContent(type="image", data=PIXEL, mime_type="image/png")],
        "audio": [types.AudioContent(type="audio", data="broken!", mime_type="audio/wav")],
        "resource": [
            types.EmbeddedResource(
                type="resource", resource=types.TextResourceContents(uri="memo://1", text="a memo")
            ),
            types.EmbeddedResource(
                type="resource", resource=types.BlobResourceContents(uri="memo://2", blob=PIXEL)
            ),
        ],
        "link": [types.ResourceLink(type="resource_link", uri="file:///report.pdf", name="report")],
        "nothing": [],
        "error": [types.TextContent(type="text", text="there is no such account")],
        "escapes": [types.TextContent(type="text", text=ESCAPES)],
        "huge": [types.TextContent(type="text", text="x" * 200_000)],
        "too_large": [types.TextContent(type="text", text="x" * 20_000_000)],
        "structured": [types.TextContent(type="text", text="3 rows")],
    }
    structured = {"rows": [1, 2, 3]} if kind == "structured" else None
    return types.CallToolResult(content=blocks[kind], structured_content=structured, is_error=kind == "error")


@server.tool(annotations=READ)
def environment() -> str:
    """The environment of this process."""
    return json.dumps(dict(os.environ))


@server.tool(annotations=READ)
def die() -> str:
    """End the process at once."""
    sys.stderr.write("out of cheese\n")
    sys.stderr.flush()
    os._exit(3)


if (FOLDER / "new-schema").exists():
    server.remove_tool("add")

    @server.tool("add", annotations=READ)
    def add_otherwise(first: int, second: int) -> int:  # another build of the same server
        """Add two other numbers."""
        return first + second


def main() -> None:
    """Serve until the input ends."""
    (FOLDER / "starts.txt").open("a").write(f"{os.getpid()}\n")
    if "--http" in sys.argv:
        server.run("streamable-http", port=int(sys.argv[sys.argv.index("--http") + 1]))
    else:
        server.run()


if __name__ == "__main__":
    main()
