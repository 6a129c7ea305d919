"""What a machine may ask of the artifacts that its tools have left in the durable store.

An artifact's body stays out of the state; a machine that needs some of its text asks for it, by the
body's digest and a path into it. Reading never fails a run: what cannot be read says why.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from activities.contracts import Effect, Frozen

__all__ = ["ArtifactRead", "ArtifactText", "ArtifactsRead", "ReadArtifacts"]


class ArtifactRead(Frozen):
    """One text that is wanted."""

    digest: str
    """Of the body in the durable store."""
    path: str = ""
    """Into a body that is JSON, such as `.rows[0].name` or `["a key"]`; empty: the body itself."""


class ReadArtifacts(Effect):
    """Read texts out of artifacts; input of the activity `read_artifacts`."""

    kind: Literal["read_artifacts"] = "read_artifacts"
    reads: tuple[ArtifactRead, ...] = Field(min_length=1)
    chars: int = Field(default=4000, ge=1)
    """At most so many characters of each text."""
    label: str = "read artifacts"

    @property
    def title(self) -> str:
        """What the machine calls this step."""
        return self.label


class ArtifactText(Frozen):
    """What stands at one path; `problem` says why nothing does."""

    text: str = ""
    """The text itself, or the value as JSON; cut to what was asked for."""
    chars: int = 0
    """Of the whole text."""
    binary: bool = False
    """The body is there, but it is no text."""
    problem: str | None = None


class ArtifactsRead(Frozen):
    """The texts, in the order of what was asked for."""

    kind: Literal["artifacts_read"] = "artifacts_read"
    texts: tuple[ArtifactText, ...]
