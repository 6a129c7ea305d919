"""The pages tell the truth: their programs run, their commands exist, their links lead somewhere."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

import ratchet
from activities.contracts import CodeLimits
from activities.extensions import load_modules
from activities.material import MATCH_CHARS, MAX_MATCHES, SLICE_CHARS
from client.agents.agentfile import load_agent
from client.agents.options import options_of
from client.agents.schema import MESSAGES, message_schema
from client.cli.app import COMMANDS
from client.cli.render_requests import request_block
from client.keys import public_key
from client.sdk.material import MAX_BYTES, SHORT_BYTES
from client.server.embedded import temporal_binary
from docs import picture, site
from docs.generate import FILES
from docs.markdown import anchor_of
from docs.reference import WRITTEN
from ratchet.verify import verify
from tests import forked
from tests.examplekit import ROOT, local
from workflows import registry
from workflows.gate.bounds import WITHIN_BOUND
from workflows.gate.requests import EventName
from workflows.kernel.diagram import mermaid
from workflows.kernel.log import CLOSED, FORKED, ROLLED_BACK, STEERED
from workflows.kernel.machine import COMMON_EXITS
from workflows.machines.code.block_calls import BUILT_IN
from workflows.machines.code.prompt import WORDS
from workflows.people import Kind, Request

DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
SECURITY = ROOT / "SECURITY.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
CHANGELOG = ROOT / "CHANGELOG.md"
AGENTS = ROOT / "AGENTS.md"
PAGES = [ROOT / "README.md", AGENTS, CONTRIBUTING, SECURITY, *sorted(DOCS.glob("*.md"))]
WAITS = "nobody can be asked here"
"""What `ratchet run` prints without a terminal when a person must decide."""
PATIENCE = 120
"""Seconds until a condition must hold."""


def text_of(page: str) -> str:
    """A page under docs/."""
    return (DOCS / page).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def printed_commands(text: str, *programs: str) -> list[str]:
    """The commands of these programs, those of several lines, too."""
    return re.findall(rf"^    ((?:{'|'.join(programs)}) (?:.*\\\n)*.*)$", text, re.MULTILINE)


@dataclass
class Shell:
    """A folder in which the printed commands run."""

    folder: Path
    started: list[forked.Forked] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """`ratchet` and the tools of this Python on the path; no settings and no server from outside."""
        ours = ("RATCHET_", "TEMPORAL_", "OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_", "XDG_STATE_HOME")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        path = f"{self.folder / '.bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        state = str(self.folder / ".state")
        return {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": state}

    def start(self, command: str) -> forked.Forked:
        """Start a command of `ratchet`; its output is in `.run.txt`."""
        words, env = shlex.split(command)[1:], self.environment
        with (self.folder / ".run.txt").open("w") as out:
            process = forked.Forked(forked.RATCHET, *words, env=env, cwd=self.folder, stdout=out, stderr=out)
        self.started.append(process)
        return process

    def run(self, command: str, seconds: float = 100) -> str:
        """What a command prints; it must succeed. One of `ratchet` or pytest alone is forked, which is
        faster."""
        program = {"ratchet": forked.RATCHET, "pytest": forked.PYTEST}.get(command.partition(" ")[0])
        if program and not set(command) & set("|&;<>$`*~"):
            words = shlex.split(command)[1:]
            code, out, err = forked.spoken(program, *words, env=self.environment, cwd=self.folder)
            assert code == 0, (command, out, err)
            return out
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def has_asked(self, times: int) -> bool:
        """The started run has waited for a person this often."""
        return (self.folder / ".run.txt").read_text().count(WAITS) >= times

    def waiting(self) -> bool:
        """A run waits for a person."""
        words = ("inbox", "--json")
        code, out, _ = forked.spoken(forked.RATCHET, *words, env=self.environment, cwd=self.folder)
        return code == 0 and bool(out.strip())


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.1)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """An empty folder, with the command `ratchet` of this checkout."""
    script = tmp_path / ".bin" / "ratchet"
    script.parent.mkdir()
    program = "from client.start import main; main()"
    script.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -c '{program}' \"$@\"\n")
    script.chmod(0o755)
    made = Shell(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.wait()
    if (tmp_path / ".ratchet").exists():
        forked.spoken(forked.RATCHET, "down", env=made.environment, cwd=tmp_path)


# -- the tutorial --------------------


BUG = "\n## A bug that costs money\n"


def test_tutorial_works_as_printed(shell: Shell) -> None:
    text = text_of("tutorial.md").partition(BUG)[0]
    for block in (*blocks(text, "python"), *blocks(text, "yaml")):
        name = block.partition("\n")[0].removeprefix("# ")
        (shell.folder / name).write_text(block)
    printed: dict[str, str] = {}
    runs: list[forked.Forked] = []
    decided = 0
    for command in "".join(blocks(text, "sh")).splitlines():
        if command.startswith("ratchet run"):
            assert not runs or runs[-1].wait(PATIENCE) == 0
            runs.append(shell.start(command))
            decided = 0
            continue
        if re.match("ratchet (inbox|approve|reject)", command):
            until(partial(shell.has_asked, decided + 1), command)
            decided += not command.startswith("ratchet inbox")
        printed[command] = shell.run(command)
    assert runs[-1].wait(PATIENCE) == 0
    assert (shell.folder / "outbox.txt").read_text().splitlines()[:2] == ["Your parcel comes tomorrow."] * 2
    assert "send --> write: Rejected" in printed["ratchet diagram reply_desk --agent desk.yaml"]
    assert "1 passed" in printed["pytest test_desk.py"]


@pytest.mark.exhaustive
def test_commands_for_coding_agents_work_as_printed(shell: Shell) -> None:
    text = AGENTS.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 80
    for command in "".join(blocks(text, "sh")).splitlines():
        shell.run(command)


def test_machine_and_test_of_the_tutorial_are_short() -> None:
    _, machine, test, _ = blocks(text_of("tutorial.md"), "python")
    assert len(machine.splitlines()) <= 67
    assert len(test.splitlines()) <= 12


def test_bug_of_the_tutorial_is_found_and_mended(shell: Shell) -> None:
    text = text_of("tutorial.md").partition(BUG)[2]
    (program,), (change,) = blocks(text, "python"), blocks(text, "diff")
    find, again = blocks(text, "sh")
    old, new = (line[1:] for line in change.splitlines())
    desk = shell.folder / "pay_desk.py"
    desk.write_text(program)
    printed = shell.run(f"{find.strip()} || test $? = 1")
    shown = text.partition("    VIOLATED")[2].partition("\n\n")[0]
    assert textwrap.dedent(f"    VIOLATED{shown}") in printed
    assert printed.count("VIOLATED") == 1
    assert "FAILED" in shell.run("ratchet test found 2>&1 || test $? = 1")
    assert program.count(old) == 1
    desk.write_text(program.replace(old, new))
    assert "VIOLATED" not in shell.run(again.splitlines()[0])
    shell.run(again.splitlines()[1])


# -- programs --------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["own-machine.md", "rules.md", "tools.md", "workers.md", "notices.md"])
def test_program_of_a_page_runs(name: str, shell: Shell) -> None:
    program = shell.folder / "program.py"
    program.write_text("\n".join(blocks(text_of(name), "python")))
    shell.run(f"{shlex.quote(sys.executable)} program.py")


@pytest.mark.exhaustive
def test_provider_of_the_page_answers_a_run(shell: Shell) -> None:
    text = text_of("providers.md")
    (shell.folder / "tail.py").write_text(blocks(text, "python")[0])
    (shell.folder / "tail.yaml").write_text(blocks(text, "yaml")[0])
    with_image, command = re.findall(r"^    (ratchet run --agent tail.yaml .*)$", text, re.MULTILINE)
    assert "user: say something" in shell.run(command)
    (shell.folder / "chart.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    assert "[image chart.png: " in shell.run(with_image)


def test_readme_can_be_pasted_and_its_program_approves(shell: Shell) -> None:
    (pasted,), (program,) = blocks(README, "sh"), blocks(README, "python")
    files, command = re.split(r"^(?=ratchet run)", pasted, flags=re.MULTILINE)
    assert len(pasted.splitlines()) <= 27
    shell.run(files)
    run = shell.start(command)
    until(partial(shell.has_asked, 1), command)
    printed = (shell.folder / ".run.txt").read_text()
    assert "paid 1250 cents to Paper & Pen" in printed
    (started,) = re.findall(r"^run (bills-\w+)$", printed, re.MULTILINE)
    shell.run(f"ratchet approve {started}")
    assert run.wait(PATIENCE) == 0
    assert "paid 48000 cents to Harbour" in (shell.folder / ".run.txt").read_text()
    (shell.folder / "app.py").write_text(program)
    assert shell.run(f"{shlex.quote(sys.executable)} app.py").strip() == "Both bills are paid."


def test_proof_of_the_readme_is_what_is_printed(shell: Shell) -> None:
    pytest.importorskip("z3")
    shell.run(blocks(README, "sh")[0].partition("ratchet run")[0])
    block = README[README.index("    $ ratchet verify ") :].partition("\n      ...")[0]
    command, _, report = textwrap.dedent(block).partition("\n")
    assert shell.run(command.removeprefix("$ ")).startswith(f"{report}\n")


@pytest.mark.exhaustive
def test_first_program_runs(shell: Shell) -> None:
    shutil.copytree(ROOT / "examples" / "data", shell.folder / "examples" / "data")
    program, typed, made = blocks(text_of("python.md"), "python")
    (shell.folder / "typed.py").write_text(typed)
    shell.run(f"{shlex.quote(sys.executable)} typed.py")
    (shell.folder / "program.py").write_text(program)
    printed = shell.run(f"{shlex.quote(sys.executable)} program.py")
    assert printed.startswith("thought Started")
    assert "\npayments fails most" in printed
    (shell.folder / "word_count.py").write_text(blocks(text_of("tools.md"), "python")[0])
    (shell.folder / "made.py").write_text(made)
    assert shell.run(f"{shlex.quote(sys.executable)} made.py") == "Three words.\n"


@pytest.mark.exhaustive
def test_application_with_workflows_of_its_own_talks_to_ratchet(shell: Shell) -> None:
    page = text_of("embedding.md").partition("\n## Ratchet beside")[0]
    for block in (*blocks(page, "python"), *blocks(page, "yaml")):
        file = shell.folder / block.partition("\n")[0].removeprefix("# ")
        file.parent.mkdir(exist_ok=True)
        file.write_text(block)
    (shell.folder / "parcels.txt").write_text("P-17 late\n")
    (shell.folder / "workflows" / "__init__.py").touch()
    dev, task, *_ = re.findall(r"^    (ratchet .*?) *(?:#.*)?$", page, re.MULTILINE)
    shell.run(task)
    worker, output = shell.start(dev), shell.folder / ".run.txt"
    until(lambda: "A worker runs here" in output.read_text() or worker.poll() is not None, "the worker runs")
    assert worker.poll() is None, output.read_text()
    address = re.findall(r"TEMPORAL_ADDRESS=(\S+)", output.read_text())[0]
    try:
        # threads of the SDK may abort the interpreter's own end
        printed = shell.run(f"TEMPORAL_ADDRESS={address} {shlex.quote(sys.executable)} app.py || true")
        assert printed.splitlines() == ["Parcel P-17 is late.", "DONE", "Report: Parcel P-17 is late."]
        assert "report-1-agent" in shell.run("ratchet list")
        refused = json.loads((shell.folder / "summary.json").read_text())
        refused["models"] = {
            "default": {"provider": "scripted", "script": [{"reply": "", "expect": "no key"}]}
        }
        (shell.folder / "summary.json").write_text(json.dumps(refused))
        printed = shell.run(f"TEMPORAL_ADDRESS={address} {shlex.quote(sys.executable)} app.py || true")
        assert printed.splitlines() == ["None", "DONE", "No report: failed"]
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(PATIENCE)


def test_folder_that_hides_a_package_of_ratchets_is_named(shell: Shell) -> None:
    (shell.folder / "workflows").mkdir()
    (shell.folder / "workflows" / "__init__.py").touch()
    hidden = shell.run(f"{shlex.quote(sys.executable)} -c 'from ratchet import Limits' 2>&1 || true")
    words = f"{shell.folder / 'workflows'} hides Ratchet's package 'workflows'"
    assert f"ImportError: {words}" in hidden
    assert f"ratchet: {words}" in shell.run('PYTHONPATH="$PWD:$PYTHONPATH" ratchet list 2>&1 || true')


@pytest.mark.exhaustive
def test_program_that_decides_runs(shell: Shell) -> None:
    shutil.copytree(ROOT / "examples" / "data", shell.folder / "examples" / "data")
    (shell.folder / "program.py").write_text(blocks(text_of("people.md"), "python")[0])
    lines = shell.run(f"{shlex.quote(sys.executable)} program.py").splitlines()
    assert "request: transfer {'to': 'Harbour Realty', 'cents': 48000}" in lines
    assert lines.count("approved by ann") == 1
    assert lines[-1].endswith("payment 2: 48000 cents from us to Harbour Realty. ['approved']")


@contextmanager
def served(shell: Shell, ready: str, *words: str) -> Iterator[None]:
    """Another program that serves, until the end of the test; `ready` is what it says when it does."""
    output = shell.folder / f".{Path(words[0]).name}.txt"
    with output.open("w") as out:
        server = subprocess.Popen(
            words,
            cwd=shell.folder,
            env=shell.environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        until(lambda: ready in output.read_text() or server.poll() is not None, ready)
        assert server.poll() is None, output.read_text()
        yield
    finally:
        server.terminate()
        server.wait(PATIENCE)


def free_port() -> str:
    """Of this host; nothing listens there now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


