"""A machine is verified by a test, by the command, and by what it leaves behind: counterexamples."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from activities.extensions import load_modules
from client.cassette.file import read_cassette, write_cassette
from client.cassette.playing import play
from client.cli.app import execute
from ratchet.verify import MachineReport, Scenario, at_most, calls, verify
from workflows.kernel.machine import Machine

DESK = str(Path(__file__).with_name("desk.py"))


@pytest.fixture(scope="module")
def machine() -> Machine:
    (module,) = load_modules([DESK])
    found: Machine = module.MACHINE
    return found


@pytest.fixture(scope="module")
def report(machine: Machine) -> MachineReport:
    return verify(machine)


def test_money_bug_is_found_from_the_form_of_the_reply_alone(report: MachineReport) -> None:
    (one,) = report.counterexamples
    assert report.complete
    assert not report.ok
    assert one.violation.name == "one payment"
    assert [turn.text for turn in one.violation.turns] == [
        'model: {"size": "small", "times": 2}', "pay -> found",
    ]  # fmt: skip
    assert "VIOLATED  one payment\n" in report.text
    assert "proven for every reply" in report.text
    assert "\n  a large sum needs a yes\n" in report.text


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
    assert without.difference.startswith("the machine has no property 'one payment'")


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
    assert facts["violations"][0]["confirmed"] is True
    assert facts["scenarios"][0]["complete"] is True


def test_command_says_what_it_cannot_find(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["verify", "machine", "nothing.py", "--data-dir", str(tmp_path)]) == 2
    assert "there is no file nothing.py" in capsys.readouterr().err
    assert execute(["verify", "machine", DESK, "--scenario", "x", "--data-dir", str(tmp_path)]) == 2
    assert "money_desk has no scenario x" in capsys.readouterr().err


def test_page_shows_what_is_printed(report: MachineReport) -> None:
    page = (Path(__file__).parents[2] / "docs" / "verification.md").read_text()
    shown = re.search(r"\$ ratchet verify machine desk.py\n(.*?)\n      \.\.\.", page, re.DOTALL)
    assert shown is not None

    def lines(text: str) -> list[str]:
        return [re.sub(r"[0-9.]+ s$", "", line.strip()) for line in text.splitlines()]

    wanted, found = lines(shown[1]), lines(report.text)
    assert found[: len(wanted)] == wanted


def test_difference_of_declaration_and_code_fails(machine: Machine) -> None:
    states = [replace(one, reads=one.reads - {"times"}) for one in machine.states]
    report = verify(replace(machine, states=states, properties=[]))
    assert not report.ok
    assert "WRONG" in report.text
    assert f"{Path(DESK).name}:" in report.text
