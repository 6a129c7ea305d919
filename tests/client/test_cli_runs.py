"""Starting and reading runs by the command line."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from activities.store.blobs import BlobStore
from client.server.embedded import EmbeddedServer, running_server
from client.server.workerconfig import Allowed, forget, memory_file, remember
from tests.client.commandline import Cli, agent_file, until
from tests.client.conftest import ROOT
from tests.fake_openai import FakeOpenAI
from tests.server.conftest import TOOLS

QUESTION = "Which service fails most, and since when?"
FILE = str(ROOT / "examples/agents/payments.yaml")
FREELY = "approvals: {effects: {unsafe: never}}"


@pytest.fixture(scope="module")
async def cli(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cli]:
    """Commands at a server that runs all the time; workers come and go with the commands."""
    home, files = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("files")
    async with await EmbeddedServer.attach(home):
        yield Cli(home, files)


@pytest.fixture(scope="module")
def done(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The id of a run that is over: two steps with outside effects."""
    agent = agent_file(tmp_path_factory.mktemp("agent"), "uno", "due", more=FREELY)
    found = cli("run", "--agent", agent, "--id", "done-1", "go")
    assert found.code == 0, found.err
    return "done-1"


def test_provider_of_a_run_is_that_of_its_start(cli: Cli) -> None:
    """A worker that continues it may have another OPENAI_BASE_URL."""
    with FakeOpenAI() as server:
        words = ("--machine", "tools", "--model", "claude-x", "--id", "by-name", "go")
        found = cli("run", *words, OPENAI_BASE_URL=server.base_url)
    assert found.code == 0, found.err
    assert "provider: openai\n" in cli("export", "by-name").out


def test_finished_run_is_listed_shown_and_read(cli: Cli, done: str) -> None:
    line = {one["id"]: one for one in cli("list", "--json").lines}[done]
    assert (line["progress"], line["goal"], line["machine"]) == ("completed", "go", "tools")
    shown = cli("show", "done", "--json").json
    assert shown["status"]["exit_reason"] is not None
    assert [step["step"] for step in shown["steps"]] == [1, 2, 3]
    records = cli("log", done, "--json").lines
    assert [record["seq"] for record in records] == list(range(shown["status"]["records"]))
    assert cli("log", done, "--since", "3", "--json").lines[0]["seq"] == 3
    result = cli("result", done, "--json")
    assert (result.code, result.json["answer"]) == (0, "all done")
    for words in (("list",), ("show", done), ("log", done, "--full"), ("result", done), ("watch", done)):
        found = cli(*words)
        assert found.code == 0, found.err
        assert "done" in found.out


@pytest.mark.parametrize("table", ["records SET json", "runs SET result"])
def test_changed_archive_is_named_by_every_reader(cli: Cli, done: str, tmp_path: Path, table: str) -> None:
    """Temporal has forgotten the run; and it still knows it."""
    kept = Path(cli.variables["RATCHET_DATA_DIR"]) / "archive.db"
    alone = Cli(tmp_path / "alone", cli.files)
    (tmp_path / "alone").mkdir(mode=0o700)
    copy = tmp_path / "alone" / "archive.db"
    copy.write_bytes(kept.read_bytes())
    assert alone("result", done).code == alone("check", "--archive").code == 0
    column = table.rsplit(maxsplit=1)[-1]
    with closing(sqlite3.connect(copy)) as file, file:
        change = f"UPDATE {table}=replace({column}, 'all done', 'ALL FORGED') WHERE workflow_id=?"
        assert file.execute(change, (done,)).rowcount
    reading = [
        ("log", done),
        ("show", done),
        ("steps", done),
        ("result", done),
        ("show", done, "--step", "1"),
    ]
    for words in (*reading, ("costs",), ("check", "--archive")):
        found = alone(*words)
        assert (found.code, "FORGED" in found.out) == (1, False), words
        assert re.search(rf"run {done} .*breaks at (its end, behind )?record \d", found.out + found.err), (
            words
        )
    assert [one["run"] for one in alone("check", "--archive", "--json").lines] == [done]
    shutil.copy(kept, aside := tmp_path / "aside.db")
    try:
        shutil.copy(copy, kept)
        assert {cli(*words).code for words in (*reading, ("compare", done, done))} == {1}
    finally:
        shutil.copy(aside, kept)


