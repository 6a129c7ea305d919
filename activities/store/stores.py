"""What a worker or a client keeps beside Temporal, where its settings say: in files, PostgreSQL, a bucket."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

from activities.settings import Settings
from activities.store.blobs import BlobStore
from activities.store.encryption import Keys, SealedBlobs, check_keys
from activities.store.secret import StoreSecret

if TYPE_CHECKING:
    from activities.store.archive import Archive
    from activities.store.call_store import CallsMade
    from activities.store.database import Postgres

__all__ = ["Stores"]

NAMESPACES = "namespaces/"
"""Beginning of names beside the blobs."""


class Stores:
    """The stores of some settings. Nothing is opened before it is used.

    An attribute raises `StoreError` where the library of its store is missing, or the address is wrong.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @cached_property
    def keys(self) -> Keys:
        """What encrypts."""
        return Keys(self.settings.encryption_keys)

    @cached_property
    def secret(self) -> StoreSecret:
        """What signs claims on blobs."""
        return StoreSecret(self.settings.blobs_dir, self.settings.store_secret)

    @cached_property
    def blobs(self) -> BlobStore:
        """Large values: RATCHET_BLOBS, else RATCHET_STORE, else the data directory."""
        from activities.store.remote import Bucket, Rows

        if self.settings.blobs:
            return BlobStore(Bucket(self.settings.blobs))
        return BlobStore(Rows(self._postgres) if self._postgres else self.settings.blobs_dir)

    @cached_property
    def sealed(self) -> BlobStore:
        """The same for what is not a payload, which Temporal's converter encrypts: material, whole outputs,
        sessions."""
        return SealedBlobs(self.blobs, self.keys)

    @cached_property
    def archive(self) -> Archive:
        """Logs of runs: RATCHET_STORE, else the data directory."""
        from activities.store.archive import Archive

        return Archive(self._postgres or self.settings.archive_file, self.keys)

    @cached_property
    def calls(self) -> CallsMade:
        """Calls with outside effects: RATCHET_STORE, else the data directory."""
        from activities.store.call_store import CallsMade

        return CallsMade(self._postgres or self.settings.calls_file, self.keys)

    @cached_property
    def _postgres(self) -> Postgres | None:
        """One for all tables: they share its connections."""
        if self.settings.store is None:
            return None
        from activities.store import archive, call_store, remote
        from activities.store.database import Postgres

        schema = archive.SCHEMA + call_store.SCHEMA + remote.SCHEMA
        return Postgres(self.settings.store.get_secret_value(), schema)

    def check_keys(self) -> None:
        """Raise `WrongKey` if a key is another one than the stores know by its name."""
        check_keys(self.keys, self.blobs.objects)

    def namespaces(self) -> dict[str, str]:
        """Temporal's namespaces whose workers used the blobs: names by id."""
        objects = self.blobs.objects
        marks = [name for name, _, _ in objects.names() if name.startswith(NAMESPACES)]
        return {name.removeprefix(NAMESPACES): (objects.read(name) or b"").decode() for name in marks}

    def add_namespace(self, namespace_id: str, name: str) -> None:
        """Write down that workers of a namespace use the blobs: whoever deletes some looks there."""
        objects = self.blobs.objects
        if objects.stat(NAMESPACES + namespace_id) is None:
            objects.write(NAMESPACES + namespace_id, name.encode())

    def forget_namespace(self, namespace_id: str) -> None:
        """No worker of that namespace uses the blobs any more."""
        self.blobs.objects.delete(NAMESPACES + namespace_id, math.inf)

    def close(self) -> None:
        """Close connections; what is used afterwards opens them again."""
        if self.__dict__.get("_postgres") is not None:
            self._postgres.close()  # type: ignore[union-attr]  # it is there
