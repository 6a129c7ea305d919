"""From the options of a command line to an agent and its goal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread

from client.agentfile import KEYLESS, AgentFile, Draft, find_agent
from client.errors import UsageError
from client.yamltext import YamlText
from workflows.api import GOAL_BYTES

__all__ = ["Choice", "read_goal"]

PLAIN_AGENT = {
    "name": "agent",
    "description": "Answers questions with the help of the files of the current folder.",
    "machine": "react",
    "tools": ["calculator", "current_time", "list_files", "read_file", "search_files"],
}
"""What runs when no agent file is named."""


@dataclass(frozen=True)
class Choice:
    """What a person chose on the command line."""

    agent: str | None = None
    model: str | None = None
    base_url: str | None = None
    machine: str | None = None
    tools: Sequence[str] = ()
    settings: Sequence[str] = ()
    """`key=value` each."""

    def draft(self) -> Draft:
        """The agent file, or the plain agent, with the options laid over it.

        Raises:
            UsageError: the file cannot be read, or an option makes no sense.
        """
        if self.agent is None:
            draft = Draft(values=dict(PLAIN_AGENT))
        else:
            draft = Draft(YamlText(find_agent(self.agent)))
        if self.machine is not None:
            draft.set(("machine",), self.machine, f"--machine {self.machine}")
        if self.tools:
            kept = draft.values.get("tools") or []
            added = [name for name in self.tools if name not in kept]
            draft.set(("tools",), [*kept, *added], f"--tool {', '.join(self.tools)}")
        self._choose_model(draft)
        for assignment in self.settings:
            draft.assign(assignment)
        return draft

    def _choose_model(self, draft: Draft) -> None:
        if self.model in KEYLESS:
            _keep_script(draft, str(self.model))
        elif self.model is not None:
            _name_model(draft, self.model)
        if self.base_url is not None:
            where = ("models", "default", "base_url")
            draft.set(where, self.base_url, f"--base-url {self.base_url}")

    def finish(self) -> tuple[AgentFile, Draft]:
        """The agent as far as it can be checked alone, and the draft for messages about it."""
        draft = self.draft()
        return draft.finish(), draft


def _name_model(draft: Draft, name: str) -> None:
    """Another name with the same settings; nothing of a script stays."""
    models = draft.values.get("models")
    spec = models.get("default") if isinstance(models, dict) else None
    kept = spec if isinstance(spec, dict) and spec.get("provider") not in KEYLESS else {}
    draft.set(("models", "default"), {**kept, "name": name}, f"--model {name}")


def _keep_script(draft: Draft, provider: str) -> None:
    """`--model scripted` keeps the script of an agent file that has one."""
    models = draft.values.get("models")
    spec = models.get("default") if isinstance(models, dict) else None
    if isinstance(spec, dict) and spec.get("provider") == provider:
        return
    draft.set(("models", "default"), {"provider": provider, "name": provider}, "--model scripted")


async def read_goal(goal: str | None) -> str:
    """The goal from the command line, or from standard input when it is `-`.

    Raises:
        UsageError: there is none, or what comes is no text.
    """
    if goal is None:
        raise UsageError('say what the agent shall do: "..." as an argument, or - to read it from stdin')
    if goal != "-":
        return goal
    try:
        return (await _standard_input()).decode().strip()
    except UnicodeDecodeError as error:
        raise UsageError(f"the goal on standard input is not UTF-8 text: {error}") from error
    except OSError as error:
        raise UsageError(f"the goal cannot be read from standard input: {error.strerror or error}") from error


async def _standard_input() -> bytes:
    """What comes until its end; read on a thread of its own, so that an interrupt need not wait for it."""
    if sys.stdin is None:
        raise UsageError("the goal cannot be read from standard input: it is closed")
    content: Future[bytes] = Future()

    def read() -> None:
        content.set_running_or_notify_cancel()
        try:
            content.set_result(sys.stdin.buffer.read(GOAL_BYTES * 10))
        except (OSError, ValueError) as error:
            content.set_exception(error)

    Thread(target=read, name="stdin", daemon=True).start()
    return await asyncio.wrap_future(content)
