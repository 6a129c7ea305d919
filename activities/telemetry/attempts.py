"""What the worker reports to monitoring: each attempt of a call, and what a run has added to the archive."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from activities.contracts import CompensateInput, JsonObject, ReconcileInput, ToolInput
from activities.provider import ProviderError

__all__ = ["Archived", "Attempt", "ToolPart", "Redact", "ToolAttempt"]

ToolPart = Literal["run", "reconcile", "compensate"]
"""A function of a tool."""
Redact = Callable[[dict[str, Any]], dict[str, Any]]
"""Gives texts by name without the secrets in them."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One attempt of a call, in its activity, which sets `result`."""

    key: str
    """Of the call: `<workflow id>/<run id of the outermost run>/...`."""
    result: Any = None
    error: BaseException | None = None
    """What it raised."""
    began: int = field(default_factory=time.time_ns)
    """In nanoseconds since 1970."""
    seconds: float = 0

    @property
    def error_type(self) -> str:
        """Type of the error; empty: none."""
        if isinstance(self.error, ProviderError):
            return self.error.type
        return type(self.error).__name__ if self.error else str(getattr(self.result, "error", None) or "")

    @property
    def error_text(self) -> str:
        """What went wrong, in words, which may repeat what was said; empty: there are none."""
        if self.error is not None:
            return str(self.error)
        return str(getattr(self.result, "output", "")) if self.error_type else ""


@dataclass(slots=True, kw_only=True)
class ToolAttempt(Attempt):
    """One attempt of a tool's function."""

    request: ToolInput | ReconcileInput | CompensateInput
    part: ToolPart
    is_known: bool
    """The worker has such a tool; else its name may be anything."""


@dataclass(frozen=True, slots=True)
class Archived:
    """What is new in the archive about one run."""

    workflow_id: str
    run_id: str
    """Of the first execution."""
    records: tuple[JsonObject, ...]
    """Of the log, without those that the archive had."""
    result: JsonObject | None
    """The result with its task, if it is new."""
