"""How values become Temporal payloads: strict JSON through pydantic, encrypted where there are keys, large
ones in the blob store.

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

import structlog
from google.protobuf.message import Message
from pydantic import BaseModel, ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.api.sdk.v1.external_storage_pb2 import ExternalStorageReference
from temporalio.common import RawValue
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverter,
    DefaultPayloadConverter,
    EncodingPayloadConverter,
    ExternalStorage,
    JSONPlainPayloadConverter,
    JSONProtoPayloadConverter,
    PayloadConverter,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverSelectContext,
    StorageDriverStoreContext,
)
from temporalio.exceptions import ApplicationError

from activities.contracts import Frozen, ModelInput, ModelReplied, ToolInput, ToolResult
from activities.store.blobs import DIGEST, BlobStore, StoreError
from activities.store.codec import INLINE, STRANGE, UNREADABLE, Codec
from activities.store.encryption import ENCODED, Keys, OfAnotherStore
from activities.store.secret import StoreSecret
from activities.text import problems_text

__all__ = ["HandlersConverter", "StrictConverter", "data_converter"]

BLOB_THRESHOLD_BYTES = 16 * 1024
"""Payloads of this many bytes or more are kept in the blob store."""
INLINE_BYTES = 100_000
"""The same for what programs of others read, such as a run's result: they have no access to the store."""
DRIVER = "ratchet-blobs"
"""Name of the driver in the claims that history holds; it must never change."""
CLAIM_BYTES = 1000
"""No claim of ours is longer."""
REFERENCE = ExternalStorageReference.DESCRIPTOR.full_name.encode()
"""Temporal's message type of a claim."""
REFERENCE_MARKS = (b"json/external-storage-reference", b"__temporal_external_storage_reference")
"""An encoding, and a key of the metadata, by which the SDK takes a payload for a claim, too."""
UNSIGNED = b"ratchet/unsigned-claim"
"""Encoding of what takes the place of a claim that this store did not make."""
UNSIGNED_TEXT = (
    "a claim on stored data that this store did not make. Send the value itself. If one of your own workers "
    "or clients made the claim, let it use the same data directory, or set the same RATCHET_STORE_SECRET "
    "everywhere"
)
REPLACED = {UNSIGNED: UNSIGNED_TEXT, UNREADABLE: STRANGE}
"""Encodings of what takes the place of something forged, and what to say of it."""
SHORT = (ModelInput, ModelReplied, ToolInput, ToolResult)
"""Written without the fields that have their default. Their unions need none of those to be read."""
PROTOBUF = (b"json/protobuf", b"binary/protobuf")
MAX_SHOWN_ERRORS = 20

log = structlog.get_logger("ratchet")


def data_converter(store: tuple[BlobStore, StoreSecret] | None, keys: Keys | None = None) -> DataConverter:
    """Temporal's data converter for clients, workers and replayers.

    Args:
        store: what keeps large payloads, and what signs the claims on them; None: every payload stays in
            history.
        keys: with them payloads are encrypted, blobs among them, and so are messages and stack traces of
            failures.
    """
    if store is None:
        return ClaimsChecked(payload_converter_class=StrictConverter, failure_converter_class=WithoutPlaces)
    keys, driver = keys or Keys(), BlobDriver(*store)

    def chosen(_: StorageDriverSelectContext, payload: Payload) -> StorageDriver | None:
        # taken off again: Temporal's command line shows JSON only without marks
        limit = INLINE_BYTES if payload.metadata.pop(INLINE, None) else BLOB_THRESHOLD_BYTES
        return driver if payload.ByteSize() >= limit else None

    storage = ExternalStorage(drivers=[driver], driver_selector=chosen, payload_size_threshold=0)
    return ClaimsChecked(
        payload_converter_class=StrictConverter,
        # always: what was encrypted must not be taken for an invalid value where the keys are missing
        payload_codec=Codec(keys, store[1]),
        failure_converter_class=Encoded if keys.active else WithoutPlaces,
        external_storage=storage,
    )


class ClaimsChecked(DataConverter):
    """Lets nobody else's claims through.

    The SDK looks up a claim before the workflow sees the message that holds it, and fails the workflow task
    when it cannot: one forged claim in a signal would stop the run for ever. It has no public place for a
    check before that, hence the method with an underscore; `tests/server/test_claims.py` fails when it moves.
    """

    async def _decode_reference_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        """The payloads; those that claim what the store did not sign are replaced."""
        storage = self.external_storage
        drivers = storage.drivers if storage else ()
        checked = [
            _unsigned()
            if _is_claim(payload)
            and not any(isinstance(d, BlobDriver) and d.signed(payload) for d in drivers)
            else payload
            for payload in payloads
        ]
        return await super()._decode_reference_payload_sequence(checked)


def _is_claim(payload: Payload) -> bool:
    """The SDK may take the payload for a claim."""
    metadata, (encoding, key) = payload.metadata, REFERENCE_MARKS
    return (
        metadata.get("messageType") == REFERENCE
        or metadata.get("encoding") == encoding
        or key.decode() in metadata
    )


def _unsigned() -> Payload:
    log.warning("store.claim_refused", reason=UNSIGNED_TEXT)
    return Payload(metadata={"encoding": UNSIGNED})