def test_run_as_json_gives_records_and_the_result_last(cli: Cli, tmp_path: Path) -> None:
    agent = agent_file(tmp_path, "three", more=FREELY)
    found = cli("run", "--agent", agent, "--json", "-", stdin="from standard input\n")
    *records, result = found.lines
    assert [record["seq"] for record in records] == list(range(len(records)))
    assert (found.code, result["ok"], result["records"]) == (0, True, len(records))


def test_run_that_misses_its_goal_ends_with_1(cli: Cli, tmp_path: Path) -> None:
    agent = agent_file(tmp_path, "four", more=FREELY)
    found = cli("run", "--agent", agent, "--set", "limits.model_calls=1", "--json", "go")
    assert (found.code, found.lines[-1]["exit_reason"]) == (1, "limit")


def test_result_says_that_the_archive_lacks_it(cli: Cli, tmp_path: Path) -> None:
    archive = Path(cli.variables["RATCHET_DATA_DIR"]) / "archive.db"
    aside = archive.with_name("aside.db")
    if archive.exists():
        archive.rename(aside)
    archive.mkdir()
    found = cli("run", "--agent", agent_file(tmp_path), "go")
    archive.rmdir()
    if aside.exists():
        aside.rename(archive)
    assert (found.code, "the archive lacks the end" in found.out) == (0, True), found.err


def test_show_says_how_a_run_ended_and_costs_points_there(cli: Cli, done: str) -> None:
    assert re.search(r"^over +stop, 20\d\d-", cli("show", done).out, re.MULTILINE)
    asked = cli("costs", done)
    assert (asked.code, f"`ratchet show {done}`" in asked.err) == (2, True)


def test_same_id_starts_nothing(cli: Cli, done: str, tmp_path: Path) -> None:
    found = cli("run", "--agent", agent_file(tmp_path), "--id", done, "again")
    assert (found.code, done in found.err) == (1, True)


@pytest.mark.parametrize("command", ["show", "log", "result", "watch", "cancel", "steps", "replay"])
def test_unknown_run_is_named(cli: Cli, command: str) -> None:
    found = cli(command, "no-such-run")
    assert (found.code, found.out) == (1, "")
    assert "no-such-run" in found.err


def test_detached_run_waits_for_a_worker_and_can_be_cancelled(cli: Cli, tmp_path: Path) -> None:
    name = 'a"b\\'
    found = cli("run", "--agent", agent_file(tmp_path, "five"), "--detach", "--json", "--id", name, "go")
    assert found.json == {"id": name}
    assert until(lambda: any(one["id"] == name for one in cli("list", "--running", "--json").lines))
    asked = cli("show", name)
    assert (asked.code, "ratchet run --resume" in asked.err) == (0, True)
    asked_to_stop = {"id": name, "asked_to_stop": True, "has_worker": False}
    # a worker that could not announce its end, on a busy machine, counts for a while
    assert until(lambda: cli("cancel", name, "--json").json == asked_to_stop)
    assert cli("run", "--resume", "--json").code == 1
    exits = {one["id"]: one["exit_reason"] for one in cli("list", "--json").lines}
    assert exits[name] == "cancelled"
    assert cli("cancel", name).code == 1
    assert "no run" in cli("run", "--resume").err


def test_worker_without_the_module_of_a_waiting_run_is_refused(cli: Cli, tmp_path: Path) -> None:
    agent = agent_file(tmp_path, "six", more=FREELY)
    assert cli("run", "--agent", agent, "--detach", "--id", "needs", "go").code == 0
    until(lambda: any(one["id"] == "needs" for one in cli("list", "--running", "--json").lines))
    known = memory_file(Path(cli.variables["RATCHET_DATA_DIR"]))
    known.rename(tmp_path / "aside")  # nothing is remembered
    found, waiting = cli("run", "--resume"), {one["name"]: one for one in cli("doctor", "--json").lines}
    (tmp_path / "aside").rename(known)
    assert (found.code, "needs" in found.err, "mark_once" in found.err) == (2, True, True)
    assert (waiting["waiting runs"]["ok"], "needs" in waiting["waiting runs"]["text"]) == (False, True)
    assert "a worker here has what they need" in cli("doctor").out
    assert cli("run", "--resume").code == 0
    assert "six" in cli.marks()


