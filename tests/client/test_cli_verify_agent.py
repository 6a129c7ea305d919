"""`ratchet verify agent`: what it prints, and what a pull request is told."""

from __future__ import annotations

import base64
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.client.commandline import Cli, agent_file, environment
from tests.client.conftest import ROOT
from tests.forked import RATCHET, spoken

pytest.importorskip("z3")

AGENT = """
name: payer
machine: react
options: {{max_steps: {steps}}}
tools: [transfer]
modules: [{modules}]
limits: {{cost_usd: {cost}}}
approvals:
  rules:
    - {{tools: [transfer], arguments: {{cents: {{maximum: {cents}}}}}, ask: never}}
people:
  groups: {{boss: {{members: [{members}]}}}}
  requests: {{group: boss}}
models: {{default: scripted}}
"""
TRANSFER = ROOT / "examples" / "tools" / "transfer.py"


@pytest.fixture
def cli(data_dir: Path, tmp_path: Path) -> Cli:
    return Cli(data_dir, tmp_path)


def payer(folder: Path, name: str, **changes: object) -> str:
    values = {"steps": 3, "cents": 5000, "cost": 1, "members": "ann", "modules": TRANSFER, **changes}
    path = folder / f"{name}.yaml"
    path.write_text(AGENT.format(**values))
    return str(path)


def test_blast_radius_is_printed_with_its_call(cli: Cli, tmp_path: Path) -> None:
    shown = cli("verify", "agent", payer(tmp_path, "payer"))
    assert shown.code == 0, shown.err
    assert "rules.0 (cents 1 to 5000): nobody is asked" in shown.out
    assert "one run: at most 3 calls, cents at most 15,000 in all; nobody is asked" in shown.out
    assert "cents=5000)" in shown.out


def test_change_by_one_prints_exactly_that_interval(cli: Cli, tmp_path: Path) -> None:
    """The old file may lie anywhere: `git show` has put it there."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    old = payer(elsewhere, "old", modules="../no/such.py")
    shown = cli("verify", "agent", payer(tmp_path, "new", cents=5001), "--against", old)
    assert shown.code == 1
    assert shown.out.splitlines() == [
        "transfer: cents 5001 newly passes unasked (rules.0)",
        "transfer: cents in all newly up to 15,003 in one run, nobody is asked; before 15,000",
    ]


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({"steps": 3}, {"steps": 4}, "transfer: calls newly up to 4 in one run, nobody is asked; before 3"),
        ({"cost": 1}, {"cost": 2}, "limits.cost_usd is newly 2; before 1"),
        ({"cost": 1}, {"cost": "null"}, "limits.cost_usd is newly null; before 1"),
        ({"members": "ann"}, {"members": "ann, bob"}, "newly decided by 1 of ann, bob; before by 1 of ann"),
        ({"members": "ann"}, {"members": ""}, "newly decided by anybody; before by 1 of ann"),
    ],
)
def test_whatever_grows_is_named(
    cli: Cli, tmp_path: Path, before: dict[str, object], now: dict[str, object], said: str
) -> None:
    old, new = payer(tmp_path, "old", **before), payer(tmp_path, "new", **now)
    shown = cli("verify", "agent", new, "--against", old)
    assert shown.code == 1
    assert said in shown.out
    back = cli("verify", "agent", old, "--against", new)
    assert (back.code, back.out) == (0, "nothing is newly allowed\n"), back.out


def test_markdown_is_a_table_and_a_list(cli: Cli, tmp_path: Path) -> None:
    old, new = payer(tmp_path, "old"), payer(tmp_path, "new", cents=5001)
    table = cli("verify", "agent", new, "--markdown").out
    assert "| `transfer` | unsafe | nobody is asked |" in table
    listed = cli("verify", "agent", new, "--against", old, "--markdown").out
    assert listed.startswith("### `payer`: newly allowed\n\n- transfer: cents 5001 newly")


def test_json_has_the_same(cli: Cli, tmp_path: Path) -> None:
    shown = cli("verify", "agent", payer(tmp_path, "payer"), "--json").json
    (run,) = shown["runs"]
    assert (run["calls"], run["sums"], run["example"]["cents"]) == (3, {"cents": 15_000}, 5000)


LABELLED = """
name: payer
machine: react
options: {{max_steps: 3}}
tools: [{tools}]
modules: [{modules}]
approvals:
  rules:
    - {{tools: [transfer], after: {after}, ask: {ask}}}
    - {{tools: [transfer], ask: never}}
