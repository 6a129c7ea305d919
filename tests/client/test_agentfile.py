"""Agent files: what they may say, and what is said about what they may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from activities.contracts import ModelSpec
from activities.settings import Settings
from client.agentfile import Draft, find_agent, shipped_agents
from client.catalog import Catalog
from client.choose import Choice
from client.errors import UsageError
from client.yamltext import YamlText
from tests.client.conftest import Ratchet
from workflows.api import GOAL_BYTES
from workflows.registry import shipped


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """What a worker without modules has."""
    return Catalog.load(Settings(data_dir=tmp_path_factory.mktemp("catalog")))


def load(folder: Path, text: str, catalog: Catalog) -> None:
    """Read, check and hold against the catalog, as `ratchet run` does."""
    path = folder / "bad.yaml"
    path.write_text(text)
    agent, draft = Choice(agent=str(path)).finish()
    catalog.check(agent, draft)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("- a\n- b\n", "bad.yaml: holds list; expected keys", id="a list"),
        pytest.param("", "bad.yaml: holds nothing", id="empty"),
        pytest.param("name: [a\n", "bad.yaml: no valid YAML at line 2, column 1", id="no YAML"),
        pytest.param("a: b: c\n", "no valid YAML at line 1, column 5", id="no YAML in a line"),
        pytest.param(
            "name: a\nname: b\n", "bad.yaml:2: name stands twice; it was given on line 1", id="twice"
        ),
        pytest.param("limits: {tokens: 1, tokens: 2}", "limits.tokens stands twice", id="twice inside"),
        pytest.param("tool: [x]\n", "bad.yaml:1: tool: unknown key; did you mean `tools`?", id="misspelt"),
        pytest.param("zzz: 1\n", "zzz: unknown key; there is `approvals`", id="unknown key"),
        pytest.param(
            "limits:\n  tokns: 5\n",
            "bad.yaml:2: limits.tokns: unknown key; did you mean `tokens`?",
            id="misspelt limit",
        ),
        pytest.param(
            "models:\n  default:\n    temprature: 0\n",
            "bad.yaml:3: models.default.temprature: unknown key; did you mean `temperature`?",
            id="misspelt setting of a model",
        ),
        pytest.param(
            "models:\n  default:\n    script:\n      - {replay: x}\n",
            "models.default.script[0].replay: unknown key; did you mean `reply`?",
            id="misspelt part of a script",
        ),
        pytest.param(
            "limits: {tokens: -1}\n",
            "limits.tokens: input should be greater than or equal to 0, got -1",
            id="negative",
        ),
        pytest.param(
            "limits: {seconds: -1.5}\n",
            "limits.seconds: input should be greater than 0, got -1.5",
            id="negative",
        ),
        pytest.param(
            "limits: {cost_usd: much}\n",
            "limits.cost_usd: input should be a valid number",
            id="word for number",
        ),
        pytest.param(
            "tools: calculator\n",
            "tools: input should be a valid tuple, got 'calculator'",
            id="word for list",
        ),
        pytest.param(
            "tools: [7]\n",
            "bad.yaml:1: tools[0]: input should be a valid string, got 7",
            id="number for word",
        ),
        pytest.param("name: 'a b'\n", "name: string should match pattern", id="bad name"),
        pytest.param("models: {plan: gpt}\n", "models: the role `default` is missing", id="no default model"),
        pytest.param("models: {default: 5}\n", "models.default: ", id="a number as model"),
        pytest.param(
            "visibility: all\n", "visibility: input should be 'basic' or 'state', got 'all'", id="no choice"
        ),
        pytest.param(
            "tools: [calculator]\napprovals:\n  tools:\n    calculater: always\n",
            "bad.yaml:4: approvals.tools.calculater: there is no tool 'calculater'; the agent has calculator",
            id="approval of a tool that the agent lacks",
        ),
        pytest.param(
            "tools: [calculator]\napprovals:\n  rules:\n    - {tools: [calculator, 'calk*']}\n",
            "bad.yaml:4: approvals.rules[0].tools[1]: no tool fits 'calk*'",
            id="rule for no tool",
        ),
        pytest.param(
            "approvals: {rules: [{effects: [unsafe], asking: {group: ops}}]}\n",
            "approvals.rules[0].asking: there is no group 'ops'; there is none",
            id="rule that asks no group",
        ),
        pytest.param(
            "approvals: {rules: [{arguments: {to: {matches: '('}}}]}\n",
            "approvals.rules[0].arguments.to.matches: ",
            id="no pattern",
        ),
        pytest.param(
            "people:\n  kinds:\n    aproval: {}\n",
            "bad.yaml:3: people.kinds.aproval: the key should be 'approval', 'question'",
            id="misspelt kind",
        ),
        pytest.param(
            "people:\n  asking: {deadline_second: 4}\n",
            "bad.yaml:2: people.asking.deadline_second: unknown key; did you mean `deadline_seconds`?",
            id="misspelt deadline",
        ),
        pytest.param(
            "people: {groups: {ops: {members: [Ada], quorum: 2}}}\n",
            "people.groups.ops: quorum: 2 people must agree, the group has 1",
            id="quorum of nobody",
        ),
        pytest.param(
            "people:\n  interrupt_states: [acton]\n",
            "bad.yaml:2: people.interrupt_states[0]: machine react has no state `acton`; "
            "did you mean `action`?",
            id="no state to stand still at",
        ),
        pytest.param("options: {at: 2026-01-01}\n", "options.at", id="a date as option"),
        pytest.param("modules: [none.py]\n", "modules[0]: there is no Python file", id="missing module"),
        pytest.param(
            "machine: raect\n",
            "bad.yaml:1: machine: there is no machine `raect`; did you mean `react`?",
            id="unknown machine",
        ),
        pytest.param(
            "version: '99'\n",
            "version: unknown machine react of version 99; there is react",
            id="unknown version",
        ),
        pytest.param(
            "options:\n  max_step: 3\n",
            "bad.yaml:2: options.max_step: unknown key; did you mean `max_steps`?",
            id="misspelt option",
        ),
        pytest.param(
            "options: {max_steps: 0}\n", "options.max_steps: input should be greater than", id="bad option"
        ),
        pytest.param(
            "tools: [calculator, calculater]\n",
            "tools[1]: there is no tool `calculater`; did you mean `calculator`?",
            id="unknown tool",
        ),
        pytest.param(
            "tools: [zz]\n",
            "there is no tool `zz`; there is `calculator`, `current_time`",
            id="what tools there are",
        ),
        pytest.param(
            "tools: [calculator, calculator]\n", "tools[1]: `calculator` stands twice", id="tool twice"
        ),
        pytest.param(
            "models: {default: {provider: opnai}}\n",
            "models.default.provider: there is no provider `opnai`; did you mean `openai`?",
            id="unknown provider",
        ),
        pytest.param(
            "models: {default: scripted, plan: scripted}\n",
            "models.plan: machine react has no such role; ",
            id="unknown role",
        ),
    ],
)
def test_bad_agent_file_is_refused_with_its_place(
    tmp_path: Path, catalog: Catalog, text: str, said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        load(tmp_path, text, catalog)
    assert said in str(refused.value)
    assert "bad.yaml" in str(refused.value)


def test_everything_wrong_is_said_at_once(tmp_path: Path, catalog: Catalog) -> None:
    with pytest.raises(UsageError) as refused:
        load(tmp_path, "tool: []\nlimits:\n  tokens: -1\n  sconds: 3\n", catalog)
    assert len(str(refused.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(lambda path: None, "there is no such file", id="missing"),
        pytest.param(lambda path: path.mkdir(), "cannot be read: Is a directory", id="folder"),
        pytest.param(lambda path: path.write_bytes(b"name: \xff"), "is not UTF-8 text (byte 6)", id="bytes"),
        pytest.param(lambda path: path.write_bytes(b"#" * 2_000_000), "larger than 1,000,000", id="huge"),
    ],
)
def test_file_that_cannot_be_read_is_named(tmp_path: Path, make: object, said: str) -> None:
    path = tmp_path / "agent.yaml"
    assert callable(make)
    make(path)
    with pytest.raises(UsageError) as refused:
        YamlText(find_agent(str(path)))
    assert said in str(refused.value)
    assert str(path) in str(refused.value)


def test_unknown_shipped_agent_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean `log_detective`"):
        find_agent("log_detectiv")


@pytest.mark.parametrize("path", shipped_agents(), ids=lambda path: path.stem)
def test_shipped_agent_is_well(path: Path, catalog: Catalog, ratchet: Ratchet) -> None:
    """One with modules of its own in another process, where they may be loaded."""
    agent, draft = Choice(agent=path.stem).finish()
    if agent.modules:
        checked = ratchet("task", path.stem, "a goal")
        assert checked.returncode == 0, checked.stderr
        return
    catalog.check(agent, draft)
    assert agent.task("a goal").agent == path.stem


def test_agent_file_becomes_a_task_and_keeps_its_modules_to_itself(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("TOOLS = ()\n")
    path = tmp_path / "mine.yaml"
    path.write_text(
        "models: {default: {provider: scripted, script: [{reply: hi}]}}\n"
        "modules: [mine.py]\ntools: [calculator]\nlimits: {tokens: 9}\noptions: {max_steps: 4}\n"
    )
    agent = Draft(YamlText(path)).finish()
    assert agent.name == "mine"
    assert agent.modules == (str(tmp_path / "mine.py"),)
    task = agent.task("go")
    assert task.limits.tokens == 9
    assert task.models["default"].name == "scripted"
    assert "mine.py" not in task.model_dump_json()


@pytest.mark.parametrize(
    ("goal", "said"),
    [
        pytest.param("", "the goal is empty", id="empty"),
        pytest.param(" \n", "the goal is blank", id="blank"),
        pytest.param("ä" * GOAL_BYTES, f"at most {GOAL_BYTES:,} are allowed", id="too large"),
    ],
)
def test_bad_goal_is_refused(goal: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Choice(model="scripted").finish()[0].task(goal)


def test_options_of_the_command_line_change_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("models: {default: {name: big, temperature: 0.5}}\ntools: [calculator]\n")
    choice = Choice(
        agent=str(path),
        model="small",
        base_url="http://localhost:1/v1",
        tools=["read_file", "calculator"],
        settings=["max_steps=3", "limits.tokens=10", "models.default.seed=7"],
    )
    agent, _ = choice.finish()
    assert agent.models["default"] == ModelSpec(
        name="small", temperature=0.5, seed=7, base_url="http://localhost:1/v1"
    )
    assert agent.tools == ("calculator", "read_file")
    assert (agent.options, agent.limits.tokens) == ({"max_steps": 3}, 10)


def test_who_is_asked_travels_with_the_task_and_is_set_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "tools: [calculator]\napprovals: {tools: {calculator: always}}\n"
        "people: {groups: {ops: {members: [Ada]}}, asking: {group: ops}}\n"
    )
    settings = ["people.unattended=true", "approvals.effects.unsafe=never"]
    agent, _ = Choice(agent=str(path), settings=settings).finish()
    task = agent.task("go")
    assert (task.approvals.tools, task.approvals.effects) == ({"calculator": "always"}, {"unsafe": "never"})
    assert (task.people.unattended, task.people.groups["ops"].members) == (True, ("Ada",))
    assert task.people.asking.group == "ops"


def test_naming_the_scripted_model_keeps_the_script_of_the_file() -> None:
    agent, _ = Choice(agent="log_detective", model="scripted").finish()
    assert agent.models["default"].script
    other, _ = Choice(agent="log_detective", model="gpt-5").finish()
    assert other.models["default"] == ModelSpec(name="gpt-5")


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        pytest.param("max_steps", "expected KEY=VALUE", id="no value"),
        pytest.param("limits.tokens=-1", "--set limits.tokens=-1: limits.tokens: ", id="bad value"),
        pytest.param("limits.tokens=[", "no valid YAML", id="no YAML"),
    ],
)
def test_bad_setting_names_the_option(assignment: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        Choice(settings=[assignment]).finish()
    assert said in str(refused.value)


def test_broken_module_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = 1\ny = nonsense\n")
    with pytest.raises(UsageError, match=r"broken\.py: line 2: NameError"):
        Catalog.load(Settings(data_dir=tmp_path, modules=(str(tmp_path / "broken.py"),)))


@pytest.mark.parametrize("machine", sorted(design.name for design in shipped()))
def test_the_stand_in_without_a_script_is_refused_where_it_cannot_speak(
    tmp_path: Path, catalog: Catalog, machine: str
) -> None:
    text = f"machine: {machine}\nmodels: {{default: scripted}}\n"
    if machine in ("react", "tools"):
        load(tmp_path, text, catalog)
        return
    with pytest.raises(UsageError, match="cannot reply as") as refused:
        load(tmp_path, text, catalog)
    example = str(refused.value).rsplit(" ", 1)[-1]
    assert find_agent(example).exists()
