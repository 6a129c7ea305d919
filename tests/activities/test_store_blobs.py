"""Blobs: content addressing, damage, several processes, a process that dies in the middle."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from activities.store.blobs import BlobDamaged, BlobMissing, BlobStore, StoreUnavailable


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "sub" / "blobs")


def files(blobs: BlobStore) -> list[Path]:
    return [path for path in blobs.folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 4000], ids=["empty", "small", "large"])
def test_put_returns_the_sha256_and_get_the_bytes(blobs: BlobStore, data: bytes) -> None:
    digest = blobs.put(data)
    assert digest == hashlib.sha256(data).hexdigest()
    assert blobs.put(data) == digest
    assert BlobStore(blobs.folder).get(digest) == data
    assert files(blobs) == [blobs.folder / digest[:2] / digest[2:]]


def test_files_are_private_to_their_owner(blobs: BlobStore) -> None:
    path = blobs.path(blobs.put(b"x"))
    assert [one.stat().st_mode & 0o077 for one in (path, path.parent, blobs.folder)] == [0, 0, 0]


@pytest.mark.parametrize("digest", ["0" * 64, "", "../../etc/passwd", "A" * 64, "0" * 63 + "\n"])
def test_missing_blob_is_named(blobs: BlobStore, digest: str) -> None:
    with pytest.raises(BlobMissing) as raised:
        blobs.get(digest)
    assert repr(digest)[1:-1] in str(raised.value)


def test_changed_blob_is_kept_aside_and_can_be_put_again(blobs: BlobStore) -> None:
    digest = blobs.put(b"right")
    blobs.path(digest).write_bytes(b"wrong")
    with pytest.raises(BlobDamaged, match=digest):
        blobs.get(digest)
    with pytest.raises(BlobMissing):
        blobs.get(digest)
    blobs.put(b"right")
    assert blobs.get(digest) == b"right"
    assert sorted(path.read_bytes() for path in files(blobs)) == [b"right", b"wrong"]


def test_cut_blob_is_mended_by_putting_it_again(blobs: BlobStore) -> None:
    digest = blobs.put(b"whole")
    blobs.path(digest).write_bytes(b"who")
    blobs.put(b"whole")
    assert blobs.get(digest) == b"whole"


WRITER = """
import sys
from pathlib import Path
from activities.store.blobs import BlobStore
blobs = BlobStore(Path(sys.argv[1]))
for n in range(60):
    blobs.put(f"shared {n}".encode() * 50)
    blobs.put(f"{sys.argv[2]} {n}".encode() * 50)
"""


def test_several_processes_write_from_the_first_moment(blobs: BlobStore) -> None:
    command = [sys.executable, "-c", WRITER, str(blobs.folder)]
    writers = [subprocess.Popen([*command, name]) for name in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    for who in ("shared", "a", "b", "c"):
        for n in range(60):
            data = f"{who} {n}".encode() * 50
            assert blobs.get(hashlib.sha256(data).hexdigest()) == data
    assert len(files(blobs)) == 240


def test_unusable_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="RATCHET_DATA_DIR"):
        BlobStore(tmp_path / "file" / "blobs").put(b"x")
