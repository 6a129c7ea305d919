"""Named results of tools: how a whole result becomes artifacts, and how their texts are read again.

Bodies are in the durable store; a machine's state knows them by digest.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.contracts import TRANSIENT, Artifact, ArtifactSpec
from activities.contracts_artifacts import ArtifactRead, ArtifactsRead, ArtifactText, ReadArtifacts
from activities.store import BlobStore, StoreError, StoreUnavailable
from activities.tool_output import MAX_KEPT_BYTES, Output, readable

__all__ = ["ArtifactActivities", "artifacts_of", "value_at"]

PREVIEW = 200
STEP = re.compile(r"""\.?(?P<key>[^.\[\]"']+)|\[(?P<index>-?\d+)\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]""")

log = structlog.get_logger(__name__)
Keep = Callable[[bytes], Awaitable[str]]


async def artifacts_of(
    output: Output, specs: Sequence[ArtifactSpec], keep: Keep | None
) -> tuple[Artifact, ...]:
    """The artifacts that a call asked for: an object's keys by name, any other result as the first one.

    Never raises: what cannot be kept is an artifact with an error, because the tool has run.
    """
    if not specs:
        return ()
    bodies = await asyncio.to_thread(_split, output, specs)
    return tuple([await _kept(spec, body, keep) for spec, body in zip(specs, bodies, strict=True)])


def _split(output: Output, specs: Sequence[ArtifactSpec]) -> list[Output | str | None]:
    """For each spec its body, None where the value is null, or in words why it has none."""
    value = _json(output.whole) if output.is_text else _NO_JSON
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


async def _kept(spec: ArtifactSpec, body: Output | str | None, keep: Keep | None) -> Artifact:
    made = Artifact(name=spec.name, type=spec.type, kind=spec.kind)
    if not isinstance(body, Output):
        return made.model_copy(update={"error": body if body is None else readable(body)})
    if keep is None:
        return made.model_copy(update={"error": "it was not kept: this worker has no durable store"})
    try:
        whole = _fitting(body)
        digest = await keep(whole)
    except Exception as error:  # the tool has run: its answer must not be lost
        log.error("artifact.not_kept", artifact=spec.name[:64], exc_info=error)
        return made.model_copy(update={"error": f"it could not be kept: {type(error).__name__}"})
    found = {"digest": digest, "bytes": len(body.whole), "preview": body.text[:PREVIEW]}
    if len(whole) < len(body.whole):
        found["error"] = f"it has {len(body.whole):,} bytes, only the first {len(whole):,} were kept"
    return made.model_copy(update=found)


def _fitting(body: Output) -> bytes:
    """As much of the body as is kept; a text is not cut within a character."""
    whole, end = body.whole, MAX_KEPT_BYTES
    if len(whole) <= end:
        return whole
    while body.is_text and whole[end] & 0xC0 == 0x80:  # it goes on with the character before
        end -= 1
    return whole[:end]


_NO_JSON = object()


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return _NO_JSON


def _text_of(value: Any) -> str:
    """A text as it is, any other value as JSON; raises ValueError for one that is nested too deeply."""
    try:
        text = (
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        )
    except RecursionError as error:
        raise ValueError("the value is nested too deeply to be written as text") from error
    return readable(text)


def value_at(value: Any, path: str) -> Any:
    """What stands at a path such as `.rows[0].name` or `["a key"]`.

    Raises ValueError in words: the path cannot be read, or leads nowhere.
    """
    at = 0
    while at < len(path):
        step = STEP.match(path, at)
        if step is None:
            raise ValueError(f"the path {path[:200]!r} cannot be read at character {at + 1}")
        value = _step_into(value, step, path[: step.end()])
        at = step.end()
    return value


def _step_into(value: Any, step: re.Match[str], so_far: str) -> Any:
    try:
        if step["index"] is not None:
            if isinstance(value, list):
                return value[int(step["index"])]
        elif isinstance(value, dict):
            return value[step["key"] if step["quoted"] is None else json.loads(step["quoted"])]
    except (LookupError, ValueError):
        pass
    raise ValueError(f"there is nothing at {so_far[:200]!r}: {_inside(value)}")


def _inside(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with the keys {', '.join(map(str, value))[:300]}"
    return f"a list of {len(value)} items" if isinstance(value, list) else "a plain value"


class ArtifactActivities:
    """Reads artifacts' texts from the durable store."""

    def __init__(self, blobs: BlobStore) -> None:
        self.blobs = blobs

    @activity.defn(name="read_artifacts")
    async def read_artifacts(self, wanted: ReadArtifacts) -> ArtifactsRead:
        """The texts wanted, in that order; raises `ApplicationError` of type `Transient` while the store
        is busy. A body that is lost, damaged or without such a path is a text with a `problem`."""
        bodies: dict[str, bytes | str] = {}
        for digest in dict.fromkeys(read.digest for read in wanted.reads):
            bodies[digest] = await self._body(digest)
        found = [
            await asyncio.to_thread(_text_at, bodies[read.digest], read, wanted.chars)
            for read in wanted.reads
        ]
        return ArtifactsRead(texts=tuple(found))

    async def _body(self, digest: str) -> bytes | str:
        """The body, or in words why there is none; the store checks bytes against the digest."""
        try:
            return await self.blobs.get(digest)
        except StoreUnavailable as error:
            raise ApplicationError(str(error)[:2000], type=TRANSIENT) from error
        except StoreError as error:
            log.error("artifact.not_read", digest=digest, cause=type(error).__name__)
            return str(error)


def _text_at(body: bytes | str, read: ArtifactRead, chars: int) -> ArtifactText:
    if isinstance(body, str):
        return ArtifactText(problem=body)
    if not read.path:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            return ArtifactText(binary=True)
        return ArtifactText(text=text[:chars], chars=len(text))
    value = _json(body)
    if value is _NO_JSON:
        return ArtifactText(problem="the artifact is no JSON, so there is no path into it")
    try:
        value = value_at(value, read.path)
        if value is None:
            raise ValueError(f"the value at {read.path[:200]!r} is null")
        text = _text_of(value)
    except ValueError as error:
        return ArtifactText(problem=readable(str(error)))
    return ArtifactText(text=text[:chars], chars=len(text))
