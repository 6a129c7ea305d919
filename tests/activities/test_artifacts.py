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

from activities.artifacts import ArtifactActivities, artifacts_of, value_at
from activities.contracts import Artifact, ArtifactSpec, ToolRequest, ToolResult
from activities.contracts_artifacts import ArtifactRead, ArtifactsRead, ArtifactText, ReadArtifacts
from activities.sqlite import StoreUnavailable
from activities.store import BlobStore
from activities.tool_output import MAX_KEPT_BYTES, Output
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


async def test_half_a_character_pair_in_a_key_does_not_lose_the_result(blobs: BlobStore) -> None:
    """The tool has run: whatever its result looks like, the answer can be written down."""
    raw = '{"\\ud83d": 1, "a": "\\ud83d!", "b": {"\\udc00": 2}}'
    result = await kept(blobs, raw, "a", "b", "c")
    assert await bodies(blobs, result.artifacts) == {"a": "\\ud83d!", "b": '{"\\udc00":2}', "c": None}
    assert result.artifacts[2].error == "the result has no key of this name; it has a, b, \\ud83d"
    assert ToolResult.model_validate_json(result.model_dump_json()) == result


def _deep(levels: int) -> str:
    return "[" * levels + "]" * levels


async def test_a_value_that_is_nested_too_deeply_is_an_artifact_with_an_error(blobs: BlobStore) -> None:
    """Some depths can be read as JSON but not be written again."""
    for levels in (*range(900, 1010), 100_000):
        raw = f'{{"deep": {_deep(levels)}, "flat": 1}}'
        result = await kept(blobs, raw, "deep", "flat")
        found = await bodies(blobs, result.artifacts)
        assert found["deep"] in (_deep(levels), raw, None)
        if found["deep"] is None:
            assert result.artifacts[0].error == "the value is nested too deeply to be written as text"
            assert found["flat"] == "1"


async def test_a_text_that_is_nested_too_deeply_has_no_paths(blobs: BlobStore) -> None:
    for levels in (*range(900, 1010), 100_000):
        digest = await blobs.put(f'{{"deep": {_deep(levels)}}}'.encode())
        (text,) = await read(blobs, (digest, ".deep"), chars=10)
        assert text.text == "[" * 10 or text.problem in (
            "the artifact is no JSON, so there is no path into it",
            "the value is nested too deeply to be written as text",
        )
    assert text.problem == "the artifact is no JSON, so there is no path into it"


async def test_what_is_too_long_to_be_kept_whole_says_so_and_is_cut_between_characters() -> None:
    seen: list[bytes] = []

    async def keep(content: bytes) -> str:
        seen.append(content)
        return "d"

    text = "x" + "é" * (MAX_KEPT_BYTES // 2)
    (artifact,) = await artifacts_of(Output(text, text.encode()), (ArtifactSpec(name="a"),), keep)
    assert (len(seen[0]), seen[0][-2:]) == (MAX_KEPT_BYTES - 1, "é".encode())
    assert (artifact.digest, artifact.bytes) == ("d", MAX_KEPT_BYTES + 1)
    assert artifact.error == "it has 67,108,865 bytes, only the first 67,108,863 were kept"
    raw = Output("bytes", b"\xa9" * (MAX_KEPT_BYTES + 1), is_text=False)
    (artifact,) = await artifacts_of(raw, (ArtifactSpec(name="a"),), keep)
    assert len(seen[1]) == MAX_KEPT_BYTES
    fits = Output("bytes", b"\xa9" * MAX_KEPT_BYTES, is_text=False)
    (artifact,) = await artifacts_of(fits, (ArtifactSpec(name="a"),), keep)
    assert (len(seen[2]), artifact.error) == (MAX_KEPT_BYTES, None)


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


async def test_half_a_character_pair_can_be_read_and_named(blobs: BlobStore) -> None:
    digest = await blobs.put(b'{"a": "\\ud83d!", "\\udc00": 1}')
    found, missing = await read(blobs, (digest, ".a"), (digest, ".b"))
    assert found == ArtifactText(text="\\ud83d!", chars=7)
    assert missing.problem == "there is nothing at '.b': an object with the keys a, \\udc00"


class CountingStore(BlobStore):
    """Counts what is read."""

    gets = 0

    async def get(self, digest: str) -> bytes:
        self.gets += 1
        return await super().get(digest)


async def test_a_body_is_read_once_for_all_its_texts(tmp_path: Path) -> None:
    blobs = CountingStore(tmp_path / "blobs.db", durable=True)
    digest = await blobs.put(b'{"a": 1, "b": 2}')
    found = await read(blobs, (digest, ".a"), (digest, ".b"), (digest, ""))
    assert ([text.text for text in found], blobs.gets) == (["1", "2", '{"a": 1, "b": 2}'], 1)


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
