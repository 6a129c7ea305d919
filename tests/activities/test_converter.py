"""The data converter: readable refusals, large payloads in the store, nothing lost on the way."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError

from activities.contracts import ModelRequest
from activities.converter import StrictConverter, data_converter
from activities.store import BlobMissing, BlobStore
from activities.transcript import Message
from workflows.api import AgentTask, EffectsQuery


class Blob(BaseModel):
    """A payload of any size."""

    text: str


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[BlobStore]:
    store = BlobStore(tmp_path / "blobs.db", durable=True)
    yield store
    store.close()


def json_payload(text: str) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=text.encode())


def refused(payload: Payload, wanted: type = AgentTask) -> ApplicationError:
    with pytest.raises(ApplicationError) as caught:
        StrictConverter().from_payloads([payload], [wanted])
    assert (caught.value.type, caught.value.non_retryable) == ("PayloadValidationError", True)
    assert caught.value.__cause__ is None
    return caught.value


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ("{}", "not a valid AgentTask: goal: Field required"),
        ("nonsense", "the whole input: Invalid JSON"),
        ("null", "the whole input: Input should be"),
        ("[1, 2]", "the whole input: Input should be"),
        ('{"goal": "  "}', "goal: Value error, the goal is blank; say what the agent shall do"),
        ('{"goal": "g", "toools": []}', "toools: there is no such field; there are goal, "),
        ('{"goal": "g", "people": {"quorum": 2}}', "people.quorum: there is no such field"),
        (
            '{"goal": "g", "limits": {"model_calls": -1}}',
            "limits.model_calls: Input should be greater than or equal to 0",
        ),
        ('{"goal": "g", "models": {"default": {"temperature": 9}}}', "models.default.temperature: Input"),
    ],
)
def test_input_that_does_not_fit_is_refused_with_field_and_reason(sent: str, said: str) -> None:
    assert said in str(refused(json_payload(sent)))


def test_a_type_that_may_be_left_out_has_its_name() -> None:
    wanted: Any = EffectsQuery | None  # as the SDK gives it, whatever its signature says
    with pytest.raises(ApplicationError) as caught:
        StrictConverter().from_payloads([json_payload('{"stp": 1}')], [wanted])
    assert caught.value.message == (
        "Payload validation failed: not a valid EffectsQuery: "
        "stp: there is no such field; there are step, since"
    )


def test_every_wrong_field_is_named_and_what_was_sent_is_never_repeated() -> None:
    error = refused(json_payload('{"goal": 7, "tools": "sk-secret", "limits": {"tokens": "sk-secret"}}'))
    for field in ("goal: ", "tools: ", "limits.tokens: "):
        assert field in str(error)
    assert "sk-secret" not in str(error)
    assert "sk-secret" not in repr(error.details)
    assert [item["loc"] for item in error.details[0]] == [("goal",), ("tools",), ("limits", "tokens")]


def test_a_flood_of_errors_is_cut() -> None:
    error = refused(json_payload(json.dumps({"goal": "g", "tools": [1] * 500})))
    assert "and 480 more" in str(error)
    assert len(error.details[0]) == 20


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(Payload(metadata={"encoding": b"binary/null"}), id="nothing"),
        pytest.param(Payload(metadata={"encoding": b"binary/plain"}, data=b"bytes"), id="bytes"),
        pytest.param(Payload(metadata={"encoding": b"yaml"}, data=b"goal: x"), id="unknown encoding"),
        pytest.param(Payload(data=b"{}"), id="no encoding"),
    ],
)
def test_an_encoding_that_cannot_give_the_type_is_refused(payload: Payload) -> None:
    assert "Payload validation failed" in str(refused(payload))


def test_raw_values_bytes_and_nothing_pass_where_they_are_wanted() -> None:
    converter = StrictConverter()
    odd = Payload(metadata={"encoding": b"yaml"}, data=b"x")
    (raw,) = converter.from_payloads([odd], [RawValue])
    assert raw.payload == odd
    payloads = converter.to_payloads([b"bytes", None, {"a": 1}])
    assert converter.from_payloads(payloads, [bytes, type(None), dict]) == [b"bytes", None, {"a": 1}]
    assert converter.from_payloads(payloads) == [b"bytes", None, {"a": 1}]


async def encoded(converter: DataConverter, value: Any) -> Payload:
    (payload,) = await converter.encode([value])
    return payload


async def test_small_payloads_stay_readable_in_history(store: BlobStore) -> None:
    converter = data_converter(store)
    assert (await encoded(converter, Blob(text="x" * 16_000))).data.startswith(b'{"text":"xxx')
    assert store.database.rows("SELECT count(*) FROM blobs") == [(0,)]


async def test_large_payloads_leave_a_claim_and_come_back_equal(store: BlobStore) -> None:
    converter = data_converter(store)
    request = ModelRequest(role="r", setup="s", messages=(Message(role="user", content="ä" * 20_000),))
    payload = await encoded(converter, request)
    assert payload.ByteSize() < 1000
    assert await converter.decode([payload], [ModelRequest]) == [request]


async def test_encoding_again_on_replay_adds_nothing(store: BlobStore) -> None:
    converter = data_converter(store)
    first, second = [await encoded(converter, Blob(text="x" * 50_000)) for _ in range(2)]
    assert first == second
    assert store.database.rows("SELECT count(*) FROM blobs") == [(1,)]


async def test_fifty_megabytes_travel(store: BlobStore) -> None:
    converter = data_converter(store)
    blob = Blob(text="0123456789" * 5_000_000)
    payload = await encoded(converter, blob)
    assert payload.ByteSize() < 1000
    assert await converter.decode([payload], [Blob]) == [blob]


async def test_a_lost_blob_is_named(store: BlobStore, tmp_path: Path) -> None:
    payload = await encoded(data_converter(store), Blob(text="x" * 50_000))
    empty = BlobStore(tmp_path / "other.db", durable=True)
    with pytest.raises(BlobMissing, match=r"other\.db has no blob"):
        await data_converter(empty).decode([payload], [Blob])
    empty.close()


async def test_without_a_store_everything_stays_in_the_payload() -> None:
    payload = await encoded(data_converter(None), Blob(text="x" * 50_000))
    assert len(payload.data) > 50_000


@pytest.mark.parametrize("encoding", ["json/protobuf", "binary/protobuf"])
@pytest.mark.parametrize("message", ["temporal.api.common.v1.Payload", "no.such.Message"])
def test_protobuf_where_a_model_is_wanted_is_refused(encoding: str, message: str) -> None:
    metadata = {"encoding": encoding.encode(), "messageType": message.encode()}
    error = refused(Payload(metadata=metadata, data=b"{}" if encoding.startswith("json") else b""))
    assert f"argument 1 has the encoding '{encoding}'; send JSON" in error.message


def test_protobuf_where_it_is_wanted_is_read() -> None:
    sent = StrictConverter().to_payloads([Payload(data=b"x")])
    assert StrictConverter().from_payloads(sent, [Payload]) == [Payload(data=b"x")]
