"""Where the logs of a command go: beside the data for `run`, to the terminal for `dev`."""

from __future__ import annotations

import logging

from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)

from activities.logs import configure
from activities.settings import Settings

__all__ = ["log_to_file", "log_to_terminal"]

FILE = "worker.log"


def log_to_file(settings: Settings) -> None:
    """Log into the data directory, so that the live view stays undisturbed."""
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    configure(settings.model_copy(update={"log_format": "json"}))
    stream = (settings.data_dir / FILE).open("a", encoding="utf-8")
    for output in logging.getLogger().handlers:
        if isinstance(output, logging.StreamHandler):
            output.setStream(stream)
    _forward_core()


def log_to_terminal(settings: Settings) -> None:
    """Log to standard error."""
    configure(settings)
    _forward_core()


def _forward_core() -> None:
    """Temporal's core writes to standard error by itself; let it go the way of the other logs."""
    core = logging.getLogger("temporalio.core")
    forwarding = LogForwardingConfig(logger=core, append_target_to_name=False)
    filters = TelemetryFilter(core_level="WARN", other_level="ERROR")
    logs = LoggingConfig(filter=filters, forwarding=forwarding)
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=logs)), error_if_already_set=False)
