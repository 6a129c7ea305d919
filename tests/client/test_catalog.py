"""What there is to name in an agent file, and what is said of names that lead nowhere."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from activities.contracts import ModelSpec
from activities.settings import Settings
from client.agents.agentfile import AgentFile, Choice, Draft
from client.agents.catalog import Catalog, check_key, check_servers, without_broken_modules
from client.agents.facts import machine_facts
from client.agents.files import shipped_agents
from client.errors import UsageError
from client.sdk.agent import AgentClient
from client.server.workerconfig import Allowed, remember
from tests.conftest import Environ

MODULE = str(Path(__file__).with_name("user_module.py"))


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    """What a worker with a user's module has."""
    return Catalog.load(Settings(modules=(MODULE,)))


def check(catalog: Catalog, folder: Path, text: str) -> str:
    """What is wrong with an agent file, as `ratchet run` tells it; empty when nothing is."""
    path = folder / "bad.yaml"
    path.write_text(f"models: {{default: {{name: gpt}}}}\n{text}")
    return problems_of(catalog, *Choice(agent=str(path)).finish()).removeprefix(str(path))


def problems_of(catalog: Catalog, agent: AgentFile, draft: Draft) -> str:
    """What the catalog says against an agent; empty when nothing."""
    try:
        catalog.check(agent, draft)
    except UsageError as error:
        return str(error)
    return ""


POET = "machine: poet\ntools: [find_rhyme]\n"


def test_misspelt_tool_of_a_script_is_said_once(catalog: Catalog, tmp_path: Path) -> None:
    call = {"id": "1", "name": "find_rhyme", "arguments": "{}"}
    model = {"provider": "scripted", "script": [{"reply": "", "tool_calls": [call]}]}
    agent = {"machine": "tools", "tools": ["find_rime"], "models": {"default": model}}
    path = tmp_path / "bad.yaml"
    path.write_text(json.dumps(agent))
    problem = problems_of(catalog, *Choice(agent=str(path)).finish())
    assert problem.endswith("tools[0]: there is no tool `find_rime`; did you mean `find_rhyme`?")
    assert "\n" not in problem


def test_file_of_a_tool_that_modules_leaves_out_is_named(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "count_words.py").touch()
    found = check(catalog, tmp_path, "machine: tools\ntools: [count_words]\n")
    assert found.endswith("; count_words.py lies beside the agent file: add it to `modules`")


def test_module_without_a_machine_is_named(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "expense.py").write_text("MACHIN = None\n")
    found = check(catalog, tmp_path, "machine: expense\nmodules: [expense.py]\n")
    assert "there is no machine `expense`" in found
    assert "expense.py declares none: a module does by `MACHINE = Machine(...)`" in found


@pytest.mark.parametrize(
    ("text", "start", "culprit"),
    [
        ("machine: peot\n", ":2:1: machine: ", "`poet`"),
        ("machine: tools\ntools: []\n", ":3:1: tools: ", "machine tools needs at least one"),
        ("machine: poet\nmachine_version: '9'\n", ":3:1: machine_version: ", "9"),
        (f"{POET}options: {{word: 3}}\n", ":4:11: options.word: ", "`words`"),
        (f"{POET}options: {{words: 0}}\n", ":4:11: options.words: ", "got 0"),
        (f"{POET}options: {{hook: limp}}\n", ":4:1: options: ", "limp"),
        (f"{POET}options: {{hook: user_module.rhyme}}\n", "", ""),
        (f"{POET}options: {{inner: {{machine: peot}}}}\n", ":4:19: options.inner.machine: ", "poet"),
        (
            f"{POET}options: {{inner: {{machine: poet, options: {{words: 0}}}}}}\n",
            ":4:44: options.inner.options.words: ",
            "got 0",
        ),
        ("machine: poet\ntools: [find_rime]\n", ":3:9: tools[0]: ", "`find_rhyme`"),
        (f"{POET}people: {{interrupt_states: [aks]}}\n", ":4:29: people.interrupt_states[0]: ", "`ask`"),
        (f"{POET}people: {{interrupt_states: [ask], interrupt_every: 2}}\n", "", ""),
        (f"{POET}approvals: {{tools: {{find_x: always}}}}\n", ":4:21: approvals.tools.find_x: ", "find"),
        (
            f"{POET}approvals: {{rules: [{{tools: ['find*'], arguments: {{wort: {{const: x}}}}}}]}}\n",
            ":4:52: approvals.rules[0].arguments.wort: ",
            "wort",
        ),
    ],
)  # fmt: skip
def test_names_are_checked_at_their_place(
    catalog: Catalog, tmp_path: Path, text: str, start: str, culprit: str
) -> None:
    message = check(catalog, tmp_path, text)
    assert message.startswith(start)
    assert (culprit in message) if culprit else not message


