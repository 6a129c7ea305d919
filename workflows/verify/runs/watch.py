"""Watches a run of the engine for what explorations look for: broken rules, and the machine's properties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from activities.contracts import Effect
from workflows.engine.loop import Drive
from workflows.kernel.errors import MachineError, author_line_of, error_text
from workflows.kernel.properties import Moment, Property
from workflows.kernel.snapshot import Program, Snapshot, Suspension
from workflows.kernel.transition import advance
from workflows.verify.runs.moments import Exchange, PropertyBug, bug_of, exit_problem, moments_of

__all__ = ["Broken", "Watch"]


@dataclass(frozen=True, slots=True)
class Broken:
    """Something that must hold, and did not."""

    name: str
    """The property, or what is built in."""
    answers: int
    """After how many answers."""
    detail: str = ""
    author_line: str = ""
    """The author's file and line, where there is one."""


class Watch:
    """Watches one run from its beginning; inner runs are not looked at."""

    def __init__(self, properties: Sequence[Property]) -> None:
        self.properties = tuple(properties)
        self.memories = [one.first for one in properties]
        self.broken: list[Broken] = []
        """In the order in which it came."""
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
            self._advanced(before, Exchange(before.snapshot.state, effect, "", answer), drive.run.host.now())
            delivered(answer)
            deliver(answer, effect)

        drive.deliver = watched  # type: ignore[method-assign]  # the loop calls it in several places

    def _observe(self, snapshot: Snapshot, what: Any) -> None:
        if what is None and not snapshot.moments:
            self._entered.append(snapshot)

    def _advanced(self, before: Suspension, exchange: Exchange, now: float) -> None:
        """The kernel is pure: the same answer is given to the same suspension once more, and looked at."""
        self._entered.clear()
        self.answers += 1
        assert self._program is not None
        alike = replace(before, program=self._program, live=None)
        try:
            after = advance(alike, exchange.answer, now=now, effect=exchange.effect)
        except Exception as error:  # noqa: BLE001  # the run itself raises it next, and says where
            self.raised(error)
            return
        for record in after.records:
            if record.error and record.event != "Closed":
                self._break(record.event, record.error, after.author_line)
        name, detail = exit_problem(after)
        if name:
            self._break(name, detail)
        self._note((before, exchange), after)

    def raised(self, error: Exception) -> None:
        """The machine's code has raised this."""
        if isinstance(error, MachineError):
            self._break(type(error).__name__, str(error), error.author_line)
        else:
            author_line = author_line_of(error, None, None)
            self._break("no exception", error_text(error), author_line)

    def _note(self, before: tuple[Suspension, Exchange] | None, after: Suspension) -> None:
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

    def _break(self, name: str, detail: str = "", author_line: str = "") -> None:
        self.broken.append(Broken(name, self.answers, detail, author_line))
