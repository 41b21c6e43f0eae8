"""What a request waits for: the first of what has to happen before it is prepared."""

from __future__ import annotations

from typing import Any

import pytest
from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.runtime.admission.waiting import Waiting
from wavepp_worker.runtime.admission.why_queued import why_queued

NOTHING = {"ahead": 0, "places": 1, "needs": 10, "room": 10.0, "prepared_writer": ""}


def entry(**fields: Any) -> Waiting:
    waiting = Waiting(0.0, 10, 1, BlockKeys(), 0, candidate=0)
    for name, value in fields.items():
        setattr(waiting, name, value)
    return waiting


@pytest.mark.parametrize(
    ("because", "fields", "around"),
    [
        ("round", {}, {}),
        ("other rank", {"failed": True}, {}),
        ("looking up", {"candidate": None, "failed": True}, {}),
        ("writer", {"candidate": None}, {"prepared_writer": "w"}),
        ("room", {}, {"needs": 11, "prepared_writer": "w"}),
        ("ahead", {}, {"needs": 11, "ahead": 1}),
        ("places", {}, {"ahead": 1, "places": 0}),
    ],
)
def test_what_a_request_waits_for(because: str, fields: dict[str, Any], around: dict[str, Any]) -> None:
    assert why_queued(entry(**fields), **{**NOTHING, **around}) == because
