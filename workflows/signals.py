"""What people send to a run, by signal and by update: decisions and commands.

A signal is never fatal, and each is in the log: what it did, why it was refused or could not be used, or
that it came before. An update is answered; one that would not count is refused before it costs the history
anything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from activities.text import problems_text
from workflows.engine.loop import Drive
from workflows.engine.run_state import DECISION_FACTS
from workflows.gate.approvals import person_label
from workflows.gate.decisions import Refused
from workflows.people import Command, CommandDone, Decided, Decision

__all__ = ["Messages", "plain"]

M = TypeVar("M", bound=BaseModel)
AT_ONCE = 100
"""Signals that are taken in one workflow task: some 20 ms. Temporal takes a worker that needs 2 s for a task
as stuck, and gives the task out again, for ever; ten thousand signals may have come while no worker ran, or a
busy one."""
EARLY_SECONDS = 1.0
"""How long a decision waits for the request that it is about."""
NEXT_SECONDS = 0.001
"""Seconds until the next ones are taken."""
MAX_KEPT_NAMES = 20
"""Names of unusable signals that `status` shows, also after continue-as-new."""


class Messages:
    """Signals and updates of one run; those that come before it has begun wait."""

    def __init__(self) -> None:
        self.drive: Drive | None = None
        self.unusable: list[str] = []
        self._over = False
        self._waiting: deque[tuple[str, Sequence[Any]]] = deque()
        self._later: asyncio.Task[None] | None = None
        self._taken = (-1, 0)
        """The workflow task, named by the history's length, and how many signals were taken in it."""

    def begin(self, drive: Drive, unusable: Sequence[str] = ()) -> None:
        """The run has begun."""
        self.drive, self.unusable = drive, list(unusable)
        self._take()

    def end(self) -> None:
        """The run is over: whatever comes now is refused."""
        self._over = True

    @property
    def is_busy(self) -> bool:
        """More signals wait than one workflow task takes."""
        return bool(self._waiting)

    # -- signals ------------------------------------------------------------------------------------

    def signal(self, name: str, inputs: Sequence[Any]) -> None:
        """A signal of any name with any number of values."""
        self._waiting.append((name, inputs))
        if self.drive is not None and self._later is None:
            self._take()

    def _take(self) -> None:
        """Take signals in the order in which they came, `AT_ONCE` of them; the others soon."""
        length = workflow.info().get_current_history_length()
        count = self._taken[1] if self._taken[0] == length else 0
        while self._waiting and count < AT_ONCE:
            count += 1
            self._take_one(*self._waiting.popleft())
        self._taken = (length, count)
        if self._waiting and self._later is None:
            self._later = asyncio.create_task(self._take_the_rest())

    async def _take_the_rest(self) -> None:
        while self._waiting and not self._over:
            await workflow.sleep(NEXT_SECONDS)
            self._take()
        self._later = None

    def _take_one(self, name: str, inputs: Sequence[Any]) -> None:
        if self._over or self.drive is None:
            return
        try:
            match name:
                case "decide":
                    _decide(self.drive, Decision.model_validate(_only_value(inputs)))
                case "command":
                    _command(self.drive, Command.model_validate(_only_value(inputs)))
                case _:
                    raise ValueError("this run knows no such signal; it was ignored")
        except Exception as error:  # noqa: BLE001  # a signal in the history would harm the run for ever
            self.unusable = [*self.unusable, name[:100]][-MAX_KEPT_NAMES:]
            problem = problems_text(error) if isinstance(error, ValidationError) else str(error)
            reason = f"{name[:100]!r} with {len(inputs)} values"
            self.drive.run.log_event("UnusableSignal", by="signal", reason=reason, error=problem[:1000])

    # -- updates ------------------------------------------------------------------------------------

    def check_decision(self, inputs: Sequence[Any]) -> None:
        """Raises ApplicationError of type `Refused` for a decision that would not count."""
        decision = _read(Decision, inputs)
        self._check(lambda drive: drive.run.check_decision(decision))

    def check_command(self, inputs: Sequence[Any]) -> None:
        """Raises ApplicationError of type `Refused` for a command that would not count."""
        command = _read(Command, inputs)
        self._check(lambda drive: drive.commands.check(command))

    def _check(self, check: Any) -> None:
        if self._over:
            raise _refusal("The run is over; nothing can be decided or commanded any more.")
        try:
            if self.drive is not None:
                check(self.drive)
        except Refused as refused:
            raise _refusal(str(refused)) from None

    async def decide(self, inputs: Sequence[Any]) -> Decided:
        """Count a decision; the state of its request afterwards. One that is early waits a moment."""
        decision, drive = _read(Decision, inputs), await self._begun()
        if drive.run.is_unknown(decision):
            with suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: self._over or not drive.run.is_unknown(decision), timeout=EARLY_SECONDS
                )
        try:
            return drive.run.decide(decision)
        except Refused as refused:
            raise _refusal(str(refused)) from None

    async def command(self, inputs: Sequence[Any]) -> CommandDone:
        """Put a command into the queue and wait until it is obeyed or refused."""
        command, drive = _read(Command, inputs), await self._begun()
        try:
            queued = drive.commands.put(command)
        except Refused as refused:
            raise _refusal(str(refused)) from None
        await workflow.wait_condition(lambda: queued.is_over)
        if queued.done is None:
            raise _refusal(queued.refused)
        return queued.done

    async def _begun(self) -> Drive:
        if self.drive is None and not self._over:  # else at once, before a deadline that passed meanwhile
            await workflow.wait_condition(lambda: self.drive is not None or self._over)
        self._check(lambda _: None)
        if self.drive is None:
            raise _refusal("The run ended before it began.")
        return self.drive


