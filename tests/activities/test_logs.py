"""Logs as a process of its own writes them: set up once, to standard error."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAILING = """
import logging
import structlog
from activities.logs import configure
from activities.settings import Settings

configure(Settings(log_format="{form}", log_level="debug"))
def work():
    prompt = "se" + "cret"
    raise RuntimeError("it failed")
try:
    work()
except RuntimeError:
    structlog.get_logger("ours").error("it.failed", exc_info=True)
    logging.getLogger("temporalio.activity").warning("theirs", exc_info=True)
"""


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_traceback_in_the_log_shows_no_values(form: str) -> None:
    """Local variables hold prompts, and base URLs with passwords."""
    done = subprocess.run(
        [sys.executable, "-c", FAILING.format(form=form)], capture_output=True, text=True, check=True
    )
    assert done.stderr.count("RuntimeError: it failed") == 2
    assert "secret" not in done.stderr


AGAIN = """
import logging
from temporalio.exceptions import ApplicationError
from activities.contracts import TRANSIENT
from activities.logs import configure
from activities.settings import Settings

configure(Settings(log_format="{form}"))
try:
    raise ApplicationError("the webhook answered HTTP 503", type=TRANSIENT)
except ApplicationError:
    logging.getLogger("temporalio.activity").warning("Completing activity as failed", exc_info=True)
"""


@pytest.mark.parametrize("form", ["console", "json"])
def test_what_is_tried_again_is_one_line_of_the_log(form: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AGAIN.format(form=form)], capture_output=True, text=True, check=True
    )
    (line,) = done.stderr.splitlines()
    assert "Completing activity as failed" in line
    assert "the webhook answered HTTP 503" in line
