"""The certificate of a machine: what is in it, who gets one, and what a run says that differs from it."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from activities.contracts import MachineNamed, RunMachine, ToolSpec
from activities.extensions import declared, load_modules
from client.agents.agentfile import load_agent
from client.cli.app import execute
from client.errors import UsageError
from client.proof.certificate import certificate_text
from client.proof.digests import code_of, digests_of, ratchet_code
from client.proof.machine import declared_tools
from client.sdk.local import Local, ScriptedModel
from ratchet.verify import verify
from tests.verify.test_machine import DESK
from workflows import registry
from workflows.api import Fork, Origin
from workflows.certificate import FORMAT, Certificate, certificate_line, of_certificate
from workflows.kernel.log import Record
from workflows.kernel.machine import Extensions, Machine
from workflows.task import inner_task

HELPER = "LEAST = 'small'\n"
PAYER = """
from pydantic import BaseModel

from ratchet import CallTools, Context, Event, Exit, Machine, Run, Tool, ToolCall, Visit, do, state
from ratchet.verify import Scenario, at_most, calls
from certified_sizes import LEAST


class Params(BaseModel):
    "Pay."

    size: str


TOOL = Tool(name="pay_once", params=Params, run=lambda params, call: "paid", effect="unsafe")


class Paid(Event): ...


class Options(BaseModel, frozen=True, extra="forbid"):
    size: str = LEAST


class Memory(Context):
    paid: str = ""


@state("pay", asks={CallTools}, tools={"pay_once"}, writes={"paid"})
def pay(c: Memory, run: Run) -> Visit:
    call = ToolCall(id="1", tool="pay_once", arguments={"size": run.options.size})
    returned = yield from do(CallTools(calls=(call,)))
    return {"paid": returned.results[0].output}, Paid("paid")


MACHINE = Machine(
    name="certified_payer", description="Pays once.", options=Options, context=Memory,
    begin=lambda given, options: Memory(), initial="pay", table={"pay": {Paid: "done"}}, states=[pay],
    result=lambda c, run: Exit(reason="done", ok=True, answer=c.paid), exits={"done": "it is paid"},
    properties=[at_most("one payment", 1, calls("pay_once")), at_most("no order", 0, calls("order"))],
)
"""
AGENT = """
machine: certified_payer
modules: [payer.py]
tools: [pay_once]
models: scripted
approvals: {effects: {unsafe: never}}
"""


@pytest.fixture(scope="module")
def payer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine's file, a module that it imports, and its certificate."""
    folder = tmp_path_factory.mktemp("payer")
    (folder / "certified_sizes.py").write_text(HELPER)
    (folder / "payer.py").write_text(PAYER)
    (folder / "agent.yaml").write_text(f"{AGENT}certificate: proof.json\n")
    sys.path.append(str(folder))  # stays: other tests' second processes load the machine, too
    assert certify(folder / "payer.py", folder / "proof.json", folder) == 0
    return folder / "payer.py"


def certify(machine: Path | str, to: Path, data: Path, *more: str) -> int:
    words = ["verify", "machine", str(machine), "--certificate", str(to), "--data-dir", str(data), *more]
    return execute(words)


def first_record(agent: Path, **more: object) -> Record:
    """Of a run in this process."""
    local = Local(load_agent(agent), model=ScriptedModel([]), check_purity=False)
    return local.run_sync("pay", **more).records[0]


