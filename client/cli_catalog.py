"""Commands that say what there is: agents, tools, machines, diagram."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from client.place import Json, Place

__all__ = ["COMMANDS"]

AgentOption = Annotated[
    str | None, typer.Option("--agent", "-a", help="With the modules of this agent file.")
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
    out().print(pairs((row["agent"], row.get("description") or row.get("error", "")) for row in rows))


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


async def machines(place: Place, agent: AgentOption = None, as_json: Json = False) -> None:
    """List machines with their options and model roles."""
    from client.view import out, pairs

    catalog = _catalog(place, agent)
    rows = [
        {
            "machine": design.name,
            "version": design.version,
            "description": design.description,
            "roles": list(design.roles),
            "options": design.options.model_json_schema(),
        }
        for design in catalog.designs
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    out().print(
        pairs(
            (
                f"{row['machine']} {row['version']}",
                f"{row['description']}\nmodel roles: {', '.join(row['roles'])}\n{_arguments(row['options'])}",
            )
            for row in rows
        )
    )


async def diagram(
    place: Place,
    machine: Annotated[str, typer.Argument(help="Name of a machine, or id of a run with --run.")],
    form: Annotated[Literal["mermaid", "table"], typer.Option("--form", "-f")] = "mermaid",
    run: Annotated[bool, typer.Option("--run", help="Of a run, its state marked.")] = False,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE: an option of the machine.")
    ] = None,
    agent: AgentOption = None,
) -> None:
    """Print a machine as a Mermaid state diagram or as a table."""
    from client.choose import Choice
    from workflows import registry
    from workflows.kernel.diagram import mermaid, table

    if run:
        async with place.client() as client:
            typer.echo(await client.diagram(machine))
        return
    catalog = _catalog(place, agent)
    design = catalog.design(machine)
    chosen, draft = Choice(machine=machine, settings=sets or ()).finish()
    catalog.check(chosen.model_copy(update={"tools": ()}), draft)
    built = design.build(design.options.model_validate(chosen.options), registry.parts())
    typer.echo(mermaid(built) if form == "mermaid" else table(built))


def _catalog(place: Place, agent: str | None) -> Any:
    from client.catalog import Catalog
    from client.choose import Choice
    from client.workerconfig import Allowed

    modules = Choice(agent=agent).finish()[0].modules if agent else ()
    return Catalog.load(place.settings(Allowed(modules=modules)))


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
