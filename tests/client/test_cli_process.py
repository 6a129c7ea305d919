"""What only a process of its own shows: entry point, pipes, signals, exit codes, completion."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
import pytest

from client.server.embedded import LASTING, running_server
from tests.client.commandline import PROGRAM, Cli, agent_file, environment, running, until
from tests.client.conftest import ROOT
from tests.forked import Forked


def shell(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A line for bash, in which `R` is the command; the exit code is that of the first in a pipe."""
    program = " ".join(f"'{word}'" for word in PROGRAM)
    return subprocess.run(
        ["bash", "-c", f'R() {{ {program} "$@"; }}; {line}; exit ${{PIPESTATUS[0]}}'],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment(**variables),
        timeout=120,
    )


@pytest.mark.parametrize(
    ("line", "code", "culprit"),
    [
        ("R machines | true", 0, ""),
        pytest.param("R --help | true", 0, "", marks=pytest.mark.exhaustive),
        pytest.param("R machines --json >&- 2>&-", 0, "", marks=pytest.mark.exhaustive),
        pytest.param("R --help >/dev/full", 1, "No space left", marks=pytest.mark.exhaustive),
        ("R machines >/dev/full", 1, "No space left"),
        ("R run", 2, "goal"),
    ],
)
def test_output_may_be_closed_or_full(tmp_path: Path, line: str, code: int, culprit: str) -> None:
    ended = shell(line, RATCHET_DATA_DIR=str(tmp_path / "data"))
    assert (ended.returncode, culprit in ended.stderr) == (code, True), ended.stderr
    assert "Traceback" not in ended.stderr


