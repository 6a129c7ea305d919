"""How a run of the contract machine ends: the slots' texts, and the result (spec 5.13)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from activities.contracts import ArtifactText, JsonObject
from workflows.kernel.machine import Exit, Run
from workflows.machines.contract.context import Contract, FilledSlot

__all__ = ["EXITS", "result", "slot_events", "slots_by_reference", "slots_with_texts"]

EXITS: Mapping[str, str] = {
    "complete": "the model is done; every slot is filled, or none was declared",
    "incomplete_contract": "the model is done, but slots are open; the outcome names them",
    "clarify": "the model has questions to the person; the outcome has them",
    "max_iterations": "decision rounds or tool calls are used up",
    "context_reads_exhausted": "the model wanted to see something, but no context read is left",
    "decision_no_progress": "the model asked for another decision without anything to see",
    "decision_reruns_exhausted": "the model asked for another decision too often",
    "wrapup_no_decision_rerun": "the model asked for another decision in the wrap-up round",
    "exploit_overdraft_blocked": "the model wanted a tool in an overdraft round, but not for exploit",
    "error": "the model or a tool failed for good, or the outcome of an unsafe tool is unknown",
}


def slots_by_reference(slots: Mapping[str, FilledSlot]) -> dict[str, FilledSlot]:
    """The slots whose texts are still in the durable store."""
    return {name: slot for name, slot in slots.items() if slot.text is None and not slot.binary}


def slots_with_texts(slots: Mapping[str, FilledSlot], texts: Sequence[ArtifactText]) -> dict[str, FilledSlot]:
    """The slots with their texts; one whose text cannot be read any more has a `problem` instead."""
    answers = iter(texts)
    missing = ArtifactText(problem="nothing was read")
    return {name: _with_text(slot, next(answers, missing)) for name, slot in slots.items()}


def _with_text(slot: FilledSlot, text: ArtifactText) -> FilledSlot:
    problem = "its body is not text any more" if text.binary else text.problem
    if problem is not None:
        return slot.model_copy(update={"problem": problem})
    left = max(0, text.chars - len(text.text))
    whole = f"{text.text}\n{_left_out(left, text.chars)}" if left else text.text
    return slot.model_copy(update={"text": whole, "cut": left})


def _left_out(left: int, chars: int) -> str:
    return f"[{left} of {chars} characters left out]"


def slot_events(slots: Mapping[str, FilledSlot]) -> Iterator[JsonObject]:
    """For the session log: which texts were lost or cut."""
    for name, slot in slots.items():
        if slot.problem is not None:
            yield {"event": "slot_lost", "slot": name, "problem": slot.problem[:500]}
        elif slot.cut:
            yield {"event": "slot_cut", "slot": name, "left_out": slot.cut, "chars": slot.chars}


def result(c: Contract, run: Run) -> Exit:
    """The slots and how they were filled. `ok`: all declared slots are filled, whatever the reason."""
    reason = c.exit_reason or "running"
    # A run without a contract that failed has achieved nothing.
    ok = not c.pending_slots and (bool(c.output_contract) or reason != "error")
    return Exit(
        reason=reason,
        ok=ok,
        answer=_answer(c, reason),
        error=None if ok else _error(c, reason),
        outcome=_outcome(c),
    )


def _answer(c: Contract, reason: str) -> str | None:
    """The questions, or the slots' texts, or the summary of a run without slots."""
    clarifies = "clarify" in (reason, c.wrapup_trigger_reason) and (c.pending_slots or not c.output_contract)
    if clarifies and c.clarification_questions:
        return "\n".join(c.clarification_questions)
    texts = {slot.name: _text(c.slots[slot.name]) for slot in c.output_contract if slot.name in c.slots}
    if len(c.output_contract) == 1:
        return next(iter(texts.values()), None)
    if texts:
        return "\n\n".join(f"{name}:\n{text}" for name, text in texts.items())
    return c.completion_summary or None


def _text(slot: FilledSlot) -> str:
    if slot.text is not None:
        return slot.text
    if slot.binary:
        return f"(a file that is not text: {slot.digest})"
    lost = f"the text is lost: {slot.problem}; " if slot.problem is not None else ""
    return f"{slot.preview}\n[{lost}{_left_out(slot.chars - len(slot.preview), slot.chars)[1:]}"


def _error(c: Contract, reason: str) -> str:
    if c.error and reason in ("error", "max_iterations"):
        return str(c.error["message"])
    missing = f"these slots are not filled: {', '.join(c.pending_slots)}" if c.pending_slots else ""
    meaning = EXITS.get(reason, reason)
    return "; ".join(part for part in (meaning, missing) if part)


def _outcome(c: Contract) -> JsonObject:
    return {
        "slots": {name: slot.model_dump(mode="json") for name, slot in c.slots.items()},
        "missing": list(c.pending_slots),
        "artifacts": {id: kept.model_dump(mode="json") for id, kept in c.artifacts.items()},
        "completion_summary": c.completion_summary,
        "clarification_questions": list(c.clarification_questions),
        "wrapup_trigger_reason": c.wrapup_trigger_reason,
        "error": c.error,
        "iterations": c.iteration,
        "budget": {"spent": dict(c.budget.spent), "caps": dict(c.budget.caps)},
        "exploit_overdraft": [c.overdraft.used, c.overdraft.total],
        "protocol_violations": c.violations.count,
        "last_protocol_violation": c.violations.last,
        "round_timings": [timing.model_dump(mode="json") for timing in c.round_timings],
        "session_log": list(c.session_log),
    }
