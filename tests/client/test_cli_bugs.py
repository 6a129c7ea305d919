"""What the author of a machine sees of a fault in it: by the command line and the SDK."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from activities.settings import Settings
from client.errors import MachineBug
from client.sdk.agent import AgentClient
from client.server.embedded import EmbeddedServer
from tests.client.commandline import Cli, Result, environment, running, until
from tests.forked import RATCHET, Forked
from workflows.api import RunStatus

USER_MODULE = Path(__file__).with_name("user_module.py")
LINE = "reply.text}"


@pytest.fixture(scope="module")
async def cli(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cli]:
    """Commands at a server that runs all the time; workers come and go with the commands."""
    home, files = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("files")
    async with await EmbeddedServer.attach(home):
        yield Cli(home, files)


def agent_with(folder: Path, written: str, name: str) -> tuple[str, Path]:
    """The files of an agent and its machine, which has this in place of the text of the reply."""
    machine, agent = folder / "poems.py", folder / "poet.yaml"
    source = USER_MODULE.read_text().replace('name="poet"', f'name="{name}"').replace("HOOKS", "OTHER")
    machine.write_text(source.replace(LINE, f"{written}}}").replace("TOOL =", "UNUSED ="))
    model = {"provider": "scripted", "script": [{"reply": "roses"}]}
    agent.write_text(json.dumps({"machine": name, "modules": [machine.name], "models": {"default": model}}))
    return str(agent), machine


def words_of(machine: Path) -> list[str]:
    """What a message about `reply.txt` has to say."""
    source = machine.read_text()
    line = source[: source.index("reply.txt")].count("\n") + 1
    return ["AttributeError", "'txt'", f"{machine}, line {line}, in ask", "Fix it"]


async def status(data_dir: Path) -> RunStatus:
    """What the SDK says."""
    async with AgentClient.connect(settings=Settings(data_dir=data_dir)) as agents:
        return await agents.status("bard")


def test_bug_is_named_where_the_run_is_started_and_read(cli: Cli, tmp_path: Path) -> None:
    agent, machine = agent_with(tmp_path, "reply.txt", "bard")
    words = words_of(machine)
    found = cli("run", "--agent", agent, "--id", "bard", "Write.")
    missing = [word for word in (*words, "ratchet run --resume") if word not in found.err]
    assert (found.code, missing) == (5, []), found.err
    assert "Traceback" not in found.err
    log, checked = cli("log", "bard"), cli("check")
    assert ("roses" in log.out, "AttributeError" in log.err) == (True, True), "what came last, and the bug"
    assert ("breaks   bard" in checked.out, "AttributeError" in checked.out) == (True, True), checked.out
    with running("dev", "--agent", agent, **cli.variables) as worker:
        shown = until(lambda: (seen := cli("show", "bard")).code == 5 and seen)
        assert [word for word in words if word not in shown.err] == []
        with pytest.raises(MachineBug, match="AttributeError"):
            asyncio.run(status(Path(cli.variables["RATCHET_DATA_DIR"])))
        worker.send_signal(signal.SIGINT)  # one that is killed would count for a while
        assert worker.wait(120) == 0


def test_broken_rule_is_said_once_with_its_line(cli: Cli, tmp_path: Path) -> None:
    agent, machine = agent_with(tmp_path, "[reply.text]", "lister")
    found = cli("run", "--agent", agent, "--id", "lister", "Write.")
    line = machine.read_text().partition("@state")[0].count("\n") + 1
    said = " ".join((found.out + found.err).split())
    assert (found.code, said.count("the patch does not fit")) == (1, 1), said
    assert f"({machine}, line {line}, in ask)" in said
    assert str(machine) not in cli("log", "lister").out, "it may lie elsewhere for the next worker"


def test_all_runs_of_broken_code_are_ended_and_no_other(cli: Cli, tmp_path: Path) -> None:
    agent, _ = agent_with(tmp_path, "reply.txt", "broken")
    assert cli("run", "--agent", agent, "--id", "broken", "Write.").code == 5
    assert cli("run", "--model", "scripted", "--id", "waits", "--detach", "Wait.").code == 0
    asked = cli("cancel", "--broken")
    assert (asked.code, "run broken cannot go on" in asked.err, "AttributeError" in asked.err) == (
        4,
        True,
        True,
    ), asked.err
    ended = cli("cancel", "--broken", "--yes", "--json").json["ended"]
    assert ("broken" in ended, "waits" in ended) == (True, False)
    running = {one["id"] for one in cli("list", "--running", "--json").lines}
    assert ("broken" in running, "waits" in running) == (False, True)


def test_bug_in_begin_does_not_blame_the_task(cli: Cli, tmp_path: Path) -> None:
    agent, machine = agent_with(tmp_path, "reply.text", "beginner")
    machine.write_text(machine.read_text().replace("options: Poem()", "options: Poem(text=1)"))
    found = cli("run", "--agent", agent, "--id", "beginner", "Write.")
    line = machine.read_text().partition("Poem(text=1)")[0].count("\n") + 1
    assert (found.code, "id is used up" in found.err, "other worker" in found.err) == (2, False, False)
    assert "ValidationError: Poem: text: expected a string, got a number" in found.err
    assert (found.out + found.err).count("ValidationError") == 1
    assert f"({machine}, line {line}, in <lambda>)" in found.err


def test_impure_machine_is_named_where_it_was_started(cli: Cli, tmp_path: Path) -> None:
    agent, machine = agent_with(tmp_path, "open('/dev/null').read()", "impure")
    found = cli("run", "--agent", agent, "--id", "impure", "Write.")
    assert found.code == 1
    assert "uses open" in found.out
    assert f"{machine}, line" in found.out


def test_exception_of_own_tool_is_shown_with_file_and_line(cli: Cli, tmp_path: Path) -> None:
    tool, agent = tmp_path / "breaks.py", tmp_path / "breaks.yaml"
    tool.write_text(
        "from pydantic import BaseModel\nfrom ratchet import Tool\n"
        'class Params(BaseModel):\n    """Add."""\n    n: int\n'
        "def run(params):\n    return {}[params.n]\n"
        'TOOL = Tool(name="breaks", params=Params, run=run, effect="pure")\n'
    )
    calls = [
        {"id": f"c{n}", "name": "breaks", "arguments": json.dumps(given)}
        for n, given in enumerate(({"n": 1}, {"n": 1, "m": 2}))
    ]
    script = [*({"reply": "", "tool_calls": [call]} for call in calls), {"reply": "done"}]
    models = {"default": {"provider": "scripted", "script": script}}
    facts = {"machine": "tools", "modules": [tool.name], "tools": ["breaks"], "models": models}
    agent.write_text(json.dumps(facts))
    found = cli("run", "--agent", str(agent), "Add.")
    assert f"KeyError\n  {tool}, line 7, in run" in found.err
    assert "KeyError: 1" in found.out
    assert "('m' was unexpected); its arguments are: n" in found.out, "and the model can mend it"


def waiting_run(cli: Cli, folder: Path, name: str) -> tuple[str, Path]:
    """The agent and machine of a run that asks a person and has no worker any more."""
    agent, machine = agent_with(folder, "reply.text", name)
    source = machine.read_text().replace(
        "from activities.contracts import", "from activities.contracts import AskPerson,"
    )
    asks = 'yield AskPerson(about="question", text="Good?", options=("approve", "reject"))'
    machine.write_text(
        source.replace("asks={AskModel}", "asks={AskModel, AskPerson}").replace(
            "    return {", f"    {asks}\n    return {{"
        )
    )
    with running("run", "--agent", agent, "--id", name, "Write.", **cli.variables) as begun:
        until(lambda: any(one["id"] == name for one in cli("inbox", "--json").lines))
        begun.send_signal(signal.SIGINT)
        assert begun.wait(120) == 130
    return agent, machine


def alone(cli: Cli, *words: str) -> Result:
    """A command in its own process, which loads modules as they are now."""
    with running(*words, **cli.variables) as process:
        out, err = process.communicate()
        return Result(process.wait(), out, err)


def test_run_whose_code_broke_is_read_decided_and_mended(cli: Cli, tmp_path: Path) -> None:
    agent, machine = waiting_run(cli, tmp_path, "asker")
    source = machine.read_text()
    broken = source.replace("    yield AskPerson", "    c.nothing\n    yield AskPerson")
    for written, problem in (("raise RuntimeError('no')", "unknown machine asker"), (broken, "'nothing'")):
        machine.write_text(written)
        for command in ("log", "steps", "show"):
            found = alone(cli, command, "asker")
            assert (found.code, "Traceback" in found.err) == (0, False), (command, found.err)
            if command == "log":
                assert ("roses" in found.out, problem in found.err) == (True, True), found.out + found.err
    words = "dev", "--agent", agent
    with Forked(RATCHET, *words, env=environment(**cli.variables)) as worker:  # it prints each failure
        bug = until(lambda: (found := alone(cli, "log", "asker")).code == 5 and found)
        assert ("roses" in bug.out, f"{machine}, line" in bug.err) == (True, True), bug.out + bug.err
        sent = alone(cli, "approve", "asker")
        assert (sent.code, "it takes effect when a worker takes it" in sent.out) == (0, True), sent.out
        worker.send_signal(signal.SIGINT)
        assert worker.wait(120) == 0
    machine.write_text(source)
    assert (alone(cli, "run", "--resume").code, alone(cli, "result", "asker").out.count("roses")) == (0, 1)


def test_broken_run_that_only_waits_is_ended_too(cli: Cli, tmp_path: Path) -> None:
    """It has no task that could fail, so its worker is asked; without one nobody knows."""
    agent, machine = waiting_run(cli, tmp_path, "idle")
    machine.write_text(
        machine.read_text().replace("    yield AskPerson", "    c.nothing\n    yield AskPerson")
    )
    unasked = cli("cancel", "--broken", "--json")
    assert "idle" in unasked.json["unanswered"]
    for words in ("idle", "no worker", "`ratchet check`", "`ratchet cancel RUN --force`"):
        assert words in unasked.err, unasked.err
    with Forked(RATCHET, "dev", "--agent", agent, env=environment(**cli.variables)) as worker:
        until(lambda: alone(cli, "show", "idle").code == 5)
        ended = cli("cancel", "--broken", "--yes", "--json")
        assert ("idle" in ended.json["ended"], "'nothing'" in ended.err) == (True, True), ended.err
        worker.send_signal(signal.SIGINT)
        assert worker.wait(120) == 0


def test_machine_that_was_changed_is_named_with_what_to_do(data_dir: Path, tmp_path: Path) -> None:
    cli = Cli(data_dir, tmp_path)
    _, machine = waiting_run(cli, tmp_path, "changed")
    machine.write_text(
        machine.read_text().replace(
            '    reply = yield AskModel(label="ask")\n', "    reply = yield from ()\n"
        )
    )
    machine.write_text(machine.read_text().replace("reply.text", "reply"))
    found = cli("run", "--resume")
    assert found.code == 5, found.err
    for words in (
        "the machine changed",
        "in state ask",
        "ratchet check",
        "ratchet docs versions",
    ):
        assert words in found.err, found.err
    assert "TMPRL" not in found.err
    checked = cli("check").out
    assert "breaks   changed" in checked
    assert "--address" not in checked


def test_run_whose_code_is_broken_since_is_still_read(cli: Cli, tmp_path: Path) -> None:
    """What it did is in the archive; where that lacks it, in its history. A replay says what is missing."""
    agent, machine = agent_with(tmp_path, "reply.text", "gone")
    with running("run", "--agent", agent, "--id", "gone", "Write.", **cli.variables) as run:
        assert run.wait(120) == 0  # a process of its own: this one would keep the module
    archive = Path(cli.variables["RATCHET_DATA_DIR"]) / "archive.db"
    for breaks in (lambda: machine.write_text("raise RuntimeError"), machine.unlink, archive.unlink):
        breaks()
        for command in ("log", "steps", *(("show", "result") if archive.exists() else ())):
            found = cli(command, "gone")
            assert (found.code, "roses" in found.out) == (0, True), (command, found.err)
    for command in ("replay", "export"):
        found = cli(command, "gone")
        assert (found.code, "unknown machine gone" in found.out + found.err) == (1, True), found.err
    assert "RATCHET_MODULES" in found.err
