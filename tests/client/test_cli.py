"""The command line as a person meets it: processes, a terminal, what is printed and the exit code."""

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
from importlib.metadata import version
from pathlib import Path

import pytest

from client.cli import execute
from client.server import running_server
from tests.client.conftest import PROGRAM, ROOT, Ratchet, bare_environment

QUESTION = "Which service fails most, and since when?"
ANSWER = r"fails most: \d+ of \d+ errors"


def lines_of(text: str) -> list[dict[str, object]]:
    """JSON lines."""
    return [json.loads(line) for line in text.splitlines()]


def killed_in_the_middle(data_dir: Path, run_id: str, how: signal.Signals) -> str:
    """Start a run as a process, end it by a signal when two steps are done; what it said to people."""
    words = [*PROGRAM, "run", "--agent", "log_detective", "--id", run_id, "--json", QUESTION]
    words += ["--set", "heartbeat_seconds=3"]
    environment = bare_environment(RATCHET_DATA_DIR=str(data_dir))
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if json.loads(line).get("step") == 3:
                break
        process.send_signal(how)
        process.stdout.read()
        return process.stderr.read()


def test_a_run_is_shown_as_it_happens_and_can_be_read_later(
    served: Ratchet,
) -> None:
    run = served("run", "--agent", "log_detective", "--id", "first", QUESTION)
    assert run.returncode == 0, run.stderr
    assert "no language model" in run.stderr
    assert re.search(r"thought → validate  \w+ .* tokens · \$0", run.stdout)
    assert 'search_files("examples/data/services.log"' in run.stdout
    assert re.search(ANSWER, run.stdout)
    assert re.search(r"run first +http://127\.0\.0\.1:\d+/namespaces/default/workflows/first", run.stderr)

    listed = {line["id"]: line for line in json.loads(served("list", "--json").stdout)}
    assert (listed["first"]["progress"], listed["first"]["goal"]) == ("completed", QUESTION)
    shown = json.loads(served("show", "first", "--json").stdout)
    assert shown["status"]["exit_reason"] == "goal_achieved"
    records = lines_of(served("log", "first", "--json").stdout)
    assert [record["seq"] for record in records] == list(range(shown["status"]["records"]))
    result = served("result", "first", "--json")
    assert (result.returncode, json.loads(result.stdout)["answer"]) == (0, shown["status"]["answer"])

    again = served("run", "--agent", "log_detective", "--id", "first", QUESTION)
    assert (again.returncode, again.stdout) == (1, "")
    assert "ratchet watch first" in again.stderr
    missing = served("show", "second")
    assert missing.returncode == 1
    assert "there is no run second" in missing.stderr


def test_json_on_a_run_gives_records_and_the_result_last(served: Ratchet) -> None:
    run = served("run", "--agent", "log_detective", "--json", "-", stdin=f"{QUESTION}\n")
    assert run.returncode == 0, run.stderr
    *records, result = lines_of(run.stdout)
    assert [record["seq"] for record in records] == list(range(len(records)))
    assert (result["ok"], result["records"]) == (True, len(records))


def test_a_run_that_reaches_its_limit_ends_with_1(served: Ratchet) -> None:
    run = served("run", "--agent", "log_detective", "--set", "max_steps=1", QUESTION)
    assert run.returncode == 1
    assert "no success" in run.stdout


