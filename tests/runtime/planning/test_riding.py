"""When on a single stage readers share waves with those they read from, on numbers worked by hand."""

from __future__ import annotations

import pytest
from wavepp_worker.runtime.planning.planner import Lane, PipelineView
from wavepp_worker.runtime.planning.riding import riding_pays
from wavepp_worker.runtime.planning.wave_cost import WaveCost

from tests.support.planning import lanes


def pays(writers: tuple[int, ...], readers: tuple[int, ...], a: float, most: int = 1000) -> bool:
    """Whether those of so many tokens, of 1 second each, pay in waves that cost ``a`` by themselves."""
    waiting = lanes(*writers)
    behind = [Lane(f"reader{i}", 0, tokens) for i, tokens in enumerate(readers)]
    riding = {lane.request_id: "r0" for lane in behind}
    view = PipelineView(waiting, behind=behind, riding=riding)
    return riding_pays(view, waiting, WaveCost(a, 1.0, 0.0), most)


@pytest.mark.parametrize(("a", "expected"), [(10.1, True), (9.9, False)])
def test_readers_share_a_wave_if_they_gain_more_than_the_others_lose(a: float, expected: bool) -> None:
    """Ten gain a wave each; two are answered 50 seconds later."""
    assert pays((300, 300), (5,) * 10, a) == expected


@pytest.mark.parametrize(("a", "expected"), [(52.0, True), (51.0, False)])
def test_or_if_a_wave_more_would_take_a_twentieth_of_the_time(a: float, expected: bool) -> None:
    """Who reads gains little: one for whom eight wait 100 seconds."""
    assert pays((110,) * 8, (100,), a) == expected


def test_readers_go_behind_where_they_save_no_wave() -> None:
    """They would only be mixed up with those before them: four waves either way."""
    assert not pays((100,), (100,) * 30, a=1000.0)
    assert pays((1100,), (100,) * 8, a=1000.0), "two in place of three"


def test_nobody_shares_a_wave_where_nobody_may() -> None:
    waiting = lanes(100)
    view = PipelineView(waiting, behind=lanes(10, 10))
    assert not riding_pays(view, waiting, WaveCost(1000.0, 1.0, 0.0), 1000)
