"""What is kept of a tool's output: the whole of a cut one, and named results, and how they are read.

Bodies are in the durable store. A run knows them by digest.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

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
from activities.store.blobs import BlobStore, StoreError, StoreUnavailable
from activities.text import readable

__all__ = [
    "ArtifactActivities",
    "Output",
    "artifacts_of",
    "encode",
    "read_artifacts",
    "shown",
    "value_at",
]

MAX_KEPT_BYTES = 64 * 2**20
PREVIEW_CHARS = 200
STEP = re.compile(r"""\.?(?P<key>[^.\[\]"']+)|\[(?P<index>-?\d+)\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]""")

log = structlog.get_logger("ratchet")


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
    if isinstance(value, Iterator):
        raise TypeError(f"it is a {type(value).__name__}; return a list")
    if isinstance(value, (bytes, bytearray, memoryview)):
        raw = bytes(value)
    else:
        try:
            raw = to_json(value, fallback=_as_text, inf_nan_mode="constants", bytes_mode="utf8")
        except ValueError:
            # Bytes inside that are not text go out in base 64, lone surrogates are spelt out.
            raw = json.dumps(value, default=_jsonable, separators=(",", ":")).encode()
    try:
        return Output(raw.decode(), raw)
    except UnicodeDecodeError:
        start = raw[:16].hex(" ")
        return Output(f"{len(raw):,} bytes that are not UTF-8 text; they start with {start}", raw, False)


def _jsonable(value: object) -> object:
    return to_jsonable_python(value, fallback=_as_text, bytes_mode="base64")


def _as_text(value: object) -> str:
    return readable(str(value))


def _keep(data: bytes, blobs: BlobStore | None) -> tuple[str | None, str | None]:
    """The digest, or why there is none. Never raises: the tool has run, so its answer must not be lost."""
    if blobs is None:
        return None, "it was not kept: this worker has no durable store"
    if len(data) > MAX_KEPT_BYTES:
        return None, f"it was not kept: it has {len(data):,} bytes, at most {MAX_KEPT_BYTES:,} are kept"
    try:
        return blobs.put(data), None
    except Exception as error:
        log.error("tool.output_not_kept", exc_info=error)
        return None, f"it could not be kept: {type(error).__name__}"


def shown(output: Output, cap: int, blobs: BlobStore | None) -> tuple[str, str | None]:
    """At most `cap` characters of the text, with a note about the rest, and the digest of the whole if
    that is more. Blocks for the disk."""
    total = len(output.text)
    if output.is_text and total <= cap:
        return output.text, None
    digest, problem = _keep(output.whole, blobs)
    if total <= cap:
        return output.text, digest
    note = f"[{total - cap:,} of {total:,} characters left out; {problem or 'the whole is kept'}]"
    return f"{output.text[:cap]}\n{note}", digest


def artifacts_of(
    output: Output, specs: Sequence[ArtifactSpec], blobs: BlobStore | None
) -> tuple[Artifact, ...]:
    """The artifacts that a call should produce: an object's keys by name, any other result as the first.

    Never raises: what cannot be kept is an artifact with an error. Blocks for the disk.
    """
    value = _json(output.whole) if output.is_text and specs else _NOT_JSON
    if isinstance(value, dict) and any(spec.name in value for spec in specs):
        return tuple(_artifact(spec, *_body(value, spec.name), blobs) for spec in specs)
    rest = (None, "the result is one value; it was kept under the first name")
    bodies = chain([(None if value is None else output, None)], repeat(rest))
    return tuple(_artifact(spec, *body, blobs) for spec, body in zip(specs, bodies, strict=False))


def _body(value: dict[str, Any], name: str) -> tuple[Output | None, str | None]:
    """The body under a key, or why there is none; neither where the value is null."""
    if name not in value:
        return None, f"the result has no key of this name; it has {', '.join(sorted(value))[:300]}"
    try:
        return None if value[name] is None else encode(_text_of(value[name])), None
    except ValueError as error:
        return None, str(error)


def _artifact(
    spec: ArtifactSpec, body: Output | None, error: str | None, blobs: BlobStore | None
) -> Artifact:
    digest = None
    if body is not None:
        digest, error = _keep(body.whole, blobs)
    artifact = Artifact(**spec.model_dump(), error=error and readable(error))
    if body is None or digest is None:
        return artifact
    kept = {"digest": digest, "bytes": len(body.whole), "preview": body.text[:PREVIEW_CHARS]}
    return artifact.model_copy(update=kept)


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
            if not isinstance(value, dict if step["index"] is None else list):
                raise LookupError
            index, quoted = step["index"], step["quoted"]
            key: Any = int(index) if index else json.loads(quoted) if quoted else step["key"]
            value = value[key]
        except (LookupError, TypeError, ValueError):
            raise ValueError(f"there is nothing at {path[:at][:200]!r}: {_described(value)}") from None
    return value


def _described(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with the keys {', '.join(map(str, value))[:300]}"
    return f"a list of {len(value)} items" if isinstance(value, list) else "a plain value"


def read_artifacts(blobs: BlobStore, wanted: ReadArtifacts) -> ArtifactsRead:
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
        elif (document := _json(body)) is _NOT_JSON:
            return ArtifactText(problem="the artifact is not JSON, so there is no path into it")
        elif (value := value_at(document, read.path)) is None:
            return ArtifactText(problem=f"the value at {read.path[:200]!r} is null")
        else:
            text = _text_of(value)
    except UnicodeDecodeError:
        return ArtifactText(binary=True)
    except ValueError as error:
        return ArtifactText(problem=readable(str(error)))
    return ArtifactText(text=text[:chars], chars=len(text))


class ArtifactActivities:
    """Reads artifacts' texts from the durable store."""

    def __init__(self, blobs: BlobStore) -> None:
        self.blobs = blobs

    @activity.defn(name="read_artifacts")
    async def read_artifacts(self, wanted: ReadArtifacts) -> ArtifactsRead:
        """As the function; raises `ApplicationError` of type `Transient` while the store is unavailable."""
        try:
            return await asyncio.to_thread(read_artifacts, self.blobs, wanted)
        except StoreUnavailable as error:
            raise ApplicationError(str(error)[:2000], type=TRANSIENT) from error
