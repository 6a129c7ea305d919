"""What people hold: the SDK, agent files and the command line.

Names are imported when they are used, so that the command line starts fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from activities.contracts import ModelSpec as ModelSpec
    from activities.settings import Settings as Settings
    from client.agent import AgentClient as AgentClient
    from client.agentfile import AgentFile as AgentFile
    from client.agentfile import load_agent as load_agent
    from client.embedded import Ports as Ports
    from client.errors import RatchetError as RatchetError
    from client.errors import Refused as Refused
    from client.history.fork import ForkChanges as ForkChanges
    from client.keys import Signer as Signer
    from client.keys import signer as signer
    from client.listing import RequestSummary as RequestSummary
    from client.listing import RunLine as RunLine
    from client.sending import SentSignal as SentSignal
    from workflows.api import AgentTask as AgentTask
    from workflows.api import Limits as Limits
    from workflows.api import RunResult as RunResult
    from workflows.api import RunStatus as RunStatus
    from workflows.kernel.log import Record as Record
    from workflows.people import Approvals as Approvals
    from workflows.people import Command as Command
    from workflows.people import CommandDone as CommandDone
    from workflows.people import Decided as Decided
    from workflows.people import Decision as Decision
    from workflows.people import People as People
    from workflows.people import Request as Request
    from workflows.people import StandingApproval as StandingApproval

_HOMES = {
    "activities.contracts": ("ModelSpec",),
    "activities.settings": ("Settings",),
    "client.agent": ("AgentClient",),
    "client.agentfile": ("AgentFile", "load_agent"),
    "client.embedded": ("Ports",),
    "client.errors": ("RatchetError", "Refused"),
    "client.history.fork": ("ForkChanges",),
    "client.keys": ("Signer", "signer"),
    "client.listing": ("RequestSummary", "RunLine"),
    "client.sending": ("SentSignal",),
    "workflows.api": ("AgentTask", "Limits", "RunResult", "RunStatus"),
    "workflows.kernel.log": ("Record",),
    "workflows.people": (
        "Approvals", "Command", "CommandDone", "Decided", "Decision", "People", "Request",
        "StandingApproval",
    ),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)  # noqa: PLE0605  # one table serves both


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'client' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)
