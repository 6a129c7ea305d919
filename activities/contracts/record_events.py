"""Names of events in a run's log, for readers of records as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

__all__ = ["FORKED", "REQUEST_CLOSED", "REQUEST_OPENED", "own_records"]

FORKED = "Forked"
"""Event of a record that goes on from a step of another run; that run's records stand before it."""
REQUEST_OPENED = "Requested"
REQUEST_CLOSED = frozenset({"Decided", "Expired", "Withdrawn"})
"""Events after which a request to people is not asked any more."""
_R = TypeVar("_R", bound=Mapping[str, Any])


def own_records(records: Sequence[_R]) -> Sequence[_R]:
    """The records without those that a fork has taken from another run."""
    forks = [number for number, record in enumerate(records) if record["event"] == FORKED]
    return records[forks[-1] :] if forks else records
