"""Who may give commands, and which came already. Pure."""

from __future__ import annotations

from workflows.gate.canonical import digest
from workflows.gate.names import fault_of_name
from workflows.gate.signing import signed_content, verified
from workflows.gate.ticket import Refused, named
from workflows.people import Command, Group, People

__all__ = ["Commands"]

UNSIGNED_IDS = 1_000
"""Ids of unsigned commands that are known; of signed ones all are, or an old one could be sent again."""
REASON = 500
"""Characters of the reason for a refusal that are kept."""
REASONS = 100
"""Refusals whose reason is kept; of older ones only that they were refused."""


HANDED_ON = {"pause", "resume"}
"""What a run tells its child run, too: a signature over it is one for the run above."""


class Commands:
    """The commands of one run: allowed by group and signature, counted once by id."""

    def __init__(self, people: People, workflow_id: str, origin: str) -> None:
        """`origin` is the first run id of the chain."""
        self.people, self.workflow_id, self.origin = people, workflow_id, origin
        self.counted: dict[str, str] = {}
        """Id -> digest of what was ordered under it."""
        self.refused: dict[str, str] = {}
        """Id of a counted command that was not obeyed -> why."""
        self.above: tuple[tuple[str, str], ...] = ()
        """Runs that this one is a child run of, with their first run ids: they hand on `HANDED_ON`."""
        self.stale: tuple[str, ...] = ()
        """Ids of signed commands that those had before this one began: they were not given to it."""

    @property
    def heard(self) -> tuple[str, ...]:
        """What a child run that begins now must not obey: ids of signed commands, the runs above included."""
        return (*self.stale, *self.counted) if self._group.keys else ()

    @property
    def _group(self) -> Group:
        return self.people.group_of(self.people.commands)

    def check(self, command: Command) -> None:
        """Raises Refused for a person who may not, a signature that is not theirs, or an id used twice."""
        group, name = self._group, command.by
        if fault := fault_of_name(name):
            raise Refused(f"`by`: {fault}")
        if group.approvers and name not in group.approvers:
            may = ", ".join(group.approvers[:10])
            raise Refused(
                f"{name or 'somebody without a name'} may not give commands to this run; {may} may "
                f"({self.people.commands}): let one of them do it, and name them in `by`"
            )
        self._not_open_to_all(command)
        if group.keys:
            self._signed(group, command)
        if self.counted.get(command.id, _content(command)) != _content(command):
            raise Refused(f"another command came under the id {command.id!r}; give each its own id")

    def _not_open_to_all(self, command: Command) -> None:
        """What a group must approve, nobody else may bring about by a command."""
        does = "limits" if command.command == "limits" else "compensate" if command.compensate else ""
        groups = [name for name, group in self.people.groups.items() if group.approvers]
        if does and groups and self.people.commands is None:
            raise Refused(
                f"`{does}` does what people must approve here, and anybody may give commands to this run; "
                f"set `people.commands` in the agent file to the group that may ({', '.join(groups[:10])})"
            )

    def _signed(self, group: Group, command: Command) -> None:
        handed_on = command.command in HANDED_ON and command.id not in self.stale
        runs = [(self.workflow_id, self.origin), *(self.above if handed_on else ())]
        contents = [signed_content(run, command, origin) for run, origin in runs]
        if not any(verified(group.keys, command.by, one, command.signature) for one in contents):
            came = "a signature that is not theirs over this command" if command.signature else "no signature"
            raise Refused(
                f"commands to this run must be signed with the key of {command.by}, {came} came; sign it, "
                "such as with `ratchet ... --key FILE`"
            )
        if not command.id:
            raise Refused(
                "a signed command needs an `id`, so that it counts once; give it one, and sign it anew"
            )

    def below(self, runs: tuple[tuple[str, str], ...], heard: tuple[str, ...]) -> None:
        """This run is a child run of these, given with their first run ids: what was signed for one of them
        may pause and resume this one, too, but not the commands that they had `heard` when it began."""
        self.above, self.stale = runs, heard

    def seen(self, command: Command) -> bool:
        """This very command was counted already; commands without id are always new."""
        return self.counted.get(command.id) == _content(command)

    def refuse(self, command: Command, reason: str) -> None:
        """It was counted, but not obeyed: a repeat of it must not be told otherwise."""
        if not command.id or not self.seen(command):
            return
        self.refused[command.id] = reason[:REASON]
        for old in list(self.refused)[:-REASONS]:
            self.refused[old] = ""

    def refusal(self, command: Command) -> str | None:
        """Why a command that was seen was not obeyed; None when it was."""
        reason = self.refused.get(command.id) if command.id and self.seen(command) else None
        return reason if reason is None else reason or "it was refused before; the log says why"

    def count(self, command: Command) -> str:
        """Count it; who gave it, for the log. Raises Refused as `check` does."""
        self.check(command)
        if command.id:
            self.counted[command.id] = _content(command)
            if not self._group.keys and len(self.counted) > UNSIGNED_IDS:
                oldest = next(iter(self.counted))
                del self.counted[oldest]
                self.refused.pop(oldest, None)
        return named(command.by, bool(self._group.keys))


def _content(command: Command) -> str:
    return digest(command.model_dump(mode="json", exclude={"id", "signature"}, exclude_defaults=True))
