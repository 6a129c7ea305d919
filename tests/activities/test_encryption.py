"""Encryption: nothing plain is kept, equal values stay equal, keys change, a missing key is named."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import traceback
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import BaseModel, SecretStr, ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError

from activities.contracts import EMPTY_DIGEST, AfterReset, ArchiveRequest, Conversation, MaterialRef, Message
from activities.material import Materials
from activities.settings import Settings
from activities.store.archive import Archive
from activities.store.blobs import BlobStore, Files
from activities.store.cache import ConversationCache
from activities.store.call_store import CallsMade
from activities.store.converter import data_converter
from activities.store.encryption import MAGIC, KeyMissing, Keys, NotDecrypted, SealedBlobs
from activities.store.secret import StoreSecret
from tests.conftest import Environ

MARKER = "the marker text"
OLD, NEW = [SecretStr(base64.b64encode(os.urandom(64)).decode()) for _ in range(2)]
BEFORE = Keys({"2025": OLD})
ROTATED = Keys({"2026": NEW, "2025": OLD})
WITHOUT = Keys({"2026": NEW})
SAME_NAME = Keys({"2025": NEW})
SECRET = SecretStr("one secret for all")


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def converter(blobs: BlobStore, keys: Keys | None = BEFORE, secret: SecretStr = SECRET) -> DataConverter:
    return data_converter((blobs, StoreSecret(folder_of(blobs), [secret])), keys)


def folder_of(blobs: BlobStore) -> Path:
    assert isinstance(blobs.objects, Files)
    return blobs.objects.folder


def files(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


async def encoded(converter: DataConverter, value: object) -> Payload:
    (payload,) = await converter.encode([value])
    return payload


@pytest.mark.parametrize("size", [1, 50_000], ids=["in history", "in the store"])
async def test_value_is_encrypted_alike_each_time(size: int, blobs: BlobStore) -> None:
    first, second = [await encoded(converter(blobs), MARKER * size) for _ in range(2)]
    assert first == second
    assert await converter(blobs).decode([first], [str]) == [MARKER * size]
    kept = [first.SerializeToString(), *files(folder_of(blobs))]
    assert len(kept) == 1 + (size > 1)
    assert not any(MARKER.encode() in one for one in kept)


async def test_failure_is_encrypted(blobs: BlobStore) -> None:
    failure = Failure()
    try:
        raise ApplicationError(MARKER, {"detail": MARKER}, type="Kind")
    except ApplicationError as error:
        await converter(blobs).encode_failure(error, failure)
    assert MARKER.encode() not in failure.SerializeToString()
    found = await converter(blobs).decode_failure(failure)
    assert isinstance(found, ApplicationError)
    assert (found.message, found.type, found.details[0]) == (MARKER, "Kind", {"detail": MARKER})


@pytest.mark.parametrize("keys", [Keys(), BEFORE], ids=["plain", "encrypted"])
def test_bytes_that_look_encrypted_come_back(keys: Keys, blobs: BlobStore) -> None:
    """A tool may have fetched them from anywhere: who reads them must not wait for a key."""
    evil = MAGIC + b"evil\nkey"
    for data in (evil, MAGIC + b"\n" + evil, MAGIC):
        assert SealedBlobs(blobs, keys).get(SealedBlobs(blobs, keys).put(data)) == data


class Result(BaseModel):
    """What programs of others read."""

    read_by_others: ClassVar[bool] = True
    text: str


@pytest.mark.parametrize("keys", [None, BEFORE], ids=["plain", "encrypted"])
@pytest.mark.parametrize(("size", "inline"), [(1, True), (60_000, True), (200_000, False)])
async def test_result_stays_in_history_up_to_its_bound(
    size: int, inline: bool, keys: Keys | None, blobs: BlobStore
) -> None:
    payload = await encoded(converter(blobs, keys), Result(text="x" * size))
    assert bool(files(folder_of(blobs))) is not inline
    assert await converter(blobs, keys).decode([payload], [Result]) == [Result(text="x" * size)]
    if inline and keys is None:  # as Temporal's command line shows it without a codec server
        assert payload == Payload(metadata={"encoding": b"json/plain"}, data=payload.data)


async def test_unencrypted_value_passes(blobs: BlobStore) -> None:
    typed = Payload(metadata={"encoding": b"json/plain"}, data=b'{"a": 1}')
    large = await encoded(converter(blobs, None), "x" * 50_000)
    assert await converter(blobs).decode([typed, large]) == [{"a": 1}, "x" * 50_000]


async def test_rotation_keeps_old_values_readable_but_new_need_new_key(blobs: BlobStore) -> None:
    old = await encoded(converter(blobs), MARKER)
    new = await encoded(converter(blobs, ROTATED), MARKER)
    assert (old.metadata["encryption-key-id"], new.metadata["encryption-key-id"]) == (b"2025", b"2026")
    assert await converter(blobs, ROTATED).decode([old, new]) == [MARKER, MARKER]
    assert await converter(blobs, WITHOUT).decode([new]) == [MARKER]


@pytest.mark.parametrize(
    ("keys", "error", "problem"),
    [
        pytest.param(WITHOUT, KeyMissing, "key '2025', which this process lacks .it has 2026", id="dropped"),
        pytest.param(None, KeyMissing, "it has none.: add it to RATCHET_ENCRYPTION_KEYS", id="no keys"),
        pytest.param(SAME_NAME, NotDecrypted, "another key of that name", id="other key of that name"),
    ],
)
async def test_own_value_waits_for_its_key(
    keys: Keys | None, error: type[Exception], problem: str, blobs: BlobStore
) -> None:
    payload = await encoded(converter(blobs), MARKER)
    with pytest.raises(error, match=problem):
        await converter(blobs, keys).decode([payload])
    sealed = SealedBlobs(blobs, BEFORE).put(MARKER.encode())
    with pytest.raises(error, match=problem):
        SealedBlobs(blobs, keys or Keys()).get(sealed)


async def test_strangers_encrypted_value_is_refused_at_once(blobs: BlobStore) -> None:
    genuine = await encoded(converter(blobs), MARKER)
    changed = Payload(metadata=genuine.metadata, data=genuine.data[:-1] + b"x")
    foreign = await encoded(converter(blobs, SAME_NAME, SecretStr("a secret of somebody else")), MARKER)
    unknown = Payload(metadata={**foreign.metadata, "encryption-key-id": b"x"}, data=b"")
    for payload in (changed, foreign, unknown, Payload(metadata={"encoding": b"binary/encrypted"})):
        with pytest.raises(ApplicationError, match="encrypted value that this store") as caught:
            await converter(blobs).decode([payload])
        assert caught.value.non_retryable


async def test_signature_of_encrypted_value_makes_no_claim_on_data(blobs: BlobStore) -> None:
    claim, value = await encoded(converter(blobs), "x" * 50_000), await encoded(converter(blobs), MARKER)
    body = json.loads(claim.data)
    body["claimData"] = {
        "sha256": f"2025:{hashlib.sha256(value.data).hexdigest()}",
        "signature": value.metadata["signature"].decode(),
    }
    forged = Payload(metadata=claim.metadata, data=json.dumps(body).encode())
    with pytest.raises(ApplicationError, match="claim on stored data that this store did not make"):
        await converter(blobs).decode([forged])


def test_blobs_of_our_own_are_sealed(blobs: BlobStore) -> None:
    sealed = SealedBlobs(blobs, BEFORE)
    digests = {sealed.put(MARKER.encode()) for _ in range(2)}
    assert len(digests) == 1
    assert not any(MARKER.encode() in one for one in files(folder_of(blobs)))
    plain = blobs.put(MARKER.encode())
    assert {SealedBlobs(blobs, ROTATED).get(digest) for digest in (*digests, plain)} == {MARKER.encode()}
    assert sealed.get(sealed.put(b"")) == b""


async def test_sealed_material_is_read(blobs: BlobStore) -> None:
    sealed, text = SealedBlobs(blobs, BEFORE), "ä line\n" * 5000
    ref = MaterialRef(digest=sealed.put(text.encode()), chars=len(text), bytes=len(text.encode()))
    material = await Materials(SealedBlobs(blobs, ROTATED)).open(ref)
    assert (material.chars, material.slice(0, 6)) == (len(text), "ä line")


def test_cache_is_sealed_and_empty_for_other_keys(tmp_path: Path) -> None:
    talk = Conversation([Message(role="user", content=MARKER)])
    first = ConversationCache(tmp_path / "cache.db", keys=BEFORE)
    first.save(talk, EMPTY_DIGEST)
    first.save_output(MARKER)
    first.close()
    shown = b"".join(files(tmp_path))
    assert not any(text.encode() in shown for text in (MARKER, talk.digest))
    for keys, found in ((BEFORE, talk), (WITHOUT, None), (SAME_NAME, None), (Keys(), None)):
        other = ConversationCache(tmp_path / "cache.db", keys=keys)
        assert other.load(talk.digest) == found
        other.close()


def archived(path: Path, keys: Keys) -> Archive:
    archive = Archive(path, keys)
    archive.add(
        ArchiveRequest(
            workflow_id="w", run_id="r", after="", records=({"seq": 0, "text": MARKER},), result={"a": MARKER}
        ),
        "e",
        MARKER.encode(),
    )
    return archive


def test_archive_is_sealed_and_its_chain_covers_plain_records(tmp_path: Path) -> None:
    plain, sealed = [
        archived(tmp_path / name / "a.db", keys) for name, keys in (("p", Keys()), ("s", BEFORE))
    ]
    assert sealed.add(ArchiveRequest(workflow_id="w", run_id="r", after="x", records=())).head == "x"
    rotated = archived(Path(sealed.database.where), ROTATED)  # a repeat under another key is the same part
    for archive in (plain, rotated):
        assert archive.records("w") == ({"seq": 0, "text": MARKER},)
        assert (archive.result("w"), archive.histories("w")) == ({"a": MARKER}, {"e": MARKER.encode()})
        assert archive.broken_at("w") is None
    assert MARKER.encode() not in Path(sealed.database.where).read_bytes()
    with pytest.raises(KeyMissing, match="'2025'"):
        Archive(Path(sealed.database.where), WITHOUT).broken_at("w")
    assert Archive(Path(sealed.database.where), SAME_NAME).broken_at("w") == 0


GOOD = {"2026-11": OLD.get_secret_value()}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("[]", "expected a JSON object"),
        ('{"a": ', "expected a JSON object"),
        ('{"a": "c2hvcnQ="}', "64 random bytes in base 64; `ratchet key encryption FILE` makes a key"),
        (json.dumps({"a b": GOOD["2026-11"]}), "letters, digits"),
        ("/no/such/file", "neither JSON nor the whole path of a file that can be read: No such file"),
        ("keys.json", "neither JSON nor the whole path of a file"),
        ("c2hvcnQ=", "neither JSON nor the whole path of a file"),
        (f"/c2hvcnQ{'x' * 300}", "neither JSON nor the whole path of a file that can be read: File name too"),
        ("~c2hvcnQ", "neither JSON nor the whole path of a file"),
    ],
    ids=[
        "no object",
        "no JSON",
        "short",
        "name",
        "no file",
        "file of the folder",
        "bare key",
        "key like a path",
        "key like a home",
    ],
)
def test_wrong_keys_are_named_and_never_shown(value: str, problem: str, environ: Environ) -> None:
    environ["RATCHET_ENCRYPTION_KEYS"] = value
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert problem in str(caught.value)
    assert "c2hvcnQ" not in "".join(traceback.format_exception(caught.value))


def test_keys_come_from_variable_or_file_that_it_names(tmp_path: Path, environ: Environ) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(GOOD))
    for value in (json.dumps(GOOD), str(file)):
        environ["RATCHET_ENCRYPTION_KEYS"] = value
        assert Keys(Settings().encryption_keys).active == "2026-11"
    assert GOOD["2026-11"] not in repr(Settings())


def test_calls_are_sealed_and_found_again_under_the_next_key(tmp_path: Path) -> None:
    path, digest = tmp_path / "calls.db", "d" * 64
    calls = CallsMade(path, BEFORE)
    assert calls.begin("w/r/1/a", digest, MARKER) is None
    calls.end("w/r/1/a", {"output": MARKER})
    assert not any(text.encode() in path.read_bytes() for text in (MARKER, digest))
    rotated = CallsMade(path, ROTATED)
    again = rotated.begin("w/r/1/a", digest, MARKER)
    elsewhere = rotated.begin("w/r/0/b", digest, MARKER, AfterReset(run="w/r/", since=9e12, keys=()))
    assert again is not None
    assert again == elsewhere
    assert (again.call, again.title, again.result) == (digest, MARKER, {"output": MARKER})
    with pytest.raises(KeyMissing, match="'2025'"):
        CallsMade(path, WITHOUT).begin("w/r/1/a", digest, MARKER)