def test_a_killed_run_goes_on_to_its_end_and_repeats_no_step(ratchet: Ratchet, data_dir: Path) -> None:
    killed_in_the_middle(data_dir, "killed", signal.SIGKILL)
    server = running_server(data_dir)
    assert server is not None
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    looked = ratchet("show", "killed", "--json")
    assert json.loads(looked.stdout)["run"]["progress"] == "running"
    assert "ratchet run --resume" in looked.stderr
    resumed = ratchet("run", "--resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert re.search(r"not over and go on now:\n  killed  Which service", resumed.stderr)
    *records, result = lines_of(resumed.stdout)
    assert re.search(ANSWER, str(result["answer"]))
    assert [record["seq"] for record in records] == list(range(len(records)))
    counters = result["counters"]
    assert isinstance(counters, dict)
    assert (counters["model_calls"], counters["tool_calls"]) == (6, 5)
    assert "no run of this directory is interrupted" in ratchet("run", "--resume").stderr


def test_ctrl_c_keeps_the_run_and_says_how_to_go_on(ratchet: Ratchet, data_dir: Path) -> None:
    said = killed_in_the_middle(data_dir, "stopped", signal.SIGINT)
    assert re.search(r"interrupted; stopped is kept.*`ratchet run --resume`", said)
    assert running_server(data_dir) is None
    cancelled = ratchet("cancel", "stopped")
    assert cancelled.returncode == 0, cancelled.stderr
    resumed = ratchet("run", "--resume", "--json")
    assert resumed.returncode == 1
    assert lines_of(resumed.stdout)[-1]["exit_reason"] == "cancelled"


def test_on_a_terminal_the_view_lives_and_the_answer_is_framed(served_dir: Path) -> None:
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        environment = bare_environment(RATCHET_DATA_DIR=str(served_dir), TERM="xterm", COLUMNS="100")
        os.execve(sys.executable, [*PROGRAM, "run", "--agent", "log_detective", QUESTION], environment)
    shown = b""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if select.select([terminal], [], [], 1)[0]:
                shown += os.read(terminal, 65536)
        except OSError:
            break  # Linux says so when the other side is closed
    _, status = os.waitpid(process, 0)
    os.close(terminal)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert os.waitstatus_to_exitcode(status) == 0, text
    assert "─ answer ─" in text
    assert re.search(r"thought \d s", text)
    assert re.search("fails most", text)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["run", "do it"], "OPENAI_API_KEY.*--base-url.*--model scripted", id="no key"),
        pytest.param(["run"], "say what the agent shall do", id="no goal"),
        pytest.param(["run", "", "--model", "scripted"], "the goal is empty", id="empty goal"),
        pytest.param(["run", "--resume", "x"], "leave it out", id="resume with a goal"),
        pytest.param(["run", "x", "--worker", "--detach"], "leave one of them out", id="worker and detach"),
        pytest.param(["run", "x", "-a", "nix.yaml"], "nix.yaml: there is no such file", id="no file"),
        pytest.param(["run", "x", "-a", "nix"], "no shipped agent; there is", id="no agent"),
        pytest.param(["run", "x", "-t", "calc"], "--tool calc.*`calculator`", id="no tool"),
        pytest.param(["run", "x", "--machine", "recat"], "did you mean `react`", id="no machine"),
        pytest.param(["run", "x", "--set", "a"], "expected KEY=VALUE", id="setting without value"),
        pytest.param(["run", "x", "--prot", "1"], "--port", id="misspelt option"),
        pytest.param(["run", "x", "--port", "70000"], "--port.*65535", id="no port"),
        pytest.param(["rnu"], "rnu", id="misspelt command"),
        pytest.param(["diagram", "recat"], "did you mean react", id="diagram of no machine"),
        pytest.param(["task", "nix", "goal"], "no shipped agent", id="task of no agent"),
    ],
)
def test_bad_input_gets_a_paragraph_and_exit_code_2_and_starts_nothing(
    capsys: pytest.CaptureFixture[str], data_dir: Path, arguments: list[str], said: str
) -> None:
    place = [] if arguments == ["rnu"] else ["--data-dir", str(data_dir)]
    assert execute([*arguments, *place]) == 2
    spoken = capsys.readouterr()
    assert re.search(f"(?s){said}", spoken.err)
    assert "Traceback" not in spoken.err
    assert (spoken.out, data_dir.exists()) == ("", False)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        pytest.param(["list", "--address", "127.0.0.1:1"], 1, "127.0.0.1:1 does not answer", id="server"),
        pytest.param(
            ["list", "--address", "no.invalid:7233"], 1, "7233 does not answer (failed to lookup", id="host"
        ),
        pytest.param(["list", "--data-dir", "/dev/null/x"], 2, "/dev/null/x cannot be used", id="folder"),
    ],
)
def test_what_cannot_be_reached_is_named(
    ratchet: Ratchet, arguments: list[str], code: int, said: str
) -> None:
    ended = ratchet(*arguments)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_debug_shows_where(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", "--debug"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert said.splitlines()[-1].startswith("ratchet: say what")


def test_a_task_is_printed_as_the_input_of_a_workflow(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["task", "log_detective", "go"]) == 0
    task = json.loads(capsys.readouterr().out)
    assert (task["goal"], task["agent"], task["machine"]) == ("go", "log_detective", "react")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["tools"], "search_files (read)", id="tools"),
        pytest.param(["machines"], "Think, check the thought", id="machines"),
        pytest.param(["agents"], "machine staged · follows a script, needs no model", id="agents"),
        pytest.param(["diagram", "react"], "stateDiagram-v2", id="diagram"),
        pytest.param(["diagram", "react", "--form", "table"], "| from | event | to |", id="table"),
    ],
)
def test_what_there_is_is_said(
    capsys: pytest.CaptureFixture[str], data_dir: Path, arguments: list[str], said: str
) -> None:
    assert execute([*arguments, "--data-dir", str(data_dir)]) == 0
    assert said in capsys.readouterr().out
    if arguments[0] != "diagram":
        assert execute([*arguments, "--json", "--data-dir", str(data_dir)]) == 0
        assert isinstance(json.loads(capsys.readouterr().out), list)


def test_doctor_says_what_is_well_and_what_to_do_about_the_rest(served: Ratchet) -> None:
    well = served("doctor", "--agent", "log_detective", "--json")
    assert well.returncode == 0, well.stdout
    assert {check["name"] for check in json.loads(well.stdout)} >= {
        "server",
        "search attributes",
        "tools",
        "store",
    }
    ill = served("doctor", "--agent", "assistant", TEMPORAL_ADDRESS="127.0.0.1:1")
    assert ill.returncode == 1
    assert re.search("BAD +server .* TEMPORAL_ADDRESS names it; .*`unset TEMPORAL_ADDRESS`", ill.stdout)
    assert re.search("BAD +model gpt-5-mini.*OPENAI_API_KEY", ill.stdout)
    keyless = served("doctor")
    assert (keyless.returncode, keyless.stderr) == (0, "")
    assert re.search("ok +model +OPENAI_API_KEY is not set; only needed for", keyless.stdout)


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["--version"]) == 0
    assert capsys.readouterr().out == f"ratchet {version('ratchet')}\n"


def test_help_is_there_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["--help"]) == 0
    commands = re.findall(r"^  (\w+)  ", capsys.readouterr().out, re.MULTILINE)
    assert {"run", "dev", "down", "task", "show", "log", "watch", "list", "result", "doctor"} <= set(commands)
    for command in commands:
        assert execute([command, "--help"]) == 0
        assert "--data-dir" in capsys.readouterr().out
