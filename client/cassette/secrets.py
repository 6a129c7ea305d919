"""Taking secrets out of a recording: each value becomes `[removed N]`, the same everywhere.

The same value has the same mark wherever it stood, so a run whose tool was given a token still plays.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import re2  # type: ignore[import-untyped]  # google-re2 ships no types

from activities.contracts import compiled
from client.errors import UsageError

__all__ = ["secrets_of_environment", "without_secrets"]

WORDS = (
    r"authorization|auth[_-]?key|password|passwd|passphrase|passcode|pwd|secret|api[_-]?key|apikey|"
    r"access[_-]?key|private[_-]?key|token|cookie"
)
NAME = re.compile(rf"(?i)(^|[_\-. ]|(?<=[a-z0-9])(?-i:(?=[A-Z])))({WORDS}|credential)s?$")
"""Names whose texts and long numbers are secrets: `Authorization`, `db_password`, `accessToken`."""
COUNT = re.compile(r"(?i)tokens$")
"""Names whose numbers count something: `input_tokens`."""
SECRET_NAME = rf"""\b[\w.-]*(?:{WORDS})\\?["']?\s*[:=]\s*"""
INSIDE = re2.compile(
    "(?is)"
    + "|".join((
        SECRET_NAME + r"""\\?"(?:(?:bearer|basic)\s+)?((?:[^"\\]|\\[^"]){6,}?)\\?["]""",
        SECRET_NAME + r"""'((?:[^'\\]|\\.){6,})'""",
        SECRET_NAME + r"""\\?["']?(?:(?:bearer|basic)\s+)?([^\s"'\\,;&<>{}\[\]]{6,})""",
        r"\b(?:bearer|basic)\s+([\w.~+/=-]{8,})",
        r"\b(sk-[\w-]{16,}|[rs]k_(?:live|test)_\w{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|"
        r"(?:xox[abeprs]|xapp)-[\w-]{10,}|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}|ya29\.[\w-]{16,}|npm_\w{30,}|"
        r"hf_\w{30,}|SG\.[\w-]{16,}\.[\w-]{16,}|eyJ[\w-]{10,}\.[\w-]+\.[\w-]+)",
        r"\bhooks\.slack\.com/services/([\w/-]{10,})",
        r"://[^\s/:@]*:([^\s/@]{3,})@",
        r"(-----BEGIN [A-Z ]*PRIVATE KEY-----.+?-----END [A-Z ]*PRIVATE KEY-----)",
    ))
)  # fmt: skip
"""In a text: `password=...`, `"token": "..."`, bearer tokens, keys of well-known forms, passwords in
addresses, private keys."""
START = re.compile(r"[{\[]")
MIN_SECRET_CHARS = 6
"""Characters of a secret that is found by its name: a shorter one would be found in other words, too. Digits,
of a number."""
OWN_NAME = 16
"""Characters of a secret that is also taken out of names: a shorter one may be a name of the format."""
OF_THE_FORMAT = {"tools", "runs", "cassette", "run"}
"""Parts that hold no values of users: descriptions and schemas of tools."""


def secrets_of_environment() -> tuple[str, ...]:
    """Values of this process's environment whose names say that they are secrets, API keys among them."""
    return tuple(
        value for name, value in os.environ.items() if NAME.search(name) and len(value) >= MIN_SECRET_CHARS
    )


def without_secrets(
    values: dict[str, Any], *, known: Iterable[str] = (), patterns: Sequence[str] = ()
) -> tuple[dict[str, Any], int]:
    """The values without their secrets, and how many different ones there were.

    Args:
        known: secrets themselves.
        patterns: regular expressions (RE2): texts that match are secrets, and whole texts under a name that
            matches as a whole.

    Raises:
        UsageError: a pattern is not a regular expression.
    """
    try:
        given = [compiled(one) for one in patterns]
    except ValueError as error:
        raise UsageError(f"--remove: {error}") from error
    searched = {key: one for key, one in values.items() if key not in OF_THE_FORMAT}
    numbers = _secret_numbers(searched, given)
    texts = (_secrets_in(name, text, given) for name, text in _texts(searched))
    found = dict.fromkeys(filter(None, chain(known, *texts, numbers)))
    ordered = sorted(found, key=len, reverse=True)
    marks = {secret: f"[removed {number}]" for number, secret in enumerate(found, start=1)}
    used: set[str] = set()

    def clean(text: str, shortest: int = 0) -> str:
        for secret in (one for one in ordered if len(one) >= shortest):
            for form in {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}:
                if form in text:
                    used.add(secret)
                    text = text.replace(form, marks[secret])
        return text

    def clean_number(name: str, number: float) -> Any:
        if (text := json.dumps(number)) not in numbers or COUNT.search(name):
            return number
        used.add(text)
        return marks[text]

    return {key: _mapped(one, key, clean, clean_number) for key, one in values.items()}, len(used)


def _secrets_in(name: str, text: str, patterns: Sequence[Any]) -> Iterator[str]:
    is_named = NAME.search(name) is not None and len(text) >= MIN_SECRET_CHARS
    if is_named or any(pattern.fullmatch(name) for pattern in patterns):
        yield text.removeprefix("Bearer ").removeprefix("Basic ")
    for match in INSIDE.finditer(text):
        yield next(part for part in match.groups() if part)
    for pattern in patterns:
        for match in pattern.finditer(text):
            if match.group():
                yield match.group()


def _secret_numbers(values: Any, patterns: Sequence[Any]) -> dict[str, None]:
    """Such as passcodes, as JSON; nothing that is counted."""
    named = ((name, json.dumps(one)) for name, one in _leaves(values, "") if not isinstance(one, str))
    return {
        number: None
        for name, number in named
        if len(number) >= MIN_SECRET_CHARS and not COUNT.search(name)
        if NAME.search(name) or any(pattern.fullmatch(name) for pattern in patterns)
    }


def _texts(values: Any) -> Iterator[tuple[str, str]]:
    return ((name, one) for name, one in _leaves(values, "") if isinstance(one, str))


def _leaves(value: Any, name: str) -> Iterator[tuple[str, str | float]]:
    """Every text and number with the name that it stands under, also in JSON that a text has; names stand
    under none."""
    if isinstance(value, str):
        yield name, value
        if begins := START.search(value):
            with suppress(ValueError, RecursionError):
                yield from _leaves(json.JSONDecoder().raw_decode(value, begins.start())[0], name)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield "", str(key)
            yield from _leaves(item, str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


def _mapped(value: Any, name: str, change: Any, change_number: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            change(key, OWN_NAME): _mapped(item, str(key), change, change_number)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_mapped(item, name, change, change_number) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return change_number(name, value)
    return value
