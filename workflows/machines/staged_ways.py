"""The ways out of a stage: the events of its exits, and what the pass limit makes of them (spec 3.8)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from activities.contracts import CallModel, EffectFailed, JsonObject
from activities.transcript import Transcript
from workflows.kernel.fields import Patch
from workflows.kernel.machine import At
from workflows.machines.staged_context import FAILED, Degradation
from workflows.machines.staged_events import WRONG_EXIT, PassesExhausted, StageFailed
from workflows.machines.staged_options import Options, Stage

__all__ = ["Left", "Ways"]

Left = tuple[Patch, object]
"""A stage's patch, and the event that ends its run."""


@dataclass(frozen=True, slots=True)
class Ways:
    """How one stage is left."""

    stage: Stage
    options: Options
    entry: str
    """The lifecycle in which a pass begins."""
    events: Mapping[str, Callable[..., Any]]
    """Lifecycle -> the class of the events that lead there."""

    def ask(self, at: At, transcript: Transcript, **more: Any) -> CallModel:
        """A call of the stage's model; `more` is what else the call has."""
        return CallModel(
            role=self.stage.model_role,
            transcript=transcript,
            attempts=self.options.max_model_attempts,
            label=f"{self.stage.name} #{at.step}",
            **more,
        )

    def answering(self, at: At) -> bool:
        """This is the pass that has to answer."""
        return self.options.on_max_iterations == "force_answer" and self.is_last(at)

    def is_last(self, at: At) -> bool:
        """No pass is allowed after this one. A pass is a step of the machine."""
        return at.step >= self.options.max_iterations

    def pick(self, wanted: str, *avoid: str) -> str:
        """The exit that is wanted, or else the first that is not to be avoided."""
        exits = self.stage.targets
        others = [target for target in exits if target not in avoid]
        return wanted if wanted in exits else (others or exits)[0]

    def to(self, at: At, target: str, patch: Patch, *notes: Degradation, reason: str = "") -> Left:
        """Leave for a lifecycle; where no pass is left, not for the next one."""
        if target == FAILED:
            return patch, StageFailed(f"the stage {self.stage.name} asks for {FAILED}")
        if target == self.entry and target in self.stage.targets and self.is_last(at):
            others = [other for other in self.stage.targets if other != self.entry]
            if self.options.on_max_iterations == "fail" or not others:
                return _without_lifecycle(patch), self._exhausted()
            target, patch = others[0], _without_lifecycle(patch)
        return patch, self.events[target](reason=reason, degraded=notes)

    def astray(self, patch: Patch, chosen: object) -> Left:
        """The stage names no exit of its own: the row refuses that, behind all that the patch may have
        wrong (R-002-7, step 7)."""
        what = f"asks for {chosen[:100]!r}" if isinstance(chosen, str) else "does not say where the run goes"
        expected = " or ".join(self.stage.targets)
        problem = (
            f"the stage {self.stage.name} {what}; by its exits it may lead to {expected}, or to {FAILED}"
        )
        return patch, StageFailed(problem, code=WRONG_EXIT)

    def _exhausted(self) -> PassesExhausted:
        most = self.options.max_iterations
        return PassesExhausted(
            f"{self.stage.name} wants another pass after {most}, the most that are allowed; "
            f"raise max_iterations, or let the last pass answer: on_max_iterations: force_answer",
            details={"max_iterations": most},
        )

    def fail(self, problem: str, patch: Patch | None = None, **details: Any) -> Left:
        """The stage cannot do its work: StageError (spec 3.7)."""
        given: JsonObject = details
        return patch or {}, StageFailed(problem, details=given)

    def note(self, code: str, message: str) -> Degradation:
        """What the orchestrator is to note of this stage."""
        return Degradation(code=code, stage=self.stage.name, message=message[:500])

    def failed(self, c: Any, failure: EffectFailed, at: At) -> Left:
        """An effect could not be performed; the cause is kept."""
        return self.fail(
            f"{failure.type}: {failure.message}",
            error=failure.error,
            type=failure.type,
            attempts=failure.attempts,
        )


def _without_lifecycle(patch: Patch) -> Patch:
    """The orchestrator has decided otherwise (R-002-7, step 8)."""
    return {name: value for name, value in patch.items() if name != "lifecycle"}