def test_remembered_modules_are_listed_and_forgotten(tmp_path: Path) -> None:
    cli = Cli(tmp_path, tmp_path)
    assert "no command" in cli("modules").err
    remember(tmp_path, Allowed(modules=(str(TOOLS),), base_urls=("http://localhost:1/v1",)))
    module, server = cli("modules", "--json").lines
    assert (module["module"], "mark_once" in module["tools"]) == (str(TOOLS), True)
    assert server == {"server": "http://localhost:1/v1"}
    assert cli("modules", "--forget", "other.py").code == 2
    assert cli("modules", "--forget", str(TOOLS)).out == f"forgot {TOOLS}\n"
    assert "model server" in cli("modules").out
    assert cli("modules", "--forget-all").code == 0
    assert not cli("modules").out


def test_remembered_module_that_is_gone_is_told_until_forgotten(tmp_path: Path) -> None:
    cli, module = Cli(tmp_path, tmp_path), tmp_path / "gone.py"
    remember(tmp_path, Allowed(modules=(str(module),)))
    for _ in range(2):
        found = cli("machines")
        assert found.err.count(f"left out {module}, which an earlier command named: the file is gone") == 1
        assert (found.code, f"`ratchet modules --forget {module}`" in found.err) == (0, True), found.err
        remember(tmp_path, Allowed(modules=(str(TOOLS),)))
    listed, _ = cli("modules", "--json").lines
    assert (listed["module"], "the file is gone" in listed["error"]) == (str(module), True)
    assert cli("modules", "--forget", module.name).out == f"forgot {module}\n"
    assert not cli("machines").err
    remember(tmp_path, Allowed(modules=(str(module), str(tmp_path / "other" / module.name))))
    assert "write out which" in cli("modules", "--forget", module.name).err


def test_run_gets_nothing_of_module_that_only_earlier_command_named(cli: Cli, tmp_path: Path) -> None:
    home, file, agent = Path(cli.variables["RATCHET_DATA_DIR"]), tmp_path / "v1.py", tmp_path / "v2.yaml"
    mine = (ROOT / "examples" / "new" / "my_machine.py").read_text()
    file.write_text(mine.replace('name="my_machine"', 'name="of_v1"'))
    (tmp_path / "v2.py").write_text(mine.replace("MACHINE =", "OURS ="))
    model = "{default: {provider: scripted, script: [{reply: a}]}}"
    agent.write_text(f"machine: of_v1\nmodules: [v2.py]\nmodels: {model}\n")
    remember(home, Allowed(modules=(str(file),)))
    alone = cli("run", "--agent", str(agent), "go")
    shared = [cli("run", "--agent", str(agent), "--detach", "go"), cli("task", "--agent", str(agent), "go")]
    forget(home, [str(file)])
    assert (alone.code, "there is no machine `of_v1`" in alone.err) == (2, True), alone
    for found in shared:
        whose = (
            f"v2.yaml:1:1: machine: the machine `of_v1` (version 1) is of {file}, which this agent does not"
        )
        assert (found.code, whose in found.err, "v2.py declares none" in found.err) == (2, True, True), found


def test_costs_say_what_another_directory_lacks(cli: Cli, done: str, tmp_path: Path) -> None:
    server = running_server(Path(cli.variables["RATCHET_DATA_DIR"]))
    assert server is not None
    until(lambda: {one["id"]: one for one in cli("list", "--json").lines}[done]["progress"] == "completed")
    found, own = Cli(tmp_path / "other", cli.files)("costs", "--address", server.address), cli("costs")
    assert (found.code, "--data-dir" in found.err) == (0, True)
    lacking = [int(re.match(r"(\d*)", one.err)[1] or 0) for one in (found, own)]  # type: ignore[index]  # it matches
    assert lacking[0] > lacking[1], "terminated runs of other tests are in no archive"


def test_material_of_a_file_is_what_the_run_is_about(cli: Cli, tmp_path: Path) -> None:
    text = tmp_path / "long.txt"
    text.write_text("seven words are not a long text")
    script = [{"reply": "```repl\nFINAL(str(len(context.split())))\n```"}]
    agent = tmp_path / "counter.yaml"
    model = {"provider": "scripted", "script": script}
    agent.write_text(json.dumps({"machine": "code", "models": {"default": model}}))
    found = cli("run", "--agent", str(agent), "--material", str(text), "--json", "count")
    assert found.lines[-1]["answer"] == "7", found.err
    text.write_text("long " * 50_000)
    printed = cli("task", "--agent", str(agent), "--material", str(text), "count")
    assert f"are in {cli.variables['RATCHET_DATA_DIR']}/blobs" in printed.err
    refused = cli("run", "--agent", agent_file(tmp_path), "--material", str(text), "count")
    assert (refused.code, "--material" in refused.err) == (2, True)


