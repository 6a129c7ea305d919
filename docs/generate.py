"""Writes what is made from the code: `make docs`. A test compares each file with the code."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from client.agents.agentfile import listed_facts
from client.agents.files import SHIPPED_FACTS, SHIPPED_SCHEMA, digest_of, shipped_agents
from client.agents.schema import MESSAGES, message_schema
from docs import machines, reference

__all__ = ["FILES"]

DOCS = Path(__file__).parent


def _message(name: str) -> str:
    return _text(message_schema(name))


def _text(schema: object) -> str:
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


FILES: Mapping[Path, Callable[[], str]] = {
    DOCS / "machines.md": machines.page,
    DOCS / "reference-agent-file.md": reference.agent_file_page,
    DOCS / "reference-commands.md": reference.commands_page,
    DOCS / "reference-client.md": reference.client_page,
    DOCS / "reference-fields.md": reference.fields_page,
    DOCS / "reference-messages.md": reference.messages_page,
    DOCS / "reference-settings.md": reference.settings_page,
    SHIPPED_FACTS: lambda: _text({digest_of(path): listed_facts(path) for path in shipped_agents()}),
    SHIPPED_SCHEMA: lambda: _text(reference.shipped_agent_schema()),
    **{DOCS / "schemas" / f"{name}.json": partial(_message, name) for name in MESSAGES},
}
"""Each file that is made, and what makes its text."""

if __name__ == "__main__":
    for file, text in FILES.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text(), encoding="utf-8")
