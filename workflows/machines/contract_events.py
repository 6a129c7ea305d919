"""What can happen in the contract machine; `reason` is for people."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ExitAsked",
    "ForcedRerun",
    "GraphFailed",
    "Rerun",
    "ToolFinished",
    "ToolWanted",
    "Verified",
    "Violated",
    "WrapUpStarted",
]


@dataclass(frozen=True, slots=True)
class ToolWanted:
    """The decision is to call a tool."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rerun:
    """The decision asked to see artifacts or skills."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class ForcedRerun:
    """The decision had no valid strategy; it is asked for again."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class ExitAsked:
    """An exit is pending; it is granted when the machine leaves the decision (spec 5.9)."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class WrapUpStarted:
    """The exit is held back for one round that maps what is there."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Verified:
    """The tool call keeps to the protocol."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Violated:
    """It does not; nothing was run."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """The tool has run, or failed; its artifacts are registered."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class GraphFailed:
    """Something failed that no round can mend."""

    reason: str
