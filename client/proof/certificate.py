"""The certificate of a machine: what was verified, in which domain, of which code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from activities.installed import installed_version
from client.proof.digests import ratchet_code, spec_digest, table_digest
from workflows import registry
from workflows.certificate import FORMAT, Certificate
from workflows.kernel.canonical import canonical, digest_of
from workflows.kernel.machine import Machine
from workflows.verify.runs.domain import LEFT_OUT, open_tool

if TYPE_CHECKING:
    from client.proof.machine import MachineReport, ScenarioReport

__all__ = ["certificate_text", "read_certificate"]


def certificate_text(report: MachineReport) -> str:
    """What was verified, as canonical JSON. The same code, domain and tools give the same text where the
    exploration is complete.

    Raises ValueError where something is violated, or where the machine was not loaded from a module."""
    machine = report.machine
    if not report.ok:
        raise ValueError("something is violated")
    if not (registry.is_shipped(machine.name, {}) or all(report.code)):
        raise ValueError(f"{machine.name} was not loaded from a module, so nothing says which code it is")
    held = "held" if report.complete else "not violated as far as it was explored"
    silent, scenarios = report.silent, [_scenario(machine, one) for one in report.scenarios]
    shared = dict(set.intersection(*(set(one.items()) for one in report.code)))
    found = {
        "format": FORMAT,
        "ratchet": installed_version(),
        "subject": {
            "machine": machine.name,
            "version": machine.version,
            "ratchet": ratchet_code(),
            "code": shared,
            "table": table_digest(machine),
            "options_schema": digest_of(machine.options.model_json_schema()),
            "options": {
                one["options_digest"]: dict(code.items() - shared.items())
                for one, code in zip(scenarios, report.code, strict=True)
                if not one["extensions"]  # what was tried is no run's
            },
            "tools": sorted({tool["digest"] for one in scenarios for tool in one["tools"]}),
        },
        "declaration": [
            [one.certainty, f"{Path(one.file).name}:{one.line}: {one.text}"] for one in report.findings
        ],
        "properties": {
            one.name: "never came up" if one.name in silent else held for one in machine.properties
        },
        "built_in": dict.fromkeys(report.built_in, held),
        "complete": report.complete,
        "untaken": [list(row) for row in report.never_taken],
        "scenarios": scenarios,
        "left_out": list(LEFT_OUT),
    }
    return canonical(found).decode()


def read_certificate(path: Path) -> tuple[str, Certificate]:
    """A certificate's text, and what an agent carries of it. Raises ValueError."""
    try:
        text = path.read_bytes().decode()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"the certificate {path} cannot be read: {why}") from error
    try:
        return text, Certificate.of(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _scenario(machine: Machine, one: ScenarioReport) -> dict[str, Any]:
    """One part of the domain, and how far it was explored."""
    found, options = one.explored, machine.read_options(one.scenario.options).model_dump(mode="json")
    return {
        "name": one.scenario.name,
        "goal": one.scenario.goal,
        "options": options,
        "options_digest": digest_of(options),
        "extensions": list(one.own_extensions),
        "without": sorted(one.scenario.without),
        "tools": [
            {"name": spec.name, "digest": spec_digest(spec), "is_open": spec == open_tool(spec.name)}
            for spec in one.scenario.tools
        ],
        "tried": {asked: list(answers) for asked, answers in one.tried.items()},
        "complete": found.complete,
        "depth": found.depth,
        "states": found.states,
        "answers": found.answers,
        "ends": dict(found.ends),
        "fixed": list(found.fixed),
    }
