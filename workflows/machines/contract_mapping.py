"""Filling slots from artifacts (spec 5.10). A failing mapping never fails the run. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from activities.contracts import JsonObject
from activities.contracts_artifacts import ArtifactRead, ArtifactText
from workflows.machines.contract_context import FilledSlot
from workflows.machines.contract_reply import Decision, SlotMapping
from workflows.machines.json_text import cut

__all__ = ["KEPT_CHARS", "Mapped", "Wish", "filled", "place_of", "reads_of", "wishes_of"]

KEPT_CHARS = 4000
"""Longer texts stay in the durable store until the run ends."""
PREVIEW = 200
LOGGED = 300
"""Characters of a path or a problem that the log has."""


def place_of(path: str, known: Collection[str]) -> tuple[str, str] | None:
    """A path such as `rows[0].name` as (id, path behind it); the longest known id wins."""
    ids = [id for id in known if path.startswith(id) and path[len(id) :][:1] in ("", ".", "[")]
    found = max(ids, key=len, default=None)
    return None if found is None else (found, path[len(found) :])


@dataclass(frozen=True, slots=True)
class Wish:
    """One entry of `map_slots`: where it leads, or why it is dropped."""

    mapping: SlotMapping
    artifact_id: str = ""
    path: str = ""
    digest: str = ""
    file: bool = False
    """The slot takes files."""
    dropped: str | None = None

    def drop(self, problem: str) -> JsonObject:
        """For the log."""
        given = self.mapping
        names = {"slot": cut(given.slot_name), "path": cut(given.source_path, LOGGED)}
        return {**names, "reason": self.dropped, "why": cut(problem, LOGGED)}


def wishes_of(c: Any, decision: Decision) -> tuple[Wish, ...]:
    """What the decision wants mapped, once per round."""
    if c.mapped_round_index >= c.round_index:
        return ()
    return tuple(_wish(c, decision, mapping) for mapping in decision.map_slots)


def _wish(c: Any, decision: Decision, given: SlotMapping) -> Wish:
    slot = next((slot for slot in c.output_contract if slot.name == given.slot_name), None)
    if slot is None or not given.source_path:
        return Wish(given, dropped="missing_slot_or_path")
    place = place_of(given.source_path, c.round_snapshot_artifact_ids)
    if place is None:
        promised = [spec.name for spec in decision.tool_call.out_artifacts_spec] if decision.tool_call else []
        future = place_of(given.source_path, promised) is not None
        return Wish(given, dropped="future_artifact" if future else "not_in_round_snapshot")
    artifact = c.artifacts[place[0]].artifact
    # A file slot takes a file as a whole, or any text as a draft (spec 5.10).
    fits = slot.type == "inline" or given.draft or (artifact.type == "file" and not place[1])
    there = fits and artifact.error is None and artifact.digest is not None
    return Wish(
        given,
        artifact_id=place[0],
        path=place[1],
        digest=artifact.digest or "",
        file=slot.type == "file" and not given.draft,
        dropped=None if there else "not_resolvable_now",
    )


def reads_of(wishes: Sequence[Wish]) -> tuple[ArtifactRead, ...]:
    """What has to be read to know whether the wishes can be met."""
    return tuple(ArtifactRead(digest=w.digest, path=w.path) for w in wishes if w.dropped is None)


@dataclass(frozen=True, slots=True)
class Mapped:
    """What came of the wishes."""

    slots: dict[str, FilledSlot] = field(default_factory=dict)
    dropped: tuple[JsonObject, ...] = ()
    errors: tuple[str, ...] = ()


def filled(wishes: Sequence[Wish], texts: Sequence[ArtifactText]) -> Mapped:
    """The slots as the texts fill them; `texts` belong to the wishes that are not dropped, in order."""
    slots: dict[str, FilledSlot] = {}
    dropped, errors, answers = [], [], iter(texts)
    for wish in wishes:
        if wish.dropped is not None:
            dropped.append(wish.drop(_WHY[wish.dropped]))
            continue
        text = next(answers, ArtifactText(problem="nothing was read"))
        if text.problem is not None or (text.binary and not wish.file):
            problem = text.problem or "it is no text"
            lost = Wish(wish.mapping, dropped="not_resolvable_now")
            dropped.append(lost.drop(problem))
            errors.append(cut(f"{wish.mapping.source_path}: {problem}", LOGGED))
            continue
        slots[wish.mapping.slot_name] = _slot(wish, text)
    return Mapped(slots, tuple(dropped), tuple(errors))


_WHY = {
    "missing_slot_or_path": "the contract has no such slot, or the path is empty",
    "future_artifact": "the tool call of this round is to make it; map it in the next round",
    "not_in_round_snapshot": "there is no such artifact",
    "not_resolvable_now": "the artifact has no value, or the slot takes files and this is none (or a draft)",
}


def _slot(wish: Wish, text: ArtifactText) -> FilledSlot:
    whole = not text.binary and text.chars <= KEPT_CHARS
    return FilledSlot(
        artifact_id=wish.artifact_id,
        path=wish.path,
        digest=wish.digest,
        text=text.text if whole else None,
        preview="" if text.binary else text.text[:PREVIEW],
        chars=text.chars,
        binary=text.binary,
        draft=wish.mapping.draft,
        gaps=wish.mapping.gaps,
    )
