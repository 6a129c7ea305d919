"""Agent files: what they may contain, and where messages about the rest point to."""

from __future__ import annotations

import json
import os
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from activities.contracts import ModelSpec
from activities.settings import Settings
from client.agents.agentfile import AgentFile, Choice, Draft, find_agent, load_agent
from client.agents.catalog import Catalog
from client.agents.options import options_in, options_of
from client.agents.yaml import YamlFile, parse
from client.errors import UsageError
from workflows.api import AgentTask

LAUGHS = "\n".join(
    ["options:", "  a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
)


MERGES = "\n".join(f"k{n}: {{<<: *a}}" for n in range(101))


def load(folder: Path, text: str) -> AgentFile:
    """The agent of a file with this text."""
    path = folder / "bad.yaml"
    path.write_text(text)
    return load_agent(path)


KEY_LINE = f'"ann": {"A" * 42}8='
"""As `ratchet key show` prints it."""


@pytest.mark.parametrize(
    ("text", "place", "culprit"),
    [
        pytest.param("- a\n- b\n", "", "list", id="a list"),
        pytest.param("", "", "nothing", id="empty"),
        pytest.param("name: [a\n", ":2:1", "YAML", id="not YAML"),
        pytest.param("a: b: c\n", ":1:5", "YAML", id="not YAML in a line"),
        pytest.param("name: a\nname: b\n", ":2:1", '"name"', id="key twice"),
        pytest.param("limits: {tokens: 1, tokens: 2}", ":1:21", '"tokens"', id="key twice inside"),
        pytest.param("name: a\ntool: [x]\n", ":2:1: tool", "`tools`", id="misspelt key"),
        pytest.param("limits:\n  tokns: 5\n", ":2:3: limits.tokns", "`tokens`", id="misspelt limit"),
        pytest.param(
            "models:\n  default:\n    script:\n      - {replay: x, reply: y}\n",
            ":4:10: models.default.script[0].replay",
            "`reply`",
            id="misspelt key in a list",
        ),
        pytest.param("limits: {tokens: -1}\n", ":1:10: limits.tokens", "-1", id="out of range"),
        pytest.param(
            "tools: calculator\n", ":1:1: tools", "a list, such as `[calculator]`", id="word for list"
        ),
        pytest.param(
            "people: {requests: {deadline_seconds: 90min}}",
            ":1:21: people.requests.deadline_seconds",
            "expected a number of seconds, such as 5400, got '90min'",
            id="duration for seconds",
        ),
        pytest.param(
            "people: {groups: {ops: [Ada]}}\n",
            ":1:19: people.groups.ops",
            "expected a mapping, such as `{key: value}`, got ['Ada']",
            id="list for mapping",
        ),
        pytest.param(
            "approvals:\n  rules:\n    - arguments: {cents: 2000}\n",
            ":3:19: approvals.rules[0].arguments.cents",
            "expected a JSON schema, such as {const: 2000} or {maximum: 2000}, or false (absent), got 2000",
            id="number for schema",
        ),
        pytest.param(
            "approvals: {rules: [{arguments: {cents: 0}}]}\n",
            ":1:34: approvals.rules[0].arguments.cents",
            "such as {const: 0} or {maximum: 0}, or false (absent), got 0",
            id="0 is not false",
        ),
        pytest.param(
            "approvals: {rules: [{tools: [pay], ask: never, at_most: 3}]}\n",
            ":1:48: approvals.rules[0].at_most",
            "expected a mapping, such as `{calls: 3}`, got 3",
            id="number for bounds",
        ),
        pytest.param(
            f"people: {{groups: {{a: {{keys: {{ann: '{KEY_LINE}'}}}}}}}}\n",
            ":1:30: people.groups.a.keys.ann",
            "of the line that `ratchet key show FILE` prints, the part after the name, got",
            id="line of a key in quotes",
        ),
        pytest.param(
            f"people:\n  groups:\n    a:\n      keys:\n        ann: {KEY_LINE}\n",
            ":5:19",
            "of the line that `ratchet key show FILE` prints, the part after the name",
            id="line of a key behind a name",
        ),
        pytest.param(
            f"people: {{groups: {{a: {{keys: '{KEY_LINE}'}}}}}}\n",
            ":1:23: people.groups.a.keys",
            f"expected a mapping, such as `{{{KEY_LINE}}}`, got",
            id="line of a key for the mapping",
        ),
        pytest.param("tools: [ok, 7]\n", ":1:13: tools[1]", "7", id="number for word"),
        pytest.param("tools: [a, b, a]\n", ":1:1: tools", "a", id="tool twice"),
        pytest.param(
            "models: {default: {reasoning: hgih}}\n",
            ":1:20: models.default.reasoning",
            "got 'hgih': did you mean `high`?",
            id="misspelt effort",
        ),
        pytest.param(
            "models: {default: {api: responses, seed: 1}}\n",
            ":1:36: models.default.seed",
            "got 1: leave it out",
            id="no such seed",
        ),
        pytest.param(
            "stream: false\n", ":1:1: stream", "it belongs under `models.NAME`", id="key of a model"
        ),
        pytest.param(
            "limits: {tools: [a]}\n",
            ":1:10: limits.tools",
            "it belongs to the top level",
            id="key of an agent",
        ),
        pytest.param("models: {plan: gpt}\n", ":1:1: models", "`default`", id="no default model"),
        pytest.param(
            "models:\n  default: gpt\n  other: {fallback: [default, othr]}\n",
            ":3:31: models.other.fallback[1]",
            "there is no other model 'othr'; there are: default",
            id="no such fallback",
        ),
        pytest.param(
            "models:\n  default: {base_url: 'localhost:11434/v1'}\n",
            ":2:13: models.default.base_url",
            "expected an http(s) URL, such as http://localhost:11434/v1, got 'localhost:11434/v1'",
            id="no URL",
        ),
        pytest.param(
            "people: {unattended: perhaps}",
            ":1:10: people.unattended",
            "expected true or false, got 'perhaps'",
            id="word for truth",
        ),
        pytest.param(
            "people:\n  kinds:\n    aproval: {}\n",
            ":3:5: people.kinds.aproval",
            "'approval'",
            id="misspelt key of a mapping",
        ),
        pytest.param(
            "people: {groups: {ops: {members: [Ada], quorum: 2}}}\n", ":1:19", "2 people", id="no quorum"
        ),
        pytest.param("options: {at: 2026-01-01}\n", ":1:11: options.at", "date", id="date"),
        pytest.param("!!pairs\n- machine: react", "", "contains list", id="list of pairs"),
        pytest.param("tools: [!now calculator]\n", ":1:9", "unknown tag !now; remove it", id="unknown tag"),
        pytest.param("limits: !now {tokens: 5}\n", ":1:9", "unknown tag !now", id="unknown tag of keys"),
        pytest.param("options: {on: 2024-99-99}", "", "YAML", id="impossible date"),
        pytest.param(f"options: {{n: {'9' * 5000}}}", "", "YAML", id="endless number"),
        pytest.param(f"options: {'[' * 400}{']' * 400}", "", "deep", id="endless depth"),
        pytest.param(LAUGHS, "", "50,000 values", id="aliases of aliases"),
        pytest.param("options: &a {b: *a}", "", "50,000 values", id="endless alias"),
        pytest.param(  # the same counter as for aliases, which takes seconds to reach
            f"options: [{'1,' * 60_000}]", "", "50,000 values", id="many values", marks=pytest.mark.exhaustive
        ),
        pytest.param("a: &a {}\n" + MERGES, "", "100 merge keys", id="many merge keys"),
        pytest.param("modules: [a.py, none.py]\n", ":1:11: modules[0]", "a.py", id="missing module"),
    ],
)
def test_bad_agent_file_is_refused_at_its_place(tmp_path: Path, text: str, place: str, culprit: str) -> None:
    with pytest.raises(UsageError) as refused:
        load(tmp_path, text)
    message = str(refused.value)
    assert message.startswith(f"{tmp_path / 'bad.yaml'}{place}")
    assert culprit in message
    assert len(message) < 700


@pytest.mark.parametrize(
    "text",
    [
        f"people:\n  groups:\n    a:\n      # ann: {KEY_LINE}\n      keys: [\n",
        f"instructions: |\n  Write ann: {KEY_LINE}\ntools: [a\nlimits: {{}}\n",
    ],
)
def test_mistake_in_another_line_says_nothing_of_keys(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="not valid YAML") as refused:
        load(tmp_path, text)
    assert "key show" not in str(refused.value)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        load(tmp_path, "tool: []\nlimits:\n  tokens: -1\n  sconds: 3\n")
    assert [line.split(": ")[1] for line in str(refused.value).splitlines()] == [
        "limits.tokens",
        "limits.sconds",
        "tool",
    ]


def test_values_arrive_as_plain_data(tmp_path: Path) -> None:
    agent = load(
        tmp_path,
        "models: {default: &m {name: a, temperature: 0.5}, other: *m}\n"
        "options:\n  n: 0x10\n  text: |\n    two\n    lines\n  yes: yes\n  on: true\n  none: null\n",
    )
    assert agent.models["default"] == agent.models["other"] == ModelSpec(name="a", temperature=0.5)
    assert agent.options == {"n": 16, "text": "two\nlines\n", "yes": "yes", "on": True, "none": None}
    assert {type(value) for value in agent.options.values()} == {int, str, bool, type(None)}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True), ("false", False), ("7", 7), ("0x1F", 31), ("1.5", 1.5), ("1e3", 1000.0), ("hi", "hi"),
        ("'7'", "7"), ("null", None), ("", None), ("2026-01-02", date(2026, 1, 2)),
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ],
)  # fmt: skip
def test_value_with_an_anchor_is_the_value_without(text: str, value: object) -> None:
    found = parse(f"a: &x {text}\nb: *x\nc: {text}\nd: [&y {text}, *y]\n", "t")[0]
    values = [found["a"], found["b"], found["c"], *found["d"]]
    assert values == [value] * 5
    assert {type(one) for one in values} == {type(value)}


