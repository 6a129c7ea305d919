"""The command line when its input waits, its output is closed or full, and when it is interrupted."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.client.conftest import PROGRAM, ROOT, Ratchet, bare_environment, run_ratchet

PROGRAM_TEXT = " ".join(f"'{word}'" for word in PROGRAM)


@pytest.fixture(scope="module")
def shell_dir(served_dir: Path) -> Path:
    """A data directory with a finished run `seen`, whose goal is not ASCII."""
    ended = run_ratchet(served_dir, "run", "--agent", "log_detective", "--id", "seen", "Größe → ▶ 日本?")
    assert ended.returncode == 0, ended.stderr
    return served_dir


def shell(data_dir: Path, line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A line for bash, in which `$R` is the command; the exit code is that of the first in a pipe."""
    return subprocess.run(
        ["bash", "-c", f'R() {{ {PROGRAM_TEXT} "$@"; }}; {line}; exit ${{PIPESTATUS[0]}}'],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env=bare_environment(RATCHET_DATA_DIR=str(data_dir), **environment),
        timeout=60,
    )


def catches(pid: int, number: signal.Signals) -> bool:
    """The process has a handler of its own for the signal."""
    (mask,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (("run", "--model", "scripted", "-"), signal.SIGINT),
        (("task", "log_detective", "-"), signal.SIGTERM),
    ],
)
def test_a_goal_that_never_comes_can_be_interrupted(
    data_dir: Path, words: tuple[str, ...], number: signal.Signals
) -> None:
    with subprocess.Popen(
        [*PROGRAM, *words],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=bare_environment(RATCHET_DATA_DIR=str(data_dir)),
    ) as process:
        while not catches(process.pid, signal.SIGTERM):  # until then it is being imported
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        try:
            assert process.wait(20) == 130
        finally:
            process.kill()
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize("module", ["client.errors", "typer.main", "temporalio.client"])
def test_an_interrupt_while_modules_are_imported_is_quiet(served_dir: Path, module: str) -> None:
    python, *words = PROGRAM
    with subprocess.Popen(
        [python, "-X", "importtime", *words, "run", "--model", "scripted", "--detach", "x"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=bare_environment(RATCHET_DATA_DIR=str(served_dir)),
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.split("|")[-1].strip() == module:
                break
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode in (130, -signal.SIGINT)
    assert [line for line in said.splitlines() if "import time:" not in line] == []


@pytest.mark.parametrize("words", ["log seen", "list --json"])
def test_an_ascii_terminal_gets_question_marks(shell_dir: Path, words: str) -> None:
    ended = shell(shell_dir, f"R {words}", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert ended.returncode == 0, ended.stderr
    if "json" in words:
        json.loads(ended.stdout)
    else:
        assert b"?" in ended.stdout
        assert ended.stdout.isascii()


@pytest.mark.parametrize("words", ["log seen", "log seen --json", "--help"])
def test_a_reader_that_goes_away_is_no_error(shell_dir: Path, words: str) -> None:
    ended = shell(shell_dir, f"R {words} | true")
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize("words", ["log seen", "list --json", "log seen 2>&-"])
def test_a_closed_output_is_no_error(shell_dir: Path, words: str) -> None:
    ended = shell(shell_dir, f"R {words} >&-")
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", ["log seen", "--help"])
def test_a_full_output_is_named(shell_dir: Path, words: str) -> None:
    ended = shell(shell_dir, f"R {words} >/dev/full")
    assert ended.returncode == 1
    assert ended.stderr == b"ratchet: standard output cannot be written: No space left on device\n"


def test_an_id_with_quotes_is_json(served: Ratchet) -> None:
    name = 'a"b\\'
    ended = served("run", "--model", "scripted", "--detach", "--json", "--id", name, "x")
    assert json.loads(ended.stdout) == {"id": name}
    cancelled = served("cancel", name, "--json")
    said = json.loads(cancelled.stdout)
    assert (said["id"], said["asked_to_stop"], set(said)) == (
        name,
        True,
        {"id", "asked_to_stop", "has_worker"},
    )


def test_an_address_that_is_none_is_a_usage_error(data_dir: Path) -> None:
    ended = run_ratchet(data_dir, "list", TEMPORAL_ADDRESS="nonsense:xx")
    assert ended.returncode == 2
    assert "nonsense:xx" in ended.stderr
    assert "HOST:PORT" in ended.stderr
    assert "unexpected" not in ended.stderr
