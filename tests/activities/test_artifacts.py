"""Artifacts: a tool's whole result becomes named bodies, and their texts are read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.contracts import (
    Artifact,
    ArtifactRead,
    ArtifactSpec,
    ArtifactText,
    ReadArtifacts,
    ToolResult,
)
from activities.store.blobs import BlobStore
from activities.tools import Tool
from activities.tools.artifacts import (
    ArtifactActivities,
    read_artifacts,
)
from tests.activities.toolkit import FullDisk, Memory, raising, request_for, returning, runner_of


async def result_with(tool: Tool[Any], blobs: Memory | None, *names: str, **spec: str) -> ToolResult:
    """The result of a call that should produce artifacts of these names."""
    specs = tuple(ArtifactSpec(name=name, **spec) for name in names)
    request = request_for("probe").model_copy(update={"artifacts": specs})
    return await runner_of(tool, blobs=blobs, output_cap=50).run_tool(request)


async def kept(value: object, *names: str, **spec: str) -> tuple[tuple[Artifact, ...], dict[str, str | None]]:
    """The artifacts of a tool that returns the value, and their bodies by name."""
    blobs = Memory()
    result = await result_with(returning(value), blobs, *names, **spec)
    assert ToolResult.model_validate_json(result.model_dump_json()) == result
    bodies = {a.name: blobs.get(a.digest).decode() if a.digest else None for a in result.artifacts}
    return result.artifacts, bodies


async def test_object_is_kept_key_by_key() -> None:
    artifacts, bodies = await kept({"text": "héllo", "rows": [{"a": 1}], "more": 1}, "rows", "text")
    assert bodies == {"rows": '[{"a":1}]', "text": "héllo"}
    assert [artifact.bytes for artifact in artifacts] == [9, 6]


@pytest.mark.parametrize(
    ("value", "body"),
    [
        pytest.param("plain words", "plain words", id="text"),
        pytest.param([1, 2], "[1,2]", id="list"),
        pytest.param({"other": 1}, '{"other":1}', id="object without such a key"),
        pytest.param(0, "0", id="plain value"),
        pytest.param(False, "false", id="false"),
    ],
)
async def test_any_other_result_is_the_first_artifact(value: object, body: str) -> None:
    artifacts, bodies = await kept(value, "all", "rest", type="json", kind="search")
    assert bodies == {"all": body, "rest": None}
    first, rest = artifacts
    assert (first.type, first.kind, first.preview, first.error) == ("json", "search", body, None)
    assert rest.error == "the result is one value; it was kept under the first name"


async def test_missing_key_is_an_error_and_null_is_not() -> None:
    """Spec 5.9: an artifact whose value is None is not mappable."""
    artifacts, _ = await kept({"a": 1, "b": None}, "a", "b", "c")
    assert [artifact.digest is None for artifact in artifacts] == [False, True, True]
    errors = [artifact.error for artifact in artifacts]
    assert errors == [None, None, "the result has no key of this name; it has a, b"]
    ((nothing,), _) = await kept(None, "nothing")
    assert (nothing.digest, nothing.error) == (None, None)


async def test_without_names_or_success_nothing_is_kept() -> None:
    assert (await kept({"a": 1}))[0] == ()
    result = await result_with(raising(ValueError("no")), Memory(), "a")
    assert (result.error, result.artifacts) == ("failed", ())


@pytest.mark.parametrize("blobs", [None, FullDisk()])
async def test_result_that_cannot_be_kept_is_not_lost(blobs: Memory | None) -> None:
    result = await result_with(returning("x"), blobs, "a")
    assert (result.output, result.error, result.artifacts[0].digest) == ("x", None, None)
    assert "kept" in (result.artifacts[0].error or "")


async def test_surrogate_in_a_key_does_not_lose_the_result() -> None:
    raw = '{"\\ud83d": 1, "a": "\\ud83d!", "b": {"\\udc00": 2}}'
    artifacts, bodies = await kept(raw, "a", "b", "c")
    assert bodies == {"a": "\\ud83d!", "b": '{"\\udc00":2}', "c": None}
    assert (artifacts[2].error or "").endswith("it has a, b, \\ud83d")


# -- reading --------------------


def read(blobs: Memory | BlobStore, *reads: tuple[str, str], chars: int = 100) -> tuple[ArtifactText, ...]:
    return read_artifacts(blobs, wanted(*reads, chars=chars)).texts


def wanted(*reads: tuple[str, str], chars: int = 100) -> ReadArtifacts:
    return ReadArtifacts(reads=tuple(ArtifactRead(digest=d, path=p) for d, p in reads), chars=chars)


def test_texts_are_read_by_path() -> None:
    blobs = Memory()
    body = {"rows": [{"name": "Ann", "n": 1.5}], "a key": True, "none": None}
    digest = blobs.put(json.dumps(body).encode())
    paths = [".rows[0].name", ".rows[-1]", '["a key"]', ".rows[0].n"]
    found = read(blobs, *((digest, path) for path in paths))
    assert [text.text for text in found] == ["Ann", '{"name":"Ann","n":1.5}', "true", "1.5"]


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        (".nosuch", "there is nothing at '.nosuch': an object with the keys rows, none"),
        (".rows[3]", "there is nothing at '.rows[3]': a list of 1 items"),
        (".rows.name", "there is nothing at '.rows.name': a list of 1 items"),
        (".rows[0][0]", "there is nothing at '.rows[0][0]': a plain value"),
        (".rows[", "the path '.rows[' cannot be read at character 6"),
        (".none", "the value at '.none' is null"),
    ],
)
def test_path_that_leads_nowhere_says_why(path: str, problem: str) -> None:
    blobs = Memory()
    assert read(blobs, (blobs.put(b'{"rows": ["a"], "none": null}'), path))[0].problem == problem


def test_text_has_no_paths_and_bytes_no_text() -> None:
    blobs = Memory()
    text, raw = blobs.put(b"plain"), blobs.put(b"\xff\xfe")
    found = read(blobs, (text, ".a"), (raw, ""), (raw, ".a"))
    assert found[1] == ArtifactText(binary=True)
    assert found[0].problem
    assert found[2].problem


async def test_lost_or_damaged_body_is_problem_of_its_own_text(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    good, bad = blobs.put(b"good"), blobs.put(b"bad")
    blobs.objects.write(f"{bad[:2]}/{bad[2:]}", b"evil")
    request = wanted(("0" * 64, ""), (good, ""), (bad, ""))
    lost, fine, changed = (
        await ActivityEnvironment().run(ArtifactActivities(blobs).read_artifacts, request)
    ).texts
    assert fine == ArtifactText(text="good", chars=4)
    assert "has no blob" in (lost.problem or "")
    assert "have changed" in (changed.problem or "")


async def test_unavailable_store_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file where a folder should be")
    activities = ArtifactActivities(BlobStore(tmp_path / "file"))
    with pytest.raises(ApplicationError) as raised:
        await ActivityEnvironment().run(activities.read_artifacts, wanted(("0" * 64, "")))
    assert raised.value.type == "Transient"
