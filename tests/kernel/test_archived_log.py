"""A log that comes back from the archive is verified as it was written, whatever a record has today."""

from __future__ import annotations

import json
from typing import Any

import pytest

from activities.contracts.chain import next_hash
from workflows.hosts.archive import verified_records
from workflows.kernel.log import Record, chain

SMALL = Record(seq=0, machine="m", state="S", event="Started", counters={"usd": 5e-05, "seconds": 1e-07})
VALUE: dict[str, Any] = json.loads(SMALL.model_dump_json())
LATER: dict[str, Any] = {
    "seq": 1,
    "machine": "m",
    "state": "S",
    "event": "Went",
    "of_another_version": ["ä", 1.5],
}
HEAD = next_hash(chain([SMALL]), json.dumps(LATER, ensure_ascii=False, separators=(",", ":")))


def test_record_of_another_version_is_verified() -> None:
    assert [record.event for record in verified_records([VALUE, LATER], HEAD)] == ["Started", "Went"]


@pytest.mark.parametrize("change", [{"of_another_version": ["a", 1.5]}, {"event": "Stayed"}, {"more": 0}])
def test_changed_record_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="differs from what this run wrote"):
        verified_records([VALUE, LATER | change], HEAD)


def test_missing_record_is_refused() -> None:
    with pytest.raises(ValueError, match="differs from what this run wrote"):
        verified_records([VALUE], HEAD)
