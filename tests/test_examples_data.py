"""The examples: the log is what its program writes, and the agents find in it what is there.

The agent of `make run` is run here with its real tools and its real provider, in the plainest loop:
a reply, a tool, an observation. What it must answer is worked out from the file by other means.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import yaml

from activities.contracts import ModelSpec, Price, Setup
from activities.extensions import load_modules
from activities.provider import ProviderCall
from activities.providers import load_providers
from activities.settings import Settings
from activities.toolbox import Toolbox, ToolCallContext
from activities.transcript import Message, Transcript
from client.agentfile import AgentFile, Draft, find_agent, shipped_agents
from client.yamltext import YamlText
from examples.make_log import LINES, LOG, RELEASE, lines, main
from workflows.api import Limits
from workflows.machines.react_context import Options
from workflows.machines.react_prompt import observed
from workflows.machines.react_reply import Thought, final_answer, read_reply
from workflows.registry import designs

DETECTIVE = "log_detective"


def agent(name: str) -> AgentFile:
    """A shipped agent, read and checked as the CLI does it."""
    return Draft(YamlText(find_agent(name))).finish()


async def answer(folder: Path) -> tuple[str, list[str]]:
    """What the log detective answers about the files of a folder, and which tools it used."""
    settings = Settings(files_root=folder)
    toolbox, provider = Toolbox.load(settings), load_providers(settings)["scripted"]
    detective = agent(DETECTIVE)
    model = detective.models["default"]
    at_once = tuple(entry.model_copy(update={"delay_seconds": 0}) for entry in model.script)
    setup, used = Setup(model=model.model_copy(update={"script": at_once})), list[str]()
    transcript = Transcript([Message(role="user", content="Which service fails most?")])
    for _ in range(int(detective.options["max_steps"])):  # type: ignore[arg-type]  # a number, the agent file was checked
        reply = await provider.complete(setup, transcript, ProviderCall())
        thought = read_reply(reply.text)
        assert isinstance(thought, Thought), thought
        said = final_answer(thought.text, thought.action, thought.action_input)
        if said is not None:
            return said, used
        assert thought.action in detective.tools
        used.append(thought.action)
        observation = call(toolbox, settings, thought)
        transcript = transcript.add(reply.message, observed(observation))
    raise AssertionError("the agent found no end")


def call(toolbox: Toolbox, settings: Settings, thought: Thought) -> str:
    """What a tool returns."""
    tool = toolbox.get(thought.action or "")
    assert tool is not None
    context = ToolCallContext(
        key="test",
        files_root=settings.files_root,
        settings=settings,
        attempt=1,
        heartbeat=lambda text: None,
        cancelled=lambda: False,
    )
    output = tool.call(tool.params.model_validate(thought.action_input), context)
    assert isinstance(output, str)
    return output


def shop(folder: Path, text: str) -> Path:
    """A folder with this log in the place where the agent looks."""
    (folder / "examples" / "data").mkdir(parents=True)
    (folder / "examples" / "data" / "services.log").write_text(text, encoding="utf-8")
    return folder


def errors_by_service(text: str) -> Counter[str]:
    """Number of ERROR lines of each service."""
    words = (line.split() for line in text.splitlines())
    return Counter(word[2].removeprefix("service=") for word in words if word[1] == "ERROR")


def line(second: int, level: str, service: str, text: str) -> str:
    """One line of a log that begins at eight."""
    stamp = f"2026-03-14T08:{second // 60:02}:{second % 60:02}.000Z"
    return f"{stamp} {level:<5} service={service} request=000000 {text}\n"


# -- the log ----------------------------------------------------------------------------------------


def test_the_log_is_what_its_program_writes(tmp_path: Path) -> None:
    again = tmp_path / "again.log"
    main([str(again)])
    assert again.read_bytes() == LOG.read_bytes()


def test_the_log_is_the_same_in_every_process(tmp_path: Path) -> None:
    """Nothing depends on the hash seed."""
    again = tmp_path / "again.log"
    program = [sys.executable, str(LOG.parents[1] / "make_log.py"), str(again)]
    subprocess.run(program, check=True, env={**os.environ, "PYTHONHASHSEED": "17"})
    assert again.read_bytes() == LOG.read_bytes()


def test_the_log_has_one_line_an_entry_in_the_order_of_time() -> None:
    written = LOG.read_text(encoding="utf-8").splitlines()
    shape = re.compile(
        r"2026-03-14T\d\d:\d\d:\d\d\.\d{3}Z (INFO |WARN |ERROR) service=\w+ request=[0-9a-f]{6} \S.*"
    )
    assert len(written) == LINES
    assert [entry for entry in written if not shape.fullmatch(entry)] == []
    assert written == sorted(written, key=lambda entry: entry[:24])


def test_payments_fails_most_after_the_release_and_hardly_ever_before() -> None:
    failed = [entry for entry in lines() if entry.level == "ERROR" and entry.service == "payments"]
    before = [entry for entry in failed if entry.at < RELEASE]
    assert errors_by_service(LOG.read_text(encoding="utf-8")).most_common(1)[0][0] == "payments"
    assert 1 <= len(before) <= 3
    assert len(failed) > 100


# -- the agent of `make run` ------------------------------------------------------------------------


async def test_the_answer_names_service_counts_share_time_and_cause() -> None:
    text = LOG.read_text(encoding="utf-8")
    errors = errors_by_service(text)
    service, count = errors.most_common(1)[0]
    release = next(entry for entry in text.splitlines() if "deploy" in entry)
    said, used = await answer(LOG.parents[2])
    assert f"{service} fails most: {count} of {errors.total()} errors" in said
    assert f"({round(100 * count / errors.total(), 1):g} %)" in said
    assert "failing since 2026-03-14T11:42:02.704Z" in said
    assert release in said
    assert used == ["list_files", "search_files", "search_files", "search_files", "calculator"]


async def test_another_log_gives_another_answer(tmp_path: Path) -> None:
    """The same day with another seed, and with the services' names exchanged."""
    text = "".join(f"{entry}\n" for entry in lines(seed=7))
    swapped = text.replace("payments", "_").replace("search", "payments").replace("_", "search")
    errors = errors_by_service(swapped)
    said, _ = await answer(shop(tmp_path, swapped))
    assert f"search fails most: {errors['search']} of {errors.total()} errors" in said
    assert (await answer(LOG.parents[2]))[0] != said


