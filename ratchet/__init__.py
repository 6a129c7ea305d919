"""What authors of machines, tools, tests and programs need, under one name. It only re-exports, lazily.

from ratchet import AskModel, Context, Event, Machine, Run, Visit, do, state      # a machine
from ratchet import Tool                                                          # a tool
from ratchet import ModelCall, ModelReplied, Provider, ProviderError                  # a model provider
from ratchet import Local, ScriptedModel, load_agent                              # a test
from ratchet import AgentClient                                                   # a program
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from activities.contracts import AskModel as AskModel
    from activities.contracts import AskPerson as AskPerson
    from activities.contracts import CallTools as CallTools
    from activities.contracts import InnerLimits as InnerLimits
    from activities.contracts import Message as Message
    from activities.contracts import ModelReplied as ModelReplied
    from activities.contracts import ModelSpec as ModelSpec
    from activities.contracts import RelativePath as RelativePath
    from activities.contracts import RunCode as RunCode
    from activities.contracts import RunMachine as RunMachine
    from activities.contracts import Say as Say
    from activities.contracts import Together as Together
    from activities.contracts import ToolCall as ToolCall
    from activities.contracts import ToolResult as ToolResult
    from activities.contracts import ToolRun as ToolRun
    from activities.contracts import Usage as Usage
    from activities.contracts import do as do
    from activities.provider import ModelCall as ModelCall
    from activities.provider import Provider as Provider
    from activities.provider import ProviderError as ProviderError
    from activities.settings import Settings as Settings
    from activities.tools import Happened as Happened
    from activities.tools import NotHappened as NotHappened
    from activities.tools import OutcomeUnknown as OutcomeUnknown
    from activities.tools import Tool as Tool
    from activities.tools import ToolCallContext as ToolCallContext
    from activities.tools import ToolReturn as ToolReturn
    from activities.tools import TransientError as TransientError
    from client.agent import AgentClient as AgentClient
    from client.agentfile import load_agent as load_agent
    from client.errors import RatchetError as RatchetError
    from client.errors import Refused as Refused
    from client.history.fork import ForkChanges as ForkChanges
    from client.keys import signer as signer
    from client.local import Local as Local
    from client.local import ScriptedModel as ScriptedModel
    from client.local import every as every
    from client.local import tool_call as tool_call
    from workflows.api import AgentSpec as AgentSpec
    from workflows.api import AgentTask as AgentTask
    from workflows.api import Limits as Limits
    from workflows.api import RunResult as RunResult
    from workflows.api import RunStatus as RunStatus
    from workflows.kernel.context import Context as Context
    from workflows.kernel.errors import AgentError as AgentError
    from workflows.kernel.errors import DefinitionError as DefinitionError
    from workflows.kernel.errors import EffectError as EffectError
    from workflows.kernel.errors import FatalError as FatalError
    from workflows.kernel.errors import MachineError as MachineError
    from workflows.kernel.errors import RecoverableError as RecoverableError
    from workflows.kernel.log import Record as Record
    from workflows.kernel.machine import Event as Event
    from workflows.kernel.machine import Exit as Exit
    from workflows.kernel.machine import Machine as Machine
    from workflows.kernel.machine import Outcome as Outcome
    from workflows.kernel.machine import Run as Run
    from workflows.kernel.machine import RunInput as RunInput
    from workflows.kernel.machine import State as State
    from workflows.kernel.machine import Visit as Visit
    from workflows.kernel.machine import state as state
    from workflows.kernel.plain import StateMachine as StateMachine
    from workflows.machines.react import BadReply as BadReply
    from workflows.machines.react import ReplyFormat as ReplyFormat
    from workflows.machines.react import Thought as Thought
    from workflows.machines.react import react_machine as react_machine
    from workflows.machines.react.rules import Rule as Rule
    from workflows.machines.react.rules import RuleSpec as RuleSpec
    from workflows.people import Approvals as Approvals
    from workflows.people import Command as Command
    from workflows.people import Decided as Decided
    from workflows.people import Decision as Decision
    from workflows.people import People as People
    from workflows.people import Request as Request
    from workflows.people import StandingApproval as StandingApproval

_HOMES = {
    "activities.contracts": (
        "AskModel", "AskPerson", "CallTools", "InnerLimits", "Message", "ModelReplied", "ModelSpec",
        "RelativePath", "RunCode", "RunMachine", "Say", "Together", "ToolCall", "ToolResult", "ToolRun",
        "Usage", "do",
    ),
    "activities.provider": ("ModelCall", "Provider", "ProviderError"),
    "activities.settings": ("Settings",),
    "activities.tools": (
        "Happened", "NotHappened", "OutcomeUnknown", "Tool", "ToolCallContext", "ToolReturn",
        "TransientError",
    ),
    "client.agent": ("AgentClient",),
    "client.agentfile": ("load_agent",),
    "client.errors": ("RatchetError", "Refused"),
    "client.history.fork": ("ForkChanges",),
    "client.keys": ("signer",),
    "client.local": ("Local", "ScriptedModel", "every", "tool_call"),
    "workflows.api": ("AgentSpec", "AgentTask", "Limits", "RunResult", "RunStatus"),
    "workflows.kernel.context": ("Context",),
    "workflows.kernel.errors": (
        "AgentError", "DefinitionError", "EffectError", "FatalError", "MachineError", "RecoverableError",
    ),
    "workflows.kernel.log": ("Record",),
    "workflows.kernel.machine": (
        "Event", "Exit", "Machine", "Outcome", "Run", "RunInput", "State", "Visit", "state",
    ),
    "workflows.kernel.plain": ("StateMachine",),
    "workflows.machines.react": ("BadReply", "ReplyFormat", "Thought", "react_machine"),
    "workflows.machines.react.rules": ("Rule", "RuleSpec"),
    "workflows.people": (
        "Approvals", "Command", "Decided", "Decision", "People", "Request", "StandingApproval",
    ),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)  # noqa: PLE0605  # one table serves both


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ratchet' has no attribute {name!r}; it has {', '.join(__all__)}")
    try:
        return getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        package = import_module(_HOME[name].partition(".")[0])
        if error.name != _HOME[name]:
            raise
        raise ImportError(
            f"{', '.join(package.__path__)} hides Ratchet's package {package.__name__!r}: a program cannot "
            "have both (docs/embedding.md)"
        ) from error
