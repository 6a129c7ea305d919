"""The pages on people say what is true: their agent file loads, their commands run as they are printed."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from temporalio.client import Client

import client
from client.agentfile import Draft
from client.keys import public_key
from client.serverprocess import temporal_binary
from client.yamltext import YamlText
from tests.client.conftest import bare_environment, ratchet_in
from tests.people.temporalkit import Handle, asking_task, begun, noted, reached, waits_for
from tests.workflows.trials import act, final
from workflows.gate.ticket import Event
from workflows.people import Kind, Request

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PEOPLE, TEMPORAL = (DOCS / "people.md").read_text(), (DOCS / "temporal.md").read_text()
COMMANDS = re.findall(r"^    (temporal .*)$", TEMPORAL, re.MULTILINE)
SAID = {
    "pause": "Paused",
    "resume": "Resumed",
    "steer": "Steered",
    "rollback": "RolledBack",
    "limits": "LimitsSet",
}


async def printed(client: Client, command: str, handle: Handle, request: Request) -> str:
    """Run a command of the page in a shell, with a run's id and digest; what it prints."""
    environment = {
        **os.environ,
        "PATH": f"{Path(temporal_binary()).parent}:{os.environ['PATH']}",
        "TEMPORAL_ADDRESS": client.service_client.config.target_host,
    }
    words = command.replace("RUN", handle.id).replace("DIGEST", request.digest)
    done = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-c", words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, (words, done.stderr)
    return str(done.stdout)


def of(word: str) -> list[str]:
    """The page's commands with this word."""
    found = [command for command in COMMANDS if word in command]
    assert found, word
    return found


def test_every_command_of_the_page_is_tried_here() -> None:
    tried = {
        *of("list"),
        *of("--type requests"),
        *of("metadata"),
        *of("--name decide"),
        *of("--name command"),
    }
    assert {*COMMANDS} - tried == {*of("--type effects")}


async def test_the_commands_that_look_show_the_run_and_what_it_asks(working: Client) -> None:
    handle, request = await begun(working, asking_task("doc-look"))
    (lists,), (asks,), (details,) = of("list"), of("--type requests"), of("metadata")

    async def listed() -> bool:
        return handle.id in await printed(working, lists, handle, request)

    await reached(listed)
    assert request.digest in await printed(working, asks, handle, request)
    told = await printed(working, details, handle, request)
    assert '"decision": "approve"' in told
    assert request.digest in told
    await handle.execute_update("command", {"command": "abort"})
    await handle.result()


async def test_the_commands_that_decide_do(working: Client) -> None:
    for number, command in enumerate(of("--name decide")):
        handle, request = await begun(working, asking_task(f"doc-{number}"))
        await printed(working, command, handle, request)
        (decided,) = (await handle.result()).decisions
        verb = "approved" if '"approve"' in command else "rejected"
        assert (decided.outcome, decided.by) == (verb, ("ann",))


async def in_the_log(handle: Handle, event: str) -> None:
    """Wait until it is there."""
    await reached(lambda: noted(handle, event))


async def test_the_commands_that_order_are_obeyed_in_the_order_of_the_page(working: Client) -> None:
    replies = (act("mark_once", line="doc-two"), final("over"))
    handle, first = await begun(working, asking_task("doc-one", *replies))
    await handle.execute_update("decide", {"request": "r1", "digest": first.digest, "decision": "approve"})
    await waits_for(handle, besides=first.id)
    (effects,) = of("--type effects")
    assert "doc-one" in await printed(working, effects, handle, first)
    for command in of("--name command"):
        await printed(working, command, handle, first)
        word = re.findall(r'"command": "(\w+)"', command)[0]
        if word != "abort":
            await in_the_log(handle, SAID[word])
    result = await handle.result()
    assert (result.exit_reason, result.branch) == ("aborted", 1)
    assert "wrong customer" in str(result.error)


def test_the_agent_file_of_the_page_loads_and_says_what_the_page_says(tmp_path: Path) -> None:
    blocks = "".join(re.findall(r"```yaml\n(.*?)```", PEOPLE, re.DOTALL))
    for name in ("bea", "cy"):
        key = public_key(Ed25519PrivateKey.generate())
        blocks = blocks.replace(f'{name}: "PUBLIC_KEY"', f'{name}: "{key}"')
    path = tmp_path / "agent.yaml"
    path.write_text(f"name: page\nmodels: {{default: scripted}}\n{blocks}")
    agent = Draft(YamlText(path)).finish()
    assert [rule.ask for rule in agent.approvals.rules] == ["never", "always"]
    assert (agent.people.groups["board"].quorum, agent.people.commands) == (2, "ops")
    assert agent.people.asking.escalate_to == ("board",)


def test_the_page_names_every_kind_of_request_and_every_record() -> None:
    kinds = {
        kind
        for row in re.findall(r"^\| (`.*?) \|", PEOPLE, re.MULTILINE)
        for kind in re.findall(r"`(\w+)`", row)
    }
    assert kinds == set(get_args(Kind))
    section = PEOPLE[PEOPLE.index("## What remains") : PEOPLE.index("## Being told")]
    told = {word for word in re.findall(r"`([A-Z]\w+)`", section)}
    code = [
        path.read_text()
        for path in (ROOT / "workflows").rglob("*.py")
        if not {"machines", "kernel"} & {*path.parts}
    ]
    noted_by_the_loop = {
        name for text in code for name in re.findall(r'(?:Cause|_cause)\(\s*"([A-Z]\w+)"', text)
    }
    assert set(get_args(Event)) <= told
    assert noted_by_the_loop - told == set()


def test_every_option_of_the_page_exists(tmp_path: Path) -> None:
    named = set(re.findall(r"`?(--[a-z][a-z-]+)", PEOPLE))
    commands = ("approve", "edit", "pause", "rollback", "fork", "run", "show")
    help_of = "".join(ratchet_in(tmp_path, command, "--help").stdout for command in commands)
    there = set(re.findall(r"(--[a-z][a-z-]+)", help_of))
    assert named - there == set()


def test_the_program_of_the_page_decides_what_its_run_asks(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "data", tmp_path / "examples" / "data")
    (block,) = re.findall(r"```python\n(.*?)```", PEOPLE, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", block],
        cwd=tmp_path,
        env=bare_environment(XDG_STATE_HOME=str(tmp_path / "state")),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert "asked: transfer {'to': 'Harbour Realty', 'cents': '48000'}" in said
    assert said.count("approved by ann") == 1
    paid = "Paper & Pen: payment 1: 1250 cents from us to Paper & Pen."
    rent = "Harbour Realty: payment 2: 48000 cents from us to Harbour Realty."
    assert said[-1] == f"{paid} {rent} ['approved']"


def test_what_the_page_takes_from_the_sdk_is_public() -> None:
    section = PEOPLE[PEOPLE.index("## From Python") : PEOPLE.index("## Commands, and their order")]
    methods = {
        name
        for listed in re.findall(r"\((`.*?`)\)", section, re.DOTALL)
        for name in re.findall(r"`(\w+)`", listed)
    }
    assert {"reject", "set_limits"} <= methods
    assert [name for name in methods if not hasattr(client.AgentClient, name)] == []
    taken = set(re.findall(r"\b[A-Z][a-z]+\b(?=\(|\.load|`)", section))
    assert {"Speaker", "Remember", "Condition", "Refused"} <= taken <= {*client.__all__}
    assert all(getattr(client, name) for name in client.__all__)
