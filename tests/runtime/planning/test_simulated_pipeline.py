"""Simulated pipelines, on numbers worked by hand and on drawn requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavepp_worker.runtime.planning import simulated_pipeline
from wavepp_worker.runtime.planning.simulated_pipeline import (
    DECAY_PER_ANSWER,
    FUTURE_REQUESTS,
    MAX_QUEUE,
    MAX_WAVES_AT_ONCE,
    SimulatedPipeline,
    SimulatedRequest,
)


def pipeline(share: float, stages: int, *came: tuple[float, float]) -> SimulatedPipeline:
    """To which these came: when, and seconds of work, of which a full wave has 10."""
    made = SimulatedPipeline(share, [0.0] * stages)
    for since, work in came:
        made.come(SimulatedRequest(work, 10.0, since), a=1.0)
    return made


def test_a_request_is_answered_when_its_last_wave_has_passed_all_stages() -> None:
    """Of 10 seconds in waves of 5, each of which costs 1 by itself: (2 + 1) * 6 on two stages."""
    made = pipeline(0.5, 2, (0.0, 10.0))
    made.run(100.0, a=1.0)
    assert made.free == [12.0, 18.0]
    assert made.score(12.0, a=1.0) == 18.0
    assert made.score(10.0, a=1.0) == 18.0 + FUTURE_REQUESTS * 2, "those to come wait for what is left"


def test_the_shortest_goes_first_and_a_wave_is_no_longer_than_its_length() -> None:
    made = pipeline(1.0, 1, (0.0, 12.0), (0.0, 4.0))
    made.run(0.0, a=1.0)
    assert made.free == [11.0], "the one of 4, and 6 of the other"
    made.run(10.9, a=1.0)
    assert made.free == [11.0]
    made.run(11.0, a=1.0)
    assert made.free == [18.0]
    assert made.score(18.0, a=1.0) == pytest.approx((11 * DECAY_PER_ANSWER + 18) / (DECAY_PER_ANSWER + 1))


def test_a_long_one_is_served_as_if_wave_by_wave() -> None:
    whole = pipeline(0.1, 3, (0.0, 50.0))
    whole.run(100.0, a=1.0)
    step = pipeline(0.1, 3, (0.0, 50.0))
    for tenth in range(1000):
        step.run(tenth / 10, a=1.0)
        step.check()
    assert whole.free == pytest.approx(step.free)
    assert whole.score(100.0, 1.0) == pytest.approx(step.score(100.0, 1.0))


def test_one_call_launches_few_waves_however_much_time_has_passed() -> None:
    made = pipeline(0.01, 1, *((0.0, 10.0),) * 100)
    made.run(0.5, a=0.0)
    before = made.work
    made.run(1e9, a=0.0)
    assert 0 < made.work < before
    for _ in range(200):
        made.run(1e9, a=0.0)
    assert made.work == 0.0
    assert MAX_WAVES_AT_ONCE < 100


def test_a_pipeline_that_is_behind_serves_nobody_before_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few waves a call may launch, each begins when it would have."""
    answers: dict[int, list[float]] = {}
    for limit in (10**6, 64, 3):
        monkeypatch.setattr(simulated_pipeline, "MAX_WAVES_AT_ONCE", limit)
        made, told = SimulatedPipeline(0.03, [0.0] * 4), answers.setdefault(limit, [])
        monkeypatch.setattr(made, "_answered", told.append)
        for number in range(60):
            made.come(SimulatedRequest(40.0, 10.0, number * 0.01), a=0.1)
        for number in range(30):
            now = 3600.0 + number
            made.run(now, a=0.1)
            made.check()
            made.come(SimulatedRequest(0.5, 10.0, now), a=0.1)
        assert made.behind == (limit == 3)
        assert made.backlog(3630.0, a=0.1) < 1.0, "what it has not done yet would have been over long ago"
        for _ in range(400):
            made.run(1e9, a=0.1)
        assert not made.behind
    assert min(answers[10**6]) > 0.5
    assert answers[64] == pytest.approx(answers[10**6])
    assert answers[3] == pytest.approx(answers[10**6])


def test_a_pipeline_that_is_too_slow_does_not_grow() -> None:
    made = SimulatedPipeline(0.2, [0.0] * 3)
    for number in range(3 * MAX_QUEUE):
        made.come(SimulatedRequest(5.0, 10.0, number * 0.01), a=1.0)
        made.run(number * 0.01, a=1.0)
        made.check()
    assert len(made._queue) <= MAX_QUEUE
    assert made.score(2.0, a=1.0) > 1000, "those that were only counted would have waited as long"


def test_a_sum_of_work_that_has_drifted_ends_nothing() -> None:
    made = pipeline(0.5, 2, (0.0, 10.0))
    made.work = 0.0
    made.run(100.0, a=1.0)
    assert made.free[0] == 12.0


def test_who_left_is_served_no_further() -> None:
    made = SimulatedPipeline(0.5, [0.0])
    for number, since in enumerate((0.0, 0.0, 0.0, 1.0)):
        made.come(SimulatedRequest(10.0, 10.0, since, f"r{number}"), a=1.0)
    made.run(0.0, a=1.0)
    assert made.work == 35.0
    made.forget(["r0", "r3", "other"])
    made.check()
    assert made.work == 20.0
    made.run(100.0, a=1.0)
    assert made.free == [6.0 + 4 * 6.0]
    assert made._answers == pytest.approx(1 + DECAY_PER_ANSWER)


DRAWN = st.tuples(st.floats(0, 20), st.floats(0.01, 30))
"""Seconds since the one before it came, its seconds of work."""


@given(
    st.lists(DRAWN, min_size=1, max_size=20),
    st.sampled_from([0.03, 0.12, 0.5, 1.0]),
    st.integers(1, 8),
    st.floats(0, 5),
)
def test_all_work_is_done_once_whatever_comes(
    drawn: list[tuple[float, float]], share: float, stages: int, a: float
) -> None:
    made, now = SimulatedPipeline(share, [0.0] * stages), 0.0
    for gap, work in drawn:
        now += gap
        made.run(now, a)
        made.check()
        made.come(SimulatedRequest(work, 10.0, now), a)
        made.check()
    begun = max(now, made.free[0])
    for _ in range(200):
        made.run(1e12, a)
        made.check()
    assert not made._queue
    assert not made.behind
    assert made.free == sorted(made.free), "each stage ends after the one before it"
    assert made._answers == pytest.approx(sum(DECAY_PER_ANSWER**number for number in range(len(drawn))))
    total = sum(work for _, work in drawn)
    assert made.free[0] > total - 1e-6, "the first stage did it all"
    most_waves = 2 * len(drawn) + total / (share * 10.0) * 2
    assert made.free[0] <= begun + total + a * most_waves + 1e-6
