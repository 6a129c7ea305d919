"""`ratchet mcp`: this directory's runs for an MCP client, such as an editor or a desktop assistant."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Annotated

import typer

from client.agents.agentfile import Choice
from client.agents.catalog import Catalog, check_key
from client.cli.options import CommonOptions, command
from client.errors import UsageError
from client.server.workerconfig import Allowed, remember

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None)


@command(app)
async def mcp(
    common: CommonOptions,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            "--agent", "-a", help="Agent that the client may start, and whose runs it sees; repeatable."
        ),
    ] = None,
    may_decide: Annotated[
        str,
        typer.Option(
            "--may-decide",
            metavar="NAME",
            help="Let the client decide what these runs ask; the log has this name.",
        ),
    ] = "",
    all_runs: Annotated[bool, typer.Option(help="Let the client see the runs of every agent.")] = False,
) -> None:
    """Serve runs to an MCP client on standard input and output."""
    from client.mcp_server import mcp_server

    if not (agent or all_runs):
        raise UsageError(
            "the client could see nothing: name the agents that it may start with --agent, or let it see the "
            "runs of every agent with --all-runs"
        )
    agents, drafts = {}, {}
    for name in agent or ():
        found, draft = Choice(agent=name).finish()
        if found.name in agents:
            raise UsageError(f"two agents are called {found.name}; rename one of them")
        agents[found.name], drafts[found.name] = found, draft
    allowed = Allowed.of_agents(*agents.values())
    settings = common.worker_settings(allowed)
    catalog = Catalog.load(settings, allowed.modules)
    for name, found in agents.items():
        catalog.check(found, drafts[name])
        check_key(found.models, drafts[name].place)
    remember(settings.data_dir, allowed)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(common.client(settings))
        if client.ui and not await client.has_worker():  # the embedded server, without `ratchet dev`
            await stack.enter_async_context(client.connection.working())
        await mcp_server(client, agents, may_decide, all_runs=all_runs).run_stdio_async()
