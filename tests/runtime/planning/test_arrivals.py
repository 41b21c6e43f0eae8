"""What arrivals while the first stage is busy say about what is to come, on numbers worked by hand."""

from __future__ import annotations

import random

import pytest
from wavepp_worker.runtime.planning.arrivals import (
    GUESS_WAVES,
    LOAD_GUESS,
    RECENT_ARRIVALS,
    Arrivals,
)


def poisson(load: float, seed: int, requests: int = 2000) -> Arrivals:
    """Requests of 1 s of work that come at random to a stage that does one after the other."""
    rng, arrivals, now, free = random.Random(seed), Arrivals(full=4.0), 0.0, 0.0
    for _ in range(requests):
        now += rng.expovariate(load)
        arrivals.see({"r": 1.0}, idle=now >= free)
        arrivals.launched(1.0, {"r": 1.0})
        free = max(free, now) + 1.0
    return arrivals


def load_of(arrivals: Arrivals) -> float:
    """What comes while one second is worked off, ``busy - 1``, is the share ``load`` of ``busy``."""
    _, work = arrivals.to_come(1.0, overhead=0.0)
    return work / (1 + work)


def test_nothing_is_expected_before_anything_came() -> None:
    assert Arrivals(full=4.0).to_come(1.0, overhead=0.1) == (0.0, 0.0)


@pytest.mark.parametrize("load", [0.3, 0.5, 0.8])
def test_the_load_is_found_without_a_clock(load: float) -> None:
    found = [load_of(poisson(load, seed)) for seed in range(20)]
    assert sum(found) / len(found) == pytest.approx(load, abs=0.1)


def test_an_overload_is_a_busy_period_that_does_not_end() -> None:
    _, work = poisson(1.3, seed=1).to_come(1.0, overhead=0.0)
    assert work > 20


def test_who_begins_a_busy_period_says_nothing_of_the_load() -> None:
    arrivals = Arrivals(full=4.0)
    for _ in range(200):
        arrivals.see({"first": 1.0}, idle=True)
        arrivals.see({f"r{number}": 1.0 for number in range(7)}, idle=False)
        arrivals.launched(8.0, {"first": 1.0})
    assert load_of(arrivals) < 0.01, "a burst is followed by none while it is worked off"


def test_overhead_is_load_as_well() -> None:
    arrivals = Arrivals(full=4.0)
    arrivals.see({"r": 2.0}, idle=True)
    busy = 4.0 * GUESS_WAVES * LOAD_GUESS
    assert busy > 0
    requests, work = arrivals.to_come(7.0, overhead=0.0)
    assert (requests, work) == pytest.approx((0.3 * 10 / 2, 3.0)), "7 / (1 - 0.3) seconds"
    _, work = arrivals.to_come(7.0, overhead=1.0)
    assert work == pytest.approx(7 / 0.4 - 7)


def test_who_left_without_an_answer_counts_as_if_he_had_not_come() -> None:
    with_flood, without = Arrivals(full=4.0), Arrivals(full=4.0)
    for arrivals in (with_flood, without):
        for number in range(50):
            arrivals.see({f"r{number}": 1.0}, idle=True)
            arrivals.launched(2.0, {f"r{number}": 1.0})
    flood = {f"f{number}": 300.0 for number in range(40)}
    for request_id, work in flood.items():
        with_flood.see({request_id: work}, idle=False)
        without.see({request_id: 0.0}, idle=False)
        # They are as many arrivals, after which the first ones weigh less.
        without.forget([request_id])
    assert with_flood.to_come(1.0, 0.1) > without.to_come(1.0, 0.1)
    with_flood.forget([*flood, "unknown"])
    assert with_flood.to_come(1.0, 0.1) == pytest.approx(without.to_come(1.0, 0.1))


def test_what_was_done_of_who_left_counts_as_he_kept_the_stage_busy() -> None:
    """A quarter of each is done before he leaves: half as many as there is time for then come."""
    arrivals = Arrivals(full=4.0)
    for number in range(1000):
        arrivals.see({f"r{number}": 4.0}, idle=number == 0)
        arrivals.launched(2.0, {f"r{number}": 1.0})
        arrivals.forget([f"r{number}"])
    requests, work = arrivals.to_come(1.0, overhead=0.0)
    assert work / (1 + work) == pytest.approx(0.5, abs=0.01), "1 s of work comes in 2 s"
    assert requests == pytest.approx(work / 4.0), "four of them are as much as one that stays"


def test_where_all_left_nothing_is_left() -> None:
    arrivals = Arrivals(full=4.0)
    arrivals.see({f"r{number}": 0.1 * number for number in range(1, 300)}, idle=True)
    arrivals.forget([f"r{number}" for number in range(300)])
    assert arrivals.to_come(1.0, 0.1) == (0.0, 0.0)


def test_where_nobody_ever_waits_no_load_is_believed() -> None:
    """What the guess counts for is used up: neither falls below what numbers can hold."""
    arrivals = Arrivals(full=4.0)
    for number in range(80_000):
        arrivals.see({f"r{number}": 1.0}, idle=True)
        arrivals.launched(1.0, {f"r{number}": 1.0})
    assert load_of(arrivals) < 1e-3


def test_few_arrivals_are_remembered() -> None:
    arrivals = Arrivals(full=4.0)
    for number in range(3 * RECENT_ARRIVALS):
        arrivals.see({f"r{number % 1000}": 1.0}, idle=False)
    assert len(arrivals._recent) == RECENT_ARRIVALS
