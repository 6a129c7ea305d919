"""`ratchet schema`: what it says of an agent file is what the loader says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import chdir
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from activities.settings import Settings
from client.agents.agentfile import Draft, load_agent
from client.agents.catalog import Catalog
from client.agents.schema import MESSAGES, agent_schema
from client.agents.yaml import YamlFile
from client.errors import UsageError
from tests.client.commandline import Cli
from tests.client.conftest import ROOT

AGENTS = sorted((ROOT / "examples" / "agents").glob("*.yaml"))
MODULES = [str(ROOT / "examples" / name) for name in ("machines/refund_desk.py", "tools/shop.py")]


@pytest.fixture
def cli(data_dir: Path, tmp_path: Path) -> Cli:
    """Commands that need no server."""
    return Cli(data_dir, tmp_path)


@cache
def schema() -> Draft202012Validator:
    """The schema that `ratchet init` writes."""
    found = json.loads((ROOT / "examples" / "new" / "agent.schema.json").read_text())
    Draft202012Validator.check_schema(found)
    return Draft202012Validator(found)


def load(path: Path, values: dict[str, Any]) -> None:
    """What `ratchet run` does with an agent file of these keys. Raises UsageError."""
    file = YamlFile(path)
    file.values = values
    draft = Draft(file)
    agent = draft.finish()
    Catalog.load(Settings(modules=agent.modules)).check(agent, draft)


def catalog_of(path: Path) -> tuple[list[str], list[str]]:
    """Names of the machines and tools that an agent file may name."""
    catalog = Catalog.load(Settings(modules=load_agent(path).modules))
    return [machine.name for machine in catalog.machines], [tool.name for tool in catalog.tools]


def is_refused(path: Path, values: dict[str, Any]) -> bool:
    """The loader refuses the file."""
    try:
        load(path, values)
    except UsageError:
        return True
    return False


def mappings(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each mapping in a file, of a list's items only the last one's.

    Not those of names and schemas that only the tools can tell: conditions on arguments, and sums of them.
    """
    if isinstance(value, dict):
        yield where
        for key, inner in value.items():
            if key not in ("arguments", "sum"):
                yield from mappings(inner, (*where, key))
    elif isinstance(value, list) and value:
        yield from mappings(value[-1], (*where, -1))


@pytest.mark.parametrize("path", AGENTS, ids=lambda path: path.stem)
def test_shipped_agent_fits_the_schema(path: Path) -> None:
    assert [error.message for error in schema().iter_errors(YamlFile(path).values)] == []


@pytest.mark.parametrize("path", AGENTS, ids=lambda path: path.stem)
def test_unknown_key_is_refused_where_the_loader_refuses_it(path: Path) -> None:
    values = YamlFile(path).values
    machines, tools = catalog_of(path)
    known = Draft202012Validator(agent_schema(machines, tools))
    for place in mappings(values):
        changed = inside = deepcopy(values)
        for key in place:
            inside = inside[key]
        inside["unheard_of"] = 1
        assert known.is_valid(changed) != is_refused(path, changed), place


@pytest.mark.parametrize(
    "keys",
    [
        {"models": "gpt-5-mini"},
        {"models": "scripted"},
        {
            "models": {"default": "gpt-5-mini", "sub": {"name": "gpt-5", "fallback": "default"}},
            "machine": "code",
        },
        {"models": {"default": {"fallback": ["other"]}, "other": "gpt-5"}},
        {"approvals": {"rules": [{"after": "untrusted", "sends": "external"}]}},
        {"approvals": {"rules": [{"after": ["untrusted", "private"], "sends": ["external"]}]}},
        {"machine": "react", "options": {"rules": ["max_depth", {"type": "cost_limit", "value": 2}]}},
        {"machine": "code", "options": {"nested": "always", "policies": ["no_progress"]}},
        {"output": {"type": "object", "properties": {"total": {"type": "number"}}}},
        {"stuck": None, "certificate": None, "machine_version": None},
    ],
    ids=str,
)
def test_short_form_of_a_file_is_accepted(keys: dict[str, Any]) -> None:
    values = {"machine": "react", "tools": ["read_file", "http_get"], **keys}
    assert [error.message for error in schema().iter_errors(values)] == []
    load(AGENTS[0], values)


@pytest.mark.parametrize(
    "keys",
    [
        {"models": {"sub": "gpt-5"}},
        {"models": ["gpt-5"]},
        {"models": {"default": {"fallback": [1]}}},
        {"tools": "read_file"},
        {"limits": None},
        {"options": {"rules": [1]}},
        {"options": {"words": 3}},
        {"machine": "planner", "options": {"max_stepz": 3}},
        {"approvals": {"rules": [{"ask": "sometimes"}]}},
        {"people": {"kinds": {"lunch": {}}}},
        {"certificate": 1},
        {"output": ["Refund"]},
    ],
    ids=str,
)
def test_what_the_loader_refuses_does_not_fit(keys: dict[str, Any]) -> None:
    values = {"machine": "react", "tools": ["calculator"], **keys}
    assert not schema().is_valid(values)
    assert is_refused(AGENTS[0], values)


def test_own_machine_has_its_options_in_the_schema(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "desk.yaml").write_text(f"machine: refund_desk\nmodules: {json.dumps(MODULES)}\n")
    printed = cli("schema", "agent", "--agent", str(tmp_path / "desk.yaml"))
    own = Draft202012Validator(json.loads(printed.out))
    desk = YamlFile(ROOT / "examples" / "agents" / "refund_desk.yaml").values
    assert own.is_valid(desk)
    assert not own.is_valid({**desk, "options": {"unheard_of": 1}})
    assert schema().is_valid({**desk, "options": {"unheard_of": 1}})


@pytest.mark.parametrize("name", MESSAGES)
def test_schema_of_a_message_is_one(cli: Cli, name: str) -> None:
    Draft202012Validator.check_schema(json.loads(cli("schema", name).out))


def test_unknown_schema_names_the_nearest(cli: Cli) -> None:
    found = cli("schema", "agnt")
    assert (found.code, found.out) == (2, "")
    assert "did you mean `agent`?" in found.err


def test_agent_that_is_written_names_its_schema(cli: Cli, tmp_path: Path) -> None:
    with chdir(tmp_path):
        cli("init")
        cli("new", "machine", "brief_writer")
        for name in ("agent.yaml", "brief_writer.yaml"):
            first = Path(name).read_text().partition("\n")[0]
            file = Path(first.removeprefix("# yaml-language-server: $schema="))
            found = Draft202012Validator(json.loads(file.read_text()))
            assert found.is_valid(YamlFile(Path(name)).values)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("show", "`ratchet list` shows the runs"),
        ("test", "`ratchet test run.yaml`"),
        ("steer x", "Message"),
        ("list --port 99999", "expected a number less than or equal to 65535"),
    ],
)
def test_argument_that_is_left_out_says_what_it_is(cli: Cli, words: str, expected: str) -> None:
    found = cli(*words.split())
    assert (found.code, found.out) == (2, "")
    assert expected in found.err


def test_help_says_where_to_begin(cli: Cli) -> None:
    end = cli("--help").out.split("New here? ")[1]
    assert end.startswith("`ratchet init`")
    assert "names the `ratchet run` for it" in " ".join(end.split())
    assert "`ratchet docs tutorial`" in end.partition("Exit codes")[0]
