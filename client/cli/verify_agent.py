"""`ratchet verify agent`: the most that an agent can do with nobody asked, and what a change newly allows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from activities.installed import missing_extra
from client.agents.agentfile import AgentFile, Choice, Draft
from client.agents.catalog import Catalog
from client.agents.yaml import YamlFile
from client.cli.mcptools import mcp_servers
from client.cli.options import DirectoryOptions, Json
from client.cli.output import print_json
from client.errors import UsageError
from client.proof.agent import judged
from client.runs.words import plain
from client.server.workerconfig import Allowed

if TYPE_CHECKING:
    from workflows.verify.policy.bounds import Amount, Radius
    from workflows.verify.policy.call_sets import CallSet
    from workflows.verify.policy.report import AgentReport, Comparison

__all__ = ["agent"]

File = Annotated[str, typer.Argument(help="Agent file, or name of a shipped agent.", metavar="FILE")]
Against = Annotated[
    Path | None,
    typer.Option(
        "--against", help="The agent file as it was: print only what is newly allowed; 1 if anything."
    ),
]


async def agent(  # each is an option of the command
    common: DirectoryOptions,
    file: File,
    against: Against = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="For a pull request on GitHub.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="1 also for what has no bound, is unknown, or is of no use.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Show the most that an agent can do in one run with nobody asked; or what a change newly allows."""
    if find_spec("z3") is None:
        raise UsageError(missing_extra("z3"))
    from workflows.verify.policy.report import compared, reported

    chosen, draft = Choice(agent=file).finish()
    settings = common.worker_settings(Allowed.of_agents(chosen))
    catalog = Catalog.load(settings)
    catalog.check(chosen, draft)
    served = [tool for server in await mcp_servers(settings) for tool in server.tools]
    now = judged(catalog, chosen, served)
    if against is None:
        report = reported(now)
        _print(_report_json(report), _report_lines(report), _report_markdown(report), as_json, markdown)
        weak = report.unknown or report.useless or any(one.is_unbounded for one in report.radii)
        return 1 if report.violations or (strict and weak) else 0
    found = compared(now, judged(catalog, _old_agent(against), served))
    change = list(_change_lines(found, chosen))
    lines = change or ["nothing is newly allowed"]
    _print(_change_json(found), lines, _change_markdown(chosen.name, change), as_json, markdown)
    return 0 if found.is_empty else 1


def _old_agent(path: Path) -> AgentFile:
    """The agent as it was. Its modules are those of the new one: an old file may lie anywhere."""
    draft = Draft(YamlFile(path))
    draft.values.pop("modules", None)
    if isinstance(draft.values.get("output"), str):  # what it names may be gone; that there is one counts
        draft.values["output"] = {"properties": {}}
    return draft.finish()


def _print(
    data: dict[str, Any], lines: Iterator[str] | list[str], markdown: str, as_json: bool, is_markdown: bool
) -> None:
    if as_json:
        print_json(data)
    elif is_markdown:
        typer.echo(markdown)
    else:
        for line in lines:
            typer.echo(plain(line))


# -- what an agent can do --------------------


def _report_lines(report: AgentReport) -> Iterator[str]:
    from workflows.verify.policy.report import WHEN, bound_text, radius_text

    about = report.judged
    yield f"agent {about.agent.name}: machine {about.machine.name}; {bound_text(about.bound)}"
    plain_tools = [name for name, sets in report.sets.items() if _is_plain(sets)]
    for name, sets in report.sets.items():
        if name in plain_tools:
            continue
        yield f"\n{name} ({about.specs[name].effect})"
        for one in sets:
            bound = f", {one.bound_text}" if one.bound_text else ""
            yield f"  {one.entry}{_of(one)}{bound}: {WHEN[one.level]}"
        for found in (one for one in report.radii if one.tool == name):
            yield f"  one run: {radius_text(found)}; {WHEN[found.level]}"
            if found.example is not None:
                yield f"    such as {found.example.title}"
    if plain_tools:
        effect = "its effect is" if len(plain_tools) == 1 else "their effects are"
        yield f"\nnobody is asked about {', '.join(plain_tools)}: {effect} pure or read"
    yield f"\n{_untrusted_text(report)}"
    yield from (f"  {one.tool} ({one.sends}), after untrusted: {one.text}" for one in report.sinks)
    rest = [f"{name} {problem}" for name, problem in report.useless.items()]
    rest += [*report.remarks, *(f"UNKNOWN {one}" for one in report.unknown)]
    rest += [f"VIOLATED {one}" for one in report.violations]
    if rest:
        yield ""
    yield from (f"- {one}" for one in rest)


def _untrusted_text(report: AgentReport) -> str:
    """Where text comes from that a stranger may have written."""
    sources = report.judged.sources("untrusted")
    if not sources:
        return "nothing brings untrusted into a run of this agent"
    nowhere = "" if report.sinks else "; no tool sends what it is given anywhere"
    return f"untrusted comes from {', '.join(sources)}{nowhere}"