def test_task_is_the_input_of_a_workflow(cli: Cli, tmp_path: Path) -> None:
    found = cli("task", "--agent", agent_file(tmp_path), "go", "--set", "limits.tokens=5")
    assert re.search(r"RATCHET_MODULES='\[\".*/trial_tools.py\"\]'", found.err), found.err
    task = found.json
    assert (task["goal"], task["machine"], task["machine_version"]) == ("go", "tools", "1")
    assert task["limits"]["tokens"] == 5


def test_steps_fork_replay_and_compare(cli: Cli, done: str) -> None:
    steps = cli("steps", done, "--json").lines
    assert {(one["step"], one["holds"]) for one in steps} >= {(1, True), (2, True)}
    snapshot = cli("show", done, "--step", "2", "--json").json
    assert (snapshot["step"], snapshot["machine"]) == (2, "tools")
    replayed = cli("replay", done, "--json")
    assert (replayed.code, replayed.json["same"]) == (0, True)

    end = str(steps[-1]["step"])
    assert [one["is_end"] for one in steps] == [*[False] * (len(steps) - 1), True]
    assert "the end; a fork goes on behind it" in cli("steps", done).out.splitlines()[-1]
    assert "--message tells it what to do next" in cli("fork", done, "--step", end, "--id", "on-1").err

    unconfirmed = cli("fork", done, "--step", "2")
    assert (unconfirmed.code, "due" in unconfirmed.err) == (4, True)
    behind = " ".join(unconfirmed.err.split())
    assert "step 2 begins after the model's reply: " in behind
    assert "comes before the model reads anything new; step 1 has it asked again" in behind
    forked = cli("fork", done, "--step", "2", "--id", "fork-1", "--yes", "--json", "--message", "Be brief.")
    assert forked.code == 0, forked.err
    assert forked.lines[-1]["origin"]["step"] == 2
    assert [one["by"] for one in forked.lines if one.get("event") == "Forked"] == ["Ada (claimed)"]
    assert (cli.marks().count("uno"), cli.marks().count("due")) == (1, 2)
    compared = cli("compare", done, "fork-1", "--json").json
    assert compared["shared"] > 0
    for words in (
        ("steps", done),
        ("show", done, "--step", "2"),
        ("replay", done),
        ("compare", done, "fork-1"),
    ):
        found = cli(*words)
        assert done in found.out + found.err
        assert [line for line in found.out.splitlines() if line != line.rstrip()] == []
    first = cli("compare", done, "fork-1").out.partition("First difference")[2]
    assert re.findall(r"^  (done-1|fork-1) +\S", first, re.MULTILINE) == [done, "fork-1"]


def test_fork_names_who_forked_it(cli: Cli, done: str) -> None:
    refused = cli("fork", done, "--step", "1", "--yes", "--by", "ann (verified)")
    assert (refused.code, "'ann (verified)' is not a name" in refused.err) == (2, True), refused.err
    forked = cli("fork", done, "--step", "1", "--id", "named-1", "--yes", "--by", "ann")
    assert (forked.code, "• Forked by ann (claimed): " in forked.out) == (0, True), forked.out
    assert "      by ann (claimed)" in cli("log", "named-1").out.splitlines()


def test_steps_that_a_fork_took_over_are_named(cli: Cli, done: str) -> None:
    begun = cli("fork", done, "--step", "2", "--id", "later-1", "--yes", "--detach")
    assert begun.code == 0, begun.err
    until(lambda: any(one["id"] == "later-1" for one in cli("list", "--running", "--json").lines))
    named = f"later-1 is forked from step 2 of {done}: the steps before it are those of {done}"
    resumed = cli("run", "--resume")
    assert (resumed.code, named in resumed.err.splitlines()) == (0, True), resumed.err
    assert named in cli("watch", "later-1").err.splitlines()
    assert "forked from" not in cli("watch", done).err


