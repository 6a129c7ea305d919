"""Ordered stop conditions: the first that holds says why a run ends (spec 6, 7.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workflows.kernel.machine import At

__all__ = ["Stop", "first_stop"]


@dataclass(frozen=True, slots=True)
class Stop:
    """One condition, a pure function of a read-only view, and the exit reason it stands for."""

    reason: str
    when: Callable[[Any, At], bool]


def first_stop(stops: Sequence[Stop], view: Any, at: At) -> str | None:
    """The reason of the first condition that holds, in their order; later ones are not asked."""
    return next((stop.reason for stop in stops if stop.when(view, at)), None)
