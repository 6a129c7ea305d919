"""Artifacts: how a tool's whole result becomes named bodies, and how their texts are read again."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.artifacts import ArtifactActivities, value_at
from activities.contracts import Artifact, ArtifactSpec, ToolRequest, ToolResult
from activities.contracts_artifacts import ArtifactRead, ArtifactsRead, ArtifactText, ReadArtifacts
from activities.sqlite import StoreUnavailable
from activities.store import BlobStore
from tests.activities.toolkit import activities_of, environment, raising, returning


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs.db", durable=True)


async def kept(blobs: BlobStore | None, value: object, *names: str, **spec: str) -> ToolResult:
    """The result of a tool that returns the value, with artifacts of these names."""
    specs = tuple(ArtifactSpec(name=name, **spec) for name in names)
    request = ToolRequest(id="1", tool="probe", arguments={}, key="k", artifacts=specs)
    activities = activities_of(returning(value), output_cap=50, keep_whole=blobs.put if blobs else None)
    return await environment().run(activities.call_tool, request)


async def bodies(blobs: BlobStore, artifacts: tuple[Artifact, ...]) -> dict[str, str | None]:
    return {a.name: (await blobs.get(a.digest)).decode() if a.digest else None for a in artifacts}


async def test_an_object_is_kept_key_by_key(blobs: BlobStore) -> None:
    result = await kept(blobs, {"text": "héllo", "rows": [{"a": 1}], "more": 1}, "rows", "text")
    assert await bodies(blobs, result.artifacts) == {"rows": '[{"a":1}]', "text": "héllo"}
    assert [a.bytes for a in result.artifacts] == [9, 6]


@pytest.mark.parametrize(
    ("value", "body"),
    [
        pytest.param("plain words", "plain words", id="text"),
        pytest.param([1, 2], "[1,2]", id="a list"),
        pytest.param({"other": 1}, '{"other":1}', id="an object without such a key"),
        pytest.param(0, "0", id="a bare value"),
        pytest.param(False, "false", id="a false one"),
    ],
)
async def test_any_other_result_is_kept_as_the_first_artifact(
    blobs: BlobStore, value: object, body: str
) -> None:
    result = await kept(blobs, value, "all", "rest", type="json", kind="search")
    assert await bodies(blobs, result.artifacts) == {"all": body, "rest": None}
    first, rest = result.artifacts
    assert (first.type, first.kind, first.preview, first.error) == ("json", "search", body, None)
    assert rest.error == "the result is one value; it was kept under the first name"


async def test_a_key_that_is_missing_is_an_artifact_with_an_error(blobs: BlobStore) -> None:
    result = await kept(blobs, {"a": 1, "b": None}, "a", "b", "c")
    assert [a.digest is None for a in result.artifacts] == [False, True, True]
    assert [a.error for a in result.artifacts] == [
        None,
        None,
        "the result has no key of this name; it has a, b",
    ]


async def test_a_null_has_no_value(blobs: BlobStore) -> None:
    """Spec 5.9: an artifact whose value is None is not mappable."""
    (nothing,) = (await kept(blobs, None, "nothing")).artifacts
    assert (nothing.digest, nothing.error) == (None, None)


async def test_the_whole_is_kept_and_the_preview_is_short(blobs: BlobStore) -> None:
    long = "x" * 5000
    result = await kept(blobs, long, "long")
    assert len(result.output) < 200
    assert await bodies(blobs, result.artifacts) == {"long": long}
    assert len(result.artifacts[0].preview) == 200


async def test_without_names_nothing_is_kept_twice(blobs: BlobStore) -> None:
    assert (await kept(blobs, {"a": 1})).artifacts == ()


async def test_a_failing_tool_gives_no_artifacts(blobs: BlobStore) -> None:
    activities = activities_of(raising(ValueError("no")), keep_whole=blobs.put)
    request = ToolRequest(id="1", tool="probe", arguments={}, key="k", artifacts=(ArtifactSpec(name="a"),))
    result = await environment().run(activities.call_tool, request)
    assert (result.error, result.artifacts) == ("failed", ())


async def test_a_result_that_cannot_be_kept_is_not_lost() -> None:
    async def full(content: bytes) -> str:
        raise StoreUnavailable("no space")

    assert (await kept(None, "x", "a")).artifacts[0].error == (
        "it was not kept: this worker has no durable store"
    )
    activities = activities_of(returning("x"), keep_whole=full)
    request = ToolRequest(id="1", tool="probe", arguments={}, key="k", artifacts=(ArtifactSpec(name="a"),))
    result = await environment().run(activities.call_tool, request)
    assert (result.output, result.artifacts[0].error) == ("x", "it could not be kept: StoreUnavailable")


# -- reading --------------------


async def read(blobs: BlobStore, *reads: tuple[str, str], chars: int = 100) -> tuple[ArtifactText, ...]:
    wanted = ReadArtifacts(reads=tuple(ArtifactRead(digest=d, path=p) for d, p in reads), chars=chars)
    answer: ArtifactsRead = await ActivityEnvironment().run(ArtifactActivities(blobs).read_artifacts, wanted)
    return answer.texts


async def test_texts_are_read_by_path(blobs: BlobStore) -> None:
    body = {"rows": [{"name": "Ann", "n": 1.5}], "a key": True, "none": None}
    digest = await blobs.put(json.dumps(body).encode())
    paths = [".rows[0].name", ".rows[-1]", '["a key"]', ".rows[0].n"]
    found = await read(blobs, *((digest, path) for path in paths))
    assert [text.text for text in found] == ["Ann", '{"name":"Ann","n":1.5}', "true", "1.5"]


async def test_a_body_without_a_path_is_read_as_it_is_and_cut(blobs: BlobStore) -> None:
    digest = await blobs.put("é".encode() * 30)
    assert await read(blobs, (digest, ""), chars=10) == (ArtifactText(text="é" * 10, chars=30),)


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
async def test_a_path_that_leads_nowhere_says_why(blobs: BlobStore, path: str, problem: str) -> None:
    digest = await blobs.put(b'{"rows": ["a"], "none": null}')
    assert (await read(blobs, (digest, path)))[0].problem == problem


async def test_a_text_has_no_paths_and_bytes_no_text(blobs: BlobStore) -> None:
    text, raw = await blobs.put(b"plain"), await blobs.put(b"\xff\xfe")
    found = await read(blobs, (text, ".a"), (raw, ""), (raw, ".a"))
    assert found[0].problem == "the artifact is no JSON, so there is no path into it"
    assert found[1] == ArtifactText(binary=True)
    assert found[2].problem


async def test_a_lost_or_changed_body_is_a_problem_of_its_own_text(blobs: BlobStore) -> None:
    good, bad = await blobs.put(b"good"), await blobs.put(b"bad")
    with blobs.database.transaction() as connection:
        connection.execute("UPDATE blobs SET content=? WHERE digest=?", (b"evil", bad))
    lost, fine, changed = await read(blobs, ("0" * 64, ""), (good, ""), (bad, ""))
    assert "has no blob" in (lost.problem or "")
    assert fine == ArtifactText(text="good", chars=4)
    assert "have changed" in (changed.problem or "")


async def test_a_store_that_is_busy_is_tried_again(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "no" / "folder" / "blobs.db", durable=True)
    (tmp_path / "no").write_text("a file where a folder should be")
    with pytest.raises(ApplicationError) as raised:
        await read(blobs, ("0" * 64, ""))
    assert raised.value.type == "Transient"


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(VALUES, st.text(alphabet='.[]"0a\\ -1', max_size=12) | st.text(max_size=12))
def test_any_path_into_any_value_leads_somewhere_or_says_why(value: Any, path: str) -> None:
    with suppress(ValueError):
        value_at(value, path)


@given(VALUES, st.lists(st.text(max_size=3) | st.integers(0, 2), max_size=4))
def test_a_path_in_brackets_leads_where_its_steps_lead(value: Any, steps: list[Any]) -> None:
    expected = value
    for step in steps:
        fits = isinstance(expected, dict if isinstance(step, str) else list)
        if not fits or (step not in expected if isinstance(step, str) else step >= len(expected)):
            return
        expected = expected[step]
    path = "".join(f"[{json.dumps(step)}]" for step in steps)
    assert value_at(value, path) == expected
