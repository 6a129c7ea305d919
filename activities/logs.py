"""Structured logs: one line per event, as JSON or for a console, with run id, step and state."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.contracts import TRANSIENT
from activities.settings import Settings

__all__ = ["configure"]

OF_TOOLS = ("call_tool", "reconcile_tool", "compensate_tool")
"""Activities whose failures are in a tool's words."""


def configure(settings: Settings) -> None:
    """Send structlog and the standard library's logging to standard error, in one form."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        _of_activity,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Any = structlog.processors.JSONRenderer()
    if settings.log_format == "console":
        # Plain tracebacks: the default ones show local variables, which hold prompts and passwords.
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    else:
        shared.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_without_content, _temporal_facts, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [output]
    root.setLevel(settings.log_level.upper())
    logging.getLogger("httpx2").setLevel(logging.WARNING)


def _of_activity(logger: Any, method: str, event: Any) -> Any:
    """Name the run and the call, where an activity writes the line."""
    if activity.in_activity():
        info = activity.info()
        event.setdefault("workflow_id", info.workflow_id)
        event.setdefault("activity_id", info.activity_id)
    return event


def _temporal_facts(logger: Any, method: str, event: Any) -> Any:
    """Keep what Temporal's loggers know of run, step and state, and drop the rest."""
    record = event.get("_record")
    event.update(getattr(record, "ratchet", {}) or {})
    for source in ("temporal_workflow", "temporal_activity"):
        facts = getattr(record, source, None) or {}
        event.update({k: facts[k] for k in ("workflow_id", "run_id", "activity_id", "attempt") if k in facts})
        if facts and isinstance(event.get("event"), str):
            # The SDK appends the same facts to the text; once is enough.
            event["event"] = event["event"].split(" ({", 1)[0]
    error = (event.get("exc_info") or (None, None))[1]
    if isinstance(error, ApplicationError) and error.type == TRANSIENT:
        # It is tried again, so the place where it was raised helps nobody.
        activity_type = (getattr(record, "temporal_activity", None) or {}).get("activity_type")
        event["error"] = error.type if activity_type in OF_TOOLS else error.message
        del event["exc_info"]
    return event


def _without_content(logger: Any, method: str, event: Any) -> Any:
    """Of MCP's SDK only the place and the kind of error: its texts and errors repeat what servers answer."""
    record = event.get("_record")
    if record is not None and record.name.partition(".")[0] == "mcp":
        error = (event.pop("exc_info", None) or (None,))[0]
        event["event"], event["at"] = "mcp.sdk", f"{record.name}, line {record.lineno}"
        if error is not None:
            event["error"] = error.__name__
    return event
