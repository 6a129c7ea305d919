"""How a staged run ended, and its log as transition events (spec 3.7, 3.10)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field

from activities.contracts import Frozen, JsonObject
from workflows.kernel.errors import MachineError, name_of
from workflows.kernel.fields import Patch
from workflows.kernel.log import STARTED, Record, lineage
from workflows.kernel.machine import Exit
from workflows.machines.json_text import clean
from workflows.machines.staged_context import (
    FAILED,
    FIELDS,
    FINISHED,
    INITIALIZED,
    ORCHESTRATOR,
    AgentState,
    LastError,
)
from workflows.machines.staged_options import Options, Stage

__all__ = ["EXITS", "TransitionEvent", "result_of", "stage_names", "transition_events", "violated"]

EXITS = {
    "answered": "there is a final answer",
    "no_answer": "the last pass gave no answer; the answer is the fallback text",
    "max_iterations": "another pass was wanted after `max_iterations` (with `on_max_iterations: fail`)",
    "failed": "a stage failed or broke its declaration; `last_error` in the outcome says which and how",
}
_CODES = {"NoTransitionError": "InvalidTransition", "BadPatch": "StageError"}
"""The kernel's names -> those of spec 3.7."""
CLOSED = "Closed"
_PASSES = "MaxIterationsExceeded"


def stage_names(stages: Iterable[Stage]) -> dict[str, str]:
    """Lifecycle -> the name of the stage that runs in it."""
    return {INITIALIZED: ORCHESTRATOR, **{stage.enters: stage.name for stage in stages}}


def violated(names: Mapping[str, str]) -> Callable[[MachineError, AgentState], Patch]:
    """What a broken rule leaves behind on the way to Failed: a structured record."""

    def patch(error: MachineError, c: AgentState) -> Patch:
        kind = type(error).__name__
        last = LastError(
            code=_CODES.get(kind, kind),
            stage=names.get(error.state, ORCHESTRATOR),
            message=clean(error.problem),
            details={"lifecycle": error.state, "iteration": c.iteration},
        )
        return {"last_error": last, "lifecycle": FAILED, "working": ()}

    return patch


def result_of(options: Options) -> Callable[[AgentState, Any], Exit]:
    """The machine's `result` under these knobs."""

    def result(c: AgentState, state: Any) -> Exit:
        ended, error = name_of(state), c.last_error
        fallback = any(note.code == "fallback_used" for note in c.degraded)
        if ended == FINISHED and c.observation:
            text = f"no answer within {c.iteration + 1} passes" if fallback else None
            reason = "no_answer" if fallback else "answered"
            answer = c.observation.final_answer
            return Exit(reason=reason, ok=not fallback, answer=answer, error=text, outcome=_outcome(c))
        reason = "running"
        if ended == FAILED and error:
            reason = "max_iterations" if error.code == _PASSES else "failed"
        return Exit(
            reason=reason,
            error=f"{error.code} in {error.stage}: {error.message}" if error else None,
            outcome=_outcome(c),
            raises=error.code if error and ended == FAILED and options.raise_on_failure else None,
        )

    return result


def _outcome(c: AgentState) -> JsonObject:
    """The final state, and what the orchestrator noted."""
    state: JsonObject = c.model_dump(mode="json", include=set(FIELDS))
    notes: list[Any] = [note.model_dump(mode="json") for note in c.degraded]
    return {
        **state,
        "degraded": bool(notes),
        "fallback_used": any(note.code == "fallback_used" for note in c.degraded),
        "degrade_events": notes,
    }


class TransitionEvent(Frozen):
    """One stage run (spec 3.10)."""

    session_id: str
    stage: str
    """Its name; `orchestrator` where no stage ran."""
    from_: str = Field(alias="from")
    to: str
    read_set: tuple[str, ...]
    """Fields that it really read."""
    write_set: tuple[str, ...]
    patch: JsonObject
    """The merged one, for the fields' reducers; empty when it was refused. `lifecycle` is `to`,
    `last_error` of a failure is `err`."""
    cleared: tuple[str, ...] = ()
    """Fields that went back to nothing before the patch (R-002-6)."""
    started_at: float
    """Seconds since 1970."""
    finished_at: float
    err: LastError | None = None


def transition_events(records: Sequence[Record], stages: Sequence[Stage]) -> tuple[TransitionEvent, ...]:
    """The log of a run, from its first record on, as one event per stage run (R-002-9).

    What a stage writes between two of its effects belongs to its one event; the first context
    belongs to the orchestrator's, as does what people say. Of what a rollback went back behind there are
    no events. From the events the final state can be rebuilt.
    """
    names, events = stage_names(stages), list[TransitionEvent]()
    session = str(records[0].patch.get("session_id", "")) if records else ""
    open_: list[Record] = []
    for record in lineage(records):
        if record.within:
            continue  # of a machine that runs inside a stage
        if _is_said(record):
            events.append(_event(session, names, [record]))
            continue
        open_.append(record)
        if record.event == STARTED or record.to is None:
            continue
        events.append(_event(session, names, open_))
        open_ = []
    return (*events, _event(session, names, open_)) if any(r.patch for r in open_) else tuple(events)


_OURS = ("machine", "kernel")


def _is_said(record: Record) -> bool:
    """A person's message, which comes between what a stage does."""
    return record.by not in _OURS and record.to is None and record.event != CLOSED and bool(record.patch)


def _event(session: str, names: Mapping[str, str], records: Sequence[Record]) -> TransitionEvent:
    last = records[-1]
    patch: JsonObject = {}
    for record in records:
        patch = {**{name: value for name, value in patch.items() if name not in record.reset}, **record.patch}
    failed = last.to == FAILED
    last_error = patch.pop("last_error", None) if failed else None
    hidden = {"lifecycle", "working"}
    return TransitionEvent.model_validate(
        {
            "session_id": session,
            "stage": names.get(last.state, ORCHESTRATOR) if last.by in _OURS else ORCHESTRATOR,
            "from": last.state,
            "to": last.to or last.state,
            "read_set": [n for n in dict.fromkeys(n for r in records for n in r.reads) if n in FIELDS],
            "write_set": [name for name in patch if name not in hidden and name in FIELDS],
            "patch": {name: value for name, value in patch.items() if name not in hidden},
            "cleared": [n for r in records for n in r.reset if n != "working"],
            "started_at": records[0].started,
            "finished_at": last.finished,
            "err": last_error,
        }
    )
