"""How long waves are where requests come without waiting for answers, on numbers worked by hand."""

from __future__ import annotations

import pytest
from wavepp_worker.runtime.planning.open_loop import OpenLoop
from wavepp_worker.runtime.planning.planner import Lane, PipelineView
from wavepp_worker.runtime.planning.trials import SHARES
from wavepp_worker.runtime.planning.wave_cost import WaveCost
from wavepp_worker.runtime.protocol.waves import Span

from tests.support.planning import lanes

COST = WaveCost(a=4.0, b=1.0, c=0.0)


def seconds(
    waiting: tuple[Lane, ...],
    slack: float = 0.0,
    ahead: int = 0,
    stages: int = 5,
    cost: WaveCost = COST,
) -> float:
    """The next wave's, of at most 1024 tokens, behind one of ``ahead`` seconds."""
    loop = OpenLoop(stages, max_tokens=1024, min_tokens=16)
    flight: tuple[tuple[Span, ...], ...] = ()
    if ahead:
        lane = Lane("f", 0, ahead)
        flight = ((lane.span(ahead),),)
        lane.next = ahead
        loop.launched((lane,), flight[0], cost)
    return loop.plan(PipelineView(waiting, flight, slack=slack), waiting, cost)[0]


def test_waves_are_sized_by_the_mean_work_up_to_the_end_of_a_request() -> None:
    assert seconds(lanes(1600)) == pytest.approx(40.0), "sqrt(4 * 1600 / 4)"
    assert seconds(lanes(1600, 1600)) == pytest.approx(2400**0.5), "1600 and 3200 are 2400 on average"


def test_who_reads_what_is_not_computed_yet_counts_as_work() -> None:
    waiting, loop = lanes(1600), OpenLoop(5, max_tokens=1024, min_tokens=16)
    view = PipelineView(waiting, behind=(Lane("reader", 400, 2000),))
    assert loop.plan(view, waiting, COST)[0] == pytest.approx(2400**0.5), "1600 and 3200 are 2400 on average"


def test_no_wave_is_shorter_than_the_one_it_would_wait_behind() -> None:
    assert seconds(lanes(1600), slack=100.0, ahead=160) == 160.0
    assert seconds(lanes(1600), slack=0.0, ahead=160) == pytest.approx(40.0), "the first stage is idle"


def test_a_few_waves_are_equal() -> None:
    # Of sqrt(400 * 1000 / 4) = 316 seconds there would be three, and a rest of 52.
    assert seconds(lanes(1000), cost=WaveCost(400.0, 1.0, 0.0)) == pytest.approx(250.0)


def test_the_more_is_to_come_the_longer_are_waves() -> None:
    loop, waiting = OpenLoop(5, max_tokens=1024, min_tokens=16), lanes(1600)
    sizes = []
    for number in range(200):
        loop.see([Lane(f"b{number}", 0, 1600)], COST, idle=number == 0, now=None)
        ended = Lane(f"b{number}", 1600, 1600)
        loop.launched((ended,), (Span(f"b{number}", 0, 1600, True),), COST)
        sizes.append(loop.plan(PipelineView(waiting), waiting, COST)[0])
    assert sizes[0] < 60
    assert sizes[-1] > 150, "as much comes as is worked off: the busy period does not end"


def test_one_stage_takes_all_there_is() -> None:
    assert seconds(lanes(300, 200), stages=1) == 500.0
    assert seconds(lanes(3000, 200), stages=1) == 1024.0


def test_waves_are_between_what_the_load_asks_for_and_what_served_those_best_that_came() -> None:
    def loop(now: float | None) -> OpenLoop:
        loop = OpenLoop(5, max_tokens=1024, min_tokens=16)
        loop.observe([Span("b", 0, 100, True)], 104.0, COST)
        for number in range(100):
            when = None if now is None else now * number
            loop.see([Lane(f"b{number}", 0, 1600)], COST, idle=True, now=when)
        return loop

    waiting = lanes(10_000)
    alone, overload, unknown = (
        loop(now).plan(PipelineView(waiting), waiting, COST)[0] for now in (1e5, 1.0, None)
    )
    assert alone == pytest.approx((unknown * SHARES[0] * 1024) ** 0.5), "the shortest that are tried"
    assert overload == pytest.approx((unknown * 1024) ** 0.5), "full waves"


def test_one_stage_tries_nothing() -> None:
    loop = OpenLoop(1, max_tokens=1024, min_tokens=16)
    loop.observe([Span("b", 0, 100, True)], 104.0, COST)
    for number in range(100):
        loop.see([Lane(f"b{number}", 0, 1600)], COST, idle=True, now=1.0 * number)
    assert loop._trials.share is None


def test_waves_of_probes_alone_are_no_busy_time() -> None:
    loop, probe, asked = OpenLoop(5, max_tokens=1024, min_tokens=16), Lane("p", 0, 9, probe=True), lanes(9)[0]
    loop.see([asked], COST, idle=True, now=None)
    spans = [Span("p", 0, 9, True), Span(asked.request_id, 0, 9, True)]
    before = loop._arrivals._busy
    for _ in range(9):
        loop.launched([probe], spans[:1], COST)
    assert loop._arrivals._busy == before
    for _ in range(9):
        loop.launched([probe, asked], spans, COST)
    assert loop._arrivals._busy > before
