"""A machine is verified by a test, by the command, and by what it leaves behind: counterexamples."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from activities.extensions import load_modules
from client.cassette.file import read_cassette, write_cassette
from client.cassette.playing import play
from client.cli.app import execute
from client.proof.machine import scenarios_of
from ratchet.verify import MachineReport, Scenario, at_most, calls, ends, enters, never, returned, verify
from workflows.kernel.machine import Machine
from workflows.verify.runs.domain import WITHOUT

DESK = str(Path(__file__).with_name("desk.py"))
PAGE = Path(__file__).parents[2] / "docs" / "verification.md"


@pytest.fixture(scope="module")
def machine() -> Machine:
    (module,) = load_modules([DESK])
    found: Machine = module.MACHINE
    return found


@pytest.fixture(scope="module")
def report(machine: Machine) -> MachineReport:
    return verify(machine)


def test_money_bug_is_found_from_form_of_reply_alone(report: MachineReport) -> None:
    (one,) = report.counterexamples
    assert report.complete
    assert not report.ok
    assert one.violation.name == "one payment"
    assert [exchange.text for exchange in one.violation.exchanges] == [
        'model: {"size": "small", "times": 2}', "pay -> found",
    ]  # fmt: skip
    assert "VIOLATED  one payment\n" in report.text
    assert "\nheld in every run of these scenarios, in the domain below:\n" in report.text
    assert "\n  a large sum needs a yes\n" in report.text


def test_last_line_of_a_counterexample_says_when_it_breaks(machine: Machine) -> None:
    ways = {"asked": calls("pay"), "answered": returned("pay"), "moved": enters("check"), "ended": ends()}
    report = verify(replace(machine, properties=[never(kind, when) for kind, when in ways.items()]))
    last = {one.violation.name: [*one.lines][-1].strip() for one in report.counterexamples}
    assert last == {
        "asked": 'broken when state pay asks: pay(size="small")',
        "answered": "broken when state pay gets this answer",
        "moved": "broken when the event Paid leads from pay to check",
        "ended": "broken when the run ends as done",
    }


def test_counterexample_fails_while_the_property_is_broken(
    report: MachineReport, machine: Machine, tmp_path: Path
) -> None:
    (one,) = report.counterexamples
    assert one.cassette is not None
    write_cassette(one.cassette, tmp_path / "twice.yaml")
    cassette = read_cassette(tmp_path / "twice.yaml")
    assert cassette.violates == "one payment"
    verdict = asyncio.run(play(cassette, machine=machine))
    assert verdict.difference == "violates 'one payment', after 2 answers"
    mended = replace(machine, properties=[at_most("one payment", 2, calls("pay"))])
    assert asyncio.run(play(cassette, machine=mended)).ok
    without = asyncio.run(play(cassette, machine=replace(machine, properties=[])))
    assert without.difference.startswith("not judged: the machine has no property 'one payment'")


def test_scenario_narrows_and_widens(machine: Machine) -> None:
    once = Scenario(words={"times": [1]}, outputs={"pay": ["paid"]}, without=frozenset({"timeout"}))
    report = verify(machine, scenarios=[once])
    assert report.ok
    assert report.scenarios[0].never_taken == (("check", "Again", "pay"),)
    assert "untaken  check --Again--> pay" in report.text


def test_command_prints_the_counterexample_and_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["verify", "machine", DESK, "--out", str(tmp_path / "found"), "--data-dir", str(tmp_path)]
    assert execute(words) == 1
    assert "VIOLATED  one payment" in capsys.readouterr().out
    (file,) = (tmp_path / "found").iterdir()
    assert file.name == "money-desk-one-payment.yaml"
    assert execute([*words, "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["violations"][0]["reproduced"] is True
    assert facts["scenarios"][0]["complete"] is True


def test_command_says_what_it_cannot_find(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["verify", "machine", "nothing.py", "--data-dir", str(tmp_path)]) == 2
    assert "there is no file nothing.py" in capsys.readouterr().err
    assert execute(["verify", "machine", DESK, "--scenario", "x", "--data-dir", str(tmp_path)]) == 2
    assert "money_desk has no scenario x" in capsys.readouterr().err


def test_page_shows_what_is_printed(report: MachineReport) -> None:
    page = PAGE.read_text()
    shown = re.search(r"\$ ratchet verify machine desk.py\n(.*?)\n      \.\.\.", page, re.DOTALL)
    assert shown is not None

    def lines(text: str) -> list[str]:
        return [re.sub(r"[0-9.]+ s$", "", line.strip()) for line in text.splitlines()]

    wanted, found = lines(shown[1]), lines(report.text)
    assert found[: len(wanted)] == wanted


def test_page_names_all_scenario_fields_and_all_that_without_takes() -> None:
    page = PAGE.read_text()
    rows = [re.findall(r"`([^`]*)`", line) for line in page.splitlines() if line.startswith("| ")]
    assert {field.name for field in fields(Scenario)} <= {names[0] for names in rows if names}
    _, _, behind = page.partition("What `without` may name:")
    table = behind.partition("\n\n## ")[0]
    assert {*re.findall(r"`([^`]*)`", table)} == WITHOUT


def test_difference_of_declaration_and_code_fails(machine: Machine) -> None:
    states = [replace(one, reads=one.reads - {"times"}) for one in machine.states]
    report = verify(replace(machine, states=states, properties=[]))
    assert not report.ok
    assert "WRONG" in report.text
    assert f"{Path(DESK).name}:" in report.text


# -- the domain that is printed, and what an author may have written wrongly --------------------


def test_report_shows_what_was_tried(machine: Machine) -> None:
    once = Scenario(
        words={"times": [1], "time": [1]}, replies={"red*": ["?"]}, without=frozenset({"timeout"})
    )
    report = verify(machine, scenarios=[once])
    assert "scenario default: goal 'find out'\n    without timeout\n    read: " in report.text
    assert '{"size": "small", "times": 1}, {"size": "large", "times": 1}' in report.text
    assert "never used: replies `red*`, words for `time`" in report.text


@pytest.mark.parametrize(("scenario", "text"), [
    ({"without": frozenset({"timeuot"})}, "without: no answer is called 'timeuot'; did you mean 'timeout'"),
    ({"outputs": {"payy": ["1"]}}, "outputs: no state calls a tool 'payy'; there are: pay"),
    ({"outputs": {"pay": "paid"}}, r"outputs\['pay'\] is a text; write a list: \['paid'\]"),
    ({"words": {"times": "1"}}, ".* is a text; write a list"),
    ({"options": {"rounds": 1}}, "options: rounds: unknown key$"),
])  # fmt: skip
def test_scenario_that_does_not_fit_is_refused(machine: Machine, scenario: Any, text: str) -> None:
    with pytest.raises(ValueError, match=f"scenario 'mine': {text}"):
        verify(machine, scenarios=[Scenario(name="mine", **scenario)])


def test_properties_that_are_none_or_share_a_name_are_refused(machine: Machine) -> None:
    wrong: Any = [lambda x: True]
    with pytest.raises(ValueError, match=r"money_desk: properties\[0\] is <function .* and no property"):
        verify(replace(machine, properties=wrong))
    one = at_most("one payment", 1, calls("pay"))
    with pytest.raises(ValueError, match="money_desk: two properties have the name 'one payment'"):
        verify(replace(machine, properties=[one, one]))


class Choices(BaseModel, frozen=True):
    tries: int = Field(default=3, gt=0)
    max_transitions: int = Field(default=50, ge=1)
    fast: bool = False
    way: Literal["short", "long"] = "long"


def test_scenarios_are_derived_from_options(machine: Machine) -> None:
    found = scenarios_of(replace(machine, options=Choices))
    assert [(one.name, one.options) for one in found] == [
        ("default", {}),
        ("smallest", {"tries": 1}),
        ("fast=True", {"tries": 1, "fast": True}),
        ("way=short", {"tries": 1, "way": "short"}),
    ]


def test_derived_scenario_that_cannot_begin_is_left_out(machine: Machine) -> None:
    def begin(given: Any, options: Choices) -> Any:
        if options.fast:
            raise ValueError("made of other options")
        return machine.begin(given, options)

    found = scenarios_of(replace(machine, options=Choices, begin=begin))
    assert [one.name for one in found] == ["default", "smallest", "way=short"]


TOOL = '''
from ratchet import Tool


class Sum(BaseModel):
    """Pay."""

    size: str


TOOL = Tool(name="pay", params=Sum, run=lambda given: "paid", effect="unsafe")
'''


def test_command_takes_derived_scenarios_and_tools_beside_the_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "desk_with_tool.py"
    file.write_text(Path(DESK).read_text().replace('"money_desk"', '"tool_desk"') + TOOL)
    words = ["verify", "machine", str(file), "--scenario", "default", "--data-dir", str(tmp_path)]
    assert execute(words) == 1
    printed = capsys.readouterr().out
    assert "scenario default: complete" in printed
    assert "no schema is known" not in printed


def test_command_names_the_machine_of_an_agent_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = "examples/agents/assistant.yaml"
    assert execute(["verify", "machine", agent, "--data-dir", str(tmp_path)]) == 2
    assert "is an agent file; its machine is" in " ".join(capsys.readouterr().err.split())


def test_property_of_what_never_happens_is_not_called_held(machine: Machine) -> None:
    report = verify(replace(machine, properties=[at_most("one payment", 1, calls("payy"))]))
    assert report.silent == ("one payment",)
    assert "never came up, so nothing is known of it:\n  one payment" in report.text
