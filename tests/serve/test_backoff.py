from __future__ import annotations

import pytest
from wavepp_worker.serve.backoff import MINUTE_SECONDS, Backoff


def test_backoff_doubles_up_to_its_limit_and_forgets_after_a_good_life() -> None:
    backoff = Backoff(per_minute=100)
    assert [backoff.after(1.0, 0.0) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert backoff.after(61.0, 0.0) == 1
    assert backoff.after(1.0, 0.0) == 2


@pytest.mark.parametrize("lived", [0.0, 0.5, 7.0, 60.0, 61.0])
@pytest.mark.parametrize("most", [1, 3, 5])
def test_no_minute_sees_more_attempts_than_are_allowed(lived: float, most: int) -> None:
    """Also of a process that dies each time after a minute of good life, when the doubling starts over."""
    backoff, now, starts = Backoff(per_minute=most), 0.0, []
    for _ in range(50):
        now += lived
        now += backoff.after(lived, now)
        starts.append(now)
    assert all(later - start >= MINUTE_SECONDS for start, later in zip(starts, starts[most:], strict=False))


def test_who_died_seldom_is_not_kept_waiting() -> None:
    backoff = Backoff(per_minute=2)
    assert [backoff.after(3600.0, now) for now in (0.0, 3600.0, 7200.0, 10800.0)] == [1, 1, 1, 1]
