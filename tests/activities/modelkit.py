"""What the tests of model providers share: a conversation, a key, and how to ask."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from activities.contracts import Conversation, Message, ModelReplied, ModelSpec, Setup
from activities.provider import ModelCall, Provider, ProviderError

KEY = "sk-test-7Hq2mZ9xLw4TbR8vNc3K"
CONVERSATION = Conversation(
    [Message(role="system", content="Be brief."), Message(role="user", content="one two three")]
)
BOTH = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


def setup(name: str, stream: bool = True, **more: Any) -> Setup:
    """A setup for the fake server's model of this name."""
    tools, schema = more.pop("tools", ()), more.pop("response_schema", None)
    model = ModelSpec(name=name, stream=stream, **more)
    return Setup(model=model, tools=tools, response_schema=schema)


async def ask(
    provider: Provider, wanted: Setup, conversation: Conversation = CONVERSATION, **more: Any
) -> ModelReplied:
    """The reply; whoever waits for two minutes waits in vain."""
    return await asyncio.wait_for(provider.complete(ModelCall(wanted, conversation, **more)), 120)


async def failure(
    provider: Provider, wanted: Setup, conversation: Conversation = CONVERSATION
) -> ProviderError:
    """The error of the call."""
    with pytest.raises(ProviderError) as caught:
        await ask(provider, wanted, conversation)
    assert caught.value.__cause__ is None
    return caught.value
