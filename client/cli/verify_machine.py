"""`ratchet verify machine`: every run of a machine in a domain, and what must hold of it."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client.agents.agentfile import Choice
from client.agents.catalog import Catalog
from client.cli import render
from client.cli.options import DirectoryOptions, Json
from client.cli.output import note, print_json
from client.errors import UsageError
from client.runs.words import plain
from client.server.workerconfig import Allowed

if TYPE_CHECKING:
    from activities.settings import Settings
    from client.proof.machine import MachineReport, ScenarioReport
    from workflows.kernel.machine import Machine

__all__ = ["machine"]

Which = Annotated[
    str, typer.Argument(help="File of a machine of your own, or name of a machine.", metavar="FILE|NAME")
]
Seconds = Annotated[float, typer.Option("--seconds", min=0.1, help="The longest for each scenario.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Folder: each counterexample is written there, for `ratchet test`."),
]
To = Annotated[
    Path | None,
    typer.Option(
        "--certificate", help="Write what was verified there, for the key `certificate` of an agent file."
    ),
]
Only = Annotated[
    list[str] | None, typer.Option("--scenario", help="Only the scenario of this name; repeatable.")
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Exit code 1 also for what is not complete, not known, or never came up."),
]


async def machine(  # noqa: PLR0913, PLR0917  # each is an option of the command
    common: DirectoryOptions,
    which: Which,
    seconds: Seconds = 60,
    scenario: Only = None,
    out: Out = None,
    certificate: To = None,
    strict: Strict = False,
    as_json: Json = False,
) -> int:
    """Try every run of a machine, in the domain that it prints: does what must hold, hold?

    Explored is the code that runs, with every failure, decision and reply of the domain
    (`ratchet docs verification`). Each counterexample is played by the engine first. Exit code 0: nothing is
    violated; 1: something is.
    """
    from client.proof.machine import declared_tools, scenarios_of, verify
    from workflows.verify.runs.moments import PropertyBug

    settings = _settings(which, common)
    code, machines = 0, _machines(which, common)
    if certificate and len(machines) > 1:
        names = ", ".join(f"{one.name} {one.version}" for one in machines)
        raise UsageError(f"--certificate: a certificate is of one machine, and {which} declares {names}")
    for one in machines:
        tools = (*Catalog.load(settings).tools, *(declared_tools(which) if which.endswith(".py") else ()))
        found = scenarios_of(one)
        chosen = [each for each in found if not scenario or each.name in scenario]
        if not chosen:
            names = ", ".join(each.name for each in found)
            raise UsageError(f"{one.name} has no scenario {', '.join(scenario or [])}; it has: {names}")
        with render.notes().status(f"{one.name}") as status:
            try:
                report = await asyncio.to_thread(
                    verify, one, scenarios=chosen, tools=tools, seconds=seconds,
                    progress=lambda name, found: status.update(
                        f"{name}: {found.answers:,} answers, depth {found.depth}"
                    ),
                )  # fmt: skip
            except (PropertyBug, ValueError) as error:
                raise UsageError(f"{one.name}: {error}") from error
        files = _written(report, out, which if which.endswith(".py") else "") if out else {}
        if as_json:
            print_json(_facts(report, files))
        else:
            render.out().print(plain(report.text))
            for file in files.values():
                note(f"written: {file}; `ratchet test {file}` fails until it is mended")
        is_known = report.complete and not report.unknown and not report.silent
        code = max(code, 0 if report.ok and (is_known or not strict) else 1)
        if certificate:
            _certify(report, certificate, refused=bool(code))
    return code


def _certify(report: MachineReport, path: Path, *, refused: bool) -> None:
    """Write the certificate. Raises UsageError."""
    from client.proof.certificate import certificate_text
    from workflows.certificate import Certificate

    if refused:
        why = "something is not known" if report.ok else "something is violated"
        note(f"no certificate was written: {why}")
        return
    try:
        text = certificate_text(report)
        path.write_bytes(text.encode())
    except ValueError as error:
        raise UsageError(f"no certificate was written: {error}") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    note(f"certificate {Certificate.of(text).digest}: written to {path}")


def _settings(which: str, common: DirectoryOptions) -> Settings:
    """The file comes before what earlier commands named: it may be a copy of that. Raises UsageError."""
    own = (str(Path(which).resolve()),) if which.endswith(".py") else ()
    return common.worker_settings(Allowed(modules=own))


def _machines(which: str, common: DirectoryOptions) -> tuple[Machine, ...]:
    """Those that the file declares, or the one of that name. Raises UsageError."""
    from client.proof.machine import declared_machines

    if which.endswith(".py"):
        return declared_machines(which)
    if which.endswith((".yaml", ".yml")):
        raise UsageError(_no_machine(which))
    return (Catalog.load(common.worker_settings(Allowed())).machine(which, None),)


def _no_machine(which: str) -> str:
    """Where the machine of an agent is. Raises UsageError."""
    from workflows import registry

    agent, _ = Choice(agent=which).finish()
    shipped = {one.name for one in registry.shipped()}
    where = agent.machine if agent.machine in shipped else " or ".join(agent.modules)
    return (
        f"{which} is an agent file; its machine is {agent.machine}: `ratchet verify machine {where}`. What "
        f"the agent may do: `ratchet verify agent {which}`"
    )


def _written(report: MachineReport, folder: Path, module: str) -> dict[str, Path]:
    """A file for each counterexample that the engine has played, by the name of what it violates; it names
    the machine's file."""
    from client.cassette.file import write_cassette

    folder.mkdir(parents=True, exist_ok=True)
    where = Path(os.path.relpath(Path(module).resolve(), folder.resolve())).as_posix() if module else ""
    files = {}
    for one in report.counterexamples:
        if one.cassette is not None and one.cassette.counterexample is not None:
            way = one.cassette.counterexample.model_copy(update={"module": where})
            name = re.sub(r"[^a-z0-9]+", "-", f"{report.machine.name} {one.violation.name}".lower())
            files[one.violation.name] = path = folder / f"{name.strip('-')[:80]}.yaml"
            write_cassette(one.cassette.model_copy(update={"counterexample": way}), path)
    return files


