"""What people hold: the SDK, the CLI and the embedded server.

The names are imported when they are used, so that the command line starts fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from activities.contracts import ModelSpec
    from activities.settings import Settings
    from client.agent import AgentClient
    from client.agentfile import AgentFile, load_agent
    from client.errors import RatchetError, Refused
    from client.fork import Changes
    from client.inbox import Ask, InboxLine
    from client.keys import Speaker
    from client.listing import RunLine
    from client.sending import Sent
    from client.server import Ports
    from workflows.api import AgentResult, AgentStatus, AgentTask, Limits
    from workflows.kernel.log import Record
    from workflows.people import (
        Approvals,
        Command,
        CommandDone,
        Condition,
        Decided,
        Decision,
        People,
        Remember,
        Request,
    )

__all__ = [
    "AgentClient", "AgentFile", "AgentResult", "AgentStatus", "AgentTask", "Approvals", "Ask", "Changes",
    "Command", "CommandDone", "Condition", "Decided", "Decision", "InboxLine", "Limits", "ModelSpec",
    "People", "Ports", "RatchetError", "Record", "Refused", "Remember", "Request", "RunLine", "Sent",
    "Settings", "Speaker", "load_agent",
]  # fmt: skip

_HOMES = {
    "activities.contracts": ("ModelSpec",),
    "activities.settings": ("Settings",),
    "client.agent": ("AgentClient",),
    "client.agentfile": ("AgentFile", "load_agent"),
    "client.errors": ("RatchetError", "Refused"),
    "client.fork": ("Changes",),
    "client.inbox": ("Ask", "InboxLine"),
    "client.keys": ("Speaker",),
    "client.listing": ("RunLine",),
    "client.sending": ("Sent",),
    "client.server": ("Ports",),
    "workflows.api": ("AgentResult", "AgentStatus", "AgentTask", "Limits"),
    "workflows.kernel.log": ("Record",),
    "workflows.people": (
        "Approvals", "Command", "CommandDone", "Condition", "Decided", "Decision", "People", "Remember",
        "Request",
    ),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'client' has no attribute {name!r}; it has {', '.join(__all__)}")
