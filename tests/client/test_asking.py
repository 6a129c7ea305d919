"""`ratchet run` when the run asks: on a terminal it is asked right there, else the answer is named."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.client.conftest import PROGRAM, ROOT, bare_environment, run_ratchet
from tests.conftest import TOOLS

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
AGENT = """
modules: [{tools}]
tools: [mark_once, mark]
models:
  default:
    provider: scripted
    script:
{replies}
    - {{reply: {{thought: "FINAL ANSWER: all done", action: null}}}}
{more}
"""


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """An agent that makes one unsafe call."""
    return agent_file(tmp_path, {"line": "first"})


def agent_file(folder: Path, *calls: dict[str, str], more: str = "") -> Path:
    """An agent that makes these unsafe calls; what the model says could steer a terminal."""
    replies = [
        f"    - {{reply: {{thought: 'Next.', action: mark_once, action_input: {json.dumps(call)}}}}}"
        for call in calls
    ]
    path = folder / "asks.yaml"
    path.write_text(AGENT.format(tools=os.path.relpath(TOOLS, folder), replies="\n".join(replies), more=more))
    return path


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, data_dir: Path, *words: str, **environment: str) -> None:
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.chdir(ROOT)
            more = {
                "RATCHET_DATA_DIR": str(data_dir),
                "TERM": "xterm",
                "COLUMNS": "120",
                "RATCHET_BY": "Ada",
                **environment,
            }
            os.execve(sys.executable, [*PROGRAM, *words], bare_environment(**more))
        self.shown = ""
        """All that was printed, without the codes that draw it."""
        self._read_upto = 0

    def until(self, pattern: str, seconds: float = 60) -> re.Match[str]:
        """Read until the pattern shows, behind what was waited for last."""
        until = time.monotonic() + seconds
        while not (found := re.search(pattern, self.shown[self._read_upto :])):
            assert self._more(until), f"{pattern!r} did not come; shown is:\n{self.shown}"
        self._read_upto += found.end()
        return found

    def type(self, text: str) -> None:
        """Type at the prompt that was just shown."""
        time.sleep(0.3)  # what is typed before the question counts as no answer to it
        os.write(self._fd, text.encode())

    def end(self) -> int:
        """Read to the end; the exit code."""
        while self._more(time.monotonic() + 60):
            pass
        _, status = os.waitpid(self._pid, 0)
        os.close(self._fd)
        return os.waitstatus_to_exitcode(status)

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.write(self._fd, b"\x03")

    def _more(self, until: float) -> bool:
        while time.monotonic() < until:
            if select.select([self._fd], [], [], 0.5)[0]:
                try:
                    read = os.read(self._fd, 65536)
                except OSError:
                    return False  # Linux says so when the other side is closed
                self.shown += CODES.sub("", read.decode(errors="replace"))
                return bool(read)
        return False


@contextmanager
def running(data_dir: Path, *words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`ratchet run` without a terminal."""
    given = bare_environment(RATCHET_DATA_DIR=str(data_dir), **environment)
    with subprocess.Popen(
        [*PROGRAM, "run", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=given,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def marks(data_dir: Path) -> list[str]:
    """What calls of runs of this directory wrote."""
    path = data_dir.parent / "files" / "marks.txt"
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def files(data_dir: Path) -> dict[str, str]:
    """The variable that names a folder for what tools write."""
    (data_dir.parent / "files").mkdir()
    return {"RATCHET_FILES_ROOT": str(data_dir.parent / "files")}


def test_without_a_terminal_the_run_waits_and_the_command_that_decides_is_named_once(
    data_dir: Path, agent: Path, files: dict[str, str]
) -> None:
    with running(data_dir, "--agent", str(agent), "--id", "waits", "go", **files) as run:
        assert run.stderr is not None
        said = ""
        while "ratchet approve waits r1" not in said:
            said += run.stderr.readline()
        editor = data_dir.parent / "editor.sh"
        editor.write_text("#!/bin/sh\necho 'lin: careful' > $1\n")
        editor.chmod(0o700)
        edit = Terminal(data_dir, "edit", "waits", **files, EDITOR=str(editor))
        kept = edit.until(r"what you wrote is kept in (/\S+\.json)")
        assert (edit.end(), Path(kept[1]).read_text()) == (3, "lin: careful\n"), edit.shown
        Path(kept[1]).unlink()
        decided = run_ratchet(data_dir, "approve", "waits", "--by", "Ada", **files)
        assert decided.returncode == 0, decided.stderr
        out, more = run.communicate(timeout=60)
        assert run.returncode == 0, more
    assert "r1 approval   run waits" in said
    assert '"line": "first"' in said
    assert (said + more).count("ratchet approve waits r1") == 1
    assert "all done" in out
    assert marks(data_dir) == ["first"]


def test_with_json_the_request_is_a_line_on_standard_error(
    data_dir: Path, agent: Path, files: dict[str, str]
) -> None:
    with running(data_dir, "--agent", str(agent), "--id", "waits", "--json", "go", **files) as run:
        assert run.stderr is not None
        line = ""
        while not line.startswith("{"):
            line = run.stderr.readline()
        told = json.loads(line)
        command = next(answer for answer in told["answers"] if answer.startswith("ratchet reject"))
        digest = told["request"]["digest"][:8]
        assert command.startswith(f"ratchet reject waits r1 --digest {digest} -m ")
        assert told["request"]["tool"] == "mark_once"
        decided = run_ratchet(data_dir, "reject", "waits", "r1", "--json", **files)
        assert json.loads(decided.stdout)["decided"]["outcome"] == "rejected"
        out, _ = run.communicate(timeout=60)
    *records, result = map(json.loads, out.splitlines())
    assert [record["seq"] for record in records] == list(range(len(records)))
    assert result["decisions"][0]["outcome"] == "rejected"
    assert marks(data_dir) == []


def test_on_a_terminal_it_is_asked_right_there(data_dir: Path, tmp_path: Path, files: dict[str, str]) -> None:
    editor = tmp_path / "editor.sh"
    editor.write_text("#!/bin/sh\nsed -i 's/third/THIRD/' \"$1\"\n")
    editor.chmod(0o700)
    calls = [{"line": name} for name in ("first", "second\u001b[2J", "third")]
    terminal = Terminal(
        data_dir,
        "run",
        "--agent",
        str(agent_file(tmp_path, *calls)),
        "--id",
        "asks",
        "go",
        **files,
        EDITOR=str(editor),
    )
    terminal.until(r"r1 approval   run asks")
    terminal.until(r'"line": "first"')
    terminal.until(r"a  approve.*\s+r  reject.*\s+e  edit")
    terminal.until(r"letter, and a comment")
    terminal.type("what?\n")
    terminal.until(r"a  approve.*(?s:.*)letter, and a comment")
    terminal.type("a looks fine\n")
    terminal.until(r"r1 (?:approval mark_once )?approved by Ada \(claimed\): looks fine")
    terminal.until(r"r2 approval(?s:.*)second(?s:.*)letter, and a comment")
    terminal.type("r never\n")
    terminal.until(r"r2 (?:approval mark_once )?rejected by Ada")
    terminal.until(r"r3 approval(?s:.*)letter, and a comment")
    terminal.type("e\n")
    terminal.until(r"r3 (?:approval mark_once )?edited (?:to .*)?by Ada")
    assert terminal.end() == 0, terminal.shown
    assert "all done" in terminal.shown
    assert marks(data_dir) == ["first", "THIRD"]
    log = run_ratchet(data_dir, "log", "asks", "--json", **files).stdout
    assert "looks fine" in log


def test_what_is_typed_before_the_question_is_no_answer_to_it(
    data_dir: Path, agent: Path, files: dict[str, str]
) -> None:
    terminal = Terminal(data_dir, "run", "--agent", str(agent), "--id", "early", "go", **files)
    terminal.until("agent asks")
    terminal.type("a\na\n")
    terminal.until(r"letter, and a comment")
    time.sleep(1)
    assert "approved" not in terminal.shown
    terminal.type("x\n")
    terminal.until("aborted")
    assert terminal.end() == 1


def test_an_interrupt_at_the_question_leaves_the_run_waiting_and_names_the_answer(
    data_dir: Path, agent: Path, files: dict[str, str]
) -> None:
    terminal = Terminal(data_dir, "run", "--agent", str(agent), "--id", "kept", "go", **files)
    terminal.until(r"letter, and a comment")
    terminal.interrupt()
    terminal.until(r"ratchet approve kept r1")
    terminal.until(r"interrupted; kept is kept")
    assert terminal.end() == 130
    inbox = json.loads(run_ratchet(data_dir, "inbox", "--json", **files).stdout)
    assert [line["asks"][0]["tool"] for line in inbox] == ["mark_once"]
    # No worker runs now: it goes as a signal, and is in force when one comes.
    decided = run_ratchet(data_dir, "approve", "kept", "--by", "Ada", **files)
    assert decided.returncode == 0, decided.stderr
    assert "takes effect when a worker takes it" in decided.stdout
    resumed = run_ratchet(data_dir, "run", "--resume", "--json", **files)
    assert resumed.returncode == 0, resumed.stderr
    assert re.search(r"kept  go   waits for a person \(approval\): ratchet inbox kept", resumed.stderr)
    assert json.loads(resumed.stdout.splitlines()[-1])["decisions"][0]["by"] == ["Ada"]
    assert marks(data_dir) == ["first"]


def test_a_request_that_is_decided_elsewhere_is_asked_no_more(
    data_dir: Path, agent: Path, files: dict[str, str]
) -> None:
    terminal = Terminal(data_dir, "run", "--agent", str(agent), "--id", "both", "go", **files)
    terminal.until(r"letter, and a comment")
    decided = run_ratchet(data_dir, "approve", "both", "--by", "Bob", **files)
    assert decided.returncode == 0, decided.stderr
    terminal.until("r1 is closed by now")
    assert terminal.end() == 0
    assert "all done" in terminal.shown


def test_who_may_not_decide_is_told_so_and_the_view_says_what_is_waited_for(
    data_dir: Path, tmp_path: Path, files: dict[str, str]
) -> None:
    people = "people: {groups: {ops: {members: [Bob]}}, asking: {group: ops}}"
    agent = agent_file(tmp_path, {"line": "first"}, more=people)
    terminal = Terminal(data_dir, "run", "--agent", str(agent), "--id", "bobs", "go", **files)
    terminal.until(r"Bob may decide it, you are Ada(?s:.*)ratchet approve bobs r1")
    terminal.until(r"waits for a person: approval r1")
    decided = run_ratchet(data_dir, "approve", "bobs", "--by", "Bob", **files)
    assert decided.returncode == 0, decided.stderr
    assert terminal.end() == 0


def test_a_run_that_is_watched_from_a_second_terminal_is_decided_there(
    data_dir: Path, agent: Path, files: dict[str, str]
) -> None:
    with running(data_dir, "--agent", str(agent), "--id", "seen", "go", **files) as run:
        assert run.stderr is not None
        while "ratchet approve seen r1" not in run.stderr.readline():
            pass
        terminal = Terminal(data_dir, "watch", "seen", **files)
        terminal.until(r"letter, and a comment")
        terminal.type("l\n")
        terminal.until("left waiting; it is decided by")
        terminal.interrupt()
        assert terminal.end() == 130
        terminal = Terminal(data_dir, "watch", "seen", **files)
        terminal.until(r"letter, and a comment")
        terminal.type("a\n")
        assert terminal.end() == 0
        run.send_signal(signal.SIGCONT)
        assert run.wait(60) == 0


def test_a_limit_is_topped_up_at_the_question_and_a_rollback_wants_a_yes_on_the_terminal(
    data_dir: Path, tmp_path: Path, files: dict[str, str]
) -> None:
    more = "limits: {model_calls: 1}\npeople: {on_limit: ask}\napprovals: {effects: {unsafe: never}}"
    agent = agent_file(tmp_path, {"line": "first"}, more=more)
    terminal = Terminal(data_dir, "run", "--agent", str(agent), "--id", "more", "go", **files)
    terminal.until(r"r1 limit(?s:.*)letter, and a comment")
    back = Terminal(data_dir, "rollback", "more", "--step", "1", **files)
    back.until(r"done since step 1 began")
    back.until(r"1 +mark_once +.*first.*NO")
    back.until(r"Roll more back to step 1\? \[y/N\]")
    back.type("\n")
    assert back.end() == 4
    assert "nothing was done" in back.shown
    terminal.type("m\n")
    terminal.until("say how much more")
    terminal.type("m model_calls=5\n")
    terminal.until(r"r1 (?:limit )?topped up (?:by model_calls 5 )?by Ada")
    assert terminal.end() == 0
    assert marks(data_dir) == ["first"]
