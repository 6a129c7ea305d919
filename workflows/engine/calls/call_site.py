"""Where a call is made: its activity id and its idempotency key."""

from __future__ import annotations

import hashlib
import math
from typing import Any

from workflows.hosts import CallSite, Identity
from workflows.kernel.snapshot import Suspension

__all__ = ["repeated_id", "fitting_id", "call_site"]

MAX_ID_BYTES = 800
"""Of an id; the server takes 1000, and some get a suffix."""


def fitting_id(name: str) -> str:
    """The id; where it is too long for the server, its end is replaced by a digest."""
    raw = name.encode()
    if len(raw) <= MAX_ID_BYTES:
        return name
    return f"{raw[: MAX_ID_BYTES - 40].decode(errors='ignore')}~{hashlib.sha256(raw).hexdigest()[:32]}"


def repeated_id(name: str, times: int) -> str:
    """The id of a call that is made again, or of a request that is asked again there."""
    return f"{name}+{times}" if times else name


def call_site(
    identity: Identity, suspension: Suspension, name: str, title: str, now: float, **more: Any
) -> CallSite:
    """Where a call is made; `now` in seconds since 1970."""
    s = suspension.snapshot
    activity_id = fitting_id(name)
    key = f"{identity.workflow_id}/{identity.root}/{s.branch}/{activity_id}"
    ledger = suspension.ledger
    left = ledger.with_seconds(now - s.began).left("seconds") if "seconds" in ledger.caps else math.inf
    return CallSite(activity_id, key, " ".join(title.split())[:200], left, **more)
