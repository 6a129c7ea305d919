"""The eight numbered states, which moves there are, and a history of them (spec 4.2). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from activities.contracts import JsonObject
from workflows.kernel.errors import ExecutionError, MaxIterationsExceeded

__all__ = ["MAX_ITERATIONS_EXCEEDED", "MOVES", "TERMINAL", "Fsm", "S"]

MAX_ITERATIONS_EXCEEDED = "Max iterations exceeded"


class S(Enum):
    """The states of spec 4.2; the value is the number that the history speaks of."""

    INTAKE = 0
    PLAN = 1
    DECIDE = 2
    EXECUTE = 3
    OBSERVE = 4
    LOOP_CHECK = 5
    FINALIZE = 6
    HALT = 7


TERMINAL = frozenset({S.FINALIZE, S.HALT})
MOVES: Mapping[S, frozenset[S]] = {
    S.INTAKE: frozenset({S.PLAN}),
    S.PLAN: frozenset({S.DECIDE, S.HALT}),
    S.DECIDE: frozenset({S.EXECUTE, S.FINALIZE, S.HALT}),
    S.EXECUTE: frozenset({S.OBSERVE, S.FINALIZE, S.HALT}),
    S.OBSERVE: frozenset({S.LOOP_CHECK}),
    S.LOOP_CHECK: frozenset({S.EXECUTE, S.FINALIZE, S.HALT}),
    S.FINALIZE: frozenset(),
    S.HALT: frozenset(),
}


def _state(number: int) -> S | None:
    return S(number) if number in {state.value for state in S} else None


@dataclass(frozen=True, slots=True)
class Fsm:
    """Where a run is, how it came there, and how often EXECUTE was entered; each change gives a new one."""

    state: int = S.INTAKE.value
    iteration_count: int = 0
    max_iterations: int = 50
    history: tuple[JsonObject, ...] = ()
    """Entries `{from, to, reason, iteration}` with the numbers of the states."""

    @property
    def state_name(self) -> str:
        """The state's name; `UNKNOWN` for a number that is none."""
        found = _state(self.state)
        return found.name if found else "UNKNOWN"

    @property
    def terminal(self) -> bool:
        """No move leads away."""
        return _state(self.state) in TERMINAL

    def transition_to(self, state: int, reason: str = "") -> Fsm:
        """The move, with its entry in the history; raises ExecutionError for one that is not allowed."""
        here, there = _state(self.state), _state(state)
        if here is None or there is None or there not in MOVES[here]:
            target = there.name if there else f"UNKNOWN ({state})"
            raise ExecutionError(f"Invalid transition from {self.state_name} to {target}")
        entry: JsonObject = {
            "from": self.state,
            "to": state,
            "reason": reason,
            "iteration": self.iteration_count,
        }
        return replace(self, state=state, history=(*self.history, entry))

    def increment_iteration(self) -> Fsm:
        """One more iteration; raises MaxIterationsExceeded when that passes the maximum (spec 4.6)."""
        if self.iteration_count >= self.max_iterations:
            raise MaxIterationsExceeded(MAX_ITERATIONS_EXCEEDED)
        return replace(self, iteration_count=self.iteration_count + 1)

    def reset(self) -> Fsm:
        """Back to INTAKE; history and counter are emptied, the maximum stays."""
        return Fsm(max_iterations=self.max_iterations)
