"""The shipped examples: agent files check, programs make their data, and answers follow the data."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from activities.contracts import (
    CompensateInput,
    ModelReplied,
    ModelSpec,
    NativeCall,
    Price,
    ReconcileInput,
)
from activities.extensions import load_modules
from activities.settings import Settings
from activities.tools import load_tools
from activities.tools.run import ToolRunner
from client.agents.agentfile import AgentFile, Draft, find_agent, load_agent
from client.agents.catalog import Catalog
from client.agents.files import shipped_agents
from client.agents.yaml import YamlFile
from examples import make_chats, make_log
from examples.make_chats import Chat, chats
from ratchet import Local, ScriptedModel, Tool
from tests.activities.toolkit import request_for, settings_on
from tests.examplekit import ROOT, local, outcome_of
from workflows.api import Limits
from workflows.machines.react import Options
from workflows.people import ApprovalRule, Decision, People, Request, RequestSettings

SHIPPED = [pytest.param(path, id=path.stem) for path in shipped_agents()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a copy of the examples' data."""
    shutil.copytree(ROOT / "examples" / "data", tmp_path / "examples" / "data")
    return tmp_path


def write(folder: Path, name: str, text: str) -> Path:
    """A folder with this file among its data."""
    path = folder / "examples" / "data" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return folder


def change(folder: Path, name: str, *changes: tuple[str, str]) -> Path:
    """The folder with other words in one of its files."""
    text = (folder / "examples" / "data" / name).read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return write(folder, name, text)


# -- agent files --------------------


@pytest.mark.parametrize("path", SHIPPED)
def test_agent_file_names_only_what_there_is(path: Path) -> None:
    draft = Draft(YamlFile(path))
    agent = draft.finish()
    Catalog.load(Settings(modules=agent.modules)).check(agent, draft)
    assert agent.name == path.stem
    assert agent.description


@pytest.mark.parametrize("path", SHIPPED)
def test_command_in_an_agent_file_names_that_file(path: Path) -> None:
    named = re.findall(r"--agent examples/agents/(\w+)\.yaml", path.read_text(encoding="utf-8"))
    assert set(named) <= {path.stem}


def keys_of(model: Any) -> set[str]:
    """The fields of a pydantic model."""
    return set(model.model_fields)


def test_assistant_documents_every_key_with_a_comment() -> None:
    text = find_agent("assistant").read_text(encoding="utf-8")
    given = YAML(typ="safe").load(text)
    assert set(given) == keys_of(AgentFile)
    assert set(given["limits"]) == keys_of(Limits)
    assert set(given["models"]["default"]) == keys_of(ModelSpec) - {"script"}
    assert set(given["options"]) == keys_of(Options)
    assert set(given["people"]) == keys_of(People)
    assert set(given["people"]["requests"]) == keys_of(RequestSettings)
    assert set(given["approvals"]["rules"][0]) == keys_of(ApprovalRule)
    assert all(field in text for field in keys_of(Price))
    for key in keys_of(AgentFile):
        assert re.search(rf"^#.*\n{key}:", text, flags=re.MULTILINE), f"{key} has no comment"


def test_assistant_has_every_shipped_tool() -> None:
    assert sorted(load_agent("assistant").tools) == list(load_tools(Settings()))


@pytest.mark.parametrize("program", [make_log, make_chats])
def test_data_is_what_its_program_writes(program: Any, tmp_path: Path) -> None:
    written = tmp_path / "written"
    program.main([str(written)])
    assert written.read_bytes() == getattr(program, "LOG" if program is make_log else "CHATS").read_bytes()


# -- log_detective, the agent of `make run` --------------------


def errors_in(text: str) -> Counter[str]:
    """Number of ERROR lines of each service."""
    return Counter(re.findall(r" ERROR +service=(\S+)", text))


def log_line(second: int, level: str, text: str) -> str:
    """One line of a log that begins at eight."""
    stamp = f"2026-03-14T08:{second // 60:02}:{second % 60:02}.000Z"
    return f"{stamp} {level:<5} service=mail request=000000 {text}\n"


