"""`ratchet machines NAME`, and what is said of values that are not allowed."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, JsonValue
from typing_extensions import TypeAliasType

from activities.contracts import Strict
from client.cli import execute
from client.knobs import Knob, allowed_at, knobs
from client.machinefacts import unmatched
from tests.client.conftest import Ratchet
from workflows import registry
from workflows.kernel.design import COMMON_EXITS, Design
from workflows.kernel.errors import name_of
from workflows.registry import designs

DESIGNS = [pytest.param(design, id=f"{design.name}-{design.version}") for design in designs()]


def told(capsys: pytest.CaptureFixture[str], data_dir: Path, *words: str) -> str:
    """What `ratchet machines ...` prints."""
    assert execute(["machines", *words, "--data-dir", str(data_dir)]) == 0
    return capsys.readouterr().out


# -- one machine in full --------------------


def test_the_list_is_short_and_says_how_to_read_more(
    capsys: pytest.CaptureFixture[str], data_dir: Path
) -> None:
    text = told(capsys, data_dir)
    assert len(text.strip().splitlines()) == len(designs()) + 2
    assert "`ratchet machines NAME`" in text


@pytest.mark.parametrize("design", DESIGNS)
def test_one_machine_is_told_in_full(
    capsys: pytest.CaptureFixture[str], data_dir: Path, design: Design
) -> None:
    text = told(capsys, data_dir, design.name, "--version", design.version)
    machine = design.build(design.options(), registry.parts())
    for word in (
        design.description, *design.roles, *design.options.model_fields, *design.exits, *COMMON_EXITS
    ):  # fmt: skip
        assert word in text, word
    for state, stage in machine.states.items():
        assert name_of(state) in text
        assert all(name in text for name in (*stage.reads, *stage.writes, *stage.grants))
    assert unmatched(machine) in text
    assert f"ratchet diagram {design.name}" in text


def test_default_range_unit_and_source_stand_beside_a_knob(
    capsys: pytest.CaptureFixture[str], data_dir: Path
) -> None:
    lines = [line.strip() for line in told(capsys, data_dir, "react").splitlines()]
    at = next(number for number, line in enumerate(lines) if line.startswith("max_steps "))
    assert lines[at].split(maxsplit=1)[1] == "default 20; integer from 1 to 10000"
    assert lines[at + 1] == "steps, failed drafts included [1.7]"
    assert any(line.startswith("rules[].type ") for line in lines)
    assert any("asks for: call_model" in line for line in lines)


def test_what_a_row_resets_is_told(capsys: pytest.CaptureFixture[str], data_dir: Path) -> None:
    for design in designs():
        found = json.loads(told(capsys, data_dir, design.name, "--version", design.version, "--json"))
        rows = design.build(design.options(), registry.parts()).rows
        assert [row["resets"] for row in found["transitions"]] == [list(row.reset) for row in rows]
    found = json.loads(told(capsys, data_dir, "staged", "--json"))
    (again,) = [row["resets"] for row in found["transitions"] if row["event"] == "ToThinking"][1:]
    assert {"thought", "action"} <= set(again)


def test_as_json_it_is_all_there(capsys: pytest.CaptureFixture[str], data_dir: Path) -> None:
    found = json.loads(told(capsys, data_dir, "react", "--json"))
    assert {"name": "cost_limit", "default": "1.0", "allowed": "number above 0", "source": "1.7",
            "meaning": "USD; the run ends when it is exceeded"} in found["knobs"]  # fmt: skip
    assert found["transitions"][0] == {
        "from": "thought", "event": "Drafted", "to": "validate", "guard": None, "action": None, "resets": [],
    }  # fmt: skip
    (first,) = [state for state in found["states"] if state["initial"]]
    assert (first["state"], first["grants"], first["begins_step"]) == ("thought", ["call_model"], True)
    assert "goal_achieved" in found["exits"]


def test_a_file_of_a_machines_own_options_is_what_is_told_and_drawn(
    capsys: pytest.CaptureFixture[str], data_dir: Path, tmp_path: Path
) -> None:
    agent = tmp_path / "mine.yaml"
    agent.write_text("machine: react\noptions: {max_steps: 0}\ntools: []\n")
    for command in (["machines", "react"], ["diagram", "react"]):
        assert execute([*command, "--agent", str(agent), "--data-dir", str(data_dir)]) == 2
        assert "mine.yaml:2: options.max_steps" in capsys.readouterr().err


MADE_FROM_DATA = """
from enum import Enum
from activities.contracts import Frozen, Strict
from workflows.kernel.design import Design
from workflows.kernel.machine import Exit, Machine, Row, State

class Went: ...
class Context(Frozen): ...
class Options(Strict):
    places: tuple[str, ...]

def build(options, parts):
    S = Enum("S", {place: place for place in options.places})
    way = [*S]
    states = {place: State(enter=lambda c, at: Went()) for place in way[:-1]}
    return Machine(name="tour", context=Context, initial=way[0], final={way[-1]}, step_state=way[0],
                   states={**states, way[-1]: State()}, result=lambda c, s: Exit(reason="there", ok=True),
                   table=[Row(a, Went, b) for a, b in zip(way, way[1:])])

