from __future__ import annotations

import pytest
from wavepp_worker.liveness.step_bound import DECAY_PER_STEP, STEP_MULTIPLE, StepBound


def test_the_first_step_of_its_size_has_time_to_load_and_compile() -> None:
    bound = StepBound(least=60.0, first=300.0)
    assert bound.seconds(1.0) == 300.0
    bound.observe(1.0, 0.01)
    assert bound.seconds(1.0) == 60.0
    assert bound.seconds(2.0) == 60.0
    assert bound.seconds(2.1) == 300.0, "nothing of its size ran before"


def test_who_allows_waves_more_than_a_start_allows_first_ones_no_less() -> None:
    assert StepBound(least=60.0, first=5.0).seconds(1.0) == 60.0


def test_slow_steps_may_take_a_multiple_of_what_they_took_by_size() -> None:
    """A bound that suits fast machines alone would kill slow ones, again and again."""
    bound = StepBound(least=2.0, first=300.0)
    bound.observe(100.0, 30.0)
    assert bound.seconds(100.0) == pytest.approx(STEP_MULTIPLE * 30.0)
    assert bound.seconds(10.0) == pytest.approx(STEP_MULTIPLE * 3.0)
    assert bound.seconds(0.1) == 2.0


def test_one_freak_step_is_forgotten() -> None:
    bound = StepBound(least=2.0, first=300.0)
    bound.observe(1.0, 100.0)
    for _ in range(1500):
        bound.observe(1.0, 0.01)
    assert DECAY_PER_STEP**1500 < 0.001
    assert bound.seconds(1.0) == 2.0
