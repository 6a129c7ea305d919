"""The data converter: readable refusals, large payloads in the store, nothing lost on the way."""

from __future__ import annotations

import base64
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError

from activities.contracts import Message, ModelInput, ModelSpec, ToolResult
from activities.store.blobs import BlobMissing, BlobStore, StoreError
from activities.store.converter import StrictConverter, data_converter
from activities.store.encryption import KeyMissing, Keys
from activities.store.secret import StoreSecret


class Text(BaseModel):
    """A payload of any size."""

    text: str


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


def storing(folder: Path, *secrets: str, keys: Keys | None = None) -> DataConverter:
    """A converter that keeps large payloads in this folder."""
    return data_converter((BlobStore(folder), StoreSecret(folder, [*map(SecretStr, secrets)])), keys)


def count(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def json_payload(text: str) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=text.encode())


def refused(payload: Payload, wanted: Any = ModelSpec) -> ApplicationError:
    with pytest.raises(ApplicationError) as caught:
        StrictConverter().from_payloads([payload], [wanted])
    assert (caught.value.type, caught.value.non_retryable) == ("PayloadValidationError", True)
    assert caught.value.__cause__ is None
    return caught.value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nonsense", "not a valid ModelSpec: the whole: Invalid JSON"),
        ("null", "the whole: expected an object, got null"),
        ("[1, 2]", "the whole: expected"),
        ('{"name": ""}', "name: "),
        ('{"nme": "m"}', "nme: unknown key; the fields are provider, name, "),
        ('{"price": {"input": 2}}', "price.input: unknown key"),
        ('{"temperature": 9}', "temperature: expected a number less than or equal to 2"),
        ('{"script": [{"reply": 1, "delay_seconds": -1}]}', "script.0.delay_seconds: expected"),
    ],
)
def test_unfit_input_names_field_and_reason(text: str, problem: str) -> None:
    assert problem in str(refused(json_payload(text)))


def test_every_wrong_field_is_named_and_no_value_repeated() -> None:
    error = refused(
        json_payload('{"name": 7, "seed": "sk-secret", "price": {"input_per_million": "sk-secret"}}')
    )
    for field in ("name: ", "seed: ", "price.input_per_million: "):
        assert field in str(error)
    assert "sk-secret" not in str(error)
    assert "sk-secret" not in repr(error.details)
    assert [item["loc"] for item in error.details[0]][:2] == [("name",), ("seed",)]


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(Payload(metadata={"encoding": b"binary/null"}), id="nothing"),
        pytest.param(Payload(metadata={"encoding": b"binary/plain"}, data=b"bytes"), id="bytes"),
        pytest.param(Payload(metadata={"encoding": b"yaml"}, data=b"name: x"), id="unknown encoding"),
        pytest.param(Payload(data=b"{}"), id="no encoding"),
        pytest.param(Payload(metadata={"encoding": b"json/protobuf", "messageType": b"x"}), id="json proto"),
        pytest.param(Payload(metadata={"encoding": b"binary/protobuf", "messageType": b"x"}), id="protobuf"),
    ],
)  # fmt: skip
def test_unfit_encoding_is_refused(payload: Payload) -> None:
    assert "Payload validation failed" in str(refused(payload))


def test_raw_values_bytes_nothing_and_protobuf_pass_where_wanted() -> None:
    converter = StrictConverter()
    odd = Payload(metadata={"encoding": b"yaml"}, data=b"x")
    (raw,) = converter.from_payloads([odd], [RawValue])
    assert raw.payload == odd
    payloads = converter.to_payloads([b"bytes", None, {"a": 1}])
    assert converter.from_payloads(payloads, [bytes, type(None), dict]) == [b"bytes", None, {"a": 1}]
    assert converter.from_payloads(payloads) == [b"bytes", None, {"a": 1}]
    assert converter.from_payloads(converter.to_payloads([odd]), [Payload]) == [odd]


async def encoded(converter: DataConverter, value: Any) -> Payload:
    (payload,) = await converter.encode([value])
    return payload