labels: {{input: [{input}], people: [{people}], tools: {{read_file: {{brings: [{brings}]}}}}}}
models: {{default: scripted}}
"""


def labelled(folder: Path, name: str, **changes: str) -> str:
    values = {
        "tools": "read_file, transfer", "modules": str(TRANSFER), "after": "untrusted", "ask": "always",
        "input": "", "people": "", "brings": "untrusted", **changes,
    }  # fmt: skip
    path = folder / f"{name}.yaml"
    path.write_text(LABELLED.format(**values))
    return str(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "transfer (external), after untrusted: people are asked\n"),
        ({"ask": "reject"}, "transfer (external), after untrusted: no call is made\n"),
        ({"ask": "first_time"}, "after untrusted: passes once another one was approved, such as transfer("),
        (
            {"after": "[untrusted, private]", "people": "private"},
            "transfer (external), after untrusted: passes unasked, such as transfer(",
        ),
        ({"after": "private", "brings": "private"}, "nothing brings untrusted into a run of this agent"),
    ],
)
def test_sink_after_untrusted_is_proven_or_refuted(
    cli: Cli, tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    shown = cli("verify", "agent", labelled(tmp_path, "payer", **changes))
    assert shown.code == 0, shown.err
    assert said in shown.out
    if "nothing" not in said:
        assert "untrusted comes from read_file\n" in shown.out
    assert "UNKNOWN" not in shown.out


def test_rule_that_waits_for_a_label_is_shown_with_it(cli: Cli, tmp_path: Path) -> None:
    shown = cli("verify", "agent", labelled(tmp_path, "payer")).out
    assert "rules.0 (after untrusted): a person is asked about each" in shown
    assert "rules.1 (before untrusted): nobody is asked" in shown


def test_label_that_is_no_longer_brought_is_newly_allowed(cli: Cli, tmp_path: Path) -> None:
    """The rule still stands there, and waits for what never comes."""
    old = labelled(tmp_path, "old", input="untrusted")
    shown = cli("verify", "agent", labelled(tmp_path, "new"), "--against", old)
    assert shown.code == 1
    assert "transfer: before untrusted newly passes unasked (rules.1)" in shown.out
    less = labelled(tmp_path, "less", brings="", people="untrusted")
    shown = cli("verify", "agent", less, "--against", labelled(tmp_path, "more", people="untrusted"))
    assert shown.code == 1
    assert "read_file: what comes from there is newly not untrusted, for which a rule waited" in shown.out
    new, same = labelled(tmp_path, "new"), labelled(tmp_path, "same")
    assert cli("verify", "agent", new, "--against", less).code == 1  # people bring none now
    assert cli("verify", "agent", same, "--against", new).code == 0


def test_json_and_markdown_say_what_passes_after_untrusted(cli: Cli, tmp_path: Path) -> None:
    file = labelled(tmp_path, "payer", ask="first_time")
    shown = cli("verify", "agent", file, "--json").json
    (sink,) = shown["sinks"]
    assert shown["untrusted_from"] == ["read_file"]
    assert (sink["tool"], sink["sends"], sink["level"]) == ("transfer", "external", "once")
    assert sink["example"]["labels"] == ["untrusted"]
    assert [one["after"] for one in shown["entries"] if one["tool"] == "transfer"] == [
        {"untrusted": True},
        {"untrusted": False},
    ]
    table = cli("verify", "agent", file, "--markdown").out
    assert "Untrusted comes from read_file." in table
    assert "| `transfer` | external | passes once another one was approved, such as transfer(" in table


def test_strict_fails_on_what_has_no_bound(cli: Cli, tmp_path: Path) -> None:
    """The refund desk pays by its own code: the policy alone bounds nothing."""
    assert cli("verify", "agent", "refund_desk").code == 0
    assert cli("verify", "agent", "refund_desk", "--strict").code == 1
    assert cli("verify", "agent", payer(tmp_path, "payer"), "--strict").code == 0


FAR = """
name: far
machine: tools
tools: [{tools}]
models: scripted
approvals: {{tools: {{{modes}}}}}
"""


def far(folder: Path, name: str, tools: str, modes: str = "") -> str:
    path = folder / f"{name}.yaml"
    path.write_text(FAR.format(tools=tools, modes=modes))
    return str(path)


def test_tool_of_a_silent_server_is_unknown(cli: Cli, tmp_path: Path) -> None:
    """As in CI, where the server is not to be reached: what it would do is not proven."""
    silent = {"RATCHET_MCP": '{"mcpServers": {"crm": {"command": "false"}}}'}
    old, new = far(tmp_path, "old", "calculator, crm__list"), far(tmp_path, "new", "calculator, crm__wipe")
    said = "this tool is not known here"
    shown = cli("verify", "agent", new, "--strict", **silent)
    assert shown.code == 1, shown.err
    assert f"- UNKNOWN crm__wipe: {said}" in shown.out
    shown = cli("verify", "agent", new, "--against", old, **silent)
    assert shown.code == 1
    assert f"unknown: crm__wipe: {said}" in shown.out
    loose = far(tmp_path, "loose", "calculator, crm__list", "crm__list: never")
    shown = cli("verify", "agent", loose, "--against", old, **silent)
    assert (shown.code, f"unknown: crm__list: {said}" in shown.out) == (1, True)
    shown = cli("verify", "agent", far(tmp_path, "same", "crm__list"), "--against", old, **silent)
    assert (shown.code, shown.out) == (0, "nothing is newly allowed\n")


def test_missing_solver_is_one_line(tmp_path: Path) -> None:
    code, _, err = without_solver(RATCHET, tmp_path, "verify", "agent", "payments")
    assert code == 2
    assert "pip install" in err
    assert "Traceback" not in err


PAY = """
from pydantic import BaseModel, Field
from ratchet import Tool

