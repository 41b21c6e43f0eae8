"""Every rule of the paper's planner on numbers worked by hand.

The examples use two stages (P = 2, so R = 4 and S = 6 with F = 2) and blocks of 16 tokens.
"""

from __future__ import annotations

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.runtime.planning.mpu_paper import PaperMpu, Supply, budget_ladder
from wavepp_worker.runtime.planning.planner import PipelineView
from wavepp_worker.runtime.protocol.waves import Span

from tests.support.planning import BLOCK_SIZE, lanes, shape


def paper(M: int = 64, b_min: int = 16, **settings: int) -> PaperMpu:
    return PaperMpu(P=2, M=M, b_min=b_min, B=BLOCK_SIZE, **settings)


def target(planner: PaperMpu, *left: int, in_flight: tuple[int, ...] = ()) -> int:
    waves = tuple((Span(f"f{i}", 0, length, True),) for i, length in enumerate(in_flight))
    return planner.target(Supply(PipelineView(lanes(*left), waves)))


def test_the_ladder_halves_to_blocks_down_to_b_min() -> None:
    assert budget_ladder(16384, 8192, 64) == (16384, 8192)
    assert budget_ladder(160, 32, 16) == (160, 80, 32), "80 / 2 = 40 aligns down to 32"
    assert budget_ladder(96, 32, 16) == (96, 48, 32), "48 / 2 = 24 would be below b_min"
    assert budget_ladder(64, 64, 16) == (64,)


@pytest.mark.parametrize(
    ("M", "b_min", "sentence"),
    [
        (32, 64, "min_num_batched_tokens: the smallest waves, 64 tokens, are larger than the largest"),
        (64, 8, "min_num_batched_tokens: 8 is no multiple of block_size=16"),
        (60, 16, "max_num_batched_tokens: 60 is no multiple of block_size=16"),
        (64, 24, "min_num_batched_tokens: 24 is no multiple of block_size=16"),
    ],
)
def test_budgets_that_are_no_blocks_are_refused(M: int, b_min: int, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        budget_ladder(M, b_min, 16)


def test_waves_are_counted_by_tokens_or_by_pieces_that_cannot_share() -> None:
    supply = Supply(PipelineView(lanes(100, 60, 60), ((Span("x", 0, 60, True),),)))
    assert supply.W == 280
    assert supply.waves(100) == 4, "W/b = 2.8, but four pieces are larger than 50"
    assert supply.waves(120) == 280 / 120, "60 is not larger than half of 120; one piece is"
    assert supply.waves(200) == 280 / 200


def test_the_largest_budget_that_supplies_S_waves_is_chosen() -> None:
    planner = paper()
    assert planner.S == 6
    assert target(planner, 400) == 64, "400/64 = 6.25"
    assert target(planner, 380) == 32, "380/64 = 5.9; 380/32 = 11.9"
    assert target(planner, 100) == 16
    assert target(planner, 10) == 16, "no budget supplies S: b_min"
    assert target(paper(F=1), 256) == 64, "S = R = 4"


def test_chunks_in_flight_keep_the_budget_up() -> None:
    planner = paper()
    assert target(planner, 130) == 16
    assert target(planner, 130, in_flight=(64, 64, 64, 64)) == 64, "386/64 = 6.03"


def test_thinner_waves_must_not_split_requests_that_fit() -> None:
    planner = paper()
    assert target(planner, 32, 32, 32, 32) == 32, "R waves of 32; 16 would split all of W"
    assert target(planner, *[14] * 10, 20) == 16, "20 of 160 tokens are split: 12.5 %"
    assert target(planner, *[14] * 10, 21) == 32, "21 of 161 tokens are more"


def test_one_step_up_persists_for_half_a_ring() -> None:
    planner = paper()
    up, down = PipelineView(lanes(200)), PipelineView(lanes(100))
    budgets = []
    for view in (up, down, up, up):
        planner.propose(view)
        budgets.append(planner.budget)
    assert budgets == [16, 16, 16, 32], "R/2 = 2 decisions in a row"


def test_bursts_raise_the_budget_at_once() -> None:
    planner = paper()
    planner.propose(PipelineView(lanes(400)))
    assert planner.budget == 64, "two rungs up"
    planner = paper(M=32)
    planner.propose(PipelineView(lanes(383)))
    assert planner.budget == 16, "383/32 = 11.97, below twice S"
    planner = paper(M=32)
    planner.propose(PipelineView(lanes(384)))
    assert planner.budget == 32


def test_a_decrease_persists_for_a_ring_and_needs_a_real_shortage() -> None:
    planner = paper()
    planner.propose(PipelineView(lanes(400)))
    budgets = []
    for _ in range(4):
        planner.propose(PipelineView(lanes(100)))
        budgets.append(planner.budget)
    assert budgets == [64, 64, 64, 16]
    planner = paper()
    planner.propose(PipelineView(lanes(400)))
    for _ in range(10):
        planner.propose(PipelineView(lanes(380)))
    assert planner.budget == 64, "5.9 of 6 waves are no shortage"


def test_a_small_leftover_is_no_place_for_a_fragment() -> None:
    planner = paper()
    planner.budget = 64
    assert shape(planner.propose(PipelineView(lanes(40, 100, 20)))) == [("r0", 0, 40), ("r2", 0, 20)]
    planner.budget = 64
    assert shape(planner.propose(PipelineView(lanes(20, 100)))) == [("r0", 0, 20), ("r1", 0, 32)], "b/2 fits"


def test_a_lone_small_wave_waits_once_while_the_ring_is_busy_and_someone_comes() -> None:
    ring = ((Span("x", 0, 16, True),),)
    small = lanes(7)
    assert not paper().propose(PipelineView(small, ring, admitting=1))
    for view in (
        PipelineView(small, ring),
        PipelineView(small, (), admitting=1),
        PipelineView(lanes(8), ring, admitting=1),
        PipelineView(lanes(4, 3), ring, admitting=1),
    ):
        assert paper().propose(view), view
    planner = paper()
    view = PipelineView(small, ring, admitting=1)
    assert [bool(planner.propose(view)) for _ in range(4)] == [False, True, False, True]
