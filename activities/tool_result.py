"""What became of a call, as the result that a run keeps: cut for the model, kept whole in the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from activities.artifacts import artifacts_of
from activities.contracts import ToolError, ToolRequest, ToolResult
from activities.tool_output import MAX_KEPT_BYTES, Output

__all__ = ["Keep", "Verdict", "result_of"]

Keep = Callable[[bytes], Awaitable[str]]
"""Stores an output and answers its digest."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a call, before its output is cut."""

    output: Output
    error: ToolError | None = None
    attempts: int = 1
    cost_usd: float = 0
    marks: tuple[str, ...] = ()


async def result_of(request: ToolRequest, verdict: Verdict, cap: int, keep: Keep | None) -> ToolResult:
    """The result of the call, with at most `cap` characters of its output and its artifacts."""
    shown, whole = await _shown(verdict.output, cap, keep)
    wanted = request.artifacts if verdict.error is None else ()
    return ToolResult(
        id=request.id,
        tool=request.tool,
        output=shown,
        error=verdict.error,
        attempts=verdict.attempts,
        cost_usd=verdict.cost_usd,
        bytes=len(verdict.output.whole),
        whole=whole,
        marks=verdict.marks,
        artifacts=await artifacts_of(verdict.output, wanted, keep),
    )


async def _shown(output: Output, cap: int, keep: Keep | None) -> tuple[str, str | None]:
    """What the model is shown, and the digest of the whole if that is less."""
    if output.is_text and len(output.text) <= cap:
        return output.text, None
    whole, fate = None, "the rest is not kept"
    if keep is not None:
        try:
            whole = await keep(output.whole[:MAX_KEPT_BYTES])
            kept_all = len(output.whole) <= MAX_KEPT_BYTES
            fate = "the whole is kept" if kept_all else "the first 64 MiB are kept"
        except Exception as error:  # the tool has run: its answer must not be lost
            log.error("tool.output_not_kept", exc_info=error)
            fate = "the rest could not be kept"
    return output.capped(cap, fate), whole