def test_certificate_says_what_was_verified_in_which_domain(payer: Path) -> None:
    found = json.loads((payer.parent / "proof.json").read_text())
    assert found["properties"] == {"one payment": "held", "no order": "never came up"}
    assert "each exit reason is one of `exits`" in found["built_in"]
    subject = found["subject"]
    assert (found["complete"], subject["machine"], subject["version"]) == (True, "certified_payer", "1")
    files = {name: hashlib.sha256((payer.parent / name).read_bytes()).hexdigest() for name in ("payer.py",)}
    assert subject["code"].items() >= files.items()
    assert subject["code"].keys() == {"payer.py", "certified_sizes"}, "what it imports is its code"
    assert subject["ratchet"] == ratchet_code()
    (scenario,) = found["scenarios"]
    assert scenario["options"] == {"size": "small"}
    assert [(one["name"], one["is_open"]) for one in scenario["tools"]] == [("pay_once", False)]
    assert "timeout" in " ".join(scenario["tried"]["pay_once"])
    assert (scenario["complete"], scenario["answers"] > 5, bool(found["left_out"])) == (True, True, True)


def test_same_machine_gives_the_same_certificate(payer: Path) -> None:
    text = certificate_text(verify(payer))
    assert text.encode() == (payer.parent / "proof.json").read_bytes()


def test_what_is_violated_or_not_known_gets_no_certificate(
    payer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for machine, more, why in (
        (DESK, (), "something is violated"),
        (str(payer), ("--strict",), "something is not known"),
    ):
        assert certify(machine, tmp_path / "proof.json", tmp_path, *more) == 1
        assert f"no certificate was written: {why}" in capsys.readouterr().err
        assert not (tmp_path / "proof.json").exists()
    assert certify(payer, tmp_path / "no" / "proof.json", tmp_path) == 2
    assert "cannot be written: No such file" in capsys.readouterr().err


def test_run_of_verified_machine_names_certificate_and_nothing_else(payer: Path) -> None:
    record = first_record(payer.parent / "agent.yaml")
    digest = hashlib.sha256((payer.parent / "proof.json").read_bytes()).hexdigest()
    assert record.about == {"machine_version": "1", "certificate": digest}
    assert record.reason == ""


def test_run_says_that_the_exploration_was_not_complete(payer: Path) -> None:
    text = certificate_text(verify(payer, seconds=0.0))
    record = first_record(payer.parent / "agent.yaml", certificate=Certificate.of(text))
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert record.about == {"machine_version": "1", "certificate": digest, "incomplete": True}
    said = f"{digest[:12]}..., whose exploration is not complete: what runs is what was verified"
    assert certificate_line(of_certificate([record])) == said
    assert record.reason == f"certificate {said}"


def test_fork_says_it_in_its_own_first_record(payer: Path) -> None:
    agent = payer.parent / "agent.yaml"
    source = first_record(agent)
    origin = Origin(workflow_id="source", run_id="source", step=0)
    fork = Fork(origin=origin, records=(source.model_dump(mode="json"),))
    record = first_record(agent, fork=fork)
    assert (record.event, record.about["certificate"]) == ("Forked", source.about["certificate"])
    assert of_certificate([source, record]) == {"certificate": source.about["certificate"]}
    other = first_record(agent, fork=fork, options={"size": "large"})
    assert other.about["differs"] == ["the options: no scenario has these"]
    assert other.reason.startswith("from run source, step 0; certificate ")
    plain = first_record(payer.parent / "agent.yaml", fork=fork, certificate=None)
    assert of_certificate([source, plain]) == {}, "what its source had is not its own"


def test_inner_run_has_no_certificate_of_the_outer_one(payer: Path) -> None:
    task = load_agent(payer.parent / "agent.yaml").task("go")
    assert task.certificate is not None
    inner = RunMachine(machine="certified_payer", goal="go", give=("pay_once",))
    assert inner_task(task, inner, {}, 0).certificate is None


def test_run_without_a_certificate_says_nothing(payer: Path) -> None:
    plain = payer.parent / "plain.yaml"
    plain.write_text(AGENT)
    assert first_record(plain).about == {"machine_version": "1"}
    assert first_record(plain).reason == ""
    assert "certificate" not in load_agent(plain).task("go").model_dump_json()


def other_code(payer: Path) -> None:
    payer.write_text(f"{PAYER}# another one\n")


def other_import(payer: Path) -> None:
    (payer.parent / "certified_sizes.py").write_text("LEAST = 'little'\n")


def other_options(payer: Path) -> None:
    agent = payer.parent / "agent.yaml"
    agent.write_text(f"{agent.read_text()}options: {{size: large}}\n")


def other_proof(**parts: object) -> Callable[[Path], None]:
    """A certificate of something else than what is here."""

    def change(payer: Path) -> None:
        proof = payer.parent / "proof.json"
        found = json.loads(proof.read_text())
        found["subject"] |= parts
        proof.write_text(json.dumps(found))

    return change


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (other_code, ["code payer.py"]),
        (other_import, ["code certified_sizes"]),
        (other_options, ["the options: no scenario has these"]),
        (other_proof(table="0"), ["the table"]),
        (other_proof(options_schema="0"), ["which options there are"]),
        (other_proof(ratchet="0"), ["the code of Ratchet"]),
        (other_proof(version="0"), ["the machine: certified_payer 1, verified was certified_payer 0"]),
        (other_proof(machine="react"), ["the machine: certified_payer 1, verified was react 1"]),
        (other_proof(tools=()), ["tool pay_once"]),
    ],
    ids=["code", "import", "options", "table", "schema", "ratchet", "version", "machine", "tool"],
)
def test_first_record_says_what_differs(
    payer: Path, change: Callable[[Path], None], differs: list[str]
) -> None:
    before = {file: file.read_bytes() for file in payer.parent.iterdir() if file.is_file()}
    try:
        change(payer)
        record = first_record(payer.parent / "agent.yaml")
    finally:
        for file, content in before.items():
            file.write_bytes(content)
    assert record.about["differs"] == differs
    assert record.reason.endswith(f"and what runs differs: {'; '.join(differs)}")


