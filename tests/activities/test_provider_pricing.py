"""What a reply costs."""

from __future__ import annotations

import pytest

from activities.contracts import ModelSpec, Price, Usage
from activities.pricing import cost_of

MILLION = Usage(input_tokens=1_000_000, output_tokens=1_000_000)


def test_the_tasks_own_price_goes_before_every_list() -> None:
    spec = ModelSpec(name="gpt-5-mini", price=Price(input_per_million=1, output_per_million=2))
    assert cost_of(spec, MILLION, "gpt-5-mini", "https://api.openai.com/v1") == (3, True)


def test_the_model_that_answered_is_priced_not_the_alias_that_was_asked() -> None:
    url = "https://api.openai.com/v1"
    dated, known = cost_of(ModelSpec(name="my-alias"), MILLION, "gpt-5-mini-2025-08-07", url)
    assert known
    assert dated > 0
    assert cost_of(ModelSpec(name="gpt-5-mini"), MILLION, "", url) == (dated, True)


def test_cached_tokens_are_cheaper_and_never_more_than_there_are() -> None:
    spec, url = ModelSpec(name="gpt-5-mini"), "https://api.openai.com/v1"
    full, _ = cost_of(spec, Usage(input_tokens=1000), "", url)
    cached, _ = cost_of(spec, Usage(input_tokens=1000, cached_tokens=1000), "", url)
    assert 0 < cached < full
    assert cost_of(spec, Usage(input_tokens=1000, cached_tokens=9999), "", url) == (cached, True)


@pytest.mark.parametrize(
    "url", ["http://localhost:11434/v1", "http://127.0.0.1:1/v1", "http://10.0.0.7/v1", "http://gpu.local/v1"]
)
def test_a_model_on_ones_own_machine_has_no_list_price(url: str) -> None:
    assert cost_of(ModelSpec(name="gpt-5-mini"), MILLION, "", url) == (0, False)


def test_a_proxy_costs_what_the_model_of_that_name_costs() -> None:
    spec = ModelSpec(name="gpt-5-mini")
    assert cost_of(spec, MILLION, "", "https://llm.example.com/v1") == cost_of(
        spec, MILLION, "", "https://api.openai.com/v1"
    )


def test_an_unknown_model_costs_nothing_that_is_known() -> None:
    assert cost_of(ModelSpec(name="no-such-model"), MILLION, "no-such-model") == (0, False)


def test_costs_have_nine_decimals() -> None:
    spec = ModelSpec(name="m", price=Price(input_per_million=0.3333333333, output_per_million=0))
    assert cost_of(spec, Usage(input_tokens=1)) == (3.33e-07, True)
    assert cost_of(spec, Usage(input_tokens=7)) == (0.000002333, True)