class WithoutPlaces(DefaultFailureConverter):
    """Failures without stack traces: those hold paths of the worker's files, and whoever can read a history,
    or send an update that is refused, would see them. The worker's log has them."""

    encodes = False
    """Messages are payloads, so that they are encrypted."""

    def to_failure(
        self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure
    ) -> None:
        """See `FailureConverter`."""
        super().to_failure(exception, payload_converter, failure)
        part = failure
        while True:
            part.stack_trace = ""
            if self.encodes and part.message != ENCODED:
                (payload,) = payload_converter.to_payloads([{"message": part.message}])
                part.encoded_attributes.CopyFrom(payload)
                part.message = ENCODED
            if not part.HasField("cause"):
                return
            part = part.cause


class Encoded(WithoutPlaces):
    """The same with encrypted messages."""

    encodes = True


class BlobDriver(StorageDriver):
    """Keeps payloads in the blob store; the claim in history is the SHA-256 of the payload, signed."""

    def __init__(self, blobs: BlobStore, secret: StoreSecret) -> None:
        self._blobs, self._secret = blobs, secret

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

        return [
            StorageDriverClaim({"sha256": digest, "signature": self._secret.signature(digest)})
            for digest in await asyncio.to_thread(put)
        ]

    def signed(self, payload: Payload) -> bool:
        """Whether the payload is a claim that this store has made. Raises `StoreError`."""
        if payload.metadata.get("encoding") != b"json/protobuf" or len(payload.data) > CLAIM_BYTES:
            return False
        try:
            claim = JSONProtoPayloadConverter().from_payload(payload, ExternalStorageReference)
        except Exception:  # noqa: BLE001  # whatever is wrong with it
            return False
        if claim.driver_name != DRIVER or set(claim.claim_data) != {"sha256", "signature"}:
            return False
        if not DIGEST.fullmatch(claim.claim_data["sha256"]):  # the secret signs other texts, too
            return False
        return self._secret.signed(claim.claim_data["sha256"], claim.claim_data["signature"])

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """The payloads again. Raises `BlobMissing` or `BlobDamaged`, which Temporal retries."""

        def get() -> list[bytes]:
            return [self._blobs.get(claim.claim_data["sha256"]) for claim in claims]

        try:
            return [Payload.FromString(data) for data in await asyncio.to_thread(get)]
        except StoreError as error:
            log.error("store.blob_unusable", error=str(error))
            raise


class _StrictJson(PydanticJSONPlainPayloadConverter):
    """JSON through pydantic; what does not fit the model is an error for a person.

    Fields of a call's input and answer that have their default are left out: there are two of each in every
    step, for as long as history is kept.
    """

    def to_payload(self, value: Any) -> Payload | None:
        """The value as JSON."""
        if not isinstance(value, SHORT):
            payload = super().to_payload(value)
            if payload is not None and getattr(value, "read_by_others", False):
                payload.metadata[INLINE] = b"true"
            return payload
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


class HandlersConverter(StrictConverter):
    """For the agent's workflow, whose handlers take anything: what cannot be read they get as it came. The
    SDK would drop a signal whose values raise, and nobody would know of it."""

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """As `StrictConverter`; where no types are wanted, `RawValue` in place of an error."""
        try:
            return super().from_payloads(payloads, type_hints)
        except (ApplicationError, RuntimeError):  # the latter: broken JSON
            if type_hints is not None:
                raise
            return [RawValue(payload) for payload in payloads]


def _readable(number: int, payload: Payload, hint: type | None) -> Payload:
    """The payload, if its encoding can give a value of this type; nothing becomes null, which is checked.

    Raises `ApplicationError`. An answer of our own activities is never given up: for an unsigned claim in its
    place `StoreError` is raised, and the task is tried again until all workers have one secret.
    """
    encoding = payload.metadata.get("encoding", b"")
    is_message = isinstance(hint, type) and issubclass(hint, Message)
    if hint is RawValue or encoding == b"json/plain" or (encoding in PROTOBUF and is_message):
        return payload
    if encoding == b"binary/plain" and hint in (None, bytes):
        return payload
    if encoding in REPLACED:
        if any(isinstance(kind, type) and issubclass(kind, Frozen) for kind in (hint, *get_args(hint))):
            raise OfAnotherStore if encoding == UNREADABLE else StoreError(f"it is {UNSIGNED_TEXT}")
        raise _refusal(f"argument {number} is {REPLACED[encoding]}", [])
    if encoding == b"binary/null":
        return Payload(metadata={"encoding": b"json/plain"}, data=b"null")
    shown = encoding.decode(errors="replace")[:80] or "none"
    raise _refusal(f"argument {number} has the encoding {shown!r}; send JSON (json/plain)", [])


def _validation_error(error: ValidationError, wanted: type | None) -> ApplicationError:
    models = [kind for kind in (wanted, *get_args(wanted)) if _is_model(kind)]
    details = error.errors(include_url=False, include_input=False, include_context=False)[:MAX_SHOWN_ERRORS]
    text = problems_text(error, MAX_SHOWN_ERRORS)
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
