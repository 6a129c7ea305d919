"""A worker's settings, as a process of its own reads them from its environment."""

from __future__ import annotations

import json
import os

import pytest
from pydantic import ValidationError

from activities.settings import Settings
from tests import forked

SHOW = """
from activities.settings import Settings
from pydantic import ValidationError
try:
    print(Settings().model_dump_json())
except ValidationError as error:
    print("; ".join(f"{e['loc'][0]}: {e['msg']}" for e in error.errors()), error)
"""
TOKEN = "t0ken"


def read(**environment: str) -> str:
    code, shown, _ = forked.spoken(SHOW, env={**os.environ, **environment})
    assert code == 0
    return shown


def test_stores_secret_is_one_or_several() -> None:
    plain, old = "a secret of some length", "[but no list of anything"
    for value, count in ((plain, 1), (json.dumps([plain, old]), 2)):
        shown = json.loads(read(RATCHET_STORE_SECRET=value))
        assert shown["store_secret"] == ["**********"] * count
    for value in (old, json.dumps([plain, "sh0rt"]), "sh0rt"):
        refused = read(RATCHET_STORE_SECRET=value)
        assert refused.startswith("store_secret: ")
        assert value not in refused


def test_lists_are_json_and_empty_values_are_unset() -> None:
    shown = read(RATCHET_MODULES='["a.py", "b"]', RATCHET_BASE_URLS="", RATCHET_OUTPUT_CAP="")
    assert '"modules":["a.py","b"],"base_urls":[]' in shown
    assert '"output_cap":16000' in shown


@pytest.mark.parametrize("value", ["http://bob:secret@host/v1", '"http://bob:secret@host/v1"', "{}"])
def test_value_that_is_no_list_is_refused_unseen(value: str) -> None:
    shown = read(RATCHET_BASE_URLS=value)
    assert 'base_urls: Value error, expected a JSON list of quoted texts, such as ["one", "two"]' in shown
    assert "secret" not in shown


@pytest.mark.parametrize("url", [f"ftp://host/{TOKEN}", f"https:///{TOKEN}", TOKEN, f"http://[{TOKEN}/"])
def test_unusable_webhook_is_refused_unseen(url: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Settings.model_validate({"notify_url": url})
    assert TOKEN not in str(raised.value)
    assert "notify_url" in str(raised.value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("500", "expected a JSON object, such as"),
        (
            '{"gpt-5": {"requests_per_minute": 5}}',
            "expected a provider and a model, such as openai/gpt-5-mini",
        ),
        ('{"openai/": {"requests_per_minute": 5}}', "expected a provider and a model"),
        ('{"openai/*": {"requests_per_min": 5}}', "Extra inputs are not permitted"),
        ('{"openai/*": {"requests_per_minute": 0}}', "Input should be greater than 0"),
        ('{"openai/*": {}}', "expected requests_per_minute, tokens_per_minute, or both"),
    ],
)
def test_unusable_rate_limit_is_refused(value: str, problem: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Settings.model_validate({"rate_limits": value})
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    "given", [{"max_workflow_tasks": 1}, {"max_activities": 0}, {"target_memory": 80}, {"target_cpu": 0}]
)
def test_unusable_size_of_a_worker_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(given))):
        Settings.model_validate(given)