async def test_detective_finds_service_counts_time_and_cause(folder: Path) -> None:
    text = make_log.LOG.read_text(encoding="utf-8")
    errors = errors_in(text)
    (service, count), total = errors.most_common(1)[0], errors.total()
    outcome = await outcome_of("log_detective", folder)
    answer = outcome.answer or ""
    assert f"{service} fails most: {count} of {total} errors ({100 * count / total:.1f} %)" in answer
    assert "failing since 2026-03-14T11:42:02.704Z" in answer
    assert next(line for line in text.splitlines() if "deploy" in line) in answer
    tools = [tool for tool, _ in outcome.tool_calls]
    assert tools == ["list_files", "search_files", "search_files", "search_files", "calculator"]


async def test_detective_answers_otherwise_about_another_log(tmp_path: Path) -> None:
    text = "".join(f"{line}\n" for line in make_log.lines(seed=7))
    text = text.replace("payments", "_").replace("search", "payments").replace("_", "search")
    outcome = await outcome_of("log_detective", write(tmp_path, "services.log", text))
    errors = errors_in(text)
    assert f"search fails most: {errors['search']} of {errors.total()} errors" in str(outcome.answer)


OUTAGE = "".join(log_line(1500 + n, "ERROR", "no route to the relay") for n in range(9))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        pytest.param(
            log_line(5, "ERROR", "refused") + log_line(50, "INFO", "config reloaded") + OUTAGE,
            "since 2026-03-14T08:25:00.000Z",
            id="an error before the outage",
        ),
        pytest.param(OUTAGE, "no change that could be the cause", id="no cause"),
        pytest.param(
            "".join(log_line(9 * n, "ERROR", f"no {what}") for n, what in enumerate(("route", "disk"))),
            "no outage",
            id="no outage",
        ),
        pytest.param(log_line(1, "INFO", "sent"), "No service fails", id="no errors"),
    ],
)
async def test_detective_says_what_the_log_lacks(tmp_path: Path, text: str, answer: str) -> None:
    outcome = await outcome_of("log_detective", write(tmp_path, "services.log", text))
    assert answer in str(outcome.answer)


async def test_detective_without_a_log_says_so(tmp_path: Path) -> None:
    assert "no file *.log" in str((await outcome_of("log_detective", write(tmp_path, "a.txt", ""))).answer)


# -- csv_question: one decision at a time --------------------

TICKETS = "id,opened,product,priority,status\n"


