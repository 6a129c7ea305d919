"""`ratchet doctor`: checks that everything runs need is there, and says how to get what is missing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from activities.endpoints import provider_of
from activities.extensions import ExtensionError
from client.agents.agentfile import AgentFile, Choice, Draft
from client.agents.catalog import Catalog, check_key, pinned
from client.agents.yaml import dotted
from client.cli.mcptools import ServerFacts, mcp_servers
from client.cli.options import AgentName, CommonOptions, Json, command
from client.cli.output import print_lines, print_pairs
from client.errors import RatchetError
from client.runs.requests import bound_lines
from client.runs.words import counted
from client.server import ownership
from client.server.embedded import data_directory
from client.server.workerconfig import Allowed
from workflows.certificate import DIFFERS, certificate_line

if TYPE_CHECKING:
    from activities.contracts import ModelSpec, ToolSpec
    from activities.settings import Settings
    from client.sdk.agent import AgentClient

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None)


@dataclass(frozen=True)
class Check:
    """One thing that was checked."""

    name: str
    ok: bool
    text: str
    """What was found, and what to do if it is not ok."""


NO_KEY = Check(
    "model",
    True,
    "OPENAI_API_KEY is not set; only language models of OpenAI need it, not those of Anthropic "
    "(ANTHROPIC_API_KEY) or Google (GEMINI_API_KEY), nor those of a server of OPENAI_BASE_URL or --base-url "
    "(Ollama, vLLM, LM Studio), nor agents with a script",
)
"""For the plain agent without a key: nobody has said that its model is needed."""


@command(app)
async def doctor(
    common: CommonOptions,
    agent: AgentName = None,
    fix: Annotated[bool, typer.Option("--fix", help="Register missing search attributes.")] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="The data directory is yours: its runs may continue here.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Check server, namespace, search attributes, worker, waiting runs, provider, tools and store."""
    chosen, draft = Choice(agent=agent).finish()
    models = list(chosen.models.values())
    # an agent is checked as for a `run` of it, whose worker loads nothing else
    settings = common.worker_settings(Allowed.of_agents(chosen), alone=agent is not None)
    if adopt:
        ownership.adopt(data_directory(settings.data_dir))
    checks = [check async for check in _server(common, settings, fix, whole=agent is None)]
    checks += await _agent(settings, chosen, draft)
    checks.append(_store(settings))
    checks += [check async for check in _models(settings, models, needed=agent is not None)]
    if as_json:
        print_lines(map(asdict, checks))
    else:
        print_pairs((f"{'ok' if check.ok else 'BAD':4} {check.name}", check.text) for check in checks)
    return 0 if all(check.ok for check in checks) else 1


async def _server(
    common: CommonOptions, settings: Settings, fix: bool, *, whole: bool
) -> AsyncIterator[Check]:
    """`whole`: the settings are those of a worker that would continue all runs of the directory."""
    try:
        async with common.client(settings) as client:
            kind = "embedded" if client.ui else "elsewhere"
            yield Check("server", True, f"{client.where} ({kind}) answers")
            async for check in _namespace(client, fix):
                yield check
            yield await _worker(client)
            if client.ui and whole:
                yield await _waiting(client, settings)
    except RatchetError as error:
        yield Check("server", False, str(error))


async def _namespace(client: AgentClient, fix: bool) -> AsyncIterator[Check]:
    from client.server.namespace import missing_attributes, namespace_exists, register_attributes

    temporal, name = client.temporal, client.temporal.namespace
    if not await namespace_exists(temporal):
        advice = f"create it with `temporal operator namespace create -n {name}`, or set TEMPORAL_NAMESPACE"
        yield Check("namespace", False, f"there is no namespace {name!r}; {advice}")
        return
    yield Check("namespace", True, name)
    try:
        missing = ", ".join(await missing_attributes(temporal))
        if missing and fix:
            await register_attributes(temporal)
            yield Check("search attributes", True, f"registered {missing}")
        elif missing:
            yield Check(
                "search attributes", False, f"missing: {missing}; `ratchet doctor --fix` registers them"
            )
        else:
            yield Check("search attributes", True, "all registered")
    except Exception as error:  # noqa: BLE001  # whatever the server refuses
        yield Check("search attributes", False, f"cannot be read or registered: {error}")


async def _worker(client: AgentClient) -> Check:
    if await client.has_worker():
        return Check("worker", True, "polls the task queue")
    if client.ui:
        text = (
            "none runs that takes every run, and none needs to: `ratchet run` brings one for its own run, "
            "`ratchet dev` one for all"
        )
        return Check("worker", True, text)
    return Check("worker", False, "none polls the task queue; start one with `python -m ratchet.worker`")


async def _waiting(client: AgentClient, settings: Settings) -> Check:
    from client.cli.worker import continued

    try:
        lines = await continued(client, settings, await client.list(running=True))
    except RatchetError as error:
        return Check("waiting runs", False, str(error))
    text = f"{counted(len(lines), 'run')}; a worker here has what they need" if lines else "none"
    return Check("waiting runs", True, text)


