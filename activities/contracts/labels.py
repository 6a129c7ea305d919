"""Closed lists by which rules and proofs know tools and texts: effects, labels, sinks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from activities.contracts.base import Frozen

__all__ = ["Label", "LabelSource", "Sink", "ToolEffect"]

ToolEffect = Literal["pure", "read", "idempotent", "keyed", "unsafe"]
"""What a second run of a tool would do (design 7)."""

Label = Literal["untrusted", "private"]
"""What a text is. `untrusted`: strangers may have written it, so it may hold orders for a model. `private`:
not everybody may read it. A closed list: rules and proofs ask which of them a run has."""
Sink = Literal["nowhere", "internal", "external"]
"""How far the arguments of a call go. `nowhere`: no further than the tool. `internal`: they are kept where
your own people or other runs find them. `external`: strangers can read them, or something happens at theirs,
as with a mail, a payment, a request to a web server. A closed list: it says what may leave, and what may come
back."""


class LabelSource(Frozen):
    """What brought a label into a run: a tool's output, what a person wrote, or what the run began with."""

    label: Label
    """What the text is."""
    tool: str = Field(default="", exclude_if=lambda tool: not tool)
    """Whose output it was; empty: it was none."""
    call: str = Field(default="", exclude_if=lambda call: not call)
    """Activity id of that call."""
    by: str = Field(default="", exclude_if=lambda by: not by)
    """Who wrote it, such as `ann (claimed)`; empty for a tool, and for what the run began with."""
    step: int = Field(default=0, exclude_if=lambda step: not step)
    """In which step of its run."""
    run: str = Field(default="", exclude_if=lambda run: not run)
    """Workflow id of the inner or outer run that it came from; empty: this run."""

    @property
    def text(self) -> str:
        """For people: `untrusted text from http_get (act#2:0, step 1)`."""
        what = self.tool or self.by or "what the run began with"
        details = [self.call, f"step {self.step}" if self.step else "", f"run {self.run}" if self.run else ""]
        where = ", ".join(filter(None, details))
        return f"{self.label} text from {what}{f' ({where})' if where else ''}"
