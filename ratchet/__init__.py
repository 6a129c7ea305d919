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
    from activities.provider import ModelCall as ModelCall
    from activities.provider import Provider as Provider
    from activities.provider import ProviderError as ProviderError
    from activities.settings import Settings as Settings
    from activities.tools import Happened as Happened
    from activities.tools import NotHappened as NotHappened
    from activities.tools import OutcomeUnknown as OutcomeUnknown
    from activities.tools import Resource as Resource
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
    from client.errors import TaskFails as TaskFails
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
    from workflows.kernel.labels import Labels as Labels
    from workflows.machines.authoring import *  # noqa: F403  # `__all__` there says which
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
    "activities.provider": ("ModelCall", "Provider", "ProviderError"),
    "activities.settings": ("Settings",),
    "activities.tools": (
        "Happened", "NotHappened", "OutcomeUnknown", "Resource", "Tool", "ToolCallContext", "ToolReturn",
    ),
    "client.sdk.agent": ("AgentClient",),
    "client.agents.agentfile": ("load_agent",),
    "client.errors": (
        "CodeChanged", "DuplicateRun", "MachineBug", "NoWorker", "RatchetError", "Refused", "RunFailed",
        "RunNotBegun", "RunRefused", "ServerBusy", "ServerError", "StoreNotShared", "TaskFails",
        "UnknownRun", "Unreachable", "Unreadable", "UsageError", "WorkersBusy",
    ),
    "client.history.fork": ("ForkChanges",),
    "client.keys": ("signer",),
    "client.sdk.local": ("Local", "ScriptedModel", "Unanswered", "every", "tool_call"),
    "client.agents.purity": ("ImpureMachine",),
    "client.plugin": ("RatchetPlugin",),
    "workflows.api": ("AgentSpec", "AgentTask", "Limits", "RunResult", "RunStatus"),
    "workflows.kernel.labels": ("Labels",),
    "workflows.machines.authoring": (
        "AgentError", "Append", "AskModel", "AskPerson", "BadPatch", "CallTools", "Closed", "Context",
        "DefinitionError", "Drifted", "Effect", "EffectError", "EffectFailed", "EmptyVisit", "Event",
        "ExecutionError", "Exit", "Extensions", "FatalError", "InnerLimits", "InputRefused",
        "InvalidTransition", "InvariantViolated", "JsonObject", "KernelError", "LimitExceeded", "Machine",
        "MachineError", "MaxIterationsExceeded", "Message", "ModelError", "ModelReplied", "ModelSpec",
        "NativeCall", "NoTransition", "NotRestored", "Patch", "PolicyViolation", "Property", "Record",
        "RecoverableError", "RelativePath", "Run", "RunCode", "RunError", "RunInput", "RunMachine", "Say",
        "Scenario", "ScriptedReply", "StageError", "State", "StateMachine", "Together", "ToolCall",
        "ToolNotFound", "ToolResult", "ToolSpec", "TransientError", "UndeclaredAccess", "UnknownAction",
        "Usage", "Visit", "VisitEnd", "do", "restored_context", "state",
    ),
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
