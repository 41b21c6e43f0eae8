"""Lengths of waves that are tried on the requests that come."""

from __future__ import annotations

import math
import random

import pytest
from wavepp_worker.runtime.planning.planner import Lane
from wavepp_worker.runtime.planning.trials import MIN_REQUESTS, SHARES, WaveLengthTrials
from wavepp_worker.runtime.planning.wave_cost import WaveCost

COST = WaveCost(a=0.1, b=0.001, c=0.0)
FULL = 1024
"""Tokens of a full wave, which are 1.024 seconds of work."""


def trials(seconds: float | None = 1.0) -> WaveLengthTrials:
    """Where one wave was measured that was estimated to take a second."""
    made = WaveLengthTrials(4, FULL)
    if seconds is not None:
        made.observe(1.0, seconds)
    return made


def after(
    requests: int, load: float, tried: WaveLengthTrials | None = None, cost: WaveCost = COST
) -> float | None:
    """The share found after so many requests of 2,000 tokens, which keep stages busy for ``load`` of the time."""
    tried, draw, now = tried or trials(), random.Random(1), 0.0
    for number in range(requests):
        now += draw.expovariate(load / 2.2)
        tried.see([Lane(f"r{number}", 0, 2000)], cost, now)
        for pipeline in tried._pipelines:
            pipeline.check()
    return tried.share


def test_nothing_is_known_of_few_requests_or_before_a_wave_was_measured() -> None:
    assert after(MIN_REQUESTS, 0.3) is None
    assert after(MIN_REQUESTS + 1, 0.3) in SHARES, "they are judged when the next one comes"
    assert after(200, 0.3, trials(None)) is None


def test_the_more_comes_the_longer_waves_serve_best() -> None:
    shares = [after(200, load) or math.nan for load in (0.1, 0.5, 1.2)]
    assert shares[0] < shares[1] < shares[2] == 1.0


def test_only_ratios_of_the_cost_model_matter() -> None:
    """A model in thousandths, of which waves take what another says in seconds."""
    thousandths = WaveCost(1000 * COST.a, 1000 * COST.b, 0.0)
    for load in (0.1, 0.5, 1.2):
        assert after(100, load, trials(0.001), thousandths) == after(100, load)


def test_a_wave_that_hung_for_minutes_changes_little() -> None:
    for load in (0.1, 0.5, 1.2):
        tried = trials()
        for _ in range(100):
            tried.observe(1.0, 1.0)
        tried.observe(1.0, 600.0)
        assert math.exp(tried._log_unit) < 1.1
        assert after(100, load, tried) == after(100, load)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_what_no_clock_can_have_measured_tells_nothing(seconds: float) -> None:
    assert after(200, 0.3, trials(seconds)) is None


def test_what_a_burst_left_before_a_pause_does_not_tell_of_who_comes_behind_it() -> None:
    """The pipelines of short waves take several calls to serve it, in which nobody else counts yet."""
    trials = WaveLengthTrials(4, 8192)
    trials.observe(1.0, 1.0)
    cost = WaveCost(0.018, 1.75e-5, 0.0)
    trials.see([Lane(f"b{number}", 0, 30_000) for number in range(32)], cost, 0.0)
    assert trials.share is None
    for number in range(40):
        trials.see([Lane(f"r{number}", 0, 30_000)], cost, 3600.0 + 4 * number)
        for pipeline in trials._pipelines:
            assert pipeline._waited >= 0
    assert trials.share is not None
    assert trials.share >= 0.5, "short waves have answered nobody before he came"


def test_what_a_burst_leaves_to_do_is_done_while_its_waves_are_planned() -> None:
    """Where requests come in bursts alone, nobody else comes to have it done."""
    trials = WaveLengthTrials(4, 8192)
    trials.observe(1.0, 1.0)
    cost, now = WaveCost(0.018, 1.75e-5, 0.0), 0.0
    for burst in range(4):
        trials.see([Lane(f"b{burst}.{number}", 0, 30_000) for number in range(64)], cost, now)
        for _ in range(40):
            now += 1.0
            trials.go_on(cost, now)
    assert not any(pipeline.behind for pipeline in trials._pipelines)
    assert trials.share is not None
