"""Registering what a tool call has made (spec 5.12). Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from activities.contracts import Artifact, ArtifactSpec, ToolResult
from workflows.machines.contract_context import KeptArtifact

__all__ = ["free_id", "registered"]


def registered(c: Any, result: ToolResult) -> dict[str, KeptArtifact]:
    """The artifacts of a call under ids of their own; those of a failed call carry its error (5.12)."""
    found = {artifact.name: artifact for artifact in result.artifacts}
    new: dict[str, KeptArtifact] = {}
    taken = set(c.artifacts)
    for spec in c.call.artifacts:
        artifact = found.get(spec.name) if result.ok else None
        kept = artifact or _without_value(spec, result)
        id = free_id(spec.name, c.round_index, taken)
        taken.add(id)
        new[id] = KeptArtifact(artifact=kept, tool=result.tool, round=c.round_index)
    return new


def _without_value(spec: ArtifactSpec, result: ToolResult) -> Artifact:
    text = "the tool gave no such artifact" if result.ok else result.output[:500]
    return Artifact(name=spec.name, type=spec.type, kind=spec.kind, error=text)


def free_id(name: str, round_index: int, taken: Collection[str]) -> str:
    """The name, or where it is taken one with the round behind it."""
    if name not in taken:
        return name
    id, count = f"{name}@{round_index}", 1
    while id in taken:
        count += 1
        id = f"{name}@{round_index}-{count}"
    return id
