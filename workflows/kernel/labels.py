"""Labels of a run: is untrusted or private text in its conversation and context, and what brought it? Pure.

A tool says what it brings (`ToolSpec.brings`), the agent what people and the run's input bring (`Labels`).
The kernel notes a label with the answer that brings it, before the machine gets that answer. From then on all
that the run says, writes and calls may be derived from it, so the whole run has the label: a summary of
untrusted text is untrusted, and so is what an inner run is told, and what it answers.

Of each label the first source is kept, in the order in which they came. So labels only grow along a log: each
record has those that it added (`Record.brought`), and the labels of any moment are those of the records that
hold then. That is how a rollback loses them, and a fork gets them. What survives a rollback beside the log
brings its labels again: messages that nobody has heard, what a machine takes over (`on_rollback`), and the
summary in place of older messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from activities.contracts import (
    Answers,
    Effect,
    EffectFailed,
    Label,
    LabelSource,
    MachineEnded,
    Sink,
    Strict,
    Together,
    ToolSpec,
    ToolsReturned,
)
from workflows.kernel.activity_ids import members, tool_calls

__all__ = [
    "NOT_MADE",
    "Labels",
    "ToolLabels",
    "brought",
    "first_of_each",
    "from_run",
    "holds_text",
    "lost_run",
    "names",
]

Sources = tuple[LabelSource, ...]
"""The first source of each label, in the order in which they came."""
NOT_MADE = {"rejected", "expired", "unknown_tool", "bad_arguments"}
"""Errors of calls that were not made: their tools have said nothing."""


# -- what the agent's author says --------------------


class ToolLabels(Strict):
    """What the agent file says of tools, in place of what they say themselves."""

    brings: tuple[Label, ...] | None = Field(
        default=None, max_length=10, description="null: as the tool says", examples=[["untrusted"]]
    )
    sends: Sink | None = Field(default=None, description="null: as the tool says")


class Labels(Strict):
    """Where untrusted and private text comes from, and how far calls send what they are given."""

    input: tuple[Label, ...] = Field(
        default=(),
        max_length=10,
        description="labels of goal, material and what else a run begins with",
        examples=[["untrusted"]],
    )
    people: tuple[Label, ...] = Field(
        default=(),
        max_length=10,
        description="labels of what people write to a run; empty: it is trusted",
        examples=[["untrusted"]],
    )
    tools: dict[Annotated[str, StringConstraints(pattern=r"^[^\s\[\]]{1,100}$")], ToolLabels] = Field(
        default_factory=dict,
        max_length=500,
        description="name, with `*` and `?` -> labels; the first that fits counts",
        examples=[{"http_*": {"sends": "external"}}],
    )

    def labelled(self, spec: ToolSpec) -> ToolSpec:
        """The spec with the labels that the agent's author gives the tool."""
        found = next((one for name, one in self.tools.items() if fnmatchcase(spec.name, name)), ToolLabels())
        return spec.model_copy(update=found.model_dump(exclude_none=True))

    def of_input(self, above: Iterable[LabelSource]) -> Sources:
        """What a run begins with; `above`: what the run above it had."""
        return first_of_each((*above, *(LabelSource(label=label) for label in self.input)))

    def of_people(self, by: str, step: int) -> Sources:
        """What this person's text brings."""
        return tuple(LabelSource(label=label, by=by, step=step) for label in self.people)


# -- what comes into a run --------------------


def brought(
    effect: Effect[Any], answer: Any, place: str, step: int, tools: Mapping[str, ToolSpec]
) -> Sources:
    """What an answer brings into the run, also the text of a tool or inner run that failed."""
    match effect, answer:
        case Together(), Answers():
            each = zip(members(effect, place), answer.answers, strict=False)
            return tuple(one for (name, own), its in each for one in brought(own, its, name, step, tools))
        case _, MachineEnded() | EffectFailed():
            return answer.brought
        case _, ToolsReturned():
            made = zip(tool_calls(effect, place), answer.results, strict=False)
            return tuple(
                LabelSource(label=label, tool=result.tool, call=name, step=step)
                for name, result in made
                if result.error not in NOT_MADE and result.tool in tools
                for label in tools[result.tool].brings
            )
    return ()


def first_of_each(sources: Iterable[LabelSource]) -> Sources:
    """The first source of each label, in their order."""
    found: dict[Label, LabelSource] = {}
    for one in sources:
        found.setdefault(one.label, one)
    return tuple(found.values())


def names(sources: Iterable[LabelSource]) -> tuple[Label, ...]:
    """The labels alone."""
    return tuple(one.label for one in first_of_each(sources))


def from_run(sources: Iterable[LabelSource], workflow_id: str) -> Sources:
    """As another run sees the labels of this one."""
    return tuple(one if one.run else one.model_copy(update={"run": workflow_id}) for one in sources)


def lost_run(
    known: Sources, tools: Sequence[str], specs: Mapping[str, ToolSpec], workflow_id: str
) -> Sources:
    """What an inner run may have brought that ended without a result: all that its tools can bring."""
    every = ((name, label) for name in tools if name in specs for label in specs[name].brings)
    own = (
        LabelSource(label=label, tool=name, call="an unknown call", run=workflow_id) for name, label in every
    )
    return first_of_each((*known, *own))


def holds_text(difference: Any) -> bool:
    """There is text among the values. What a machine takes over from a branch that is left are often counts,
    which bring no label, as the ledger brings none."""
    if isinstance(difference, dict):
        return any(holds_text(value) for value in difference.values())
    if isinstance(difference, list | tuple):
        return any(holds_text(value) for value in difference)
    return isinstance(difference, str)
