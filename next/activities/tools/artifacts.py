"""What is kept of a tool's output: the whole of a cut one, and named results, and how they are read.

Bodies are in the durable store. A run knows them by digest.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from pydantic_core import to_json, to_jsonable_python
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.contracts import (
    TRANSIENT,
    Artifact,
    ArtifactRead,
    ArtifactSpec,
    ArtifactsRead,
    ArtifactText,
    ReadArtifacts,
)
from activities.store.blobs import StoreError, StoreUnavailable

__all__ = [
    "MAX_KEPT_BYTES",
    "ArtifactActivities",
    "Blobs",
    "Output",
    "artifacts_of",
    "encode",
    "read_artifacts",
    "readable",
    "shown",
    "value_at",
]

MAX_KEPT_BYTES = 64 * 2**20
PREVIEW_CHARS = 200
STEP = re.compile(r"""\.?(?P<key>[^.\[\]"']+)|\[(?P<index>-?\d+)\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]""")

log = structlog.get_logger(__name__)


class Blobs(Protocol):
    """A durable store of bytes by their SHA-256; `BlobStore` is one. The calls block."""

    def put(self, data: bytes, /) -> str:
        """Keep the bytes, whole or not at all; returns their digest. May raise `StoreError`."""
        ...

    def get(self, digest: str, /) -> bytes:
        """The bytes of a digest. Raises `StoreError`."""
        ...


@dataclass(frozen=True, slots=True)
class Output:
    """What a tool returned: `text` can always be written as UTF-8, `whole` is what is kept."""

    text: str
    whole: bytes
    is_text: bool = True


def encode(value: object) -> Output:
    """Text unchanged, bytes as text if they are UTF-8, any other value as JSON.

    Raises `TypeError` for an iterator (it may have no end) and `ValueError` for a value that
    contains itself. Objects without a JSON form are shown by their `str`.
    """
    if isinstance(value, str):
        text = readable(value)
        return Output(text, text.encode())
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _decoded(bytes(value))
    if isinstance(value, Iterator):
        raise TypeError(f"it is a {type(value).__name__}; return a list")
    try:
        return _decoded(to_json(value, fallback=_as_text, inf_nan_mode="constants", bytes_mode="utf8"))
    except ValueError:
        # Bytes inside that are not text go out in base 64, lone surrogates are spelt out.
        return _decoded(json.dumps(value, default=_jsonable, separators=(",", ":")).encode())


def _decoded(raw: bytes) -> Output:
    try:
        return Output(raw.decode(), raw)
    except UnicodeDecodeError:
        start = raw[:16].hex(" ")
        return Output(f"{len(raw):,} bytes that are not UTF-8 text; they start with {start}", raw, False)


def _jsonable(value: object) -> object:
    return to_jsonable_python(value, fallback=_as_text, bytes_mode="base64")


def _as_text(value: object) -> str:
    return readable(str(value))


def readable(text: str) -> str:
    """The text with lone surrogates spelt out: they cannot be written as UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


async def shown(output: Output, cap: int, blobs: Blobs | None) -> tuple[str, str | None]:
    """At most `cap` characters of the text, with a note about the rest, and the digest of the whole if
    that is more. Never raises for the store: the tool has run, so its answer must not be lost."""
    if output.is_text and len(output.text) <= cap:
        return output.text, None
    digest, rest = None, "the rest is not kept"
    if blobs is not None:
        try:
            digest = await asyncio.to_thread(blobs.put, output.whole[:MAX_KEPT_BYTES])
            rest = "the whole is kept" if len(output.whole) <= MAX_KEPT_BYTES else "the first 64 MiB are kept"
        except Exception as error:
            log.error("tool.output_not_kept", exc_info=error)
            rest = "the rest could not be kept"
    total = len(output.text)
    if total <= cap:
        return output.text, digest
    note = f"[{total - cap:,} of {total:,} characters left out; {rest}]"
    return f"{output.text[:cap]}\n{note}", digest


async def artifacts_of(
    output: Output, specs: Sequence[ArtifactSpec], blobs: Blobs | None
) -> tuple[Artifact, ...]:
    """The artifacts that a call should produce: an object's keys by name, any other result as the first.

    Never raises: what cannot be kept is an artifact with an error, because the tool has run.
    """
    return await asyncio.to_thread(_kept, output, specs, blobs) if specs else ()


def _kept(output: Output, specs: Sequence[ArtifactSpec], blobs: Blobs | None) -> tuple[Artifact, ...]:
    return tuple(
        Artifact(name=spec.name, type=spec.type, kind=spec.kind, **_body_kept(spec, body, blobs))
        for spec, body in zip(specs, _bodies(output, specs), strict=True)
    )


def _bodies(output: Output, specs: Sequence[ArtifactSpec]) -> list[Output | str | None]:
    """For each spec its body, None where the value is null, or a text that says why there is none."""
    value = _json(output.whole) if output.is_text else _NOT_JSON
    if isinstance(value, dict) and any(spec.name in value for spec in specs):
        absent = f"the result has no key of this name; it has {', '.join(sorted(value))[:300]}"
        return [_body(value[spec.name]) if spec.name in value else absent for spec in specs]
    rest = "the result is one value; it was kept under the first name"
    return [None if value is None else output, *([rest] * (len(specs) - 1))]


def _body(value: Any) -> Output | str | None:
    if value is None:
        return None
    try:
        text = _text_of(value)
    except ValueError as error:
        return str(error)
    return Output(text, text.encode())


def _body_kept(spec: ArtifactSpec, body: Output | str | None, blobs: Blobs | None) -> dict[str, Any]:
    """Digest, size and preview of a body that is in the store now, or the error."""
    if not isinstance(body, Output):
        return {"error": body if body is None else readable(body)}
    if blobs is None:
        return {"error": "it was not kept: this worker has no durable store"}
    end = min(len(body.whole), MAX_KEPT_BYTES)
    while body.is_text and end < len(body.whole) and body.whole[end] & 0xC0 == 0x80:
        end -= 1  # a text is not cut inside a character
    try:
        digest = blobs.put(body.whole[:end])
    except Exception as error:
        log.error("artifact.not_kept", artifact=spec.name[:64], exc_info=error)
        return {"error": f"it could not be kept: {type(error).__name__}"}
    kept = {"digest": digest, "bytes": len(body.whole), "preview": body.text[:PREVIEW_CHARS]}
    if end < len(body.whole):
        kept["error"] = f"it has {len(body.whole):,} bytes, only the first {end:,} were kept"
    return kept


_NOT_JSON = object()


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _text_of(value: Any) -> str:
    """A text unchanged, any other value as JSON; raises `ValueError` for one that is nested too deeply."""
    if isinstance(value, str):
        return readable(value)
    try:
        return readable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    except RecursionError as error:
        raise ValueError("the value is nested too deeply to be written as text") from error


def value_at(value: Any, path: str) -> Any:
    """The value at a path such as `.rows[0].name` or `["a key"]`.

    Raises `ValueError` that says where the path cannot be read or leads nowhere.
    """
    at = 0
    while at < len(path):
        step = STEP.match(path, at)
        if step is None:
            raise ValueError(f"the path {path[:200]!r} cannot be read at character {at + 1}")
        at = step.end()
        try:
            value = _inside(value, step)
        except (LookupError, ValueError):
            raise ValueError(f"there is nothing at {path[:at][:200]!r}: {_described(value)}") from None
    return value


def _inside(value: Any, step: re.Match[str]) -> Any:
    if step["index"] is not None and isinstance(value, list):
        return value[int(step["index"])]
    if step["index"] is None and isinstance(value, dict):
        return value[step["key"] if step["quoted"] is None else json.loads(step["quoted"])]
    raise LookupError


def _described(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with the keys {', '.join(map(str, value))[:300]}"
    return f"a list of {len(value)} items" if isinstance(value, list) else "a plain value"


def read_artifacts(blobs: Blobs, wanted: ReadArtifacts) -> ArtifactsRead:
    """The texts, in the order of the request. A body that is lost or damaged, or has no such path, is a
    text with a `problem`. Raises `StoreUnavailable` alone; blocks for the disk."""
    bodies: dict[str, bytes | str] = {}
    for digest in dict.fromkeys(read.digest for read in wanted.reads):
        try:
            bodies[digest] = blobs.get(digest)
        except StoreUnavailable:
            raise
        except StoreError as error:
            log.error("artifact.not_read", digest=digest, cause=type(error).__name__)
            bodies[digest] = str(error)
    return ArtifactsRead(
        texts=tuple(_text_at(bodies[read.digest], read, wanted.chars) for read in wanted.reads)
    )


def _text_at(body: bytes | str, read: ArtifactRead, chars: int) -> ArtifactText:
    if isinstance(body, str):
        return ArtifactText(problem=body)
    try:
        if not read.path:
            text = body.decode()
        else:
            value = _json(body)
            if value is _NOT_JSON:
                raise ValueError("the artifact is not JSON, so there is no path into it")
            value = value_at(value, read.path)
            if value is None:
                raise ValueError(f"the value at {read.path[:200]!r} is null")
            text = _text_of(value)
    except UnicodeDecodeError:
        return ArtifactText(binary=True)
    except ValueError as error:
        return ArtifactText(problem=readable(str(error)))
    return ArtifactText(text=text[:chars], chars=len(text))


class ArtifactActivities:
    """Reads artifacts' texts from the durable store."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs

    @activity.defn(name="read_artifacts")
    async def read_artifacts(self, wanted: ReadArtifacts) -> ArtifactsRead:
        """As the function; raises `ApplicationError` of type `Transient` while the store is unavailable."""
        try:
            return await asyncio.to_thread(read_artifacts, self.blobs, wanted)
        except StoreUnavailable as error:
            raise ApplicationError(str(error)[:2000], type=TRANSIENT) from error
