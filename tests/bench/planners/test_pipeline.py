"""The virtual pipeline against a closed form, and the planners on it."""

from __future__ import annotations

import random

import pytest
from wavepp_worker.runtime.planning.greedy import GreedyPlanner
from wavepp_worker.runtime.planning.mpu import Mpu
from wavepp_worker.runtime.planning.wave_cost import WaveCost

from bench.common.bounds import alone, bound
from bench.common.cells import Cell, Shape
from bench.planners.pipeline import VirtualDevice, simulate


def test_virtual_pipeline_matches_the_closed_form() -> None:
    """``k`` equal waves through ``P`` stages take ``(k + P - 1) * t``."""
    device = VirtualDevice(4, WaveCost(0.5, 0.01, 0.0), hop=0.0, admission=0.0)
    outcome = simulate(device, GreedyPlanner(100), [Shape(1000)], 1)
    assert outcome.seconds == pytest.approx((10 + 3) * 1.5)
    outcome = simulate(device, GreedyPlanner(100), [Shape(1000)] * 5, 5)
    assert outcome.seconds == pytest.approx((50 + 3) * 1.5)
    # sqrt(a u / Q) = 1.3 seconds a wave: the best of 7 and 8 waves.
    fastest = min((k + 3) * (0.5 + 10 / k) for k in (7, 8))
    assert alone(device.cost, Shape(1000), 4, 0.0) == pytest.approx(fastest)


@pytest.mark.parametrize("shapes", [[Shape(65536)] * 48, [Shape(129 * 1024, 125 * 1024)] * 96])
@pytest.mark.parametrize("concurrency", [1, 8, 16])
def test_equal_time_waves_are_never_much_worse_than_a_fixed_budget(
    shapes: list[Shape], concurrency: int
) -> None:
    device = VirtualDevice(8, WaveCost(0.008, 18.0e-6, 1.35e-10))
    planner = Mpu(
        stages=8, max_num_batched_tokens=16384, min_num_batched_tokens=512, block_size=64, cost=device.cost
    )
    ours = simulate(device, planner, shapes, concurrency)
    cell = Cell("", "", concurrency, (shapes[0],), {})
    assert ours.throughput <= bound(device.cost, cell, device.stages, device.hop)
    for budget in (16384, 8192):
        fixed = simulate(device, GreedyPlanner(budget), shapes, concurrency)
        assert ours.throughput > 0.985 * fixed.throughput


def test_requests_come_at_their_times_whether_or_not_others_are_done() -> None:
    device = VirtualDevice(4, WaveCost(0.5, 0.01, 0.0), hop=0.0, admission=0.0)
    outcome = simulate(device, GreedyPlanner(100), [Shape(100)] * 3, times=[0.0, 0.1, 50.0])
    assert outcome.seconds == pytest.approx(50 + 4 * 1.5)
    assert outcome.p50 == pytest.approx(4 * 1.5)
    assert outcome.p95 == pytest.approx(4 * 1.5 + 1.5 - 0.1), "behind the one before"


def test_a_turn_comes_after_the_answer_to_the_one_before() -> None:
    device = VirtualDevice(4, WaveCost(0.5, 0.01, 0.0), hop=0.0, admission=0.0)
    outcome = simulate(device, GreedyPlanner(100), [Shape(100)] * 3, turns={0: (1, 2.0), 1: (2, 0.0)})
    assert outcome.seconds == pytest.approx(3 * 4 * 1.5 + 2.0)
    assert outcome.p95 == pytest.approx(4 * 1.5)


def test_agents_that_come_back_apart_keep_one_group_a_stage() -> None:
    """Sixteen agents on four stages: waves of four turns, but for the first."""
    device = VirtualDevice(4, WaveCost(0.02, 18.0e-6, 0.0))
    planner = Mpu(
        stages=4, max_num_batched_tokens=16384, min_num_batched_tokens=512, block_size=64, cost=device.cost
    )
    draw, turns = random.Random(0), {}
    for turn in range(16 * 19):
        turns[turn] = turn + 16, 0.003 * draw.random()
    outcome = simulate(device, planner, [Shape(1024)] * 320, turns=turns)
    assert outcome.waves < 85
