"""What authors of machines, tools, tests and programs need, under one name. It only re-exports, lazily.

from ratchet import AskModel, Context, Event, Machine, Run, Visit, do, state      # a machine
from ratchet import Tool                                                          # a tool
from ratchet import ModelCall, ModelReplied, Provider, ProviderError                  # a model provider
from ratchet import Local, ScriptedModel, load_agent                              # a test
from ratchet import AgentClient                                                   # a program
from ratchet import RatchetPlugin, Settings                                       # a worker of one's own
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from activities.contracts import AskModel as AskModel
    from activities.contracts import AskPerson as AskPerson
    from activities.contracts import CallTools as CallTools
    from activities.contracts import EffectFailed as EffectFailed
    from activities.contracts import InnerLimits as InnerLimits
    from activities.contracts import JsonObject as JsonObject
    from activities.contracts import KernelError as KernelError
    from activities.contracts import Message as Message
    from activities.contracts import ModelReplied as ModelReplied
    from activities.contracts import ModelSpec as ModelSpec
    from activities.contracts import NativeCall as NativeCall
    from activities.contracts import RelativePath as RelativePath
    from activities.contracts import RunCode as RunCode
    from activities.contracts import RunMachine as RunMachine
    from activities.contracts import Say as Say
    from activities.contracts import ScriptedReply as ScriptedReply
    from activities.contracts import Together as Together
    from activities.contracts import ToolCall as ToolCall
    from activities.contracts import ToolResult as ToolResult
    from activities.contracts import TransientError as TransientError
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
    from client.agents.agentfile import load_agent as load_agent
    from client.agents.purity import ImpureMachine as ImpureMachine
    from client.errors import CodeChanged as CodeChanged
    from client.errors import DuplicateRun as DuplicateRun
    from client.errors import MachineBug as MachineBug
    from client.errors import NoWorker as NoWorker
    from client.errors import RatchetError as RatchetError
    from client.errors import Refused as Refused
    from client.errors import RunFailed as RunFailed
    from client.errors import RunNotBegun as RunNotBegun
    from client.errors import RunRefused as RunRefused
    from client.errors import ServerBusy as ServerBusy
    from client.errors import ServerError as ServerError
    from client.errors import StoreNotShared as StoreNotShared
    from client.errors import UnknownRun as UnknownRun
    from client.errors import Unreachable as Unreachable
    from client.errors import Unreadable as Unreadable
    from client.errors import UsageError as UsageError
    from client.errors import WorkersBusy as WorkersBusy
    from client.history.fork import ForkChanges as ForkChanges
    from client.keys import signer as signer
    from client.plugin import RatchetPlugin as RatchetPlugin
    from client.sdk.agent import AgentClient as AgentClient
    from client.sdk.local import Local as Local
    from client.sdk.local import ScriptedModel as ScriptedModel
    from client.sdk.local import Unanswered as Unanswered
    from client.sdk.local import every as every
    from client.sdk.local import tool_call as tool_call
    from workflows.api import AgentSpec as AgentSpec
    from workflows.api import AgentTask as AgentTask
    from workflows.api import Limits as Limits
    from workflows.api import RunResult as RunResult
    from workflows.api import RunStatus as RunStatus
    from workflows.kernel.context import Context as Context
    from workflows.kernel.errors import AgentError as AgentError
    from workflows.kernel.errors import BadPatch as BadPatch
    from workflows.kernel.errors import Closed as Closed
    from workflows.kernel.errors import DefinitionError as DefinitionError
    from workflows.kernel.errors import Drifted as Drifted
    from workflows.kernel.errors import EffectError as EffectError
    from workflows.kernel.errors import EmptyVisit as EmptyVisit
    from workflows.kernel.errors import ExecutionError as ExecutionError
    from workflows.kernel.errors import FatalError as FatalError
    from workflows.kernel.errors import InputRefused as InputRefused
    from workflows.kernel.errors import InvalidTransition as InvalidTransition
    from workflows.kernel.errors import InvariantViolated as InvariantViolated
    from workflows.kernel.errors import LimitExceeded as LimitExceeded
    from workflows.kernel.errors import MachineError as MachineError
    from workflows.kernel.errors import MaxIterationsExceeded as MaxIterationsExceeded
    from workflows.kernel.errors import ModelError as ModelError
    from workflows.kernel.errors import NoTransition as NoTransition
    from workflows.kernel.errors import NotRestored as NotRestored
    from workflows.kernel.errors import PolicyViolation as PolicyViolation
    from workflows.kernel.errors import RecoverableError as RecoverableError
    from workflows.kernel.errors import RunError as RunError
    from workflows.kernel.errors import StageError as StageError
    from workflows.kernel.errors import ToolNotFound as ToolNotFound
    from workflows.kernel.errors import UndeclaredAccess as UndeclaredAccess
    from workflows.kernel.errors import UnknownAction as UnknownAction
    from workflows.kernel.log import Record as Record
    from workflows.kernel.machine import Event as Event
    from workflows.kernel.machine import Exit as Exit
    from workflows.kernel.machine import Machine as Machine
    from workflows.kernel.machine import Run as Run
    from workflows.kernel.machine import RunInput as RunInput
    from workflows.kernel.machine import State as State
    from workflows.kernel.machine import Visit as Visit
    from workflows.kernel.machine import VisitEnd as VisitEnd
    from workflows.kernel.machine import state as state
    from workflows.kernel.plain import StateMachine as StateMachine
    from workflows.kernel.rollback import restored_context as restored_context
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
    from workflows.task import InvalidTask as InvalidTask

_HOMES = {
    "activities.contracts": (
        "AskModel", "AskPerson", "CallTools", "EffectFailed", "InnerLimits", "JsonObject", "KernelError",
        "Message", "ModelReplied", "ModelSpec", "RelativePath", "RunCode", "RunMachine", "Say",
        "ScriptedReply", "Together", "NativeCall", "ToolResult", "ToolCall", "TransientError", "Usage", "do",
    ),
    "activities.provider": ("ModelCall", "Provider", "ProviderError"),
    "activities.settings": ("Settings",),
    "activities.tools": (
        "Happened", "NotHappened", "OutcomeUnknown", "Tool", "ToolCallContext", "ToolReturn",
    ),
    "client.sdk.agent": ("AgentClient",),
    "client.agents.agentfile": ("load_agent",),
    "client.errors": (
        "CodeChanged", "DuplicateRun", "MachineBug", "NoWorker", "RatchetError", "Refused", "RunFailed",
        "RunNotBegun", "RunRefused", "ServerBusy", "ServerError", "StoreNotShared", "UnknownRun",
        "Unreachable", "Unreadable", "UsageError", "WorkersBusy",
    ),
    "client.history.fork": ("ForkChanges",),
    "client.keys": ("signer",),
    "client.sdk.local": ("Local", "ScriptedModel", "Unanswered", "every", "tool_call"),
    "client.agents.purity": ("ImpureMachine",),
    "client.plugin": ("RatchetPlugin",),
    "workflows.api": ("AgentSpec", "AgentTask", "Limits", "RunResult", "RunStatus"),
    "workflows.kernel.context": ("Context",),
    "workflows.kernel.errors": (
        "AgentError", "BadPatch", "Closed", "DefinitionError", "Drifted", "EffectError", "EmptyVisit",
        "ExecutionError", "FatalError", "InputRefused", "InvalidTransition", "InvariantViolated",
        "LimitExceeded", "MachineError", "MaxIterationsExceeded", "ModelError", "NoTransition", "NotRestored",
        "PolicyViolation", "RecoverableError", "RunError", "StageError", "ToolNotFound", "UndeclaredAccess",
        "UnknownAction",
    ),
    "workflows.kernel.log": ("Record",),
    "workflows.kernel.machine": (
        "Event", "Exit", "Machine", "VisitEnd", "Run", "RunInput", "State", "Visit", "state",
    ),
    "workflows.kernel.plain": ("StateMachine",),
    "workflows.kernel.rollback": ("restored_context",),
    "workflows.machines.react": ("BadReply", "ReplyFormat", "Thought", "react_machine"),
    "workflows.machines.react.rules": ("Rule", "RuleSpec"),
    "workflows.people": (
        "Approvals", "Command", "Decided", "Decision", "People", "Request", "StandingApproval",
    ),
    "workflows.task": ("InvalidTask",),
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
