"""What `ratchet dev` has loaded, for its first lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from activities.settings import Settings
from client.agents.agentfile import find_agent, load_agent
from client.agents.catalog import module_facts
from client.agents.files import agents_here
from client.errors import UsageError

__all__ = ["loaded_lines"]


def loaded_lines(agents: Sequence[str], settings: Settings) -> Iterator[str]:
    """The agent files that were named, the modules of the worker with what each has, and the agent files of
    the current folder whose modules were not loaded."""
    named = [find_agent(name) for name in agents]
    if named:
        yield f"Agents    {', '.join(map(str, named))}"
    for module in settings.modules:
        facts = module_facts(module)
        has = [f"{one} {name}" for one in ("tool", "machine") for name in facts.get(f"{one}s", ())]
        yield f"Module    {_short(module)}{'   ' if has else ''}{', '.join(has)}"
    for path in agents_here():
        try:
            missing = [module for module in load_agent(path).modules if module not in settings.modules]
        except UsageError as error:
            yield f"warning: {error}"
            continue
        if missing:
            files = ", ".join(map(_short, missing))
            yield f"not loaded: {files} of {path}; `ratchet dev --agent {path}` loads it"


def _short(module: str) -> str:
    """A file of the current folder by its place there."""
    path = Path(module)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else module
