"""What is logged within a block, whatever the tests before have configured."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from structlog._config import BoundLoggerLazyProxy
from structlog.testing import capture_logs

__all__ = ["captured_logs"]


@contextmanager
def captured_logs() -> Iterator[list[Any]]:
    """The lines as structlog's `capture_logs` gives them.

    A logger that was used since a command of the same process has set up its logs keeps that set-up, and
    nothing would be captured: it has to look again.
    """
    for module in list(sys.modules.values()):
        logger = getattr(module, "log", None)
        if isinstance(logger, BoundLoggerLazyProxy):
            vars(logger).pop("bind", None)
    with capture_logs() as lines:
        yield lines
