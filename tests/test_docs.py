"""The papers say what is true: their code runs, their commands exist, their pictures are the code's."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from activities.context import MATCH_CHARS, MATCHES, SLICE_CHARS, USAGE
from activities.contracts import Frozen
from activities.contracts_code import CodeLimits
from client.context import MOST_BYTES, SHORT_BYTES
from client.knobs import knobs
from client.machinefacts import unmatched
from docs.generate import PAGE, page
from tests.client.conftest import ratchet_in
from tests.machines.test_all_machines import plays
from workflows import registry
from workflows.kernel.design import COMMON_EXITS, Brief, Design
from workflows.kernel.errors import NoTransitionError, name_of
from workflows.kernel.machine import Exit, Machine, Row, State
from workflows.kernel.step import start
from workflows.machines.code_calls import BUILT_IN
from workflows.machines.code_context import Options
from workflows.machines.code_prompt import opening
from workflows.registry import shipped

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


DESIGNS = [pytest.param(design, id=f"{design.name}-{design.version}") for design in shipped()]


def program_of(paper: str) -> str:
    """The Python blocks of a page as one program."""
    return "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "docs" / paper).read_text(), re.DOTALL))


def test_the_machines_page_is_what_the_code_says() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"


@pytest.mark.parametrize("design", DESIGNS)
def test_the_page_tells_every_knob_and_exit_reason_of_a_machine(design: Design) -> None:
    text = page()
    section = text[text.index(f"## {design.name} (version {design.version})") :].split("\n## ")[0]
    told = set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))
    assert {knob.name for knob in knobs(design.options)} | set(design.exits) <= told
    assert set(re.findall(r"^\| `(\w+)` \|", text[: text.index("(version")], re.MULTILINE)) == set(
        COMMON_EXITS
    )


class Stray: ...


class Reached: ...


class Blank(Frozen): ...


S = Enum("S", {"GO": "go", "DONE": "done", "FAILED": "failed"})


def of_its_own_way(**more: Any) -> Machine[Any]:
    """A machine that says an event for which it has no row."""
    ends = {S.DONE, *([S.FAILED] if "fail_state" in more else [])}
    return Machine(
        name="stray",
        context=Blank,
        initial=S.GO,
        final=ends,
        step_state=S.GO,
        states={S.GO: State(enter=lambda c, at: Stray()), **{end: State() for end in ends}},
        table=[Row(S.GO, Reached, S.DONE)],
        result=lambda c, state: Exit(reason="there", ok=state is S.DONE),
        **more,
    )


RAISES, LEADS = "a rule: the run fails", "a rule, which leads to `failed`"


@pytest.mark.parametrize(
    ("more", "words", "state"),
    [
        ({}, f"breaks {RAISES}", None),
        ({"fail_state": S.FAILED}, f"breaks {LEADS}", "failed"),
        ({"on_unmatched": "fail", "fail_state": S.FAILED}, f"breaks {LEADS}", "failed"),
        ({"on_unmatched": "end"}, "ends the run (`dead_end`)", "go"),
        ({"on_unmatched": "stay", "max_unmatched": 3}, f"more than 3 in a row break {RAISES}", None),
        ({"on_unmatched": "stay", "fail_state": S.FAILED}, f"more than 100 in a row break {LEADS}", "failed"),
    ],
)
def test_what_is_told_of_events_without_a_row_is_what_happens(
    more: dict[str, Any], words: str, state: str | None
) -> None:
    """`state`: where the run ends; None: it raises."""
    machine = of_its_own_way(**more)
    assert words in unmatched(machine)
    if state is None:
        with pytest.raises(NoTransitionError) as raised:
            start(machine, Blank(), now=0)
        assert raised.value.step is not None
        records = raised.value.step.records
    else:
        step = start(machine, Blank(), now=0)
        assert (step.exit is not None, name_of(step.snapshot.state)) == (True, state)
        records = step.records
    assert sum(r.event == "Stray" for r in records) == (
        machine.max_unmatched if machine.on_unmatched == "stay" else 0
    )


@pytest.mark.parametrize("design", DESIGNS)
def test_the_page_says_of_each_machine_what_an_event_without_a_row_does(design: Design) -> None:
    text = page()
    section = text[text.index(f"## {design.name} (version {design.version})") :].split("\n## ")[0]
    assert unmatched(design.build(design.options(), registry.parts())) in section
    assert "is refused" not in text.split("\n## ")[0]


@pytest.mark.parametrize("design", DESIGNS)
def test_every_exit_reason_that_a_machine_is_seen_to_have_is_declared(design: Design) -> None:
    """In its scripts, in what ends it at a limit; with words for people, and none twice."""
    machine = design.build(design.options(), registry.parts())
    seen = {run.last.exit.reason for run in plays(design) if run.last.exit} | {
        *machine.limit_reasons.values()
    }
    assert seen - {*design.exits, *COMMON_EXITS} == set()
    assert design.exits
    assert {*design.exits} & {*COMMON_EXITS} - {"limit", "max_transitions"} == set()
    assert [reason for reason, words in design.exits.items() if len(words) < 10] == []


def reasons_in(tree: ast.AST) -> Iterator[str]:
    """The reasons that a file's code gives by name: to an `Exit`, to a close, for a limit."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func).rpartition(".")
        given = [word.value for word in call.keywords if word.arg == "reason" and name[2] == "Exit"]
        if name[0] in {"self", "loop"} and name[2] == "close":
            given += call.args[:1]
        elif name[2] in {"close", "closed", "close_here"} or name[0].endswith("limit_reasons"):
            given += call.args[1:2]
        found = [node.value for each in given for node in ast.walk(each) if isinstance(node, ast.Constant)]
        yield from (reason for reason in found if isinstance(reason, str))


