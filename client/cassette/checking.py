"""Cassette files as tests: for `ratchet test` and for pytest."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from activities.contracts import ToolSpec
from client.agents.agentfile import AgentFile, load_agent
from client.cassette.file import Cassette, read_cassette
from client.cassette.playing import CassetteVerdict, play
from client.errors import UsageError
from client.server.workerconfig import load_settings, register_modules
from workflows.registry import machines

if TYPE_CHECKING:
    from activities.settings import Settings

__all__ = ["cassette_files", "played"]

ENDINGS = (".yaml", ".yml", ".json")


def cassette_files(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The files, and those in the folders among them. Raises UsageError for a folder without any."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(one for one in path.rglob("*") if one.suffix in ENDINGS) if path.is_dir() else [path]
        if not inside:
            raise UsageError(f"{path}: there is no cassette in it (expected {', '.join(ENDINGS)})")
        found += inside
    return tuple(dict.fromkeys(found))


async def played(
    path: Path, agent: str | Path | AgentFile | None = None, settings: Settings | None = None
) -> CassetteVerdict:
    """Play a cassette file; with another agent, its tools are as they are here.

    Args:
        agent: file or name of an agent to take the place of the recorded one.
        settings: whose modules have machines, rules and tools; default: from `RATCHET_...`.

    Raises:
        UsageError: a file or a module cannot be loaded.
    """
    settings = settings or load_settings()
    given = load_agent(agent) if isinstance(agent, str | Path) else agent
    if given is not None:
        modules = tuple(dict.fromkeys((*settings.modules, *given.modules)))
        settings = settings.model_copy(update={"modules": modules})
    register_modules(settings.modules)
    tools = _tools_of(given, settings) if given is not None else ()
    cassette = read_cassette(path)
    _load_machine(cassette, path.parent)
    return await play(cassette, given, tools=tools)


def _load_machine(cassette: Cassette, folder: Path) -> None:
    """Load the file that a counterexample names, unless its machine is known. Raises UsageError."""
    if cassette.counterexample is None or not cassette.counterexample.module:
        return
    file = folder / cassette.counterexample.module
    if all(one.name != cassette.task.machine for one in machines()) and file.is_file():
        register_modules([str(file)])


def _tools_of(agent: AgentFile, settings: Settings) -> tuple[ToolSpec, ...]:
    """Specs of the agent's tools that this process knows; the recording has those of the others."""
    from activities.tools import load_tools

    known = load_tools(settings)
    return tuple(known[name].spec() for name in agent.tools if name in known)