def _facts(report: MachineReport, files: dict[str, Path]) -> dict[str, Any]:
    return {
        "machine": report.machine.name,
        "version": report.machine.version,
        "ok": report.ok,
        "complete": report.complete,
        "code": [asdict(one) for one in report.findings],
        "never_came_up": list(report.silent),
        "properties": [one.name for one in report.machine.properties],
        "untaken": [list(row) for row in report.never_taken],
        "scenarios": [_scenario_facts(one) for one in report.scenarios],
        "violations": list(_violation_facts(report, files)),
    }


def _scenario_facts(one: ScenarioReport) -> dict[str, Any]:
    found = one.explored
    return {
        "name": one.scenario.name,
        "goal": one.scenario.goal,
        "options": dict(one.scenario.options),
        "without": sorted(one.scenario.without),
        "tried": {asked: list(answers) for asked, answers in one.tried.items()},
        "unfit": list(one.unfit),
        "unused": list(one.unused),
        "complete": found.complete,
        "states": found.states,
        "answers": found.answers,
        "depth": found.depth,
        "waiting": found.waiting,
        "seconds": round(found.seconds, 3),
        "ends": dict(found.ends),
        "untaken": [list(row) for row in one.never_taken],
        "needs": found.needs,
        "fixed": list(found.fixed),
        "unknown_tools": list(one.made_up),
    }


def _violation_facts(report: MachineReport, files: dict[str, Path]) -> Iterator[dict[str, Any]]:
    for one in report.counterexamples:
        violation = one.violation
        facts = {name: value for name, value in asdict(violation).items() if name != "exchanges"}
        file = files.get(violation.name)
        yield {
            **facts,
            "answers": [{"state": each.state, "answer": each.text} for each in violation.exchanges],
            "reproduced": one.cassette is not None,
            "unlike": one.unlike,
            "file": str(file) if file else None,
        }
