"""Writes docs/machines.md from the code: `make docs`. A test holds the file against the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workflows import registry
from workflows.kernel.design import Design
from workflows.kernel.diagram import mermaid, stages, table

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).parent / "machines.md"
HEAD = """# Machines

Made by `make docs` from the declarations in `workflows/machines/`; do not edit. The table is what
runs: rows are tried in order, and a move that is not in it is refused.
"""


def _knobs(design: Design) -> str:
    lines = ["| knob | default | allowed | meaning |", "| --- | --- | --- | --- |"]
    for name, field in design.options.model_json_schema().get("properties", {}).items():
        default = field.get("default")
        lines.append(f"| `{name}` | `{default}` | {_allowed(field)} | {field.get('description', '')} |")
    return "\n".join(lines) + "\n"


def _allowed(field: dict[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "anyOf" in field:
        return " or ".join(_allowed(option) for option in field["anyOf"])
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {field[key]}" for key, sign in signs.items() if key in field]
    return " ".join([str(field.get("type", "object")), *bounds])


def _section(design: Design) -> str:
    machine = design.build(design.options(), registry.parts())
    return "\n".join(
        [
            f"## {design.name} (version {design.version})\n",
            f"{design.description}\n",
            f"```mermaid\n{mermaid(machine)}```\n",
            "### Transitions\n",
            table(machine),
            "### States\n",
            stages(machine),
            "### Knobs\n",
            _knobs(design),
        ]
    )


def page() -> str:
    """The whole page."""
    return HEAD + "\n" + "\n".join(_section(design) for design in registry.designs())


if __name__ == "__main__":
    PAGE.write_text(page())