def test_ascii_terminal_gets_question_marks(tmp_path: Path) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = shell("R agents", RATCHET_DATA_DIR=str(tmp_path / "data"), **ascii_only)
    assert (ended.returncode, "?" in ended.stdout, ended.stdout.isascii()) == (0, True, True)


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (("run", "--model", "scripted", "-"), signal.SIGINT),
        pytest.param(("task", "-a", "log_detective", "-"), signal.SIGTERM, marks=pytest.mark.exhaustive),
    ],
)
def test_goal_that_never_comes_can_be_interrupted(
    tmp_path: Path, words: tuple[str, ...], number: signal.Signals
) -> None:
    with running(*words, RATCHET_DATA_DIR=str(tmp_path / "data")) as process:
        until(lambda: process.poll() is not None or _catches(process.pid, signal.SIGTERM))
        process.send_signal(number)
        assert process.wait(120) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def _catches(pid: int, number: signal.Signals) -> bool:
    """The process has a handler of its own for the signal."""
    (mask,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


async def test_interrupted_run_is_kept_and_its_server_stopped(data_dir: Path, tmp_path: Path) -> None:
    agent = agent_file(tmp_path, "first")
    variables = {"RATCHET_DATA_DIR": str(data_dir), "RATCHET_FILES_ROOT": str(tmp_path)}
    with running("run", "--agent", agent, "--id", "kept", "--json", "go", **variables) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        next(line for line in process.stdout if json.loads(line)["event"] == "Requested")
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        err = process.stderr.read()
        assert process.wait(120) == 130
    assert "kept is kept" in err
    cli = Cli(data_dir, tmp_path)
    for command in ("list", "inbox"):
        shown = await cli.beside(command)
        assert "no worker runs; `ratchet run --resume` continues what is not over" in shown.err
    assert running_server(data_dir) is None


def test_web_ui_reads_through_the_codec_server_of_dev(data_dir: Path, tmp_path: Path) -> None:
    cli = Cli(data_dir, tmp_path)
    with running("dev", **cli.variables) as worker:
        _polls(worker)
        server = running_server(data_dir)
        assert server is not None
        wanted = httpx.get(f"{server.ui}/api/v1/settings").json()["Codec"]["Endpoint"]
        assert httpx.URL(wanted).port in LASTING, "another program may get it by chance"
        for origin, status in ((server.ui, 200), ("http://127.0.0.1:1", 403)):
            headers = {"Origin": origin, "X-Namespace": "default"}
            answer = httpx.post(f"{wanted}/decode", json={"payloads": []}, headers=headers)
            assert answer.status_code == status
        assert cli("codec", "--listen", wanted.removeprefix("http://")).code == 2


def test_codec_server_says_where_it_answers(data_dir: Path, tmp_path: Path) -> None:
    cli = Cli(data_dir, tmp_path)
    with running("codec", "--listen", "127.0.0.1:0", **cli.variables) as server:
        assert server.stderr is not None
        (url,) = re.findall(r"http://\S+", server.stderr.readline())
        assert httpx.post(f"{url}/decode", json={"payloads": []}).status_code == 200
        server.send_signal(signal.SIGINT)
        assert server.wait(120) in (0, 130)
    assert cli("codec", "--listen", "8888").code == 2


def test_detached_run_is_refused_beside_worker_without_its_modules(data_dir: Path, tmp_path: Path) -> None:
    agent = agent_file(tmp_path, "first", more="approvals: {effects: {unsafe: never}}")
    cli = Cli(data_dir, tmp_path)
    with running("dev", **cli.variables) as worker:
        _polls(worker)
        refused = cli("run", "--agent", agent, "--id", "mine", "--detach", "go")
        assert (refused.code, "ratchet dev --agent FILE" in refused.err) == (2, True), refused.err
        assert cli("run", "--agent", agent, "--id", "own", "go").code == 0
        worker.send_signal(signal.SIGINT)
        assert worker.wait(120) == 0
    with running("dev", "--agent", "refund_desk", "--agent", agent, **cli.variables) as worker:
        _polls(worker)
        found = cli("run", "--agent", agent, "--id", "mine", "--detach", "go")
        assert found.code == 0, found.err
        assert cli("watch", "mine").code == 0
    assert cli.marks() == ["first", "first"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("words", [("run", "--resume", "--json"), ("dev",)])
def test_unfinished_runs_continue_only_when_told(
    data_dir: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """One was killed while it worked alone, one waits for a worker; then another run; then they continue."""
    cli = Cli(data_dir, tmp_path)
    agent = agent_file(tmp_path, "one")
    with running("run", "--agent", agent, "--id", "one", "--json", "go", **cli.variables) as killed:
        assert killed.stdout is not None
        next(line for line in killed.stdout if json.loads(line)["event"] == "Requested")
        assert cli("list").err == ""
    assert running_server(data_dir) is not None
    assert "no worker runs; `ratchet run --resume` continues" in cli("list").err
    free = agent_file(tmp_path, "free", more="approvals: {effects: {unsafe: never}}")
    assert cli("run", "--agent", free, "--id", "two", "--detach", "go").code == 0
    assert cli("approve", "one", "--signal").code == 0
    other = cli("run", "--agent", free, "--id", "other", "go")
    assert (other.code, cli.marks()) == (0, ["free"]), other.err
    assert "left alone: 2 other runs of this directory not over" in other.err
    with running(*words, **cli.variables) as worker:
        until(lambda: sorted(cli.marks()) == ["free", "free", "one"])
        if words == ("dev",):
            until(lambda: not cli("list", "--running", "--json").lines)
            worker.send_signal(signal.SIGINT)
        assert worker.wait(120) == 0


def test_dev_that_runs_already_continues_runs_that_are_interrupted(data_dir: Path, tmp_path: Path) -> None:
    cli = Cli(data_dir, tmp_path)
    agent = agent_file(tmp_path, "one")
    with running("dev", "--agent", agent, **cli.variables) as worker:
        _polls(worker)
        with running("run", "--agent", agent, "--id", "one", "--json", "go", **cli.variables) as stopped:
            assert stopped.stdout is not None
            next(line for line in stopped.stdout if json.loads(line)["event"] == "Requested")
            stopped.send_signal(signal.SIGINT)
            assert stopped.wait(120) == 130
        assert cli("approve", "one", "--signal").code == 0
        assert worker.stderr is not None
        next(line for line in worker.stderr if line.startswith("  one  agent marks: go"))
        assert cli("watch", "one").code == 0
    assert cli.marks() == ["one"]


TOOL = """
from pydantic import BaseModel
from ratchet import Tool

class Params(BaseModel):
    \"\"\"Note something.\"\"\"

def run(params):
    return "noted by the {version} tool"

TOOL = Tool(name="note", params=Params, run=run, effect="unsafe")
"""


def noting(folder: Path) -> tuple[str, Path]:
    """An agent file and that of its tool, whose answer names its version."""
    tool, agent = folder / "notes.py", folder / "notes.yaml"
    tool.write_text(TOOL.format(version="first"))
    call = {"id": "c1", "name": "note", "arguments": "{}"}
    model = {"provider": "scripted", "script": [{"reply": "", "tool_calls": [call]}, {"reply": "done"}]}
    facts = {"machine": "tools", "modules": [tool.name], "tools": ["note"], "models": {"default": model}}
    agent.write_text(json.dumps(facts))
    return str(agent), tool


def waits(cli: Cli, run: str) -> None:
    """Return when it asks a person."""
    until(lambda: cli("inbox", run, "--json").json["requests"])


def approved(cli: Cli, run: str) -> str:
    """The log of a run that waits, once it was approved and is over."""
    assert cli("approve", run).code == cli("watch", run).code == 0
    return cli("log", run).out


@contextmanager
def developing(cli: Cli, *words: str) -> Iterator[Callable[[str], bool]]:
    """`ratchet dev` in a process that may replace itself; whether a line of what it says has a text."""
    env = environment(**cli.variables)
    with subprocess.Popen(
        [*PROGRAM, "dev", *words], stderr=subprocess.PIPE, text=True, cwd=ROOT, env=env
    ) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        try:
            yield lambda text: any(text in line for line in lines)
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0
        finally:
            process.kill()


def test_dev_reloads_code_that_changed_unless_it_is_broken(data_dir: Path, tmp_path: Path) -> None:
    """A run that waits goes on with the new code, at the same server."""
    (agent, tool), cli = noting(tmp_path), Cli(data_dir, tmp_path)
    with developing(cli, "--agent", agent) as says:
        assert says(f"{tool}   tool note")
        assert says("A worker runs here")
        server = running_server(data_dir)
        for run in ("old", "new"):
            assert cli("run", "--agent", agent, "--id", run, "--detach", "go").code == 0
            waits(cli, run)
        tool.write_text("def")
        assert says(f"{tool}: line 1: SyntaxError")
        assert says("not reloaded: all stays as it is")
        assert "noted by the first tool" in approved(cli, "old")
        tool.write_text(TOOL.format(version="second"))
        assert says("notes.py changed: the worker starts again")
        assert says(f"{tool}   tool note")
        assert running_server(data_dir) == server
        assert "noted by the second tool" in approved(cli, "new")
    assert running_server(data_dir) is None


WAYS = ["ended", pytest.param("back", marks=pytest.mark.exhaustive)]


@pytest.mark.parametrize("way", WAYS)
def test_dev_keeps_its_worker_while_new_code_breaks_a_run(data_dir: Path, tmp_path: Path, way: str) -> None:
    """The file of a tool that a waiting run needs is gone. Until it is back, or the run is over, the worker
    goes on with what it has loaded."""
    (agent, tool), cli = noting(tmp_path), Cli(data_dir, tmp_path)
    for run in ("one", "two"):
        assert cli("run", "--agent", agent, "--id", run, "--detach", "go").code == 0
    with developing(cli) as says:
        assert says("A worker runs here")
        for run in ("one", "two"):
            waits(cli, run)
        gone = tool.rename(tmp_path / "away.py")
        assert says("  one: there is no tool note")
        assert says("not reloaded: all stays as it is")
        assert "noted by the first tool" in approved(cli, "two")
        if way == "ended":
            assert cli("cancel", "one", "--yes").code == 0
            assert says("notes.py changed: the worker starts again")
            assert cli("watch", "one").code == 1
            return
        gone.write_text(TOOL.format(version="second"))
        gone.rename(tool)
        assert says(f"{tool}   tool note")
        assert "noted by the second tool" in approved(cli, "one")


def test_dev_outlives_code_that_breaks_while_it_starts_again(data_dir: Path, tmp_path: Path) -> None:
    (agent, tool), cli = noting(tmp_path), Cli(data_dir, tmp_path)
    with developing(cli, "--agent", agent) as says:
        assert says("A worker runs here")
        server = running_server(data_dir)
        for broken in ("def", None):
            tool.write_text(TOOL.format(version="second"))
            assert says("notes.py changed: the worker starts again")
            tool.write_text(broken) if broken else tool.unlink()
            assert says("SyntaxError" if broken else "no Python file")
            assert says("no worker runs here until that is mended")
            tool.write_text(TOOL.format(version="third"))
            assert says(f"{tool}   tool note")
        assert running_server(data_dir) == server
    assert running_server(data_dir) is None


def test_dev_tries_again_when_a_file_changes_beside_it(data_dir: Path, tmp_path: Path) -> None:
    (agent, tool), cli = noting(tmp_path), Cli(data_dir, tmp_path)
    second, facts = tmp_path / "second.py", json.loads(Path(agent).read_text())
    with developing(cli, "--agent", agent) as says:
        assert says("A worker runs here")
        second.write_text("def")
        Path(agent).write_text(json.dumps({**facts, "modules": [tool.name, second.name]}))
        assert says(f"{second}: line 1: SyntaxError")
        second.write_text("")
        assert says("notes.yaml changed: the worker starts again")


def test_run_that_has_its_own_worker_is_left_to_it(data_dir: Path, tmp_path: Path) -> None:
    """A worker that lacks its module hinders nobody; once that one has gone, it would break the run."""
    (agent, tool), cli = noting(tmp_path), Cli(data_dir, tmp_path)

    def waiting_runs() -> str:
        return str({one["name"]: one["text"] for one in cli("doctor", "--json").lines}["waiting runs"])

    with running("run", "--agent", agent, "--id", "own", "go", **cli.variables) as own:
        until(lambda: any(one["id"] == "own" for one in cli("inbox", "--json").lines))
        assert cli("modules", "--forget", tool.name).code == 0
        assert waiting_runs() == "none"
        own.send_signal(signal.SIGINT)
        assert own.wait(120) == 130
    # a worker that could not announce its end, on a busy machine, counts for a while
    assert until(lambda: "own: there is no tool note" in waiting_runs())


@pytest.mark.exhaustive
def test_interrupt_while_dev_starts_again_stops_its_server(data_dir: Path, tmp_path: Path) -> None:
    (agent, tool), cli = noting(tmp_path), Cli(data_dir, tmp_path)
    with developing(cli, "--agent", agent) as says:
        assert says("A worker runs here")
        tool.write_text(TOOL.format(version="second"))
        assert says("the worker starts again")
    assert running_server(data_dir) is None


def _polls(worker: Forked) -> str:
    """Wait until `ratchet dev` says that it works."""
    assert worker.stderr is not None
    return next(line for line in worker.stderr if "A worker runs here" in line)


def test_shell_completes_commands() -> None:
    variables = {"_RATCHET_COMPLETE": "complete_bash", "COMP_WORDS": "ratchet appr", "COMP_CWORD": "1"}
    assert shell("R", **variables).stdout.split() == ["approve"]


def test_help_imports_no_client_of_temporal() -> None:
    code = (
        "import sys; from client.cli.app import execute; execute(['-h']); print('temporalio' in sys.modules)"
    )
    found = subprocess.run(
        [PROGRAM[0], "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env=environment()
    )
    assert found.stdout.splitlines()[-1] == "False"
