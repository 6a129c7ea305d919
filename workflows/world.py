"""All that the loop of a run cannot do itself: the clock, waiting, performing, telling others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel

from activities.contracts import Effect, ToolRun
from activities.contracts_people import Compensated, Reconciled
from workflows.kernel.log import Record
from workflows.kernel.stack import Stack
from workflows.people import Command, DoneCall, Moment, Request
from workflows.where import Where

if TYPE_CHECKING:
    from workflows.loop import Loop

__all__ = ["World"]


class World(Protocol):
    """What is around a run: Temporal in production, a few lines of asyncio without it."""

    def now(self) -> float:
        """Seconds since 1970."""

    async def until(self, condition: Callable[[], bool], seconds: float | None, why: str) -> None:
        """Wait until the condition holds, or so many seconds are over; `why` is for people."""

    async def ended(self, task: asyncio.Future[Any]) -> None:
        """Wait until the task is done; also while the run is taken out of memory."""

    async def perform(self, effect: Effect, where: Where, settled: MutableMapping[str, Any]) -> BaseModel:
        """Do it. `settled` holds results by activity id, ToolResults or what models answered side by side:
        such calls are not made, and each call that ends is put there, so that no call is made twice when
        performing is stopped and begun anew.

        Raises asyncio.CancelledError when it was stopped in the middle.
        """

    def stop_soon(self) -> bool:
        """Begin no further call of the effect; True while a call is under way that must not be cut off."""

    def under_way(self) -> tuple[str, ...]:
        """Activity ids of tool calls that were begun and have not ended, also when they were cut off."""

    def in_doubt(self) -> str:
        """The unsafe calls among them, in words; empty: none."""

    def cancelling(self) -> bool:
        """The run was asked to stop from outside."""

    def above(self) -> tuple[tuple[str, str], ...]:
        """The runs that this one is a child run of, at any depth: workflow id and first run id of each."""

    def heard_above(self) -> tuple[str, ...]:
        """Ids of the signed commands that those had when this one began."""

    def child_calls(self) -> tuple[DoneCall, ...]:
        """What the child run that has just ended did outside; empty when that was told before."""

    def child(self) -> str:
        """Workflow id of the child run under way; empty: none."""

    async def tell_child(self, command: Command) -> str:
        """Hand the command on to it as it came; its workflow id, empty when none is there to hear it."""

    def key(self, where: Where, activity_id: str) -> str:
        """The idempotency key of a call."""

    def effect_of(self, tool: str) -> str:
        """What the tool declares of a second run; `unsafe` for a tool that is not known."""

    def undoable(self, tool: str) -> bool:
        """The tool declares a compensation."""

    async def reconcile(self, run: ToolRun, where: Where, activity_id: str) -> Reconciled | None:
        """What the tool itself finds out of a call whose outcome nobody knows; None: it cannot."""

    async def compensate(self, call: DoneCall) -> Compensated:
        """Undo a call; what came of it."""

    async def log(self) -> Sequence[Record]:
        """The whole log, also what the archive has of it; raises ValueError when it cannot be read."""

    def notify(self, moment: Moment, request: Request) -> None:
        """Tell people in the background; never fails."""

    def waits(self, loop: Loop) -> None:
        """Show others what the run waits for, if anything."""

    def full(self) -> bool:
        """The run's history is so long that it should go on with an empty one."""

    async def between(self) -> None:
        """Nothing is under way: a long run goes on with an empty history here."""

    def keep(self, stack: Stack) -> None:
        """A move was made: its records, what it wants done, what people see of it."""
