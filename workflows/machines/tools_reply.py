"""Results of native tool calls as texts: the model is shown JSON (spec 2.5). Never raises on any text."""

from __future__ import annotations

import json
from typing import Any

from workflows.machines.json_text import clean, is_json

__all__ = ["as_json", "error_json"]


def as_json(output: str) -> str:
    """A tool's output as JSON: as it is when it is JSON already, else as a JSON string."""
    return output if is_json(output) else _dumped(output)


def error_json(problem: str) -> str:
    """What the model is shown of a call that failed."""
    return _dumped({"error": clean(problem)})


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
