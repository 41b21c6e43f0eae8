from __future__ import annotations

import pytest
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.intake.prefill_limits import PrefillLimits

LIMITS = PrefillLimits(max_local_prefill_length=100, max_prefill_queue_size=2)


@pytest.mark.parametrize(
    ("uncached", "queued", "remotely"),
    [(100, 0, False), (101, 0, True), (101, 1, True), (101, 2, False), (9999, 3, False), (0, 0, False)],
)
def test_long_prompts_go_away_while_the_queue_is_short(uncached: int, queued: int, remotely: bool) -> None:
    assert LIMITS.remotely(uncached, queued) is remotely


def test_limits_can_be_changed_one_by_one() -> None:
    changed = LIMITS.changed({"max_prefill_queue_size": 5})
    assert (changed.max_local_prefill_length, changed.max_prefill_queue_size) == (100, 5)
    assert LIMITS.changed({}) == LIMITS


@pytest.mark.parametrize(
    "body", [{"max_prefill": 5}, {"max_prefill_queue_size": -1}, {"max_local_prefill_length": "9"}, {"a": []}]
)
def test_what_is_no_limit_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="give max_local_prefill_length or max_prefill_queue_size"):
        LIMITS.changed(body)
