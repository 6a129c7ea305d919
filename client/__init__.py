"""What people hold: the SDK, the CLI and the embedded server.

The names are imported when they are used, so that the command line starts fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from activities.contracts import ModelSpec
    from client.agent import AgentClient
    from client.errors import Refused
    from client.keys import Speaker
    from client.sending import Sent
    from workflows.api import AgentResult, AgentStatus, AgentTask, Limits
    from workflows.people import Approvals, Command, CommandDone, Decided, Decision, People, Remember, Request

__all__ = [
    "AgentClient", "AgentResult", "AgentStatus", "AgentTask", "Approvals", "Command", "CommandDone",
    "Decided", "Decision", "Limits", "ModelSpec", "People", "Refused", "Remember", "Request", "Sent",
    "Speaker",
]  # fmt: skip

_PEOPLE = ("Approvals", "Command", "CommandDone", "Decided", "Decision", "People", "Remember", "Request")
_HOMES = {
    "AgentClient": "client.agent",
    "ModelSpec": "activities.contracts",
    "Refused": "client.errors",
    "Sent": "client.sending",
    "Speaker": "client.keys",
    **dict.fromkeys(_PEOPLE, "workflows.people"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'client' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES.get(name, "workflows.api")), name)
