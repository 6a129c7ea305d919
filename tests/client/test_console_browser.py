"""The console in a real Chromium: what a person does with mouse and keyboard, and what scripts may do."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, async_playwright, expect

from activities.settings import Settings
from client.console.app import serving_console
from client.keys import Signer
from client.sdk.agent import AgentClient
from tests.client.asking import asking, marks, newer, opened
from tests.server.trials import calls, eventually, task
from workflows.people import Approvals, People

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
PATIENCE = 60_000
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium is installed; on Debian: apt install chromium"
)


@pytest.fixture(scope="module")
async def chromium() -> AsyncIterator[Browser]:
    """A browser of Debian's."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield browser
        await browser.close()


@pytest.fixture
async def page(chromium: Browser, agents: AgentClient) -> AsyncIterator[Page]:
    """The console's first page, opened by its link; in the end nothing has gone wrong in it."""
    wrong: list[str] = []
    async with serving_console(agents, Signer("ada"), port=0) as link:
        context = await chromium.new_context()
        context.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        page = await context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if _refused(said.text) else None)
        await page.goto(link)
        yield page
        await context.close()
    assert not wrong


async def press_until_focused(page: Page, key: str, wanted: Locator) -> None:
    """A page hears keys a moment after it is shown."""
    while not await wanted.evaluate("one => one === document.activeElement"):
        await page.keyboard.press(key)


async def test_a_person_approves_with_the_keyboard_alone(
    page: Page, agents: AgentClient, settings: Settings
) -> None:
    assert "token" not in page.url
    run = await agents.start(asking("key-approve", goal="Approve me by keys"))
    request = await opened(agents, run)
    await expect(page.get_by_text("Approve me by keys")).to_be_visible()  # it came by itself
    await press_until_focused(page, "j", page.locator(f'a[href*="{run}"].main'))
    await page.keyboard.press("Enter")
    await press_until_focused(page, "a", page.get_by_role("button", name="Approve", exact=True))
    assert (await agents.requests(run))[0].id == request.id  # the key alone sends nothing
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("region", name="The decision")).to_contain_text("Approved by ada")
    await agents.result(run)
    assert marks(settings, "key-approve") == 1


async def test_each_key_does_what_the_list_of_keys_says(page: Page, agents: AgentClient) -> None:
    run = await agents.start(asking("keys-1", "keys-2"))
    first = await opened(agents, run)
    await agents.decide(run, first, "approve")
    request = await eventually(lambda: newer(agents, run, first))
    await page.goto(f"{_origin(page)}/request?run={run}&id={request.id}")
    await press_until_focused(page, "x", page.get_by_role("button", name="Reject"))
    await page.keyboard.press("e")
    field = page.get_by_role("textbox", name="line")
    await expect(field).to_be_focused()
    await page.keyboard.press("End")
    await page.keyboard.type("gax?")  # in a field they are letters
    await expect(field).to_have_value("keys-2gax?")
    await page.goto(f"{_origin(page)}/run?id={run}")
    steps = [page.get_by_role("article", name=f"Step {number}") for number in (1, 2)]
    await press_until_focused(page, "j", steps[1])
    await page.keyboard.press("k")
    await expect(steps[0]).to_be_focused()
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    await page.keyboard.press("Escape")
    for key, name in (("i", "Inbox"), ("a", "Agents"), ("r", "Runs")):
        await page.keyboard.press("g")
        await page.keyboard.press(key)
        await expect(page.get_by_role("heading", level=1)).to_have_text(name)
        await page.wait_for_load_state()  # before that it hears no keys
    await press_until_focused(page, "/", page.get_by_label("Id begins with"))
    await agents.command(run, "abort")


async def test_choice_that_was_folded_away_counts_for_no_other_button(
    page: Page, agents: AgentClient, settings: Settings
) -> None:
    run = await agents.start(asking("folded", "asked-again"))
    request = await opened(agents, run)
    await page.goto(f"{_origin(page)}/request?run={run}&id={request.id}")
    fold = page.get_by_text("Approve this and later calls, too")
    await fold.click()
    await page.get_by_label("with any arguments").check()
    await fold.click()
    await page.get_by_role("button", name="Approve", exact=True).click()
    await expect(page.get_by_role("region", name="The decision")).to_contain_text("Approved by ada")
    await eventually(lambda: newer(agents, run, request))
    assert marks(settings, "asked-again") == 0
    await agents.command(run, "abort")