@pytest.mark.exhaustive
def test_steps_to_production_work_as_printed(shell: Shell) -> None:
    server, metrics = free_port(), free_port()
    page = text_of("production.md").replace("7233", server).replace("9464", metrics)
    keys, settings, namespace, *after = blocks(page, "sh")
    (shell.folder / "worker.env").write_text(settings)
    with served(
        shell, "Server:", str(temporal_binary()), "server", "start-dev", "--headless", "--port", server
    ):
        shell.run(f"set -e\n{keys}")
        assert "registered Agent" in shell.run(f". ./worker.env; (\n{namespace}) || true")
        (worker,) = re.findall(r"^    (python -m .*)$", page, re.MULTILINE)
        assert worker == "python -m ratchet.worker"
        with served(shell, "worker.started", "bash", "-c", ". ./worker.env; exec python -m ratchet.worker"):
            printed = "".join(shell.run(f"set -e; . ./worker.env\n{block}") for block in after)
            seen = shell.run(f"curl -sS http://127.0.0.1:{metrics}/metrics")
    assert "BAD" not in printed
    assert "payments fails most" in printed
    assert "attested" in printed
    (rules,) = blocks(page, "yaml")
    alerts = YAML(typ="safe").load(rules)["groups"][0]["rules"]
    for alert in alerts:
        (metric,) = re.findall(r"ratchet_\w+", alert["expr"])
        assert f"# TYPE {metric.removesuffix('_total')}" in seen


