"""Seconds without compute, by cause, on a clock that the test turns."""

from __future__ import annotations

from wavepp_worker.runtime.state.idle_seconds import IdleSeconds


class Rank:
    def __init__(self) -> None:
        self.now = 100.0
        self.idle = IdleSeconds(lambda: self.now)

    def counted(self) -> dict[str, float]:
        return {cause: seconds for cause, seconds in self.idle.seconds().items() if seconds}


def test_time_counts_for_what_was_waited_for_meanwhile() -> None:
    rank = Rank()
    rank.now += 1.0
    rank.idle.waits_for("admission")
    rank.now += 2.0
    rank.idle.waits_for("admission")
    assert rank.counted() == {"no_requests": 1.0, "admission": 2.0}, "while it waits still"
    rank.now += 4.0
    rank.idle.computes()
    assert rank.counted() == {"no_requests": 1.0, "admission": 6.0}


def test_compute_is_not_idle_and_what_follows_is_the_hosts() -> None:
    rank = Rank()
    rank.idle.computes()
    rank.now += 5.0
    rank.idle.computed()
    rank.now += 0.5
    rank.idle.waits_for("ring")
    rank.now += 0.25
    rank.idle.computes()
    assert rank.counted() == {"host": 0.5, "ring": 0.25}


def test_a_device_that_has_work_left_is_not_idle() -> None:
    rank = Rank()
    rank.idle.computes()
    rank.idle.computed(left=4.0)
    rank.idle.waits_for("upstream")
    rank.now += 3.0
    rank.idle.computes()
    rank.idle.computed(left=2.0)
    rank.idle.waits_for("upstream")
    rank.now += 3.0
    rank.idle.waits_for("no_requests")
    assert rank.counted() == {"upstream": 1.0}