def test_answer_that_may_be_asked_for_again_differs(payer: Path) -> None:
    record = first_record(payer.parent / "agent.yaml", output={"properties": {"paid": {"type": "boolean"}}})
    assert record.about["differs"] == [
        "the agent's output: what does not fit it is asked for again, which no verified run did"
    ]


def test_worker_without_the_machine_compares_nothing(payer: Path) -> None:
    named = MachineNamed(name="certified_payer", version="9", options={})
    assert digests_of(named, ()) is None
    found = Certificate.of((payer.parent / "proof.json").read_text())
    assert found.differences(None) == ["all of it: nobody who has the machine could compare it"]


PACKAGE = {
    "__init__.py": "",
    "machine.py": PAYER.replace("certified_payer", "packed_payer").replace(
        "from certified_sizes import LEAST", "from . import sizes\nfrom .deep.sizes import LEAST"
    ),
    "sizes.py": "import json, pydantic\n\n\ndef largest():\n    from packed import late\n    return late.X",
    "late.py": "X = 'large'",
    "unused.py": "",
    "deep/__init__.py": "",
    "deep/sizes.py": "from .. import late\nLEAST = late.X",
}


def test_code_is_what_a_machine_imports_of_its_author(tmp_path: Path) -> None:
    for name, text in PACKAGE.items():
        (tmp_path / "packed" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "packed" / name).write_text(text)
    sys.path.append(str(tmp_path))  # stays, as above
    module = importlib.import_module("packed.machine")
    registry.add_module(module)
    mine = {"packed", "packed.deep", "packed.deep.sizes", "packed.late", "packed.machine", "packed.sizes"}
    assert code_of(module.MACHINE, {}).keys() == mine
    (tmp_path / "packed" / "sizes.py").write_text("not even Python")
    assert code_of(module.MACHINE, {}).keys() == mine, "it says what is there, also in the middle of an edit"
    (tmp_path / "packed" / "sizes.py").write_text(PACKAGE["sizes.py"])
    assert code_of(replace(module.MACHINE), {}) == {}, "a machine of no module is of no known code"


