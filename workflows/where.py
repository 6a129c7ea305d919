"""Where in a run an effect stands: the stem of activity ids, child ids and idempotency keys."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from activities.contracts import CallTools
from workflows.kernel.ledger import Ledger

__all__ = ["Where", "bounded"]

LONGEST = 800
"""Bytes of an id; the server takes 1000, and we add to some."""


@dataclass(frozen=True, slots=True)
class Where:
    """Which effect of the run this is, and what the machine that asks may use."""

    activity_id: str
    """`<state>#<visit>:<call>`; compared on replay, so that drift of a machine is found."""
    branch: int = 0
    depth: int = 1
    """How deep a machine that it runs would be nested."""
    ledger: Ledger = field(default_factory=Ledger)
    """Of the machine that asks."""
    tools: frozenset[str] = frozenset()
    """Tools that the machine that asks may use."""
    spent_usd: float = 0
    """What the whole run has spent by now, machines inside included."""
    heard: tuple[str, ...] = ()
    """Ids of signed commands that the run has had: a child run must not obey them again."""

    def calls(self, effect: CallTools) -> tuple[str, ...]:
        """Activity ids of the effect's calls: `<place>.<n>` where there are several."""
        if len(effect.runs) == 1:
            return (self.activity_id,)
        return tuple(f"{self.activity_id}.{n}" for n in range(len(effect.runs)))


def bounded(name: str) -> str:
    """The id, its end replaced by a digest where it is too long for the server."""
    raw = name.encode()
    if len(raw) <= LONGEST:
        return name
    return f"{raw[: LONGEST - 40].decode(errors='ignore')}~{hashlib.sha256(raw).hexdigest()[:32]}"
