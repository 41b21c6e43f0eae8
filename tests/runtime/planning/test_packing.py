"""How one wave is filled, whatever its budget: blocks, lanes that pass others, and their deadline."""

from __future__ import annotations

import pytest
from wavepp_worker.errors import PositionMismatch
from wavepp_worker.runtime.planning.packing import PackingPlanner
from wavepp_worker.runtime.planning.planner import Lane, PipelineView
from wavepp_worker.runtime.planning.wave_budget import TokenBudget
from wavepp_worker.runtime.protocol.waves import Span

from tests.support.planning import BLOCK_SIZE, lanes, plan, shape


class WholeWaves(PackingPlanner):
    """Waves of at most so many tokens; every chunk that does not end its prompt and is smaller is a fragment."""

    def __init__(self, tokens: int, *, max_num_seqs: int = 128, deadline: int = 4) -> None:
        super().__init__(max_num_seqs=max_num_seqs, block_size=BLOCK_SIZE, deadline=deadline)
        self._tokens = tokens

    def propose(self, view: PipelineView) -> tuple[Span, ...]:
        budget = TokenBudget(self._tokens, self._block_size, smallest=self._tokens)
        return self._pack(view.lanes[: self._max_num_seqs], budget)


def test_chunks_end_on_blocks_except_the_prompts_last() -> None:
    lane = Lane("r", 5, 60)
    spans = []
    planner = WholeWaves(32)
    while lane.left:
        spans += plan(planner, [lane])
    assert [(span.start, span.length, span.last) for span in spans] == [
        (5, 27, False),
        (32, 28, True),
    ]


def test_only_the_open_lanes_share_waves() -> None:
    planner = WholeWaves(64, max_num_seqs=2)
    assert shape(planner.propose(PipelineView(lanes(10, 10, 10)))) == [("r0", 0, 10), ("r1", 0, 10)]


def test_a_lane_passed_over_too_often_goes_first() -> None:
    planner = WholeWaves(64, deadline=2)
    # Each 40 leaves 24 tokens: too few for the 100, enough for one of the 20s that came later.
    waiting = list(lanes(40, 40, 40, 100, 20, 20, 20))
    waves = []
    for _ in range(3):
        waves.append(shape(plan(planner, waiting)))
        waiting = [lane for lane in waiting if lane.left]
    assert waves == [
        [("r0", 0, 40), ("r4", 0, 20)],
        [("r1", 0, 40), ("r5", 0, 20)],
        [("r2", 0, 40), ("r3", 0, 16)],
    ]


def test_no_younger_lane_joins_a_wave_that_is_too_full_for_an_overdue_one() -> None:
    planner = WholeWaves(64, deadline=1)
    waiting = list(lanes(40, 56, 100, 20, 8))
    assert shape(plan(planner, waiting)) == [("r0", 0, 40), ("r3", 0, 20)]
    waiting = [lane for lane in waiting if lane.left]
    assert shape(plan(planner, waiting)) == [("r1", 0, 56)], "r4 would fit, but r2 is overdue"


def test_positions_advance_by_accepted_spans_only() -> None:
    planner, view = WholeWaves(32), PipelineView(lanes(100))
    (span,) = planner.propose(view)
    assert (span.start, span.length, view.lanes[0].next) == (0, 32, 0)
    planner.accept(view, [Span("r0", 0, 16, False)])
    assert shape(planner.propose(view)) == [("r0", 16, 32)]
    for wrong in (
        Span("r0", 0, 16, False),
        Span("r0", 32, 16, False),
        Span("r0", 16, 85, True),
        Span("r9", 16, 16, False),
    ):
        with pytest.raises(PositionMismatch, match="accepted"):
            planner.accept(view, [wrong])
    assert view.lanes[0].next == 16


class Rides(WholeWaves):
    """With those who read what a wave computes."""

    def propose(self, view: PipelineView) -> tuple[Span, ...]:
        budget = TokenBudget(self._tokens, self._block_size)
        return self._add_riders(view, self._pack(view.lanes, budget), budget)


def behind(writer: Lane, *readers: tuple[str, Lane]) -> PipelineView:
    """Readers, and whom each reads from."""
    names = {lane.request_id: name for name, lane in readers}
    return PipelineView((writer,), behind=[lane for _, lane in readers], riding=names)


def test_who_reads_what_a_wave_computes_takes_what_is_left_of_it_and_so_does_who_reads_from_that() -> None:
    chain = [
        ("r0", Lane("a", 32, 48)),
        ("a", Lane("b", 48, 60)),
        ("b", Lane("c", 48, 80)),
        ("b", Lane("d", 48, 90)),
    ]
    view = behind(Lane("r0", 0, 40), *chain)
    spans = Rides(100).propose(view)
    assert shape(spans) == [("r0", 0, 40), ("a", 32, 16), ("b", 48, 12), ("c", 48, 32)]
    assert [span.last for span in spans] == [True] * 4
    Rides(100).accept(view, spans)
    assert [lane.left for lane in view.behind] == [0, 0, 0, 42]


def test_nobody_rides_with_a_chunk_that_does_not_reach_as_far_as_it_reads() -> None:
    """Though its few tokens would fit where no block of the writer does."""
    view = behind(Lane("r0", 0, 100), ("r0", Lane("a", 48, 50)), ("r0", Lane("b", 32, 40)))
    assert shape(Rides(45).propose(view)) == [("r0", 0, 32), ("b", 32, 8)]


def test_no_more_ride_than_there_are_places() -> None:
    readers = [("r0", Lane(name, 16, 20)) for name in "abcd"]
    spans = Rides(100, max_num_seqs=3).propose(behind(Lane("r0", 0, 20), *readers))
    assert shape(spans) == [("r0", 0, 20), ("a", 16, 4), ("b", 16, 4)]


def test_a_reader_that_is_cut_ends_on_a_block_and_leaves_no_room_for_another() -> None:
    readers = [("r0", Lane(name, 16, 60)) for name in "ab"]
    assert shape(Rides(58).propose(behind(Lane("r0", 0, 20), *readers))) == [("r0", 0, 20), ("a", 16, 32)]
