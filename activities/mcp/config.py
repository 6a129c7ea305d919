"""Which MCP servers a worker uses, in the form that MCP's hosts share (`mcpServers`)."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from activities.contracts import Label, Sink, ToolEffect

__all__ = ["McpConfig", "NotSet", "ServerName", "expanded", "servers_from", "tool_name"]

SEPARATOR = "__"
"""Between the server's name and the tool's. A dot would say it better, but providers refuse it."""
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(:-(?P<default>[^}]*))?\}")


class NotSet(Exception):
    """The worker's environment lacks a variable that a server needs."""


def _server_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", name) or SEPARATOR in name or name.endswith("_"):
        raise ValueError("a server's name has 1 to 32 letters, digits, - and single _")
    return name


ServerName = Annotated[str, AfterValidator(_server_name)]


class McpConfig(BaseModel):
    """One MCP server: a command to start, or an address. `${NAME}` and `${NAME:-default}` in its texts are
    replaced from the worker's environment when it is started."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    type: Literal["stdio", "http", "streamable-http"] | None = None
    """What other hosts want to be told; here the other fields say it."""
    command: str | None = Field(default=None, min_length=1)
    """A program that the worker starts, and speaks to over standard input and output."""
    args: tuple[str, ...] = ()
    """Of the command."""
    env: Mapping[str, str] = {}
    """For the command, beside HOME, PATH, USER, SHELL and TERM. It gets nothing else of the worker's
    environment: no key of a model, no RATCHET_..."""
    cwd: Path | None = None
    """Folder of the command."""
    url: str | None = None
    """A server over streamable HTTP."""
    headers: Mapping[str, str] = {}
    """For the url."""
    tools: tuple[str, ...] = ("*",)
    """Patterns of the server's own names; other tools do not exist for agents."""
    effects: Mapping[str, ToolEffect] = {}
    """By pattern of the server's own names; the first that fits counts. Default: what the server says."""
    brings: Mapping[str, tuple[Label, ...]] = {}
    """By pattern of the server's own names: labels of what they return; the first that fits counts. Default:
    `untrusted`. No server is asked: it would be the stranger who says so."""
    sends: Mapping[str, Sink] = {}
    """By pattern of the server's own names: how far they send what they are given. Default: `external`."""
    paths: Mapping[str, tuple[str, ...]] = {}
    """By pattern of the server's own names: arguments that hold relative paths, such as `{"write_file":
    ["path"]}`. They are brought to one form before a rule sees them, and `..` is refused."""
    timeout_seconds: float = Field(default=60, gt=0, le=86_400)
    """For one call."""

    @model_validator(mode="after")
    def _one_transport(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("expected either command or url")
        if self.url is not None and (self.args or self.env or self.cwd):
            raise ValueError("args, env and cwd belong to a command, not to a url")
        if self.command is not None and self.headers:
            raise ValueError("headers belong to a url, not to a command")
        if self.url is not None and (
            urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname
        ):
            raise ValueError("url: expected an address such as https://host/mcp")
        return self

    def offers(self, tool: str) -> bool:
        """Agents may be given this tool."""
        return any(fnmatchcase(tool, pattern) for pattern in self.tools)

    def effect(self, tool: str) -> ToolEffect | None:
        """What the configuration says of this tool; None: nothing."""
        return next((effect for name, effect in self.effects.items() if fnmatchcase(tool, name)), None)

    def labels(self, tool: str) -> tuple[tuple[Label, ...], Sink]:
        """What this tool brings, and how far it sends what it is given."""
        brings = (labels for name, labels in self.brings.items() if fnmatchcase(tool, name))
        sends = (sink for name, sink in self.sends.items() if fnmatchcase(tool, name))
        return next(brings, ("untrusted",)), next(sends, "external")

    def path_arguments(self, tool: str) -> dict[str, bool]:
        """The arguments of this tool that hold paths; true: it must have that argument, since no pattern of
        several tools names it."""
        found: dict[str, bool] = {}
        for pattern, names in self.paths.items():
            if fnmatchcase(tool, pattern):
                found |= {name: found.get(name, False) or tool == pattern for name in names}
        return found


def servers_from(value: object) -> object:
    """The servers of a setting, with `mcpServers` around them or without. Raises ValueError."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"expected JSON: {error}") from error
    if isinstance(value, dict):
        inside: Any = value.get("mcpServers", value)
        return inside
    raise ValueError('expected a JSON object, such as {"mcpServers": {"git": {"command": "mcp-server-git"}}}')


def expanded(text: str) -> str:
    """The text with `${NAME}` replaced. Raises NotSet."""

    def value(found: re.Match[str]) -> str:
        name, default = found["name"], found["default"]
        known = os.environ.get(name) or default
        if known is None:
            raise NotSet(f"the worker's environment has no {name}")
        return known

    return VARIABLE.sub(value, text)


def tool_name(server: str, tool: str) -> str:
    """How agents call a server's tool: `server__tool`. A name that providers would refuse is changed, and
    ends with a digest of the tool's own name."""
    name = f"{server}{SEPARATOR}{tool}"
    if NAME.fullmatch(name):
        return name
    digest = hashlib.sha256(tool.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)[:55]}-{digest}"
