"""Artifacts, their texts, and the slots that are filled from them (spec 5.10, 5.12).

A mapping that fails never fails the run, and a store that fails never ends it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any, Literal

from activities.contracts import Artifact, ArtifactRead, ArtifactSpec, ArtifactText, ReadArtifacts
from workflows.machines.authoring import Effect, EffectError, JsonObject, ToolResult, do
from workflows.machines.common.json_text import cut
from workflows.machines.contract.context import Contract, FilledSlot, KeptArtifact, log_entry
from workflows.machines.contract.reply import ModelDecision, SlotMapping

__all__ = [
    "Mapped",
    "fill_slots",
    "free_id",
    "left_out",
    "new_artifacts",
    "place_of",
    "read_texts",
    "with_text",
]

MAX_CONTEXT_TEXT_CHARS = 4000
"""Longer texts stay in the durable store until the run ends."""
PREVIEW_CHARS = 200
LOGGED_CHARS = 300
"""Of a path or a problem in the log."""

Drop = Literal["missing_slot_or_path", "future_artifact", "not_in_round_snapshot", "not_resolvable_now"]
WHY: Mapping[Drop, str] = {
    "missing_slot_or_path": "the contract has no such slot, or the path is empty",
    "future_artifact": "this round's tool call is to make it; map it in the next round",
    "not_in_round_snapshot": "there is no such artifact",
    "not_resolvable_now": "the artifact has no value, or the slot takes a file and this is not one",
}


# -- artifacts ------------------------------------------------------------------------------------


def new_artifacts(
    c: Contract, specs: tuple[ArtifactSpec, ...], result: ToolResult
) -> dict[str, KeptArtifact]:
    """What a call made, under ids of their own. A failed call gives artifacts with its error (spec 5.12)."""
    returned = {artifact.name: artifact for artifact in result.artifacts} if result.ok else {}
    problem = result.output[:500]
    if result.ok:  # a person who looked a call up has no artifacts, but says what became of it
        problem = f"the tool gave no such artifact; its result: {problem}"
    new: dict[str, KeptArtifact] = {}
    for spec in specs:
        artifact = returned.get(spec.name) or Artifact(**spec.model_dump(), error=problem)
        id = free_id(spec.name, c.round.index, {*c.artifacts, *new})
        new[id] = KeptArtifact(artifact=artifact, tool=result.tool, round=c.round.index)
    return new


def free_id(name: str, round_index: int, taken: Collection[str]) -> str:
    """The name itself; if it is taken, the name followed by the round and a number."""
    numbered = (f"{name}@{round_index}-{number}" for number in itertools.count(2))
    return next(id for id in itertools.chain((name, f"{name}@{round_index}"), numbered) if id not in taken)


def place_of(path: str, known: Collection[str]) -> tuple[str, str] | None:
    """A path such as `rows[0].name` as (id, path after it); the longest known id wins."""
    ids = [id for id in known if path.startswith(id) and path[len(id) :][:1] in ("", ".", "[")]
    found = max(ids, key=len, default=None)
    return None if found is None else (found, path[len(found) :])


def read_texts(
    wanted: Sequence[ArtifactRead | str], chars: int, label: str
) -> Generator[Effect[Any], Any, tuple[ArtifactText, ...]]:
    """The texts, cut to `chars`. A string says why there is nothing to read: it is the text's problem. So
    is the failure of a store."""
    reads = tuple(one for one in wanted if isinstance(one, ArtifactRead))
    texts: tuple[ArtifactText, ...] = ()
    if reads:
        try:
            texts = (yield from do(ReadArtifacts(reads=reads, chars=chars, label=label))).texts
        except EffectError as error:
            texts = (ArtifactText(problem=str(error)),) * len(reads)
    answers, nothing = iter(texts), ArtifactText(problem="nothing was read")
    return tuple(
        ArtifactText(problem=one) if isinstance(one, str) else next(answers, nothing) for one in wanted
    )


def left_out(text: ArtifactText) -> str:
    """The line below a text that is cut; nothing below a whole one."""
    left = text.chars - len(text.text)
    return f"\n[{left} of {text.chars} characters left out]" if left > 0 else ""


# -- mapping --------------------------------------------------------------------------------------


Mapped = tuple[dict[str, FilledSlot], tuple[JsonObject, ...]]
"""The slots that a decision fills, and what the session log says of it."""


def fill_slots(c: Contract, decision: ModelDecision) -> Generator[Effect[Any], Any, Mapped]:
    """Read what the decision maps, and fill the slots. A later entry for a slot wins.

    Artifacts come only from tool calls, so those in the context are those that were there when the
    round's question was asked: the round's snapshot.
    """
    sources = [_source(c, decision, entry) for entry in decision.map_slots]
    wanted = [WHY[source] if isinstance(source, str) else source.read for source in sources]
    texts = yield from read_texts(wanted, MAX_CONTEXT_TEXT_CHARS, f"read what decision #{c.iteration} maps")
    slots: dict[str, FilledSlot] = {}
    dropped: list[JsonObject] = []
    errors: list[str] = []
    for entry, source, text in zip(decision.map_slots, sources, texts, strict=True):
        takes_bytes = c.slot_types.get(entry.slot_name) == "file" and not entry.draft
        problem = text.problem or ("it is not text" if text.binary and not takes_bytes else None)
        if isinstance(source, str):
            reason: Drop = source
        elif problem is not None:
            reason = "not_resolvable_now"
            errors.append(cut(f"{entry.source_path}: {problem}", LOGGED_CHARS))
        else:
            slots[entry.slot_name] = _filled(source, text)
            continue
        names = {"slot": cut(entry.slot_name), "path": cut(entry.source_path, LOGGED_CHARS)}
        dropped.append({**names, "reason": reason, "why": cut(problem or "", LOGGED_CHARS)})
    event = log_entry("best_effort_mapping", applied=[*slots], dropped=dropped, errors=errors)
    return slots, (event,) if decision.map_slots else ()


def _source(c: Contract, decision: ModelDecision, entry: SlotMapping) -> FilledSlot | Drop:
    """What the entry fills its slot from, still without the text; or why the entry is dropped."""
    type = c.slot_types.get(entry.slot_name)
    if type is None or not entry.source_path:
        return "missing_slot_or_path"
    place = place_of(entry.source_path, c.artifacts)
    if place is None:
        promised = decision.tool_call.out_artifacts_spec if decision.tool_call else ()
        future = place_of(entry.source_path, [spec.name for spec in promised])
        return "future_artifact" if future else "not_in_round_snapshot"
    id, path = place
    artifact = c.artifacts[id].artifact
    # A file slot takes a file as a whole, or any text as a draft (spec 5.10).
    fits = type == "inline" or entry.draft or (artifact.type == "file" and not path)
    if not fits or artifact.error is not None or artifact.digest is None:
        return "not_resolvable_now"
    return FilledSlot(artifact_id=id, path=path, digest=artifact.digest, draft=entry.draft, gaps=entry.gaps)


def _filled(slot: FilledSlot, text: ArtifactText) -> FilledSlot:
    whole = not text.binary and text.chars <= MAX_CONTEXT_TEXT_CHARS
    update = {
        "text": text.text if whole else None,
        "preview": "" if text.binary else text.text[:PREVIEW_CHARS],
        "chars": text.chars,
        "binary": text.binary,
    }
    return slot.model_copy(update=update)


def with_text(slot: FilledSlot, text: ArtifactText) -> FilledSlot:
    """A slot with its whole text; one whose text cannot be read any more has a `problem` instead."""
    problem = "its body is not text any more" if text.binary else text.problem
    if problem is not None:
        return slot.model_copy(update={"problem": problem})
    left = max(0, text.chars - len(text.text))
    return slot.model_copy(update={"text": text.text + left_out(text), "cut": left})
