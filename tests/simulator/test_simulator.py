"""Seeded schedules of all ranks' real admission, cache and scheduling code; a failure names its seed."""

from __future__ import annotations

import random

import pytest

from tests.simulator.search import failure, first_failure
from tests.simulator.told import Told


@pytest.mark.timeout(600)
def test_many_schedules_keep_every_promise() -> None:
    """Promises 1 to 12 and 14; S01 to S15, S21 to S33: aborts, noise, unequal pools, stalls, evictions, delays."""
    for result in first_failure(0, 400, None, "wave", "lease"):
        assert result is None, f"python -m tests.simulator --seed {result[0]}: {result[1]}"


@pytest.mark.parametrize(("admission", "ownership"), [("wave", "none"), ("lockstep", "none")])
def test_the_baselines_keep_them_too(admission: str, ownership: str) -> None:
    assert failure((0, 150, None, admission, ownership)) is None


@pytest.mark.parametrize("seed", [3176, 3763])
def test_in_lockstep_who_fails_on_different_ranks_does_not_fail_for_ever(seed: int) -> None:
    assert failure((seed, 1, None, "lockstep", "none")) is None


@pytest.mark.parametrize("ranks", [3, 5])
def test_s01_s09_an_abort_storm_over_an_odd_number_of_ranks(ranks: int) -> None:
    assert failure((20_000, 120, ranks, "wave", "lease")) is None


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_s18_two_requests_that_fit_alone_but_not_together_both_finish(ranks: int) -> None:
    for seed in range(60):
        draw = random.Random(seed)
        world = Told([(0.0, [draw.randrange(50) for _ in range(6)]) for _ in range(4)], seed, ranks)
        for rank in world.ranks:
            assert rank.parts.cache.use().capacity * world.block_size >= 6
        world.run()
        assert len(world.client.answered) == 4, f"seed {seed}"


@pytest.mark.parametrize("ranks", [2, 4])
def test_promise_11_slow_rounds_do_not_slow_the_waves_down(ranks: int) -> None:
    """With 5 ms on every round, steady throughput stays within 2 % where enough is admitted."""
    compared = 0
    for seed in range(60):
        draw = random.Random(seed)
        prompts = [(0.0, [draw.randrange(50) for _ in range(20)]) for _ in range(120)]
        plain, slow = (Told(prompts, seed, ranks, round_delay=delay, spare=700) for delay in (0.0, 0.005))
        if plain.queue.limit < 8 or plain._delay > 0.001:
            continue
        plain.run()
        slow.run()
        spans = [world.client.answered[-1] - world.client.answered[0] for world in (plain, slow)]
        assert spans[1] <= 1.02 * spans[0], f"seed {seed}: {spans}"
        compared += 1
        if compared == 2:
            return
    pytest.fail("too few of the seeds keep enough requests admitted")
