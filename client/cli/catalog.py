"""Commands that show what there is: tools, machines, modules, schemas, diagrams."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from client.agents.files import SHIPPED_SCHEMA
from client.agents.options import Option, options_in
from client.agents.yaml import nearest
from client.cli.options import AgentName, CommonOptions, DirectoryOptions, Json, command
from client.cli.output import note, print_json, print_lines, print_pairs, print_text
from client.errors import UsageError

if TYPE_CHECKING:
    from activities.contracts import ToolSpec
    from client.agents.catalog import Catalog
    from workflows.kernel.machine import Machine

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None)


@dataclass(frozen=True)
class MachineOptions:
    """Which machine is meant, and what it is set to."""

    version: Annotated[str | None, typer.Option("--version", help="Of the machine; default: the newest.")] = (
        None
    )
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the machine.")
    ] = None
    agent: AgentName = None

    def find(self, catalog: Catalog, name: str) -> Machine:
        """The machine with the options of the agent file, if that has this machine, and of `--set`.

        Raises:
            UsageError: there is no such machine, or the options do not fit it.
        """
        try:
            machine = catalog.machine(name, self.version)
        except UsageError as error:
            if self.agent or any(one.name == name for one in catalog.machines):
                raise
            hint = "for one of your own, name the agent file that loads it: --agent FILE"
            raise UsageError(f"{error}; {hint}") from error
        if self.agent is None and not self.sets:
            return machine
        from client.agents.agentfile import Choice
        from workflows.people import Approvals

        agent, draft = Choice(agent=self.agent, settings=self.sets or ()).finish()
        if self.agent is None or agent.machine != machine.name:
            agent, draft = Choice(machine=machine.name, settings=self.sets or ()).finish()
        if not agent.options:
            return machine
        every = tuple(tool.name for tool in catalog.tools)
        changes = {"tools": every, "approvals": Approvals(), "machine_version": machine.version}
        catalog.check(agent.model_copy(update=changes), draft, any_module=True)
        return catalog.machine(machine.name, machine.version, agent.options)

    def words(self) -> list[str]:
        """The same options for another command."""
        given = {"--version": self.version, "--agent": self.agent}
        words = [word for name, value in given.items() if value for word in (name, value)]
        return [*words, *(word for setting in self.sets or () for word in ("--set", setting))]


@command(app)
def schema(
    common: DirectoryOptions,
    of: Annotated[
        str, typer.Argument(metavar="NAME", help="agent, or a message: task, result, decision, ...")
    ],
    agent: AgentName = None,
) -> None:
    """Print the JSON schema of an agent file, for editors, or of a message to or from a run.

    That of `agent` knows the machines and tools that there are; with --agent also those of its modules.
    """
    if of == "agent":
        typer.echo(_agent_schema(_catalog(common, agent)))
        return
    from client.agents.schema import MESSAGES, message_schema

    if of not in MESSAGES:
        raise UsageError(f"there is no schema {of}; {nearest(of, ('agent', *MESSAGES))}")
    typer.echo(json.dumps(message_schema(of), indent=1, ensure_ascii=False))


def _agent_schema(catalog: Catalog) -> str:
    """Of an agent file; where no module adds anything it is the one that comes with Ratchet."""
    if not catalog.modules:
        return SHIPPED_SCHEMA.read_text(encoding="utf-8").rstrip("\n")
    from client.agents.schema import agent_schema

    found = agent_schema([one.name for one in catalog.machines], [one.name for one in catalog.tools])
    return json.dumps(found, indent=1, ensure_ascii=False)


@command(app)
async def tools(common: CommonOptions, agent: AgentName = None, as_json: Json = False) -> None:
    """List tools: what they do, their arguments, and what a second call would do."""
    from client.cli.mcptools import mcp_servers

    catalog = _catalog(common, agent)
    servers = await mcp_servers(catalog.settings)
    found = [*catalog.tools, *(tool for server in servers for tool in server.tools)]
    for server in servers:
        texts = [f"{name}: {problem}" for name, problem in server.left_out.items()]
        for text in [*texts, *filter(None, [server.problem])]:
            note(text)
    if as_json:
        print_lines(found)
        return
    print_pairs((f"{tool.name} ({tool.effect})", _tool_text(tool)) for tool in found)


def _tool_text(tool: ToolSpec) -> str:
    """What a tool does, its labels, and its arguments, one on a line."""
    labels = f"  brings {' and '.join(tool.brings) or 'no label'}, sends {tool.sends}"
    rows = [f"  {one.name}: {_option_text(one)}" for one in options_in(tool.parameters)]
    return "\n".join([tool.description, labels, *(row.replace("\n", "; ") for row in rows)])


@command(app)
def modules(
    common: CommonOptions,
    forget: Annotated[
        list[str] | None, typer.Option("--forget", metavar="NAME", help="A module or server; repeatable.")
    ] = None,
    forget_all: Annotated[bool, typer.Option("--forget-all", help="All of them.")] = False,
    as_json: Json = False,
) -> None:
    """List the modules and model servers that commands in this directory have named, or forget them.

    A worker that starts here loads them, so that interrupted runs can go on. A module that is named now comes
    before one that is remembered.
    """
    from client.agents.catalog import module_facts
    from client.server import workerconfig

    if forget or forget_all:
        for name in workerconfig.forget(common.data_dir, None if forget_all else forget):
            typer.echo(f"forgot {name}")
        return
    known = workerconfig.recalled(common.data_dir)
    gone = "the file is gone; bring it back, or forget it with --forget"
    rows = [
        {"module": name, "error": gone} if workerconfig.is_gone(name) else module_facts(name)
        for name in known.modules
    ]
    rows += [
        {"server": url} for url in dict.fromkeys((*known.base_urls, *filter(None, [known.openai_base_url])))
    ]
    if as_json:
        print_lines(rows)
    elif rows:
        print_pairs((row.get("module") or row["server"], _module_text(row)) for row in rows)
    else:
        note("no command in this directory has named a module or a model server")


def _module_text(row: Mapping[str, Any]) -> str:
    parts = [f"{kind} {', '.join(row[kind])}" for kind in ("tools", "machines") if row.get(kind)]
    return str(
        row.get("error") or " · ".join(parts) or ("model server" if "server" in row else "rules or hooks")
    )


@command(app)
def machines(
    common: CommonOptions,
    which: MachineOptions,
    machine: Annotated[str | None, typer.Argument(help="Name of one, to read all about it.")] = None,
    as_json: Json = False,
) -> None:
    """List machines; with a NAME its options, states and exit reasons."""
    from client.agents.facts import machine_facts

    catalog = _catalog(common, which.agent)
    if machine is None:
        rows = [
            {"machine": one.name, "version": one.version, "description": one.description}
            for one in catalog.machines
        ]
        if as_json:
            print_lines(rows)
            return
        print_pairs((f"{row['machine']} {row['version']}", row["description"]) for row in rows)
        print_text()
        print_text("`ratchet machines NAME` shows one: options, states, exit reasons.")
        return
    facts = machine_facts(which.find(catalog, machine))
    if as_json:
        print_json(facts)
        return
    print_text(f"{facts['machine']} {facts['version']}\n{facts['description']}")
    for title, section in _sections(facts).items():
        print_text()
        if title:
            print_text(title)
        print_pairs((f"  {name}", text) for name, text in section)
    draw = shlex.join(["ratchet", "diagram", machine, *which.words()])
    print_text()
    print_text(f"Draw it: {draw} (Mermaid), {draw} --form table")


def _sections(facts: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """A machine's facts for people: title -> names and texts."""
    common = ", ".join(facts["common_exits"])
    return {
        "": [
            ("model roles", ", ".join(facts["roles"])),
            ("takes --material", "yes" if facts["takes_material"] else "no"),
        ],
        "options": [(option["name"], _option_text(Option(**option))) for option in facts["options"]],
        "states": [(state["state"], _state_text(state)) for state in facts["states"]],
        "exit reasons": [*facts["exits"].items(), ("of every machine", common)],
    }