@pytest.mark.parametrize(
    ("words", "culprit"),
    [
        (["--step", "9"], "No step 9"),
        (["--step", "2", "--set", "goal=other"], "goal"),
        (["--step", "2", "--agent", "log_detective"], "react"),
    ],
)
def test_fork_refuses_what_it_cannot_change(cli: Cli, done: str, words: list[str], culprit: str) -> None:
    found = cli("fork", done, *words)
    assert (found.code, culprit in found.err) == (2, True), found.err


@pytest.mark.parametrize(
    ("words", "code", "culprit"),
    [
        pytest.param(["run", "do it"], 2, "OPENAI_API_KEY", id="no key"),
        pytest.param(["run"], 2, "goal", id="no goal"),
        pytest.param(["run", "", "--model", "scripted"], 2, "goal", id="empty goal"),
        pytest.param(["run", "--resume", "x"], 2, "--resume", id="resume with a goal"),
        pytest.param(["run", "x", "--worker", "--detach"], 2, "--detach", id="worker and detach"),
        pytest.param(["run", "x", "-a", "nix.yaml"], 2, "nix.yaml", id="no file"),
        pytest.param(["run", "x", "-a", "nix"], 2, "nix", id="no agent"),
        pytest.param(["run", "x", "-t", "calc"], 2, "`calculator`", id="no tool"),
        pytest.param(
            ["run", "x", "-a", "refund_desk", "--set", "tools=[open_tickets, refund]"],
            2,
            "state decide of machine refund_desk uses a tool `order_facts`",
            id="tool of a state",
        ),
        pytest.param(["run", "x", "--machine", "recat"], 2, "`react`", id="no machine"),
        pytest.param(["run", "x", "--set", "a"], 2, "KEY=VALUE", id="setting without value"),
        pytest.param(["run", "x", "--prot", "1"], 2, "--port", id="misspelt option"),
        pytest.param(["run", "x", "--port", "70000"], 2, "65535", id="no port"),
        pytest.param(["run", "count", "words"], 2, "of several words needs quotes", id="goal without quotes"),
        pytest.param(
            ["run", FILE, "x", "y"],
            2,
            f'{FILE} is an agent file: ratchet run --agent {FILE} "x y"',
            id="agent file and goal",
        ),
        pytest.param(["run", FILE], 2, f'run --agent {FILE} "GOAL"', id="agent file for a goal"),
        pytest.param(
            ["approve", "r", "--message", "x"], 2, "--message (Possible options: -m/--comment)", id="comment"
        ),
        pytest.param(["rollback", "r", "--step", "3.5"], 2, "'3.5' is not a whole number", id="no number"),
        pytest.param(["rnu"], 2, "'run'", id="misspelt command"),
        pytest.param(["lits"], 2, "'list'", id="letters that have changed places"),
        pytest.param(["status"], 2, "did you mean 'show'?", id="command of other tools"),
        pytest.param(["deny"], 2, "did you mean 'reject'?", id="another word"),
        pytest.param(["help"], 2, "did you mean '--help'?", id="help"),
        pytest.param(["verify", "agnt", "x"], 2, "No such command 'agnt'; did you mean 'agent'?", id="below"),
        pytest.param(["verify", "a-run", "x"], 2, "too many arguments: x", id="a run and more"),
        pytest.param(["approve"], 2, "`ratchet inbox` shows the runs that ask", id="no run to decide"),
        pytest.param(["costs", "--by", "week"], 2, "'--by': 'week' is not one of", id="no such word"),
        pytest.param(["run", "x", "--model", "claude-x"], 2, "set ANTHROPIC_API_KEY", id="no key for Claude"),
        pytest.param(["run", "x", "--model", "gemini-x"], 2, "set GEMINI_API_KEY", id="no key for Gemini"),
        pytest.param(["diagram", "recat"], 2, "react", id="diagram of no machine"),
        pytest.param(["machines", "mine"], 2, "of your own, name the agent file", id="own machine"),
        pytest.param(["machines", "react", "--version", "9"], 2, "react (version 1)\n", id="no version"),
        pytest.param(["task", "-a", "nix", "goal"], 2, "nix", id="task of no agent"),
        pytest.param(["list", "--address", "127.0.0.1:1"], 1, "127.0.0.1:1", id="no server"),
        pytest.param(["list", "--address", "nonsense:xx"], 2, "nonsense:xx", id="no address"),
        pytest.param(["list", "--address", "localhost"], 2, "such as localhost:7233", id="no port given"),
        pytest.param(["list", "--data-dir", "/dev/null/x"], 2, "/dev/null/x", id="no folder"),
    ],
)
def test_wrong_input_is_named_in_a_paragraph(
    tmp_path: Path, words: list[str], code: int, culprit: str
) -> None:
    found = Cli(tmp_path / "data", tmp_path)(*words)
    assert (found.code, found.out) == (code, "")
    assert culprit in found.err
    assert "Traceback" not in found.err
    if words[0] != "list":
        assert not (tmp_path / "data").exists()