def test_text_that_is_tagged_as_one_is_a_text() -> None:
    assert parse("a: !!str 7\nb: [!!str true]\n!!str c: d\n", "t")[0] == {"a": "7", "b": ["true"], "c": "d"}


def test_anchored_true_in_a_rule_is_no_number(tmp_path: Path) -> None:
    agent = load(
        tmp_path,
        "approvals: {rules: [{arguments: {force: {const: &yes true}}}, {arguments: {all: {const: *yes}}}]}",
    )
    rules = agent.model_dump(mode="json")["approvals"]["rules"]
    assert json.dumps([rule["arguments"] for rule in rules]) == (
        '[{"force": {"const": true}}, {"all": {"const": true}}]'
    )


def test_key_with_an_anchor_is_the_key_without() -> None:
    found = parse("&a true: 1\n&b 7: 2\n&c 1.5: 3\n&d s: *b\n0x2: 4", "t")[0]
    assert [(type(key), key) for key in found] == [(bool, True), (int, 7), (float, 1.5), (str, "s"), (int, 2)]


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "bytes", "huge"])
def test_unreadable_file_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "agent.yaml"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "bytes":
            path.write_bytes(b"name: \xff")
        case "huge":
            path.write_bytes(b"#" * 256_001)
    with pytest.raises(UsageError, match=str(path)):
        YamlFile(find_agent(path))


