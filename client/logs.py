"""Where logs go: of `run` beside the data, of `dev` to the terminal, of a program where its own go."""

from __future__ import annotations

import logging
import os

import structlog
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

__all__ = ["log_as_the_program", "log_to_file", "log_to_terminal"]

FILE = "worker.log"


def log_to_file(settings: Settings) -> None:
    """Log into the data directory, so that the live view stays undisturbed.

    Raises:
        UsageError: the file cannot be written, or is a link that leads elsewhere.
    """
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    configure(settings.model_copy(update={"log_format": "json"}))
    path = settings.data_dir / FILE
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


def log_as_the_program() -> None:
    """Log by the standard library's `logging`, as the program has set that up, unless it uses structlog.

    By itself structlog would print everything among the program's own output.
    """
    if not structlog.is_configured():
        structlog.configure(
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.processors.KeyValueRenderer(key_order=["event"]),
            ],
            logger_factory=structlog.stdlib.LoggerFactory(),
            wrapper_class=structlog.stdlib.BoundLogger,
        )


def _forward_core() -> None:
    """Temporal's core writes to standard error by itself; let it go the way of the other logs."""
    core = logging.getLogger("temporalio.core")
    forwarding = LogForwardingConfig(logger=core, append_target_to_name=False)
    filters = TelemetryFilter(core_level="WARN", other_level="ERROR")
    logs = LoggingConfig(filter=filters, forwarding=forwarding)
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=logs)), error_if_already_set=False)
