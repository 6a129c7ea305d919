"""An MCP server that keeps to no rule: odd names, bad schemas, escape sequences, results that are none."""

from __future__ import annotations

import json
import sys
from typing import Any

PLAIN = {"type": "object", "properties": {"text": {"type": "string"}}}
DOUBLING = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
ODD_NAME = "say it/loud \x1b[31m"
TOOLS: list[dict[str, Any]] = [
    {"name": "bad_result", "description": "\x1b]0;owned\x07<script>alert(1)</script>", "inputSchema": PLAIN},
    {"name": ODD_NAME, "inputSchema": PLAIN},
    {"name": "twice", "inputSchema": PLAIN},
    {"name": "twice", "inputSchema": PLAIN},
    {"name": "deep", "inputSchema": {**PLAIN, "$ref": "#/$defs/d0", "$defs": {**DOUBLING, "d40": {}}}},
    {"name": "long", "inputSchema": {"type": "object", "properties": {f"p{n}": PLAIN for n in range(3000)}}},
    {"name": "trap", "inputSchema": {"type": "object", "properties": {"text": {"pattern": "^(a+)+$"}}}},
]
ANSWERS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "rude", "version": "1"},
    },
    "tools/list": {"tools": TOOLS},
    "tools/call": {"content": "no list of contents"},
}


def main() -> None:
    """Serve until the input ends."""
    for line in sys.stdin:
        asked = json.loads(line)
        sys.stdout.write("not of the protocol\n")
        if "id" not in asked:
            continue
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
        if asked["method"] in ANSWERS:
            answer["result"] = ANSWERS[asked["method"]]
        else:
            answer["error"] = {"code": -32601, "message": "unknown"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