@pytest.mark.exhaustive
async def test_a_person_rejects_and_edits(page: Page, agents: AgentClient, settings: Settings) -> None:
    run = await agents.start(asking("click-no", "click-before"))
    request = await opened(agents, run)
    await page.goto(f"{_origin(page)}/request?run={run}&id={request.id}")
    await page.get_by_label("Comment").first.fill("not this one")
    await page.get_by_role("button", name="Reject").click()
    await expect(page.get_by_role("region", name="The decision")).to_contain_text("not this one")
    again = await eventually(lambda: newer(agents, run, request))
    await page.goto(f"{_origin(page)}/request?run={run}&id={again.id}")
    await page.keyboard.press("e")
    await page.get_by_role("textbox", name="line").fill("click-after")
    await page.get_by_role("button", name="Save and call").click()
    await expect(page.get_by_role("region", name="The decision")).to_contain_text("Edited by ada")
    await agents.result(run)
    assert [marks(settings, line) for line in ("click-no", "click-before", "click-after")] == [0, 0, 1]


@pytest.mark.exhaustive
async def test_open_request_says_that_somebody_else_decided_it(page: Page, agents: AgentClient) -> None:
    run = await agents.start(asking("click-other"))
    request = await opened(agents, run)
    await page.goto(f"{_origin(page)}/request?run={run}&id={request.id}")
    await expect(page.get_by_role("button", name="Approve", exact=True)).to_be_visible()
    await agents.decide(run, request, "reject", by="bob")
    await expect(page.get_by_text("It is decided now: rejected by bob.")).to_be_visible()


@pytest.mark.exhaustive
async def test_eight_windows_are_kept_up_to_date(page: Page, agents: AgentClient) -> None:
    """A browser has six connections to one server, and each page that is seen a stream."""
    windows = [page, *[await page.context.new_page() for _ in range(7)]]
    for one in windows[1:]:
        await one.goto(page.url)
    run = await agents.start(asking("eight", goal="Seen in every window"))
    for one in windows:
        await expect(one.get_by_text("Seen in every window")).to_be_visible()
        await expect(one.get_by_text("The console does not answer")).to_be_hidden()
    await agents.command(run, "abort")


@pytest.mark.exhaustive
async def test_each_of_six_windows_forgets_steps_that_were_rolled_back(
    page: Page, agents: AgentClient
) -> None:
    run = await agents.start(asking("forget-a", "forget-b"))
    request = await opened(agents, run)
    await agents.decide(run, request, "approve")
    await eventually(lambda: newer(agents, run, request))
    windows = [page, *[await page.context.new_page() for _ in range(5)]]
    for one in windows:
        await one.goto(f"{_origin(page)}/run?id={run}")
        await expect(one.locator("#step-2")).to_be_visible()
    await page.goto(f"{_origin(page)}/rollback?run={run}&step=1")
    await page.get_by_role("button", name="Roll back").click()
    for one in windows:
        await expect(one.locator("#step-2")).to_be_hidden()
    await agents.command(run, "abort")


async def test_person_follows_run_rolls_it_back_and_aborts_it(page: Page, agents: AgentClient) -> None:
    run = await agents.start(asking("roll-a", "roll-b"))
    request = await opened(agents, run)
    await page.goto(f"{_origin(page)}/run?id={run}")
    machine = page.locator("svg.machine")
    await expect(machine).to_have_attribute("aria-label", "tools: in state EXECUTING_TOOLS")
    await agents.decide(run, request, "approve", by="bob")
    await expect(page.locator("#steps")).to_contain_text("done roll-a")  # nobody has loaded the page again
    await expect(page.get_by_text("bob (claimed)").first).to_be_visible()
    await page.get_by_role("article", name="Step 1").get_by_role("link", name="Roll back to here").click()
    await expect(page.get_by_role("cell", name="roll-a").first).to_be_visible()
    await page.get_by_role("button", name="Roll back").click()
    await expect(page.locator("#side")).to_contain_text("withdrawn")
    await page.get_by_text("Abort…").click()
    await page.get_by_role("button", name="Abort the run").click()
    await expect(page.get_by_role("region", name="Result")).to_contain_text("aborted")


async def test_text_that_looks_like_a_script_never_runs(page: Page, agents: AgentClient) -> None:
    evil = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
    reply = calls(("mark_once", {"line": evil})).model_copy(update={"reply": evil})
    run = await agents.start(
        task(reply, "x", goal=evil, tools=("mark_once",), people=People(), approvals=Approvals())
    )
    request = await opened(agents, run)
    for path in ("/", f"/run?id={run}", f"/run?id={run}&view=log", f"/request?run={run}&id={request.id}"):
        await page.goto(f"{_origin(page)}{path}")
        await expect(page.get_by_text("onerror=").first).to_be_visible()
        # what comes by the stream is put in by the page's script
        await page.wait_for_function("() => performance.getEntriesByType('resource').length > 0")
        assert await page.title() != "taken"
        assert await page.locator("main img, main script").count() == 0
    inline: Any = await page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = \"document.title='taken'\";"
        "document.body.append(s); return document.title; }"
    )
    assert inline != "taken"
    await agents.command(run, "abort")


def _refused(text: str) -> bool:
    """The browser did not do what the console's own pages ask for."""
    return "Content Security" in text and "inline script" not in text


def _origin(page: Page) -> str:
    return "/".join(page.url.split("/")[:4])
