"""The console: deciding, commanding and reading in a browser; and what other pages and texts cannot do."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, MutableMapping
from contextlib import chdir
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
from temporalio.client import Client, WorkflowExecutionDescription

from activities.contracts import JsonObject, MachineNamed
from activities.settings import Settings
from client.console import agents as agent_pages
from client.console import inbox, runs
from client.console.app import build
from client.console.blast_radius import Radii, RadiusQuestion, question_of_run
from client.console.diagram import drawing
from client.console.forms import arguments_in, fields_of
from client.console.page import Console
from client.console.run_views import RunView, RunViews
from client.errors import Unreachable
from client.keys import Signer, new_key, signer
from client.proof.digests import digests_of
from client.runs.reader import RunLog
from client.sdk.agent import AgentClient
from client.server.connection import Connection
from tests.client.asking import asking, bounded, marks, newer, opened, talk
from tests.client.conftest import ROOT
from tests.server.conftest import real_server
from tests.server.trials import PATIENCE, calls, eventually, task
from workflows import registry
from workflows.api import TASK_QUEUE, AgentSpec, AgentTask, RunStatus
from workflows.certificate import Certificate
from workflows.kernel.labels import Labels
from workflows.kernel.log import Record
from workflows.people import ApprovalRule, Approvals, AtMost, Group, People, Request, RequestSettings

HOST = "localhost:8260"
TRANSFER = ROOT / "examples" / "tools" / "transfer.py"
ORIGIN = {"origin": f"http://{HOST}"}
EVIL = '"><script>alert(1)</script><img src=x onerror=alert(2)>\u202e'


class Page(HTMLParser):
    """A page as a browser reads it: its elements, its forms, its text outside of fields."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.forms: list[dict[str, str]] = []
        self.text = ""
        self._area: str | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.elements.append((tag, found))
        if tag == "form":
            self.forms.append({"": "/" + found.get("action", "")})
        elif tag in ("input", "textarea") and self.forms and found.get("name"):
            if found.get("type") in ("radio", "checkbox") and "checked" not in found:
                return
            self.forms[-1][found["name"]] = found.get("value", "")
            self._area = found["name"] if tag == "textarea" else None

    def handle_data(self, data: str) -> None:
        if self._area is None:
            self.text += data
        else:  # what a person edits is left as it is
            self.forms[-1][self._area] += data.removeprefix("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._area = None


class Outline(HTMLParser):
    """What a screen reader goes by: the levels of a page's headings, and what it can name of the rest."""

    NAMED_BY_TEXT = ("a", "button", "h1", "h2", "h3", "h4", "label", "summary")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.levels: list[int] = []
        self.unnamed: list[str] = []
        self._open: list[tuple[str, str, list[str]]] = []
        """Elements that have a name by their text: tag, as they are written, the text so far."""
        self._labelled = set[str]()
        self._fields: dict[str, str] = {}
        """Fields as they are written, with their id."""
        self.feed(html)
        self.unnamed += [field for field, name in self._fields.items() if name not in self._labelled]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found, written = {name: value or "" for name, value in attrs}, self.get_starttag_text() or ""
        if tag in self.NAMED_BY_TEXT:
            self._open.append((tag, written, [found.get("aria-label", "")]))
        is_field = tag in ("textarea", "select") or (tag == "input" and found.get("type") != "hidden")
        if is_field and not any(tag == "label" for tag, _, _ in self._open):
            self._fields[written] = found.get("id", "")
        if tag == "label":
            self._labelled.add(found.get("for", ""))
        if re.fullmatch(r"h\d", tag):
            self.levels.append(int(tag[1]))

    def handle_data(self, data: str) -> None:
        for _, _, texts in self._open:
            texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.NAMED_BY_TEXT:
            _, written, texts = self._open.pop()
            if not "".join(texts).strip():
                self.unnamed.append(written)


class Browser:
    """A browser that has opened the printed link."""

    def __init__(self, agents: AgentClient, by: str | Signer = "ada") -> None:
        self.guard = build(Console(agents, by if isinstance(by, Signer) else Signer(by)))
        transport = httpx2.ASGITransport(app=self.guard)
        self.http = httpx2.AsyncClient(transport=transport, base_url=f"http://{HOST}{self.guard.place}")

    async def login(self) -> httpx2.Response:
        return await self.http.get("/login", params={"token": self.guard.token})

    async def get(self, path: str, **query: Any) -> Page:
        answer = await self.http.get(path, params=query or None)
        assert answer.status_code == 200, answer.text
        return Page(answer.text)

    async def shows(self, path: str, text: str) -> bool:
        """The page has the text by now."""
        return text in (await self.get(path)).text

    async def post(self, path: str, **data: Any) -> httpx2.Response:
        return await self.http.post(path, data=data, headers=ORIGIN)

    async def said(self, part: str, text: str, run: str, request: Request) -> str:
        """What an open page of a request says in a part of it, once the text is in it."""
        found, over = "", asyncio.Event()

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal found
            if text.encode() in message.get("body", b""):
                found = Page(json.loads(message["body"].decode().removeprefix("data: "))[part][1]).text
                over.set()

        await self.stream("/live/request", send, over, run=run, id=request.id, digest=request.digest)
        return found.strip()

    async def stream(self, path: str, send: Any, over: asyncio.Event, **query: str) -> None:
        """A window with a stream, until the window is closed."""

        async def receive() -> dict[str, Any]:
            await over.wait()
            return {"type": "http.disconnect"}

        cookie = "; ".join(f"{name}={value}" for name, value in self.http.cookies.items())
        scope = {
            "type": "http",
            "method": "GET",
            "path": f"{self.guard.place}{path}",
            "query_string": urlencode(query).encode(),
            "headers": [(b"host", HOST.encode()), (b"cookie", cookie.encode())],
        }
        async with asyncio.timeout(PATIENCE):
            await self.guard(scope, receive, send)

    async def decide(self, run: str, name: str, verb: str, **more: str) -> httpx2.Response:
        """Press a button of a request's page."""
        page = await self.get("/request", run=run, id=name)
        forms = [one for one in page.forms if one[""] == "/decide"]
        form = dict(forms[-1 if verb == "edit" else 0])
        return await self.post(**{**form, "path": form.pop(""), "verb": verb, **more})


@pytest.fixture
async def browser(agents: AgentClient) -> AsyncIterator[Browser]:
    """One that is logged in."""
    found = Browser(agents)
    await found.login()
    yield found
    await found.http.aclose()


@pytest.fixture(scope="module")
async def ended(agents: AgentClient) -> str:
    """A run that is over."""
    run = await agents.start(talk())
    await agents.result(run)
    return run


# -- deciding --------------------


async def test_approved_in_the_console_is_approved_by_that_person(
    browser: Browser, agents: AgentClient, settings: Settings
) -> None:
    run = await agents.start(asking("web-approve"))
    request = await opened(agents, run)
    await eventually(lambda: browser.shows("/", "web-approve"))
    answer = await browser.decide(run, request.id, "approve", text="as agreed")
    assert answer.status_code == 303
    page = await browser.get(answer.headers["location"])
    assert "Approved by ada (claimed)" in re.sub(r"\s+", " ", page.text)
    assert "as agreed" in page.text
    result = await agents.result(run)
    assert [(one.outcome, one.by, one.text) for one in result.decisions] == [
        ("approved", ("ada",), "as agreed")
    ]
    assert marks(settings, "web-approve") == 1
    await eventually(lambda: browser.shows("/", "Decided lately"))


async def test_rejected_and_edited_calls(browser: Browser, agents: AgentClient, settings: Settings) -> None:
    run = await agents.start(asking("web-no", "web-before"))
    request = await opened(agents, run)
    await browser.decide(run, request.id, "reject", text="far too much")
    again = await eventually(lambda: newer(agents, run, request))
    assert "far too much" in (await browser.get("/request", run=run, id=again.id)).text
    refused = await browser.decide(run, again.id, "edit", **{"arg.seconds": "soon", "arg.line": "kept"})
    assert refused.status_code == 400
    assert "expected a number" in refused.text
    assert any(form.get("arg.line") == "kept" for form in Page(refused.text).forms)
    same = await browser.decide(run, again.id, "edit")
    assert (same.status_code, "the arguments that the model gave" in same.text) == (409, True)
    await browser.decide(run, again.id, "edit", **{"arg.line": "web-\u00e4fter"})
    await agents.result(run)
    assert [marks(settings, line) for line in ("web-no", "web-before", "web-\u00e4fter")] == [0, 0, 1]


async def test_edit_form_knows_tools_of_run_not_of_own_process(
    working: Client, agents: AgentClient, settings: Settings
) -> None:
    elsewhere = settings.model_copy(update={"modules": ()})
    browser = Browser(AgentClient(Connection(working, elsewhere, "the test server", queues=(TASK_QUEUE,))))
    await browser.login()
    run = await agents.start(asking("web-elsewhere", labels=Labels(input=("private",))))
    request = await opened(agents, run)
    page = await browser.get("/request", run=run, id=request.id)
    assert "private text from what the run began with" in page.text
    fields = re.sub(r"\s+", " ", page.text)
    assert "seconds optional; number to wait before" in fields
    assert "until optional; a file that ends the call" in fields
    assert "optional; " not in re.sub(r"optional; (number|a file|the log|the model)", "", fields)
    assert "Seconds, until the last record" in (await browser.get("/run", id=run)).text
    await browser.decide(run, request.id, "reject")
    await browser.http.aclose()


async def test_later_calls_are_approved_only_by_an_explicit_choice(
    browser: Browser, agents: AgentClient, settings: Settings
) -> None:
    run = await agents.start(asking("web-first", "web-second", "web-third"))
    request = await opened(agents, run)
    await browser.decide(run, request.id, "approve")
    again = await eventually(lambda: newer(agents, run, request))
    await browser.decide(run, again.id, "approve_later", later="any")
    await agents.result(run)
    assert marks(settings, "web-third") == 1


def test_drawing_counts_the_state_in_which_a_run_begins() -> None:
    path = [("PROMPTING", "EXECUTING_TOOLS"), ("EXECUTING_TOOLS", "PROMPTING"), ("PROMPTING", "DONE")]
    drawn = drawing(registry.machine("tools"), "DONE", path)
    assert "<title>PROMPTING, entered 2 times</title>" in drawn
    assert "<title>EXECUTING_TOOLS, entered once</title>" in drawn
    assert "<title>INIT</title>" in drawn


def test_name_of_an_argument_comes_back_as_it_was() -> None:
    """A browser sends CR LF for each line break, also in names; a page shows controls by their number."""
    given: JsonObject = {"a\nb": 1, "c\x01\u202e": "x", "d\ud800": True, 'e"': None, "\u00e9\\n": "y"}
    fields = fields_of(given, None)
    assert all(field.key.isascii() and field.key.isprintable() for field in fields)
    assert arguments_in(fields, {field.key: field.text for field in fields}) == given


async def test_a_browser_with_many_windows_keeps_connections_for_pages(browser: Browser) -> None:
    """It has six for one server: four streams stay open, every other one ends after its first event."""
    windows = {asyncio.create_task(browser.http.get("/live/inbox")) for _ in range(7)}
    ended = set[asyncio.Task[httpx2.Response]]()
    async with asyncio.timeout(PATIENCE):
        while len(ended) < 3:
            done, windows = await asyncio.wait(windows, return_when=asyncio.FIRST_COMPLETED)
            ended |= done
    for one in ended:
        assert re.fullmatch(r"data: .*\n\nretry: 5000\n\n", one.result().text)
    assert len(windows) == 4
    for one in windows:
        one.cancel()
    await asyncio.wait(windows)


async def test_windows_that_were_closed_take_no_turns_from_others(browser: Browser) -> None:
    """They went away while an event was on its way to them."""

    async def closed() -> None:
        shown = asyncio.Event()

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.body":
                shown.set()
                await asyncio.Event().wait()

        await browser.stream("/live/inbox", send, shown)

    await asyncio.gather(*(closed() for _ in range(7)))
    await test_a_browser_with_many_windows_keeps_connections_for_pages(browser)


async def test_double_click_decides_once(browser: Browser, agents: AgentClient) -> None:
    run = await agents.start(
        asking(
            "web-twice", people=People(groups={"two": Group(quorum=2)}, requests=RequestSettings(group="two"))
        )
    )
    request = await opened(agents, run)
    page = await browser.get("/request", run=run, id=request.id)
    form = {**next(one for one in page.forms if one[""] == "/decide"), "verb": "approve"}
    path = form.pop("")
    for _ in range(2):
        assert (await browser.post(path, **form)).status_code == 303
    assert len((await agents.requests(run))[0].votes) == 1
    await eventually(lambda: browser.shows("/", "2 of anybody (two)"))
    await agents.command(run, "abort")


async def test_page_says_that_the_request_was_decided_elsewhere(
    browser: Browser, agents: AgentClient, settings: Settings
) -> None:
    """While it is open, and once more if its button is pressed all the same."""
    run = await agents.start(asking("web-late", "web-later"))
    request = await opened(agents, run)
    page = await browser.get("/request", run=run, id=request.id)
    form = {**next(one for one in page.forms if one[""] == "/decide"), "verb": "approve"}
    await agents.decide(run, request, "reject", by="bob")
    said = await browser.said("news", "decided", run, request)
    assert said == "It is decided now: rejected by bob. Show it"
    answer = await browser.post(form.pop(""), **form)
    assert answer.status_code == 409
    assert "Rejected by bob (claimed)" in re.sub(r"\s+", " ", Page(answer.text).text)
    await agents.command(run, "abort")
    assert marks(settings, "web-late") == 0


async def test_decision_is_signed_with_the_persons_key(agents: AgentClient, tmp_path: Path) -> None:
    key = new_key(tmp_path / "bea.pem")
    people = People(groups={"board": Group(keys={"bea": key})}, requests=RequestSettings(group="board"))
    run = await agents.start(asking("web-signed", people=people))
    request = await opened(agents, run)
    stranger, bea = Browser(agents, "bea"), Browser(agents, signer("bea", tmp_path / "bea.pem"))
    for browser in (stranger, bea):
        await browser.login()
    assert (await stranger.decide(run, request.id, "approve")).status_code == 409
    answer = await bea.decide(run, request.id, "approve")
    assert "bea (verified)" in re.sub(r"<[^>]*>", "", (await bea.http.get(answer.headers["location"])).text)
    assert (await agents.result(run)).decisions[0].verified


async def test_limit_is_topped_up(browser: Browser, agents: AgentClient) -> None:
    people = People(on_limit="ask")
    run = await agents.start(talk(people=people, limits={"model_calls": 1}))
    request = await opened(agents, run)
    assert (await browser.decide(run, request.id, "topup", amount="much")).status_code == 400
    await browser.decide(run, request.id, "topup", amount="5")
    assert (await agents.result(run)).exit_reason != "limit"


# -- screen readers --------------------


async def test_every_page_has_an_outline_and_names_for_its_controls(
    browser: Browser, agents: AgentClient
) -> None:
    """One first heading, no level left out; each field has a label, and each button and link a text."""
    run = await agents.start(asking("web-outline-1", "web-outline-2"))
    request = await opened(agents, run)
    await agents.decide(run, request, "approve")
    again = await eventually(lambda: newer(agents, run, request))
    await eventually(lambda: browser.shows("/", "web-outline-2"))
    pages: list[tuple[str, dict[str, Any]]] = [
        ("/", {}),
        ("/request", {"run": run, "id": request.id}),
        ("/request", {"run": run, "id": again.id}),
        ("/runs", {}),
        ("/run", {"id": run}),
        ("/run", {"id": run, "view": "log"}),
        ("/rollback", {"run": run, "step": 1}),
        ("/fork", {"run": run, "step": 1}),
        ("/compare", {"one": run, "other": run}),
        ("/agents", {}),
        ("/agent", {"name": "log_detective"}),
        ("/nothing", {}),
    ]
    routes = {
        path for room in (inbox, runs, agent_pages) for method, path, _ in room.ROUTES if method == "GET"
    }
    assert {path for path, _ in pages} - routes == {"/nothing"}
    assert all(path.startswith("/live/") for path in routes - {path for path, _ in pages})
    for path, query in pages:
        outline = Outline((await browser.http.get(path, params=query)).text)
        skipped = [pair for pair in pairwise(outline.levels) if pair[1] > pair[0] + 1]
        assert (outline.levels[0], outline.levels.count(1), skipped) == (1, 1, []), (path, outline.levels)
        assert not outline.unnamed, path
    await agents.command(run, "abort")


# -- commands, and the past --------------------


async def test_commands_reach_the_run_under_the_persons_name(browser: Browser, agents: AgentClient) -> None:
    run = await agents.start(asking("web-command"))
    await opened(agents, run)
    for name, more in (
        ("pause", {}),
        ("steer", {"text": "Look at March."}),
        ("limits", {"cap.model_calls": "50"}),
        ("resume", {}),
        ("abort", {"text": "enough"}),
    ):
        answer = await browser.post("/command", run=run, command=name, **more)
        assert answer.status_code == 303, answer.text
    assert (await agents.result(run)).exit_reason == "aborted"
    by = {record.event: record.by for record in await agents.records(run)}
    assert {by[event] for event in ("Paused", "Steered", "LimitsSet", "Resumed")} == {"ada (claimed)"}
    over = await browser.post("/command", run=run, command="pause")
    assert over.status_code == 409
    assert "is over" in over.text


async def test_rollback_shows_what_was_done_and_refuses_when_more_was(
    browser: Browser, agents: AgentClient
) -> None:
    run = await agents.start(asking("web-roll-1", "web-roll-2", "web-roll-3"))
    request = await opened(agents, run)
    await agents.decide(run, request, "approve")
    request = await eventually(lambda: newer(agents, run, request))
    page = await browser.get("/rollback", run=run, step=1)
    assert "web-roll-1" in page.text
    assert "begins after the model" in page.text
    form = next(one for one in page.forms if one[""] == "/rollback")
    path = form.pop("")
    await agents.decide(run, request, "approve")
    await eventually(lambda: newer(agents, run, request))
    again = await browser.post(path, **form)
    assert "rollback?" in again.headers["location"]
    page = await browser.get(again.headers["location"])
    assert "More was done meanwhile" in page.text
    form = next(one for one in page.forms if one[""] == "/rollback")
    done = await browser.post(form.pop(""), **form)
    assert urlsplit(done.headers["location"]).path == "run"
    assert (await agents.status(run)).branch == 1
    await agents.command(run, "abort")


async def test_rollback_of_a_fork_shows_what_its_source_did(browser: Browser, agents: AgentClient) -> None:
    source = await agents.start(asking("web-source", "web-later"))
    request = await opened(agents, source)
    await agents.decide(source, request, "approve")
    await eventually(lambda: newer(agents, source, request))
    run = await agents.fork(source, 2)
    await opened(agents, run)
    page = await browser.get("/rollback", run=run, step=1)
    text = " ".join(page.text.split())
    for shown in ("web-source", f"not from here: run {source} made it", "A rollback undoes none of this"):
        assert shown in text
    assert "Nothing was changed outside" not in text
    for one in (source, run):
        await agents.command(one, "abort")


async def test_fork_and_comparison(browser: Browser, agents: AgentClient) -> None:
    run = await agents.start(talk())
    await agents.result(run)
    page = await browser.get("/fork", run=run, step=1)
    form = next(one for one in page.forms if one[""] == "/fork")
    answer = await browser.post(form.pop(""), **form)
    (made,) = parse_qs(urlsplit(answer.headers["location"]).query)["id"]
    assert (await agents.result(made)).origin is not None
    assert [one.by for one in await agents.records(made) if one.event == "Forked"] == ["ada (claimed)"]
    assert "common origin" in (await browser.get("/compare", one=run, other=made)).text


async def test_end_of_a_run_offers_to_go_on_behind_it(browser: Browser, agents: AgentClient) -> None:
    run = await agents.start(talk())
    steps = (await agents.result(run)).step
    assert "Go on in a new run" in (await browser.get("/run", id=run)).text
    page = await browser.get("/fork", run=run, step=steps + 1)
    assert "Go on behind the end" in page.text
    form = next(one for one in page.forms if one[""] == "/fork")
    answer = await browser.post(form.pop(""), **{**form, "text": "And then?"})
    (made,) = parse_qs(urlsplit(answer.headers["location"]).query)["id"]
    await agents.result(made)
    assert [one.reason for one in await agents.records(made) if one.event == "Steered"] == ["And then?"]


async def test_list_and_page_show_that_a_goal_was_not_reached(browser: Browser, agents: AgentClient) -> None:
    run = await agents.start(task("no thought", machine="react"))
    result = await agents.result(run)
    assert (result.ok, result.exit_reason) == (False, "fatal_error")

    async def shown(path: str) -> bool:
        html = (await browser.http.get(path, params={"id": run})).text
        return '<span class="mark bad">fatal error</span>' in html

    await eventually(lambda: shown("/runs"))  # the server lists an end a moment after it
    assert await shown("/run")


async def test_run_page_shows_steps_machine_log_and_spending(browser: Browser, agents: AgentClient) -> None:
    run = await agents.start(talk(limits={"model_calls": 30}))
    await agents.result(run)
    page = await browser.get("/run", id=run)
    text = re.sub(r"\s+", " ", page.text)
    for shown in ("Step 1", "mark", "Resultdone one", "of 30", "both", "Seconds, people's included"):
        assert shown in text
    assert any(tag == "svg" and "machine" in found.get("class", "") for tag, found in page.elements)
    log = (await browser.get("/run", id=run, view="log")).text
    for shown in ("EXECUTING_TOOLS", '→ mark(line="one")', "← done one", "both"):
        assert shown in log
    assert run[:12] in (await browser.get("/runs", id=run)).text


class CountingReads(AgentClient):
    """Counts how often a run is described."""

    reads = 0

    async def description(self, run: str) -> WorkflowExecutionDescription:
        self.reads += 1
        return await super().description(run)


async def test_run_page_reads_its_run_once(agents: AgentClient, ended: str) -> None:
    counting = CountingReads(agents.connection)
    browser = Browser(counting)
    await browser.login()
    await browser.get("/run", id=ended)  # its log and result are kept
    counting.reads = 0
    await browser.get("/run", id=ended)
    await browser.http.aclose()
    assert counting.reads == 1


async def test_run_page_says_what_differs_from_the_certificate(
    browser: Browser, agents: AgentClient, ended: str
) -> None:
    named = talk()
    found = digests_of(MachineNamed(name="tools", version=None, options=named.options), ())
    assert found is not None
    subject = found.model_dump(exclude={"ratchet", "options"})
    proof = Certificate(
        **subject | {"tools": ()},
        digest="0" * 64,
        complete=True,
        ratchet="other",
        options={found.options: {}},
    )
    run = await agents.start(talk(certificate=proof))
    await agents.result(run)
    text = re.sub(r"\s+", " ", (await browser.get("/run", id=run)).text)
    assert "Certificate000000000000..., and what runs differs: the code of Ratchet; tool mark" in text
    assert "Certificate" not in (await browser.get("/run", id=ended)).text


async def test_output_of_a_run_is_shown_as_data(browser: Browser, agents: AgentClient) -> None:
    output = {"properties": {"sum": {"type": "integer"}}}
    run = await agents.start(task("It is three.", 'It is {"sum": 3}.', output=output))
    assert (await agents.result(run)).output == {"sum": 3}
    page = await browser.get("/run", id=run)
    assert "AnswerRefused" in (await browser.get("/run", id=run, view="log")).text
    assert re.search(r'\{\s*"sum": 3\s*\}', page.text)


async def test_bound_is_shown_with_what_remains_and_on_request(browser: Browser, agents: AgentClient) -> None:
    run = await agents.start(bounded("one", "two", "three", calls=2))
    request = await opened(agents, run)
    page = re.sub(r"\s+", " ", (await browser.get("/run", id=run)).text)
    assert "2 of 2 calls 0 left" in page
    asked = await browser.get("/request", run=run, id=request.id)
    assert "rules.0 allows at most 2 calls unasked; 2 made" in asked.text
    await browser.decide(run, request.id, "reject")
    await agents.result(run)
    page = re.sub(r"\s+", " ", (await browser.get("/run", id=run)).text)
    assert "2 of 2 calls 0 left" in page


async def test_runs_are_filtered_and_come_in_pages(browser: Browser, agents: AgentClient) -> None:
    prefix = "web-page-"
    for number in range(55):
        await agents.start(
            talk(name=f"pager{number % 2}"), f"{prefix}{number:02}", task_queue="nobody polls it"
        )

    async def listed() -> bool:
        lines, _ = await agents.list_page(f"WorkflowId STARTS_WITH '{prefix}'", 100)
        return len(lines) == 55

    await eventually(listed)
    page = await browser.get("/runs", id=prefix)
    assert len([1 for tag, one in page.elements if tag == "a" and one.get("class") == "main"]) == 50
    more = next(one["href"] for tag, one in page.elements if one.get("rel") == "next")
    rest = await browser.get(more)
    assert len([1 for tag, one in rest.elements if tag == "a" and one.get("class") == "main"]) == 5
    found = await browser.get("/runs", id=prefix, agent="pager1")
    assert len([1 for tag, one in found.elements if tag == "a" and one.get("class") == "main"]) == 27
    odd = await browser.get("/runs", id="' OR WorkflowType = 'AgentWorkflow", agent="' OR '1'='1")
    assert "No run is like that" in odd.text
    for number in range(55):
        await agents.temporal.get_workflow_handle(f"{prefix}{number:02}").terminate()


async def test_agent_is_started_with_a_goal(browser: Browser, agents: AgentClient) -> None:
    page = await browser.get("/agents")
    assert "log_detective" in page.text
    assert "No worker here has loaded transfer.py" in page.text
    blank = await browser.post("/agents", agent="log_detective", goal=" ")
    assert blank.status_code == 400
    answer = await browser.post("/agents", agent="log_detective", goal="Which fails?")
    (run,) = parse_qs(urlsplit(answer.headers["location"]).query)["id"]
    assert (await agents.describe(run)).goal == "Which fails?"
    await agents.command(run, "abort")
    for name in ("/etc/passwd", "../../etc/passwd", "payments"):  # payments: its module is not loaded
        assert (await browser.post("/agents", agent=name, goal="x")).status_code == 400


async def test_agents_page_executes_no_module(browser: Browser, tmp_path: Path) -> None:
    """Nor does what a person asks of an agent whose module no worker here has loaded."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    (tmp_path / "agent.yaml").write_text("machine: tools\nmodules: [evil.py]\noutput: Refund\n")
    with chdir(tmp_path):
        listed = await browser.get("/agents")
        assert "No worker here has loaded evil.py" in listed.text
        assert (await browser.http.get("/agent", params={"name": "agent.yaml"})).status_code == 400
        assert (await browser.post("/agents", agent="agent.yaml", goal="x")).status_code == 400
    assert not (tmp_path / "executed").exists()


async def test_agents_page_says_what_it_can_do_with_nobody_asked(
    agents: AgentClient, settings: Settings, temporal: Client
) -> None:
    pytest.importorskip("z3")
    here = settings.model_copy(update={"modules": (str(TRANSFER),)})
    browser = Browser(AgentClient(Connection(temporal, here, "the test server")))
    await browser.login()
    listed = await browser.get("/agents")
    assert any(one.get("href") == "agent?name=payments" for _, one in listed.elements)
    page = await browser.get("/agent", name="payments")
    assert "at most 6 calls of tools in one run" in page.text
    for cell in (
        "nobody is asked",
        "at most 3 calls, cents at most 5000 in all",
        'transfer(to="Paper & Pen", cents=5000)',
    ):
        assert cell in page.text
    nothing = await browser.get("/agent", name="log_detective")
    assert "No call of an unsafe or keyed tool passes without a person" in nothing.text
    assert (await browser.http.get("/agent", params={"name": "no such"})).status_code == 400
    await browser.http.aclose()


@pytest.mark.parametrize(("given", "rule", "counts"), [
    ({"standing_approval": {}}, "effects.unsafe", True), ({}, "effects.unsafe", False),
    ({}, "tools.pay", True),
])  # fmt: skip
def test_standing_approvals_count_for_what_may_pass_unasked(
    given: JsonObject, rule: str, counts: bool
) -> None:
    """Also a standing approval that names no arguments."""
    about = {"request": "r1", "kind": "approval", "tool": "pay"}
    place: dict[str, Any] = {"machine": "tools", "state": "act", "by": "kernel"}
    records = (
        Record(seq=0, event="Requested", about={**about, "rule": rule}, **place),
        Record(seq=1, event="Decided", about={**about, "outcome": "approved", **given}, **place),
    )
    now = RunStatus(agent="a", machine="tools", machine_version="1", state="act", step=1)
    approvals = Approvals(tools={"pay": "first_time"})
    view = RunView("run", None, records, now, task=AgentTask(goal="x", machine="tools", approvals=approvals))
    asked = question_of_run(view, "pay", {}, ())
    assert asked is not None
    assert asked.run is not None
    assert asked.run.approved == (("r1",) if counts else ())


async def test_what_the_solver_has_found_is_kept() -> None:
    pytest.importorskip("z3")
    answers, question = Radii(), RadiusQuestion(agent=AgentSpec(), modules=(), specs=())
    assert answers.answer_if_known(question) is None
    found = await answers.answer(question)
    assert answers.answer_if_known(question) is found is await answers.answer(question)


async def test_what_could_not_be_answered_is_asked_again(tmp_path: Path) -> None:
    """The machine's file is broken, then mended."""
    pytest.importorskip("z3")
    file = tmp_path / "odd.py"
    file.write_text("oops")
    answers, question = Radii(), RadiusQuestion(agent=AgentSpec(), modules=(str(file),), specs=())
    assert "oops" in (await answers.answer(question)).problem
    file.write_text("")
    assert not (await answers.answer(question)).problem


async def test_questions_about_where_a_run_was_do_not_queue(tmp_path: Path) -> None:
    """A machine's file that hangs would hold up those behind it for a minute each."""
    pytest.importorskip("z3")
    file = tmp_path / "slow.py"
    file.write_text("import time; time.sleep(3600)")
    answers = Radii()
    for line in ("one", "two", "three"):
        old = RadiusQuestion(agent=AgentSpec(), modules=(str(file),), specs=(), about=line)
        assert answers.answer_if_known(old) is None
        await asyncio.sleep(0)
        answers.drop(old)
    async with asyncio.timeout(30):
        await answers.answer(RadiusQuestion(agent=AgentSpec(), modules=(), specs=()))


async def test_open_request_says_what_run_could_do_without_person(
    browser: Browser, agents: AgentClient
) -> None:
    """By what is left of the bound, and nothing more once it is used up."""
    pytest.importorskip("z3")
    never = ApprovalRule(arguments={"line": {"const": "one"}}, ask="never", at_most=AtMost(calls=2))
    approvals = Approvals(rules=(never,))
    run = await agents.start(asking("one", "asks", "one", "asks again", approvals=approvals))
    request = await opened(agents, run)
    said = await browser.said("alone", "Without", run, request)
    assert said.startswith("Without you, at most 1 more call of mark_once could pass, ")
    assert 'such as mark_once(line="one", ' in said
    await browser.decide(run, request.id, "reject")
    later = await eventually(lambda: newer(agents, run, request))
    said = await browser.said("alone", "Without", run, later)
    assert said == "Without you, no further call of mark_once would pass."
    await agents.command(run, "abort")


async def test_console_without_a_worker_shows_what_waits_and_sends_decisions(
    settings: Settings, tmp_path: Path
) -> None:
    from worker import build_worker

    own = settings.model_copy(update={"data_dir": tmp_path / "data"})
    async with real_server(own) as temporal:
        agents = AgentClient(Connection(temporal, own, "a server without a worker"))
        async with build_worker(temporal, own):
            run = await agents.start(asking("web-alone"))
            ended = await agents.start(asking("web-over"))
            request = await opened(agents, run)
            decided = await opened(agents, ended)
            await agents.decide(ended, decided, "reject", "not that", by="bob")
            await agents.result(ended)
        await eventually(lambda: _no_worker(agents))
        browser = Browser(agents)
        await browser.login()
        assert "web-alone" in (await browser.get("/")).text
        assert ended[:10] in (await browser.get("/runs")).text
        assert "Step 1" in (await browser.get("/run", id=ended)).text
        assert "Step 1" in (await browser.get("/run", id=run)).text
        closed = await browser.http.get("/request", params={"run": ended, "id": decided.id})
        led = (await browser.get(closed.headers["location"])).text
        assert "The log says what r1 asked" in led
        assert "rejected" in led
        unknown = await browser.http.get("/request", params={"run": run, "id": "r9"})
        assert "is not among those that its memo names" in unknown.text
        answer = await browser.decide(run, request.id, "approve")
        assert "no worker" in (await browser.get(answer.headers["location"])).text
        async with build_worker(temporal, own):
            assert [one.by for one in (await agents.result(run)).decisions] == [("ada",)]


async def _no_worker(agents: AgentClient) -> bool:
    return not await agents.has_worker()


# -- what others cannot do --------------------

PAGES = (
    "/",
    "/runs",
    "/agents",
    "/compare",
    "/run?id=x",
    "/request?run=x&id=r1",
    "/live/inbox",
    "/fork?run=x",
)
WRITES = ("/decide", "/command", "/rollback", "/fork", "/agents")


async def test_nothing_is_shown_or_done_without_the_link(agents: AgentClient) -> None:
    browser = Browser(agents)
    cookie = {"cookie": "ratchet-console=forged; other=1"}
    for path in PAGES:
        for headers in ({}, cookie):
            answer = await browser.http.get(path, headers=headers)
            assert answer.status_code == 401
            assert "Inbox" not in answer.text
    for path in WRITES:
        assert (await browser.http.post(path, headers={**ORIGIN, **cookie})).status_code == 401
    for token in ("", "x", browser.guard.token[:-1], f"{browser.guard.token}x", "\u00fc"):
        answer = await browser.http.get("/login", params={"token": token})
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers


async def test_link_gives_session_hidden_from_scripts_and_other_pages(agents: AgentClient) -> None:
    browser = Browser(agents)
    answer = await browser.login()
    assert answer.status_code == 303
    assert answer.headers["location"] == f"{browser.guard.place}/"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert browser.guard.token.lower() not in cookie
    assert "secure" not in cookie
    for proxies in ("https", "https, http"):
        proxied = await browser.http.get(
            "/login", params={"token": browser.guard.token}, headers={"x-forwarded-proto": proxies}
        )
        assert "secure" in proxied.headers["set-cookie"].lower()


async def test_cookie_reaches_no_other_port_and_opens_only_secret_place(
    browser: Browser,
) -> None:
    for path in PAGES:
        elsewhere = browser.http.build_request("GET", f"http://localhost:9999{path}")
        assert "cookie" not in elsewhere.headers
    cookie = {"cookie": "; ".join(f"{name}={value}" for name, value in browser.http.cookies.items())}
    outside = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=browser.guard), base_url=f"http://{HOST}")
    async with outside:
        for path in PAGES:
            assert (await outside.get(path, headers=cookie)).status_code == 401
            assert (await outside.get(f"/{'x' * 22}{path}", headers=cookie)).status_code == 401
        for path in WRITES:
            assert (await outside.post(path, headers={**ORIGIN, **cookie})).status_code == 401
    assert (await browser.http.get("/", headers=cookie)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"host": "evil.example"}, id="rebound name"),
        pytest.param({"host": f"{HOST}.evil.example"}, id="name that begins alike"),
        pytest.param({"origin": "http://evil.example"}, id="other origin"),
        pytest.param({"origin": "http://localhost:9999"}, id="other port"),
        pytest.param({"origin": "null"}, id="no origin of its own"),
        pytest.param({**ORIGIN, "sec-fetch-site": "cross-site"}, id="cross-site fetch"),
        pytest.param({**ORIGIN, "sec-fetch-site": "same-site"}, id="another port of this name"),
    ],
)
async def test_other_pages_can_neither_read_nor_write(browser: Browser, headers: dict[str, str]) -> None:
    for path in PAGES:
        assert (await browser.http.get(path, headers=headers)).status_code == 403
    for path in WRITES:
        assert (await browser.http.post(path, headers=headers)).status_code == 403