DESIGN = Design("tour", "Go from place to place.", Options, build, lambda brief, options: Context())
"""


def test_a_machine_made_from_data_is_told_and_drawn_as_the_agent_file_makes_it(
    ratchet: Ratchet, tmp_path: Path
) -> None:
    (tmp_path / "tour.py").write_text(MADE_FROM_DATA)
    bare, full = tmp_path / "bare.yaml", tmp_path / "full.yaml"
    bare.write_text("machine: react\nmodules: [tour.py]\ntools: []\n")
    full.write_text("machine: tour\nmodules: [tour.py]\noptions: {places: [home, sea]}\n")

    told = ratchet("machines", "tour", "--agent", str(bare)).stdout
    assert "must be given; list of text" in told
    assert "they follow from the options that must be given" in told
    assert "not in the table" not in told
    refused = ratchet("diagram", "tour", "--agent", str(bare))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "name an agent file of it, or use --set" in refused.stderr

    assert re.search(
        r"home +initial, begins a step", ratchet("machines", "tour", "--agent", str(full)).stdout
    )
    assert "home --> sea: Went" in ratchet("diagram", "tour", "--agent", str(full)).stdout
    longer = ratchet("diagram", "tour", "--agent", str(full), "--set", "places=[home, hill, sea]")
    assert "hill --> sea: Went" in longer.stdout
    broken = ratchet("diagram", "tour", "--agent", str(full), "--set", "places=[]")
    assert (broken.returncode, "Traceback" in broken.stderr) == (2, False)


MADE_TWICE = f"""{MADE_FROM_DATA}
import dataclasses

class Stops(Strict):
    stops: tuple[str, ...]

def build_second(options, parts):
    return dataclasses.replace(build(Options(places=options.stops), parts), version="2")

DESIGNS = [DESIGN, dataclasses.replace(DESIGN, version="2", options=Stops, build=build_second)]
del DESIGN
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """An agent file of another machine, which loads one of two versions with different knobs."""
    folder = tmp_path / "my tours"
    folder.mkdir()
    (folder / "tours.py").write_text(MADE_TWICE)
    agent = folder / "react.yaml"
    agent.write_text("machine: react\nmodules: [tours.py]\noptions: {max_steps: 5}\ntools: []\n")
    return agent


FIRST = ["--version", "1", "--set", "places=[home, sea]"]
SECOND = ["--set", "stops=[hut, peak]"]


def test_an_older_version_is_told_and_drawn_by_its_own_options(ratchet: Ratchet, elsewhere: Path) -> None:
    place = ["--agent", str(elsewhere)]
    told = ratchet("machines", "tour", *FIRST, *place)
    assert "tour 1\n" in told.stdout, told.stderr
    assert re.search(r"home +initial", told.stdout)
    drawn = ratchet("diagram", "tour", *FIRST, *place)
    assert "home --> sea: Went" in drawn.stdout, drawn.stderr
    newest = ratchet("diagram", "tour", *SECOND, *place)
    assert "hut --> peak: Went" in newest.stdout, newest.stderr
    mixed = ratchet("diagram", "tour", "--version", "1", *SECOND, *place)
    assert (mixed.returncode, "options.stops" in mixed.stderr) == (2, True)
    missing = ratchet("diagram", "tour", "--version", "77", *place)
    assert (missing.returncode, "unknown machine tour of version 77" in missing.stderr) == (2, True)


@pytest.mark.parametrize("chosen", [pytest.param(FIRST, id="older"), pytest.param(SECOND, id="newest")])
def test_the_line_that_says_how_to_draw_draws_the_machine_that_was_told(
    ratchet: Ratchet, elsewhere: Path, chosen: list[str]
) -> None:
    told = ratchet("machines", "tour", *chosen, "--agent", str(elsewhere)).stdout
    line = re.search(r"Draw it: (.*) \(Mermaid\), (.*)", told)
    assert line is not None, told
    plain, table = (shlex.split(command) for command in line.groups())
    direct = ratchet("diagram", "tour", *chosen, "--agent", str(elsewhere)).stdout
    assert " --> " in direct
    assert (plain[0], ratchet(*plain[1:]).stdout) == ("ratchet", direct)
    assert ratchet(*table[1:]).stdout.startswith("| from | event | to |")


def test_options_of_another_machines_file_are_left_aside(
    capsys: pytest.CaptureFixture[str], data_dir: Path, elsewhere: Path
) -> None:
    for command in ("machines", "diagram"):
        words = [command, "simple", "--agent", str(elsewhere), "--data-dir", str(data_dir)]
        assert execute(words) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["raect"], "did you mean react"),
        (["react", "--version", "77"], "unknown machine react of version 77; there is react (version 1)\n"),
        (["react", "--set", "max_step=1"], "did you mean `max_steps`"),
        (["react", "--agent", "nix.yaml"], "nix.yaml: there is no such file"),
    ],
)
def test_what_is_not_there_is_named(
    capsys: pytest.CaptureFixture[str], data_dir: Path, words: list[str], said: str
) -> None:
    assert execute(["machines", *words, "--data-dir", str(data_dir)]) == 2
    spoken = capsys.readouterr()
    assert (spoken.out, said in spoken.err) == ("", True), spoken.err