def test_model_names_are_checked(catalog: Catalog) -> None:
    agent, draft = Choice(
        machine="poet", settings=["models.default.provider=opnai", "models.plan=gpt", "tools=[]"]
    ).finish()
    with pytest.raises(UsageError) as refused:
        catalog.check(agent, draft)
    lines = str(refused.value).splitlines()
    assert [line.split(": ")[1] for line in lines] == ["models.plan", "models.default.provider"]
    assert "`openai`" in lines[1]


def test_scripted_model_needs_a_script(catalog: Catalog) -> None:
    """Where the machine's replies have a form of their own."""
    poet = Choice(model="scripted", machine="poet", settings=["tools=[]"]).finish()
    tools = Choice(model="scripted", machine="tools").finish()
    assert "models.default" in problems_of(catalog, *poet)
    assert problems_of(catalog, *tools) == ""


def test_catalog_lists_what_there_is(catalog: Catalog) -> None:
    assert {"poet", "tools"} <= {machine.name for machine in catalog.machines}
    assert {"calculator", "find_rhyme"} <= {tool.name for tool in catalog.tools}
    assert {"openai", "scripted"} <= catalog.providers.keys()
    assert catalog.extensions.hooks["rhyme"] is len
    assert Catalog.load(Settings(modules=(MODULE,))).machines == catalog.machines, "loading again is harmless"
    with pytest.raises(UsageError, match="poet"):
        catalog.machine("peot")


def test_facts_tell_all_about_a_machine(catalog: Catalog) -> None:
    facts = machine_facts(catalog.machine("poet"))
    assert facts["states"] == [
        {
            "state": "ask", "initial": True, "final": False, "begins_step": True, "counts": "asks",
            "reads": ["text"], "writes": ["text"], "asks": ["AskModel"], "tools": None, "enforced": True,
        },
        {
            "state": "done", "initial": False, "final": True, "begins_step": False, "counts": "",
            "reads": [], "writes": [], "asks": [], "tools": None, "enforced": True,
        },
    ]  # fmt: skip
    assert facts["transitions"] == [{"from": "ask", "event": "Answered", "to": "done"}]
    assert facts["options"][0] == {
        "name": "words", "default": "5", "allowed": "integer at least 1", "meaning": "of the answer",
    }  # fmt: skip
    assert "[4.2]" not in json.dumps(facts)


def test_broken_module_is_named_with_its_line(tmp_path: Path) -> None:
    broken, gone = tmp_path / "broken.py", str(tmp_path / "gone.py")
    broken.write_text("x = 1\ny = nonsense\n")
    with pytest.raises(UsageError, match=r"broken\.py: line 2: NameError"):
        Catalog.load(Settings(modules=(str(broken),)))
    settings = Settings(data_dir=tmp_path, modules=(str(broken), gone))
    kept, messages = without_broken_modules(settings, Allowed(modules=(gone,)).modules)
    assert kept.modules == (gone,), "what is named now stays, so that its fault is told"
    assert messages == (), "beside what is named and broken, no other module is blamed"


def test_model_without_key_or_server_is_refused(environ: Environ) -> None:
    models = Choice().finish()[0].models
    with pytest.raises(UsageError, match="OPENAI_API_KEY"):
        check_key(models)
    environ["OPENAI_BASE_URL"] = "http://localhost:1/v1"
    check_key(models)


@pytest.mark.parametrize("path", shipped_agents(), ids=lambda path: path.stem)
def test_shipped_agent_names_what_there_is(path: Path) -> None:
    agent, draft = Choice(agent=path.stem).finish()
    Catalog.load(Settings(modules=agent.modules)).check(agent, draft)
    assert agent.task("a goal").name == path.stem


