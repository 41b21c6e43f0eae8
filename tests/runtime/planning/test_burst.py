"""How long waves are while what there is may be all there will be, on numbers worked by hand."""

from __future__ import annotations

import pytest
from wavepp_worker.runtime.planning.burst import Burst
from wavepp_worker.runtime.planning.planner import Lane, PipelineView
from wavepp_worker.runtime.planning.wave_cost import WaveCost
from wavepp_worker.runtime.protocol.waves import Span

from tests.support.planning import lanes

COST = WaveCost(a=4.0, b=1.0, c=0.0)
FLIGHT = ((Span("f", 0, 800, True),),)


def burst(stages: int = 5) -> Burst:
    return Burst(stages, max_tokens=1024, min_tokens=16)


def seconds(waiting: tuple[Lane, ...], behind: tuple[Lane, ...] = (), stages: int = 5) -> float:
    return burst(stages).plan(PipelineView(waiting, behind=behind), waiting, COST)[0]


def test_all_the_work_there_is_is_cut_into_the_number_of_waves_that_ends_first() -> None:
    assert seconds(lanes(800, 800)) == pytest.approx(40.0), "sqrt(4 * 1600 / 4)"

    def until_the_last_answer(wave: float) -> float:
        waves = 1600 / wave
        return (waves + 4) * (COST.a + wave)

    best = until_the_last_answer(seconds(lanes(800, 800)))
    assert all(best <= until_the_last_answer(1600 / waves) for waves in range(1, 200))


def test_who_reads_what_is_not_computed_yet_counts_as_work() -> None:
    waiting = lanes(800)
    readers = tuple(Lane(f"reader{i}", 400, 500) for i in range(8))
    assert seconds(waiting, readers) == pytest.approx(40.0), "sqrt(4 * (800 + 800) / 4)"


def test_what_was_launched_of_a_burst_counts_until_the_pipeline_is_idle() -> None:
    there, waiting = burst(), lanes(400, 400)
    there.launched(FLIGHT[0], COST)
    assert there.plan(PipelineView(waiting, FLIGHT), waiting, COST)[0] == pytest.approx(40.0)
    there.begin()
    assert there.plan(PipelineView(waiting), waiting, COST)[0] == pytest.approx(800 / 29), "sqrt(4 * 800 / 4)"


def test_waves_are_equal_and_neither_longer_nor_shorter_than_they_may_be() -> None:
    assert seconds(lanes(5000, 5000), stages=1) == 1000.0, "nobody waits behind the only stage: full waves"
    assert seconds(lanes(60, 40), stages=20) == pytest.approx(100 / 7), "16 at least, and no rest"
    assert seconds(lanes(100), lanes(*[1500] * 10)) == 100.0, "sqrt(4 * 15100 / 4) = 123, and 100 may run"


@pytest.mark.parametrize(
    ("stages", "a", "alone", "together"), [(1, 40.0, 800.0, 960.0), (5, 4.0, 800 / 26, 960 / 31)]
)
def test_those_who_may_share_their_writers_wave_are_work_that_is_there(
    stages: int, a: float, alone: float, together: float
) -> None:
    waiting, readers, cost = (
        lanes(800),
        [Lane(f"reader{i}", 400, 420) for i in range(8)],
        WaveCost(a, 1.0, 0.0),
    )
    riding = PipelineView(waiting, behind=readers, riding={lane.request_id: "r0" for lane in readers})
    assert burst(stages).plan(PipelineView(waiting, behind=readers), waiting, cost) == (
        pytest.approx(alone),
        False,
    )
    assert burst(stages).plan(riding, waiting, cost) == (pytest.approx(together), True)
    if stages == 1:
        cheap = WaveCost(4.0, 1.0, 0.0)
        assert burst(stages).plan(riding, waiting, cheap) == (pytest.approx(alone), False), (
            "not worth the wait"
        )
