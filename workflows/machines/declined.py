"""Tool calls that a person did not let through: they were not run, and the model is told why."""

from __future__ import annotations

from activities.contracts import ToolResult

__all__ = ["DECLINED", "declined"]

DECLINED = ("rejected", "expired")
"""Errors of such calls: a person said no, or nobody decided in time."""


def declined(result: ToolResult) -> bool:
    """The call was not run because people stand before it; that is no failure of the tool."""
    return result.error in DECLINED