async def test_small_payload_stays_readable_in_history(folder: Path) -> None:
    payload = await encoded(storing(folder), Text(text="x" * 16_000))
    assert payload.data.startswith(b'{"text":"xxx')
    assert count(folder) == 0


async def test_large_payload_leaves_a_claim(folder: Path) -> None:
    converter = storing(folder)
    request = ModelInput(role="r", setup="s", messages=(Message(role="user", content="ä" * 20_000),))
    payload = await encoded(converter, request)
    assert payload.ByteSize() < 1000
    assert await converter.decode([payload], [ModelInput]) == [request]


async def test_encoding_again_on_replay_adds_nothing(folder: Path) -> None:
    converter = storing(folder)
    first, second = [await encoded(converter, Text(text="x" * 50_000)) for _ in range(2)]
    assert first == second
    assert count(folder) == 1


async def test_lost_blob_is_named(folder: Path, tmp_path: Path) -> None:
    payload = await encoded(storing(folder), Text(text="x" * 50_000))
    with pytest.raises(BlobMissing, match="other has no blob"):
        await storing(tmp_path / "other").decode([payload], [Text])


async def test_answer_with_unsigned_claim_is_not_given_up(folder: Path) -> None:
    answer = await encoded(storing(folder, "another worker's secret"), ["x" * 50_000])
    with pytest.raises(StoreError, match="set the same RATCHET_STORE_SECRET everywhere"):
        await storing(folder).decode([answer], [ToolResult])


async def test_stores_with_one_secret_read_each_other(folder: Path) -> None:
    first, second = [storing(folder, "one secret for all") for _ in range(2)]
    assert await second.decode([await encoded(first, ["x" * 50_000])]) == [["x" * 50_000]]


async def test_secret_is_introduced_and_changed_while_runs_are_open(folder: Path) -> None:
    """The first signs, all count, that of the file too; one that was dropped does not."""
    values = [["x" * 50_000]]
    old, new = "old" * 8, "new" * 8
    file, first, both, last = [storing(folder, *one) for one in ((), (old,), (new, old), (new,))]
    written = [await encoded(one, values[0]) for one in (file, first, both)]
    assert [await both.decode([payload]) for payload in written] == [values] * 3
    assert await last.decode([written[0]]) == await last.decode([written[2]]) == values
    with pytest.raises(ApplicationError, match="did not make"):
        await last.decode([written[1]])


async def test_encrypted_value_waits_for_its_key_whichever_secret_signed_it(folder: Path) -> None:
    keys = Keys({"k": SecretStr(base64.b64encode(bytes(64)).decode())})
    old, new = "old" * 8, "new" * 8
    payload = await encoded(storing(folder, old, keys=keys), "small")
    with pytest.raises(KeyMissing):
        await storing(folder, new, old).decode([payload])
    with pytest.raises(ApplicationError, match="did not make"):
        await storing(folder, new).decode([payload])


def test_secret_is_made_once_for_its_owner_alone(folder: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        signatures = set(pool.map(lambda _: StoreSecret(folder).signature("a"), range(50)))
    assert signatures == {StoreSecret(folder).signature("a")}
    path = folder.with_name("store.secret")
    assert {one.name for one in folder.parent.iterdir()} <= {path.name, "store.secret.lock"}
    assert path.stat().st_mode & 0o777 == 0o600


NO_LINKS = """
import errno, pathlib, sys
from activities.store.secret import StoreSecret

def refuse(event, _):
    if event == "os.link":
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

sys.addaudithook(refuse)
print(StoreSecret(pathlib.Path(sys.argv[1])).signature("a"))
"""


def test_secret_is_made_where_the_disk_has_no_hard_links(folder: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-c", NO_LINKS, str(folder)], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert made.stdout.strip() == StoreSecret(folder).signature("a"), made.stderr


def test_damaged_secret_is_named(folder: Path) -> None:
    folder.with_name("store.secret").write_bytes(b"short")
    with pytest.raises(StoreError, match=r"store.secret is damaged: it has 5 bytes"):
        StoreSecret(folder).signature("a")


async def test_without_store_everything_stays_in_payload() -> None:
    assert len((await encoded(data_converter(None), Text(text="x" * 50_000))).data) > 50_000