@pytest.mark.parametrize(
    ("entry", "key", "words"),
    [
        (
            '{reply: "", tool_calls: [{id: a, name: calclator, arguments: "{}"}]}',
            "tool_calls[0].name",
            "`calculator`?",
        ),
        (
            '{reply: "", tool_calls: [{id: a, name: calculator, arguments: "{"}]}',
            "tool_calls[0].arguments",
            "JSON object",
        ),
    ],
)
def test_call_in_script_that_could_not_be_made_is_named(
    catalog: Catalog, tmp_path: Path, entry: str, key: str, words: str
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(f"tools: [calculator]\nmodels: {{default: {{provider: scripted, script: [{entry}]}}}}\n")
    told = problems_of(catalog, *Choice(agent=str(path)).finish())
    assert told.startswith(f"{path}:2:")
    assert f"models.default.script[0].{key}: " in told
    assert words in told


@pytest.mark.parametrize("part", ["TOOL", "MACHINE"])
def test_named_module_comes_before_a_remembered_one(tmp_path: Path, part: str) -> None:
    other = "MACHINE" if part == "TOOL" else "TOOL"
    source = Path(MODULE).read_text().replace(f"{other} =", "UNUSED =").replace("HOOKS", "OTHER")
    older, newer, named = (tmp_path / f"{name}.py" for name in ("older", "newer", "named"))
    for file in (older, newer, named):
        file.write_text(source.replace('name="poet"', f'name="poet_{part}"'))
    settings = Settings(data_dir=tmp_path, modules=(str(older), str(newer)))
    if part == "TOOL":  # the registry of machines is the process's
        kept, messages = without_broken_modules(settings, ())
        assert kept.modules == (str(newer),), "of two that are remembered the newest comes first"
        assert f"`ratchet modules --forget {older}`" in messages[0]
    both = settings.model_copy(update={"modules": (*settings.modules, str(named))})
    kept, messages = without_broken_modules(both, (str(named),))
    assert kept.modules == (str(named),)
    (message,) = messages
    assert message.startswith("left out 2 modules that earlier commands named: a ")
    assert message.count(str(named)) == 1


async def test_model_server_that_is_not_there_is_named_at_once(environ: Environ) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers here
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(UsageError, match=f"{url} of llama does not answer.*; start it, or check"):
            await check_servers({"main": ModelSpec(name="llama", base_url=url)})
        environ["HTTPS_PROXY"] = url
        with pytest.raises(UsageError, match=r"//api\.openai\.com/v1 of gpt-5-mini does not answer.*; check"):
            await check_servers({"main": ModelSpec()})
    scripted = ModelSpec(provider="scripted", name="scripted", base_url="http://127.0.0.1:1")
    await check_servers({"main": scripted})


async def test_start_is_refused_only_where_no_fallback_answers_either() -> None:
    scripted = ModelSpec(provider="scripted", name="scripted")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening
        away = ModelSpec(name="llama", base_url=f"http://127.0.0.1:{taken.getsockname()[1]}/v1")
        with_spare = away.model_copy(update={"fallback": ("spare",)})
        await check_servers({"main": with_spare, "spare": scripted})
        await check_servers({"main": scripted.model_copy(update={"fallback": ("spare",)}), "spare": away})
        with pytest.raises(UsageError, match="of llama does not answer"):
            await check_servers({"main": with_spare, "spare": away, "other": scripted})


async def test_address_that_is_none_is_named_before_anything_starts(environ: Environ) -> None:
    for url in ("localhost:11434", "http://localhost:none/v1"):
        with pytest.raises(UsageError, match=f"base_url of llama: expected an http.* URL, .*, got '{url}'"):
            await check_servers({"main": ModelSpec(name="llama", base_url=url)})
    for secret in ("http//ada:secret@host", "sk-a-key-in-the-wrong-place"):
        environ["OPENAI_BASE_URL"] = secret
        with pytest.raises(UsageError, match=r"^OPENAI_BASE_URL: expected .*/v1$"):  # not what it is
            await check_servers({"main": ModelSpec(name="llama")})


def test_missing_key_is_told_with_the_place_of_its_model(environ: Environ, tmp_path: Path) -> None:
    environ["OPENAI_APIKEY"] = "sk-1"
    path = tmp_path / "a.yaml"
    for text, place in (("machine: react\n", path), ("models:\n  default: gpt-5\n", f"{path}:2:3")):
        path.write_text(text)
        agent, draft = Choice(agent=str(path)).finish()
        with pytest.raises(UsageError) as refused:
            check_key(agent.models, draft.place)
        assert str(refused.value).startswith(f"{place}: model gpt-5")
        assert "; OPENAI_APIKEY is set, which is another name" in str(refused.value)


def test_module_with_provider_name_of_another_module_is_left_out(tmp_path: Path) -> None:
    older, newer = (tmp_path / f"{name}.py" for name in ("older_tail", "newer_tail"))
    for file in (older, newer):
        file.write_text(
            "class Tail:\n    name = 'tail'\n    description = 'The last words.'\n"
            "    async def complete(self, request): ...\nPROVIDER = Tail()\n"
        )
    settings = Settings(data_dir=tmp_path, modules=(str(older), str(newer)))
    kept, (message,) = without_broken_modules(settings, ())
    assert kept.modules == (str(newer),)
    assert message.startswith(f"left out {older}, which an earlier command named: there is a provider")
    assert "there is a provider 'tail' already" in message


OTHERS = """
class Echo:
    name = "echo"
    description = "The last words."
    async def complete(self, request): ...


PROVIDER = Echo()
"""


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """What a worker has where an earlier command named a module of its own agent."""
    folder = tmp_path_factory.mktemp("others")
    file, data_dir = folder / "others.py", folder / "data"
    own = Path(MODULE).read_text().replace('"poet"', '"skald"').replace('"rhyme"', '"chime"')
    file.write_text(own.replace('"find_rhyme"', '"find_chime"') + OTHERS)
    remember(data_dir, Allowed(modules=(str(file),)))
    return Catalog.load(Settings(data_dir=data_dir, modules=(MODULE, str(file))))


@pytest.mark.parametrize(
    ("text", "key", "what"),
    [
        ("machine: skald\ntools: [find_rhyme]", "machine", "the machine `skald` (version 1)"),
        ("machine: tools\ntools: [find_chime]", "tools[0]", "the tool `find_chime`"),
        (f"{POET}options: {{hook: chime}}", "options", "a rule, policy or hook that the options name"),
        (f"{POET}options: {{inner: {{machine: skald}}}}", "options.inner.machine", "the machine `skald` (v"),
        (
            f"{POET}models: {{default: {{provider: echo, name: x}}}}",
            "models.default.provider",
            "the provider",
        ),
    ],
)
def test_nothing_remembered_runs_in_agent_that_does_not_name_it(
    others: Catalog, tmp_path: Path, text: str, key: str, what: str
) -> None:
    path, file = tmp_path / "bad.yaml", others.settings.modules[1]
    path.write_text(text if "models" in text else f"{text}\nmodels: {{default: {{name: gpt}}}}\n")
    told = problems_of(others, *Choice(agent=str(path)).finish())
    assert f" {key}: {what}" in told
    assert f"is of {file}, which this agent does not name: " in told
    assert told.endswith(f"Add it to `modules`, or `ratchet modules --forget {file}` forgets it")
    assert "\n" not in told
    path.write_text(f"{path.read_text()}\nmodules: [{file}]\n")
    assert problems_of(others, *Choice(agent=str(path)).finish()) == ""


def test_what_the_environment_names_is_there_for_all(
    others: Catalog, environ: Environ, tmp_path: Path
) -> None:
    environ["RATCHET_MODULES"] = json.dumps(others.settings.modules)
    assert check(others, tmp_path, "machine: tools\ntools: [find_chime]\n") == ""


def test_agents_that_are_served_together_keep_their_modules_apart(tmp_path: Path) -> None:
    served = Catalog.load(Settings(modules=(MODULE,)), [MODULE])
    assert "the machine `poet` (version 1) is of" in check(served, tmp_path, POET)
    assert check(served, tmp_path, f"modules: [{MODULE}]\n{POET}") == ""


async def test_program_is_told_what_its_worker_would_run_in_place(
    others: Catalog, environ: Environ, tmp_path: Path
) -> None:
    environ["RATCHET_DATA_DIR"] = str(others.settings.data_dir)
    path = tmp_path / "clock.yaml"
    path.write_text("machine: tools\ntools: [find_chime]\nmodels: {default: {name: gpt}}\n")
    agent, _ = Choice(agent=str(path)).finish()
    with pytest.raises(UsageError, match=r"^agent clock: tools\[0\]: the tool `find_chime` is of .*others"):
        async with AgentClient.connect(worker=True, agents=[agent], address="127.0.0.1:1"):
            raise AssertionError