def test_code_is_also_what_only_a_visit_imports(payer: Path, tmp_path: Path) -> None:
    late = "    from visited.amounts import SIZE\n    from visited.bare.deep import rates\n    call ="
    machine = payer.read_text().replace("certified_payer", "lazy_payer").replace("    call =", late)
    (tmp_path / "visited" / "bare" / "deep").mkdir(parents=True)
    (tmp_path / "visited" / "__init__.py").write_text("")
    (tmp_path / "visited" / "amounts.py").write_text("SIZE = 'small'")
    (tmp_path / "visited" / "bare" / "deep" / "rates.py").write_text("RATE = 2")
    (tmp_path / "lazy_payer.py").write_text(machine)
    sys.path.append(str(tmp_path))  # stays, as above
    registry.add_module(*load_modules([str(tmp_path / "lazy_payer.py")]))
    found = code_of(registry.machine("lazy_payer"), {})
    assert found.keys() >= {"visited", "visited.amounts", "visited.bare.deep.rates"}
    assert not {name for name in sys.modules if name.startswith("visited")}, "nothing was imported"


def test_rule_that_options_name_is_code_of_the_run(payer: Path) -> None:
    file = payer.parent / "certified_rules.py"
    file.write_text("RULES = {'certified_rule': lambda c, run: ''}")
    (rules,) = load_modules([str(file)])
    registry.add_module(rules)
    machine = registry.machine("certified_payer")
    assert "certified_rules.py" not in code_of(machine, {"size": "small"})
    assert "certified_rules.py" in code_of(machine, {"size": "certified_rule"})
    differs = first_record(payer.parent / "agent.yaml", options={"size": "certified_rule"}).about["differs"]
    assert differs == ["code certified_rules.py", "the options: no scenario has these"]


TWO_RULES = """options=Options, scenarios=[
    Scenario(name="first", options={"size": "first_rule"}), Scenario(name="default"),
],"""


