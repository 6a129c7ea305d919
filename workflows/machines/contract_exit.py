"""How a run of the contract machine ends: resolution, wrap-up, result (spec 5.9, 5.13)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from activities.contracts import JsonObject
from activities.contracts_artifacts import ArtifactText
from workflows.kernel.machine import At, Exit, Move
from workflows.machines.contract_context import Context, FilledSlot, missing_of
from workflows.machines.contract_events import ExitAsked, WrapUpStarted
from workflows.machines.contract_round import wish_of

__all__ = [
    "EXITS",
    "by_reference",
    "closed",
    "ended",
    "granted",
    "resolved",
    "result_of",
    "with_texts",
    "wrap_up",
]

EXITS: Mapping[str, str] = {
    "complete": "the model is done; every slot is filled, or none was declared",
    "incomplete_contract": "the model is done, but slots are open; the outcome names them",
    "clarify": "the model has questions to the person; the outcome has them",
    "max_iterations": "decision rounds or tool calls are used up",
    "context_reads_exhausted": "the model wanted to see something, but no context read is left",
    "decision_no_progress": "the model asked for another decision without anything to see",
    "decision_reruns_exhausted": "the model asked for another decision too often",
    "wrapup_no_decision_rerun": "the model asked for another decision in the wrap-up round",
    "exploit_overdraft_blocked": "the model wanted a tool other than for exploit in an overdraft round",
    "error": "a model or a tool failed for good, or nobody knows what an unsafe tool did",
}


def resolved(c: Any) -> str | None:
    """Why the run ends: the reason that is set, else the pending one, else what the action wishes."""
    if c.exit_reason or c.pending_exit_reason:
        return str(c.exit_reason or c.pending_exit_reason)
    return wish_of(c.last_decision.action) if c.last_decision else None


def granted(event: Any, c: Any) -> dict[str, Any]:
    """The exit is granted: the pending reason becomes the reason."""
    return {"exit_reason": resolved(c), "pending_exit_reason": None}


def wrap_up(c: Context, move: Move, at: At) -> tuple[dict[str, Any], object] | None:
    """Hold an exit back once, for a round that maps what is there (spec 5.9, 3).

    Only exits that were asked for in a decision: a run that failed is not held back.
    """
    reason, pending, loose = resolved(c), c.pending_slots, c.unmapped_artifacts
    wanted = isinstance(move.event, ExitAsked) and reason is not None and not c.wrapup_round_used
    if not (wanted and pending and loose):
        return None
    started: JsonObject = {
        "event": "wrapup_activated",
        "round": c.round_index,
        "trigger": reason,
        "pending_slots": list(pending),
        "unmapped_artifacts": list(loose),
    }
    patch = {
        "wrapup_round_used": True,
        "is_wrapup_round": True,
        "wrapup_trigger_reason": reason,
        "allow_exploit_overdraft": False,
        "exploit_overdraft_used": 0,
        "exploit_overdraft_total": 0,
        "exit_reason": None,
        "pending_exit_reason": None,
        "error": None,
        "round_index": 1,
        "session_log": (started,),
    }
    return patch, WrapUpStarted(reason=f"{reason}; pending: {', '.join(pending)}")


def by_reference(c: Any) -> dict[str, FilledSlot]:
    """The slots whose texts are still in the durable store."""
    return {name: slot for name, slot in c.slots.items() if slot.text is None and not slot.binary}


def with_texts(slots: Mapping[str, FilledSlot], texts: Sequence[ArtifactText]) -> dict[str, FilledSlot]:
    """The slots with their texts; one whose text cannot be read any more has a `problem` instead."""
    answers = iter(texts)
    return {name: _with_text(slot, next(answers, _UNREAD)) for name, slot in slots.items()}


_UNREAD = ArtifactText(problem="nothing was read")


def _with_text(slot: FilledSlot, text: ArtifactText) -> FilledSlot:
    problem = "its body is no text any more" if text.binary else text.problem
    if problem is not None:
        return slot.model_copy(update={"problem": problem})
    left = max(0, text.chars - len(text.text))
    whole = f"{text.text}\n{_left_out(left, text.chars)}" if left else text.text
    return slot.model_copy(update={"text": whole, "cut": left})


def _left_out(left: int, chars: int) -> str:
    return f"[{left} of {chars} characters left out]"


def ended(c: Any, read: Mapping[str, FilledSlot]) -> dict[str, Any]:
    """The last override and the last events; `read` are slots that have got their texts now, or lost them."""
    slots = {**c.slots, **read}
    reason, missing = c.exit_reason, list(missing_of(c.output_contract, slots))
    events: list[JsonObject] = [*_told(read)]
    patch: dict[str, Any] = {"slots": dict(read)} if read else {}
    if reason == "complete" and missing:
        reason = patch["exit_reason"] = "incomplete_contract"
        report: JsonObject = {"declared": [slot.name for slot in c.output_contract], "missing": list(missing)}
        filled = [name for name in slots if name not in missing]
        events.append({"event": "contract_validation_failed", **report, "filled": list(filled)})
    events.append({"event": "exit", "reason": reason, "trigger": c.wrapup_trigger_reason})
    patch["session_log"] = tuple({"event": e["event"], "round": c.round_index, **e} for e in events)
    return patch


def _told(slots: Mapping[str, FilledSlot]) -> Iterator[JsonObject]:
    for name, slot in slots.items():
        if slot.problem is not None:
            yield {"event": "slot_lost", "slot": name, "problem": slot.problem[:500]}
        elif slot.cut:
            yield {"event": "slot_cut", "slot": name, "left_out": slot.cut, "chars": slot.chars}


def closed(c: Context, reason: str) -> dict[str, Any]:
    """What a close in the middle writes: cancel, abort, a limit."""
    event: JsonObject = {"event": "exit", "round": c.round_index, "reason": reason}
    return {"exit_reason": reason, "session_log": (event,)}


def result_of(c: Context, state: Enum) -> Exit:
    """The slots and how it came to them. `ok`: all declared slots are filled, whatever the reason."""
    reason, missing = c.exit_reason or "running", c.pending_slots
    # A run without a contract that failed has achieved nothing.
    ok = not missing and (bool(c.output_contract) or reason != "error")
    return Exit(
        reason=reason,
        ok=ok,
        answer=_answer(c, reason),
        error=None if ok else _error(c, reason),
        outcome=_outcome(c),
    )


def _answer(c: Context, reason: str) -> str | None:
    """The questions, the slots' texts, or the summary of a run without slots."""
    asks = "clarify" in (reason, c.wrapup_trigger_reason) and (c.pending_slots or not c.output_contract)
    if asks and c.clarification_questions:
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
        return f"(a file that is no text: {slot.digest})"
    lost = f"the text is lost: {slot.problem}; " if slot.problem is not None else ""
    return f"{slot.preview}\n[{lost}{_left_out(slot.chars - len(slot.preview), slot.chars)[1:]}"


def _error(c: Context, reason: str) -> str:
    if c.error and reason in ("error", "max_iterations"):
        return str(c.error["message"])
    missing = f"these slots are not filled: {', '.join(c.pending_slots)}" if c.pending_slots else ""
    meaning = EXITS.get(reason, reason)
    return "; ".join(part for part in (meaning, missing) if part)


def _outcome(c: Context) -> JsonObject:
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
        "exploit_overdraft": [c.exploit_overdraft_used, c.exploit_overdraft_total],
        "protocol_violations": c.protocol_violation_count,
        "last_protocol_violation": c.last_protocol_violation,
        "round_timings": [timing.model_dump(mode="json") for timing in c.round_timings],
        "session_log": list(c.session_log),
    }
