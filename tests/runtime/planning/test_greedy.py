"""Greedy planning: waves are filled in order, and cover every prompt once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from wavepp_worker.runtime.planning.greedy import GreedyPlanner
from wavepp_worker.runtime.planning.planner import Lane

from tests.support.planning import plan


@given(
    lengths=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), max_size=6),
    budget=st.integers(1, 33),
)
def test_greedy_waves_cover_every_prompt_once_and_in_order(
    lengths: list[tuple[int, int]], budget: int
) -> None:
    lanes = [Lane(f"r{i}", start, start + length) for i, (start, length) in enumerate(lengths)]
    planner, position = GreedyPlanner(budget), {lane.request_id: lane.next for lane in lanes}
    waves = 0
    while spans := plan(planner, lanes):
        waves += 1
        tokens = sum(span.length for span in spans)
        assert tokens <= budget
        for span in spans:
            assert span.start == position[span.request_id]
            position[span.request_id] += span.length
        left = sum(lane.end - lane.next for lane in lanes)
        assert tokens == budget or left == 0, "a wave was not filled although work was left"
        assert len({span.request_id for span in spans}) == len(spans)
    assert all(position[lane.request_id] == lane.end for lane in lanes)
    assert waves == -(-sum(length for _, length in lengths) // budget)


def test_only_the_last_span_of_a_prompt_is_marked_last() -> None:
    lane = Lane("r", 16, 50)
    spans = [span for _ in range(4) for span in plan(GreedyPlanner(16), [lane])]
    assert [(span.start, span.length, span.last) for span in spans] == [
        (16, 16, False),
        (32, 16, False),
        (48, 2, True),
    ]