async def test_question_is_answered_from_the_table(folder: Path) -> None:
    with (folder / "examples" / "data" / "tickets.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["priority"], row["status"]) == ("urgent", "open")]
    product, count = Counter(row["product"] for row in rows).most_common(1)[0]
    oldest = next(row for row in rows if row["product"] == product)
    outcome = await outcome_of("csv_question", folder)
    assert outcome.answer == (
        f"At {product}: {count} of the {len(rows)} urgent open tickets ({round(100 * count / len(rows))} %). "
        f"The oldest is {oldest['id']}, open since {oldest['opened']}."
    )


@pytest.mark.parametrize(
    ("rows", "answer"),
    [
        pytest.param("1,2026-01-01,mail,urgent,open\n", "At mail: 1 of the 1 urgent", id="one"),
        pytest.param("", "No urgent ticket is open.", id="none"),
    ],
)
async def test_another_table_gives_another_answer(tmp_path: Path, rows: str, answer: str) -> None:
    outcome = await outcome_of("csv_question", write(tmp_path, "tickets.csv", TICKETS + rows))
    assert str(outcome.answer).startswith(answer)


async def test_missing_table_is_an_error(tmp_path: Path) -> None:
    outcome = await outcome_of("csv_question", tmp_path)
    assert (outcome.ok, outcome.result.raises) == (False, "ExecutionError")


# -- login_audit: a plan, then a bounded loop --------------------


def sign_in(action: str, ip: str = "192.0.2.9", more: str = "") -> str:
    """One line of a sign-in log."""
    return f"2026-05-01T10:00:00Z {action} user=ann ip={ip}{more}\n"


async def test_audit_finds_address_account_and_deeds(folder: Path) -> None:
    text = (folder / "examples" / "data" / "logins.txt").read_text(encoding="utf-8")
    failures = Counter(re.findall(r"login FAIL \S+ ip=(\S+)", text))
    (ip, count), total = failures.most_common(1)[0], failures.total()
    since, user = re.findall(rf"(\S+) login OK user=(\S+) ip={re.escape(ip)}$", text, re.MULTILINE)[0]
    deeds = re.findall(rf"(?:export|change_\w+) user={user} ip={re.escape(ip)} (.*)", text)
    outcome = await outcome_of("login_audit", folder)
    answer = outcome.answer or ""
    assert f"{ip} failed to sign in {count} times ({round(100 * count / total, 1)} % of all {total}" in answer
    assert f"got in as {user} at {since}" in answer
    assert f"something {len(deeds)} times" in answer
    assert deeds[0] in answer


FAILS = sign_in("login FAIL") * 3


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        pytest.param(sign_in("login OK"), "has no failed sign-in at all", id="no failures"),
        pytest.param(FAILS + sign_in("login OK", "192.0.2.90"), "but it never got in", id="never in"),
        pytest.param(FAILS + sign_in("login OK") + sign_in("view"), "took and changed nothing", id="looked"),
    ],
)
async def test_audit_says_what_did_not_happen(tmp_path: Path, text: str, answer: str) -> None:
    outcome = await outcome_of("login_audit", write(tmp_path, "logins.txt", text))
    assert answer in str(outcome.answer)


async def test_missing_log_halts_the_audit(tmp_path: Path) -> None:
    """No failure was seen: that does not mean that there was none."""
    outcome = await outcome_of("login_audit", tmp_path)
    assert (outcome.result.exit_reason, outcome.result.raises) == ("tool_failure", "ExecutionError")


# -- invoice_checker: several tools in one reply --------------------

INVOICE, PRICES = "invoices/invoice_2026-117.csv", "invoices/prices_2026.csv"


async def test_checker_finds_both_deviations(folder: Path) -> None:
    assert (await outcome_of("invoice_checker", folder)).answer == (
        "Two lines of invoice_2026-117 differ from the agreed prices: HINGE-90, 36 pieces at 9.90 instead of "
        "9.50, and SEAL-12, 120 pieces at 1.05 instead of 0.95. Charged minus agreed is 26.4 in all."
    )


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        pytest.param(
            [(INVOICE, "SEAL-12,1.05,120", "SEAL-12,0.95,120")], "One line of invoice_2026-117", id="one"
        ),
        pytest.param(
            [(PRICES, "HINGE-90,9.50", "HINGE-90,9.90"), (PRICES, "SEAL-12,0.95", "SEAL-12,1.05")],
            "All lines of invoice_2026-117 are charged as agreed.",
            id="none",
        ),
        pytest.param([(PRICES, "WASHER-8,0.04", "WASHER-8,0.03")], "More than two lines", id="more than two"),
        pytest.param([(PRICES, "LATCH-2,14.50\n", "")], "I cannot check it", id="no price"),
    ],
)
async def test_another_invoice_gives_another_answer(
    folder: Path, changes: list[tuple[str, str, str]], answer: str
) -> None:
    for name, old, new in changes:
        change(folder, name, (old, new))
    assert str((await outcome_of("invoice_checker", folder)).answer).startswith(answer)


# -- incident_triage: stages that are data --------------------


async def test_triage_names_the_incident_and_who_takes_it(folder: Path) -> None:
    files = folder / "examples" / "data" / "incidents"
    with (files / "alerts.csv").open(encoding="utf-8") as lines:
        alert = next(a for a in csv.DictReader(lines) if (a["severity"], a["status"]) == ("SEV1", "open"))
    with (files / "oncall.csv").open(encoding="utf-8") as lines:
        engineer = next(
            row["engineer"] for row in csv.DictReader(lines) if row["service"] == alert["service"]
        )
    outcome = await outcome_of("incident_triage", folder)
    answer = outcome.answer or ""
    assert answer.startswith(f"{alert['id']} comes first: {alert['summary']} ({alert['service']}, open since")
    assert f"{engineer} of " in answer
    # The review sent the first answer back: it named nobody.
    assert "Reviewing Thinking" in " ".join(outcome.states)


