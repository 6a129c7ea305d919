"""Filling slots from artifacts (spec 5.10). A mapping that fails never fails the run.

First each entry of `map_slots` becomes a lookup: what has to be read, or why the entry is dropped. Then
the texts fill the slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from activities.contracts import ArtifactRead, ArtifactText, JsonObject
from workflows.machines.common.json_text import cut
from workflows.machines.contract.artifacts import place_of
from workflows.machines.contract.context import Contract, FilledSlot
from workflows.machines.contract.reply import Decision, SlotMapping

__all__ = ["KEPT_CHARS", "Lookup", "MappingReport", "Source", "lookups_of", "mapping_report", "reads_of"]

KEPT_CHARS = 4000
"""Longer texts stay in the durable store until the run ends."""
PREVIEW_CHARS = 200
LOGGED_CHARS = 300
"""Of a path or a problem in the log."""

Drop = Literal["missing_slot_or_path", "future_artifact", "not_in_round_snapshot", "not_resolvable_now"]
WHY: dict[Drop, str] = {
    "missing_slot_or_path": "the contract has no such slot, or the path is empty",
    "future_artifact": "this round's tool call is to make it; map it in the next round",
    "not_in_round_snapshot": "there is no such artifact",
    "not_resolvable_now": "the artifact has no value, or the slot takes a file and this is not one",
}


@dataclass(frozen=True, slots=True)
class Source:
    """The text that an entry maps."""

    artifact_id: str
    read: ArtifactRead
    takes_bytes: bool
    """The slot takes a file that is not text."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """One entry of `map_slots`, with its source, or why it is dropped."""

    entry: SlotMapping
    source: Source | Drop


def lookups_of(c: Contract, decision: Decision) -> tuple[Lookup, ...]:
    """A lookup for each entry of the decision's `map_slots`.

    Artifacts come only from tool calls, so those in the context are those that were there when the
    round's question was asked: the round's snapshot.
    """
    return tuple(_lookup(c, decision, entry) for entry in decision.map_slots)


def _lookup(c: Contract, decision: Decision, entry: SlotMapping) -> Lookup:
    slot = next((slot for slot in c.output_contract if slot.name == entry.slot_name), None)
    if slot is None or not entry.source_path:
        return Lookup(entry, "missing_slot_or_path")
    place = place_of(entry.source_path, c.artifacts)
    if place is None:
        promised = decision.tool_call.out_artifacts_spec if decision.tool_call else ()
        future = place_of(entry.source_path, [spec.name for spec in promised])
        return Lookup(entry, "future_artifact" if future else "not_in_round_snapshot")
    id, path = place
    artifact = c.artifacts[id].artifact
    # A file slot takes a file as a whole, or any text as a draft (spec 5.10).
    fits = slot.type == "inline" or entry.draft or (artifact.type == "file" and not path)
    if not fits or artifact.error is not None or artifact.digest is None:
        return Lookup(entry, "not_resolvable_now")
    read = ArtifactRead(digest=artifact.digest, path=path)
    return Lookup(entry, Source(id, read, takes_bytes=slot.type == "file" and not entry.draft))


def reads_of(lookups: Sequence[Lookup]) -> tuple[ArtifactRead, ...]:
    """What has to be read for the lookups that are not dropped."""
    return tuple(one.source.read for one in lookups if isinstance(one.source, Source))


@dataclass(frozen=True, slots=True)
class MappingReport:
    """What came of the lookups."""

    slots: dict[str, FilledSlot]
    dropped: tuple[JsonObject, ...]
    errors: tuple[str, ...]

    @property
    def event(self) -> JsonObject:
        """For the session log."""
        return {
            "event": "best_effort_mapping",
            "applied": list(self.slots),
            "dropped": list(self.dropped),
            "errors": list(self.errors),
        }


def mapping_report(lookups: Sequence[Lookup], texts: Sequence[ArtifactText]) -> MappingReport:
    """The slots as the texts fill them; `texts` are those of `reads_of`. A later entry for a slot wins."""
    slots: dict[str, FilledSlot] = {}
    dropped, errors, answers = [], [], iter(texts)
    for lookup in lookups:
        entry, source = lookup.entry, lookup.source
        if not isinstance(source, Source):
            dropped.append(_dropped(entry, source, WHY[source]))
            continue
        text = next(answers, ArtifactText(problem="nothing was read"))
        problem = text.problem or ("it is not text" if text.binary and not source.takes_bytes else None)
        if problem is None:
            slots[entry.slot_name] = _filled(entry, source, text)
            continue
        dropped.append(_dropped(entry, "not_resolvable_now", problem))
        errors.append(cut(f"{entry.source_path}: {problem}", LOGGED_CHARS))
    return MappingReport(slots, tuple(dropped), tuple(errors))


def _dropped(entry: SlotMapping, reason: Drop, why: str) -> JsonObject:
    names: JsonObject = {"slot": cut(entry.slot_name), "path": cut(entry.source_path, LOGGED_CHARS)}
    return {**names, "reason": reason, "why": cut(why, LOGGED_CHARS)}


def _filled(entry: SlotMapping, source: Source, text: ArtifactText) -> FilledSlot:
    whole = not text.binary and text.chars <= KEPT_CHARS
    return FilledSlot(
        artifact_id=source.artifact_id,
        path=source.read.path,
        digest=source.read.digest,
        text=text.text if whole else None,
        preview="" if text.binary else text.text[:PREVIEW_CHARS],
        chars=text.chars,
        binary=text.binary,
        draft=entry.draft,
        gaps=entry.gaps,
    )