async def test_write_that_names_no_page_is_refused(browser: Browser) -> None:
    for path in WRITES:
        assert (await browser.http.post(path)).status_code == 403
    assert (await browser.http.request("DELETE", "/runs", headers=ORIGIN)).status_code == 405


@pytest.mark.parametrize("path", ["/nothing", "/run?id=x", "/agent?name=x", "/runs/", "/a/b/c", "/a%2Fb"])
async def test_links_of_error_pages_stay_in_the_secret_place(browser: Browser, path: str) -> None:
    answer = await browser.http.get(path)
    assert answer.status_code in (400, 404)
    page = Page(answer.text)
    links = [(one["href"], answer.url.join(one["href"]).path) for tag, one in page.elements if tag == "a"]
    places = {place for href, place in links if not href.startswith("#")}
    assert places == {f"{browser.guard.place}{at}" for at in ("/", "/runs", "/agents")}
    assert "/agents" not in page.text, "nobody can follow that"


async def test_every_answer_forbids_scripts_frames_and_caches(browser: Browser) -> None:
    for path in ("/", "/nothing", "/static/console.css", "/run?id=nobody", "/login"):
        headers = (await browser.http.get(path)).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"


async def test_forged_ids_and_digests_decide_nothing(browser: Browser, agents: AgentClient) -> None:
    one, other = [await agents.start(asking(name)) for name in ("web-forge-1", "web-forge-2")]
    first, second = [await opened(agents, run) for run in (one, other)]
    good = {"run": one, "id": first.id, "digest": first.digest, "verb": "approve"}
    for wrong in (
        {"digest": second.digest},
        {"digest": ""},
        {"run": other},
        {"id": "r9"},
        {"id": "../r1"},
        {"run": "nobody"},
        {"verb": "topup", "amount": "5"},
        {"verb": "delete"},
        {"verb": ""},
    ):
        answer = await browser.post("/decide", **{**good, **wrong})
        assert answer.status_code in (400, 404, 409), wrong
    for run, request in ((one, first), (other, second)):
        assert (await agents.requests(run))[0] == request
        await agents.command(run, "abort")