async def test_an_error_long_before_the_outage_is_not_its_beginning(tmp_path: Path) -> None:
    text = line(5, "ERROR", "mail", "relay refused the connection")
    text += line(1_500, "INFO", "mail", "config reloaded: relay.example -> relay2.example")
    text += "".join(line(1_510 + i, "ERROR", "mail", "no route to relay2") for i in range(9))
    said, _ = await answer(shop(tmp_path, text))
    assert "mail fails most: 10 of 10 errors (100 %)" in said
    assert "failing since 2026-03-14T08:25:10.000Z" in said
    assert "config reloaded: relay.example -> relay2.example" in said


async def test_without_a_change_before_the_outage_no_cause_is_named(tmp_path: Path) -> None:
    text = "".join(line(60 + i, "ERROR", "mail", "no route to the relay") for i in range(9))
    said, _ = await answer(shop(tmp_path, text))
    assert "mail fails most: 9 of 9 errors" in said
    assert "since 2026-03-14T08:01:00.000Z" in said
    assert "no change that could be the cause" in said


async def test_errors_that_are_spread_out_are_no_outage(tmp_path: Path) -> None:
    text = "".join(line(700 * i, "ERROR", "mail", "no route to the relay") for i in range(4))
    said, _ = await answer(shop(tmp_path, text))
    assert "mail fails most: 4 of 4 errors" in said
    assert "no time since when" in said


async def test_a_log_without_errors_and_a_folder_without_logs_are_said_to_be_so(
    tmp_path: Path,
) -> None:
    quiet = shop(tmp_path / "quiet", line(1, "INFO", "mail", "sent"))
    empty = shop(tmp_path / "empty", "")
    (empty / "examples" / "data" / "services.log").unlink()
    assert "No service fails" in (await answer(quiet))[0]
    assert "no file *.log" in (await answer(empty))[0]


# -- the agent files --------------------------------------------------------------------------------


def test_the_shipped_agents_are_valid_and_name_what_there_is() -> None:
    found = {path.stem: agent(path.stem) for path in shipped_agents()}
    assert {DETECTIVE, "assistant", "ollama"} <= set(found)
    for stem, shipped in found.items():
        modules = load_modules(shipped.modules)
        own = [module.DESIGN for module in modules if hasattr(module, "DESIGN")]
        machines = {design.name: design for design in (*designs(), *own)}
        assert shipped.name == stem
        assert shipped.description
        assert set(shipped.tools) <= set(Toolbox.load(Settings(modules=shipped.modules)).names)
        machines[shipped.machine].options.model_validate(shipped.options)
        shipped.task("a goal")


def test_the_assistant_documents_every_key_with_a_comment() -> None:
    """But the script, which belongs to the provider `scripted` alone."""
    text = find_agent("assistant").read_text(encoding="utf-8")
    given = yaml.safe_load(text)
    assert set(given) == set(AgentFile.model_fields)
    assert set(given["limits"]) == set(Limits.model_fields)
    assert set(given["models"]["default"]) == set(ModelSpec.model_fields) - {"script"}
    assert set(given["options"]) == set(Options.model_fields)
    assert all(field in text for field in Price.model_fields)
    for key in AgentFile.model_fields:
        assert re.search(rf"^#.*\n{key}:", text, flags=re.MULTILINE), f"{key} has no comment"


def test_the_assistant_has_every_shipped_tool() -> None:
    assert sorted(agent("assistant").tools) == list(Toolbox.load(Settings()).names)
