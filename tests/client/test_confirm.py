"""A yes is asked for where the question can be read."""

from __future__ import annotations

import os
import pty
import sys
import time

import pytest

from tests.client.conftest import ROOT, bare_environment

ASK = "import asyncio; from client.terminal import confirm; asyncio.run(confirm('Sure?'))"


def asked(*, redirected: int) -> tuple[str, int]:
    """What the terminal shows, and the exit code, when the file with that number goes elsewhere."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.dup2(os.open(os.devnull, os.O_WRONLY), redirected)
        os.execve(sys.executable, [sys.executable, "-c", ASK], bare_environment())
    shown = b""
    while b"[y/N]" not in shown and (more := _read(fd)):
        shown += more
    time.sleep(0.3)  # what is typed before the question counts as no answer to it
    os.write(fd, b"y\n")
    while more := _read(fd):
        shown += more
    _, status = os.waitpid(pid, 0)
    os.close(fd)
    return shown.decode(), os.waitstatus_to_exitcode(status)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except OSError:  # how Linux says that the other side is closed
        return b""


@pytest.mark.parametrize(
    ("redirected", "question", "code"),
    [
        pytest.param(1, True, 0, id="the output goes into a file: the question is read on the terminal"),
        pytest.param(2, False, 1, id="the question would go into a file: nobody is asked"),
    ],
)
def test_a_yes_is_asked_for_where_the_question_can_be_read(
    redirected: int, question: bool, code: int
) -> None:
    shown, ended = asked(redirected=redirected)
    assert ("Sure? [y/N]" in shown, ended) == (question, code)
