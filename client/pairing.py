"""Two logs side by side by step, and where they part. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

from activities.contracts import Frozen
from client.differences import FREE, Span, differences, timeless
from workflows.kernel.log import STARTED, Record, lineage

__all__ = ["Pair", "Parting", "StepOf", "paired"]

PASSING = {"seconds"}
"""Counters that never are the same twice."""
OURS = {"machine", "kernel"}
"""Who else causes records is a person."""
DONE = {"machine", "state", "event", "to", "reason", "error", "by"}
"""What of a record is a deed, besides its patch."""
AROUND = 60
"""Seconds before and behind a run in which a time is still taken for one of its own."""
OPAQUE = {("code", "session")}
"""Fields, by machine, that hold packed state with times in it; what came of it is said in other fields."""
DIGESTS = {("react", "cache")}
"""Fields, by machine, whose keys are digests of what a model was sent, tools included: another goal makes
others of them all."""
IDS = {"trace_id", "session_id", "workflow_id", "run", "child"}
"""Fields that hold the id of a run, or of one inside it."""


class StepOf(Frozen):
    """What one run did in one step; of a step that was done again, what holds."""

    step: int
    branch: int
    path: tuple[str, ...]
    """The states that it went through; a machine inside it as `[machine]`."""
    said: tuple[str, ...]
    """What was thought, called, returned or refused, in order."""
    spent: dict[str, float]
    """In this step alone."""
    first: int
    """Sequence number of its first record."""


class Pair(Frozen):
    """The same step of both runs."""

    step: int
    left: StepOf | None
    right: StepOf | None
    same: bool
    """The same states, and the same was said and called."""


class Parting(Frozen):
    """Where two runs part."""

    step: int
    left: str
    """What the one did next: `state: event` and why; empty when it had ended or comes no further."""
    right: str


def paired(
    left: Sequence[Record], right: Sequence[Record], names: tuple[str, str] = ("", "")
) -> tuple[tuple[Pair, ...], Parting | None]:
    """The steps of two logs beside each other, and where the logs part; `names` are the runs' ids."""
    one, other = _by_step(left), _by_step(right)
    eyes = _Eye.of(left, names[0]), _Eye.of(right, names[1])
    before = _before(left), _before(right)
    pairs: list[Pair] = []
    parts: Parting | None = None
    for step in sorted(one.keys() | other.keys()):
        mine, theirs = one.get(step, []), other.get(step, [])
        found = _parting(step, mine, theirs, eyes)
        parts = parts or found
        pairs.append(
            Pair(
                step=step,
                left=_told(step, mine, before[0]),
                right=_told(step, theirs, before[1]),
                same=not found,
            )
        )
    return tuple(pairs), parts


def _by_step(records: Sequence[Record]) -> dict[int, list[Record]]:
    """What holds of a log, by step of the run's first machine; what made it go back is left out.

    Machines inside it count their own steps: their records belong to the step that goes on behind them.
    """
    steps: dict[int, list[Record]] = {}
    inner: list[Record] = []
    step = 0
    for record in lineage(records):
        if record.back_to is not None:
            continue
        if record.within:
            inner.append(record)
            continue
        step = record.step
        steps.setdefault(step, []).extend([*inner, record])
        inner = []
    if inner:
        steps.setdefault(step, []).extend(inner)
    return steps