async def _agent(settings: Settings, agent: AgentFile, draft: Draft) -> list[Check]:
    """What the agent names, in the words of `ratchet run`, and tools with what protects them."""
    try:
        catalog = Catalog.load(settings)
    except RatchetError as error:
        servers = await mcp_servers(settings)
        return [Check("modules", False, str(error)), *map(_mcp_server, servers)]
    try:
        said = catalog.approval_problems(agent)  # reported below, where tools of MCP servers are known
        wrong = [problem for problem in catalog.problems(agent, draft) if problem not in said]
        checks = [Check("agent", False, draft.message([problem])) for problem in wrong]
    except RatchetError as error:  # of a module's provider
        checks = [Check("modules", False, str(error))]
    return [*checks, *await _tools(settings, catalog, agent)]


async def _tools(settings: Settings, catalog: Catalog, agent: AgentFile) -> list[Check]:
    servers = await mcp_servers(settings)
    served = [tool for server in servers for tool in server.tools]
    checks = [_mcp_server(server) for server in servers]
    problems = (f"{dotted(where)}: {what}" for where, what in catalog.approval_problems(agent, served))
    wrong = (*problems, *catalog.warnings(agent, served))
    checks += [Check("approvals", False, problem) for problem in wrong]
    checks += [Check("approvals", True, line) for line in bound_lines(agent.approvals)]
    names = [tool.name for tool in catalog.tools]
    all_names = [*names, *(tool.name for tool in served)]
    # the check of the agent reports a tool that no server can have
    if missing := [name for name in agent.tools if name not in all_names and not catalog.tool_problem(name)]:
        text = f"there is no {', '.join(missing)}; there are: {', '.join(all_names)}"
        return [Check("tools", False, text), *checks]
    own = [agent.labels.labelled(tool) for tool in (*catalog.tools, *served) if tool.name in agent.tools]
    labels = [Check("labels", True, "; ".join(f"{tool.name} {_labels(tool)}" for tool in own))] if own else []
    certified = _certificate(agent, [tool for tool in (*catalog.tools, *served) if tool.name in agent.tools])
    return [Check("tools", True, ", ".join(names)), *labels, *certified, *checks]


def _certificate(agent: AgentFile, specs: Sequence[ToolSpec]) -> list[Check]:
    """Whether what is here is what was verified; nothing for an agent that names no certificate."""
    if agent.certificate is None:
        return []
    from activities.contracts import MachineNamed
    from client.proof.digests import digests_of

    task = pinned(agent.task("-"))
    named = MachineNamed(name=task.machine, version=task.machine_version, options=task.options)
    about = agent.certificate.about(digests_of(named, specs), has_output=agent.output is not None)
    return [Check("certificate", DIFFERS not in about, certificate_line(about))]


def _labels(tool: ToolSpec) -> str:
    return f"brings {' and '.join(tool.brings) or 'no label'}, sends {tool.sends}"


def _mcp_server(server: ServerFacts) -> Check:
    name = f"MCP server {server.name}"
    if server.problem:
        return Check(name, False, server.problem)
    left = "; ".join(f"{tool} cannot be used: {why}" for tool, why in server.left_out.items())
    tools = ", ".join(f"{tool.name} ({tool.effect}, {_labels(tool)})" for tool in server.tools) or "no tools"
    return Check(name, True, f"{tools}; {left}" if left else tools)


def _store(settings: Settings) -> Check:
    from activities.store.blobs import StoreError
    from activities.store.stores import Stores

    stores = Stores(settings)
    try:
        data_directory(settings.data_dir)
        stores.secret.signature("")
        stores.check_keys()
        stores.blobs.get(stores.blobs.put(b"written by ratchet doctor"))
        runs = len(stores.archive.runs())
    except (RatchetError, StoreError) as error:
        return Check("store", False, str(error))
    finally:
        stores.close()
    where = f"blobs in {stores.blobs.objects.where}, archive in {stores.archive.database.where}"
    active, *others = settings.encryption_keys or ["(none)"]
    also = f", and decrypts with {', '.join(others)}" if others else ""
    return Check("store", True, f"{where}; runs in the archive: {runs}; encryption key: {active}{also}")


async def _models(settings: Settings, models: Sequence[ModelSpec], *, needed: bool) -> AsyncIterator[Check]:
    from activities.provider import close_providers, problem_with
    from activities.providers import load_providers

    try:
        providers = load_providers(settings)
    except (ExtensionError, ValueError, TypeError):  # the check of the modules reports it
        providers = load_providers(settings.model_copy(update={"modules": ()}))
    for spec in models:
        name = f"model {spec.name}"
        try:
            check_key({"default": spec})
        except RatchetError as error:
            yield Check(name, False, str(error)) if needed else NO_KEY
            continue
        provider = providers.get(provider_of(spec))
        if provider is None:  # the check of the agent reports it
            continue
        problem = await problem_with(provider, spec)
        yield Check(name, problem is None, problem or f"provider {provider.name} is ready")
    await close_providers(providers.values())
