"""The machine `react`: think, check the thought, act, observe, commit (spec 1)."""

from workflows.machines.react.context import Options, React, ReasoningStep
from workflows.machines.react.machine import MACHINE, S, react_machine
from workflows.machines.react.prompt import JSON_OR_LABELS, ReplyFormat
from workflows.machines.react.reply import BadReply, Thought
from workflows.machines.react.rules import Rule, RuleSpec

__all__ = [
    "JSON_OR_LABELS",
    "MACHINE",
    "BadReply",
    "Options",
    "React",
    "ReasoningStep",
    "ReplyFormat",
    "Rule",
    "RuleSpec",
    "S",
    "Thought",
    "react_machine",
]
