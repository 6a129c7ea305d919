"""The `output` of an agent file that is named: a pydantic model of its modules, or a file with a schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from activities.contracts import model_schema
from activities.extensions import ExtensionError, load_modules
from client.agents.yaml import nearest

__all__ = ["named_output"]


def named_output(name: str, folder: Path, modules: Sequence[str]) -> Any:
    """The schema that is named: `Refund`, `models.py:Refund` or `refund.json`, relative to `folder`. Code is
    loaded from the agent's `modules` alone: a file with these is one that tools cannot write. Raises
    ValueError."""
    if name.endswith(".json"):
        return _of_file(folder / name)
    module, _, model = name.rpartition(":")
    if module and module not in modules:
        there = ", ".join(modules) or "none"
        raise ValueError(f"{module} is not in the agent's `modules` ({there}); add it there")
    try:
        loaded = load_modules([str(folder / one) for one in ([module] if module else modules)])
    except ExtensionError as error:
        raise ValueError(str(error)) from error
    models = {
        known: kind
        for one in loaded
        for known, kind in vars(one).items()
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not BaseModel
    }
    if model not in models:
        where = f"in {module}" if module else "in the agent's `modules`"
        raise ValueError(
            f"there is no pydantic model {model} {where}: expected the name of a model, a JSON schema, or a "
            f"file such as `refund.json` that has one; {nearest(model, models)}"
        )
    return model_schema(models[model])


def _of_file(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
