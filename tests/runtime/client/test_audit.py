from __future__ import annotations

from typing import Any

import pytest
from wavepp_worker.errors import AuditError
from wavepp_worker.runtime.client.audit import IndexSize, index_differs, require_sound, still_held, summary
from wavepp_worker.runtime.protocol.events import AuditReport


def report(rank: int, **values: Any) -> AuditReport:
    fields = {
        "audit_id": 1,
        "rank": rank,
        "capacity": 10,
        "free": 6,
        "reusable": 4,
        "attached": 5,
        "live": (),
        "problems": (),
    }
    return AuditReport(**{**fields, **values})


def test_at_rest_nothing_is_held() -> None:
    reports = [report(0), report(1, free=10, reusable=0)]
    require_sound(reports)
    assert still_held(reports, []) == []
    books = summary(reports, IndexSize({0: 5, 1: 5}, of_all=3))
    assert books["ranks"][1] == {"rank": 1, "capacity": 10, "free": 10, "reusable": 0}
    assert books["on_all_ranks"] == 3


def test_the_index_has_of_each_rank_that_reports_what_it_can_reuse() -> None:
    reports = [report(0), report(1, attached=0), report(2, attached=7)]
    assert index_differs(reports, IndexSize({0: 5, 2: 7}, of_all=4)) == []
    (sentence,) = index_differs(reports, IndexSize({0: 5, 2: 8}, of_all=4))
    assert sentence == "rank 2 has 7 blocks that can be reused, and the index 8"


def test_every_holder_is_named() -> None:
    reports = [report(0, live=("a",)), report(1), report(2, free=5)]
    first, second, third = still_held(reports, ["b"])
    assert first.startswith("rank 0 knows 1 requests ['a']")
    assert second == "rank 2 knows 0 requests [] and has 5 free + 4 reusable of 10 blocks"
    assert third == "the engine still has 1 requests: ['b']"


def test_broken_books_are_an_error_with_every_ranks_sentence() -> None:
    with pytest.raises(
        AuditError, match=r"^rank 0: a block leaked; rank 1: twice free; rank 1: never there$"
    ):
        require_sound(
            [report(0, problems=("a block leaked",)), report(1, problems=("twice free", "never there"))]
        )
