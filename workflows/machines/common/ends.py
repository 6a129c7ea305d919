"""Forgets how a run ended when it continues after its end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from workflows.machines.authoring import Context

__all__ = ["end_forgotten"]


def end_forgotten(kind: type[Context], names: Iterable[str]) -> dict[str, Any]:
    """The patch that sets these fields of a context to their defaults."""
    return {name: kind.model_fields[name].get_default(call_default_factory=True) for name in sorted(names)}