@pytest.mark.exhaustive
def test_application_of_the_fastapi_page_works_as_printed(shell: Shell) -> None:
    pytest.importorskip("fastapi")
    page = text_of("fastapi.md")
    shutil.copytree(ROOT / "examples" / "data", shell.folder / "examples" / "data")
    (shell.folder / "desk.py").write_text(blocks(page, "python")[0])
    page = page.replace("8000", free_port())
    (words,) = re.findall(r"^    uvicorn (.*)$", page, re.MULTILINE)
    begin, follow, ask, decide, result = printed_commands(page, "curl")
    status = " -o .answer.txt -w '%{http_code}'"
    serve = (sys.executable, "-m", "uvicorn", *shlex.split(words))
    with served(shell, "Application startup complete", *serve):
        assert shell.run(begin) == '"march"'
        assert shell.run(begin + status) == "409"
        until(lambda: shell.run(ask) != "[]", "it asks")
        assert shell.run(result + status) == "409"
        (request,) = json.loads(shell.run(ask))
        assert request["arguments"] == {"to": "Harbour Realty", "cents": 48000}
        assert shell.run(decide.replace("DIGEST", "0" * 32) + status) == "409"
        assert shell.run(decide.replace("DIGEST", request["digest"])) == '"approved"'
        numbers = re.findall(r"^id: (\d+)$", shell.run(follow), re.MULTILINE)
        assert numbers == [str(number) for number in range(len(numbers))]
        rest = shell.run(f"{follow} -H 'last-event-id: {numbers[-3]}'")
        assert re.findall(r"^id: (\d+)$", rest, re.MULTILINE) == numbers[-2:]
        assert "payment 2: 48000 cents" in json.loads(shell.run(result))["answer"]
        assert shell.run(follow.replace("march", "april") + status) == "404"


