"""Where a command writes its log: beside the data, or for `ratchet dev` on the terminal."""

from __future__ import annotations

import logging
import os
from functools import cache

from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)

from activities.logs import configure
from activities.settings import Settings
from client.errors import UsageError

__all__ = ["log_to_file", "log_to_terminal"]


def log_to_file(settings: Settings) -> None:
    """Log into `worker.log` of the data directory, so that the terminal shows the run alone.

    Raises:
        UsageError: the file cannot be written, or is a link.
    """
    configure(settings.model_copy(update={"log_format": "json"}))
    path = settings.data_dir / "worker.log"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    try:
        stream = os.fdopen(os.open(path, flags, 0o600), "a", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the log {path} cannot be written: {error.strerror}; remove it") from error
    for output in logging.getLogger().handlers:
        if isinstance(output, logging.StreamHandler):
            output.setStream(stream)
    _forward_core()


def log_to_terminal(settings: Settings) -> None:
    """Log to standard error."""
    configure(settings)
    _forward_core()


@cache
def _forward_core() -> None:
    """Temporal's core writes to standard error by itself; let it go the way of the other logs."""
    core = logging.getLogger("temporalio.core")
    forwarding = LogForwardingConfig(logger=core, append_target_to_name=False)
    filters = TelemetryFilter(core_level="WARN", other_level="ERROR")
    logs = LoggingConfig(filter=filters, forwarding=forwarding)
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=logs)), error_if_already_set=False)