def _is_plain(sets: Sequence[CallSet]) -> bool:
    """Nothing is to be said of the tool but that nobody is asked."""
    return all(one.level == "unasked" and one.effect in ("pure", "read") and not one.unknown for one in sets)


def _of(one: CallSet) -> str:
    """Which calls those are, if not all that are left."""
    narrowed = ", ".join(_which(one))
    return f" ({narrowed})" if narrowed and not one.is_beyond else ""


def _which(one: CallSet) -> Iterator[str]:
    yield from (f"{name} {words}" for name, words in one.narrowed)
    if one.after_text:
        yield one.after_text


def _report_markdown(report: AgentReport) -> str:
    from workflows.verify.policy.report import WHEN, bound_text, radius_text

    about = report.judged
    rows = [
        f"| `{one.tool}` | {one.effect} | {WHEN[one.level]} | {_cell(radius_text(one))} | {_code(one)} |"
        for one in report.radii
    ]
    table = ["| tool | effect | when | at most in one run | such as |", "|---|---|---|---|---|", *rows]
    nothing = "No call of an unsafe or keyed tool passes without a person."
    lines = [
        f"### What `{about.agent.name}` can do with nobody asked",
        "",
        f"Machine `{about.machine.name}`; {bound_text(about.bound)}.",
        "",
        *(table if rows else [nothing]),
    ]
    came = _cell(_untrusted_text(report))
    lines += ["", f"{came[0].upper()}{came[1:]}."]
    if report.sinks:
        lines += ["", "| tool | sends | after untrusted |", "|---|---|---|"]
        lines += [f"| `{one.tool}` | {one.sends} | {_cell(one.text)} |" for one in report.sinks]
    rest = [f"- `{name}` {_cell(problem)}" for name, problem in report.useless.items()]
    rest += [f"- {_cell(one)}" for one in report.remarks]
    rest += [f"- **unknown**: {_cell(one)}" for one in report.unknown]
    rest += [f"- **violated**: {_cell(one)}" for one in report.violations]
    return "\n".join([*lines, *(["", *rest] if rest else [])])


def _cell(text: str) -> str:
    """Text that stays text in a table of Markdown."""
    return plain(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _code(one: Radius) -> str:
    title = plain(one.example.title).replace("|", "\\|").replace("`", "'") if one.example else ""
    return f"`{title}`" if title else ""


def _report_json(report: AgentReport) -> dict[str, Any]:
    return {
        "agent": report.judged.agent.name,
        "machine": report.judged.machine.name,
        "calls": _finite(report.judged.bound.calls),
        "calls_why": report.judged.bound.why,
        "entries": [_set_json(one) for sets in report.sets.values() for one in sets],
        "runs": [
            {
                "tool": one.tool,
                "effect": one.effect,
                "level": one.level,
                "calls": _finite(one.calls),
                "calls_why": one.calls_why,
                "sums": {name: _finite(total) for name, total in one.sums.items()},
                "example": one.example and one.example.arguments,
            }
            for one in report.radii
        ],
        "untrusted_from": report.judged.sources("untrusted"),
        "sinks": [
            {
                "tool": one.tool,
                "sends": one.sends,
                "level": one.level,
                "example": one.passing and _example_json(one.passing),
                "unknown": list(one.unknown),
            }
            for one in report.sinks
        ],
        "useless": dict(report.useless),
        "remarks": list(report.remarks),
        "unknown": report.unknown,
        "violations": list(report.violations),
    }


def _set_json(one: CallSet) -> dict[str, Any]:
    return {
        "tool": one.tool,
        "entry": one.entry,
        "level": one.level,
        "bound": one.bound_text,
        "arguments": dict(one.narrowed),
        "after": dict(one.after),
        "example": _example_json(one),
        "unknown": list(one.unknown),
    }


def _example_json(one: CallSet) -> dict[str, Any] | None:
    if (call := one.example) is None:
        return None
    return {"arguments": call.arguments, "spent_usd": call.spent_usd, "labels": list(call.labels)}


def _finite(number: Amount) -> float | None:
    """null: nothing bounds it. Whole numbers are exact."""
    if isinstance(number, Decimal):
        return int(number) if number == number.to_integral_value() else float(number)
    return None if number == math.inf else number


# -- what a change newly allows --------------------


def _change_lines(found: Comparison, new: AgentFile) -> Iterator[str]:
    from workflows.verify.policy.report import newly_text

    for one in found.passes:
        which = ", ".join(_which(one)) or "every call"
        yield f"{one.tool}: {which} {newly_text(one, new)}"
    yield from found.grown
    yield from (f"unknown: {one}" for one in found.unknown)


def _change_markdown(name: str, lines: list[str]) -> str:
    if not lines:
        return f"### `{name}`: nothing is newly allowed"
    return "\n".join([f"### `{name}`: newly allowed", "", *(f"- {_cell(line)}" for line in lines)])


def _change_json(found: Comparison) -> dict[str, Any]:
    passes = [_set_json(one) for one in found.passes]
    return {"passes": passes, "grown": list(found.grown), "unknown": list(found.unknown)}
