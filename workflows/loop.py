"""The loop of a run with people in command: perform an effect, give the answer back, obey in between. Pure:
what the world does comes in through `World`, so that a run without Temporal is driven by the same code."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Protocol

from pydantic import BaseModel

from activities.contracts import Effect, ToolResult
from workflows.kernel.stack import Stack
from workflows.people import DoneCall, Moment, Request
from workflows.where import Where

__all__ = ["World"]


class World(Protocol):
    """All that the loop cannot do itself."""

    def now(self) -> float:
        """Seconds since 1970."""

    async def until(self, condition: Callable[[], bool], seconds: float | None, why: str) -> None:
        """Wait until the condition holds, or so many seconds are over."""

    async def perform(
        self, effect: Effect, where: Where, settled: MutableMapping[str, ToolResult]
    ) -> BaseModel:
        """Do it. `settled` holds results by activity id: such calls are not made, and each call that ends is
        put there, so that a call is never made again when performing is interrupted and begun anew."""

    def stop_soon(self) -> bool:
        """Begin no further call of the effect; True while a call is under way that must not be cut off."""

    async def reconcile(self, effect: Effect, activity_id: str) -> ToolResult | None:
        """What the tool itself finds out of a call whose outcome nobody knows; None: nothing."""

    async def compensate(self, call: DoneCall) -> str:
        """Undo a call; what came of it, in words."""

    def tell(self, moment: Moment, request: Request) -> None:
        """Notify people in the background; never fails."""

    async def between(self) -> None:
        """Called where nothing is under way: a long run goes on with an empty history here."""

    def keep(self, stack: Stack) -> None:
        """A move was made: its records, what it wants done, what people see of it."""