class Params(BaseModel):
    "Pay somebody."
    cents: int = Field(ge=1)

TOOL = Tool(name="pay", params=Params, run=lambda params: "paid", effect="{effect}")
"""
NEVER = "{tools: [pay], ask: never}"


def refused(folder: Path, rules: str, effect: str = "unsafe") -> str:
    """An agent that is not started, for want of a key."""
    (folder / "pay.py").write_text(PAY.format(effect=effect))
    path = folder / "payer.yaml"
    path.write_text(
        "{machine: tools, tools: [pay], modules: [pay.py], models: gpt-5-mini,\n"
        f"approvals: {{rules: [{rules}]}}}}"
    )
    return str(path)


def test_run_warns_of_what_passes_without_a_bound(cli: Cli, tmp_path: Path) -> None:
    shown = cli("run", "--agent", refused(tmp_path, NEVER), "go")
    (line,) = (one for one in shown.err.splitlines() if one.startswith("warning"))
    assert "nobody is asked about pay: at most 1000 calls, cents without any bound in one run" in line


@pytest.mark.parametrize(
    ("rules", "effect"),
    [
        pytest.param("{tools: [pay], ask: never, at_most: {sum: {cents: 50}}}", "unsafe", id="bounded"),
        pytest.param("{tools: [pay], ask: always}", "unsafe", id="people are asked"),
        pytest.param(f"{{ask: always}}, {NEVER}", "unsafe", id="never reached"),
        pytest.param(NEVER, "read", id="no unsafe tool"),
    ],
)
def test_run_is_silent_about_what_is_bounded(cli: Cli, tmp_path: Path, rules: str, effect: str) -> None:
    shown = cli("run", "--agent", refused(tmp_path, rules, effect), "go")
    assert "OPENAI_API_KEY" in shown.err
    assert "warning" not in shown.err


def without_solver(program: str, folder: Path, *words: str) -> tuple[int, str, str]:
    """As where the extra is not installed: exit code, and what is printed."""
    absent = f"import sys; assert 'z3' not in sys.modules; sys.modules['z3'] = None; {program}"
    return spoken(absent, *words, env=environment(RATCHET_DATA_DIR=str(folder / "data")), cwd=folder)


def test_run_without_the_solver_says_nothing_of_it(tmp_path: Path) -> None:
    code, _, err = without_solver(RATCHET, tmp_path, "run", "--agent", refused(tmp_path, NEVER), "go")
    assert code == 2
    assert "OPENAI_API_KEY" in err
    assert len(err.splitlines()) == 1


def test_console_without_the_solver_says_how_to_get_it(tmp_path: Path) -> None:
    program = (
        "import asyncio; from workflows.api import AgentSpec; from client.console.blast_radius import *; "
        "print(asyncio.run(answer_to(RadiusQuestion(agent=AgentSpec(), modules=(), specs=()))).problem)"
    )
    _, out, err = without_solver(program, tmp_path)
    assert "pip install 'ratchet[verify]'" in out
    assert (len(out.splitlines()), err) == (1, "")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "condition",
    ["{const: paid}", "{pattern: '^[a-c]{3}$'}", "{enum: [no, yes], maxLength: 2}", "{not: {minLength: 3}}"],
)
def test_witness_passes_unasked_on_a_server(cli: Cli, tmp_path: Path, condition: str) -> None:
    """Nobody is there: a call that needs a person would not be made."""
    rule = f"{{arguments: {{line: {condition}}}, ask: never}}"
    more = f"approvals: {{rules: [{rule}]}}\npeople: {{unattended: true}}"
    found = cli("verify", "agent", agent_file(tmp_path, "-", more=more), "--json").json
    (call,) = (one["example"] for one in found["runs"] if one["level"] == "unasked")
    line = call["line"]
    shown = cli("run", "--agent", agent_file(tmp_path, line, f"not {line}, but longer", more=more), "go")
    assert shown.code == 0, shown.err
    assert cli.marks() == [line] if line.strip() else len(cli.marks()) == 1


def test_page_shows_what_is_printed(cli: Cli) -> None:
    """Of a shipped agent, with its figures."""
    page = (ROOT / "docs" / "verify-agents.md").read_text(encoding="utf-8")
    block = page.partition("    $ ratchet verify agent payments\n")[2].partition("\n\nRules judge")[0]
    assert cli("verify", "agent", "payments").out == f"{textwrap.dedent(block)}\n"


def test_agent_of_the_page_has_no_bound_without_its_rule(cli: Cli, tmp_path: Path) -> None:
    """What `at_most` of the shipped agent is there for."""
    shipped = (ROOT / "examples" / "agents" / "payments.yaml").read_text(encoding="utf-8")
    bare = tmp_path / "bare.yaml"
    lines = [line for line in shipped.splitlines() if "at_most" not in line]
    bare.write_text("\n".join(lines).replace("../tools/transfer.py", str(TRANSFER)))
    page = (ROOT / "docs" / "verify-agents.md").read_text(encoding="utf-8")
    said = "at most 6 calls, cents at most 60,000,000 in all"
    assert said in page
    assert said in cli("verify", "agent", str(bare)).out
    grown = cli("verify", "agent", str(bare), "--against", "examples/agents/payments.yaml")
    assert grown.code == 1
    assert "transfer: cents 5001 to 10,000,000 newly passes unasked (rules.0)" in grown.out.replace(
        'to "Paper & Pen", ', ""
    )
    assert "calls newly up to 6 in one run, nobody is asked; before 3" in grown.out


def test_file_that_is_none_is_wrong_usage(cli: Cli, tmp_path: Path) -> None:
    shown = cli("verify", "agent", str(tmp_path / "missing.yaml"))
    assert (shown.code, shown.out) == (2, "")
    assert "missing.yaml" in shown.err


def test_agent_with_named_output_is_compared_with_older_one(tmp_path: Path, cli: Cli) -> None:
    """The module is that of the new one; an answer that is asked for again counts in both."""
    (tmp_path / "form.py").write_text(
        "from pydantic import BaseModel\n\nclass Refund(BaseModel):\n    a: int\n"
    )
    text = "machine: tools\ntools: [calculator]\nmodels: scripted\nmodules: [form.py]\noutput: Refund\n"
    new, old = tmp_path / "new.yaml", tmp_path / "elsewhere" / "old.yaml"
    old.parent.mkdir()
    new.write_text(text)
    old.write_text(text)
    shown = cli("verify", "agent", str(new), "--against", str(old))
    assert (shown.code, shown.out.strip()) == (0, "nothing is newly allowed")


PAYS = """
from pydantic import BaseModel, Field
from ratchet import Tool

