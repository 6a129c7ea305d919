"""Chat completions of OpenAI, or of any server that speaks the same protocol."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pydantic import SecretStr

from activities.contracts import ModelReplied, ModelSpec, Setup
from activities.provider import ProviderCall, ProviderError
from activities.settings import Settings
from activities.transcript import Transcript

if TYPE_CHECKING:
    from activities.providers._openai_chat import ChatCompletions

__all__ = ["PROVIDER", "OpenAIProvider", "from_environment"]


MAX_REPLY_BYTES = 128 * 1024 * 1024
"""As a stream, 128,000 tokens are some 40 MB."""


class OpenAIProvider:
    """Answers through chat completions.

    `key` and `base_url` are the worker's own (without a base URL: OpenAI itself); `allowed` are
    further base URLs that a task may name, which never see the key.
    """

    name = "openai"
    description = "chat completions of OpenAI or any compatible server (Ollama, vLLM, LM Studio)"

    def __init__(
        self,
        key: SecretStr | None = None,
        base_url: str | None = None,
        allowed: Iterable[str] = (),
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> None:
        self._key, self._base_url, self._allowed = key, base_url, tuple(allowed)
        self._max_reply_bytes = max_reply_bytes
        self._loaded: ChatCompletions | None = None

    async def complete(self, setup: Setup, transcript: Transcript, call: ProviderCall) -> ModelReplied:
        """The next message. Raises `ProviderError`."""
        return await self._chat().complete(setup, transcript, call)

    async def check(self, spec: ModelSpec) -> str | None:
        """What is wrong with key, base URL, server or model name; None when all is well."""
        try:
            return await self._chat().check(spec)
        except ProviderError as error:
            return error.message

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        if self._loaded is not None:
            await self._loaded.close()

    def _chat(self) -> ChatCompletions:
        """Loaded at the first call: a worker that asks no such model starts without the library."""
        if self._loaded is None:
            from activities.providers._openai_chat import ChatCompletions

            self._loaded = ChatCompletions(self._key, self._base_url, self._allowed, self._max_reply_bytes)
        return self._loaded


def from_environment(settings: Settings, environment: Mapping[str, str] = os.environ) -> OpenAIProvider:
    """The provider of this worker: key and server as OpenAI's own tools take them."""
    key = environment.get("OPENAI_API_KEY", "").strip()
    return OpenAIProvider(
        key=SecretStr(key) if key else None,
        base_url=environment.get("OPENAI_BASE_URL", "").strip() or None,
        allowed=settings.base_urls,
    )


PROVIDER = from_environment
