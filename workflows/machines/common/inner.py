"""Options that name another machine, which is run inside."""

from __future__ import annotations

from activities.contracts import Strict

__all__ = ["NamesMachine"]


class NamesMachine(Strict):
    """Has a field `machine`, and perhaps `machine_version`, `options` and `roles`: what they say is checked
    before a run begins (`task.py`)."""
