"""Where a command writes its log: beside the data, or for `ratchet dev` on the terminal."""

from __future__ import annotations

import logging
import os
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from temporalio.runtime import LogForwardingConfig, LoggingConfig, TelemetryFilter

import activities
from activities.logs import configure
from activities.settings import Settings
from client.cli.output import note
from client.errors import UsageError
from client.server.telemetry import set_runtime

__all__ = ["log_to_file", "log_to_terminal"]

NOT_OWN = (*map(sysconfig.get_path, ("stdlib", "purelib")), str(Path(activities.__file__).parent))
"""Folders of code that is not the user's."""


@contextmanager
def log_to_file(settings: Settings) -> Iterator[None]:
    """Log into `worker.log` of the data directory meanwhile, so that the terminal shows the run alone.

    Raises:
        UsageError: the file cannot be written, or is a link.
    """
    root = logging.getLogger()
    before = root.handlers
    path = settings.data_dir / "worker.log"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    try:
        stream = os.fdopen(os.open(path, flags, 0o600), "a", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the log {path} cannot be written: {error.strerror}; remove it") from error
    with stream:
        configure(settings.model_copy(update={"log_format": "json"}))
        for output in root.handlers:
            if isinstance(output, logging.StreamHandler):
                output.setStream(stream)
        root.addHandler(_OwnErrors())
        _forward_core(settings)
        try:
            yield
        finally:
            root.handlers = before


class _OwnErrors(logging.Handler):
    """Shows what a user's own tool raised, file and line, where the run is followed."""

    def emit(self, record: logging.LogRecord) -> None:
        event = record.msg if isinstance(record.msg, dict) else {}
        if event.get("event") != "tool.raised":
            return
        own = [place for place in event["at"] if not place.startswith(NOT_OWN)]
        if own:
            note(f"tool raised {event['error']}\n  {own[-1]}")


@contextmanager
def log_to_terminal(settings: Settings) -> Iterator[None]:
    """Log to standard error; at the level `info` only warnings of the SDK: the command itself says what its
    worker does."""
    configure(settings)
    if logging.getLogger().level == logging.INFO:
        logging.getLogger("temporalio").setLevel(logging.WARNING)
    _forward_core(settings)
    yield


def _forward_core(settings: Settings) -> None:
    """Temporal's core writes to standard error by itself; let it go the way of the other logs."""
    core = logging.getLogger("temporalio.core")
    forwarding = LogForwardingConfig(logger=core, append_target_to_name=False)
    filters = TelemetryFilter(core_level="WARN", other_level="ERROR")
    set_runtime(settings, LoggingConfig(filter=filters, forwarding=forwarding))
