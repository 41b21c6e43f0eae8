"""What is left of lanes, against the cost model's own sum."""

from __future__ import annotations

import pytest
from wavepp_worker.runtime.planning.lane_work import works
from wavepp_worker.runtime.planning.planner import Lane
from wavepp_worker.runtime.planning.wave_cost import WaveCost


def test_work_is_counted_in_tokens_that_cost_one_without_context() -> None:
    assert works([Lane("r", 0, 40)], WaveCost(a=7.0, b=2.0, c=0.0)) == [40.0]
    cost = WaveCost(a=7.0, b=2.0, c=0.01)
    lanes = [Lane("r0", 0, 40), Lane("r1", 1000, 1300)]
    assert works(lanes, cost) == pytest.approx([cost.work(0, 40) / 2, cost.work(1000, 300) / 2])