LONG, HUGE = "x" * 5000, "9" * 5000


ODD_ADDRESSES = [
    *(f"/runs?page={token}" for token in ("AAAA", "!", "A", "e30=", "%ED%A0%80", "\u00fc", HUGE)),
    *(f"/runs?{name}={text}" for name in ("id", "agent", "exit") for text in (LONG, "%00", "%5C", "%27")),
    "/runs?progress=odd&since=odd",
    *(f"/run?id={run}" for run in (LONG, "%00", "a%0Ab", "%ED%A0%80", "%2F", "{run}%2F", "..")),
    *(f"/run?id={{run}}&view=log&before={number}" for number in ("x", "-1", HUGE, "%D9%A3", "%00")),
    "/run?id={run}&view=odd&all=odd&note=odd",
    *(f"/request?run={{run}}&id={name}" for name in (LONG, "%00", "%ED%A0%80", "r0", "")),
    *(f"/request?run={run}&id=r1" for run in (LONG, "%00", "%ED%A0%80", "")),
    *(f"/fork?run={{run}}&step={step}" for step in ("x", "-1", HUGE, "7")),
    *(f"/rollback?run={{run}}&step={step}" for step in ("x", "-1", HUGE, "7")),
    *(f"/{page}?run={run}&step=1" for page in ("fork", "rollback") for run in (LONG, "%00")),
    *(f"/compare?one={{run}}&other={run}" for run in (LONG, "%00", "%ED%A0%80", "%27", "nobody")),
    "/static/%00", f"/static/{LONG}", "/static/../app.py",
]  # fmt: skip


