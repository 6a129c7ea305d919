"""The example machine `examples/machines/refund_desk.py`, for tests: loaded as a worker loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from activities.extensions import load_modules
from tests.machines.driver import Play
from tests.machines.script import Script
from workflows.kernel.design import Design

__all__ = ["DESIGN", "DESK", "FILE", "desk"]

FILE = Path(__file__).resolve().parents[2] / "examples" / "machines" / "refund_desk.py"
(DESK,) = load_modules([str(FILE)])
"""The module; it is not registered, so other tests do not see it."""


DESIGN: Design = DESK.DESIGN


def desk(*answers: Any, **options: Any) -> Play:
    """A run over these answers."""
    return Script("", answers, options).run(DESIGN)