def test_debug_shows_where(tmp_path: Path) -> None:
    assert "Traceback" in Cli(tmp_path / "data", tmp_path)("run", "--debug").err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["tools"], "search_files (read)"),
        (["tools"], "brings untrusted and private, sends nowhere"),
        (["machines"], "staged"),
        (["machines", "react"], "max_steps"),
        (["agents"], "machine staged"),
        (["diagram", "react"], "stateDiagram-v2"),
        (["diagram", "react", "--form", "table"], "| from | event | to |"),
    ],
)
def test_catalog_is_shown(tmp_path: Path, words: list[str], part: str) -> None:
    cli = Cli(tmp_path / "data", tmp_path)
    assert part in cli(*words).out
    if words[0] != "diagram":
        found = cli(*words, "--json")
        assert found.json if words[1:] else found.lines


def test_doctor_says_what_to_do(cli: Cli, tmp_path: Path) -> None:
    well = cli("doctor", "--agent", "log_detective", "--json")
    (worker,) = [one["text"] for one in well.lines if one["name"] == "worker"]
    assert "`ratchet run` brings one for its own run" in worker
    assert (well.code, {check["name"] for check in well.lines if not check["ok"]}) == (0, set()), well.out
    labels = next(check["text"] for check in well.lines if check["name"] == "labels")
    assert "search_files brings untrusted and private, sends nowhere" in labels
    claude = tmp_path / "claude.yaml"
    claude.write_text("models: claude-sonnet-4-5\n")
    keyless = cli("doctor", "--agent", str(claude), "--json")
    bad = {check["name"]: check["text"] for check in keyless.lines if not check["ok"]}
    assert "set ANTHROPIC_API_KEY" in bad["model claude-sonnet-4-5"]
    ill = cli("doctor", "--agent", "ollama", "--json", "--address", "127.0.0.1:1")
    bad = {check["name"]: check["text"] for check in ill.lines if not check["ok"]}
    assert (ill.code, "127.0.0.1:1" in bad["server"]) == (1, True)
    keys = json.dumps({name: base64.b64encode(bytes(64)).decode() for name in ("new", "old")})
    sealed = {
        check["name"]: check["text"] for check in cli("doctor", "--json", RATCHET_ENCRYPTION_KEYS=keys).lines
    }
    assert sealed["store"].endswith("encryption key: new, and decrypts with old")
    wrong = json.dumps({"new": base64.b64encode(b"x" * 64).decode()})
    found = cli("doctor", "--json", RATCHET_ENCRYPTION_KEYS=wrong)
    text = {check["name"]: check["text"] for check in found.lines}["store"]
    assert (found.code, "the key 'new' in RATCHET_ENCRYPTION_KEYS is not the key that" in text) == (1, True)


