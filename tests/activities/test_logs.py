"""Logs as a process of its own writes them: set up once, to standard error."""

from __future__ import annotations

import json
import os

import pytest

from tests import forked

BEGIN = """
import logging
import structlog
from temporalio.exceptions import ApplicationError
from activities.contracts import TRANSIENT
from activities.logs import configure
from activities.settings import Settings

configure(Settings(log_format="{form}", log_level="debug"))
"""
FAILING = """
def work():
    prompt = "se" + "cret"
    raise RuntimeError("it failed")
try:
    work()
except RuntimeError:
    structlog.get_logger("ours").error("it.failed", exc_info=True)
    logging.getLogger("temporalio.activity").warning("theirs", exc_info=True)
"""
AGAIN = """
try:
    raise ApplicationError("the webhook answered HTTP 503", type=TRANSIENT)
except ApplicationError:
    logging.getLogger("temporalio.activity").warning("Completing activity as failed", exc_info=True)
"""
SAID = """
of_tool = {{"temporal_activity": {{"workflow_id": "w", "activity_type": "call_tool"}}}}
sdk = logging.getLogger("mcp.client.stdio")
try:
    raise ApplicationError("order 7 of se" + "cret: busy", type=TRANSIENT)
except ApplicationError:
    logging.getLogger("temporalio.activity").warning("Failed", exc_info=True, extra=of_tool)
    sdk.exception("Failed to parse %s", "se" + "cret")
sdk.warning("not listed: se" + "cret")
"""
FACTS = """
facts = {{"workflow_id": "w", "run_id": "r", "attempt": 1, "namespace": "default"}}
more = {{"temporal_workflow": facts, "ratchet": {{"step": 3, "state": "thought"}}}}
logging.getLogger("temporalio.workflow").info("moved ({{'workflow_id': 'w'}})", extra=more)
"""

INSIDE = """
from temporalio.testing import ActivityEnvironment
ActivityEnvironment().run(lambda: structlog.get_logger("ours").info("it.ended", seconds=1))
"""


def written(program: str, form: str) -> str:
    source = (BEGIN + program).format(form=form)
    code, _, lines = forked.spoken(source, env=os.environ)
    assert code == 0
    return lines


@pytest.mark.parametrize("form", ["console", "json"])
def test_traceback_shows_no_values(form: str) -> None:
    """Local variables hold prompts, and base URLs with passwords."""
    lines = written(FAILING, form)
    assert lines.count("RuntimeError: it failed") == 2
    assert "secret" not in lines


@pytest.mark.parametrize("form", ["console", "json"])
def test_failure_that_is_retried_is_one_line(form: str) -> None:
    (line,) = written(AGAIN, form).splitlines()
    assert "Completing activity as failed" in line
    assert "the webhook answered HTTP 503" in line


@pytest.mark.parametrize("form", ["console", "json"])
def test_words_of_tools_and_of_mcp_servers_are_not_written(form: str) -> None:
    failed, parsed, listed = written(SAID, form).splitlines()
    assert "secret" not in failed + parsed + listed
    assert "Transient" in failed
    assert "mcp.client.stdio, line " in parsed
    assert "ApplicationError" in parsed
    assert "mcp.sdk" in listed


def test_workflow_line_has_run_step_and_state() -> None:
    (line,) = written(FACTS, "json").splitlines()
    entry = json.loads(line)
    assert {k: entry[k] for k in ("event", "workflow_id", "run_id", "step", "state")} == {
        "event": "moved", "workflow_id": "w", "run_id": "r", "step": 3, "state": "thought"
    }  # fmt: skip
    assert "namespace" not in entry


def test_line_of_an_activity_names_its_run_and_call() -> None:
    line = json.loads(written(INSIDE, "json"))
    assert (line["event"], line["seconds"]) == ("it.ended", 1)
    assert {line["workflow_id"], line["activity_id"]} == {"test"}
