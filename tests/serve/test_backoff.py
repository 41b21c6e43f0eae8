from __future__ import annotations

from wavepp_worker.serve.backoff import Backoff


def test_backoff_doubles_up_to_its_limit_and_forgets_after_a_good_life() -> None:
    backoff = Backoff()
    assert [backoff.after(1.0) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert backoff.after(61.0) == 1
    assert backoff.after(1.0) == 2
