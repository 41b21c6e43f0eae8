"""Imagined pipelines with waves of several lengths, on numbers worked by hand and on drawn requests."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavepp_worker.runtime.planning.planner import Lane
from wavepp_worker.runtime.planning.trials import (
    DECAY_PER_ANSWER,
    DELAYED_BY_BACKLOG,
    FEWEST,
    MOST_WAITING,
    SHARES,
    Trials,
    _Pipeline,
    _Waiting,
)
from wavepp_worker.runtime.planning.wave_cost import WaveCost

COST = WaveCost(a=0.1, b=0.001, c=0.0)
FULL = 1024
"""Tokens of a full wave, which are 1.024 seconds of work."""


def after(
    requests: int, load: float, stages: int = 4, cost: WaveCost = COST, seconds: float = 1.0
) -> float | None:
    """The share found after so many requests of 2,000 tokens, which keep stages busy for ``load`` of the time."""
    trials, draw, now = Trials(stages, FULL), random.Random(1), 0.0
    if seconds:
        trials.measured(1.0, seconds)
    for number in range(requests):
        now += draw.expovariate(load / 2.2)
        trials.see([Lane(f"r{number}", 0, 2000)], cost, now)
    return trials.share


def test_a_request_is_answered_when_its_last_wave_has_passed_all_stages() -> None:
    """Of 10 seconds in waves of 5, each of which costs 1 by itself: (2 + 1) * 6 on two stages."""
    pipeline = _Pipeline(0.5, [0.0, 0.0])
    pipeline.come(_Waiting(since=0.0, work=10.0, full=10.0), a=1.0)
    pipeline.run(math.inf, a=1.0)
    assert pipeline.free == [12.0, 18.0]
    assert pipeline.seconds(12.0, a=1.0) == 18.0
    assert pipeline.seconds(10.0, a=1.0) == 18.0 + DELAYED_BY_BACKLOG * 2, (
        "those to come wait for what is left"
    )


def test_a_wave_takes_who_came_before_it_begins_and_no_more_than_its_length() -> None:
    pipeline = _Pipeline(1.0, [0.0])
    for since, work in ((0.0, 4.0), (2.0, 6.0), (3.0, 6.0), (30.0, 1.0)):
        pipeline.come(_Waiting(since, work, full=10.0), a=1.0)
    pipeline.run(4.9, a=1.0)
    assert pipeline.free == [5.0], "4 of the first alone"
    pipeline.run(5.0, a=1.0)
    assert pipeline.free == [16.0], "the second, and of the third as much as makes 10"
    pipeline.run(29.0, a=1.0)
    assert pipeline.free == [19.0], "nobody is there until 30"
    assert pipeline.seconds(29.0, a=1.0) == pytest.approx(
        (5 * DECAY_PER_ANSWER**2 + 14 * DECAY_PER_ANSWER + 16 + DELAYED_BY_BACKLOG * 1.1)
        / (DECAY_PER_ANSWER**2 + DECAY_PER_ANSWER + 1)
    )


def test_nothing_is_known_of_few_requests_or_before_a_wave_was_measured() -> None:
    assert after(FEWEST, 0.3) is None
    assert after(FEWEST + 1, 0.3) in SHARES, "it is looked at what the one finds that comes"
    assert after(200, 0.3, seconds=0.0) is None


def test_the_more_comes_the_longer_waves_serve_best() -> None:
    shares = [after(200, load) or math.nan for load in (0.1, 0.5, 1.2)]
    assert shares == sorted(shares)
    assert shares[0] < shares[1] < shares[2] == 1.0


def test_only_ratios_of_the_cost_model_matter() -> None:
    """A model in thousandths, of which waves take what another says in seconds."""
    thousandths = WaveCost(1000 * COST.a, 1000 * COST.b, 0.0)
    for load in (0.1, 0.5, 1.2):
        assert after(100, load, cost=thousandths, seconds=0.001) == after(100, load)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_what_no_clock_can_have_measured_tells_nothing(seconds: float) -> None:
    trials = Trials(2, FULL)
    trials.measured(1.0, seconds)
    trials.see([Lane(f"r{number}", 0, 100) for number in range(2 * FEWEST)], COST, 0.0)
    assert trials.share is None


def test_a_pipeline_that_is_too_slow_does_not_grow() -> None:
    pipeline = _Pipeline(0.2, [0.0] * 3)
    for number in range(3 * MOST_WAITING):
        pipeline.come(_Waiting(number * 0.01, work=5.0, full=10.0), a=1.0)
        pipeline.run(number * 0.01, a=1.0)
    assert len(pipeline._waiting) <= MOST_WAITING
    assert pipeline.seconds(2.0, a=1.0) > 1000, "those that were only counted would have waited as long"


DRAWN = st.tuples(st.floats(0, 20), st.floats(0.01, 30))
"""Seconds since the one before it came, its seconds of work."""


@given(st.lists(DRAWN, min_size=1, max_size=20), st.sampled_from(SHARES), st.integers(1, 8), st.floats(0, 5))
def test_all_work_is_done_once_whatever_comes(
    drawn: list[tuple[float, float]], share: float, stages: int, a: float
) -> None:
    pipeline, now = _Pipeline(share, [0.0] * stages), 0.0
    for gap, work in drawn:
        now += gap
        pipeline.run(now, a)
        pipeline.come(_Waiting(now, work, full=10.0), a)
    begun, busy = now, pipeline.free[0]
    pipeline.run(math.inf, a)
    assert not pipeline._waiting
    assert pipeline._work == 0.0
    assert pipeline.free == sorted(pipeline.free), "each stage ends after the one before it"
    assert pipeline._answers == pytest.approx(sum(DECAY_PER_ANSWER**number for number in range(len(drawn))))
    total = sum(work for _, work in drawn)
    assert pipeline.free[0] > total - 1e-6, "the first stage did it all"
    most_waves = len(drawn) + total / (share * 10.0) * 2
    assert pipeline.free[0] <= max(begun, busy) + total + a * most_waves + 1e-6
