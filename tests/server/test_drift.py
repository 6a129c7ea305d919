"""A machine whose values depend on its process: the sandbox cannot see it, a replay elsewhere does."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.extensions import load_modules
from tests import drifting, forked
from tests.server.conftest import ROOT, TOOLS
from tests.server.trials import FREELY, UNATTENDED, Run, begin, decide, open_request, scripted
from workflows import registry
from workflows.people import People

SOURCE = Path(drifting.__file__).read_text()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The machine's file, which the worker has loaded."""
    file = tmp_path_factory.mktemp("machines") / "drifting.py"
    file.write_text(SOURCE)
    for module in load_modules([str(file)]):
        registry.add_module(module)
    return file


async def begun(client: Client, goal: str, kind: str, people: People) -> Run:
    given = {
        "goal": goal, "machine": "drifting", "options": {"kind": kind}, "tools": ("mark",), "people": people,
        "approvals": FREELY, "models": {"default": scripted("yes")},
    }  # fmt: skip
    return await begin(client, given)


async def verdicts(runs: dict[str, Run], file: Path, folder: Path) -> dict[str, tuple[str, str]]:
    """What `ratchet check` says of these histories in another process, by kind: verdict and reason."""
    names = {}
    for kind, run in runs.items():
        saved = folder / f"{run.id}.json"
        saved.write_text((await run.fetch_history()).to_json())
        names[run.id] = kind
    other = {
        **os.environ, "TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "4711", "RATCHET_DATA_DIR": str(folder),
        "PYTHONPATH": str(ROOT),
        "RATCHET_MODULES": json.dumps([str(file), str(TOOLS)]),
    }  # fmt: skip
    words = ("check", "--json", *(str(folder / f"{name}.json") for name in names))
    _, output, _ = await asyncio.to_thread(forked.spoken, forked.RATCHET, *words, cwd=folder, env=other)
    lines: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines()]
    return {names[line["run"]]: (line["verdict"], line["reason"]) for line in lines}


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(("text", "hash", "random", "folder"), id="some"),
        pytest.param(tuple(drifting.KINDS), id="all", marks=pytest.mark.exhaustive),
    ],
)
async def test_call_that_differs_elsewhere_is_named(
    working: Client, file: Path, tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    runs = {kind: await begun(working, "pay", kind, UNATTENDED) for kind in kinds}
    for run in runs.values():
        await run.result()
    found = await verdicts(runs, file, tmp_path)
    assert found.pop("text") == ("goes on", "")
    assert {kind: verdict for kind, (verdict, _) in found.items()} == dict.fromkeys(found, "breaks")
    assert all("pay#2:1@" in reason for _, reason in found.values()), found


async def test_answer_to_a_question_that_differs_elsewhere_does_not_count(
    working: Client, file: Path, tmp_path: Path
) -> None:
    run = await begun(working, "ask", "local time", People())
    await decide(run, "approve", await open_request(run))
    await run.result()
    ((verdict, _),) = (await verdicts({"ask": run}, file, tmp_path)).values()
    assert verdict == "breaks"


async def test_prompt_may_change_while_a_run_waits(working: Client, file: Path, tmp_path: Path) -> None:
    run = await begun(working, "ask", "text", People())
    await open_request(run)
    newer = tmp_path / "newer.py"
    newer.write_text(SOURCE.replace("Shall we?", "May we?"))
    assert await verdicts({"text": run}, newer, tmp_path) == {"text": ("goes on", "")}
    await run.terminate()


@contextmanager
def edited(file: Path, text: str) -> Iterator[None]:
    """Meanwhile the file has this text."""
    file.write_text(text)
    try:
        yield
    finally:
        file.write_text(SOURCE)


async def test_file_that_is_being_edited_changes_no_run(working: Client, file: Path) -> None:
    with edited(file, "def"):
        run = await begun(working, "ask", "text", People())
        await open_request(run)
    await run.terminate()
