"""How values become Temporal payloads: strict JSON through pydantic, large ones in the blob store.

A value that does not fit its model fails the run or the update at once, with a message for a
person; Temporal's default is to retry the workflow task for ever. Messages name the fields and
never repeat what was sent: it may hold secrets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, get_args

from google.protobuf.message import Message
from pydantic import BaseModel, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    ExternalStorage,
    JSONPlainPayloadConverter,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)
from temporalio.exceptions import ApplicationError

from activities.store import BlobStore

__all__ = ["DRIVER", "THRESHOLD", "BlobDriver", "StrictConverter", "data_converter"]

THRESHOLD = 16 * 1024
"""Payloads of this many bytes or more are kept in the blob store."""
DRIVER = "ratchet-blobs"
"""Name of our driver in the claims that history holds; never to be changed."""

PROTOBUF = (b"json/protobuf", b"binary/protobuf")
_MOST_ERRORS = 20


def data_converter(store: BlobStore | None, threshold: int = THRESHOLD) -> DataConverter:
    """Temporal's data converter for clients, workers and replayers.

    `store` is the durable store; without one every payload stays in history. `threshold` is in
    bytes of the encoded payload.
    """
    storage = None
    if store is not None:
        storage = ExternalStorage(drivers=[BlobDriver(store)], payload_size_threshold=threshold)
    return DataConverter(payload_converter_class=StrictConverter, external_storage=storage)


class BlobDriver(StorageDriver):
    """Keeps payloads in a blob store; the claim in history is the SHA-256 of the payload."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    def name(self) -> str:
        """The driver's name in claims."""
        return DRIVER

    async def store(
        self, context: StorageDriverStoreContext, payloads: Sequence[Payload]
    ) -> list[StorageDriverClaim]:
        """Keep payloads; replay does so again, which the store answers by a look-up."""
        return [
            StorageDriverClaim({"sha256": await self._store.put(_encoded(payload))}) for payload in payloads
        ]

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """The payloads again. Raises `BlobMissing` or `BlobCorrupt`, which Temporal retries."""
        return [Payload.FromString(await self._store.get(claim.claim_data["sha256"])) for claim in claims]


def _encoded(payload: Payload) -> bytes:
    # Deterministic: the same payload must have the same digest on every replay.
    return payload.SerializeToString(deterministic=True)


class _StrictJson(PydanticJSONPlainPayloadConverter):
    """JSON through pydantic; what does not fit the model is an error for a person."""

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        """The value. Raises `ApplicationError` of type `PayloadValidationError`."""
        try:
            return super().from_payload(payload, type_hint)
        except ValidationError as error:
            raise _readable(error, type_hint) from None


class StrictConverter(CompositePayloadConverter):
    """Temporal's payload encodings with strict JSON."""

    def __init__(self) -> None:
        """Put the strict JSON in the place of Temporal's own."""
        super().__init__(
            *(
                _StrictJson() if isinstance(own, JSONPlainPayloadConverter) else own
                for own in DefaultPayloadConverter.default_encoding_payload_converters
            )
        )

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """The values. Raises `ApplicationError` for encodings that cannot give the wanted type."""
        hints: list[type | None] = list(type_hints or [])
        hints += [None] * (len(payloads) - len(hints))
        for number, (payload, hint) in enumerate(zip(payloads, hints, strict=False), start=1):
            encoding = payload.metadata.get("encoding", b"")
            if hint is not RawValue and not self._fits(encoding, hint):
                shown = encoding.decode(errors="replace")[:80] or "none"
                raise _refusal(f"argument {number} has the encoding {shown!r}; send JSON (json/plain)", [])
        values = super().from_payloads(payloads, type_hints)
        for payload, hint, value in zip(payloads, hints, values, strict=False):
            if payload.metadata.get("encoding") in (b"binary/null", b"binary/plain"):
                _check(value, hint)
        return values

    def _fits(self, encoding: bytes, hint: type | None) -> bool:
        """Whether the encoding can give a value of this type at all."""
        if encoding in PROTOBUF:
            return isinstance(hint, type) and issubclass(hint, Message)
        return encoding in self.converters


def _check(value: object, hint: type | None) -> None:
    """Hold a value that came without JSON against the type that is wanted."""
    if hint is None or hint is RawValue:
        return
    try:
        TypeAdapter(hint).validate_python(value, strict=True)
    except PydanticSchemaGenerationError:
        return  # a class that pydantic does not know: nothing to hold it against
    except ValidationError as error:
        raise _readable(error, hint) from None


def _readable(error: ValidationError, wanted: type | None) -> ApplicationError:
    details = error.errors(include_url=False, include_input=False, include_context=False)
    models = [kind for kind in (wanted, *get_args(wanted)) if _is_model(kind)]
    lines = [f"{_path(item['loc'])}: {_why(item, models)}" for item in details[:_MOST_ERRORS]]
    if len(details) > _MOST_ERRORS:
        lines.append(f"and {len(details) - _MOST_ERRORS} more")
    names = [kind.__name__ for kind in models] or [getattr(wanted, "__name__", "value")]
    said = f"not a valid {' or '.join(names)}: {'; '.join(lines)}"
    return _refusal(said, list(details[:_MOST_ERRORS]))


def _is_model(kind: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _why(item: Mapping[str, Any], models: Sequence[type[BaseModel]]) -> str:
    """What is wrong with a field; where there is none of that name, which there are."""
    if item["type"] != "extra_forbidden":
        return str(item["msg"])[:300]
    there = [name for kind in models for name in kind.model_fields] if len(item["loc"]) == 1 else []
    return "there is no such field" + (f"; there are {', '.join(there)}" if there else "")


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part)[:80] for part in location) or "the whole input"


def _refusal(problem: str, details: list[Any]) -> ApplicationError:
    # The type is the one that the SDK reserves for this purpose.
    return ApplicationError(
        f"Payload validation failed: {problem}",
        details,
        type="PayloadValidationError",
        non_retryable=True,
    )
