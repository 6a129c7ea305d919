"""No secret of a run is in the file that is made of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from client.cassette.secrets import without_secrets

SECRET = "Zq7rT0vW9xYb2LmN4pKd"


def nested(value: Any) -> str:
    return json.dumps({"content": json.dumps(value)})


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"clientSecret": SECRET}, id="camel case"),
        pytest.param({"accessToken": [SECRET]}, id="camel case, in a list"),
        pytest.param({"db_pwd": SECRET}, id="pwd"),
        pytest.param({"headers": {"X-Auth-Key": SECRET}}, id="header"),
        pytest.param(f'{{"clientSecret": "{SECRET}"}}', id="JSON"),
        pytest.param(nested({"userPwd": SECRET}), id="JSON in JSON"),
        pytest.param(json.dumps({"password": f'a b "{SECRET}'}), id="blanks and quotes"),
        pytest.param("HTTP 200\n\n" + json.dumps({"password": f'a b"{SECRET}'}), id="JSON behind text"),
        pytest.param(f'[note] it says {{"password": "a b {SECRET}"}}', id="JSON behind what looks like it"),
        pytest.param(f"password: 'a b {SECRET}'", id="quoted"),
        pytest.param({f"sk-{SECRET}": 1}, id="key of a map"),
        pytest.param(
            {"known-secret-of-mine": SECRET.join(["known-secret-of-mine"])}, id="known, key of a map"
        ),
    ],
)
def test_secret_is_nowhere(value: Any) -> None:
    clean, _ = without_secrets({"course": [value]}, known=["known-secret-of-mine"])
    text = json.dumps(clean)
    assert SECRET not in text
    assert "known-secret-of-mine" not in text


@pytest.mark.parametrize(
    "secret",
    [
        f"AIzaSy{SECRET}{SECRET[:13]}", f"glpat-{SECRET}", f"github_pat_{SECRET}{SECRET}",
        f"npm_{SECRET}{SECRET[:16]}", f"hf_{SECRET}{SECRET[:14]}", f"sk_live_{SECRET}", f"xapp-1-{SECRET}",
        f"SG.{SECRET}.{SECRET}",
        f"ya29.{SECRET}", "ASIAQWERTYUIOPASDFGH", f"https://hooks.slack.com/services/T0/B0/{SECRET}",
    ],
)  # fmt: skip
def test_key_of_a_well_known_form_is_removed(secret: str) -> None:
    clean, removed = without_secrets({"final": {"answer": f"use {secret}, please"}})
    assert clean["final"]["answer"] == "use [removed 1], please" or secret.startswith("https")
    assert (removed, SECRET in str(clean), "ASIA" in str(clean)) == (1, False, False)


def test_number_is_removed_where_its_name_says_secret() -> None:
    call = {"passcode": 482913, "code": 482913, "codes": [482913], "pin_token": [1234567], "cents": 100000}
    course = [{"arguments": call, "text": json.dumps({"passcode": 482913}), "other": "it is 482913"}]
    clean, removed = without_secrets({"course": course})
    assert "482913" not in json.dumps(clean)
    assert "1234567" not in json.dumps(clean)
    assert (clean["course"][0]["arguments"]["cents"], removed) == (100000, 2)
    assert clean["course"][0]["arguments"]["passcode"] == clean["course"][0]["arguments"]["code"]


def test_number_that_counts_or_is_short_is_no_secret() -> None:
    values = {
        "task": {"limits": {"tokens": 1_000_000}, "password": True, "pin_token": 4711},
        "course": [{"usage": {"input_tokens": 482913}, "arguments": {"password": 482913}}],
    }
    clean, removed = without_secrets(values)
    values["course"][0]["arguments"] = {"password": "[removed 1]"}  # type: ignore[index]  # a list
    assert (clean, removed) == (values, 1)


def test_number_under_a_name_that_is_given_is_removed() -> None:
    clean, _ = without_secrets({"course": [{"account": 12345678, "amount": 87654321}]}, patterns=["account"])
    assert "12345678" not in json.dumps(clean)
    assert clean["course"][0]["amount"] == 87654321


def test_word_that_is_a_secret_elsewhere_stays_a_name() -> None:
    """A short one may be a name of the file's own format."""
    clean, _ = without_secrets({"task": {"models": {"default": {"password": "default"}}}})
    assert clean == {"task": {"models": {"default": {"password": "[removed 1]"}}}}
