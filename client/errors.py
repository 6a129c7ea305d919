"""Errors that people of the client meet: one paragraph each, with what to do next.

* RatchetError          the command fails, exit code 1
  + UsageError          what was asked for makes no sense as it stands, exit code 2
  + ServerError         the embedded server does not start or does not answer
  + Unreachable         the Temporal server does not answer
  + NoWorker            no worker polls the task queue, so that nothing can go on
  + NotAtHand           what a run answers is too long, and lies in a store that is not here
  + UnknownRun          no run has that id
  + DuplicateRun        a run with that id exists already
  + RunFailed           the workflow failed instead of giving a result
    + RunRefused        its worker cannot run such a task: it lacks the tools or the machine, say
  + Refused             a run does not take a decision or a command, exit code 3
  + NotConfirmed        a person did not say yes, so nothing was done, exit code 4
"""

from __future__ import annotations

__all__ = [
    "DuplicateRun", "NoWorker", "NotAtHand", "NotConfirmed", "RatchetError", "Refused", "RunFailed",
    "RunRefused", "ServerError", "UnknownRun", "Unreachable", "UsageError",
]  # fmt: skip


class RatchetError(Exception):
    """Something went wrong that a person can do something about; the message says what."""

    exit_code = 1


class UsageError(RatchetError):
    """Bad input: an option, an agent file, a goal. Nothing was started."""

    exit_code = 2


class ServerError(RatchetError):
    """The embedded server does not start, or what runs is not ours."""


class Unreachable(RatchetError):
    """The Temporal server does not answer."""


class NoWorker(RatchetError):
    """No worker polls the task queue, so a query would wait in vain."""


class NotAtHand(RatchetError):
    """What a run answers is long and lies in the workers' store, which this client does not share."""


class UnknownRun(RatchetError):
    """Neither Temporal nor the archive knows the run."""


class DuplicateRun(RatchetError):
    """A run with that id exists already; nothing was started."""


class RunFailed(RatchetError):
    """The workflow failed, was terminated or timed out, so that there is no result."""


class RunRefused(RunFailed):
    """The worker that took the run cannot run such a task; nothing was done."""


class Refused(RatchetError):
    """The run does not take a decision or a command as it stands; nothing was changed."""

    exit_code = 3


class NotConfirmed(RatchetError):
    """A person did not confirm what was asked for, or nobody could be asked; nothing was done."""

    exit_code = 4
