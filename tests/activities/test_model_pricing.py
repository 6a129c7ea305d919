"""What a reply costs."""

from __future__ import annotations

import pytest

from activities.contracts import ModelSpec, Price, Usage
from activities.pricing import cost_of

MILLION = Usage(input_tokens=1_000_000, output_tokens=1_000_000)
OPENAI = "https://api.openai.com/v1"
GPT = ModelSpec(name="gpt-5-mini")


def test_tasks_own_price_wins() -> None:
    model = ModelSpec(name="gpt-5-mini", price=Price(input_per_million=1, output_per_million=2))
    assert cost_of(model, MILLION, "gpt-5-mini", OPENAI) == (3, True)


def test_the_model_that_answered_is_priced() -> None:
    dated, known = cost_of(ModelSpec(name="my-alias"), MILLION, "gpt-5-mini-2025-08-07", OPENAI)
    assert known
    assert dated > 0
    assert cost_of(GPT, MILLION, "", OPENAI) == (dated, True)


def test_cached_tokens_are_cheaper() -> None:
    full, _ = cost_of(GPT, Usage(input_tokens=1000), "", OPENAI)
    cached, _ = cost_of(GPT, Usage(input_tokens=1000, cached_tokens=1000), "", OPENAI)
    assert 0 < cached < full
    assert cost_of(GPT, Usage(input_tokens=1000, cached_tokens=9999), "", OPENAI) == (cached, True)


@pytest.mark.parametrize("host", ["localhost:11434", "127.0.0.1:1", "10.0.0.7", "gpu.local", "[::1]:8000"])
def test_model_on_a_private_network_has_no_price(host: str) -> None:
    assert cost_of(GPT, MILLION, "", f"http://{host}/v1") == (0, False)


def test_price_of_an_unknown_model_is_unknown() -> None:
    assert cost_of(ModelSpec(name="no-such-model"), MILLION, "no-such-model") == (0, False)