def test_doctor_lists_bounds_and_names_rules_about_nothing(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    agent = "machine: tools\ntools: [http_get]\napprovals: {rules: [{ask: never, at_most: %s}]}\n"
    path.write_text(agent % "{calls: 5, sum: {timeout_seconds: 1000}}")
    (found,) = [
        one for one in cli("doctor", "--agent", str(path), "--json").lines if one["name"] == "approvals"
    ]
    most = "rules.0 allows at most 5 calls and 1,000 timeout_seconds unasked in a run"
    assert (found["ok"], found["text"]) == (True, f"{most}, then people are asked")
    path.write_text(agent % "{sum: {url: 5}}")
    wrong, _ = [
        one for one in cli("doctor", "--agent", str(path), "--json").lines if one["name"] == "approvals"
    ]
    assert (wrong["ok"], wrong["text"].partition(": ")[0]) == (False, "approvals.rules[0].at_most.sum.url")


@pytest.mark.parametrize(
    ("module", "text", "name"),
    [
        ("", "machine: nosuch\n", "agent"),
        ("", "machine: tools\ntools: [calculator]\noptions: {max_stepps: 3}\n", "agent"),
        ("", "machine: tools\ntools: [find_rime]\n", "agent"),
        ("x = 1\nraise OSError('no disk')\n", "machine: tools\ntools: [calculator]\n", "modules"),
        ("def PROVIDER(settings): raise ValueError('no door')\n", "machine: tools\ntools: []\n", "modules"),
    ],
)
def test_doctor_says_of_an_agent_what_run_would_say(
    cli: Cli, tmp_path: Path, module: str, text: str, name: str
) -> None:
    path = tmp_path / "agent.yaml"
    (tmp_path / "broken_module.py").write_text(module)
    script = "{provider: scripted, name: scripted, script: [{reply: a}]}"
    path.write_text(f"{text}modules: [broken_module.py]\nmodels: {{default: {script}}}\n")
    refused = cli("run", "--agent", str(path), "go").err.removeprefix("ratchet: ").rstrip()
    found = cli("doctor", "--agent", str(path), "--json")
    bad = [(one["name"], one["text"]) for one in found.lines if not one["ok"]]
    assert (found.code, bad) == (1, [(name, refused)]), found.err
    told = {one["name"] for one in found.lines}
    assert {"server", "store", "model scripted"} <= told, "all else is checked, too"


def test_doctor_names_a_store_that_is_away(cli: Cli) -> None:
    away = {"RATCHET_STORE": "postgresql://me:pass-word@127.0.0.1:1/x"}
    found = cli("doctor", "--json", **away, RATCHET_STORE_SECRET="one secret for all hosts")
    store = next(one for one in found.lines if one["name"] == "store")
    assert (found.code, store["ok"]) == (1, False)
    assert "PostgreSQL 127.0.0.1/x" in store["text"]
    assert "pass-word" not in found.out + found.err
    assert "RATCHET_STORE_SECRET: " in cli("list", **away).err


def test_gc_shows_what_would_go_and_then_deletes_it(cli: Cli, done: str) -> None:
    blobs = BlobStore(Path(cli.variables["RATCHET_DATA_DIR"]) / "blobs")
    digest = blobs.put(b"nobody needs it")
    path = blobs.path(digest)
    assert path is not None
    os.utime(path, (0, 0))
    found = cli("gc", "--dry-run")
    assert (found.code, path.exists()) == (0, True), found.err
    assert "would delete blobs: 1 (15 bytes, the oldest of 1970-01-01 00:00:00+00:00)" in found.out
    assert cli("gc", "--older-than", "12w", "--json").json["bytes"] == 15
    assert not path.exists()
    assert cli("result", done).code == 0
    assert (cli("gc", "--older-than", "5h").code, cli("gc", "--older-than", "soon").code) == (2, 2)


def test_doctor_adopts_a_directory_that_came_with_a_repository(tmp_path: Path) -> None:
    home = tmp_path / "cloned" / ".ratchet"
    cli = Cli(home, tmp_path)
    assert cli("check").code == 0
    elsewhere = {"XDG_STATE_HOME": str(tmp_path / "mine")}
    for words in (("list",), ("run", "--model", "scripted", "go"), ("run", "--resume"), ("dev",)):
        refused = cli(*words, **elsewhere)
        assert (refused.code, "ratchet doctor --adopt" in refused.err) == (2, True), refused.err
    assert cli("doctor", "--adopt", **elsewhere).code == 0
    assert cli("list", **elsewhere).code == 0
    assert (home / ".gitignore").read_text() == "*\n"


def test_help_is_there_for_every_command(tmp_path: Path) -> None:
    from client.cli.app import COMMANDS

    cli = Cli(tmp_path, tmp_path)
    listing = cli("--help").out
    for command in COMMANDS:
        assert f"  {command} " in listing
        found = cli(*(["verify", "evidence"] if command == "verify" else [command]), "--help")
        has_none = command in ("docs", "init", "new")  # pages, and files of the current folder
        assert (found.code, "--data-dir DATA-DIR" in found.out) == (0, not has_none)
        assert "<bool>" not in found.out
