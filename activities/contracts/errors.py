"""What authors may raise on either side: in tools, and in a machine's states, rules, policies and hooks."""

from __future__ import annotations

__all__ = ["AgentError", "KernelError", "TransientError"]


class KernelError(Exception):
    """Base of what goes wrong in the kernel; never raised itself. See `workflows.kernel.errors`."""


class AgentError(KernelError):
    """Raised inside a visit; the machine's `on_error` decides what follows (spec 7.10)."""


class TransientError(AgentError):
    """A failure that goes away by itself. Raised in a tool, the call is repeated if it may be.

    A machine's own code is pure, so to try it again changes nothing: there it is as good as a
    `RecoverableError`."""
