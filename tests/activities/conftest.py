"""Fixtures for the activities: a fake model server and the openai provider in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from pydantic import SecretStr

from activities.providers.openai import OpenAIProvider
from tests.activities.modelkit import KEY
from tests.fake_openai import FakeOpenAI


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