def _option_text(option: Option) -> str:
    default = "must be given" if option.default is None else f"default {option.default}"
    return f"{default}; {option.allowed}\n{option.meaning}".rstrip()


def _state_text(state: Mapping[str, Any]) -> str:
    marks = [text for key, text in _MARKS.items() if state[key]]
    marks += [f"counts {state['counts']}"] if state["counts"] else []
    marks += [] if state["enforced"] else ["not enforced"]
    asks = ", ".join(state["asks"])
    if asks and state["tools"] is not None:
        asks += f" of {', '.join(state['tools']) or 'no tool'}"
    lines = [", ".join(marks), f"asks for: {asks}" if asks else ""]
    lines += [f"{key}: {', '.join(state[key])}" for key in ("reads", "writes") if state[key]]
    return "\n".join(line for line in lines if line)


_MARKS = {"initial": "initial", "final": "final", "begins_step": "begins a step"}


@command(app)
async def diagram(
    common: CommonOptions,
    which: MachineOptions,
    machine: Annotated[str, typer.Argument(help="Name of a machine, or id of a run with --run.")],
    form: Annotated[
        Literal["mermaid", "table"], typer.Option("--form", "-f", help="How it is drawn.")
    ] = "mermaid",
    run: Annotated[bool, typer.Option("--run", help="Of a run, its state marked.")] = False,
) -> None:
    """Print a machine as a Mermaid state diagram or as a table."""
    from workflows.kernel.diagram import mermaid, table

    if run:
        async with common.client() as client:
            typer.echo(await client.diagram(await client.find(machine)))
        return
    found = which.find(_catalog(common, which.agent), machine)
    typer.echo(mermaid(found) if form == "mermaid" else table(found))


def _catalog(common: DirectoryOptions, agent: str | None) -> Catalog:
    from client.agents.catalog import Catalog
    from client.server.workerconfig import Allowed

    allowed = Allowed()
    if agent:
        from client.agents.agentfile import load_agent

        allowed = Allowed(modules=load_agent(agent).modules)
    return Catalog.load(common.worker_settings(allowed))
