"""The example machine `examples/machines/refund_desk.py`, for tests: loaded as a worker loads it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from activities.extensions import load_modules
from tests.machines.driver import Play
from tests.machines.script import Script
from tests.machines.scripts_refund_desk import SPECS
from workflows.kernel.design import Brief, Design

__all__ = ["DESIGN", "DESK", "FILE", "desk"]

FILE = Path(__file__).resolve().parents[2] / "examples" / "machines" / "refund_desk.py"
(DESK,) = load_modules([str(FILE)])
"""The module; it is not registered, so other tests do not see it."""


def _with_tools(brief: Brief, options: Any) -> Any:
    return DESK.DESIGN.begin(dataclasses.replace(brief, tools=SPECS), options)


DESIGN: Design = dataclasses.replace(DESK.DESIGN, begin=_with_tools)
"""The design for an agent that has the shop's tools."""


def desk(*answers: Any, **options: Any) -> Play:
    """A run over these answers."""
    return Script("", answers, options).run(DESIGN)