def _decide(drive: Drive, decision: Decision) -> None:
    length = drive.run.suspension.snapshot.seq
    try:
        drive.run.decide(decision)
    except Refused as refused:
        drive.run.log_refused(decision, str(refused))
    else:
        if drive.run.suspension.snapshot.seq == length:
            about = decision.model_dump(mode="json", include=DECISION_FACTS, exclude_defaults=True)
            drive.run.log_event(
                "RepeatedDecision", by=person_label(decision.by, verified=False), reason=BEFORE, about=about
            )


def _command(drive: Drive, command: Command) -> None:
    if drive.run.command_gate.is_repeat(command):
        about = {"command": command.command, "id": command.id}
        drive.run.log_event(
            "RepeatedCommand", by=person_label(command.by, verified=False), reason=BEFORE, about=about
        )
        return
    try:
        drive.commands.put(command)
    except Refused as refused:
        drive.commands.log_refused(command, person_label(command.by, verified=False), str(refused))


BEFORE = "it came before and counts once"


def plain(value: Any) -> Any:
    """The value that somebody sent. Raises ApplicationError for one that could not be read."""
    if isinstance(value, RawValue):
        return workflow.payload_converter().from_payloads([value.payload], [object])[0]
    return value


def _only_value(inputs: Sequence[Any]) -> Any:
    if len(inputs) != 1:
        raise ValueError(f"expected one JSON object as input, got {len(inputs)} values")
    value = plain(inputs[0])
    if not isinstance(value, dict):
        raise ValueError(f"expected one JSON object as input, got a {type(value).__name__}")
    return value


def _read(kind: type[M], inputs: Sequence[Any]) -> M:
    """The message of an update. Raises ApplicationError of type `Refused`."""
    try:
        return kind.model_validate(_only_value(inputs))
    except ApplicationError:
        raise
    except ValidationError as error:
        raise _refusal(f"not a valid {kind.__name__.lower()}: {problems_text(error)}") from None
    except ValueError as error:
        raise _refusal(str(error)) from None


def _refusal(reason: str) -> ApplicationError:
    """To be raised from None: a cause would be sent with it, and pydantic's repeats what was sent."""
    return ApplicationError(reason, type="Refused", non_retryable=True)
