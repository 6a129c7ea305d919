"""Blobs: content addressing, damage, several processes, a process that dies in the middle."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from activities.store.blobs import (
    REFRESHED_AFTER,
    BlobDamaged,
    BlobMissing,
    BlobStore,
    StoreUnavailable,
)
from activities.store.remote import Rows
from tests import storekit
from tests.forked import PIPE, Forked
from tests.storekit import opened_blobs

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> BlobStore:
    """Blobs in files, for what only files can show."""
    return BlobStore(tmp_path / "sub" / "blobs")


def kept(blobs: BlobStore) -> list[str]:
    return sorted(name for name, _, _ in blobs.objects.names())


def name_of(digest: str) -> str:
    return f"{digest[:2]}/{digest[2:]}"


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 4000], ids=["empty", "small", "large"])
def test_put_returns_the_sha256_and_get_the_bytes(blobs: BlobStore, data: bytes) -> None:
    digest = blobs.put(data)
    assert digest == hashlib.sha256(data).hexdigest()
    assert blobs.put(data) == digest
    assert blobs.get(digest) == data
    assert kept(blobs) == [name_of(digest)]
    (one,) = blobs.list()
    assert (one.digest, one.size) == (digest, len(data))
    assert abs(one.at - time.time()) < 600


def test_files_are_private_to_their_owner(folder: BlobStore) -> None:
    path = folder.path(folder.put(b"x"))
    assert path is not None
    assert [one.stat().st_mode & 0o077 for one in (path, path.parent, path.parent.parent)] == [0, 0, 0]


@pytest.mark.parametrize("digest", ["0" * 64, "", "../../etc/passwd", "A" * 64, "0" * 63 + "\n"])
def test_missing_blob_is_named(blobs: BlobStore, digest: str) -> None:
    with pytest.raises(BlobMissing) as raised:
        blobs.get(digest)
    assert repr(digest)[1:-1] in str(raised.value)


def test_changed_blob_is_kept_aside_and_can_be_put_again(blobs: BlobStore) -> None:
    digest = blobs.put(b"right")
    blobs.objects.write(name_of(digest), b"wrong")
    with pytest.raises(BlobDamaged, match=digest):
        blobs.get(digest)
    with pytest.raises(BlobMissing):
        blobs.get(digest)
    blobs.put(b"right")
    assert blobs.get(digest) == b"right"
    assert [blobs.objects.read(name) for name in kept(blobs)] == [b"right", b"wrong"]
    assert [one.digest for one in blobs.list()] == [digest]


def test_cut_blob_is_mended_by_putting_it_again(blobs: BlobStore) -> None:
    digest = blobs.put(b"whole")
    blobs.objects.write(name_of(digest), b"who")
    blobs.put(b"whole")
    assert blobs.get(digest) == b"whole"


def test_only_what_is_older_is_deleted(blobs: BlobStore) -> None:
    digest = blobs.put(b"x")
    assert not blobs.delete(digest, before=time.time() - 600)
    assert blobs.get(digest) == b"x"
    assert blobs.delete(digest, before=time.time() + 600)
    assert not blobs.delete(digest, before=time.time() + 600)
    assert kept(blobs) == []


@pytest.mark.parametrize("kind", ["files", "postgres"])
def test_blob_that_is_put_again_later_counts_as_new(kind: str, request: pytest.FixtureRequest) -> None:
    old = time.time() - 2 * REFRESHED_AFTER
    if kind == "files":
        blobs: BlobStore = request.getfixturevalue("folder")
        digest = blobs.put(b"x")
        path = blobs.path(digest)
        assert path is not None
        os.utime(path, (old, old))
    else:
        database = storekit.database(request.getfixturevalue("postgres"))
        request.addfinalizer(database.close)
        blobs = BlobStore(Rows(database))
        digest = blobs.put(b"x")
        with database.writing("test") as execute:
            execute("UPDATE blobs SET written=?", (old,))
    assert [one.at for one in blobs.list()] == [pytest.approx(old)]
    blobs.put(b"x")
    assert not blobs.delete(digest, before=old + 600)


WRITER = """
import sys
from tests.storekit import opened_blobs
blobs = opened_blobs(sys.argv[1])
for n in range(60):
    blobs.put(f"shared {n}".encode() * 50)
    blobs.put(f"{sys.argv[2]} {n}".encode() * 50)
if hasattr(blobs.objects, "database"):
    blobs.objects.database.close()
"""


@pytest.mark.parametrize(
    "blobs_place",
    ["files", *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("postgres", "s3"))],
    indirect=True,
)
def test_several_processes_write_from_the_first_moment(blobs: BlobStore, blobs_place: str) -> None:
    writers = [Forked(WRITER, blobs_place, name, env=os.environ) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    for who in ("shared", "a", "b"):
        for n in range(60):
            data = f"{who} {n}".encode() * 50
            assert blobs.get(hashlib.sha256(data).hexdigest()) == data
    assert len(kept(blobs)) == 180


KILLED = """
import hashlib, sys
from pathlib import Path
from activities.store.blobs import BlobStore
blobs = BlobStore(Path(sys.argv[1]))
for n in range(10_000):
    data = bytes([n % 256]) * 8_000_000 + sys.argv[2].encode()
    print(hashlib.sha256(data).hexdigest(), flush=True)
    blobs.put(data)
"""


def test_writer_killed_in_the_middle_leaves_no_half_blob(folder: BlobStore, tmp_path: Path) -> None:
    blobs, where = folder, tmp_path / "sub" / "blobs"
    for life in range(4):
        with Forked(KILLED, str(where), str(life), env=os.environ, stdout=PIPE) as writer:
            assert writer.stdout is not None
            begun = [writer.stdout.readline().strip() for _ in range(life + 2)]
            until(lambda: any(one.stat().st_size for one in where.rglob("draft-*")))
            writer.kill()
        assert [len(blobs.get(digest)) for digest in begun[:-1]] == [8_000_001] * (life + 1)
        last = bytes([life + 1]) * 8_000_000 + str(life).encode()
        with suppress(BlobMissing):  # a blob that is there is whole: others are `BlobDamaged`
            assert blobs.get(begun[-1]) == last
        assert blobs.get(blobs.put(last)) == last


def until(holds: Callable[[], bool]) -> None:
    """Wait for it; a file that goes away meanwhile is looked for again."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with suppress(FileNotFoundError):
            if holds():
                return
    raise AssertionError("it did not happen")


def test_unusable_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="RATCHET_DATA_DIR"):
        BlobStore(tmp_path / "file" / "blobs").put(b"x")


UNREACHABLE = {
    "postgres": "postgresql://ratchet:pass-word@127.0.0.1:1/ratchet",
    "s3": "s3://bucket?endpoint=http://127.0.0.1:1",
}


@pytest.mark.parametrize("kind", UNREACHABLE)
def test_store_that_is_away_is_named_without_its_password(kind: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1.*RATCHET_(STORE|BLOBS) names it") as caught:
        opened_blobs(UNREACHABLE[kind]).put(b"x")
    assert "pass-word" not in str(caught.value)
