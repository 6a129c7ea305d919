"""How values become Temporal payloads: strict JSON through pydantic, large ones in the blob store.

A value that does not fit its model fails the run or the update at once, with a message for a
person; Temporal's default retries the workflow task for ever (facts/temporal.md, 1). Messages name
the fields and never repeat what was sent: it may hold secrets.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any, TypeGuard, get_args

from google.protobuf.message import Message
from pydantic import BaseModel, ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    EncodingPayloadConverter,
    ExternalStorage,
    JSONPlainPayloadConverter,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)
from temporalio.exceptions import ApplicationError

from activities.contracts import ModelReplied, ModelRequest, ToolRequest, ToolResult
from activities.store.blobs import BlobStore
from activities.text import problems_text

__all__ = ["DRIVER", "THRESHOLD", "BlobDriver", "StrictConverter", "data_converter"]

THRESHOLD = 16 * 1024
"""Payloads of this many bytes or more are kept in the blob store."""
DRIVER = "ratchet-blobs"
"""Name of the driver in the claims that history holds; it must never change."""
SHORT = (ModelRequest, ModelReplied, ToolRequest, ToolResult)
"""Written without the fields that have their default. Their unions need none of those to be read."""
PROTOBUF = (b"json/protobuf", b"binary/protobuf")
MOST_ERRORS = 20


def data_converter(blobs: BlobStore | None, threshold: int = THRESHOLD) -> DataConverter:
    """Temporal's data converter for clients, workers and replayers.

    Without `blobs` every payload stays in history. `threshold` is in bytes of the encoded payload.
    """
    storage = None
    if blobs is not None:
        storage = ExternalStorage(drivers=[BlobDriver(blobs)], payload_size_threshold=threshold)
    return DataConverter(payload_converter_class=StrictConverter, external_storage=storage)


class BlobDriver(StorageDriver):
    """Keeps payloads in the blob store; the claim in history is the SHA-256 of the payload."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    def name(self) -> str:
        """The driver's name in claims."""
        return DRIVER

    async def store(
        self, context: StorageDriverStoreContext, payloads: Sequence[Payload]
    ) -> list[StorageDriverClaim]:
        """Keep payloads. Replay does so again, which the store answers by a look-up."""

        def put() -> list[str]:
            # Deterministic: the same payload must have the same digest on every replay.
            return [self._blobs.put(payload.SerializeToString(deterministic=True)) for payload in payloads]

        return [StorageDriverClaim({"sha256": digest}) for digest in await asyncio.to_thread(put)]

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """The payloads again. Raises `BlobMissing` or `BlobDamaged`, which Temporal retries."""

        def get() -> list[bytes]:
            return [self._blobs.get(claim.claim_data["sha256"]) for claim in claims]

        return [Payload.FromString(data) for data in await asyncio.to_thread(get)]


class _StrictJson(PydanticJSONPlainPayloadConverter):
    """JSON through pydantic; what does not fit the model is an error for a person.

    Fields of a call's input and answer that have their default are left out: there are two of each in every
    step, for as long as history is kept.
    """

    def to_payload(self, value: Any) -> Payload | None:
        """The value as JSON."""
        if not isinstance(value, SHORT):
            return super().to_payload(value)
        data = value.__pydantic_serializer__.to_json(value, exclude_defaults=True)
        return Payload(metadata={"encoding": self.encoding.encode()}, data=data)

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        """The value. Raises `ApplicationError` of type `PayloadValidationError`."""
        try:
            return super().from_payload(payload, type_hint)
        except ValidationError as error:
            raise _validation_error(error, type_hint) from None


@functools.cache
def _encodings() -> tuple[EncodingPayloadConverter, ...]:
    """Temporal's encodings with strict JSON in the place of its own.

    Made once: the SDK makes a converter for many a command, and each would parse every model's schema
    again (0.4 ms per step, facts/performance-first-edition.md).
    """
    return tuple(
        _StrictJson(max_cached_type_adapters=128) if isinstance(own, JSONPlainPayloadConverter) else own
        for own in DefaultPayloadConverter.default_encoding_payload_converters
    )


class StrictConverter(CompositePayloadConverter):
    """Temporal's payload encodings with strict JSON."""

    def __init__(self) -> None:
        """Without arguments, as the SDK makes it."""
        super().__init__(*_encodings())

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """The values. Raises `ApplicationError` for encodings that cannot give the wanted type."""
        hints = chain(type_hints or (), repeat(None))
        pairs = enumerate(zip(payloads, hints, strict=False), start=1)
        return super().from_payloads([_readable(number, *pair) for number, pair in pairs], type_hints)


def _readable(number: int, payload: Payload, hint: type | None) -> Payload:
    """The payload, if its encoding can give a value of this type; nothing becomes null, which is checked."""
    encoding = payload.metadata.get("encoding", b"")
    is_message = isinstance(hint, type) and issubclass(hint, Message)
    if hint is RawValue or encoding == b"json/plain" or (encoding in PROTOBUF and is_message):
        return payload
    if encoding == b"binary/plain" and hint in (None, bytes):
        return payload
    if encoding == b"binary/null":
        return Payload(metadata={"encoding": b"json/plain"}, data=b"null")
    shown = encoding.decode(errors="replace")[:80] or "none"
    raise _refusal(f"argument {number} has the encoding {shown!r}; send JSON (json/plain)", [])


def _validation_error(error: ValidationError, wanted: type | None) -> ApplicationError:
    models = [kind for kind in (wanted, *get_args(wanted)) if _is_model(kind)]
    details = error.errors(include_url=False, include_input=False, include_context=False)[:MOST_ERRORS]
    text = problems_text(error, MOST_ERRORS)
    if any(one["type"] == "extra_forbidden" and len(one["loc"]) == 1 for one in details):
        text += f"; the fields are {', '.join(name for kind in models for name in kind.model_fields)}"
    names = [kind.__name__ for kind in models] or [getattr(wanted, "__name__", "value")]
    return _refusal(f"not a valid {' or '.join(names)}: {text}", list(details))


def _is_model(kind: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _refusal(problem: str, details: list[Any]) -> ApplicationError:
    # The type that the SDK reserves for this purpose.
    return ApplicationError(
        f"Payload validation failed: {problem}", details, type="PayloadValidationError", non_retryable=True
    )
