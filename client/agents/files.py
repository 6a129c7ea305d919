"""Which agents there are: files of the current folder, and those that come with Ratchet.

This module loads no agent: to read a file and to check it takes long, and lists are shown often.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from activities.agentfiles import agent_keys, is_agent

__all__ = [
    "EXAMPLES", "SCRIPTED", "SHIPPED_FACTS", "SHIPPED_SCHEMA", "agents_here", "digest_of", "shipped_agents",
    "shipped_facts",
]  # fmt: skip

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHIPPED = EXAMPLES / "agents"
"""The agents that come with Ratchet, found by name."""
SHIPPED_FACTS = Path(__file__).parent / "shipped.json"
"""Digest of a shipped agent file -> what lists say of it; made by `make docs`."""
SHIPPED_SCHEMA = EXAMPLES / "new" / "agent.schema.json"
"""Schema of an agent file with the machines and tools that come with Ratchet; made by `make docs`."""
SCRIPTED = "scripted"
"""The provider whose name is enough for a model."""
LISTED_BYTES = 64_000
"""An agent file that is larger runs by its name, and is in no list."""


def shipped_agents() -> list[Path]:
    """The files of the agents that come with Ratchet, sorted by name."""
    return sorted(SHIPPED.glob("*.yaml"))


def shipped_facts(paths: Iterable[Path]) -> dict[Path, dict[str, Any]]:
    """What lists say of those of these files that are shipped ones, unchanged. It is what `listed_facts` of
    `agentfile.py` says of them, which takes a hundred times longer."""
    known = json.loads(SHIPPED_FACTS.read_bytes())
    digests = {path: digest_of(path) for path in paths}
    return {path: known[digest] for path, digest in digests.items() if digest in known}


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def agents_here() -> list[Path]:
    """The agent files of the current folder, right or wrong. Nobody named them: large ones are left out."""
    found = []
    for path in sorted(Path().glob("*.yaml")):
        with suppress(OSError):
            if path.is_file() and _is_agent(path.absolute(), path.stat().st_mtime_ns):
                found.append(path)
    return found


@lru_cache(maxsize=1000)
def _is_agent(path: Path, changed: int) -> bool:
    """A small YAML file that said something about an agent, right or wrong, as it was `changed` last."""
    with path.open("rb") as file:
        content = file.read(LISTED_BYTES + 1)
    return len(content) <= LISTED_BYTES and is_agent(agent_keys(content.decode(errors="replace")))