class Interrupted(AgentClient):
    """Its first read of a log fails."""

    is_first = True

    async def log(self, run: str, since: int = 0, *, full: bool = False, partial: bool = False) -> RunLog:
        is_first, self.is_first = self.is_first, False
        if is_first:
            raise Unreachable("the server does not answer")
        return await super().log(run, since, full=full, partial=partial)


async def test_log_of_finished_run_is_read_again_after_failure(agents: AgentClient, ended: str) -> None:
    views = RunViews(Interrupted(agents.connection))
    view = await views.view(ended)
    assert (view.records, view.problem) == ((), "the server does not answer")
    assert view.result
    view = await views.view(ended)
    assert [record.seq for record in view.records] == [*range(len(view.records))]
    assert len(view.records) > 3
    assert not view.problem


async def test_odd_address_is_answered_without_error_of_the_console(browser: Browser, ended: str) -> None:
    for address in ODD_ADDRESSES:
        answer = await browser.http.get(address.replace("{run}", ended))
        assert answer.status_code < 500, (address[:60], answer.text)


async def test_odd_field_is_answered_without_error_of_the_console(browser: Browser, ended: str) -> None:
    for path, fields in (
        ("/command", {"command": "pause"}),
        ("/command", {"command": "limits", "cap.model_calls": HUGE}),
        ("/command", {"command": "limits", "cap.cost_usd": "nan"}),
        ("/rollback", {"step": HUGE}),
        ("/fork", {"step": HUGE}),
        ("/decide", {"id": LONG, "verb": "approve", "digest": LONG}),
        ("/agents", {"agent": "\x00\r\n", "goal": LONG}),
    ):
        for run in (ended, LONG, "\x00", ""):
            answer = await browser.post(path, **{"run": run, **fields})
            assert answer.status_code < 500, (path, fields, run[:20], answer.text)