async def test_triage_says_when_nothing_is_open(folder: Path) -> None:
    change(folder, "incidents/alerts.csv", (",open,", ",resolved,"))
    assert "no SEV1 alert is open" in str((await outcome_of("incident_triage", folder)).answer)


# -- delivery_report: slots under budgets --------------------


def slot(outcome: Any, name: str) -> str:
    """What fills a slot."""
    return str(outcome.result.outcome["slots"][name]["text"])


async def test_report_has_the_table_and_the_worst_carrier(folder: Path) -> None:
    with (folder / "examples" / "data" / "deliveries.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    late = [row for row in rows if row["status"] == "late"]
    carriers = Counter(row["carrier"] for row in late).most_common()
    worst, count = carriers[0]
    sent = sum(row["carrier"] == worst for row in rows)
    country, most = Counter(row["country"] for row in late if row["carrier"] == worst).most_common(1)[0]
    outcome = await outcome_of("delivery_report", folder)
    assert (outcome.ok, outcome.result.exit_reason) == (True, "complete")
    assert slot(outcome, "summary") == (
        f"{worst} is late most: {count} of its {sent} deliveries ({round(100 * count / sent)} %), "
        f"{count} of {len(late)} late ones in all. Most of them went to {country} ({most})."
    )
    counted = re.findall(r"^(\d+)\t(.*)$", slot(outcome, "table"), re.MULTILINE)
    assert counted == [(str(number), carrier) for carrier, number in carriers]


async def test_report_without_late_deliveries_or_without_file(tmp_path: Path) -> None:
    asked = await outcome_of("delivery_report", tmp_path)
    assert (asked.ok, asked.result.exit_reason) == (False, "clarify")
    head = "order,shipped,carrier,country,status\n"
    text = f"{head}1,2026-05-01,Ox,Chad,on time\n"
    outcome = await outcome_of("delivery_report", write(tmp_path, "deliveries.csv", text))
    assert slot(outcome, "summary") == "No delivery was late."


# -- promise_keeper: code over a long text --------------------


def text_of(found: list[Chat]) -> str:
    """The conversations as the file has them."""
    return "".join(f"{chat}\n" for chat in found)


async def test_keeper_finds_every_broken_promise(tmp_path: Path) -> None:
    """The expected answer comes from how the chats were made."""
    found = chats()[:350]
    later = Counter(chat.order for chat in found)
    promised = [chat for chat in found if chat.kept is not None]
    broken = [chat for chat in promised if chat.kept is False and later[chat.order] > 1]
    answer = str((await outcome_of("promise_keeper", tmp_path, material=text_of(found))).answer)
    assert answer.startswith(f"{len(broken)} of {len(promised)} promises were not kept;")
    team = Counter(chat.agent for chat in broken)
    for name, number in team.items():
        assert f"\n{name}: {number} of {sum(chat.agent == name for chat in promised)}." in answer
    for chat in broken:
        assert f"\n- {chat.at:%Y-%m-%d} {chat.agent}, order {chat.order}: " in answer


async def test_keeper_says_when_nothing_was_promised(tmp_path: Path) -> None:
    text = text_of([chat for chat in chats() if chat.kept is None][:20])
    outcome = await outcome_of("promise_keeper", tmp_path, material=text)
    assert outcome.answer == "No line of the team holds a promise, so none was broken."


# -- payments: a person approves --------------------


@pytest.mark.parametrize(
    ("verb", "rest"),
    [
        ("approve", "payment 2: 48000 cents from us to Harbour Realty"),
        ("reject", "rejected"),
        ("edit", "payment 2: 4800 cents from us to Harbour Realty"),
    ],
)
async def test_only_the_payment_to_somebody_new_is_asked(folder: Path, verb: Any, rest: str) -> None:
    asked: list[Request] = []

    def decide(request: Request) -> Decision:
        asked.append(request)
        edited = {"to": "Harbour Realty", "cents": 4800} if verb == "edit" else None
        return Decision(request=request.id, digest=request.digest, decision=verb, arguments=edited, by="ann")

    outcome = await local("payments", folder, decide=decide).run("Pay what is due.")
    assert [one.arguments for one in asked] == [{"to": "Harbour Realty", "cents": 48_000}]
    paid = "payment 1: 1250 cents from us to Paper & Pen"
    assert outcome.answer == f"Paper & Pen: {paid}. Harbour Realty: {rest}."


async def test_without_bills_nothing_is_paid(tmp_path: Path) -> None:
    outcome = await outcome_of("payments", tmp_path)
    assert str(outcome.answer).startswith("Nothing is paid.")
    assert not (tmp_path / "bank.sqlite").exists()


# -- what a model that obeys an injected text can pay with nobody asked --------------------


def paid_unasked(agent: AgentFile, replies: Sequence[Any], *, bounded: bool) -> tuple[int, int]:
    """How many payments it makes with these replies while people reject each one that they are asked about,
    and their sum in cents."""
    if not bounded:
        rules = tuple(rule.model_copy(update={"at_most": None}) for rule in agent.approvals.rules)
        approvals = agent.approvals.model_copy(update={"rules": rules})
        agent = agent.model_copy(update={"approvals": approvals})
    paid: list[int] = []
    (module,) = load_modules(agent.modules)

    def run(params: Any) -> str:
        paid.append(params.cents)
        return "paid"

    tools = [Tool(name=module.TOOL.name, params=module.TOOL.params, run=run, effect="unsafe")]
    patient = agent.model_copy(update={"stuck": None})
    model = ScriptedModel(replies)
    Local(patient, model=model, tools=tools, decide=lambda request: "reject").run_sync("Pay what is due.")
    return len(paid), sum(paid)


@pytest.mark.parametrize(
    ("bounded", "cents", "paid"),
    [(False, 10_000_000, (6, 59_999_985)), (True, 10_000_000, (0, 0)), (True, 1_600, (3, 4_797))],
)
def test_payments_agent_pays_unasked_only_within_its_bound(
    bounded: bool, cents: int, paid: tuple[int, int]
) -> None:
    replies = [
        json.dumps(
            {
                "thought": f"I pay {n}.",
                "action": "transfer",
                "action_input": {"to": "Paper & Pen", "cents": cents - n},
            }
        )
        for n in range(12)
    ]
    assert paid_unasked(load_agent("payments"), replies, bounded=bounded) == paid


@pytest.mark.parametrize(
    ("bounded", "cents", "calls", "paid"),
    [
        pytest.param(False, 1_999, 100, (1_000, 1_999_000), marks=pytest.mark.exhaustive),
        (False, 1_999, 6, (60, 119_940)),
        (True, 1_999, 6, (2, 3_998)),
        (True, 1_000, 6, (5, 5_000)),
    ],
)
def test_agent_of_the_readme_pays_unasked_only_within_its_bound(
    tmp_path: Path, bounded: bool, cents: int, calls: int, paid: tuple[int, int]
) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    files = readme.partition("```sh\n")[2].partition("ratchet run")[0]
    subprocess.run(["sh", "-c", files], cwd=tmp_path, check=True)
    arguments = json.dumps({"to": "Paper & Pen", "cents": cents})
    call = NativeCall(id="", name="pay", arguments=arguments)
    replies = [*[ModelReplied(text="", tool_calls=(call,) * calls)] * 10, "done"]
    assert paid_unasked(load_agent(tmp_path / "bills.yaml"), replies, bounded=bounded) == paid


# -- tools --------------------


def runner(folder: Path, file: str) -> ToolRunner:
    """The tools of an example file."""
    (folder / ".ratchet").mkdir(exist_ok=True)
    settings = settings_on(folder, modules=(str(ROOT / "examples" / "tools" / file),))
    return ToolRunner(load_tools(settings), settings, None)


@pytest.mark.parametrize(
    ("file", "output"), [("word_count.py", "3"), ("compose.py", "a b\nc")], ids=["word_count", "compose"]
)
async def test_pure_example_tool_returns_its_result(tmp_path: Path, file: str, output: str) -> None:
    tool = file.removesuffix(".py")
    result = await runner(tmp_path, file).run_tool(request_for(tool, text="a b\nc"), 1)
    assert (result.output, result.error) == (output, None)


async def test_keyed_tool_acts_once_for_a_key(tmp_path: Path) -> None:
    tools = runner(tmp_path, "outbox.py")
    first = request_for("outbox", to="ann", text="hello")
    other = first.model_copy(update={"key": "another"})
    results = [await tools.run_tool(one, 1) for one in (first, first, other)]
    assert [result.output for result in results] == [
        '{"queued":1,"to":"ann"}', '{"queued":1,"to":"ann"}', '{"queued":2,"to":"ann"}',
    ]  # fmt: skip


async def test_message_that_still_waits_is_removed(tmp_path: Path) -> None:
    tools = runner(tmp_path, "outbox.py")
    request = request_for("outbox", to="ann", text="hello")
    for key in (request.key, "another"):
        await tools.run_tool(request.model_copy(update={"key": key}), 1)
    undo = CompensateInput(tool="outbox", arguments=request.arguments, key=request.key)
    twice = [await tools.compensate_tool(undo, 1) for _ in range(2)]
    never = await tools.compensate_tool(undo.model_copy(update={"key": "never used"}), 1)
    assert [one.ok for one in (*twice, never)] == [True, True, False]
    with closing(sqlite3.connect(tmp_path / "outbox.sqlite")) as outbox:
        assert outbox.execute("SELECT key FROM message").fetchall() == [("another",)]


async def test_bank_knows_whether_a_transfer_happened(tmp_path: Path) -> None:
    tools = runner(tmp_path, "transfer.py")
    request = request_for("transfer", to="ann", cents=1990)
    question = ReconcileInput.model_validate(request.model_dump())
    made = await tools.run_tool(request, 1)
    found = await tools.reconcile_tool(question, 1)
    assert found.result is not None
    assert found.result.output == made.output == "payment 1: 1990 cents from us to ann"


async def test_transfer_that_did_not_happen_cannot_happen_later(tmp_path: Path) -> None:
    tools = runner(tmp_path, "transfer.py")
    request = request_for("transfer", to="ann", cents=1990)
    question = ReconcileInput.model_validate(request.model_dump())
    found = [(await tools.reconcile_tool(question, 1)).outcome for _ in range(2)]
    late = await tools.run_tool(request, 1)
    made_again = await tools.run_tool(request.model_copy(update={"key": f"{request.key}+1"}), 1)
    assert found == ["not_happened"] * 2
    assert (late.error, made_again.error) == ("failed", None)


async def test_transfer_is_paid_back_once(tmp_path: Path) -> None:
    tools = runner(tmp_path, "transfer.py")
    request = request_for("transfer", to="ann", cents=1990)
    undo = CompensateInput(tool="transfer", arguments=request.arguments, key=request.key)
    never = await tools.compensate_tool(undo, 1)
    await tools.run_tool(request, 1)
    back = [await tools.compensate_tool(undo, 1) for _ in range(2)]
    assert (never.ok, [one.text for one in back]) == (False, ["payment 2: 1990 cents from ann to us"] * 2)


def test_every_example_imports_ratchet_alone() -> None:
    files = [*(ROOT / "examples" / "tools").glob("*.py"), *(ROOT / "examples" / "machines").glob("*.py")]
    load_modules([str(file) for file in files])
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    assert not re.search(r"^(?:from|import) (?:activities|workflows|client)\b", text, re.MULTILINE)