def test_the_reasons_of_every_machine_are_those_that_kernel_and_workflow_give() -> None:
    folders = ("workflows", "workflows/kernel", "workflows/gate")
    files = [file for folder in folders for file in (ROOT / folder).glob("*.py")]
    found = {reason for file in files for reason in reasons_in(ast.parse(file.read_text()))}
    assert found == set(COMMON_EXITS)


def test_the_page_of_the_code_machine_tells_its_limits_and_names() -> None:
    text = (ROOT / "docs" / "code.md").read_text()
    told = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", text, re.MULTILINE))
    assert told == {knob.name: knob.default for knob in knobs(CodeLimits)}
    assert {name for name in re.findall(r"`(\w+)\(", text)} == {*USAGE, *BUILT_IN}
    for usage in USAGE.values():
        assert f"`{usage}`" in text
    for number in (SLICE_CHARS, MATCHES, MATCH_CHARS, SHORT_BYTES):
        assert re.search(rf"\b{number:,}\b", text)
    assert f"{MOST_BYTES // 2**20} MB" in text
    options = Options()
    assert f"(`{options.max_iterations}`)".replace("`", "") in text
    assert f"The default is {options.max_depth}, so set {options.max_depth + 1}" in text


def test_the_sandbox_has_the_modules_that_prompt_and_page_name() -> None:
    text = (ROOT / "docs" / "code.md").read_text()
    named = re.findall(r"`(\w+)`", text.split("modules are")[1].split(".")[0])
    prompt = str(opening(Brief(goal="?", trace_id="t"), Options()).messages[0].content)
    listed = re.sub(r"\s+", " ", prompt).split("Modules: ")[1].split(".")[0].split()
    assert named == listed


def test_every_page_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\(docs/([\w-]+\.md)", README))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - linked == set()


@pytest.mark.parametrize("paper", ["own-machine.md", "rules.md", "tools.md"])
def test_the_program_of_a_page_runs(paper: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(program_of(paper))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(program)]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    promised = re.findall(r"print\(.*\)  # (.*)", program.read_text())
    assert done.stdout.splitlines() == promised


def test_the_machine_of_the_page_is_verified_drawn_and_run(tmp_path: Path) -> None:
    (tmp_path / "summary.py").write_text(
        re.sub(r"^    print\(.*", "    pass", program_of("own-machine.md"), flags=re.M)
    )
    (tmp_path / "notes.txt").write_text("The ratchet moves forward one click at a time, and holds.\n")
    script = "[{reply: one two three}, {expect: 'were 3 words', reply: it holds}]"
    (tmp_path / "summary.yaml").write_text(
        "machine: summary\nmodules: [summary.py]\ntools: [read_file]\noptions: {max_words: 2}\n"
        f"models: {{default: {{provider: scripted, script: {script}}}}}\n"
    )
    drawn = ratchet_in(tmp_path, "diagram", "summary", "--agent", "summary.yaml")
    assert "check --> write: TooLong [may_try_again]" in drawn.stdout, drawn.stderr
    ran = ratchet_in(tmp_path, "run", "--agent", "summary.yaml", "--json", "notes.txt")
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout.splitlines()[-1])
    assert (result["answer"], result["exit_reason"], result["steps"]) == ("it holds", "summed_up", 2)


def test_the_example_of_the_readme_runs_and_answers(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert found is not None
    environment = {**os.environ, "RATCHET_DATA_DIR": str(tmp_path / "data")}
    program = tmp_path / "example.py"
    program.write_text(found.group(1))
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("thought Started")
    assert "thought Drafted First I need to know which logs there are. -> list_files(" in done.stdout
    assert "commit GoalAchieved" in done.stdout
    assert "\npayments fails most" in done.stdout
    assert "[info" not in done.stdout, "the worker's logs are not among what the program prints"


def test_every_command_of_the_readme_exists() -> None:
    told = subprocess.run(
        [str(Path(sys.executable).parent / "ratchet"), "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    there = set(re.findall(r"^  (\w+) ", told.stdout, re.MULTILINE))
    named = set(re.findall(r"^    ratchet (\w+)|\| (\w+) RUN", README, re.MULTILINE))
    assert {word for pair in named for word in pair if word} <= there


def test_every_link_of_the_papers_leads_somewhere() -> None:
    for paper in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\((?!http)([^)#]+)", paper.read_text()):
            assert (paper.parent / target).exists(), f"{paper.name} links to {target}"
