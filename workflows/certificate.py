"""What an agent carries of the certificate of its machine: digests of what was verified.

`ratchet verify machine NAME|FILE --certificate FILE` writes one. When a run begins, a worker says what it has
in the same digests, and the run's first record says whether that is what was verified.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, StringConstraints, ValidationError

# modules of the vocabulary, not all of it: `ratchet show` reads what is here
from activities.contracts.base import JsonObject, Strict
from activities.text import problems_text
from workflows.kernel.log import FORKED, STARTED, Record

if TYPE_CHECKING:
    from activities.contracts import Digests

__all__ = [
    "CERTIFICATE",
    "DIFFERS",
    "FORMAT",
    "INCOMPLETE",
    "Certificate",
    "certificate_line",
    "of_certificate",
]

FORMAT = "ratchet certificate 1"
CERTIFICATE = "certificate"
"""In `about` of a run's first record: SHA-256 of the certificate that the run began under."""
DIFFERS = "differs"
"""In the same place: what is not as it was verified, in words; left out where all is."""
INCOMPLETE = "incomplete"
"""In the same place: true where the exploration that the certificate is of is not complete; else left out."""
NOT_COMPARED = "all of it: nobody who has the machine could compare it"
ASKED_AGAIN = "the agent's output: what does not fit it is asked for again, which no verified run did"
MAX_NAMED_DIFFERENCES = 20
"""Things that differ and are named; the rest is counted."""
SHOWN_DIGEST_CHARS = 12
"""Characters of a certificate's digest that people see."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Text = Annotated[str, StringConstraints(max_length=1000)]


class Certificate(Strict):
    """The digest of a certificate, and those of what it speaks of."""

    digest: Sha256
    """SHA-256 of the file."""
    complete: bool
    """Every answer of every scenario was tried."""
    machine: Text
    version: Text
    ratchet: Text
    code: dict[Text, Text] = Field(max_length=1000)
    """Module -> SHA-256 of its file: those that all scenarios have."""
    table: Text
    options_schema: Text
    options: dict[Text, dict[Text, Text]] = Field(max_length=1000)
    """Of each scenario, and its other modules: those of the rules, policies and hooks that they name."""
    tools: tuple[Text, ...] = Field(max_length=1000)
    """Of the specs that the scenarios know."""

    @classmethod
    def of(cls, text: str) -> Certificate:
        """What an agent carries of a certificate with this text. Raises ValueError for any other text."""
        advice = "`ratchet verify machine NAME --certificate FILE` writes one"
        try:
            found: Any = json.loads(text)
            if found["format"] != FORMAT:
                raise ValueError(f"its format is {found['format']!r}, expected {FORMAT!r}")
            digest = hashlib.sha256(text.encode()).hexdigest()
            return cls(digest=digest, complete=found["complete"], **found["subject"])
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            why = problems_text(error, 3) if isinstance(error, ValidationError) else why
            raise ValueError(f"not a certificate ({why}); {advice}") from error

    def differences(self, found: Digests | None) -> list[str]:
        """What is not as it was verified, in words; empty: all is. `found`: what a worker has."""
        if found is None:
            return [NOT_COMPARED]
        if (found.machine, found.version) != (self.machine, self.version):
            return [
                f"the machine: {found.machine} {found.version}, verified was {self.machine} {self.version}"
            ]
        every = list(self._differences(found))
        more = len(every) - MAX_NAMED_DIFFERENCES
        return every if more <= 0 else [*every[:MAX_NAMED_DIFFERENCES], f"{more} more"]

    def _differences(self, found: Digests) -> Iterator[str]:
        yield from (f"code {name}" for name in self._other_code(found))
        if found.ratchet != self.ratchet:
            yield "the code of Ratchet"
        if found.table != self.table:
            yield "the table"
        if found.options_schema != self.options_schema:
            yield "which options there are"
        if found.options not in self.options:
            yield "the options: no scenario has these"
        yield from (f"the {one}: it was given in memory" for one in found.given)
        yield from (f"tool {name}" for name, one in found.tools.items() if one not in self.tools)

    def _other_code(self, found: Digests) -> Iterator[str]:
        """The modules that are not as they were verified with these options, or not there."""
        with_these = found.options in self.options
        needed = self.code | self.options.get(found.options, {})
        known = [needed] if with_these else [needed, *self.options.values()]
        gone = {name: one for name, one in needed.items() if name not in found.code}
        for name, one in found.code.items():
            if any(name in each for each in known):
                if all(each.get(name) != one for each in known):
                    yield name
            elif (same := _renamed(name, one, gone)) is not None:
                del gone[same]
            else:
                yield name
        yield from (f"{name}, which is not there" for name in gone)

    def about(self, found: Digests | None, *, has_output: bool) -> JsonObject:
        """For the run's first record; `has_output`: the agent says what its answer must be."""
        found_out: JsonObject = {CERTIFICATE: self.digest, **({} if self.complete else {INCOMPLETE: True})}
        if differs := [*self.differences(found), *([ASKED_AGAIN] if has_output else [])]:
            found_out[DIFFERS] = list(differs)
        return found_out


def _renamed(name: str, digest: str, gone: Mapping[str, str]) -> str | None:
    """What this module was when it was verified: `desk.py` and `shop.desk` may be one file."""
    same = (old for old, one in gone.items() if one == digest)
    return next((old for old in same if name == _file_of(old) or old == _file_of(name)), None)


def _file_of(module: str) -> str:
    return f"{module.rpartition('.')[2]}.py"


def of_certificate(records: Iterable[Record]) -> JsonObject:
    """What a run's first record says of its certificate; empty: it names none. A fork's first record is the
    one by which it left its source."""
    first = [
        one for one in records if one.event == STARTED or (one.event == FORKED and one.back_to is not None)
    ]
    about = first[-1].about if first else {}
    return {name: about[name] for name in (CERTIFICATE, INCOMPLETE, DIFFERS) if name in about}


def certificate_line(about: JsonObject) -> str:
    """For people; empty: there is none."""
    if CERTIFICATE not in about:
        return ""
    shown = f"{str(about[CERTIFICATE])[:SHOWN_DIGEST_CHARS]}..."
    shown += ", whose exploration is not complete" if about.get(INCOMPLETE) else ""
    differs = about.get(DIFFERS)
    if not isinstance(differs, list | tuple):
        return f"{shown}: what runs is what was verified"
    return f"{shown}, and what runs differs: {'; '.join(map(str, differs))}"
