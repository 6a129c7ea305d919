"""Who decides what runs ask, and what people may newly do after a change. Pure, and without a solver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from workflows.people import Group, Kind, People, RequestSettings
from workflows.verify.policy.ranges import number_text

__all__ = ["deciders_text", "newly_decided", "people_grown", "sooner"]

MAX_NAMED_PEOPLE = 5
"""People that a text names."""
GO_ON = ("on_limit", "on_trouble", "on_stuck")
"""Where a run ends or fails, or asks a person how to go on."""
NEVER_APPROVED = {"approval", "limit", "outcome"}
"""Kinds of request whose deadline lets no run go on with `approve`; approvals are looked at call by call."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Who is asked first, or after so many escalations."""

    approvers: tuple[str, ...]
    """Empty: anybody."""
    keys: Mapping[str, str]
    quorum: int

    @classmethod
    def of(cls, group: Group, quorum: int | None = None) -> _Place:
        return cls(group.approvers, group.keys, quorum or group.quorum)

    def is_weaker(self, other: _Place) -> bool:
        """Somebody else may decide, fewer people must agree, nobody needs to sign, or another key counts."""
        outsiders = bool(other.approvers) and (
            not self.approvers or not set(self.approvers) <= set(other.approvers)
        )
        return outsiders or self.quorum < other.quorum or (bool(other.keys) and self._has_other_key(other))

    def _has_other_key(self, other: _Place) -> bool:
        return not self.keys or any(other.keys.get(name) != key for name, key in self.keys.items())

    def text(self, before: _Place | None = None) -> str:
        """`2 of ann, bob, signed`; `before`: with what else is not as in this one."""
        if not self.approvers:
            return "anybody" if self.quorum == 1 else f"any {self.quorum}"
        named = ", ".join(sorted(self.approvers)[:MAX_NAMED_PEOPLE])
        more = " and others" if len(self.approvers) > MAX_NAMED_PEOPLE else ""
        signed = ", signed" if self.keys else ""
        if before is not None and self.keys and before.keys and self._has_other_key(before):
            signed += " with another key"
        return f"{self.quorum} of {named}{more}{signed}"


def _places(people: People, settings: RequestSettings) -> list[_Place]:
    """Who decides, in the order of the escalations."""
    names = (settings.group, *settings.escalate_to)
    return [_Place.of(people.group_named(name), settings.quorum) for name in names]


def _text(places: Sequence[_Place], before: Sequence[_Place] = ()) -> str:
    others = [*before, *[None] * len(places)]
    return ", then ".join(one.text(other) for one, other in zip(places, others, strict=False))


def deciders_text(people: People, settings: RequestSettings) -> str:
    """`1 of ann, then 2 of bob, eve, signed`."""
    return _text(_places(people, settings))


def newly_decided(new: People, one: RequestSettings, old: People, other: RequestSettings) -> str:
    """Who newly decides such requests, first or after an escalation; empty: nobody who did not before."""
    now, then = _places(new, one), _places(old, other)
    weaker = len(now) > len(then) or any(
        mine.is_weaker(theirs) for mine, theirs in zip(now, then, strict=False)
    )
    return f"newly decided by {_text(now, then)}; before by {_text(then)}" if weaker else ""


def sooner(one: RequestSettings, other: RequestSettings) -> str:
    """What happens sooner if nobody answers; empty: nothing that lets calls pass."""
    now, then = one.deadline_seconds, other.deadline_seconds
    if one.at_deadline != other.at_deadline or now is None or then is None or now >= then:
        return ""
    after = f"after {number_text(now)} s without an answer; before after {number_text(then)} s"
    texts = {"approve": f"newly approved {after}", "escalate": f"newly passed on to the next group {after}"}
    return texts.get(one.at_deadline, "")


def _newly_approved(one: RequestSettings, other: RequestSettings) -> str:
    """The run newly goes on if nobody answers; empty: it does not, or did before."""
    approves = [it.at_deadline == "approve" and it.deadline_seconds is not None for it in (one, other)]
    after = number_text(one.deadline_seconds or 0)
    return f"newly approved after {after} s without an answer" if approves == [True, False] else ""


def people_grown(new: People, old: People) -> Iterator[str]:
    """What people may newly do besides deciding on calls, and where a run newly does not wait for them."""
    now, then = _Place.of(new.group_named(new.commands)), _Place.of(old.group_named(old.commands))
    if now.is_weaker(then):
        who = "people.commands: who may raise limits or roll back"
        yield f"{who} is newly {now.text(then)}; before {then.text()}"
    yield from _waits_lost(new, old)
    if new.unattended:
        return
    if old.unattended:
        yield "people.unattended is newly false: people may answer what a run asks"
        return
    for name in GO_ON:
        if (mine := getattr(new, name)) == "ask" and (before := getattr(old, name)) != mine:
            yield f"people.{name} is newly ask; before {before}"
    yield from _other_requests(new, old)


def _other_requests(new: People, old: People) -> Iterator[str]:
    """Requests that are not about calls, and who newly decides them."""
    kinds: dict[str, list[str]] = {}
    for kind in get_args(Kind):
        one, other = new.settings_for(kind), old.settings_for(kind)
        passes = "" if kind in NEVER_APPROVED else _newly_approved(one, other)
        for said in (newly_decided(new, one, old, other), sooner(one, other), passes):
            if said and kind != "approval":
                kinds.setdefault(said, []).append(kind)
    for said, named in kinds.items():
        which = f"kind {named[0]}" if len(named) == 1 else f"kinds {', '.join(named)}"
        yield f"people: requests of the {which} are {said}"


def _waits_lost(new: People, old: People) -> Iterator[str]:
    """Where a run newly does not wait for a person; an unattended one waits nowhere."""
    every, before = (None if one.unattended else one.interrupt_every for one in (new, old))
    if before is not None and (every is None or every > before):
        yield f"people.interrupt_every is newly {every or 'null'}; before {before}"
    now, then = (() if one.unattended else one.interrupt_states for one in (new, old))
    if lost := [name for name in then if name not in now]:
        yield f"people.interrupt_states: nobody is newly asked before {', '.join(lost)}"
