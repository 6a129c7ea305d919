"""What the tests of the openai provider share: a conversation, a key, and how to ask."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from activities.contracts import ModelReplied, ModelSpec, Setup
from activities.provider import ProviderCall, ProviderError
from activities.providers.openai import OpenAIProvider
from activities.transcript import Message, Transcript

KEY = "sk-test-7Hq2mZ9xLw4TbR8vNc3K"
ASKED = Transcript(
    [Message(role="system", content="Be brief."), Message(role="user", content="one two three")]
)
BOTH = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


def setup(name: str, stream: bool = True, **more: Any) -> Setup:
    """A setup for the fake server's model of this name."""
    tools, schema = more.pop("tools", ()), more.pop("response_schema", None)
    spec = ModelSpec(name=name, stream=stream, **more)
    return Setup(model=spec, tools=tools, response_schema=schema)


async def ask(
    provider: OpenAIProvider, wanted: Setup, transcript: Transcript = ASKED, call: ProviderCall | None = None
) -> ModelReplied:
    """The reply, within 20 seconds."""
    return await asyncio.wait_for(provider.complete(wanted, transcript, call or ProviderCall()), 20)


async def failure(provider: OpenAIProvider, wanted: Setup) -> ProviderError:
    """What the call fails with."""
    with pytest.raises(ProviderError) as caught:
        await ask(provider, wanted)
    assert caught.value.__cause__ is None
    return caught.value
