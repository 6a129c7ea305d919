"""Checking a tool call against the protocol before it is run (spec 5.11)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from activities.contracts import ArtifactSpec, JsonObject
from workflows.machines.common.json_text import cut
from workflows.machines.contract.context import Options
from workflows.machines.contract.reply import LIST_ENTRIES, WantedCall, artifact_specs

__all__ = ["Verdict", "Violation", "verdict_on"]


@dataclass(frozen=True, slots=True)
class Violation:
    """One way in which a call breaks the protocol."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The call as it may be run, and what is wrong with it."""

    arguments: JsonObject
    artifacts: tuple[ArtifactSpec, ...]
    violations: tuple[Violation, ...]
    warnings: tuple[str, ...]


def verdict_on(wanted: WantedCall, tools: Mapping[str, JsonObject], options: Options) -> Verdict:
    """All that is wrong with a call, found at once. `tools`: name -> JSON schema of the parameters."""
    params: JsonObject = wanted.params if isinstance(wanted.params, dict) else {}
    specs, more = _specs(wanted, params, options)
    schema = tools.get(wanted.tool_id, {})
    extra = _unknown_params(schema, params)
    warnings = [f"{wanted.tool_id} has no parameter {name!r}; it was left out" for name in extra]
    if more:
        warnings.append(f"a call makes at most {LIST_ENTRIES} artifacts; {more} entries were left out")
    violations = (
        *_wrong_call(wanted, tools),
        *_wrong_specs(specs),
        *_missing(wanted.tool_id, schema, params),
    )
    arguments = {name: value for name, value in params.items() if name not in extra}
    return Verdict(arguments, specs, violations, tuple(warnings))


def _wrong_call(wanted: WantedCall, tools: Mapping[str, JsonObject]) -> Iterator[Violation]:
    """Missing parameters are fine: the call has none."""
    if wanted.params is not None and not isinstance(wanted.params, dict):
        kind = type(wanted.params).__name__
        yield Violation("bad_params", f"tool_call.params must be an object, not {kind}")
    if not wanted.tool_id:
        yield Violation("missing_tool_id", "tool_call.tool_id is missing")
    elif wanted.tool_id not in tools:
        known = ", ".join(tools) or "none"
        yield Violation("unknown_tool_id", f"there is no tool {wanted.tool_id!r}; the tools are: {known}")


def _specs(wanted: WantedCall, params: JsonObject, options: Options) -> tuple[tuple[ArtifactSpec, ...], int]:
    """The artifacts that the call promises, and how many were left out. Some tools name them elsewhere."""
    if wanted.out_artifacts_spec:
        return wanted.out_artifacts_spec, wanted.more_artifacts
    if wanted.tool_id in options.generator_tools and params.get("output_contract"):
        specs, more = artifact_specs(params["output_contract"])
        return specs or (ArtifactSpec(name=wanted.tool_id),), more
    if wanted.tool_id in options.spec_in_params_tools:
        return artifact_specs(params.get("out_artifacts_spec"))
    return (), 0


_NAME = re.compile(r"\w[\w .@/-]{0,99}")
_WORD = re.compile(r"\w[\w/+.]{0,39}")


def _wrong_specs(specs: tuple[ArtifactSpec, ...]) -> Iterator[Violation]:
    """Names and types are in every journal, so they must not be able to look like a part of it."""
    for spec in specs:
        if not _NAME.fullmatch(spec.name):
            rule = "use letters, digits, blanks and _.@/-, at most 100; begin with a letter, a digit or _"
            yield Violation(
                "bad_out_artifacts_spec", f"the artifact name {cut(spec.name, 60)!r} is not valid; {rule}"
            )
        for field, word in (("type", spec.type), ("kind", spec.kind)):
            if not _WORD.fullmatch(word):
                rule = "use one word of at most 40 characters"
                text = f"the artifact {field} {cut(word, 60)!r} is not valid; {rule}"
                yield Violation("bad_out_artifacts_spec", text)
    if not specs:
        text = "tool_call.out_artifacts_spec needs at least one entry with a name"
        yield Violation("missing_out_artifacts_spec", text)


def _missing(tool: str, schema: Mapping[str, Any], params: JsonObject) -> Iterator[Violation]:
    required = schema.get("required")
    for name in map(str, required) if isinstance(required, list) else ():
        if name not in params:
            yield Violation("missing_param", f"{tool} needs the parameter {name!r}")


def _unknown_params(schema: Mapping[str, Any], params: JsonObject) -> tuple[str, ...]:
    """Parameters that the schema does not know, unless it takes any."""
    known = schema.get("properties")
    if not isinstance(known, Mapping) or schema.get("additionalProperties", False) is not False:
        return ()
    return tuple(name for name in params if name not in known)
