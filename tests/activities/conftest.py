"""Fixtures for the activities: a fake model server, the openai provider in front of it, stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from activities.providers.openai import OpenAIProvider
from activities.store.blobs import BlobStore
from activities.store.remote import Rows
from tests.activities.modelkit import KEY
from tests.fake_openai import FakeOpenAI
from tests.storekit import opened_blobs


@pytest.fixture(scope="session")
def running_server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as server:
        yield server


@pytest.fixture
def server(running_server: FakeOpenAI) -> FakeOpenAI:
    """The fake server, with nothing recorded."""
    running_server.reset()
    return running_server


@pytest.fixture
async def provider(server: FakeOpenAI) -> AsyncIterator[OpenAIProvider]:
    """The provider of a worker whose OPENAI_BASE_URL is the fake server."""
    provider = OpenAIProvider(SecretStr(KEY), server.base_url)
    yield provider
    await provider.close()


@pytest.fixture(params=["files", "postgres", "s3"])
def blobs_place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where blobs are kept; there are none yet."""
    if request.param == "files":
        return str(tmp_path / "sub" / "blobs")
    return str(request.getfixturevalue({"postgres": "postgres", "s3": "bucket"}[request.param]))


@pytest.fixture
def blobs(blobs_place: str) -> Iterator[BlobStore]:
    """An empty store of each kind."""
    blobs = opened_blobs(blobs_place)
    yield blobs
    if isinstance(blobs.objects, Rows):
        blobs.objects.database.close()
