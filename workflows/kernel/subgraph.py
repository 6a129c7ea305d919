"""A machine as one state of another: declared, not programmed (spec 1.9)."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from activities.contracts import EffectFailed, ErrorClass, InnerLimits, JsonObject, MachineEnded, RunMachine
from workflows.kernel.fields import Patch
from workflows.kernel.machine import At, Event, Machine, Resume, Row, Said, State

__all__ = ["Ended", "Merge", "Subgraph", "merge_answer", "merge_metadata", "preceded"]

C = TypeVar("C", bound=BaseModel)
Merge = Callable[[Any, MachineEnded], Patch]
"""(view of the outer context, how the inner machine ended) -> what of it is kept."""
_NOT_MERGED = {"terminated", "exit_reason"}


@dataclass(frozen=True, slots=True)
class Ended:
    """The inner machine has come to its end."""

    reason: str = ""


def merge_metadata(name: str = "metadata", but: Set[str] = frozenset()) -> Merge:
    """The inner outcome goes into a `MERGE` field: the child wins on equal keys.

    Its `terminated` and `exit_reason` are not merged (R-000-15), nor what `but` names: keys that the
    outer machine counts itself.
    """

    def merge(c: Any, ended: MachineEnded) -> Patch:
        return {name: {key: value for key, value in ended.outcome.items() if key not in _NOT_MERGED | but}}

    return merge


def merge_answer(name: str) -> Merge:
    """The inner answer, or its error in words, goes into a field of texts."""

    def merge(c: Any, ended: MachineEnded) -> Patch:
        return {name: ended.answer if ended.answer is not None else f"Error: {ended.error}"}

    return merge


@dataclass(frozen=True, slots=True, kw_only=True)
class Subgraph:
    """An inner machine with what goes in and what comes out.

    When it cannot be run at all (unknown, nested too deep, broken), it counts as ended with an error.
    """

    machine: str
    machine_version: str | None = None
    goal: str | Callable[[Any], str]
    """Or a function of the view."""
    merge: Merge
    event: Callable[[MachineEnded], Event] = lambda ended: Ended(ended.answer or ended.error or "")
    """What the outer machine goes on with."""
    values: Callable[[Any], JsonObject] = lambda view: {}
    """What of the outer state it begins with."""
    options: JsonObject = field(default_factory=dict)
    instructions: str = ""
    tools: tuple[str, ...] = ()
    roles: dict[str, str] = field(default_factory=dict)
    limits: InnerLimits = field(default_factory=InnerLimits)
    mode: Literal["inline", "child"] = "inline"

    def state(self, *, reads: Set[str] = frozenset(), writes: Set[str] = frozenset(), **more: Any) -> State:
        """The state that runs it; `reads` for goal and values, `writes` for what is merged."""
        classes: tuple[ErrorClass, ...] = ("transient", "recoverable", "fatal", "unknown_outcome")
        failed: dict[ErrorClass, Resume] = dict.fromkeys(classes, self._failed)
        return State(
            enter=self._enter,
            resume=self._resume,
            grants={"run_machine"},
            on_error=failed,
            reads=frozenset(reads),
            writes=frozenset(writes),
            **more,
        )

    def _enter(self, view: Any, at: At) -> Said:
        return RunMachine(
            machine=self.machine,
            machine_version=self.machine_version,
            goal=self.goal if isinstance(self.goal, str) else self.goal(view),
            options=self.options,
            instructions=self.instructions,
            tools_given=self.tools,
            roles=self.roles,
            limits=self.limits,
            values=self.values(view),
            mode=self.mode,
        )

    def _resume(self, view: Any, ended: MachineEnded, at: At) -> Said:
        return self.merge(view, ended), self.event(ended)

    def _failed(self, view: Any, failure: EffectFailed, at: At) -> Said:
        ended = MachineEnded(
            machine=self.machine,
            ok=False,
            exit_reason=failure.type,
            error=f"{failure.type}: {failure.message}",
        )
        return self._resume(view, ended, at)


def preceded(machine: Machine[C], inner: Subgraph, name: str = "preparation") -> Machine[C]:
    """The same machine with an inner one in front of it, as a state of this name, whatever the two are.

    What the inner one answers is folded in as a message from a person would be (`fold_steer`), unless
    its `merge` says more. Raises DefinitionError as any machine does.
    """
    fold = machine.fold_steer

    def merge(c: Any, ended: MachineEnded) -> Patch:
        said = ended.answer if ended.answer is not None else f"Error: {ended.error}"
        told = fold(c, said) if fold else {}
        return {**told, **inner.merge(c, ended)}

    Front = Enum("Front", {"FRONT": name})
    front_state: Enum = Front["FRONT"]
    everything = frozenset(machine.context.model_fields)
    front = replace(inner, merge=merge, event=lambda ended: Ended(ended.answer or ended.error or ""))
    return replace(
        machine,
        initial=front_state,
        states={front_state: front.state(reads=everything, writes=everything), **machine.states},
        table=(Row(front_state, Ended, machine.initial), *machine.rows),
    )
