"""Holding a tool call against the protocol before it is run (spec 5.11). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from activities.contracts import ArtifactSpec, JsonObject
from workflows.machines.contract_context import Options
from workflows.machines.contract_reply import SPECS, WantedCall, read_specs
from workflows.machines.json_text import cut

__all__ = ["Verdict", "Violation", "verified"]


@dataclass(frozen=True, slots=True)
class Violation:
    """One way in which a call breaks the protocol."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A call as it may be run, or what is wrong with it."""

    tool: str = ""
    arguments: JsonObject | None = None
    artifacts: tuple[ArtifactSpec, ...] = ()
    violations: tuple[Violation, ...] = ()
    warnings: tuple[str, ...] = ()


def verified(wanted: WantedCall, tools: Mapping[str, JsonObject], options: Options) -> Verdict:
    """The call, held against the protocol; all that is wrong is found at once."""
    params, violations = _params(wanted)
    if not wanted.tool_id:
        violations.append(Violation("missing_tool_id", "tool_call.tool_id is missing"))
    elif wanted.tool_id not in tools:
        has = ", ".join(tools) or "none"
        violations.append(
            Violation("unknown_tool_id", f"there is no tool {wanted.tool_id!r}; there is {has}")
        )
    specs, more = _specs(wanted, params, options)
    violations += [Violation("bad_out_artifacts_spec", text) for spec in specs for text in _wrong(spec)]
    if not specs:
        text = "tool_call.out_artifacts_spec needs at least one entry with a name"
        violations.append(Violation("missing_out_artifacts_spec", text))
    schema = tools.get(wanted.tool_id, {})
    violations += [
        Violation("missing_param", f"{wanted.tool_id} needs the parameter {name!r}")
        for name in _required(schema)
        if wanted.tool_id in tools and name not in params
    ]
    unknown = _unknown(schema, params)
    warnings = [f"{wanted.tool_id} has no parameter {name!r}; it was left out" for name in unknown]
    if more:
        warnings.append(f"a call makes at most {SPECS} artifacts; {more} entries were left out")
    return Verdict(
        tool=wanted.tool_id,
        arguments={name: value for name, value in params.items() if name not in unknown},
        artifacts=specs,
        violations=tuple(violations),
        warnings=tuple(warnings),
    )


def _params(wanted: WantedCall) -> tuple[Mapping[str, Any], list[Violation]]:
    """Missing parameters are none; anything but a mapping is a violation."""
    if wanted.params is None:
        return {}, []
    if isinstance(wanted.params, Mapping):
        return wanted.params, []
    kind = type(wanted.params).__name__
    return {}, [Violation("bad_params", f"tool_call.params must be an object, not {kind}")]


def _specs(
    wanted: WantedCall, params: Mapping[str, Any], options: Options
) -> tuple[tuple[ArtifactSpec, ...], int]:
    """The artifacts that the call promises, some tools may say so elsewhere; and how many are too many."""
    if wanted.out_artifacts_spec:
        return wanted.out_artifacts_spec, wanted.more_artifacts
    if wanted.tool_id in options.generator_tools and params.get("output_contract"):
        specs, more = read_specs(params["output_contract"])
        return specs or (ArtifactSpec(name=wanted.tool_id),), more
    if wanted.tool_id in options.spec_in_params_tools:
        return read_specs(params.get("out_artifacts_spec"))
    return (), 0


_NAME = re.compile(r"\w[\w .@/-]{0,99}")
_WORD = re.compile(r"\w[\w/+.]{0,39}")


def _wrong(spec: ArtifactSpec) -> list[str]:
    """What is wrong with an entry. Names and types stand in every journal, so they must not be able to
    look like a part of it."""
    found = []
    if not _NAME.fullmatch(spec.name):
        has = "letters, digits, blanks and _.@/-, at most 100, and begin with a letter, a digit or _"
        found.append(f"the artifact name {cut(spec.name, 60)!r} cannot be used; it must have {has}")
    for field, word in (("type", spec.type), ("kind", spec.kind)):
        if not _WORD.fullmatch(word):
            found.append(f"the artifact {field} {cut(word, 60)!r} is no word of at most 40 characters")
    return found


def _required(schema: Mapping[str, Any]) -> list[str]:
    required = schema.get("required")
    return [str(name) for name in required] if isinstance(required, list) else []


def _unknown(schema: Mapping[str, Any], params: Mapping[str, Any]) -> tuple[str, ...]:
    """Parameters that a schema does not know, unless it says that it takes any."""
    known = schema.get("properties")
    if not isinstance(known, Mapping) or schema.get("additionalProperties", False) is not False:
        return ()
    return tuple(name for name in params if name not in known)