def test_file_with_another_ending_is_no_agent_file(tmp_path: Path) -> None:
    """Tools may write such files."""
    (tmp_path / "agent.txt").write_text("machine: react")
    with pytest.raises(UsageError, match=r"agent\.txt: expected a file whose name ends in \.yaml or \.yml"):
        find_agent(tmp_path / "agent.txt")


def test_unknown_shipped_agent_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="log_detectiv"):
        find_agent("log_detectiv")


@pytest.mark.parametrize("effort", ["high", "ultra", "on", "enabled", "8192"])
def test_server_may_have_efforts_of_its_own(tmp_path: Path, effort: str) -> None:
    agent = load(tmp_path, f"models: {{default: {{reasoning: '{effort}'}}}}\n")
    assert agent.task("go").models["default"].reasoning == effort


def test_run_that_began_with_what_is_refused_now_goes_on() -> None:
    models = {"default": {"api": "responses", "seed": 1, "reasoning": "hgih"}}
    assert AgentTask.model_validate({"goal": "go", "models": models}).models["default"].seed == 1


def test_agent_file_becomes_a_task(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("TOOLS = ()\n")
    path = tmp_path / "mine.yaml"
    path.write_text(
        "models: {default: {provider: scripted, script: [{reply: hi}]}}\n"
        "modules: [mine.py]\ntools: [calculator]\nlimits: {tokens: 9}\noptions: {max_steps: 4}\n"
        "approvals: {tools: {calculator: always}}\n"
        "people: {groups: {ops: {members: [Ada]}}, requests: {group: ops}}\n"
    )
    agent = load_agent(path)
    assert (agent.name, agent.modules) == ("mine", (str(tmp_path / "mine.py"),))
    task = agent.task("go", material="a text")
    assert (task.goal, task.material, task.limits.tokens) == ("go", "a text", 9)
    assert task.models["default"].name == "scripted"
    assert task.approvals.tools == {"calculator": "always"}
    assert task.people.requests.group == "ops"
    assert "mine.py" not in task.model_dump_json()


@pytest.mark.parametrize("goal", ["", " \n", "ä" * 1_000_000])
def test_bad_goal_is_refused(goal: str) -> None:
    with pytest.raises(UsageError, match="goal"):
        Choice(model="scripted").finish()[0].task(goal)


def test_command_line_options_change_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("models: {default: {name: big, temperature: 0.5}}\ntools: [calculator]\n")
    agent, _ = Choice(
        agent=str(path),
        model="small",
        base_url="http://localhost:1/v1",
        machine="tools",
        tools=["read_file", "calculator"],
        settings=["max_steps=3", "limits.tokens=10", "models.default.seed=7", "people.unattended=true"],
    ).finish()
    expected = ModelSpec(name="small", temperature=0.5, seed=7, base_url="http://localhost:1/v1")
    assert agent.models["default"] == expected
    assert (agent.machine, agent.tools) == ("tools", ("calculator", "read_file"))
    assert (agent.options, agent.limits.tokens, agent.people.unattended) == ({"max_steps": 3}, 10, True)


@pytest.mark.parametrize("models", ["gpt", "{default: gpt}", "{default: {name: gpt}}"])
def test_bare_model_names_may_be_changed(tmp_path: Path, models: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"models: {models}\n")
    agent, _ = Choice(agent=str(path), base_url="http://localhost:1/v1").finish()
    assert agent.models["default"] == ModelSpec(name="gpt", base_url="http://localhost:1/v1")


def test_provider_in_file_does_not_outlive_its_model_or_server(tmp_path: Path) -> None:
    path, url = tmp_path / "a.yaml", "http://localhost:1/v1"
    path.write_text("models: {default: {provider: openai, name: gpt, seed: 7}, judge: {provider: mine}}\n")
    claude = Choice(agent=str(path), model="claude-x").finish()[0].models
    assert claude["default"] == ModelSpec(name="claude-x", seed=7)
    assert claude["judge"] == ModelSpec(provider="mine", name="claude-x")
    path.write_text("models: {default: {provider: anthropic, name: claude-x}}\n")
    assert Choice(agent=str(path)).finish()[0].models["default"].provider == "anthropic"
    served = Choice(agent=str(path), base_url=url).finish()[0].models
    assert served["default"] == ModelSpec(name="claude-x", base_url=url)


def test_scripted_model_keeps_the_script_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("models: {default: {provider: scripted, script: [{reply: hi}]}}\n")
    assert Choice(agent=str(path), model="scripted").finish()[0].models["default"].script
    assert Choice(agent=str(path), model="gpt-5").finish()[0].models["default"] == ModelSpec(name="gpt-5")
    assert Choice(model="scripted").finish()[0].models["default"].provider == "scripted"


def test_model_and_server_of_command_line_are_for_every_role(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "models: {default: {name: big, seed: 7}, judge: {provider: scripted, script: [{reply: hi}]}}\n"
    )
    url = "http://localhost:1/v1"
    every, _ = Choice(agent=str(path), model="small", base_url=url).finish()
    small = ModelSpec(name="small", base_url=url)
    assert every.models == {"default": small.model_copy(update={"seed": 7}), "judge": small}
    served, _ = Choice(agent=str(path), base_url=url).finish()
    assert (served.models["default"].base_url, served.models["judge"].base_url) == (url, None)


@pytest.mark.parametrize(
    ("setting", "key"), [("peopel.unattended=true", "people"), ("limts={tokens: 5}", "limits")]
)
def test_misspelt_option_key_is_named_with_what_was_meant(setting: str, key: str) -> None:
    agent, draft = Choice(model="scripted", settings=[setting]).finish()
    with pytest.raises(UsageError) as refused:
        Catalog.load(Settings()).check(agent, draft)
    assert str(refused.value).startswith(f"--set {setting}: options.")
    assert str(refused.value).endswith(f"did you mean the agent's key `{key}`?")


@pytest.mark.parametrize("assignment", ["max_steps", "limits.tokens=-1", "limits.tokens=[", "a=&x [*x]"])
def test_bad_setting_is_named(assignment: str) -> None:
    with pytest.raises(UsageError) as refused:
        Choice(settings=[assignment]).finish()
    assert str(refused.value).startswith(f"--set {assignment}")


class Inner(BaseModel):
    """One part of the options."""

    words: int = Field(default=5, ge=1, le=9, description="of an answer [4.2]")
    parts: tuple[Inner, ...] = ()


class Options(BaseModel, frozen=True):
    """Options of a machine."""

    must: str = Field(min_length=1, max_length=3)
    inner: dict[str, Inner] = Field(default_factory=lambda: {"a": Inner()})


def test_options_are_described_from_their_schema() -> None:
    assert [(o.name, o.default, o.allowed, o.meaning) for o in options_of(Options)] == [
        ("must", None, "text, at least 1, at most 3 characters", ""),
        ("inner", '{"a": {"words": 5, "parts": []}}', "mapping to object", ""),
        ("inner.*.words", "5", "integer from 1 to 9", "of an answer"),
        ("inner.*.parts", "[]", "list of the same", ""),
    ]


WORDS = {
    "string": "text", "integer": "integer", "number": "number", "boolean": "`true`, `false`",
    "null": "`null`", "array": "list of", "object": "object",
}  # fmt: skip
type_names = st.sampled_from(sorted(WORDS))
schemas: st.SearchStrategy[Any] = st.recursive(
    st.booleans()
    | st.fixed_dictionaries({"type": type_names | st.lists(type_names, min_size=1, unique=True)})
    | st.just({"$ref": "#/definitions/Point"})
    | st.sampled_from([{"$ref": "#/properties/gone"}, {"$ref": "#/definitions/b"}])
    | st.just({"$ref": "#"}),
    lambda inner: (
        st.fixed_dictionaries({"type": st.just(["array", "null"]), "items": inner})
        | st.fixed_dictionaries({"type": st.just("object"), "additionalProperties": inner})
        | st.fixed_dictionaries({"properties": st.dictionaries(st.sampled_from("ab"), inner)})
        | st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)})
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(schemas, st.lists(type_names, min_size=1, unique=True))
def test_arguments_of_every_type_are_told_in_words(schema: Any, types: list[str]) -> None:
    point = {"type": "object", "properties": {"x": {"type": ["integer", "string"]}}}
    properties = {"one": schema, "several": {"type": types}, "at": {"$ref": "#/definitions/Point"}}
    found = {
        one.name: one.allowed
        for one in options_in(
            {"type": "object", "properties": properties, "definitions": {"Point": point, "b": True}}
        )
    }
    assert found["one"]
    assert all(WORDS[name] in found["several"] for name in types)
    assert found["at.x"] == "integer or text"


