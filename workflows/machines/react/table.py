"""ReAct's table: its states, what can happen, and where that leads (spec 1.2, 1.3)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from workflows.machines.authoring import Event


class S(Enum):
    """The nodes of spec 1.2."""

    THOUGHT = "thought"
    VALIDATE = "validate"
    ACTION = "action"
    OBSERVATION = "observation"
    COMMIT = "commit"
    HUMAN_APPROVAL = "human_approval"
    END = "__end__"


class Drafted(Event):
    """A step was appended."""


class Accepted(Event):
    """No rule is violated."""


class Rejected(Event):
    """Only retryable rules are violated, and another try is allowed."""


class PersonNeeded(Event):
    """Too many thoughts were rejected; a person has to look."""


class Acted(Event):
    """The tool has run, or there was nothing to run."""


class Observed(Event):
    """The outcome is in the conversation."""


class StepTaken(Event):
    """The step is closed and the run goes on."""


class Continued(Event):
    """A person lets the run go on."""


class Ended(Event):
    """The run is over; the context's `exit_reason` says why."""


TABLE: Mapping[Enum, Mapping[type[Event], Enum]] = {
    S.THOUGHT: {Drafted: S.VALIDATE, Ended: S.END},
    S.VALIDATE: {Accepted: S.ACTION, Rejected: S.THOUGHT, PersonNeeded: S.HUMAN_APPROVAL, Ended: S.END},
    S.ACTION: {Acted: S.OBSERVATION, Ended: S.END},
    S.OBSERVATION: {Observed: S.COMMIT},
    S.COMMIT: {StepTaken: S.THOUGHT, PersonNeeded: S.HUMAN_APPROVAL, Ended: S.END},
    S.HUMAN_APPROVAL: {Continued: S.THOUGHT, Ended: S.END},
}
