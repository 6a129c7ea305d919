"""Blobs: content addressing, damage, several processes, a process that dies in the middle."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
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
import time
from collections.abc import Callable
from contextlib import suppress
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


def test_writer_killed_in_the_middle_leaves_no_half_blob(blobs: BlobStore) -> None:
    for life in range(4):
        command = [sys.executable, "-c", KILLED, str(blobs.folder), str(life)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            begun = [writer.stdout.readline().strip() for _ in range(life + 2)]
            until(lambda: any(one.stat().st_size for one in blobs.folder.rglob("draft-*")))
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