class Params(BaseModel):
    "Pay somebody."
    to: str
    cents: int = Field(ge=1, le=100)

TOOLS = [
    Tool(name=name, params=Params, run=lambda params: "ok", effect="unsafe", brings=())
    for name in ("pay", "pay2")
]
"""
KEYS = [base64.b64encode(bytes([9] * 31 + [number])).decode() for number in range(3)]
GROUPS = {
    "fin": {"members": ["ann"]}, "all": {"members": ["ann", "eve"]}, "boss": {"members": ["bob"]},
    "two": {"members": ["ann", "eve"], "quorum": 2}, "signed": {"keys": {"ann": KEYS[0]}},
    "resigned": {"keys": {"ann": KEYS[1]}},
}  # fmt: skip


Given = Mapping[str, object]
"""Parts of an agent file; `rules` are those of its approvals."""


def against(cli: Cli, folder: Path, new: Given, old: Given) -> tuple[int, list[str]]:
    """Exit code and lines."""
    (folder / "pays.py").write_text(PAYS)
    for name, whole in (("new", new), ("old", old)):
        given: dict[str, Any] = dict(whole)
        people = {"groups": GROUPS, "requests": {"group": "fin"}, **given.get("people", {})}
        agent = {
            "machine": "tools", "tools": ["pay", "pay2"], "modules": ["pays.py"], "models": "scripted",
            "approvals": {"rules": given.get("rules", [])}, **given, "people": people,
        }  # fmt: skip
        agent.pop("rules", None)
        (folder / f"{name}.yaml").write_text(json.dumps(agent))
    shown = cli("verify", "agent", str(folder / "new.yaml"), "--against", str(folder / "old.yaml"))
    assert not shown.err, shown.err
    return shown.code, shown.out.splitlines()


def asked(**request: object) -> dict[str, object]:
    return {"people": {"requests": request}}


def later(*groups: str, seconds: int = 60) -> dict[str, object]:
    return asked(group="fin", at_deadline="escalate", deadline_seconds=seconds, escalate_to=groups)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (later("boss"), later("all"), "1 of ann, then 1 of ann, eve; before by 1 of ann, then 1 of bob"),
        (later("two"), later("all"), "1 of ann, then 1 of ann, eve; before by 1 of ann, then 2 of ann, eve"),
        (later("signed"), later("fin"), "then 1 of ann; before by 1 of ann, then 1 of ann, signed"),
        (later("boss", "all"), later("all", "boss"), "by 1 of ann, then 1 of ann, eve, then 1 of bob"),
        (asked(group="fin"), later("fin"), "newly decided by 1 of ann, then 1 of ann; before by 1 of ann"),
        (
            asked(group="signed"),
            asked(group="resigned"),
            "newly decided by 1 of ann, signed with another key",
        ),
        (later("boss", seconds=600), later("boss", seconds=1), "newly passed on to the next group after 1 s"),
        (
            asked(group="fin", at_deadline="approve", deadline_seconds=604_800),
            asked(group="fin", at_deadline="approve", deadline_seconds=1),
            "newly approved after 1 s without an answer; before after 604,800 s",
        ),
    ],
    ids=["people", "quorum", "signed", "order", "one-more", "key", "sooner", "approved-sooner"],
)
def test_whoever_may_newly_decide_is_named(
    cli: Cli, tmp_path: Path, old: Given, new: Given, said: str
) -> None:
    code, lines = against(cli, tmp_path, new, old)
    assert code == 1
    assert any(said in line for line in lines), lines
    assert against(cli, tmp_path, old, old) == (0, ["nothing is newly allowed"])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({"limits": {"depth": 1}}, {"limits": {"depth": 9}}, "limits.depth is newly 9; before 1"),
        (
            {"people": {"commands": "fin"}},
            {},
            "people.commands: who may raise limits or roll back is newly anybody; before 1 of ann",
        ),
        (
            {"people": {"commands": "signed"}},
            {"people": {"commands": "resigned"}},
            "people.commands: who may raise limits or roll back is newly 1 of ann, signed with another key; "
            "before 1 of ann, signed",
        ),
        (
            {"people": {"kinds": {"limit": {"group": "fin"}}}},
            {"people": {"kinds": {"limit": {"group": "all"}}}},
            "people: requests of the kind limit are newly decided by 1 of ann, eve; before by 1 of ann",
        ),
        ({}, {"people": {"on_limit": "ask"}}, "people.on_limit is newly ask; before stop"),
        (
            {"people": {"interrupt_every": 1}},
            {},
            "people.interrupt_every is newly null; before 1",
        ),
        (
            {"people": {"unattended": True}},
            {},
            "people.unattended is newly false: people may answer what a run asks",
        ),
    ],
)
def test_what_people_may_newly_do_is_named(
    cli: Cli, tmp_path: Path, old: Given, new: Given, said: str
) -> None:
    code, lines = against(cli, tmp_path, new, old)
    assert (code, said in lines) == (1, True), lines
    back = old if "another key" in said else new
    assert against(cli, tmp_path, old, back) == (0, ["nothing is newly allowed"])


SECRET = {"to": {"pattern": "(?i)^secret-[0-9]{9}$"}}


def test_decider_of_calls_that_the_solver_cannot_find_is_unknown(cli: Cli, tmp_path: Path) -> None:
    def of(group: str) -> dict[str, object]:
        rule = {"arguments": SECRET, "ask": "always", "request": {"group": group}}
        return {"tools": ["pay"], "rules": [rule]}

    code, lines = against(cli, tmp_path, of("all"), of("fin"))
    assert code == 1
    said = "unknown: pay, rules.0: whether requests are newly decided by 1 of ann, eve; before by 1 of ann: "
    assert any(line.startswith(said) for line in lines), lines
    assert against(cli, tmp_path, of("fin"), of("all")) == (0, ["nothing is newly allowed"])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            {"rules": [{"ask": "reject"}]},
            {"rules": [{"ask": "always", "request": {}}]},
            "pay: every call newly passes if people approve it: anybody (rules.0)",
        ),
        (
            {"rules": [{"ask": "never", "at_most": {"calls": 3}, "then": "reject"}]},
            {"rules": [{"ask": "never", "at_most": {"calls": 3}, "request": {"group": "all"}}]},
            "pay, pay2: calls newly up to 1000 in one run, a person is asked about each; before 3 (the old "
            "rules.0)",
        ),
        (
            {"people": {"unattended": True}},
            {},
            "pay: every call newly passes if people approve it: 1 of ann (effects.unsafe)",
        ),
        (
            {"tools": ["pay"]},
            {},
            "pay2: every call newly passes if people approve it: 1 of ann (effects.unsafe)",
        ),
    ],
    ids=["reject", "then", "unattended", "new-tool"],
)
def test_call_that_a_person_may_newly_approve_is_named(
    cli: Cli, tmp_path: Path, old: Given, new: Given, said: str
) -> None:
    code, lines = against(cli, tmp_path, new, old)
    assert (code, said in lines) == (1, True), lines
    assert against(cli, tmp_path, old, new) == (0, ["nothing is newly allowed"])


def passes(**at_most: object) -> dict[str, object]:
    return {"ask": "never", "at_most": at_most}


def to(name: str, **more: object) -> dict[str, object]:
    return {"arguments": {"to": {"const": name}}, **more}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            [to("friend", **passes(calls=3)), to("stranger", **passes(calls=1))],
            [to("friend", **passes(calls=1)), to("stranger", **passes(calls=3))],
            "pay, pay2: calls newly up to 3 in one run, nobody is asked; before 1 (the old rules.1)",
        ),
        pytest.param(
            [to("friend", **passes(sum={"cents": 30})), to("stranger", **passes(sum={"cents": 10}))],
            [to("friend", **passes(sum={"cents": 10})), to("stranger", **passes(sum={"cents": 30}))],
            "pay, pay2: cents in all newly up to 30 in one run, nobody is asked; before 10 (the old rules.1)",
            marks=pytest.mark.exhaustive,
        ),
        (
            [{"tools": ["pay", "pay2"], **passes(calls=3)}],
            [{"tools": ["pay"], **passes(calls=3)}, {"tools": ["pay2"], **passes(calls=3)}],
            "pay, pay2: calls newly up to 6 in one run, nobody is asked; before 3 (the old rules.0)",
        ),
        (
            [{"tools": ["pay", "pay2"], **passes(sum={"cents": 90})}],
            [{"tools": ["pay"], **passes(sum={"cents": 90})}, {"tools": ["pay2"], **passes(calls=1)}],
            "pay, pay2: cents in all newly up to 180 in one run, nobody is asked; before 90 (the old "
            "rules.0)",
        ),
        (
            [to("friend", **passes(calls=5)), to("stranger", ask="first_time", at_most={"calls": 1})],
            [to("friend", **passes(calls=5)), to("stranger", ask="first_time", at_most={"calls": 4})],
            "pay, pay2: calls newly up to 4 in one run, one approval lets all of them pass; before 1 (the "
            "old rules.1)",
        ),
        (
            [{**passes(calls=3), "then": "always"}],
            [passes(sum={"cents": 900})],
            "pay, pay2: calls newly up to 1000 in one run, nobody is asked; before 3 (the old rules.0)",
        ),
        (
            [to("friend", ask="first_time"), {"ask": "first_time"}],
            [{"ask": "first_time"}],
            'pay: an approval of a call such as pay(to="", cents=1) newly lets others pass',
        ),
    ],
    ids=["swapped", "sums-swapped", "split", "sum-split", "once", "without", "merged"],
)
def test_bound_that_newly_bounds_less_is_named(
    cli: Cli, tmp_path: Path, old: list[object], new: list[object], said: str
) -> None:
    code, lines = against(cli, tmp_path, {"rules": new}, {"rules": old})
    assert code == 1
    assert any(line.startswith(said) for line in lines), lines
    assert not any(line.startswith("unknown") for line in lines)
    assert against(cli, tmp_path, {"rules": new}, {"rules": new}) == (0, ["nothing is newly allowed"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            [{"tools": ["pay"], **passes(calls=3)}, {"tools": ["pay2"], **passes(calls=3)}],
            [{"tools": ["pay", "pay2"], **passes(calls=3)}],
        ),
        ([passes(calls=5)], [to("friend", **passes(calls=3)), to("stranger", **passes(calls=2))]),
        ([passes(sum={"cents": 300})], [passes(calls=3)]),
        ([{"ask": "first_time"}], [to("friend", ask="first_time"), {"ask": "first_time"}]),
    ],
    ids=["joined", "shared out", "as-much", "apart"],
)
def test_bound_that_bounds_as_much_is_not_named(
    cli: Cli, tmp_path: Path, old: list[object], new: list[object]
) -> None:
    rest = {"arguments": {"to": {"not": {"enum": ["friend", "stranger"]}}}, "ask": "reject"}
    now = {"rules": [*new, rest] if len(old) < len(new) else new}
    assert against(cli, tmp_path, now, {"rules": old}) == (0, ["nothing is newly allowed"])


def test_bound_of_what_the_solver_cannot_find_is_unknown(cli: Cli, tmp_path: Path) -> None:
    def of(calls: int) -> dict[str, object]:
        return {"tools": ["pay"], "rules": [{"arguments": SECRET, **passes(calls=calls)}]}

    code, lines = against(cli, tmp_path, of(3), of(1))
    assert code == 1
    assert any(line.startswith("unknown: pay: calls may newly be up to 3") for line in lines), lines
    assert against(cli, tmp_path, of(1), of(3)) == (0, ["nothing is newly allowed"])


def test_more_calls_of_reading_and_sending_tool_are_named(cli: Cli, tmp_path: Path) -> None:
    def of(calls: int) -> dict[str, object]:
        return {"tools": ["http_get"], "rules": [{"tools": ["http_get"], **passes(calls=calls)}]}

    said = "http_get: calls newly up to 1000 in one run, nobody is asked; before 1"
    assert said in against(cli, tmp_path, of(1000), of(1))[1]
    less = {"tools": ["http_get"], "limits": {"tool_calls": 5}}
    code, lines = against(cli, tmp_path, {"tools": ["http_get"]}, less)
    assert code == 1
    assert "http_get: calls newly up to 1000 in one run, nobody is asked; before 5" in lines


def test_more_calls_of_all_tools_together_are_named(cli: Cli, tmp_path: Path) -> None:
    """Each tool alone has no more calls than before."""
    rules = [{"tools": [name], **passes(calls=3)} for name in ("pay", "pay2")]
    few, many = ({"rules": rules, "machine": "react", "options": {"max_steps": n}} for n in (3, 6))
    said = "calls of all tools newly up to 6 in one run; before 3"
    assert against(cli, tmp_path, many, few) == (1, [said])
    assert against(cli, tmp_path, few, many) == (0, ["nothing is newly allowed"])
