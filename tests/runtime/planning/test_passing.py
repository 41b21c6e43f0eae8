"""Who passes whom in open loops, on numbers worked by hand: a token takes a second."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from wavepp_worker.runtime.planning.passing import MAX_DELAY_SHARE, Passing
from wavepp_worker.runtime.planning.planner import Lane

from tests.support.planning import lanes


def ordered(passing: Passing, waiting: Sequence[Lane], wave: float, rest: float = 0.0) -> list[str]:
    works = [float(lane.left) for lane in waiting]
    return [lane.request_id for lane in passing.order(waiting, works, rest, wave)]


def test_the_shortest_go_first_as_long_as_who_is_passed_waits_less_than_the_mean() -> None:
    # First come first served they take 100, 110, 510 and 520 seconds, 310 on average: the third bears 3 % of 510.
    waiting = lanes(100, 10, 400, 5)
    assert ordered(Passing(), waiting, wave=500.0) == ["r3", "r1", "r0", "r2"]
    waiting = lanes(100, 10, 400, 16)
    assert ordered(Passing(), waiting, wave=500.0) == ["r1", "r0", "r2", "r3"]


def test_nobody_passes_into_a_wave_that_is_full() -> None:
    assert ordered(Passing(), lanes(100, 10, 400, 11), wave=10.0) == ["r1", "r0", "r2", "r3"]


def test_who_was_passed_remembers_it() -> None:
    passing, old = Passing(), Lane("old", 0, 1000)
    delays = 0
    for number in range(200):
        waiting = (old, Lane(f"r{number}", 0, 10))
        first = ordered(passing, waiting, wave=10.0)[0]
        carried = waiting[0 if first == "old" else 1]
        carried.next += 10
        passing.launched(waiting, {first: 10.0}, 10.0)
        delays += 10 * (first != "old")
        if not old.left:
            break
    assert old.left < 1000
    waited = 10 * (number + 1) + old.left
    mean = passing._mean
    assert delays <= max(MAX_DELAY_SHARE * waited, mean), "neither 3 % nor the mean"


def test_the_oldest_is_never_kept_from_waves_for_ever() -> None:
    passing, old, launched = Passing(), Lane("old", 0, 1000), 0
    while old.left:
        waiting = (old, *(Lane(f"r{launched}.{i}", 0, 1) for i in range(5)))
        for lane in passing.order(waiting, [float(each.left) for each in waiting], 1.0, 5.0)[:1]:
            step = min(5, lane.left)
            lane.next += step
            passing.launched(waiting, {lane.request_id: float(step)}, float(step))
        launched += 1
        assert launched < 3000


@pytest.mark.parametrize("gone", [0, 1])
def test_who_left_is_forgotten(gone: int) -> None:
    passing = Passing()
    waiting = lanes(100, 10, 400, 10)
    ordered(passing, waiting, wave=50.0)
    left = tuple(lane for i, lane in enumerate(waiting) if i != gone)
    ordered(passing, left, wave=50.0)
    assert set(passing._begun) == {lane.request_id for lane in left}
