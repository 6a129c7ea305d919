"""Watches a run of the engine for what explorations look for: broken rules, and the machine's properties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from activities.contracts import Effect
from workflows.engine.loop import Drive
from workflows.kernel.errors import MachineError
from workflows.kernel.properties import Moment, Property
from workflows.kernel.snapshot import Program, Snapshot, Suspension
from workflows.kernel.transition import advance
from workflows.verify.runs.moments import PropertyBug, Turn, bug_of, exit_problem, moments_of

__all__ = ["Watch"]


class Watch:
    """Watches one run from its beginning; inner runs are not looked at."""

    def __init__(self, properties: Sequence[Property]) -> None:
        self.properties = tuple(properties)
        self.memories = [one.first for one in properties]
        self.broken: dict[str, int] = {}
        """Name of the property or of the rule -> after how many answers it was broken."""
        self.answers = 0
        self._entered: list[Snapshot] = []
        self._program: Program | None = None

    def attach(self, drive: Drive, delivered: Callable[[Any], None] = lambda answer: None) -> None:
        """Watch this run, which has not moved yet; `delivered` is told of each answer that it was given."""
        self._program = replace(drive.run.suspension.program, observer=self._observe, lens=None)
        self._note(None, drive.run.suspension)
        deliver = drive.deliver

        def watched(answer: Any, effect: Effect[Any]) -> None:
            before = drive.run.suspension
            self._advanced(before, Turn(before.snapshot.state, effect, "", answer), drive.run.host.now())
            delivered(answer)
            deliver(answer, effect)

        drive.deliver = watched  # type: ignore[method-assign]  # the loop calls it in several places

    def _observe(self, snapshot: Snapshot, what: Any) -> None:
        if what is None and not snapshot.moments:
            self._entered.append(snapshot)

    def _advanced(self, before: Suspension, turn: Turn, now: float) -> None:
        """The kernel is pure: the same answer is given to the same suspension once more, and looked at."""
        self._entered.clear()
        self.answers += 1
        assert self._program is not None
        alike = replace(before, program=self._program, live=None)
        try:
            after = advance(alike, turn.answer, now=now, effect=turn.effect)
        except MachineError as error:
            self._break(type(error).__name__)
            return
        except Exception:  # noqa: BLE001  # the run itself raises it next, and says where
            self._break("no exception")
            return
        for record in after.records:
            if record.error and record.event != "Closed":
                self._break(record.event)
        if name := exit_problem(after)[0]:
            self._break(name)
        self._note((before, turn), after)

    def _note(self, before: tuple[Suspension, Turn] | None, after: Suspension) -> None:
        for moment in moments_of(before, after, self._entered):
            for number, one in enumerate(self.properties):
                self._step(number, one, moment)

    def _step(self, number: int, one: Property, moment: Moment) -> None:
        try:
            self.memories[number], broken = one.step(self.memories[number], moment)
        except Exception as error:
            raise PropertyBug(bug_of(one, moment, error)) from error
        if broken:
            self._break(one.name)

    def _break(self, name: str) -> None:
        self.broken.setdefault(name, self.answers)
