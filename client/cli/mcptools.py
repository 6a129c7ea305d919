"""The tools of the worker's MCP servers, fetched by this process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from activities.contracts import ToolSpec
    from activities.settings import Settings

__all__ = ["ServerFacts", "mcp_servers"]

OPEN_SECONDS = 30


@dataclass(frozen=True)
class ServerFacts:
    """What an MCP server offers, or why it does not."""

    name: str
    tools: tuple[ToolSpec, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Tools that cannot be used, by their own name, and why."""
    problem: str = ""


async def mcp_servers(settings: Settings) -> tuple[ServerFacts, ...]:
    """All servers of the settings, each started or connected to for this once."""
    if not settings.mcp:
        return ()
    from activities.mcp.servers import McpServer, McpServers, Unusable
    from activities.tools import TransientError
    from client.cli.logs import log_to_file
    from client.server.embedded import data_directory

    async def facts(server: McpServer) -> ServerFacts:
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                tools, left_out = await server.tools()
        except TimeoutError:
            problem = f"the MCP server {server.name} does not answer within {OPEN_SECONDS} s"
            return ServerFacts(server.name, problem=problem)
        except (TransientError, Unusable) as error:
            return ServerFacts(server.name, problem=str(error))
        return ServerFacts(server.name, tuple(tool.spec() for tool in tools.values()), left_out)

    data_directory(settings.data_dir)
    with log_to_file(settings):
        async with McpServers(settings.mcp) as mcp:
            return tuple(await asyncio.gather(*map(facts, mcp.servers.values())))
