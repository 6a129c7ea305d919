"""Material for a run: a text, its bytes or its file; short ones in the task, long ones by reference."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from activities.contracts import MaterialRef
from activities.store.blobs import BlobStore
from client.errors import RatchetError, UsageError
from client.sdk.material import MAX_BYTES, SHORT_BYTES, material_for


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    """A store of its own."""
    return BlobStore(tmp_path / "blobs")


async def test_long_material_travels_by_reference(blobs: BlobStore, tmp_path: Path) -> None:
    assert await material_for("x" * SHORT_BYTES, blobs) == "x" * SHORT_BYTES
    assert await material_for("é" * SHORT_BYTES, blobs) == MaterialRef(
        digest=(await reference("é" * SHORT_BYTES, blobs, tmp_path)).digest,
        chars=SHORT_BYTES,
        bytes=2 * SHORT_BYTES,
    )


async def reference(text: str, blobs: BlobStore, folder: Path) -> MaterialRef:
    """The reference to the same text from a file with a byte order mark."""
    path = folder / "long.txt"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    found = await material_for(path, blobs)
    assert isinstance(found, MaterialRef)
    return found


async def test_text_bytes_and_file_are_the_same(tmp_path: Path, blobs: BlobStore) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfh\xc3\xa9\r\n")
    for source in (tmp_path / "a.txt", b"h\xc3\xa9\r\n", "h\u00e9\r\n"):
        assert await material_for(source, blobs) == "h\u00e9\r\n"


@pytest.mark.parametrize(
    "source",
    [
        "",
        b"",
        b"\xef\xbb\xbf",
        b"ab\xff",
        "a\ud800",
        Path("/dev/zero"),
        Path("no/such"),
        Path("/"),
        "pipe",
        "huge",
    ],
)
async def test_what_is_not_text_is_refused(
    tmp_path: Path, blobs: BlobStore, source: str | bytes | Path
) -> None:
    if source == "pipe":
        source = tmp_path / "pipe"
        os.mkfifo(source)
    if source == "huge":
        source = tmp_path / "huge"
        source.touch()
        os.truncate(source, MAX_BYTES + 1)
    with pytest.raises(UsageError, match=str(source) if isinstance(source, Path) else "the material"):
        await material_for(source, blobs)


async def test_broken_store_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "blobs").touch()
    with pytest.raises(RatchetError, match="nothing was started"):
        await material_for("x" * (SHORT_BYTES + 1), BlobStore(tmp_path / "blobs"))