@dataclass(frozen=True)
class _Eye:
    """How a reader sees the records of one run: neither when, nor under which ids."""

    span: Span
    name: str

    @classmethod
    def of(cls, log: Sequence[Record], name: str) -> _Eye:
        began = min((record.started for record in log), default=0)
        return cls((began - AROUND, max((record.finished for record in log), default=0) + AROUND), name)

    def done(self, record: Record, *, anonymous: bool = True) -> dict[str, Any]:
        """What a record says was done; with what a run began, stands above the steps."""
        told = record.model_dump(mode="json", include=DONE)
        told["within"] = bool(record.within)
        if asked := record.about.get(
            "request"
        ):  # requests are counted on, also over those that a rollback took away
            told["reason"] = record.reason.removeprefix(f"{asked} ")
        if record.event != STARTED:
            patch = timeless(_readable(record), self.span)
            told |= {"patch": self._anonymous(patch) if anonymous else patch, "reset": record.reset}
        return told

    @cached_property
    def _own(self) -> re.Pattern[str]:
        """The run's id, or that of a run inside, which has some of a first run id in it."""
        return re.compile(rf"{re.escape(self.name)}(/[0-9a-f]{{8}})?(?=/|$)")

    def _anonymous(self, value: Any, within: str = "") -> Any:
        if isinstance(value, str):
            return self._own.sub("(this run)", value, count=1) if self._is_id(value, within) else value
        if isinstance(value, dict) and within != FREE:
            return {name: self._anonymous(item, name) for name, item in value.items()}
        return [self._anonymous(item, within) for item in value] if isinstance(value, list) else value

    def _is_id(self, value: str, within: str) -> bool:
        return bool(self.name) and within in IDS and self._own.match(value) is not None


def _readable(record: Record) -> dict[str, Any]:
    """What a record changed, without packed state and digests."""
    patch: dict[str, Any] = {}
    for name, value in record.patch.items():
        if (record.machine, name) in DIGESTS and isinstance(value, dict):
            patch[name] = list(value.values())
        elif (record.machine, name) not in OPAQUE:
            patch[name] = value
    return patch


def _parting(
    step: int, left: Sequence[Record], right: Sequence[Record], eyes: tuple[_Eye, _Eye]
) -> Parting | None:
    for one, other in zip_longest(left, right):
        if one is None or other is None:
            return Parting(step=step, left=_words(one), right=_words(other))
        was, now = eyes[0].done(one), eyes[1].done(other)
        # As they stand, too: an id may be a word that both say.
        if was != now and eyes[0].done(one, anonymous=False) != eyes[1].done(other, anonymous=False):
            said = _words(one), _words(other)
            if said[0] == said[1]:  # the titles are too short to show it
                found = differences(was, now)[0]
                said = f"{found.at} {found.was}; {said[0]}", f"{found.at} {found.now}; {said[1]}"
            return Parting(step=step, left=said[0], right=said[1])
    return None


def _words(record: Record | None) -> str:
    if record is None:
        return ""
    why = record.error or record.reason
    return f"{record.state}: {record.event}{f' ({why})' if why else ''}"


def _told(step: int, group: Sequence[Record], before: Mapping[int, Mapping[str, float]]) -> StepOf | None:
    if not group:
        return None
    own = [record for record in group if not record.within]
    return StepOf(
        step=step,
        branch=group[-1].branch,
        path=tuple(_path(group)),
        said=tuple(_said(group)),
        spent=_spent(own, before[own[0].seq]) if own else {},
        first=group[0].seq,
    )


def _path(group: Sequence[Record]) -> list[str]:
    """States in order; of a machine inside, its name once. Where the next step begins is left out."""
    path: list[str] = []
    for record in group:
        if record.within:
            name = f"[{record.machine}]"
            path += [name] if path[-1:] != [name] else []
        elif record.to is not None and record.event != STARTED:
            path.append(record.state)
    last = next((record for record in reversed(group) if record.to is not None and not record.within), None)
    if last is not None and last.to is not None and last.to not in path[:1]:
        path.append(last.to)
    return path


def _said(group: Sequence[Record]) -> Iterator[str]:
    for record in group:
        by = "" if record.by in OURS else f"{record.by}: "
        if record.error:
            yield f"{by}{record.event}: {record.error}"
        elif record.reason:
            yield f"{by}{record.reason}"


def _before(log: Sequence[Record]) -> dict[int, Mapping[str, float]]:
    """The run's counters before each record, by its number: those of the record before, on any branch."""
    found: dict[int, Mapping[str, float]] = {}
    counters: Mapping[str, float] = {}
    for record in log:
        found[record.seq] = counters
        counters = counters if record.within else record.counters
    return found


def _spent(own: Sequence[Record], before: Mapping[str, float]) -> dict[str, float]:
    """What the step added to the counters."""
    spent = {name: round(amount - before.get(name, 0), 9) for name, amount in own[-1].counters.items()}
    return {name: amount for name, amount in spent.items() if amount > 0 and name not in PASSING}
