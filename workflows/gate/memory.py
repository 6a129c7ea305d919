"""What approvals mean for later calls: first times, and what people approved beforehand. Pure.

It is the run's: a rollback takes back what the machine did, not what people have decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import Field

from activities.contracts import Frozen, JsonObject, ToolRun, ToolSpec
from workflows.gate.canonical import canonical, digest
from workflows.gate.conditions import fits
from workflows.gate.policy import Asked, first_key, reaches
from workflows.gate.ticket import agreeing, named
from workflows.people import Asking, Condition, Remember, Request

__all__ = ["Memory", "Remembered"]


class Remembered(Frozen):
    """Later calls that people have approved beforehand: of one tool, with arguments that fit.

    An argument that the conditions do not name may be anything; `same` allows no others.
    """

    request: str
    tool: str
    arguments: dict[str, Condition] = Field(default_factory=dict)
    same: str = ""
    """Digest of the only arguments that fit; empty: any that the conditions let through."""
    group: str | None
    """Whom the approved call was put to first; calls that ask another group are asked about."""
    spoke: str | None = None
    """Who was asked when it was approved, after the silence of the first; None: the first."""
    by: tuple[str, ...]
    """All who said so; empty names are those who gave none."""
    verified: bool = False
    """All had signed."""

    @property
    def names(self) -> tuple[str, ...]:
        """Who said so, as the log says it: `ann (verified)`."""
        return tuple(named(name, self.verified) for name in self.by)

    def covers(self, run: ToolRun, spec: ToolSpec, asking: Asking, needed: int) -> bool:
        """The people who would be asked, and enough of them, have approved this call already."""
        if run.tool != self.tool or len(self.by) < needed:
            return False
        if not reaches(asking, self.group, self.spoke or self.group):
            return False
        return (
            _same(self.same, run.arguments) and fits(self.arguments, run.arguments, spec.parameters) is True
        )


def _same(wanted: str, arguments: JsonObject) -> bool:
    return not wanted or digest(arguments) == wanted


def _said(wanted: Remember | None) -> str:
    """In one spelling: as Python compares them, 1 and true would be the same."""
    return canonical(None if wanted is None else wanted.model_dump(mode="json"))


class Memory:
    """What was approved in one run."""

    def __init__(
        self,
        remembered: Iterable[Remembered] = (),
        approved: Iterable[str] = (),
        first_by: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.remembered = list(remembered)
        """Oldest first."""
        self.approved = list(approved)
        """The `first_key`s of calls that people approved as they were."""
        self.first_by = dict(first_by or {})
        """`first_key` -> who approved that first call, as the log says it."""

    def covering(self, run: ToolRun, spec: ToolSpec, asking: Asking, needed: int) -> Remembered | None:
        """The first approval given beforehand that covers a call about which so many would be asked."""
        return next((one for one in self.remembered if one.covers(run, spec, asking, needed)), None)

    def learn(self, request: Request, asked: Asked) -> None:
        """Take over what an approved request says of later calls; `asked` is how it was put first."""
        vote, tool = request.settled, request.tool
        if request.outcome != "approved" or request.kind != "approval" or vote is None or tool is None:
            return
        key, votes, wanted = first_key(tool, request.because), agreeing(request, vote), vote.remember
        if asked.certain and key not in self.approved:
            self.approved.append(key)
            self.first_by[key] = tuple(named(other.by, other.verified) for other in votes)
        # All who approved must have said so: remembering is a decision of its own.
        if wanted is None or any(_said(other.remember) != _said(wanted) for other in votes):
            return
        self.remembered.append(
            Remembered(
                request=request.id,
                tool=tool,
                arguments=wanted.arguments,
                same=digest(request.arguments or {}) if wanted.same else "",
                group=asked.group,
                spoke=request.group,
                by=tuple(other.by for other in votes),
                verified=all(other.verified for other in votes),
            )
        )