# -- settings --------------------


@pytest.mark.parametrize(
    ("name", "number"), [*(("people.md", number) for number in range(5)), ("rules.md", 0), ("scripts.md", 0)]
)
def test_agent_file_of_a_page_is_valid(name: str, number: int, tmp_path: Path) -> None:
    block = blocks(text_of(name), "yaml")[number]
    for person in ("bea", "cy"):
        block = block.replace(
            f'{person}: "PUBLIC_KEY"', f'{person}: "{public_key(Ed25519PrivateKey.generate())}"'
        )
    path = tmp_path / "agent.yaml"
    more = "" if "models:" in block else "models: {default: scripted}\n"
    if "group: board" in block and "groups:" not in block:
        more += "people: {groups: {board: {}}}\n"
    path.write_text(f"{block}\n{more}")
    if name == "rules.md":
        (tmp_path / "no_delete.py").write_text(blocks(text_of(name), "python")[0])
    assert load_agent(path)


@pytest.mark.parametrize("number", range(3))
def test_stages_of_the_page_make_a_machine(number: int, tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(blocks(text_of("stages.md"), "yaml")[number])
    agent = load_agent(path)
    assert registry.machine_for(agent.machine, None, agent.options)[0].name == "staged"


# -- what is generated, named and linked --------------------


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_file_made_from_the_code_is_what_the_code_says(file: Path) -> None:
    same = file.exists() and file.read_text(encoding="utf-8") == FILES[file]()
    assert same, f"{file.name} is out of date: `make docs` writes it from the code"


def test_everything_in_the_reference_has_a_meaning() -> None:
    rows = [
        f"{file.name}: {row}"
        for file in DOCS.glob("reference-*.md")
        for row in re.findall(r"^\|.*\|  \|$", file.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert not rows, "describe it where it is declared, in `description=` or in the text under it"


def test_key_of_agent_file_without_value_has_an_example() -> None:
    rows = re.findall(
        r"^\| (`\w+`) \| (.*) \| (.*) \| (.*) \| .* \|$", text_of("reference-agent-file.md"), re.MULTILINE
    )
    assert len(rows) > 90
    empty = ("`null`", '`""`', "`{}`", "must be given")
    assert not [
        key
        for key, kind, default, examples in rows
        if default in empty and not examples and "](#" not in kind
    ]


def test_every_variable_of_the_code_is_on_the_settings_page() -> None:
    code = [
        ROOT / "worker.py",
        *(path for room in ("activities", "client") for path in (ROOT / room).rglob("*.py")),
    ]
    named = {
        name
        for path in code
        for name in re.findall(
            r"\b(?:(?:RATCHET|OPENAI)_[A-Z_]*[A-Z]|(?!TEMPORAL)[A-Z]+_API_KEY)\b", path.read_text()
        )
    }
    assert named
    assert named <= set(re.findall(r"`([A-Z_]+)`", text_of("reference-settings.md")))


@pytest.mark.parametrize("name", WRITTEN)
def test_message_of_the_reference_can_be_sent(name: str) -> None:
    model = MESSAGES[name][0]
    schema = Draft202012Validator(message_schema(name))
    for written in WRITTEN[name]:
        schema.validate(written)
        assert (
            model.model_validate(written).model_dump(mode="json", include=set(written), exclude_unset=True)
            == written
        )


def test_every_exit_reason_has_an_explanation() -> None:
    for machine in registry.shipped():
        assert machine.exits, machine.name
        assert not {*machine.exits} & {*COMMON_EXITS} - {"limit", "max_transitions", "failed"}, machine.name


def test_page_of_the_code_machine_names_its_limits_and_functions() -> None:
    text = text_of("code.md")
    named = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", text, re.MULTILINE))
    assert named == {option.name: option.default for option in options_of(CodeLimits)}
    functions = {"context_len", "context_slice", "context_search", *BUILT_IN}
    assert set(re.findall(r"`(\w+)\(", text)) == functions
    for number in (SLICE_CHARS, MAX_MATCHES, MATCH_CHARS, SHORT_BYTES):
        assert re.search(rf"\b{number:,}\b", text), number
    assert f"{MAX_BYTES // 2**20} MB" in text
    modules = re.findall(r"`(\w+)`", text.split("modules are")[1].split(".")[0])
    prompt = " ".join(WORDS.split())
    assert modules == prompt.split("Modules: ")[1].split(".")[0].split()


def test_request_of_the_people_page_is_what_is_shown(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "data", tmp_path / "examples" / "data")
    asked: list[Request] = []

    def decide(request: Request) -> str:
        asked.append(request)
        return "approve"

    outcome = local("payments", tmp_path, decide=decide).run_sync("Pay what is due.")
    (shown,) = (request_block(request, "bills").plain for request in asked)
    page = text_of("people.md")
    printed = textwrap.dedent(page[page.index("    r1 approval ") :].partition("\n\n")[0])
    varies = re.compile(r"deadline \S+ \S+,|digest \w{32}")
    assert varies.sub("", shown) == varies.sub("", printed)
    assert any("r1 approval transfer approved" in record.reason for record in outcome.records)


def test_people_page_names_every_kind_of_request_and_record() -> None:
    text = text_of("people.md")
    kinds = text[text.index("## What runs ask") : text.index("## Who may answer")]
    rows = re.findall(r"^\| (`.*?) \|", kinds, re.MULTILINE)
    assert {kind for row in rows for kind in re.findall(r"`(\w+)`", row)} == set(get_args(Kind))
    section = text[text.index("## What remains") : text.index("## Notices")]
    named = set(re.findall(r"`([A-Z]\w+)`", section))
    rooms = (ROOT / "workflows", ROOT / "workflows" / "engine", ROOT / "workflows" / "engine" / "calls")
    code = "".join(path.read_text() for room in rooms for path in room.glob("*.py"))
    logged = set(re.findall(r'log_event\(\s*"([A-Z]\w+)"', code)) | {"Paused", "Resumed"}
    assert {*get_args(EventName), *logged, STEERED, CLOSED, ROLLED_BACK, FORKED, WITHIN_BOUND} == named


def test_names_that_the_pages_import_exist() -> None:
    for path in PAGES:
        for names in re.findall(r"from ratchet import (\([^)]*\)|[^\n]*)", path.read_text(encoding="utf-8")):
            wanted = set(re.findall(r"\w+", names))
            assert wanted <= set(ratchet.__all__), path.name


def test_pages_import_from_ratchet_alone() -> None:
    """Another import of the project says why in a comment behind it."""
    for path in PAGES:
        code = "\n".join(blocks(path.read_text(encoding="utf-8"), "python"))
        for home, names in re.findall(
            r"^ *from ((?:activities|client|workflows)[\w.]*) import (.*)", code, re.MULTILINE
        ):
            place = ROOT.joinpath(*home.split("."))
            is_ours = (
                place.is_dir() or place.with_suffix(".py").exists()
            )  # not a user's own folder of that name
            assert not is_ours or "  # " in names, f"{path.name}: from {home} import {names}"


def test_every_command_of_the_pages_exists() -> None:
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        typed = "\n".join([*re.findall(r"^    (ratchet [^#\n]*)", text, re.MULTILINE), *blocks(text, "sh")])
        listed = set(re.findall(r"^ratchet (\w+)|[|;] (?:ratchet )?(\w+)(?= |$)", typed, re.MULTILINE))
        assert {word for pair in listed for word in pair if word} <= set(COMMANDS), path.name


def test_every_option_of_the_pages_exists() -> None:
    code = "".join(path.read_text() for path in (ROOT / "client" / "cli").glob("*.py"))
    code += "".join(name.replace("_", "-") for name in re.findall(r"\w+(?=: Annotated)", code))
    for path in PAGES:
        others = re.compile(r"^ +(?:temporal|curl|uvicorn) (?:.*\\\n)*.*$", re.MULTILINE)
        text = others.sub("", path.read_text(encoding="utf-8"))
        text = re.sub(r"docker compose.*|`?temporal w.*|npx .*|pip install .*", "", text)
        text = re.sub(r"^```json\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)  # of other programs
        for option in re.findall(r"(?<![\w-])--([a-z][a-z-]+)", text):
            name = option.removeprefix("no-")  # Typer makes it of a switch
            assert f"--{name}" in code or name in code, f"{path.name}: --{option}"


def test_messages_of_the_troubleshooting_page_are_the_products() -> None:
    heads = re.findall(r"^### `(.*)`$", text_of("troubleshooting.md"), re.MULTILINE)
    assert len(heads) >= 20
    rooms = ("activities", "client", "workflows")
    said = {text for room in rooms for path in (ROOT / room).rglob("*.py") for text in texts_of(path)}
    for head in heads:
        parts = [re.escape(part) for part in re.split(r" ?\.\.\. ?", head) if part]
        assert sum(map(len, parts)) > 10, head
        assert any(re.search(".*".join(parts), text, re.DOTALL) for text in said), f"nothing says {head!r}"


def texts_of(path: Path) -> Iterator[str]:
    """The texts of a file's code; what an f-string puts in is left out. Docstrings are none."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {one.value for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    for one in ast.walk(tree):
        if isinstance(one, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in one.values)
            yield "".join(map(str, parts))
        elif isinstance(one, ast.Constant) and isinstance(one.value, str) and one not in prose:
            yield one.value


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[str] = set()
    new = set(re.findall(r"\]\(docs/([\w-]+\.md)", README))
    while new:
        reached |= new
        found = {name for page in new for name in re.findall(r"\]\(([\w-]+\.md)", text_of(page))}
        new = found - reached
    assert {path.name for path in DOCS.glob("*.md")} == reached
    assert "](SECURITY.md)" in README
    assert "](CONTRIBUTING.md)" in README


def test_index_for_programs_lists_every_page() -> None:
    named = re.findall(r"^- \[.+\]\(([\w-]+)\.html\)", site.index(), re.MULTILINE)
    assert sorted(named) == sorted(
        "overview" if path.stem == "README" else path.stem for path in [*PAGES, CHANGELOG]
    )


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = re.findall(r"([\w-]+)\.md", nav)
    assert sorted(named) == sorted(re.findall(r"\]\(([\w-]+)\.html\)", site.index()))


def test_paths_and_targets_for_contributors_exist() -> None:
    text = CONTRIBUTING.read_text(encoding="utf-8")
    named = re.findall(r"`([\w.-]+(?:/[\w.-]*)+|[\w-]+\.(?:md|toml))`", text)
    assert len(named) > 60
    assert not [path for path in named if not (ROOT / path).exists()]
    modules = [name.replace(".", "/") for name in re.findall(r"python -m ([\w.]+)", text)]
    assert not [name for name in modules if not (ROOT / f"{name}.py").exists()]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= set(targets)


def test_every_link_leads_somewhere() -> None:
    for path in (*PAGES, CHANGELOG):
        text = path.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\((?!http)([\w./-]*)#?([\w-]*)\)", text):
            file = path.parent / target if target else path
            assert file.exists(), f"{path.name} links to {target}"
            if anchor:
                heads = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
                assert anchor in {anchor_of(head) for head in heads}, f"{path.name}: #{anchor}"


def test_diagram_of_the_tutorial_is_its_machines(tmp_path: Path) -> None:
    file = tmp_path / "reply_desk.py"
    file.write_text(blocks(text_of("tutorial.md"), "python")[1])
    (module,) = load_modules([str(file)])
    assert blocks(text_of("tutorial.md"), "mermaid") == [mermaid(module.MACHINE)]
    assert verify(module.MACHINE).ok


def test_every_line_of_the_threat_model_is_shown_by_tests() -> None:
    text = SECURITY.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!-)(.+?) \| (.+?) \|$", text, re.MULTILINE)
    lines = [shown for claim, shown in rows if shown != "shown by"]
    assert len(lines) >= 30
    for line in lines:
        for reference in line.split(", "):
            found = re.fullmatch(r"`([\w/]+\.py)::(test_\w+)`", reference)
            assert found, reference
            tree = ast.parse((ROOT / "tests" / found[1]).read_text(encoding="utf-8"))
            tests = {one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert found[2] in tests, reference


# -- Temporal's own tools --------------------


@pytest.mark.exhaustive
def test_commands_of_temporal_work_as_printed(shell: Shell) -> None:
    shutil.copytree(ROOT / "examples" / "data", shell.folder / "examples" / "data")
    (shell.folder / ".bin" / "temporal").symlink_to(temporal_binary())
    dev, output = shell.start("ratchet dev --agent payments"), shell.folder / ".run.txt"
    until(lambda: "A worker runs here" in output.read_text() or dev.poll() is not None, "the worker runs")
    assert dev.poll() is None, output.read_text()
    address = re.findall(r"TEMPORAL_ADDRESS=(\S+)", output.read_text())[0]
    commands = printed_commands(text_of("temporal.md"), "temporal", "ratchet task")
    decisions = [command for command in commands if "--name decide" in command]
    others = [command for command in commands if command not in decisions]
    try:
        for number, batch in enumerate(([decisions[0]], [decisions[1]], others)):
            run = f"bills-{number}"
            shell.run(f"ratchet run --detach --id {run} --agent payments 'Pay what is due.'")
            until(shell.waiting, run)
            digest = json.loads(shell.run(f"ratchet inbox {run} --json"))["requests"][0]["digest"]
            for command in batch:
                words = command.replace("RUN", run).replace("DIGEST", digest)
                shell.run(f"TEMPORAL_ADDRESS={address} {words}")
            shell.run(f"ratchet watch {run} || true")
        decided = [shell.run(f"ratchet result bills-{number} --json") for number in (0, 1)]
        outcomes = [json.loads(one)["decisions"][0]["outcome"] for one in decided]
        assert outcomes == ["approved", "rejected"]
        events = shell.run("ratchet log bills-2 --json")
        for event in ("Paused", "Resumed", "Steered", "RolledBack", "LimitsSet", "Closed"):
            assert f'"{event}"' in events
    finally:
        dev.send_signal(signal.SIGTERM)
        dev.wait(PATIENCE)


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux")
def test_picture_of_readme_can_be_made_again(tmp_path: Path) -> None:
    """By its command: killed while the model is asked, resumed, approved."""
    lines = [line.plain.strip() for line in picture.recorded(tmp_path)]
    drawn = picture.PICTURE.read_text(encoding="utf-8").replace("&#160;", " ")
    for line in ("paid 1250 cents to Paper & Pen", "Killed", "Both bills are paid."):
        assert line in lines
        assert line.replace("&", "&amp;") in drawn
    assert lines[-1].startswith("✓ stop")
