"""Schedules of faults: drawn from a seed, fair to all kinds, with calm stretches."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.chaos.faults import EVERYWHERE, LASTING, TO_DISKS
from tests.chaos.schedule import CALM_EVERY, CALM_SECONDS, LONGEST, SHORTEST, draw_schedule

FAULTS = (*EVERYWHERE, *TO_DISKS)


def test_a_seed_gives_one_schedule_and_another_seed_another() -> None:
    assert draw_schedule(1, 600, FAULTS) == draw_schedule(1, 600, FAULTS)
    assert draw_schedule(1, 600, FAULTS) != draw_schedule(2, 600, FAULTS)


@pytest.mark.parametrize("seed", range(20))
def test_all_faults_come_before_one_comes_again_and_end_in_time(seed: int) -> None:
    seconds = 3000
    schedule = draw_schedule(seed, seconds, FAULTS)
    names = [(fault.kind, fault.role) for fault in schedule]
    assert len(set(names[: len(FAULTS)])) == len(FAULTS)
    for fault in schedule:
        assert 0 <= fault.pick < 1
        assert fault.at + fault.seconds <= seconds
        assert (SHORTEST <= fault.seconds <= LONGEST) if fault.kind in LASTING else fault.seconds == 0


def test_calm_stretches_begin_when_everything_is_over() -> None:
    schedule = draw_schedule(3, 3000, FAULTS)
    for index, (before, after) in enumerate(pairwise(schedule), start=1):
        assert after.at > before.at
        if index % CALM_EVERY == 0:
            over = max(fault.at + fault.seconds for fault in schedule[:index])
            assert after.at >= round(over + CALM_SECONDS, 2)
