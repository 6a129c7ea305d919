"""Commands that say what there is: agents, tools, machines, diagram."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from client.place import Json, Place

__all__ = ["COMMANDS"]

VersionOption = Annotated[str | None, typer.Option("--version", help="Of the machine; else the newest.")]

SetOption = Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE: an option of the machine.")]

AgentOption = Annotated[
    str | None, typer.Option("--agent", "-a", help="With the modules, and the options, of this agent file.")
]


async def agents(place: Place, as_json: Json = False) -> None:
    """List agents: those of the current folder and those that come with Ratchet."""
    from client.agentfile import Draft, shipped_agents
    from client.errors import UsageError
    from client.view import out, pairs
    from client.yamltext import YamlText

    here = _agents_here()
    rows: list[dict[str, Any]] = []
    for path in [*here, *shipped_agents()]:
        name = str(path) if path in here else path.stem
        try:
            agent = Draft(YamlText(path)).finish()
        except UsageError as error:
            rows.append({"agent": name, "file": str(path), "error": str(error)})
            continue
        rows.append(
            {
                "agent": name,
                "file": str(path),
                "description": agent.description,
                "machine": agent.machine,
                "models": {role: spec.name for role, spec in agent.models.items()},
                "tools": list(agent.tools),
            }
        )
    if as_json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    out().print(pairs((row["agent"], _about(row)) for row in rows))


def _about(row: dict[str, Any]) -> str:
    """An agent in a few words: what for, which machine, whether it needs a model."""
    from client.agentfile import SCRIPTED

    if "error" in row:
        return str(row["error"])
    offline = set(row["models"].values()) == {SCRIPTED}
    needs = "follows a script, needs no model" if offline else f"models: {', '.join(row['models'].values())}"
    return f"{row['description']}\nmachine {row['machine']} · {needs}".lstrip("\n")


async def tools(place: Place, agent: AgentOption = None, as_json: Json = False) -> None:
    """List tools with what they do, their arguments and what a second run would do."""
    from client.view import out, pairs

    catalog = _catalog(place, agent)
    if as_json:
        typer.echo(json.dumps([tool.model_dump(mode="json") for tool in catalog.tools], indent=2))
        return
    rows = [
        (f"{tool.name} ({tool.effect})", f"{tool.description}\n{_arguments(tool.parameters)}")
        for tool in catalog.tools
    ]
    out().print(pairs(rows))


async def machines(
    place: Place,
    machine: Annotated[str | None, typer.Argument(help="Name of one, to read all about it.")] = None,
    version: VersionOption = None,
    sets: SetOption = None,
    agent: AgentOption = None,
    as_json: Json = False,
) -> None:
    """List machines; with a NAME its knobs, states and exit reasons."""
    from client.machinefacts import facts, summary
    from client.view import out, pairs

    catalog = _catalog(place, agent)
    if machine is None:
        rows = [summary(design) for design in catalog.designs]
        if as_json:
            typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
            return
        out().print(pairs((f"{row['machine']} {row['version']}", row["description"]) for row in rows))
        out().print("\n`ratchet machines NAME` says all about one: knobs, states, exit reasons.")
        return
    design = catalog.design(machine, version)
    options = _options(catalog, design, agent, sets)
    built = None if options is None else _built(design, options)
    found = facts(design, built)
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    given = {"--version": version, "--agent": agent}
    words = [word for name, value in given.items() if value for word in (name, value)]
    words += [word for setting in sets or () for word in ("--set", setting)]
    _tell(found, shlex.join(["ratchet", "diagram", machine, *words]))


def _tell(found: dict[str, Any], drawn: str) -> None:
    """All about one machine, a section after the other, and the command that draws it."""
    from client.machinefacts import sections
    from client.view import out, pairs

    out().print(f"{found['machine']} {found['version']}\n{found['description']}")
    for title, rows in sections(found).items():
        out().print(f"\n{title}" if title else "")
        out().print(pairs((f"  {name}", text) for name, text in rows))
    if not found["states"]:
        out().print("  they follow from the options that must be given: name an agent file, or use --set")
    out().print(f"\nDraw it: {drawn} (Mermaid), {drawn} --form table")


async def diagram(  # noqa: PLR0913  # one parameter for each option of the command line
    place: Place,
    *,
    machine: Annotated[str, typer.Argument(help="Name of a machine, or id of a run with --run.")],
    form: Annotated[Literal["mermaid", "table"], typer.Option("--form", "-f")] = "mermaid",
    run: Annotated[bool, typer.Option("--run", help="Of a run, its state marked.")] = False,
    version: VersionOption = None,
    sets: SetOption = None,
    agent: AgentOption = None,
) -> None:
    """Print a machine as a Mermaid state diagram or as a table."""
    from client.errors import UsageError
    from workflows.kernel.diagram import mermaid, table

    if run:
        async with place.client() as client:
            typer.echo(await client.diagram(machine))
        return
    catalog = _catalog(place, agent)
    design = catalog.design(machine, version)
    options = _options(catalog, design, agent, sets)
    if options is None:
        raise UsageError(f"{machine} has options that must be given: name an agent file of it, or use --set")
    built = _built(design, options)
    typer.echo(mermaid(built) if form == "mermaid" else table(built))


def _options(catalog: Any, design: Any, agent: str | None, sets: list[str] | None) -> Any:
    """Those of the agent file when it is one of this machine, `--set` laid over them.

    None when nobody gave options that must be given. Raises UsageError for what is wrong with them.
    """
    from pydantic import ValidationError

    from client.choose import Choice
    from workflows.people import Approvals

    chosen, draft = Choice(agent=agent, settings=sets or ()).finish()
    if agent is None or chosen.machine != design.name:
        chosen, draft = Choice(machine=design.name, settings=sets or ()).finish()
    if not chosen.options:
        try:
            return design.options()
        except ValidationError:
            return None
    bare = {"tools": (), "approvals": Approvals(), "version": design.version}
    catalog.check(chosen.model_copy(update=bare), draft)
    return design.options.model_validate(chosen.options)


def _built(design: Any, options: Any) -> Any:
    """The machine under these options; raises UsageError when they cannot be its."""
    from client.errors import UsageError
    from workflows import registry

    try:
        return design.build(options, registry.parts())
    except Exception as error:
        raise UsageError(f"{design.name}: {error}") from error


def _catalog(place: Place, agent: str | None) -> Any:
    from client.catalog import Catalog
    from client.choose import Choice
    from client.workerconfig import Allowed

    modules = Choice(agent=agent).finish()[0].modules if agent else ()
    return Catalog.load(place.worker_settings(Allowed(modules=modules)))


def _agents_here() -> list[Path]:
    return [path for path in sorted(Path().glob("*.yaml")) if _is_agent(path)]


def _is_agent(path: Path) -> bool:
    """A YAML file that says something about an agent, right or wrong."""
    from client.agentfile import AgentFile
    from client.errors import UsageError
    from client.yamltext import YamlText

    try:
        keys = set(YamlText(path).values)
    except UsageError:
        return False
    return len(keys & set(AgentFile.model_fields)) >= 2 and bool(keys & {"machine", "models", "tools"})


def _arguments(schema: Any) -> str:
    """The fields of a JSON schema, one in a line."""
    required = set(schema.get("required", ()))
    lines = []
    for name, field in schema.get("properties", {}).items():
        kind = field.get("type") or "/".join(str(o.get("type", "…")) for o in field.get("anyOf", ())) or "…"
        default = "" if name in required else f" = {json.dumps(field.get('default'))}"
        said = f"  {field['description']}" if field.get("description") else ""
        lines.append(f"  {name}: {kind}{default}{said}")
    return "\n".join(lines)


COMMANDS: dict[str, Callable[..., Coroutine[Any, Any, int | None]]] = {
    "agents": agents,
    "tools": tools,
    "machines": machines,
    "diagram": diagram,
}
