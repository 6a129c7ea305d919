"""The example `invoice_checker` on its own data and on changed data: a changed input changes the answer."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from activities.contracts import CallModel, CallTools, Setup, ToolResult, ToolsReturned
from activities.provider import ProviderCall
from activities.providers.scripted import ScriptedProvider
from activities.tool import ToolActivities
from activities.toolbox import Toolbox
from client.choose import Choice
from tests.activities.toolkit import called, settings_on
from workflows.kernel.design import Brief, Parts
from workflows.kernel.machine import Exit
from workflows.kernel.step import advance, start
from workflows.registry import design

ROOT = Path(__file__).resolve().parents[2]
DATA = "examples/data/invoices"


async def checked(folder: Path) -> Exit:
    """Run the example on the data in `folder`: the workflow's loop, with its real tools."""
    agent, _ = Choice(agent=str(ROOT / "examples/agents/invoice_checker.yaml")).finish()
    settings = settings_on(folder)
    toolbox = Toolbox.load(settings)
    tools, provider = ToolActivities(toolbox, settings, None), ScriptedProvider()
    script = tuple(r.model_copy(update={"delay_seconds": 0}) for r in agent.models["default"].script)
    setup = Setup(model=agent.models["default"].model_copy(update={"script": script}))
    made = design(agent.machine)
    knobs = made.options.model_validate(agent.options)
    specs = tuple(spec for spec in toolbox.specs if spec.name in agent.tools)
    machine = made.build(knobs, Parts())
    brief = Brief("Is it charged as agreed?", "trace", agent.instructions, specs)
    step = start(machine, made.begin(brief, knobs), now=0)
    for now in itertools.count(1):
        effect = step.effect
        if isinstance(effect, CallModel):
            reply = await provider.complete(setup, effect.transcript, ProviderCall())
            step = advance(machine, step, reply, now=now)
        elif isinstance(effect, CallTools):
            results: list[ToolResult] = [await called(tools, r.tool, **r.arguments) for r in effect.runs]
            step = advance(machine, step, ToolsReturned(results=tuple(results)), now=now)
        else:
            break
    assert step.exit is not None
    return step.exit


@pytest.fixture
def invoices(tmp_path: Path) -> Path:
    """A copy of the example's data."""
    shutil.copytree(ROOT / DATA, tmp_path / DATA)
    return tmp_path


def change(folder: Path, name: str, old: str, new: str) -> None:
    """Change a line of the data."""
    path = folder / DATA / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


INVOICE, PRICES = "invoice_2026-117.csv", "prices_2026.csv"


async def test_the_example_finds_both_deviations_of_its_invoice(invoices: Path) -> None:
    ended = await checked(invoices)
    assert (ended.reason, ended.ok, ended.error) == ("stop", True, None)
    assert ended.answer == (
        "Two lines of invoice_2026-117 differ from the agreed prices: HINGE-90, 36 pieces at 9.90 instead of "
        "9.50, and SEAL-12, 120 pieces at 1.05 instead of 0.95. Charged minus agreed is 26.4 in all."
    )


@pytest.mark.parametrize(("changes", "words"), [
    pytest.param(
        [(INVOICE, "SEAL-12,120,1.05", "SEAL-12,120,0.95")],
        "One line of invoice_2026-117 differs from the agreed prices: HINGE-90, 36 pieces at 9.90 instead of "
        "9.50. Charged minus agreed is 14.4.",
        id="one deviation",
    ),
    pytest.param(
        [(PRICES, "HINGE-90,9.50", "HINGE-90,9.90"), (PRICES, "SEAL-12,0.95", "SEAL-12,1.05")],
        "All lines of invoice_2026-117 are charged as agreed.",
        id="none",
    ),
    pytest.param(
        [(INVOICE, "BOLT-08,400,0.18", "BOLT-08,400,0.17"), (INVOICE, "SEAL-12,120,1.05", "SEAL-12,9,0.95")],
        "BOLT-08, 400 pieces at 0.17 instead of 0.18, and HINGE-90, 36 pieces at 9.90 instead of 9.50. "
        "Charged minus agreed is 10.4 in all.",
        id="one of two too low",
    ),
    pytest.param(
        [(PRICES, "WASHER-8,0.04", "WASHER-8,0.03")],
        "More than two lines of invoice_2026-117 differ",
        id="more than two",
    ),
    pytest.param(
        [(PRICES, "LATCH-2,14.50\n", "")],
        "I cannot check it",
        id="an article without a price",
    ),
])  # fmt: skip
async def test_a_changed_input_changes_the_answer(
    invoices: Path, changes: list[tuple[str, str, str]], words: str
) -> None:
    for one in changes:
        change(invoices, *one)
    assert words in str((await checked(invoices)).answer)


async def test_without_an_invoice_it_says_so(invoices: Path) -> None:
    (invoices / DATA / INVOICE).unlink()
    assert "there is no invoice" in str((await checked(invoices)).answer)
