"""Tools of chaos runs. Each acts on a world outside (`world.py`), one request for each real execution."""

from __future__ import annotations

import json
import os
import urllib.request
from typing import Any

from pydantic import BaseModel, Field

from activities.tools import Happened, NotHappened, Tool, ToolCallContext

FILLER = "so it is written "
"""Makes an output too long for history, so that it lies in the store."""


class Line(BaseModel):
    """Do what this line says."""

    line: str
    chars: int = Field(default=0, description="length of the output")


def world(**told: Any) -> dict[str, Any]:
    """What the world outside says to this."""
    asked = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/effects",
        json.dumps(told).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return dict(json.load(answer))


def made(tool: str) -> Any:
    """A tool's function."""

    def run(params: Line, call: ToolCallContext) -> str:
        if world(tool=tool, line=params.line, key=call.key)["refused"]:
            raise ValueError("too late: somebody has looked this call up, and has barred it")
        return f"done {params.line} {FILLER * (params.chars // len(FILLER))}"

    return run


def look_up(key: str, params: Line) -> Happened | NotHappened:
    """A call that was not made can take no effect after this."""
    found = world(find=key)["made"]
    return Happened(f"done {params.line}") if found else NotHappened("it is barred")


def tell(params: Line) -> str:
    """The line."""
    return params.line


TOOLS = [
    Tool(name="mark", params=Line, run=made("mark"), effect="idempotent"),
    Tool(name="pay", params=Line, run=made("pay"), effect="keyed"),
    Tool(name="send", params=Line, run=made("send"), effect="unsafe"),
    Tool(name="move", params=Line, run=made("move"), effect="unsafe", reconcile=look_up, timeout_seconds=10),
    Tool(name="tell", params=Line, run=tell, effect="pure"),
]
