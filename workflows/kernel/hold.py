"""Standing still: what the kernel itself hands out where a run is to wait before a state is entered."""

from __future__ import annotations

from typing import Literal

from activities.contracts import Effect

__all__ = ["Hold"]


class Hold(Effect):
    """The machine has arrived and does not go in: `step.go_on` enters the state.

    No state asks for it, so it needs no grant; it is no call, and costs nothing.
    """

    kind: Literal["hold"] = "hold"
    state: str
    """The state that is to be entered."""

    @property
    def title(self) -> str:
        """What is waited for."""
        return f"stand still before {self.state}"
