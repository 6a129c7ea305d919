"""A worker's settings, as a process of its own reads them from its environment."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOW = """
from activities.settings import Settings
from pydantic import ValidationError
try:
    print(Settings().model_dump_json())
except ValidationError as error:
    print("; ".join(f"{e['loc'][0]}: {e['msg']}" for e in error.errors()), error)
"""


def read(**environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_lists_are_json_and_what_is_empty_counts_as_not_given() -> None:
    said = read(RATCHET_MODULES='["a.py", "b"]', RATCHET_BASE_URLS="", RATCHET_OUTPUT_CAP="")
    assert '"modules":["a.py","b"],"base_urls":[]' in said
    assert '"output_cap":16000' in said


@pytest.mark.parametrize("value", ["http://bob:secret@host/v1", '"http://bob:secret@host/v1"', "{}"])
def test_what_is_no_list_is_refused_with_an_example_and_not_repeated(value: str) -> None:
    said = read(RATCHET_BASE_URLS=value)
    assert 'base_urls: Value error, expected a JSON list, such as ["..."]' in said
    assert "secret" not in said