# -- a bad value --------------------


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("max_steps=0", "options.max_steps: .*got 0; allowed is integer from 1 to 10000"),
        ("max_steps=10001", "got 10001; allowed is integer from 1 to 10000"),
        ("max_steps=many", "got 'many'; allowed is integer from 1 to 10000"),
        ("max_transitions=0", "got 0; allowed is integer at least 1 or `null`"),
        ("cost_limit=0", "got 0; allowed is number above 0"),
        ("reply_format=xml", "'text' or 'json_schema', got 'xml'"),
        ("rules=max_depth", "got 'max_depth'; allowed is list of object or `null`"),
        ("limits.depth=51", "limits.depth: .*got 51; allowed is integer from 0 to 50"),
        ("heartbeat_seconds=1", "got 1; allowed is number from 3 to 600"),
        ("tools=calculator", "allowed is list of text"),
    ],
)
def test_a_bad_value_is_refused_with_all_that_is_allowed(
    capsys: pytest.CaptureFixture[str], data_dir: Path, setting: str, said: str
) -> None:
    assert execute(["run", "go", "--set", setting, "--data-dir", str(data_dir)]) == 2
    spoken = capsys.readouterr().err
    assert f"--set {setting}: " in spoken
    assert re.search(said, spoken), spoken
    assert not data_dir.exists()


# -- knobs in words --------------------


class Inner(Strict):
    """Inside of another."""

    name: str = Field(min_length=1, max_length=9, description="of the part [3.11]")
    share: float = Field(default=0.5, gt=0, lt=1)
    parts: tuple[Inner, ...] = ()


Nest = TypeAliasType("Nest", "str | list[Nest] | dict[str, Nest | Inner]")
"""A type that holds itself by name, as a user's knobs may."""


class Outer(Strict):
    """Options of all kinds."""

    count: Annotated[int, Field(ge=0)] = Field(default=3, description="tries, in all [2.8, R-001-2]")
    mode: Literal["a", "b"] | None = None
    parts: tuple[Inner, ...] = Field(default=(), max_length=4, description="see [the page]")
    caps: dict[Literal["x", "y"], float] = Field(default={"x": 1.0})
    words: dict[Annotated[str, Field(pattern="^[a-z]+$")], int] = Field(default_factory=dict)
    by_name: dict[str, Inner] = Field(default_factory=dict)
    one: Inner = Inner(name="one")
    free: object = None
    nest: Nest = ""
    json_value: JsonValue = None


def test_every_kind_of_knob_is_told_with_the_keys_inside_of_it() -> None:
    found = {knob.name: knob for knob in knobs(Outer)}
    assert found["count"] == Knob("count", "3", "integer at least 0", "tries, in all", "2.8, R-001-2")
    assert (found["mode"].default, found["mode"].allowed) == ("null", "`a`, `b` or `null`")
    assert found["parts"].allowed == "list of object, at most 4 items"
    assert (found["parts"].meaning, found["parts"].source) == ("see [the page]", "")
    assert found["parts[].name"] == Knob(
        "parts[].name", None, "text, at least 1, at most 9 characters", "of the part", "3.11"
    )
    assert found["parts[].share"].allowed == "number above 0, below 1"
    assert found["parts[].parts"].allowed == "list of object"
    assert "parts[].parts[].name" not in found  # a model in itself is told once
    assert found["caps"].default == '{"x": 1.0}'
    assert found["caps"].allowed == "mapping of `x`, `y` to number"
    assert found["words"].allowed == "mapping to integer"
    assert found["by_name.*.name"].source == "3.11"
    assert found["one.share"].default == "0.5"
    assert found["free"].allowed == "anything"


def test_a_type_that_holds_itself_is_told_once() -> None:
    found = {knob.name: knob for knob in knobs(Outer)}
    assert found["nest"].allowed == "text or list of the same or mapping to the same or object"
    assert found["json_value"].allowed == "anything"
    assert allowed_at(Outer, ("nest", 0, 0, 0)) == found["nest"].allowed
    assert [name for name in found if name.startswith("nest")] == ["nest"]


@pytest.mark.parametrize(
    ("where", "allowed"),
    [
        (("parts", 0, "name"), "text, at least 1, at most 9 characters"),
        (("parts", 3, "parts", 0, "share"), "number above 0, below 1"),
        (("by_name", "z", "share"), "number above 0, below 1"),
        (("caps", "x"), "number"),
        (("words", "a"), "integer"),
        (("nix",), None),
        (("count", "deeper"), None),
    ],
)
def test_what_is_allowed_is_found_at_any_depth(where: tuple[str | int, ...], allowed: str | None) -> None:
    assert allowed_at(Outer, where) == allowed


@pytest.mark.parametrize("design", DESIGNS)
def test_every_knob_of_ours_says_what_is_allowed(design: Design) -> None:
    vague = [knob.name for knob in knobs(design.options) if knob.allowed in ("", "anything")]
    assert vague == []