def test_draft_keeps_the_places_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("options:\n  max_steps: 3\n  other: 4\n")
    draft = Draft(YamlFile(path))
    draft.assign("other=5")
    found = [(("options", "max_steps"), "one"), (("options", "other"), "two"), (("options", "x"), "three")]
    assert draft.message(found).splitlines() == [
        f"{path}:2:3: options.max_steps: one",
        "--set other=5: options.other: two",
        f"{path}:1:1: options.x: three",
    ]


MODELS = "from pydantic import BaseModel\n\nclass Refund(BaseModel):\n    cents: int\n"
CENTS = {"cents": {"type": "integer"}}


@pytest.mark.parametrize(
    "named", ["Refund", "models.py:Refund", "refund.json", "{properties: {cents: {type: integer}}}"]
)
def test_output_is_a_schema_or_the_name_of_one(tmp_path: Path, named: str) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "refund.json").write_text('{"properties": {"cents": {"type": "integer"}}}')
    output = load(tmp_path, f"modules: [models.py]\noutput: {named}\n").output
    assert output is not None
    assert output["properties"] == CENTS


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        pytest.param("Refnd", "has one; did you mean `Refund`?", id="misspelt"),
        pytest.param("models.py:Bill", "has one; known: `Refund`", id="no model"),
        pytest.param("other.py:Refund", "other.py is not in the agent's `modules`", id="no module"),
        pytest.param("nosuch.json", "nosuch.json: No such file", id="no JSON file"),
        pytest.param("bad.yaml.json", "bad.yaml.json is not JSON", id="not JSON"),
        pytest.param("list.json", "must be the JSON schema of an object", id="of a list"),
    ],
)
def test_output_that_is_not_there_is_named(tmp_path: Path, named: str, problem: str) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "other.py").write_text("raise SystemExit('it was loaded')")
    (tmp_path / "bad.yaml.json").write_text("{")
    (tmp_path / "list.json").write_text('{"type": "array"}')
    with pytest.raises(UsageError) as error:
        load(tmp_path, f"modules: [models.py]\noutput: {named}\n")
    assert ":2:1: output: " in str(error.value)
    assert problem in str(error.value)