def test_each_scenario_has_the_rules_that_its_options_name(payer: Path, tmp_path: Path) -> None:
    text = payer.read_text().replace("certified_payer", "ruled_payer").replace("options=Options,", TWO_RULES)
    text = text.replace("from certified_sizes import LEAST", "").replace("= LEAST", "= 'default_rule'")
    files = {
        "ruled_payer.py": text,
        "first.py": "RULES = {'first_rule': lambda c, run: ''}",
        "default.py": "RULES = {'default_rule': lambda c, run: ''}",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    for module in load_modules([str(tmp_path / name) for name in reversed(files)]):
        registry.add_module(module)
    machine = registry.machine("ruled_payer")
    proof = Certificate.of(
        certificate_text(verify(machine, tools=declared_tools(tmp_path / "ruled_payer.py")))
    )
    named = MachineNamed(name="ruled_payer", version=None, options={})

    def differences(**options: str) -> list[str]:
        return proof.differences(digests_of(named.model_copy(update={"options": options}), ()))

    assert (differences(), differences(size="first_rule")) == ([], [])
    (tmp_path / "default.py").write_text("RULES = {'default_rule': lambda c, run: 'never'}")
    assert (differences(), differences(size="first_rule")) == (["code default.py"], [])


UNNAMED = """
    prepare=lambda options, extensions: {prepare},
    scenarios=[{scenarios}],
"""
STAND_IN = 'Scenario(name="stub", extensions=Extensions(rules={"again": lambda: "no"}))'


def unnamed(payer: Path, folder: Path, name: str, prepare: str, scenarios: str = "") -> tuple[Path, Path]:
    """A machine that takes a rule which its options do not name, and the module of the rule."""
    more = UNNAMED.format(prepare=prepare, scenarios=scenarios)
    text = (
        payer.read_text()
        .replace("certified_payer", name)
        .replace("    properties=", f"{more}    properties=")
    )
    machine, rules = folder / f"{name}.py", folder / f"{name}_rules.py"
    machine.write_text(text.replace("import CallTools,", "import CallTools, Extensions,"))
    rules.write_text(f"def {name}_rule():\n    return 'yes'\nRULES = {{'{name}_rule': {name}_rule}}\n")
    (folder / "agent.yaml").write_text(
        f"{AGENT}certificate: proof.json\n".replace("certified_payer", name).replace(
            "[payer.py]", f"[{machine.name}, {rules.name}]"
        )
    )
    for module in load_modules([str(machine), str(rules)]):
        registry.add_module(module)
    (folder / "proof.json").write_text(certificate_text(verify(machine)))
    return machine, rules


@pytest.mark.parametrize(
    ("name", "prepare"),
    [
        ("read_rule", "extensions.rules['read_rule_rule']"),
        ("got_rule", "extensions.rules.get('got_rule_rule')"),
        ("listed_rule", "dict(extensions.rules)['listed_rule_rule']"),
        ("late_rule", "extensions"),
    ],
)
def test_rule_that_no_option_names_is_code_of_the_run(
    payer: Path, tmp_path: Path, name: str, prepare: str
) -> None:
    _, rules = unnamed(payer, tmp_path, name, prepare)
    assert "differs" not in first_record(tmp_path / "agent.yaml").about
    rules.write_text(f"{rules.read_text()}# another one\n")
    assert first_record(tmp_path / "agent.yaml").about["differs"] == [f"code {rules.name}"]


def test_rule_that_nothing_reads_is_no_code_of_the_run(payer: Path, tmp_path: Path) -> None:
    machine, rules = unnamed(payer, tmp_path, "no_rule", "extensions.rules.get('nothing')")
    assert code_of(registry.machine("no_rule"), {}).keys() == {machine.name, "certified_sizes"}
    assert rules.is_file()


def test_scenario_with_rules_of_its_own_verifies_no_options(payer: Path, tmp_path: Path) -> None:
    """Its rules are not those of a run."""
    unnamed(payer, tmp_path, "stubbed_payer", "extensions.rules.get('again')", f"{STAND_IN}, ")
    proof = json.loads((tmp_path / "proof.json").read_text())
    assert [one["extensions"] for one in proof["scenarios"]] == [["rule again"]]
    assert proof["subject"]["options"] == {}
    differs = first_record(tmp_path / "agent.yaml").about["differs"]
    assert differs == ["the options: no scenario has these"]
    report = verify(tmp_path / "stubbed_payer.py")
    assert "    brings its own rule again: no run has it" in report.text


def test_scenario_without_rules_of_its_own_verifies_the_same_options(payer: Path, tmp_path: Path) -> None:
    scenarios = f'{STAND_IN}, Scenario(name="default")'
    unnamed(payer, tmp_path, "half_stubbed", "extensions.rules.get('again')", scenarios)
    assert "differs" not in first_record(tmp_path / "agent.yaml").about


def test_extensions_that_are_given_to_verify_are_no_runs(payer: Path) -> None:
    given = Extensions(rules={"mine": lambda: ""})
    proof = Certificate.of(certificate_text(verify(payer, extensions=given)))
    assert proof.options == {}


def test_function_that_a_test_gives_to_a_run_differs(payer: Path) -> None:
    agent = load_agent(payer.parent / "agent.yaml")

    def about(**given: Any) -> Any:
        local = Local(agent, model=ScriptedModel([]), check_purity=False, **given)
        return local.run_sync("pay").records[0].about

    assert about(rules={"again": len}, hooks={"last": len})["differs"] == [
        "the rule again: it was given in memory",
        "the hook last: it was given in memory",
    ]
    assert "differs" not in about()


def test_machine_other_than_that_of_module_is_not_compared(payer: Path) -> None:
    certificate = Certificate.of((payer.parent / "proof.json").read_text())
    mine = registry.machine("certified_payer")
    tools = [one for one, _ in declared(load_modules([str(payer)]), "TOOL")]

    def differs(machine: Machine) -> Any:
        given: Any = {"tools": tools, "check_purity": False, "decide": lambda request: "approve"}
        local = Local(machine, model=ScriptedModel([]), **given)
        return local.run_sync("pay", certificate=certificate).records[0].about.get("differs")

    assert differs(mine) is None
    assert differs(replace(mine)) == ["all of it: nobody who has the machine could compare it"]


@pytest.mark.parametrize(
    ("code", "differs"),
    [
        ({"desk.py": "1", "shop.a": "2", "shop.b": "3"}, []),
        ({"desk.py": "1", "shop.a": "3", "shop.b": "2"}, ["code shop.a", "code shop.b"]),
        ({"desk.py": "1", "shop.a": "2"}, ["code shop.b, which is not there"]),
        ({"shop.desk": "1", "shop.a": "2", "shop.b": "3"}, []),
        (
            {"shop.desk": "2", "shop.a": "2", "shop.b": "3"},
            ["code shop.desk", "code desk.py, which is not there"],
        ),
        ({"desk.py": "1", "shop.a": "2", "shop.b": "3", "shop.c": "3"}, ["code shop.c"]),
        ({}, [f"code {name}, which is not there" for name in ("desk.py", "shop.a", "shop.b")]),
    ],
    ids=["same", "swapped", "gone", "file-as-module", "other-file", "copy", "nothing"],
)
def test_code_is_compared_by_name(payer: Path, code: dict[str, str], differs: list[str]) -> None:
    proof = Certificate.of((payer.parent / "proof.json").read_text())
    proof = proof.model_copy(update={"code": {"desk.py": "1", "shop.a": "2", "shop.b": "3"}})
    named = MachineNamed(name="certified_payer", version=None, options={})
    found = digests_of(named, ())
    assert found is not None
    assert proof.differences(found.model_copy(update={"code": code})) == differs


def test_changed_spec_of_a_tool_differs(payer: Path) -> None:
    found = Certificate.of((payer.parent / "proof.json").read_text())
    (spec,) = declared_tools(payer)

    def differences(one: ToolSpec) -> list[str]:
        named = MachineNamed(name="certified_payer", version=None, options={})
        return found.differences(digests_of(named, [one]))

    assert differences(spec) == []
    assert differences(spec.model_copy(update={"effect": "read"})) == ["tool pay_once"]


@pytest.mark.parametrize("machine", registry.shipped(), ids=lambda one: one.name)
def test_shipped_machine_is_the_code_of_ratchet(machine: object) -> None:
    name, version = machine.name, machine.version  # type: ignore[attr-defined]  # pytest knows no type of it
    found = digests_of(MachineNamed(name=name, version=version, options={}), ())
    assert found is not None
    assert (found.code, found.ratchet) == ({}, ratchet_code())


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("nothing.json", "nothing.json cannot be read: No such file"),
        ("payer.py", "payer.py: not a certificate ("),
        ("other.json", "its format is 'x', expected 'ratchet certificate 1'"),
        ("part.json", "part.json: not a certificate (machine: is missing; version: "),
        ("[1]", "expected the path of a file, got [1]"),
    ],
)
def test_agent_file_with_another_file_is_refused(payer: Path, value: str, told: str) -> None:
    (payer.parent / "other.json").write_text('{"format": "x"}')
    part = {"format": FORMAT, "complete": True, "subject": {}}
    (payer.parent / "part.json").write_text(json.dumps(part))
    agent = payer.parent / "wrong.yaml"
    agent.write_text(f"{AGENT}certificate: {value}\n")
    with pytest.raises(UsageError, match=r"wrong\.yaml:") as refused:
        load_agent(agent)
    assert told in str(refused.value)


def test_command_takes_no_options_of_a_server(payer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--address=x:1", "--namespace=x", "--port=1", "--ui-port=1"):
        assert execute(["verify", "machine", str(payer), option]) == 2
        assert "No such option" in capsys.readouterr().err