async def test_script_in_any_text_stays_text(
    browser: Browser, agents: AgentClient, settings: Settings
) -> None:
    """Goal, thought, arguments, results, comments, a person's and an agent's names: shown, never run."""
    reply = calls(("mark_once", {"line": EVIL, "text": EVIL}))
    reply = reply.model_copy(update={"reply": f"thinking {EVIL}"})
    given = task(
        reply,
        f"answer {EVIL}",
        goal=f"goal {EVIL}",
        tools=("mark_once",),
        people=People(),
        approvals=Approvals(),
    )
    run = await agents.start(given, f"web-script-{EVIL[:3]}")
    request = await opened(agents, run)
    paths: list[tuple[str, dict[str, Any]]] = [
        ("/", {}),
        ("/runs", {"id": run}),
        ("/run", {"id": run}),
        ("/request", {"run": run, "id": request.id}),
    ]
    pages = [await browser.get(path, **query) for path, query in paths]
    refused = await browser.decide(run, request.id, "edit", text=EVIL, **{"arg.seconds": EVIL})
    pages.append(Page(refused.text))
    await agents.decide(run, request, "approve", EVIL, by='<b>"eve"</b>')
    await agents.result(run)
    paths += [
        ("/run", {"id": run, "view": "log"}),
        ("/fork", {"run": run, "step": 1}),
        ("/compare", {"one": run, "other": run}),
    ]
    pages += [await browser.get(path, **query) for path, query in paths]
    for page in pages:
        assert [found for tag, found in page.elements if tag == "script"] == [
            {"src": "/static/console.js", "defer": ""}
        ]
        assert not any(tag in ("img", "b", "iframe") for tag, _ in page.elements)
        assert not any(name.startswith("on") for _, found in page.elements for name in found)
        assert "\u202e" not in page.text
        assert not any(found.get("href", "").partition("?")[0].count(":") for _, found in page.elements)
    assert "⟨U+202E⟩" in pages[-1].text


def test_text_with_carriage_returns_keeps_its_value() -> None:
    """A browser sends other ends of lines than it was given."""
    fields = fields_of({"text": "a\rb\r\nc"}, {"properties": {"text": {"type": "string"}}})
    assert [field.control for field in fields] == ["long"]
    assert arguments_in(fields, {"arg.text": "a\r\nb\r\nc"}) == {"text": "a\rb\r\nc"}
    assert arguments_in(fields, {"arg.text": "a\r\nd"}) == {"text": "a\nd"}
