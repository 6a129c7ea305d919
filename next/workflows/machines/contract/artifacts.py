"""Artifacts: how a tool's results are registered, and how a path names a place in one."""

from __future__ import annotations

from collections.abc import Collection

from activities.contracts import Artifact, ArtifactSpec, ToolResult
from workflows.machines.contract.context import Contract, KeptArtifact

__all__ = ["free_id", "new_artifacts", "place_of"]


def new_artifacts(
    c: Contract, specs: tuple[ArtifactSpec, ...], result: ToolResult
) -> dict[str, KeptArtifact]:
    """What a call made, under ids of their own. A failed call gives artifacts with its error (spec 5.12)."""
    returned = {artifact.name: artifact for artifact in result.artifacts} if result.ok else {}
    problem = "the tool gave no such artifact" if result.ok else result.output[:500]
    new: dict[str, KeptArtifact] = {}
    for spec in specs:
        artifact = returned.get(spec.name) or Artifact(**spec.model_dump(), error=problem)
        id = free_id(spec.name, c.round.index, {*c.artifacts, *new})
        new[id] = KeptArtifact(artifact=artifact, tool=result.tool, round=c.round.index)
    return new


def free_id(name: str, round_index: int, taken: Collection[str]) -> str:
    """The name itself; if it is taken, the name with the round and a number behind it."""
    if name not in taken:
        return name
    id, count = f"{name}@{round_index}", 1
    while id in taken:
        count += 1
        id = f"{name}@{round_index}-{count}"
    return id


def place_of(path: str, known: Collection[str]) -> tuple[str, str] | None:
    """A path such as `rows[0].name` as (id, path behind it); the longest known id wins."""
    ids = [id for id in known if path.startswith(id) and path[len(id) :][:1] in ("", ".", "[")]
    found = max(ids, key=len, default=None)
    return None if found is None else (found, path[len(found) :])
