from __future__ import annotations

import math
import random

import pytest
from wavepp_worker.runtime.planning.learned_cost import LearnedCost
from wavepp_worker.runtime.planning.wave_cost import WaveCost


def observe(learned: LearnedCost, truth: WaveCost, start: int, length: int, noise: float = 1.0) -> WaveCost:
    seconds = truth.a + truth.work(start, length)
    return learned.observe(length, length * (start + (length + 1) / 2), noise * seconds)


@pytest.mark.parametrize("truth", [WaveCost(0.018, 17.5e-6, 33.5e-12), WaveCost(0.0005, 2e-4, 1e-9)])
def test_varied_waves_teach_the_true_cost(truth: WaveCost) -> None:
    learned, draw = LearnedCost(), random.Random(1)
    for _ in range(200):
        start, length = draw.randrange(0, 200_000, 64), draw.randrange(64, 16_384)
        cost = observe(learned, truth, start, length, 1 + 0.02 * draw.uniform(-1, 1))
    for start, length in [(0, 64), (0, 16_384), (128_000, 512), (190_000, 16_384)]:
        predicted = cost.a + cost.work(start, length)
        assert predicted == pytest.approx(truth.a + truth.work(start, length), rel=0.1)


def test_long_prompts_teach_what_a_wave_costs() -> None:
    """The waves of one prompt take equal times, those of another other ones; between them 2 to 5 times ``a``."""
    learned, truth, draw = LearnedCost(), WaveCost(0.03, 1.7e-5, 1e-10), random.Random(3)
    for seconds in (0.06, 0.12, 0.05, 0.09):
        start = 0
        while start < 200_000:
            length = truth.tokens_within(seconds, start)
            cost = observe(learned, truth, start, length, 1 + 0.01 * draw.uniform(-1, 1))
            start += length
    assert cost.a / cost.b == pytest.approx(truth.a / truth.b, rel=0.1)


def test_equal_waves_are_predicted_although_they_cannot_be_told_apart() -> None:
    learned, truth = LearnedCost(), WaveCost(0.02, 1e-5, 1e-11)
    for _ in range(20):
        cost = observe(learned, truth, 64_000, 4096)
    assert cost.a + cost.work(64_000, 4096) == pytest.approx(truth.a + truth.work(64_000, 4096), rel=0.01)
    assert min(cost.a, cost.b, cost.c) > 0


def test_a_device_that_slows_down_is_followed() -> None:
    learned, draw = LearnedCost(), random.Random(2)
    for factor in (1.0, 1.5):
        truth = WaveCost(0.01 * factor, 1e-5 * factor, 1e-11 * factor)
        for _ in range(600):
            cost = observe(learned, truth, draw.randrange(0, 100_000), draw.randrange(64, 16_384))
    assert cost.b == pytest.approx(1.5e-5, rel=0.05)


def test_no_coefficient_becomes_negative() -> None:
    learned = LearnedCost()
    for tokens, seconds in [(1000, 0.5), (2000, 0.3), (4000, 0.2), (100, 0.9)] * 20:
        cost = learned.observe(tokens, tokens**2 / 2, seconds)
        assert min(cost.a, cost.b, cost.c) > 0


def test_a_wave_without_a_time_teaches_nothing() -> None:
    learned = LearnedCost()
    before = learned.cost
    assert learned.observe(100, 5000.0, 0.0) is before


@pytest.mark.parametrize("seconds", [0.0, 1e-300, math.inf, math.nan])
def test_a_time_that_no_clock_measures_teaches_nothing(seconds: float) -> None:
    learned = LearnedCost()
    assert learned.observe(1_000_000, 1e12, seconds) == LearnedCost().cost
