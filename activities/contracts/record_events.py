"""Names of events in a run's log, for readers of records as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

__all__ = ["FORKED", "REQUEST_CLOSED", "REQUEST_OPENED", "RESERVED_EVENTS", "own_records"]

FORKED = "Forked"
"""Event of a record that goes on from a step of another run; that run's records stand before it."""
REQUEST_OPENED = "Requested"
REQUEST_CLOSED = frozenset({"Decided", "Expired", "Withdrawn"})
"""Events after which a request to people is not asked any more."""
RESERVED_EVENTS = frozenset({
    "Started", "Kept", "Migrated", "AnswerRefused", FORKED, "RolledBack", "Closed",
    REQUEST_OPENED, "Voted", "Warned", "Escalated", *REQUEST_CLOSED,
    "ApprovedBefore", "WithinBound", "BeyondBound", "RejectedByRule",
    "Paused", "Resumed", "Steered", "LimitsSet", "Compensated", "Reconciled",
    "CallWaits", "CallMade", "ChildStopped", "ModelChanged", "Compacted", "NotCompacted", "Labelled",
    "RefusedDecision", "RefusedCommand", "RepeatedDecision", "RepeatedCommand", "UnusableSignal",
    "MachineError", "NoTransition", "UndeclaredAccess", "InvariantViolated", "BadPatch", "EmptyVisit",
    "LimitExceeded", "Drifted", "ImpureMachine",
    "ModelReplied", "ToolsReturned", "PersonDecided", "MachineEnded", "CodeStepped", "ArtifactsRead",
    "EffectFailed", "Answers",
})  # fmt: skip
"""All names of records that Ratchet writes by itself, which no event of a machine may have: of a run's
beginning and end, of requests and approvals, commands, calls, what did not count, broken rules, and answers
after which a visit goes on."""
_R = TypeVar("_R", bound=Mapping[str, Any])


def own_records(records: Sequence[_R]) -> Sequence[_R]:
    """The records without those that a fork has taken from another run."""
    forks = [number for number, record in enumerate(records) if record["event"] == FORKED]
    return records[forks[-1] :] if forks else records
