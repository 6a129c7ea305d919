"""Checking a tool call against the protocol before it is run (spec 5.11)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from activities.contracts import ArtifactSpec, JsonObject
from workflows.machines.common.json_text import cut
from workflows.machines.contract.context import Options, log_entry
from workflows.machines.contract.reply import WantedCall, artifact_specs

__all__ = ["CallCheck", "call_check"]

NAME = re.compile(r"\w[\w .@/-]{0,99}")
WORD = re.compile(r"\w[\w/+.]{0,39}")


@dataclass(frozen=True, slots=True)
class CallCheck:
    """The call as it may be run, and what is wrong with it."""

    arguments: JsonObject
    artifacts: tuple[ArtifactSpec, ...]
    violations: tuple[JsonObject, ...]
    """Events `protocol_violation` with `code` and `message`."""
    warnings: tuple[str, ...]


def call_check(wanted: WantedCall, tools: Mapping[str, JsonObject], options: Options) -> CallCheck:
    """All that is wrong with a call, found at once. `tools`: name -> JSON schema of the parameters."""
    params: JsonObject = wanted.params if isinstance(wanted.params, dict) else {}
    schema = tools.get(wanted.tool_id, {})
    known, required = schema.get("properties"), schema.get("required")
    extra = []
    if isinstance(known, dict) and schema.get("additionalProperties", False) is False:
        extra = [name for name in params if name not in known]
    missing = (
        [name for name in map(str, required) if name not in params] if isinstance(required, list) else []
    )
    specs = _promised(wanted, params, options)
    found = (
        *_wrong_call(wanted, tools),
        *_wrong_specs(specs),
        *(("missing_param", f"{wanted.tool_id} needs the parameter {name!r}") for name in missing),
    )
    violations = tuple(log_entry("protocol_violation", code=code, message=text) for code, text in found)
    warnings = tuple(f"{wanted.tool_id} has no parameter {name!r}; it was left out" for name in extra)
    arguments = {name: value for name, value in params.items() if name not in extra}
    return CallCheck(arguments, specs, violations, warnings)


def _wrong_call(wanted: WantedCall, tools: Mapping[str, JsonObject]) -> Iterator[tuple[str, str]]:
    """(code, message). Missing parameters are fine: the call has none."""
    if wanted.params is not None and not isinstance(wanted.params, dict):
        yield "bad_params", f"tool_call.params must be an object, not {type(wanted.params).__name__}"
    if not wanted.tool_id:
        yield "missing_tool_id", "tool_call.tool_id is missing"
    elif wanted.tool_id not in tools:
        known = ", ".join(tools) or "none"
        yield "unknown_tool_id", f"there is no tool {wanted.tool_id!r}; the tools are: {known}"


def _promised(wanted: WantedCall, params: JsonObject, options: Options) -> tuple[ArtifactSpec, ...]:
    """The artifacts that the call promises. Some tools name them among their parameters."""
    if wanted.out_artifacts_spec:
        return wanted.out_artifacts_spec
    if wanted.tool_id in options.generator_tools and params.get("output_contract"):
        return artifact_specs(params["output_contract"]) or (ArtifactSpec(name=wanted.tool_id),)
    if wanted.tool_id in options.spec_in_params_tools:
        return artifact_specs(params.get("out_artifacts_spec"))
    return ()


def _wrong_specs(specs: tuple[ArtifactSpec, ...]) -> Iterator[tuple[str, str]]:
    """Names and types are in every journal, so they must not be able to look like a part of it."""
    if not specs:
        yield (
            "missing_out_artifacts_spec",
            "tool_call.out_artifacts_spec needs at least one entry with a name",
        )
    name_rule = "letters, digits, blanks and _.@/-, at most 100; begin with a letter, a digit or _"
    for spec in specs:
        for field, text, form, rule in (
            ("name", spec.name, NAME, name_rule),
            ("type", spec.type, WORD, "one word of at most 40 characters"),
            ("kind", spec.kind, WORD, "one word of at most 40 characters"),
        ):
            if not form.fullmatch(text):
                problem = f"the artifact {field} {cut(text, 60)!r} is not valid; use {rule}"
                yield "bad_out_artifacts_spec", problem
