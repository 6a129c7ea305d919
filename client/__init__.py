"""What people hold: the SDK, the CLI and the embedded server.

The names are imported when they are used, so that the command line starts fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from activities.contracts import ModelSpec
    from client.agent import AgentClient
    from workflows.api import AgentResult, AgentStatus, AgentTask, Limits

__all__ = ["AgentClient", "AgentResult", "AgentStatus", "AgentTask", "Limits", "ModelSpec"]

_HOMES = {"AgentClient": "client.agent", "ModelSpec": "activities.contracts"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'client' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES.get(name, "workflows.api")), name)
